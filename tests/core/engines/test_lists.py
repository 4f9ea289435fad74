"""The promises of every engine about lists: their conversations, their order, and their pages
during writes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from capsule import Filter, InvalidInput, Store, timestamps


def make(store: Store, title: str, **fields: str) -> str:
    """Create a conversation in a millisecond of its own."""
    head = store.create(title=title, type=fields.pop("type", "group"), **fields)
    while timestamps.now() == head.updated_at:
        pass
    return head.id


def titles(store: Store, filter: Filter, order: str = "updated") -> list[str]:
    return [head.title for head in store.list(filter, order).heads]  # type: ignore[arg-type]


def test_pinned_conversations_come_first_in_every_order(store: Store) -> None:
    ids = [make(store, title) for title in ("b", "A", "c", "d")]
    store.append(ids[0], content="later")
    store.pin(ids[2])
    assert titles(store, Filter()) == ["c", "b", "d", "A"]
    assert titles(store, Filter(), "created") == ["c", "d", "A", "b"]
    assert titles(store, Filter(), "title") == ["c", "A", "b", "d"]


def test_a_list_has_the_conversations_that_match_every_field_of_the_filter(store: Store) -> None:
    first = make(store, "Garden plan")
    second = make(store, "Travel PLAN", type="chat", mode="toolbox")
    store.update(first, tagged=["x", "y"], pinned=True)
    store.update(second, tagged=["x"], archived=True)
    summary = store.summaries.add(first, "short").id
    for filter, found in (
        (Filter(), {first, summary}),
        (Filter(archived=None), {first, second, summary}),
        (Filter(archived=True), {second}),
        (Filter(archived=None, title="plan"), {first, second, summary}),
        (Filter(archived=None, tags=("x", "y")), {first, summary}),
        (Filter(archived=None, tags=("x", "z")), set()),
        (Filter(archived=None, mode="toolbox"), {second}),
        (Filter(archived=None, type="chat", summaries_of=None, title="travel"), {second}),
        (Filter(pinned=True), {first}),
        (Filter(pinned=False), {summary}),
        (Filter(since="1h"), {first, summary}),
        (Filter(since="2999-01-01"), set()),
        (Filter(summaries_of=first), {summary}),
    ):
        page = store.list(filter)
        assert ({head.id for head in page.heads}, page.total) == (found, len(found)), filter
    with store.locks.take(second):
        assert titles(store, Filter(archived=None, locked=True)) == ["Travel PLAN"]
        assert second not in {
            head.id for head in store.list(Filter(archived=None, locked=False)).heads
        }
    assert store.list(Filter()).messages == {first: 0, summary: 1}
    for filter, limit in ((Filter(since="soon"), 1), (Filter(), 0)):
        with pytest.raises(InvalidInput):
            store.list(filter, limit=limit)


@pytest.mark.parametrize("order", ["updated", "created", "title"])
def test_pages_have_each_conversation_once_despite_writes_between_them(
    store: Store, order: str, rng: random.Random
) -> None:
    ids = [store.create(title=f"c {number}", type="group").id for number in range(30)]
    left: list[str] = list(ids)
    goes = rng.sample(ids, 4)
    writes: list[Callable[[str], object]] = [
        lambda id: store.append(id, content="x"),
        lambda id: store.rename(id, rng.choice("abcdefgh") * 3),
        lambda id: store.pin(id),
        lambda id: store.update(id, pinned=False),
        lambda id: store.create(title="new", type="group"),
    ]
    met: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = store.list(order=order, limit=4, cursor=cursor)  # type: ignore[arg-type]
        met += [head.id for head in page.heads]
        for _ in range(
            3 if len(met) < 60 else 0
        ):  # Later rounds make no new ones, so that the list ends.
            rng.choice(writes)(rng.choice(left))
        if goes:
            gone = goes.pop()
            left.remove(gone)
            store.delete(gone)
            if gone in met:  # A restored conversation is the same one.
                store.trash.restore(gone)
                left.append(gone)
        cursor = page.cursor()
    assert len(met) == len(set(met)) and set(left) <= set(met)


def test_a_cursor_can_continue_from_the_middle_of_a_page(store: Store) -> None:
    ids = [make(store, str(number)) for number in range(5)][::-1]
    page = store.list(limit=3)
    assert [head.id for head in page.heads] == ids[:3] and page.total == 5
    rest = store.list(limit=9, cursor=page.cursor(1) or "")
    assert [head.id for head in rest.heads] == ids[1:] and rest.cursor() is None and rest.total == 5
    assert store.list().cursor() is None


def test_a_cursor_of_another_list_or_store_is_refused(store: Store) -> None:
    for number in range(3):
        store.create(title=f"c {number}", messages=[{"role": "user", "content": "text"}])
    cursor = store.list(limit=1).cursor() or ""
    with Store.in_memory() as other, pytest.raises(InvalidInput):
        other.list(limit=1, cursor=cursor)
    for wrong in ("x", "2025-01-31/c", store.search("", limit=1).cursor or "", "é" * 99):
        with pytest.raises(InvalidInput):
            store.list(limit=1, cursor=wrong)
    for filter, order in ((Filter(pinned=False), "updated"), (Filter(), "title")):
        with pytest.raises(InvalidInput):
            store.list(filter, order, limit=1, cursor=cursor)  # type: ignore[arg-type]
