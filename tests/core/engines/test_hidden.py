"""The promise of every engine: a search for an agent finds nothing that is hidden from that agent."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from capsule import Store
from capsule.engines.index.search.search import Asked
from capsule.timestamps import ms_of

EARLY, LATE = "2026-01-01T10:00:00.000Z", "2026-01-02T10:00:00.000Z"


def fish(store: Store, id: str, *times: str, title: str = "Titled") -> None:
    messages = [{"role": "user", "content": "a fish !", "timestamp": time} for time in times]
    store.create(id=id, title=title, type="group", messages=messages)


def found(
    store: Store, hidden: Mapping[str, int | None], query: str = "fish", **asked: object
) -> list[tuple[str, int | None]]:
    """Where a search finds something: conversations and places, sorted; a title has the place None."""
    hits, cursor = [], None
    while True:
        page = store.engine.index.search(
            Asked(query, limit=2, cursor=cursor, **asked),  # type: ignore[arg-type]
            ms_of(LATE),
            hidden=hidden,
        )
        hits += [(hit.id, hit.at) for hit in page.hits]
        cursor = page.cursor
        if cursor is None:
            return sorted(hits, key=str)


@pytest.mark.parametrize("profile", ["balanced", "exact"])
@pytest.mark.parametrize("query", ["fish", "!"])
def test_hidden_conversations_and_earlier_messages_are_not_found(store: Store, profile: str, query: str) -> None:
    for id in ("open", "closed", "late"):
        fish(store, id, EARLY, LATE)
    both = [("open", 0), ("open", 1)]
    hidden = {"closed": None, "late": ms_of(LATE), "missing": None}
    assert found(store, hidden, query, profile=profile) == [("late", 1), *both]
    assert found(store, hidden, query, profile=profile, ids=("closed", "late")) == [("late", 1)]
    everything = found(store, {}, query, profile=profile)
    assert everything == [("closed", 0), ("closed", 1), ("late", 0), ("late", 1), *both]


def test_the_title_of_a_hidden_conversation_is_not_found(store: Store) -> None:
    for id in ("open", "closed", "late"):
        fish(store, id, title="About fish")
    hidden = {"closed": None, "late": ms_of(LATE) + 10**12}
    assert found(store, hidden) == [("late", None), ("open", None)]
    assert found(store, hidden, "", title_only=True) == [("late", None), ("open", None)]
