"""Ctrl-C and SIGTERM while git is at work: a step is done first, and the network isn't
waited for.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.git.conftest import Start
from tests.git.repositories import Clone, script
from tests.git.talking import conversation, status, sync_of


@pytest.fixture
def pipes(tmp_path: Path) -> tuple[Path, Path]:
    """Two pipes with names: by the first a script says that it is there, and it waits for the
    second.
    """
    found = tmp_path / "there", tmp_path / "go on"
    for path in found:
        os.mkfifo(path)
    return found


def waiting(pipes: tuple[Path, Path]) -> str:
    return f"echo there > '{pipes[0]}'\nread word < '{pipes[1]}'\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_commit_that_is_under_way_is_made_first(
    clones: tuple[Clone, Clone], pipes: tuple[Path, Path], start: Start, number: int, code: int
) -> None:
    anna, _ = clones
    id = conversation(anna)
    anna.hook("pre-commit", waiting(pipes))
    process = start(anna, "git", "sync")
    assert pipes[0].read_text() == "there\n"
    process.send_signal(number)
    pipes[1].write_text("on\n")
    _, err = process.communicate()
    assert (process.returncode, err) == (code, "")
    assert anna.git("log", "-1", "--format=%s") == "'Plan' created"
    assert anna.at("HEAD", id) and status(anna) == []
    assert anna.git("rev-list", "--count", "origin/main..main") == "1"


def test_a_remote_that_does_not_answer_is_not_waited_for(
    clones: tuple[Clone, Clone],
    pipes: tuple[Path, Path],
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    anna, ben = clones
    id = conversation(ben)
    sync_of(ben)
    script(tmp_path / "slow", waiting(pipes), 'exec git-upload-pack "$@"')
    with monkeypatch.context() as patch:
        for name, value in (
            ("COUNT", "1"),
            ("KEY_0", "remote.origin.uploadpack"),
            ("VALUE_0", f"'{tmp_path}/slow'"),
        ):
            patch.setenv(f"GIT_CONFIG_{name}", value)
        process = start(anna, "git", "sync")
    assert pipes[0].read_text() == "there\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    with open(pipes[1], "r+b", buffering=0) as release:
        release.write(b"on\n")
    sync_of(anna)
    assert anna.file(id).exists() and status(anna) == []
