"""Who answers whom, read off the lines of a history: the same answers as the tree's, from fewer bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.format import anatomy, codec, lines
from capsule.format.lines import Lines, Strand
from capsule.format.new import new_capsule
from capsule.format.tree import ROOT, Link, Tree

STAMP = "2025-01-12T10:00:00.000Z"

#: As the store writes them, and as a hand may: none named, a root, one before, or one that isn't there.
PARENTS = st.lists(st.one_of(st.none(), st.integers(-2, 30)), min_size=1, max_size=24)


def links_of(parents: list[int | None]) -> list[Link]:
    found: list[Link] = []
    for at, parent in enumerate(parents):
        known = f"m{parent % at}" if parent is not None and parent >= 0 and at else None
        found.append((f"m{at}", ROOT if parent == -1 else "nobody" if parent == -2 else known))
    return found


class Counted(Lines):
    """Lines that know how much was read."""

    def __init__(self, links: list[Link], content: str = "x") -> None:
        history = []
        for id, parent in links:
            entry = {"role": "user", "content": content, "timestamp": STAMP, "id": id}
            history.append(entry if parent is None else entry | {"parent": parent or None})
        self.data = codec.encode(new_capsule("c", "t", STAMP, messages=history))
        found = anatomy.survey(self.data)
        assert found is not None
        self.history, self.bytes = found.history, 0
        super().__init__(self._read, found.tail - found.history)

    def _read(self, start: int, end: int) -> bytes:
        assert 0 <= start <= end <= self.size
        self.bytes += end - start
        return self.data[self.history + start : self.history + end]


@pytest.fixture(autouse=True, params=[16, 1 << 14])
def _small_steps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps so small that every line lies across two of them, and those there are."""
    monkeypatch.setattr(lines, "_FIRST", request.param)
    monkeypatch.setattr(lines, "_MOST", max(request.param * 2, 64))
    monkeypatch.setattr(lines, "_NEAR", 16)


@given(PARENTS, st.integers(0, 23), st.sampled_from(["x", '\n      "id": "m0"\n      "parent": "m1"', "\\" * 70]))
def test_a_strand_ends_where_the_tree_says(parents: list[int | None], current: int, content: str) -> None:
    links = links_of(parents)
    tree, read = Tree.of_links(links), Counted(links, content)
    id = f"m{current % len(links)}"
    strand = Strand.ending(read, id)
    assert strand is not None
    for found in (strand, Strand.under(read, read.at(id))):
        assert found.leaf(read) == f"m{tree.leaf(id)}"
        assert found.is_open == (tree.leaf(id) == len(links) - 1)


@given(PARENTS, st.integers(0, 23), st.integers(1, 24))
def test_what_is_appended_is_taken_in(parents: list[int | None], current: int, before: int) -> None:
    links = links_of(parents)
    id = f"m{current % len(links)}"
    strand = Strand.ending(Counted(links[: max(before, current % len(links) + 1)]), id)
    assert strand is not None
    trial = strand.copy()
    for found in (trial, strand):
        found.follow(Counted(links))
        leaf = Tree.of_links(links).leaf(id)
        assert (found.leaf(Counted(links)), found.is_open) == (f"m{leaf}", leaf == len(links) - 1)


@given(st.integers(1, 60), st.integers(0, 70), st.sampled_from(["x", "x" * 500]))
def test_an_id_in_a_sorted_history_is_found_at_a_few_looks(count: int, wanted: int, content: str) -> None:
    read = Counted([(f"m{at:03}", None) for at in range(count)], content)
    assert read.sorted_at(f"m{wanted:03}") == read.at(f"m{wanted:03}")
    assert (read.sorted_at(f"m{wanted:03}") < 0) == (wanted >= count)


def test_the_end_of_a_branch_costs_what_was_appended_since_it_was_made_active() -> None:
    links = links_of([None] * 3000)
    answers: list[Link] = [("a", "m7"), ("b", None), ("c", None)]
    read = Counted([*links, *answers])
    strand = Strand.ending(read, "m7")
    assert strand is not None and strand.leaf(read) == "c"
    assert read.bytes < read.size / 4
    read.bytes = 0
    strand.follow(read)
    assert read.bytes == 0


def test_an_id_far_up_costs_a_few_looks_where_ids_are_in_order() -> None:
    read = Counted([(f"m{at:06}", None) for at in range(20_000)])
    assert read.sorted_at("m000007") == read.at("m000007")
    read.bytes = 0
    read.sorted_at("m000007")
    assert read.bytes < read.size / 8


def test_what_is_not_there_is_not_found() -> None:
    read = Counted(links_of([None, None]))
    assert read.at("m") == -1 and read.at("nobody") == -1 and Strand.ending(read, "nobody") is None
    assert read.after(read.last()) == -1 and read.last(0) == -1
