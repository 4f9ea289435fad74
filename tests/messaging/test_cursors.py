"""Read cursors: nothing unread counts as read, whatever a merge puts in front or a person takes out."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.messaging.mail.cursors import Ids, cursor_at, first_unread


def ids_of(history: list[str]) -> Ids:
    def ids(places: Iterable[int]) -> dict[int, str]:
        return {place: history[place] for place in places if 0 <= place < len(history)}

    return ids


HISTORY = [f"m{place}" for place in range(40)]


@given(st.integers(0, 39))
def test_behind_a_cursor_stands_the_next_message(place: int) -> None:
    cursor = cursor_at(place, ids_of(HISTORY))
    assert first_unread(cursor, ids_of(HISTORY)) == place + 1
    assert first_unread(cursor, ids_of([*HISTORY, "new"])) == place + 1


@given(st.integers(0, 39), st.lists(st.integers(0, 40), max_size=6))
def test_what_a_merge_puts_in_front_is_read_again_rather_than_lost(read: int, places: list[int]) -> None:
    merged = list(HISTORY)
    for number, place in enumerate(places):
        merged.insert(place, f"new{number}")
    start = first_unread(cursor_at(read, ids_of(HISTORY)), ids_of(merged))
    assert set(merged[:start]) <= set(HISTORY[: read + 1])
    # Twice as many as behind the first place that changed, at most.
    assert read + 1 - start <= 2 * (read + 1 - min([*places, read + 1])) + 1


@given(st.integers(0, 39), st.integers(0, 39))
def test_a_message_that_is_removed_hides_no_other(read: int, gone: int) -> None:
    history = [*HISTORY[:gone], *HISTORY[gone + 1 :], "new"]
    start = first_unread(cursor_at(read, ids_of(HISTORY)), ids_of(history))
    assert set(history[:start]) <= set(HISTORY[: read + 1])


@pytest.mark.parametrize(
    "cursor", [None, "m3", [], {}, {"message": 3, "at": "x"}, {"at": 3}, {"message": "m3", "at": -1}, {"trail": [1]}]
)
def test_a_cursor_that_says_nothing_leaves_everything_unread(cursor: Any) -> None:
    assert first_unread(cursor, ids_of(HISTORY)) == 0
