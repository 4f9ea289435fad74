"""Who answers whom, which messages lie on the active branch, and what stays when some go."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.errors import InvalidInput, Remedy
from capsule.format.tree.branches import current_after_removal, remove_messages
from capsule.format.tree.tree import ROOT, Tree, active_flags

FORK: list[tuple[str, str | None]] = [
    ("a", None),
    ("b", None),
    ("c", "a"),
    ("d", None),
]  # a - b, and a - c - d


def on(messages: list[tuple[str, str | None]], current: str | None = None) -> str:
    """The ids of the active messages."""
    return "".join(
        id
        for (id, _), is_on in zip(messages, active_flags(messages, current), strict=True)
        if is_on
    )


def test_the_active_branch_ends_at_the_newest_descendant_of_the_current_node() -> None:
    line: list[tuple[str, str | None]] = [("a", None), ("b", None), ("c", None)]
    for messages, current, active_ids in (
        ([], None, ""),
        *((line, node, "abc") for node in (None, "a", "c")),
        (FORK, None, "acd"),
        ([*FORK, ("e", "b")], None, "abe"),
        (FORK, "b", "ab"),
        (FORK, "a", "acd"),
        ([*FORK, ("e", "b"), ("f", "b"), ("g", "d")], "b", "abf"),
        ([("a", None), ("b", ROOT), ("c", None)], None, "bc"),
        # An unknown parent or node counts as absent, and so does oneself; of two of one id the
        # first is meant.
        ([("a", None), ("b", "nobody")], None, "ab"),
        ([("a", None), ("b", "b")], None, "ab"),
        (FORK, "nobody", "acd"),
        ([("a", None), ("b", None), ("a", "b"), ("c", "a")], None, "ac"),
    ):
        assert on(messages, current) == active_ids


# -- Any array of parents, however it came about: None is the one before, -1 a root, beyond the end
# an unknown id.

PARENTS = st.lists(st.one_of(st.none(), st.integers(-1, 40)), max_size=30)


def links_of(parents: list[int | None]) -> list[tuple[str, str | None]]:
    return [(f"m{at}", _named(parent)) for at, parent in enumerate(parents)]


def _named(parent: int | None) -> str | None:
    return None if parent is None else ROOT if parent < 0 else f"m{parent}"


def trees(parents: list[int | None]) -> Tree:
    return Tree.of_links(links_of(parents))


def is_sound(tree: Tree) -> bool:
    """Whether every message hangs on a root: nobody answers himself by way of others."""
    return not any("circle" in what for _, what in tree.problems())


@given(PARENTS)
def test_paths_siblings_leaves_and_descendants_agree(parents: list[int | None]) -> None:
    tree = trees(parents)
    assert sorted(place for places in tree.children.values() for place in places) == list(
        range(len(tree))
    )
    paths = [tree.path_to(place) for place in range(len(tree))]
    for place, path in enumerate(paths):
        assert path[-1] == place and len(set(path)) == len(path)
        assert all(tree.parents[below] == above for above, below in pairwise(path))
        assert tree.parents[path[0]] == -1 or tree.parents[path[0]] in path
        siblings = tree.siblings_at(place)
        assert siblings == [
            at for at in range(len(tree)) if tree.parents[at] == tree.parents[place]
        ]
        assert tree.forks.get(place, (1, 1)) == (siblings.index(place) + 1, len(siblings))
        below = tree.descendants_at(place)
        assert len(set(below)) == len(below) and place not in below
        if is_sound(tree):
            assert set(below) == {at for at, other in enumerate(paths) if place in other[:-1]}
            assert [len(paths[at]) for at in below] == sorted(
                len(paths[at]) for at in below
            )  # Breadth first.
            leaf = tree.leaf_at(place)
            assert leaf not in tree.children and place in paths[leaf]
            way = paths[leaf][paths[leaf].index(place) :]
            assert all(tree.children[above][-1] == child for above, child in pairwise(way))
    for current in (None, "m0", "m5", "nobody"):
        on = [
            place for place, is_on in enumerate(active_flags(links_of(parents), current)) if is_on
        ]
        assert on == sorted(tree.path(current)) and bool(on) == bool(parents)


@given(PARENTS)
def test_the_problems_are_the_unknown_parents_and_one_for_each_circle(
    parents: list[int | None],
) -> None:
    tree = trees(parents)
    told = dict(tree.problems())
    for at, parent in enumerate(parents):
        if parent is not None and parent >= len(parents):
            assert "is not the id of a message here" in told[at]
        if parent == at:
            assert "own id" in told[at]
    circles = set()
    for place in range(len(tree)):
        seen: list[int] = []
        while place >= 0 and place not in seen:
            seen.append(place)
            place = tree.parents[place]
        if place >= 0:
            circles.add(frozenset(seen[seen.index(place) :]))
    assert sum("circle" in what for what in told.values()) == len(circles)
    assert all(sum("circle" in told.get(place, "") for place in circle) == 1 for circle in circles)


def test_very_long_lines_and_very_wide_forks_work() -> None:
    count = 20_000
    line, wide = trees([None] * count), trees([-1] + [0] * count)
    assert line.leaf("m0") == count - 1 and len(line.descendants_at(0)) == count - 1
    assert len(line.path()) == count and len(wide.siblings_at(7)) == count
    circle = trees([count - 1] + [None] * (count - 1))
    assert len(circle.path("m5")) == count and circle.problems()[0][0] == 0


def test_the_nearest_fork_is_looked_for_towards_the_root() -> None:
    tree = trees([None, None, 0, None, None])  # 0 - 1, and 0 - 2 - 3 - 4
    assert tree.nearest_fork(4) == 2 and tree.nearest_fork(1) == 1 and tree.nearest_fork(0) == -1


# -- Taking messages out.


def entries(parents: list[int | None]) -> list[dict[str, Any]]:
    found = []
    for id, parent in links_of(parents):
        entry: dict[str, Any] = {"role": "user", "content": id, "id": id}
        found.append(entry if parent is None else entry | {"parent": parent or None})
    return found


def named_parents(history: list[dict[str, Any]]) -> dict[str, str | None]:
    """Whom each message answers, by ids."""
    tree = Tree(history)
    return {
        str(tree.ids[at]): str(tree.ids[up]) if up >= 0 else None
        for at, up in enumerate(tree.parents)
    }


@given(PARENTS, st.integers(0, 29), st.sampled_from([None, "m0", "m3", "m9", "nobody"]))
def test_messages_that_stay_keep_their_parents(
    parents: list[int | None], place: int, current: str | None
) -> None:
    history = entries(parents)
    tree = Tree(history)
    if place >= len(tree):
        return
    gone = {place, *tree.descendants_at(place)}
    left = remove_messages(history, tree, gone)
    assert [entry["id"] for entry in left] == [
        f"m{at}" for at in range(len(tree)) if at not in gone
    ]
    before = named_parents(history)
    assert named_parents(left) == {id: before[id] for id in (entry["id"] for entry in left)}
    node = current_after_removal(tree, current, gone, place, left)
    now = Tree(left)
    leaf = tree.active_leaf(current)
    if not left:
        assert node is None
    elif leaf not in gone:
        assert now.ids[now.active_leaf(node)] == f"m{leaf}"
    elif siblings := [at for at in tree.siblings_at(place) if at not in gone]:
        assert now.active_leaf(node) == now.leaf(f"m{siblings[-1]}")
    elif tree.parents[place] >= 0 and tree.parents[place] not in gone:
        assert now.active_leaf(node) == now.leaf(f"m{tree.parents[place]}")


@given(PARENTS, st.integers(0, 29))
def test_the_answers_to_a_message_removed_alone_move_up(
    parents: list[int | None], place: int
) -> None:
    history = entries(parents)
    tree = Tree(history)
    if place >= len(tree) or not is_sound(tree):
        return
    before, after = named_parents(history), named_parents(remove_messages(history, tree, {place}))
    assert after == {
        id: before[f"m{place}"] if up == f"m{place}" else up
        for id, up in before.items()
        if id != f"m{place}"
    }


@given(PARENTS, st.sampled_from([None, "m0", "m3", "m9"]))
def test_pruning_leaves_the_active_path_as_it_was(
    parents: list[int | None], current: str | None
) -> None:
    history = entries(parents)
    tree = Tree(history)
    path = tree.path(current)
    gone = set(range(len(tree))) - set(path)
    left = remove_messages(history, tree, gone)
    node = current_after_removal(tree, current, gone, None, left)
    assert [Tree(left).ids[at] for at in Tree(left).path(node)] == [f"m{at}" for at in path]


def test_an_answer_to_a_message_that_cannot_be_named_is_refused() -> None:
    twice = [{"id": "a"}, {"id": "b"}, {"id": "a"}, {"id": "c"}, {"id": "d", "parent": "c"}]
    tree = Tree(twice)
    assert [entry["id"] for entry in remove_messages(twice, tree, {1})] == ["a", "a", "c", "d"]
    with pytest.raises(InvalidInput) as refused:
        remove_messages(
            [*twice, {"id": "e", "parent": "c"}], Tree([*twice, {"id": "e", "parent": "c"}]), {3}
        )
    assert refused.value.remedy == Remedy("repair")


def test_no_message_goes_on_naming_one_that_is_gone() -> None:
    # Named, and the one it answers now stands right before it: all the same the name leads nowhere.
    history = [{"id": "a"}, {"id": "b"}, {"id": "c", "parent": "b"}]
    assert remove_messages(history, Tree(history), {1}) == [{"id": "a"}, {"id": "c", "parent": "a"}]
