"""The check before a commit: what the filter refuses is not committed past it either."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.git.repositories import PROGRAM, Clone, new, run, worktree
from tests.git.test_drivers_filter import FOLDER, lock, talking


def hooked(clone: Clone) -> Clone:
    """The clone with the check as its hook, and without the filter."""
    for name in ("filter.capsule.process", "filter.capsule.required"):
        clone.run("config", "--unset", name)
    hook = Path(clone.git("rev-parse", "--path-format=absolute", "--git-path", "hooks/pre-commit"))
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\nexec {shlex.join(PROGRAM)} pre-commit\n", encoding="utf-8")
    hook.chmod(0o755)
    return clone


@pytest.fixture(params=["", FOLDER])
def clone(request: pytest.FixtureRequest, tmp_path: Path) -> Clone:
    return hooked(new(tmp_path / "r", request.param))


def refused(clone: Clone) -> list[str]:
    """What is said of what is staged, by a commit that isn't made."""
    before = clone.git("rev-parse", "HEAD")
    ran = clone.run("commit", "-m", "no", expect=1)
    assert clone.git("rev-parse", "HEAD") == before
    *lines, last = ran.err.splitlines()
    assert last == (
        "capsule: nothing was committed; what is staged can be committed as it is with: git commit --no-verify"
    )
    return [line.removeprefix("capsule: ") for line in lines]


def test_what_is_whole_is_committed(clone: Clone) -> None:
    id = talking(clone, "Hello")
    (clone.root / "agents").mkdir()
    clone.file("anna", "agents").write_text("{}\n", encoding="utf-8")
    clone.file("later").write_text('{"version": "3.0", "history": null}', encoding="utf-8")
    (clone.root / "conversations" / "README.md").write_text("notes\n", encoding="utf-8")
    clone.commit()
    clone.file(id).unlink()
    clone.commit()


def test_a_lock_is_not_committed(clone: Clone) -> None:
    id = talking(clone, "Hello")
    lock(clone, id)
    clone.run("add", "--all")
    (line,) = "\n".join(refused(clone)).split("\n\n")
    assert "is staged with the lock of anna" in line
    assert "run: capsule git setup" in line and ", and then: git add -- " in line
    assert ("--store" in line) == bool(clone.folder)


def test_what_does_not_parse_is_not_committed(clone: Clone) -> None:
    id = talking(clone, "Hello")
    clone.file(id).write_bytes(clone.file(id).read_bytes()[:-3])
    clone.file("typed").write_bytes(b'{"id": "typed"}')
    clone.run("add", "--all")
    said = "\n".join(refused(clone))
    assert f"{id}.json:" in said
    assert "typed.json:1:1: history: is missing" in said
    assert said.count("mend it, and then: git add -- ") == 2


def test_a_capsule_under_another_name_is_not_committed(clone: Clone) -> None:
    id = talking(clone, "Hello")
    clone.file(id).rename(clone.file("other"))
    clone.run("add", "--all")
    assert f"other.json:2:9: id: is '{id}', but the file's name says 'other'; " in "\n".join(refused(clone))


def test_what_is_being_written_or_derived_is_not_committed(clone: Clone) -> None:
    id = talking(clone, "Hello")
    (clone.root / "conversations" / f".{id}.tmp").write_bytes(b"{")
    clone.run("add", "--all", "--force")
    said = "\n".join(refused(clone))
    assert f".{id}.tmp: is a file that is being written" in said
    assert ".capsule/index.sqlite3: is derived" in said or ".capsule/mutex/" in said


def test_a_link_in_a_documents_place_is_not_committed(clone: Clone) -> None:
    clone.file("linked").symlink_to("/etc/hostname")
    clone.run("add", "--all")
    said = "\n".join(refused(clone))
    assert "linked.json: is no file" in said and ": git rm --cached -- " in said


def test_the_commands_that_are_told_work_in_any_directory_of_the_repository(tmp_path: Path) -> None:
    clone = hooked(new(tmp_path / "r p", "pkg/my störe"))
    (clone.root / "conversations" / ".ö.tmp").write_bytes(b"{")
    clone.file("linked").symlink_to("/etc/hostname")
    clone.run("add", "--all", "--force", ":/pkg/my störe/conversations")
    for line in refused(clone):
        run(clone.root / "conversations", *shlex.split("git " + line.partition(": git ")[2]))
    clone.run("commit", "--allow-empty", "-m", "without them")
    assert clone.git("ls-files", "*.tmp", "*linked*") == ""


def test_it_is_the_index_that_counts(clone: Clone) -> None:
    id = talking(clone, "Hello")
    clone.run("add", "--all")
    clone.file(id).write_bytes(b"{")
    clone.run("commit", "-m", "whole in the index")
    assert clone.run("commit", "-a", "-m", "broken", expect=1).err.count(f"{id}.json:1:2: ") == 1
    assert clone.run("commit", "-m", "broken", "--", clone.path(id), expect=1).err.count(f"{id}.json:1:2: ") == 1


def test_other_files_of_the_same_names_are_nobodys_business(tmp_path: Path) -> None:
    clone = hooked(new(tmp_path / "r", "store"))
    for folder in ("conversations", "agents", ".capsule", "store/deeper/conversations", "store/conversations/deeper"):
        (clone.top / folder).mkdir(parents=True)
        (clone.top / folder / "x.json").write_text("no JSON", encoding="utf-8")
    clone.commit()


def test_the_first_commit_is_checked_too(tmp_path: Path) -> None:
    clone = hooked(new(tmp_path / "r", commit=False))
    clone.file("typed").write_bytes(b"{")
    clone.run("add", "--all")
    assert "conversations/typed.json:1:2: " in clone.run("commit", "-m", "first", expect=1).err


def test_a_linked_worktree_is_checked_too(tmp_path: Path) -> None:
    clone = worktree(hooked(new(tmp_path / "r")), tmp_path / "beside", "topic")
    (clone.root / "conversations").mkdir()
    clone.file("typed").write_bytes(b"{")
    clone.run("add", "--all")
    assert "conversations/typed.json:1:2: " in "\n".join(refused(clone))
