"""Purged texts are gone from all files of the store: from the log, the index, the trash, the memory
of imports.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import orjson
import pytest

from capsule import Store

pytestmark = pytest.mark.files

CANARIES = [
    "edited",
    "deleted",
    "pruned",
    "overruled",
    "titled",
    "gone",
    "whole",
    "restored",
    "byhand",
    "imported",
]


def canary(what: str) -> str:
    """A unique word."""
    return f"canary{what}flew"


def canaries_left(root: Path, canaries: Iterable[str] = CANARIES) -> set[str]:
    """The canaries that occur in any file of the store, whatever kind of document it is, or in the
    name of one.
    """
    all_bytes = b"".join(
        path.name.encode() + (path.read_bytes() if path.is_file() else b"")
        for path in root.rglob("*")
    )
    return {what for what in canaries if canary(what).encode() in all_bytes}


@pytest.fixture
def conversation(store: Store, root: Path) -> str:
    """A conversation in which each canary was written and removed again; "one" and "two" stay."""
    id = store.create(type="group", messages=[{"role": "user", "content": canary("titled")}]).id
    store.append(id, content="one")
    for content in (canary("edited"), canary("deleted"), canary("byhand"), canary("whole")):
        store.append(id, role="assistant", content=content)
    store.branches.regenerate(id, canary("pruned"), "@5")
    store.branches.switch(id, "@5")
    for what in CANARIES:  # Each search puts the text into the index.
        store.search(canary(what))
    store.edits.message(id, "@2", "two")
    store.branches.remove(id, "@3", keep_children=True)
    store.branches.trim(id)
    _saved_by_an_editor(store, id)
    read = store.read(id)
    document = orjson.loads(read)
    document["history"] = [
        entry for entry in document["history"] if entry["content"] != canary("whole")
    ]
    store.edits.rewrite(id, orjson.dumps(document), read)
    store.branches.remove(id, "@0", keep_children=True)
    store.edits.message(id, "@0", canary("restored"))
    store.trash.restore_messages(store.trash.removed(id)[0].trashed)
    gone = store.create(
        title=canary("gone"), messages=[{"role": "user", "content": canary("gone")}]
    ).id
    store.search(canary("gone"))
    store.delete(gone)
    store.search("one")
    return id


def _saved_by_an_editor(store: Store, id: str) -> None:
    """A hand edit that removes a message and overrides an edit that the store made meanwhile."""
    path = Path(store.head(id).path)
    document = orjson.loads(path.read_bytes())
    store.edits.message(id, "@1", canary("overruled"))
    document["history"] = [
        entry for entry in document["history"] if entry["content"] != canary("byhand")
    ]
    document["history"][1]["content"] = "one"
    document["history"][1]["edited"] = "by hand"
    path.write_bytes(orjson.dumps(document))
    store.search("one")


def test_purged_texts_are_in_no_file(store: Store, root: Path, conversation: str) -> None:
    assert canaries_left(root) >= {
        "edited",
        "deleted",
        "pruned",
        "titled",
        "gone",
        "whole",
        "restored",
    }
    (root / f"conversations/.{conversation}.tmp").write_text(canary("gone"))  # Of a dead writer.
    store.trash.purge()
    assert canaries_left(root) == set()
    assert {entry["content"] for entry in store.document(conversation)["history"]} == {"one", "two"}
    assert store.trash.list() == [] == store.trash.removed()
    assert not any(store.search(canary(what)).hits for what in CANARIES)
    store.append(conversation, content="three")
    assert [hit.id for hit in store.search("three").hits] == [conversation]
    assert canaries_left(root) == set()


def test_purge_by_age_keeps_later_removals(store: Store, root: Path, conversation: str) -> None:
    trash = root / ".capsule" / "trash"
    before = sorted(os.listdir(trash))
    store.trash.purge(3600)
    assert sorted(os.listdir(trash)) == before
    for kept in reversed(store.trash.removed(conversation)):
        store.trash.restore_messages(kept.trashed)
    texts = {entry["content"] for entry in store.document(conversation)["history"]}
    assert {canary("deleted"), canary("pruned"), canary("titled")} <= texts


def test_another_open_store_works_after_a_purge(
    store: Store, root: Path, conversation: str
) -> None:
    with Store.open(root, keep_locks=False) as other:
        assert other.search("two").hits
        store.trash.purge()
        other.append(conversation, content="after")
        assert other.search("after").hits and store.search("after").hits
        assert not other.search(canary("deleted")).hits
    assert canaries_left(root) == set()
