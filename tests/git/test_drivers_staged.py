"""The check before a commit: what the filter refuses is not committed past it either."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.git.repositories import PROGRAM, Clone, new, run, worktree
from tests.git.talking import conversation
from tests.git.test_drivers_filter import FOLDER, lock


def hooked(clone: Clone) -> Clone:
    """The clone with the check as its hook, and without the filter."""
    for name in ("filter.capsule.process", "filter.capsule.required"):
        clone.run("config", "--unset", name)
    clone.hook("pre-commit", f"exec {shlex.join(PROGRAM)} pre-commit")
    return clone


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return hooked(new(tmp_path / "r", FOLDER))


def refused(clone: Clone) -> list[str]:
    """What is said of what is staged, by a commit that isn't made."""
    before = clone.git("rev-parse", "HEAD")
    ran = clone.run("commit", "-m", "no", expect=1)
    assert clone.git("rev-parse", "HEAD") == before
    *lines, last = ran.err.splitlines()
    assert last == (
        "capsule: nothing was committed; to commit the staged files unchanged, run: git "
        "commit --no-verify"
    )
    return [line.removeprefix("capsule: ") for line in lines]


def test_valid_documents_pass_the_check(clone: Clone) -> None:
    id = conversation(clone, "Hello")
    (clone.root / "agents").mkdir()
    clone.file("anna", "agents").write_text('{"id": "anna"}\n', encoding="utf-8")
    (clone.root / "projects").mkdir()
    clone.file("api-123456", "projects").write_text('{"id": "api-123456"}\n', encoding="utf-8")
    clone.file("later").write_text('{"version": "3.0", "history": null}', encoding="utf-8")
    (clone.root / "conversations" / "README.md").write_text("notes\n", encoding="utf-8")
    clone.commit()
    clone.file(id).unlink()
    clone.commit()


def test_the_advised_commands_work_in_any_directory_of_the_repository(tmp_path: Path) -> None:
    clone = hooked(new(tmp_path / "r p", "pkg/my störe"))
    (clone.root / "conversations" / ".ö.tmp").write_bytes(b"{")
    clone.file("linked").symlink_to("/etc/hostname")
    clone.run("add", "--all", "--force", ":/pkg/my störe/conversations")
    for line in refused(clone):
        run(clone.root / "conversations", *shlex.split("git " + line.partition(": git ")[2]))
    clone.run("commit", "--allow-empty", "-m", "without them")
    assert clone.git("ls-files", "*.tmp", "*linked*") == ""


def test_it_is_the_index_that_counts(clone: Clone) -> None:
    id = conversation(clone, "Hello")
    clone.run("add", "--all")
    clone.file(id).write_bytes(b"{")
    clone.run("commit", "-m", "whole in the index")
    assert clone.run("commit", "-a", "-m", "broken", expect=1).err.count(f"{id}.json:1:2: ") == 1
    assert (
        clone.run("commit", "-m", "broken", "--", clone.path(id), expect=1).err.count(
            f"{id}.json:1:2: "
        )
        == 1
    )


def test_files_of_the_same_names_outside_a_store_are_not_checked(tmp_path: Path) -> None:
    clone = hooked(new(tmp_path / "r", "store"))
    for folder in (
        "conversations",
        "agents",
        ".capsule",
        "store/deeper/conversations",
        "store/conversations/deeper",
    ):
        (clone.top / folder).mkdir(parents=True)
        (clone.top / folder / "x.json").write_text("no JSON", encoding="utf-8")
    clone.commit()


def test_the_check_names_each_wrong_file_with_its_place_and_the_way_out(clone: Clone) -> None:
    locked, torn, renamed = (
        conversation(clone, "Hello"),
        conversation(clone, "Hello"),
        conversation(clone, "Hello"),
    )
    lock(clone, locked)
    clone.file(torn).write_bytes(clone.file(torn).read_bytes()[:-3])
    clone.file(renamed).rename(clone.file("other"))
    clone.file("typed").write_bytes(b'{"id": "typed"}')
    (clone.root / "conversations" / f".{torn}.tmp").write_bytes(b"{")
    clone.file("linked").symlink_to("/etc/hostname")
    (clone.root / "agents").mkdir()
    clone.file("bob", "agents").write_text('{"id": "bob", "dmPolicy": "secret"}', encoding="utf-8")
    clone.file("carl", "agents").write_text('{"id": "dave"}', encoding="utf-8")
    clone.run("add", "--all", "--force")
    said = refused(clone)
    for begins, holds in (
        (f"{locked}.json", "lock of anna"),
        (f"{torn}.json:", "repair it, and then: git add -- "),
        ("typed.json:1:1: ", "history"),
        ("other.json:2:9: ", renamed),
        ("bob.json:1:27: ", "dmPolicy"),
        ("carl.json:1:8: ", "dave"),
        (f".{torn}.tmp: ", ": git rm --cached -- "),
        ("linked.json: ", ": git rm --cached -- "),
        (".capsule/mutex/", "derived"),
    ):
        assert any(begins in line and holds in line for line in said), (begins, holds, said)


def test_the_first_commit_and_one_in_a_linked_worktree_are_checked_too(tmp_path: Path) -> None:
    clone = hooked(new(tmp_path / "r", commit=False))
    clone.file("typed").write_bytes(b"{")
    clone.run("add", "--all")
    assert "conversations/typed.json:1:2: " in clone.run("commit", "-m", "first", expect=1).err
    clone.run("rm", "-q", "-f", "--cached", "conversations/typed.json")
    clone.run("commit", "-m", "without it")
    linked = worktree(clone, tmp_path / "beside", "topic")
    (linked.root / "conversations").mkdir()
    linked.file("typed").write_bytes(b"{")
    linked.run("add", "--all")
    assert "conversations/typed.json:1:2: " in "\n".join(refused(linked))
