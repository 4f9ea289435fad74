"""A version that git puts in a conversation's place, told apart from an editor's save of an old
copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from capsule import Store
from capsule.engines.files import external_edits
from tests.git.repositories import Clone, bare, new, run, worktree
from tests.processes import PATIENCE_S


def contents(store: Store, id: str) -> list[str]:
    return [message.content for message in store.load(id).history]


def kept(root: Path) -> bytes:
    """All that lies in quarantine because git took it away."""
    return b"".join(
        path.read_bytes() for path in (root / ".capsule" / "quarantine").glob("*~git~*")
    )


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store gives git two seconds to answer, which it may not keep on a loaded machine."""
    monkeypatch.setattr(external_edits, "_GIT_TIMEOUT_S", PATIENCE_S)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return new(tmp_path / "repo")


@pytest.fixture
def id(clone: Clone) -> str:
    """A conversation in three commits: `one`, then `two`, then another file; `old` is the branch of
    the first.
    """
    with clone.store() as store:
        id = store.create(title="Plan", type="group").id
        store.append(id, content="one")
        clone.commit("one")
        clone.git("branch", "old")
        store.append(id, content="two")
        clone.commit("two")
    (clone.top / "other.txt").write_text("beside\n")
    clone.commit("beside")
    return id


def pull_rebase(clone: Clone) -> None:
    """Rebase on a remote that has taken the second message out again."""
    remote = bare(clone.top.parent / "remote.git")
    clone.git("push", "-q", str(remote), "main")
    other = clone.top.parent / "other"
    run(other.parent, "git", "clone", "-q", str(remote), str(other))
    run(other, "git", "revert", "--no-edit", "HEAD~1")
    run(other, "git", "push", "-q")
    clone.git("pull", "-q", "--rebase", str(remote), "main")


def merge_revert(clone: Clone) -> None:
    clone.git("switch", "-q", "-c", "side")
    clone.git("revert", "--no-edit", "HEAD~1")
    clone.git("switch", "-q", "main")
    clone.git("merge", "-q", "side")


MOVES: dict[str, Callable[[Clone], object]] = {
    "checkout": lambda clone: clone.git("checkout", "-q", "old"),
    "switch": lambda clone: clone.git("switch", "-q", "--detach", "HEAD~2"),
    "reset --hard": lambda clone: clone.git("reset", "-q", "--hard", "HEAD~2"),
    "revert": lambda clone: clone.git("revert", "--no-edit", "HEAD~1"),
    "rebase": lambda clone: clone.git("rebase", "-q", "--onto", "old", "HEAD~1"),
    "merge": merge_revert,
    "pull --rebase": pull_rebase,
}


#: The commands of git that each stand for a way of its own: to another branch, by picks, and by a
#: merge.
QUICK_MOVES = ("checkout", "rebase", "merge")


@pytest.mark.parametrize(
    "move",
    [move if move in QUICK_MOVES else pytest.param(move, marks=pytest.mark.slow) for move in MOVES],
)
def test_a_committed_message_goes_when_git_moves_to_another_commit(
    clone: Clone, id: str, move: str
) -> None:
    with clone.store() as store:
        assert contents(store, id) == ["one", "two"]
        MOVES[move](clone)
        assert contents(store, id) == ["one"]
        assert b"two" in kept(clone.root)
        store.append(id, content="three")
        assert contents(store, id) == ["one", "three"]


PUTS_BACK = (
    *(["checkout", "-q", "--", "."], ["restore", "."], ["reset", "-q", "--hard"], ["stash", "-q"]),
    ["reset", "-q", "--hard", "HEAD~2"],
)


@pytest.mark.slow
def test_an_uncommitted_message_comes_back_with_a_warning(
    clone: Clone, id: str, caplog: pytest.LogCaptureFixture
) -> None:
    for command in PUTS_BACK:
        with clone.store() as store:
            store.append(id, content=" ".join(command))
            clone.git(*command)
            assert contents(store, id)[-1] == " ".join(command)
            assert f"{id}.json: was reset to the last commit, by git or by an editor" in caplog.text
        caplog.clear()
        clone.commit()


def test_an_unchanged_save_after_a_checkout_takes_nothing_away_that_came_since(
    clone: Clone, id: str
) -> None:
    with clone.store() as store:
        clone.git("checkout", "-q", "old")
        assert contents(store, id) == ["one"]
        opened = clone.file(id).read_bytes()
        store.append(id, content="three")
        clone.file(id).write_bytes(opened)
        assert contents(store, id) == ["one", "three"]


def test_a_checkout_back_and_forth_brings_each_version_as_it_is(clone: Clone, id: str) -> None:
    with clone.store() as store:
        for branch, expected in (("old", ["one"]), ("main", ["one", "two"])) * 2:
            clone.git("checkout", "-q", branch)
            assert contents(store, id) == expected


def test_a_held_lock_does_not_make_a_checkout_an_editors_save(clone: Clone, id: str) -> None:
    with clone.store() as store, store.locks.take(id):
        clone.git("checkout", "-q", "-f", "old")
        assert contents(store, id) == ["one"]


def test_a_version_that_is_in_no_commit_is_an_editors(clone: Clone, id: str) -> None:
    document = orjson.loads(clone.file(id).read_bytes())
    with clone.store() as store:
        store.append(id, content="three")
        clone.file(id).write_bytes(orjson.dumps(document | {"title": "Typed"}))
        assert contents(store, id) == ["one", "two", "three"]


def test_other_line_ends_a_linked_worktree_and_a_hook_of_another_repository_do_not_matter(
    clone: Clone, id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone.top / ".git" / "info" / "attributes").write_text("*.json text -filter\n")
    linked = worktree(clone, tmp_path / "linked", "side")
    linked.configure(core_autocrlf="true")
    with Store.open(linked.root, keep_locks=False) as store:
        assert contents(store, id) == ["one", "two"]
        linked.git("checkout", "-q", "--detach", "old")
        assert b"\r\n" in linked.file(id).read_bytes()
        run(tmp_path, "git", "init", "-q", "another")
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "another" / ".git"))
        assert contents(store, id) == ["one"]


@pytest.mark.skipif(
    not hasattr(os, "chown") or os.geteuid() != 0, reason="needs root, to give a directory away"
)
def test_a_repository_of_somebody_else_is_not_asked_unless_git_takes_it_for_safe(
    clone: Clone, id: str
) -> None:
    with clone.store() as store:
        assert contents(store, id) == ["one", "two"]
        clone.git("checkout", "-q", "old")
        for path in (clone.top / ".git", clone.top):
            os.chown(path, 12345, 12345)
        assert contents(store, id) == ["one", "two"]
