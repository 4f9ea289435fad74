"""Filters of an agent ask for what it may read, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from capsule import InvalidInput, Store
from capsule.engines.questions import filter_sets
from tests.core.index.test_filters import entries
from tests.core.store.making import EARLY, LATE, make


@pytest.fixture
def carls() -> Iterator[tuple[Store, Store]]:
    """A store with a conversation for all, one that carl may not read, and one that he joined late;
    the owner's, and carl's."""
    said = {"topic": "api", "mentions": {"valid": ["carl"]}}
    with Store.in_memory() as store:
        for id, members in {
            "open": (),
            "closed": ("anna",),
            "late": ("anna", {"id": "carl", "joinedAt": LATE}),
        }.items():
            make(store, id, *members)
            store.append_entries(id, entries([said | {"timestamp": EARLY}]))
            store.append_entries(id, entries([said]))
        yield store, store.beside(agent="carl")


@pytest.mark.parametrize(
    "where", [{"topic": "api"}, {"topic": {"$regex": "^a"}}, {"topic": {"$ne": "web"}}], ids=str
)
def test_what_an_agent_may_not_read_is_neither_found_nor_counted(
    carls: tuple[Store, Store], where: Any
) -> None:
    seen = {("open", 1), ("open", 2), ("late", 2)}
    owner, carl = carls
    found = carl.search("text", where=where)
    assert {(hit.id, hit.at) for hit in found.hits} == seen
    assert found.total == len(seen) < len(owner.search("text", where=where).hits)
    assert {
        place[:2] for place in carl.queries.messages({"$and": [where, {"topic": "api"}]})
    } == seen
    assert [value[:2] for value in carl.queries.values("topic", "late")] == [("api", 1)]
    assert carl.queries.values("topic", "closed") == carl.queries.messages(where, "closed") == []


def test_no_hidden_text_is_compared_with_a_pattern(
    carls: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, carl = carls
    owner.append_entries("closed", entries([{"metadata": {"secret": "canary"}}]))
    monkeypatch.setattr(filter_sets, "_MATCHED_S", 0.0)
    with pytest.raises(InvalidInput):
        owner.search("", where={"secret": {"$regex": "c"}})
    assert carl.search("", where={"secret": {"$regex": "c"}}).hits == []


@pytest.mark.parametrize("agent", [None, "anna"])
def test_the_pages_of_a_history_hold_the_messages_that_fit_each_once(agent: str | None) -> None:
    with Store.in_memory() as owner:
        make(owner, "team", "anna", "carl")
        topics = ["api" if number % 3 else "web" for number in range(20)]
        owner.append_entries("team", entries([{"topic": topic} for topic in topics]))
        history = owner.beside(agent=agent).messages.history if agent else owner.messages.history
        page = history("team", limit=4, where={"topic": "web"})
        older = history("team", limit=4, where={"topic": "web"}, before=page.before)
        assert [mail.at for mail in [*older.messages, *page.messages]] == [1, 4, 7, 10, 13, 16, 19]
        assert older.before is None
        assert (
            history("team", limit=4, where={"topic": "web"}, after=older.after).messages
            == page.messages
        )
        assert history("team", where={"topic": "ops"}).messages == []
