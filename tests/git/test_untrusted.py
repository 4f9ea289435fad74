"""A repository that came out of an archive: its configuration names programs, and none of them
runs.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.git.repositories import Clone, new, run, script

HOOKS = (
    "pre-commit",
    "post-index-change",
    "reference-transaction",
    "post-checkout",
    "fsmonitor-watchman",
)


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A program that leaves its name in a file, whatever it is called."""
    log = shlex.quote(str(tmp_path / "ran"))
    return script(tmp_path / "canary", f'echo "$0 $*" >> {log}', "exec cat")


@pytest.fixture
def trap(tmp_path: Path, canary: Path) -> Iterator[tuple[Clone, str]]:
    """A store with one conversation in three versions, and a canary wherever git takes a program;
    and its id.
    """
    clone = new(tmp_path / "trap")
    with clone.store() as store:
        id = store.create(title="Plan", type="group").id
        for text in ("one", "two", "three"):
            store.append(id, content=text)
            clone.commit(text)
    clone.git("branch", "side", "HEAD~1")
    kinds = "conversations/*.json filter=evil diff=evil merge=evil -text\n"
    (clone.top / ".gitattributes").write_text(kinds)
    (clone.top / ".git" / "info" / "attributes").write_text(kinds)
    for hook in HOOKS:
        (clone.top / ".git" / "hooks" / hook).write_bytes(canary.read_bytes())
        (clone.top / ".git" / "hooks" / hook).chmod(0o755)
    commands = [
        *(
            "core.fsmonitor",
            "core.pager",
            "core.sshCommand",
            "core.editor",
            "core.askPass",
            "core.gitProxy",
        ),
        *(
            "diff.external",
            "diff.evil.command",
            "diff.evil.textconv",
            "merge.evil.driver",
            "gpg.program",
        ),
        *(
            "filter.evil.clean",
            "filter.evil.smudge",
            "filter.evil.process",
            "filter.capsule.process",
        ),
        *(
            "credential.helper",
            "pager.log",
            "pager.diff",
            "remote.evil.uploadpack",
            "interactive.diffFilter",
        ),
    ]
    settings = {name: str(canary) for name in commands}
    settings |= {
        f"alias.{name}": f"!{canary}" for name in ("cat-file", "status", "log", "diff", "rev-parse")
    }
    settings |= {
        "filter.evil.required": "true",
        "log.showSignature": "true",
        "diff.evil.cachetextconv": "false",
    }
    settings |= {
        "remote.evil.url": f"ext::{canary}",
        "remote.evil.promisor": "true",
        "protocol.ext.allow": "always",
    }
    settings |= {
        "extensions.partialClone": "evil",
        "core.repositoryFormatVersion": "1",
        "protocol.allow": "always",
    }
    for name, value in settings.items():
        clone.run("config", name, value)
    # One object is missing, which a partial clone would fetch.
    blob = clone.git("rev-parse", f"HEAD~2:{clone.path(id)}")
    (clone.top / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    yield clone, id
    assert not (tmp_path / "ran").exists(), (tmp_path / "ran").read_text()


def stale(clone: Clone, id: str) -> None:
    """Leave a version that lacks a message, so that git is asked whether it put it there; newer
    than the index.
    """
    old = clone.at("HEAD~1", id)
    clone.file(id).write_bytes(old)


COMMANDS = """\
list; show ID; doctor; search two; append ID four; git status; git log ID; git diff ID HEAD~1; git diff ID HEAD~1 HEAD
show ID --at HEAD~1; show ID --at HEAD~2; git restore ID --at HEAD~1; context capture ID .; git setup; git teardown"""


@pytest.mark.slow
def test_no_command_but_commit_and_sync_runs_what_a_repository_names(
    trap: tuple[Clone, str], tmp_path: Path
) -> None:
    clone, id = trap
    clone.run("status", expect=None)
    (tmp_path / "ran").unlink()  # So the trap works.
    for command in COMMANDS.replace("\n", "; ").split("; "):
        stale(clone, id)
        ran = clone.capsule(*command.replace("ID", id).split(), expect=None)
        assert "Traceback" not in ran.err
        assert not (tmp_path / "ran").exists(), (command, (tmp_path / "ran").read_text())
        assert ran.code in (0, 1, 3, 5), (command, ran)


def test_a_version_of_git_is_recognised_there_too(trap: tuple[Clone, str]) -> None:
    clone, id = trap
    off = [
        part for name in ("clean", "smudge", "process") for part in ("-c", f"filter.evil.{name}=")
    ]
    with clone.store() as store:
        assert len(store.load(id).history) == 3
        command = ("git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", *off)
        run(
            clone.top, *command, "-c", "filter.evil.required=false", "reset", "-q", "--hard", "side"
        )
        assert len(store.load(id).history) == 2


def test_a_filter_that_can_not_be_turned_off_is_refused(
    trap: tuple[Clone, str], canary: Path
) -> None:
    clone, _ = trap
    with open(clone.top / ".git" / "config", "a") as file:
        file.write(f'[filter "a=b"]\n\tclean = {canary}\n')
    (clone.top / ".git" / "info" / "attributes").write_text("* filter=a=b\n")
    assert clone.capsule("git", "status", expect=6).err


@pytest.mark.parametrize(
    "name", ["core.sshCommand", "remote.origin.uploadpack", "credential.https://a.b.helper"]
)
def test_sync_runs_no_helper_that_only_the_repository_names(
    tmp_path: Path, canary: Path, name: str
) -> None:
    clone = new(tmp_path / "clone")
    run(tmp_path, "git", "init", "-q", "--bare", "remote")
    clone.git("remote", "add", "origin", os.fspath(tmp_path / "remote"))
    clone.git("config", name, str(canary))
    assert name.lower() in clone.capsule("git", "sync", expect=6).err.lower()
    assert not (tmp_path / "ran").exists()


def test_sync_takes_no_transport_that_only_the_repository_allows(
    tmp_path: Path, canary: Path
) -> None:
    clone = new(tmp_path / "clone")
    clone.git("remote", "add", "origin", f"ext::{canary}")
    clone.git("config", "protocol.ext.allow", "always")
    assert "ext" in clone.capsule("git", "sync", expect=9).err
    assert not (tmp_path / "ran").exists()
