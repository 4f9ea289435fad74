"""Read cursors: nothing unread counts as read, whatever a merge puts in front or a person takes
out.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.engines.read_marks import first_unread
from capsule.messaging.unread import MarksAt, make_cursor, marks_in_cursor, thin_marks


def marks_in(history: list[str]) -> dict[int, tuple[str, str]]:
    return {place: (id, " ".join(history[: place + 1])) for place, id in enumerate(history)}


def ids_of(history: list[str]) -> MarksAt:
    return lambda places: {
        place: mark for place, mark in marks_in(history).items() if place in places
    }


def start(cursor: Any, history: list[str]) -> int:
    """The place of the first message that was not read."""
    return first_unread(marks_in_cursor(cursor), marks_in(history))


HISTORY = [f"m{place}" for place in range(40)]


@given(st.integers(0, 39))
def test_behind_a_cursor_stands_the_next_message(place: int) -> None:
    cursor = make_cursor(place, f"m{place}", ids_of(HISTORY))
    assert start(cursor, HISTORY) == start(cursor, [*HISTORY, "new"]) == place + 1
    assert make_cursor(place, f"m{place}", ids_of(["new", *HISTORY])) is None


@given(st.integers(0, 39), st.lists(st.integers(0, 40), max_size=6))
def test_what_a_merge_puts_in_front_is_read_again_rather_than_lost(
    read: int, places: list[int]
) -> None:
    merged = list(HISTORY)
    for number, place in enumerate(places):
        merged.insert(place, f"new{number}")
    first = start(make_cursor(read, f"m{read}", ids_of(HISTORY)), merged)
    assert set(merged[:first]) <= set(HISTORY[: read + 1])
    # Twice as many as behind the first place that changed, at most.
    assert read + 1 - first <= 2 * (read + 1 - min([*places, read + 1])) + 1


@given(st.integers(0, 39), st.lists(st.integers(0, 40), max_size=6), st.integers(0, 39))
def test_the_marks_of_what_was_given_are_a_trail_as_that_of_a_cursor(
    read: int, places: list[int], earlier: int
) -> None:
    marks = [(place, digest) for place, (_, digest) in marks_in(HISTORY).items()]
    trail = thin_marks(thin_marks(marks, earlier) + tuple(marks[: read + 1]), read)
    assert len(trail) <= 7 and first_unread(trail, marks_in(HISTORY)) == read + 1
    merged = list(HISTORY)
    for number, place in enumerate(places):
        merged.insert(place, f"new{number}")
    first = first_unread(trail, marks_in(merged))
    assert set(merged[:first]) <= set(HISTORY[: read + 1])
    assert read + 1 - first <= 2 * (read + 1 - min([*places, read + 1])) + 1


@given(
    st.integers(0, 39), st.sets(st.integers(0, 39), min_size=1), st.integers(0, 40), st.booleans()
)
def test_messages_that_are_removed_hide_no_other(
    read: int, gone: set[int], place: int, as_many: bool
) -> None:
    history = [id for at, id in enumerate(HISTORY) if at not in gone]
    history[place:place] = [f"new{number}" for number in range(len(gone) if as_many else 1)]
    first = start(make_cursor(read, f"m{read}", ids_of(HISTORY)), history)
    assert set(history[:first]) <= set(HISTORY[: read + 1])


@pytest.mark.parametrize(
    "cursor",
    [
        None,
        "m3",
        [],
        {},
        {"message": 3, "at": "x"},
        {"at": 3},
        {"message": "m3", "at": -1},
        {"trail": [1]},
    ],
)
def test_a_cursor_that_says_nothing_leaves_everything_unread(cursor: Any) -> None:
    assert start(cursor, HISTORY) == 0
