"""The diff driver, started by real git: a difference reads like a chat, also of what is broken."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.git.repositories import PROGRAM, Clone, environment, new
from tests.git.talking import conversation, say
from tests.git.test_drivers_filter import FOLDER, lock

STAMP = "2025-01-12T10:00:00.000Z"


def hunk(diff: str) -> list[str]:
    """The lines that a difference adds and removes, without their times."""
    return [
        line[0] + line[21:] if line[1:3] == "20" else line
        for line in diff.splitlines()
        if line.startswith(("+", "-")) and not line.startswith(("+++", "---"))
    ]


@pytest.mark.slow
def test_a_message_that_came_is_a_line_that_came(repo: Clone) -> None:
    id = conversation(repo, "Hello", "there")
    repo.commit()
    with repo.store() as store:
        store.append(id, content="One\n\nTwo", role="assistant", **{"from": "anna"})
    assert hunk(repo.git("diff")) == ["+assistant anna:", "+    One", "+", "+    Two"]
    repo.commit()
    assert hunk(repo.git("log", "-p", "-1", "--format=%s")) == [
        "+assistant anna:",
        "+    One",
        "+",
        "+    Two",
    ]


def test_a_lock_and_a_layout_make_no_difference(repo: Clone) -> None:
    id = conversation(repo, "Hello")
    repo.commit()
    repo.file(id).write_bytes(lock(repo, id).replace(b"\n", b"\r\n"))
    assert repo.git("diff") == ""


def test_a_hunk_is_headed_by_the_message_it_is_in(repo: Clone) -> None:
    lines = [f"line {at}" for at in range(30)]
    id = conversation(repo, "Hello", "\n".join(lines))
    repo.commit()
    with repo.store() as store:
        last = str(store.tail(id, 1)[0].id)
        store.edits.message(id, last, content="\n".join([*lines[:20], "changed", *lines[20:]]))
    diff = repo.git("diff")
    assert "+    changed" in diff
    assert [line for line in diff.splitlines() if line.startswith("@@")][-1].endswith(" user:")


@pytest.mark.slow
def test_blame_tells_who_said_what(repo: Clone) -> None:
    id = conversation(repo, "Hello")
    repo.commit("first")
    say(repo, id, "More")
    repo.run("commit", "-a", "-m", "second", "--author=Ben <ben@example.org>")
    blamed = repo.git(
        "blame", "-s", "--line-porcelain", "--", f"conversations/{id}.json"
    ).splitlines()
    lines = [line[1:] for line in blamed if line.startswith("\t")]
    authors = [line.removeprefix("author ") for line in blamed if line.startswith("author ")]
    assert [line[20:] for line in lines[-2:]] == ["user: Hello", "user: More"]
    assert authors[-2:] == ["tester", "Ben"]


def test_a_conversation_that_came_or_went_is_shown_whole(tmp_path: Path) -> None:
    clone = new(tmp_path / "r", FOLDER)
    id = conversation(clone, "Hello")
    clone.commit()
    shown = hunk(clone.git("show", "--format="))
    assert f"+conversation {id}" in shown and "+user: Hello" in shown
    clone.file(id).unlink()
    gone = hunk(clone.git("diff"))
    assert f"-conversation {id}" in gone and "-user: Hello" in gone


def test_a_broken_version_in_the_history_is_shown_as_it_is(repo: Clone) -> None:
    id = conversation(repo, "Hello")
    repo.commit()
    data = repo.file(id).read_bytes()
    repo.file(id).write_bytes(data[:-9])
    # A clone without the filter, long ago.
    repo.run(
        "-c",
        "filter.capsule.process=",
        "-c",
        "filter.capsule.required=false",
        "commit",
        "-a",
        "-m",
        "torn",
    )
    shown = hunk(repo.git("show", "--format="))
    assert "-user: Hello" in shown
    assert '+      "content": "Hello",' in shown


def test_an_agents_document_is_shown_as_it_is(repo: Clone) -> None:
    (repo.root / "agents").mkdir()
    repo.file("anna", "agents").write_text('{"id": "anna", "cursors": {}}', encoding="utf-8")
    repo.commit()
    assert '+  "id": "anna",' in repo.git("show", "--format=")


def test_textconv_names_a_file_that_can_not_be_read(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "textconv", str(tmp_path / "none")],
        capture_output=True,
        env=environment(),
        timeout=60,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr == f"capsule: {tmp_path / 'none'}: can't be read: No such file or directory\n"
    )


def test_a_pager_that_is_left_ends_it_without_a_word(repo: Clone) -> None:
    id = conversation(repo, "Hello\n" * 200_000)
    command = [*PROGRAM, "textconv", str(repo.file(id))]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait(timeout=60)
