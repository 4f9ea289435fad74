"""A stale save, made without the latest writes: they come back, and the person's changes stay."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store
from capsule.errors import Locked, LockLost
from tests.core.store.files import contents, opened, quarantined, save, text_of

Act = Callable[[Store], object]
Change = Callable[[dict[str, Any]], object]


def _said(at: int, text: str) -> Change:
    return lambda document: document["history"][at].update(content=text)


def _without(*places: int) -> Change:
    return lambda document: document.update(
        history=[entry for at, entry in enumerate(document["history"]) if at not in places]
    )


def _titled(title: str) -> Change:
    return lambda document: document.update(title=title)


def _nothing(it: object) -> None:
    pass


def _rewrite(store: Store, change: Change) -> None:
    """Edit the whole document through the store."""
    read = store.read("plan")
    document = orjson.loads(read)
    change(document)
    store.edits.rewrite("plan", text_of(document), read)


def _upper(document: dict[str, Any]) -> None:
    for message in document["history"]:
        message["content"] = message["content"].upper()


def _add(store: Store, *texts: str) -> None:
    for text in texts:
        store.append("plan", content=text)


NUMBERS = [str(n) for n in range(200)]
#: What the store writes before an editor reads the file, and what after that; what the person
#: changes; the texts and the title after the save; and what goes to quarantine.
SAVES: dict[str, tuple[Act, Act, Change, list[str], str, bytes]] = {
    "a message deleted by hand stays deleted": (
        _nothing,
        _nothing,
        _without(1),
        ["one"],
        "Plan",
        b"two",
    ),
    # The updatedAt of the tag was not taken as evidence that the editor had read the message.
    "a message deleted after a change of the head stays deleted": (
        *(lambda store: store.tag("plan", "new"), _nothing, _without(1), ["one"], "Plan", b"two"),
    ),
    "a save deletes a message it read and lacks one it did not": (
        *(
            _nothing,
            lambda store: _add(store, "three"),
            _without(0),
            ["two", "three"],
            "Plan",
            b"one",
        ),
    ),
    "a save without any message lacks one that it did not read": (
        *(_nothing, lambda store: _add(store, "three"), _without(0, 1), ["three"], "Plan", b"two"),
    ),
    "the person wins a conflict of titles": (
        *(_nothing, lambda store: store.rename("plan", "By the store"), _titled("By hand")),
        *(["one", "two"], "By hand", b"By the store"),
    ),
    # The head most similar to the save was taken for the version read.
    "a title that a person changes back stays so": (
        *(
            lambda store: store.rename("plan", "Other"),
            _nothing,
            _titled("Plan"),
            ["one", "two"],
            "Plan",
            b"Other",
        ),
    ),
    "an edit that the editor did not read comes back": (
        *(_nothing, lambda store: store.edits.message("plan", "@0", "ONE"), _said(1, "TWO")),
        *(["ONE", "TWO"], "Plan", b""),
    ),
    "the person wins a conflict of edits": (
        *(
            _nothing,
            lambda store: store.edits.message("plan", "@0", "by the store"),
            _said(0, "by hand"),
        ),
        *(["by hand", "two"], "Plan", b"by the store"),
    ),
    "an edit of a message that the save removes goes to quarantine": (
        *(
            _nothing,
            lambda store: store.edits.message("plan", "@0", "edited"),
            _without(0),
            ["two"],
            "Plan",
            b"edited",
        ),
    ),
    # The records of one write were distinguished by their times, and only the first counted as
    # read.
    "an edit that a person reverts stays reverted": (
        *(
            lambda store: _rewrite(store, _upper),
            _nothing,
            _said(1, "two"),
            ["ONE", "two"],
            "Plan",
            b"TWO",
        ),
    ),
    "a message removed by the store stays removed": (
        *(
            _nothing,
            lambda store: _rewrite(store, _without(0)),
            _titled("By hand"),
            ["two"],
            "By hand",
            b"",
        ),
    ),
    "a message larger than the log comes back": (
        *(
            _nothing,
            lambda store: _add(store, "x" * 400_000),
            _nothing,
            ["one", "two", "x" * 400_000],
            "Plan",
            b"",
        ),
    ),
    "many messages come back": (
        *(
            _nothing,
            lambda store: _add(store, *NUMBERS),
            _nothing,
            ["one", "two", *NUMBERS],
            "Plan",
            b"",
        ),
    ),
}


@pytest.mark.parametrize("case", SAVES)
def test_after_a_save_both_changes_are_there(
    root: Path, store: Store, group: str, case: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, meanwhile, change, texts, title, kept = SAVES[case]
    before(store)
    document = opened(root, group)
    meanwhile(store)
    change(document)
    save(root, group, document)
    assert (contents(store, group), store.head(group).title) == (texts, title)
    assert kept in b"".join(quarantined(root)) and bool(quarantined(root)) == bool(kept)
    assert caplog.text or not kept
    store.append(group, content="next")
    save(root, group, opened(root, group) | {"title": "Again"})
    assert contents(store, group) == [*texts, "next"]


def test_a_head_is_merged_three_ways(root: Path, store: Store, group: str) -> None:
    document = opened(root, group)
    store.rename(group, "By the store")
    store.tag(group, "new")
    store.pin(group)
    document["metadata"] |= {"tags": ["old", "hand"], "description": "typed"}
    save(root, group, document)
    head = store.head(group)
    assert (head.title, head.pinned, set(head.tags)) == (
        "By the store",
        True,
        {"old", "new", "hand"},
    )
    assert store.document(group)["metadata"]["description"] == "typed"


def test_messages_appended_since_an_editor_read_come_back_with_a_warning(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    document = opened(root, group)
    store.append_many(
        group, [{"role": "user", "content": "three"}, {"role": "user", "content": "four"}]
    )
    with Store.open(root) as other:
        other.append(group, content="five")
    ids = [message.id for message in store.load(group).history]
    document["title"] = "By hand"
    save(root, group, document)
    with caplog.at_level(logging.WARNING, "capsule"):
        assert contents(store, group) == ["one", "two", "three", "four", "five"]
    assert "3 messages" in caplog.text
    assert [message.id for message in store.load(group).history] == ids
    assert store.head(group).title == "By hand"
    data = store.read(group)
    caplog.clear()
    with Store.open(root) as again:
        assert contents(again, group) == ["one", "two", "three", "four", "five"]
        assert again.read(group) == data
    assert caplog.text == "", "the merge was written once"


def test_a_stale_save_does_not_bring_back_a_released_lock_or_drop_a_held_one(
    root: Path, store: Store
) -> None:
    id = store.create(title="Plan").id
    document = opened(root, id)
    store.locks.release(id)
    save(root, id, document)
    assert store.head(id).lock is None
    document = opened(root, id)
    with store.locks.take(id):
        save(root, id, document | {"title": "By hand"})
        store.append(id, content="x")
        lock = store.head(id).lock
        assert lock is not None and lock["instanceId"] == store.instance_id
    assert store.head(id).title == "By hand"


def test_removing_a_lock_by_hand_takes_it_from_its_holder(root: Path, store: Store) -> None:
    id = store.create(type="group", tags=["old"]).id
    document = opened(root, id)
    with store.locks.take(id):
        store.tag(id, "new")
        document["metadata"] = {"type": "group"}
        save(root, id, document)
        with pytest.raises(LockLost):
            store.append(id, content="x")
    store.append(id, content="y")
    assert contents(store, id) == ["y"] and store.head(id).tags == ("new",)


def test_a_write_is_refused_by_the_lock_that_it_merges_back(root: Path, store: Store) -> None:
    id = store.create(type="group").id
    document = opened(root, id)
    with store.locks.take(id), Store.open(root) as other:
        save(root, id, document)
        with pytest.raises(Locked):
            other.append(id, content="x")
