"""Messages that a write removes are in the trash, and can be restored from there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from capsule.errors import NotFound
from capsule.format.tree.branches import (
    current_after_removal,
    removal_record,
    remove_messages,
    restore_removed,
)
from capsule.format.tree.tree import Tree


def _conversation(store: Store) -> str:
    """A question with two answers; the first is answered in turn, the second is active."""
    id = store.create(title="Plan", type="group").id
    for content in ("one", "two", "three"):
        store.append(id, role="user" if content == "one" else "assistant", content=content)
    store.branches.regenerate(id, "two, said better", "@1")
    return id


def _texts(store: Store, id: str) -> list[str]:
    return [entry["content"] for entry in store.document(id)["history"]]


def _tree(store: Store, id: str) -> tuple[dict[str, str | None], str]:
    """The parent of each message, and the end of the active branch."""
    _, tree, current = store.branches.tree(id)
    parents = (None if above < 0 else tree.ids[above] for above in tree.parents)
    return dict(zip(map(str, tree.ids), parents, strict=True)), str(
        tree.ids[tree.active_leaf(current)]
    )


def _edit_whole(store: Store, id: str) -> None:
    read = store.read(id)
    document = orjson.loads(read)
    document["history"][0]["content"] = "ONE"
    del document["history"][2]
    store.edits.rewrite(id, orjson.dumps(document), read)


REMOVALS: dict[str, tuple[Callable[[Store, str], Any], str, list[str]]] = {
    "edit a message": (lambda store, id: store.edits.message(id, "@0", "ONE"), "edited", ["one"]),
    "edit the whole": (_edit_whole, "edited", ["one", "three"]),
    "delete a message": (lambda store, id: store.branches.remove(id, "@1"), "deleted", ["two", "three"]),
    "delete it alone": (lambda store, id: store.branches.remove(id, "@1", keep_children=True), "deleted", ["two"]),
    "delete the end": (lambda store, id: store.branches.remove(id, "@last"), "deleted", [("two, "
                                                                                         "said "
                                                                                         "better")]),
    "delete all": (lambda store, id: store.branches.remove(id, "@0"), "deleted",
                   ["one", "two", "three", "two, said better"]),
    "prune": (lambda store, id: store.branches.trim(id), "pruned", ["two", "three"]),
}  # fmt: skip


@pytest.mark.parametrize("what", REMOVALS)
def test_removed_messages_are_kept_and_restored_in_their_places(store: Store, what: str) -> None:
    act, reason, texts = REMOVALS[what]
    id = _conversation(store)
    before, tree = _texts(store, id), _tree(store, id)
    act(store, id)
    (kept,) = store.trash.removed(id)
    assert (kept.reason, [message["content"] for message in kept.messages]) == (reason, texts)
    assert store.trash.restore_messages(kept.trashed)
    assert _texts(store, id) == before and _tree(store, id) == tree
    assert kept.trashed.token not in {one.trashed.token for one in store.trash.removed(id)}


def test_restoring_an_edit_keeps_the_text_it_replaces(store: Store) -> None:
    id = _conversation(store)
    store.edits.message(id, "@0", "ONE")
    store.trash.restore_messages(store.trash.removed(id)[0].trashed)
    (kept,) = store.trash.removed(id)
    assert kept.reason == "restored" and kept.messages[0]["content"] == "ONE"
    store.trash.restore_messages(kept.trashed)
    assert _texts(store, id)[0] == "ONE"


def test_restoring_keeps_later_messages_and_the_active_branch(store: Store) -> None:
    id = _conversation(store)
    store.branches.remove(id, "@last")
    store.append(id, role="user", content="since")
    before = _tree(store, id)
    store.trash.restore_messages(store.trash.removed(id)[0].trashed)
    after = _tree(store, id)
    assert after[1] == before[1] and before[0].items() <= after[0].items()
    assert sorted(_texts(store, id)) == sorted(["one", "two", "three", "two, said better", "since"])


def test_writes_that_change_no_text_put_nothing_into_the_trash(store: Store) -> None:
    id = _conversation(store)
    store.edits.message(id, "@0", "one")
    read = store.read(id)
    store.edits.rewrite(id, read.replace(b'"Plan"', b'"Plans"'), read)
    store.edits.migrate(id)
    assert store.trash.removed() == []


def test_purged_messages_cannot_be_restored(store: Store) -> None:
    id = store.create(messages=[{"role": "user", "content": "one"}]).id
    store.branches.remove(id, "@0")
    (kept,) = store.trash.removed(id)
    store.trash.purge()
    with pytest.raises(NotFound):
        store.trash.restore_messages(kept.trashed)


@given(st.data())
def test_any_removed_messages_are_restored_in_their_places(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 7))
    history: list[dict[str, Any]] = []
    for place in range(count):
        entry: dict[str, Any] = {"id": f"m{place}", "role": "user", "content": str(place)}
        if data.draw(st.booleans()):
            entry["parent"] = data.draw(
                st.sampled_from([None, *(f"m{one}" for one in range(place))])
            )
        history.append(entry)
    tree = Tree(history)
    current = data.draw(st.sampled_from([None, *tree.ids]))
    before = {
        "version": "2.0",
        "id": "x",
        "title": "T",
        "updatedAt": "1",
        "metadata": {},
        "history": history,
    }
    if current is not None:
        before["metadata"] = {"currentNode": current}
    gone = data.draw(st.sets(st.integers(0, count - 1), min_size=1))
    left = remove_messages(history, tree, gone)
    now = current_after_removal(tree, current, gone, min(gone), left)
    after = before | {"history": left, "metadata": {} if now is None else {"currentNode": now}}
    kept = removal_record(before, after, "deleted")
    assert kept is not None
    back = restore_removed(after, kept)
    again = Tree(back["history"])
    assert [entry["id"] for entry in back["history"]] == tree.ids and again.parents == tree.parents
    assert again.active_leaf(back["metadata"].get("currentNode")) == tree.active_leaf(current)


def test_what_was_removed_says_which_agent_did_it_and_is_listed_in_pages(store: Store) -> None:
    id = _conversation(store)
    anna = store.inner.store_for("anna")
    mine = anna.append(id, content="mine").id
    store.edits.message(id, "@0", "ONE")
    anna.branches.remove(id, str(mine))
    last, first = store.trash.removed()
    assert {last.by, first.by} == {"anna", ""}
    assert store.trash.removed(limit=1) == [last]
    assert store.trash.removed(before=(last.trashed.deleted_at, last.trashed.token)) == [first]
