"""Restoring an earlier version of a conversation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.errors import InvalidDocument
from capsule.format.json import codec

pytestmark = pytest.mark.usefixtures("root")
KEEPS_LOCKS = False
ID = "plan-1"


def earlier_version(store: Store, type: str = "chat") -> dict[str, Any]:
    """Make a conversation, continue it, and return its earlier version."""
    store.create(id=ID, title="Plan", type=type, messages=[{"role": "user", "content": "one"}])
    document = store.document(ID)
    store.append(ID, content="two")
    store.rename(ID, "Another")
    return document


def contents(store: Store) -> list[str]:
    return [message["content"] for message in store.document(ID)["history"]]


@pytest.mark.parametrize("type", ["chat", "group"])
@pytest.mark.files
def test_an_earlier_version_replaces_the_present_one_which_is_kept(store: Store, type: str) -> None:
    document = earlier_version(store, type)
    now, here = (
        store.document(ID),
        Path(store.engine.storage.path("conversations", ID)).read_bytes(),
    )
    restored = store.versions.restore(ID, document)
    after = store.document(ID)
    assert (
        after == document | {"updatedAt": after["updatedAt"]}
        and after["updatedAt"] >= now["updatedAt"]
    )
    assert (
        restored.head.title == "Plan" and restored.kept and Path(restored.kept).read_bytes() == here
    )
    store.append(ID, content="three")
    assert contents(store) == ["one", "three"]


def test_the_present_lock_stays_and_that_of_the_version_is_dropped(store: Store) -> None:
    document = earlier_version(store)
    lock = {"active": True, "instanceId": "x", "timestamp": None, "user": "u", "host": "elsewhere"}
    document = document | {"metadata": document["metadata"] | {"lock": lock}}
    with store.locks.take(ID):
        store.versions.restore(ID, document)
        assert store.document(ID)["metadata"]["lock"]["instanceId"] == store.instance_id
    assert store.head(ID).lock is None
    store.delete(ID)
    assert store.versions.restore(ID, document).head.lock is None


def test_a_deleted_conversation_is_made_again_and_also_stays_in_the_trash(store: Store) -> None:
    document = earlier_version(store)
    store.delete(ID)
    restored = store.versions.restore(ID, document)
    assert restored.kept is None and contents(store) == ["one"] and len(store.trash.list()) == 1


@pytest.mark.files
def test_a_damaged_file_is_replaced_and_kept(store: Store) -> None:
    document = earlier_version(store)
    Path(store.engine.storage.path("conversations", ID)).write_bytes(b'{"id": "plan-1", ')
    restored = store.versions.restore(ID, document)
    assert restored.kept and Path(restored.kept).read_bytes() == b'{"id": "plan-1", '
    store.append(ID, content="three")
    assert contents(store) == ["one", "three"]


def test_a_document_that_is_no_version_of_the_conversation_is_refused(store: Store) -> None:
    document = earlier_version(store)
    for wrong in (
        document | {"id": "plan-2"},
        document | {"version": "3.0"},
        document | {"title": 7},
    ):
        with pytest.raises(InvalidDocument):
            store.versions.restore(ID, wrong)
    assert contents(store) == ["one", "two"]


def test_a_version_of_format_2_0_is_migrated(store: Store) -> None:
    earlier_version(store)
    old = codec.decode(
        b'{"id":"plan-1","title":"Old","version":"2.0","createdAt":"2025-01-12T10:00:00Z",'
        b'"updatedAt":"2025-01-12T10:00:00Z","mine":123456789012345678901234567890,'
        b'"history":[{"role":"user","content":"typed","timestamp":"2025-01-12T10:00:00Z"}]}',
        "old",
    )
    store.versions.restore(ID, old)
    assert b'"mine": 123456789012345678901234567890' in store.read(ID)
    assert store.head(ID).version == "2.1" and contents(store) == ["typed"]


def test_watchers_get_a_restored_version_as_a_write_of_the_store(store: Store) -> None:
    document = earlier_version(store)
    cursor = store.changes().cursor
    own = store.versions.restore(ID, document)
    changes = store.changes(cursor).changes
    assert {change.kind for change in changes} == {"edited", "head"}
    assert all(change.source == "store" for change in changes) and own.head.title == "Plan"
