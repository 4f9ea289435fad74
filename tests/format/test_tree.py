"""Which messages lie on the active branch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capsule.format.tree import ROOT, active

LINE: list[tuple[str, str | None]] = [("a", None), ("b", None), ("c", None)]
FORK: list[tuple[str, str | None]] = [("a", None), ("b", None), ("c", "a"), ("d", None)]  # a - b, and a - c - d


def on(messages: list[tuple[str, str | None]], current: str | None = None) -> str:
    """The ids of the active messages."""
    return "".join(id for (id, _), is_on in zip(messages, active(messages, current), strict=True) if is_on)


def test_a_line_is_active_as_a_whole() -> None:
    assert on(LINE) == "abc" and on([]) == ""
    assert on(LINE, "a") == "abc" and on(LINE, "c") == "abc"


def test_the_last_message_and_what_it_answers_is_the_active_branch() -> None:
    assert on(FORK) == "acd"
    assert on([*FORK, ("e", "b")]) == "abe"


def test_the_current_node_leads_to_its_newest_descendant() -> None:
    assert on(FORK, "b") == "ab"
    assert on(FORK, "a") == "acd"
    assert on([*FORK, ("e", "b"), ("f", "b"), ("g", "d")], "b") == "abf"


def test_a_root_answers_nothing() -> None:
    assert on([("a", None), ("b", ROOT), ("c", None)]) == "bc"


def test_an_unknown_parent_or_node_counts_as_absent() -> None:
    assert on([("a", None), ("b", "nobody")]) == "ab"
    assert on([("a", None), ("b", "b")]) == "ab"
    assert on(FORK, "nobody") == "acd"


def test_the_first_of_two_messages_of_one_id_is_meant() -> None:
    assert on([("a", None), ("b", None), ("a", "b"), ("c", "a")]) == "ac"


ENTRIES = st.tuples(st.sampled_from("abcdef"), st.sampled_from([None, ROOT, *"abcdefg"]))


@given(st.lists(ENTRIES), st.sampled_from([None, *"abcg"]))
def test_whatever_stands_there_gives_an_answer_that_holds_the_leaf(
    messages: list[tuple[str, str | None]], current: str | None
) -> None:
    found = active(messages, current)
    assert len(found) == len(messages) and any(found) == bool(messages)
