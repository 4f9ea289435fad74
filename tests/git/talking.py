"""What people say and do in two clones, for the tests of syncing."""

from __future__ import annotations

from pathlib import Path

from capsule import Store
from capsule.format import codec
from tests.git.repositories import Clone
from tests.git.turning import status, sync_of

Two = tuple[Clone, Clone]


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
    for clone in clones:
        sync_of(clone)
    return id


def head(clone: Clone) -> str:
    return clone.git("rev-parse", "HEAD")


def assert_at_rest(clone: Clone) -> None:
    """Assert that nothing waits for a person: no merge, no difference, nothing staged."""
    assert status(clone) == []
    assert not (Path(clone.repository.directory) / "MERGE_HEAD").exists()


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
