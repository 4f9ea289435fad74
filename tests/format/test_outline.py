"""The branches of a history, read off its lines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.format import lines, needles, outline
from capsule.format.anatomy import is_orderly
from capsule.format.lines import Lines
from capsule.format.outline import Outline
from capsule.format.tree import Link, Tree
from tests.format.test_lines import PARENTS, Counted, links_of


@pytest.fixture(autouse=True, params=[16, 1 << 14])
def _small_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps so small that every line lies across two of them, and those there are."""
    monkeypatch.setattr(lines, "_FIRST", request.param)
    monkeypatch.setattr(lines, "_MOST", max(request.param * 2, 64))
    monkeypatch.setattr(lines, "_NEAR", 16)
    monkeypatch.setattr(outline, "_NEAR", request.param * 4)
    monkeypatch.setattr(needles, "WORTH_LOADING", request.param * 8)


def ids_at(read: Lines, offsets: list[int]) -> list[str]:
    return [read.id_at(at) for at in offsets]


#: Which message is asked about, what is asked, and how long the history is by then.
ASKED = st.lists(st.tuples(st.integers(0, 23), st.sampled_from(["leaf", "siblings", "fork"]), st.integers(1, 24)))


@given(PARENTS, ASKED, st.sampled_from(["x", '\n      "id": "m0"\n      "parent": "m1"', "\\" * 70]))
def test_whatever_is_asked_the_answer_is_that_of_the_tree(
    parents: list[int | None], asked: list[tuple[int, str, int]], content: str
) -> None:
    links = links_of(parents)
    found, size = Outline(), 1
    for place, question, grown in asked:
        size = min(max(size, grown), len(links))
        read, tree, place = Counted(links[:size], content), Tree.of_links(links[:size]), place % size
        at = found.find(read, f"m{place}")
        assert read.id_at(at) == f"m{place}"
        if question == "leaf":
            assert read.id_at(found.leaf(read, at)) == f"m{tree.leaf_at(place)}"
        elif question == "siblings":
            assert ids_at(read, found.siblings(read, at)) == [f"m{one}" for one in tree.siblings_at(place).places]
        else:
            fork = found.nearest_fork(read, at)
            assert (int(read.id_at(fork)[1:]) if fork >= 0 else -1) == tree.nearest_fork(place)
    assert found.find(Counted(links), "nobody") == -1


def test_many_branches_far_from_what_they_answer_cost_one_look_at_all_ids() -> None:
    links: list[Link] = [(f"m{at}", f"m{at % 50}" if at >= 1000 else None) for at in range(2000)]
    read, tree = Counted(links), Tree.of_links(links)
    found = Outline()
    assert read.id_at(found.leaf(read, found.find(read, "m3"))) == f"m{tree.leaf_at(3)}"
    assert read.bytes < read.size * 12


def test_what_was_looked_through_is_not_read_again() -> None:
    links: list[Link] = [(f"m{at:05}", "m00007" if at == 300 else None) for at in range(5000)]
    read, found = Counted(links), Outline()
    found.leaf(read, found.find(read, "m00005"))
    assert read.bytes > read.size
    read.bytes = 0
    assert read.id_at(found.leaf(read, found.find(read, "m04000"))) == "m04999"
    assert read.bytes < read.size / 2


@pytest.mark.parametrize(
    ("links", "orderly"),
    [
        ([("a", None), ("b", None), ("c", "a"), ("d", "nobody"), ("e", "e"), ("f", "")], True),
        ([("a", None), ("a", None)], False),
        ([("a", "b"), ("b", None)], False),
        ([("a", None), (None, None)], False),
        ([("a", None), ("", None)], False),
    ],
)
def test_a_history_is_orderly_when_ids_are_unique_and_answers_stand_behind(links: list[Link], orderly: bool) -> None:
    history = [
        {name: value for name, value in (("id", id), ("parent", parent)) if value is not None} for id, parent in links
    ]
    assert is_orderly(history) == orderly
