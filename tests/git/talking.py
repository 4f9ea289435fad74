"""What people and programs do in clones, in the test's own process: quicker than the program, and a
test can stand in between."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from capsule import Store, git
from capsule.format import validation
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from capsule.git.commit import CommitResult, no_progress
from capsule.git.sync import SyncResult
from tests.git.repositories import Clone

Two = tuple[Clone, Clone]
Told = Callable[[str, int, int], None]


def committed(store: Store, message: str | None = None, told: Told = no_progress) -> CommitResult:
    return git.open(store).commit(message, progress=told)


def synced(store: Store, told: Told = no_progress, *, unrelated: bool = False) -> SyncResult:
    return git.open(store).sync(unrelated=unrelated, progress=told)


def sync_of(clone: Clone, told: Told = no_progress) -> SyncResult:
    """A sync by a store that is opened for it, as the program does."""
    with Store.open(clone.root, keep_locks=False) as store:
        return synced(store, told)


def staged(clone: Clone) -> list[str]:
    """The paths that differ between HEAD and the index."""
    return clone.run("diff", "--cached", "--no-renames", "--name-only", "-z").out.split("\0")[:-1]


def status(clone: Clone) -> list[str]:
    """What `git status` says, with the drivers that the clone is set up with."""
    return clone.run("status", "--porcelain", "-z").out.split("\0")[:-1]


def document(clone: Clone, id: str) -> dict[str, Any]:
    """The conversation in the working tree, which is valid, and in its clean form but for
    a lock.
    """
    data = clone.file(id).read_bytes()
    found = codec.decode(data, id)
    validation.check(found, data, id)
    assert found["metadata"]["lock"]["active"] or clean(data, id, "conversations") == data
    return found


def contents(clone: Clone, id: str) -> list[str]:
    return [entry["content"] for entry in codec.decode(clone.file(id).read_bytes(), "")["history"]]


def conversation(clone: Clone, *said: str, title: str = "Plan", type: str = "group") -> str:
    with Store.open(clone.root, keep_locks=False) as store:
        id = store.create(title=title, type=type).id
        for text in said:
            store.append(id, content=text)
    return id


def say(clone: Clone, id: str, *said: str) -> None:
    with Store.open(clone.root, keep_locks=False) as store:
        for text in said:
            store.append(id, content=text)


def shared(clones: Two, *said: str, type: str = "group") -> str:
    """A conversation that both clones have."""
    id = conversation(clones[0], *said, type=type)
    sync_all(*clones)
    return id


def diverged(clones: Two) -> tuple[Clone, Clone, str]:
    """The clones, and a conversation in which both went on; the first has synced."""
    id = shared(clones, "one")
    for clone, text in zip(clones, ("from anna", "from ben"), strict=True):
        say(clone, id, text)
    sync_of(clones[0])
    return *clones, id


def sync_all(*clones: Clone) -> None:
    """Sync the clones in this order."""
    for clone in clones:
        sync_of(clone)


def head(clone: Clone) -> str:
    return clone.git("rev-parse", "HEAD")


def assert_at_rest(*clones: Clone) -> None:
    """Assert that nothing waits for a person: no merge, no difference, nothing staged."""
    for clone in clones:
        assert status(clone) == []
        assert not (Path(clone.repository.directory) / "MERGE_HEAD").exists()


def assert_same(id: str, clones: Two) -> None:
    """Assert that both clones have the same bytes of a conversation, and are at rest."""
    assert clones[0].file(id).read_bytes() == clones[1].file(id).read_bytes()
    assert_at_rest(*clones)


def delete(clone: Clone, id: str) -> None:
    with Store.open(clone.root, keep_locks=False) as store:
        store.delete(id)


def rename(clone: Clone, id: str, title: str) -> None:
    with Store.open(clone.root, keep_locks=False) as store:
        store.rename(id, title)


def code(clone: Clone, text: str, name: str = "README.md", *, commit: bool = True) -> None:
    (clone.top / name).write_text(text)
    if commit:
        clone.run("add", name)
        clone.run("commit", "-qm", f"{name} changed")


#: What lets a clone commit what no clone that is set up would.
PAST_THE_FILTER = ("-c", "filter.capsule.process=", "-c", "filter.capsule.required=false")


def sides(clone: Clone, theirs: Callable[[], Any], ours: Callable[[], Any]) -> None:
    """Two branches that both changed something: `main`, which is checked out, and `theirs`."""
    clone.run("branch", "theirs")
    for branch, change in (("theirs", theirs), ("main", ours)):
        clone.run(*PAST_THE_FILTER, "switch", "-q", branch)
        change()
        clone.run(*PAST_THE_FILTER, "add", "--all")
        clone.run(*PAST_THE_FILTER, "commit", "-q", "-m", branch)
