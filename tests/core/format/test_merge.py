"""Merging two versions of a conversation: its laws, and what it decides."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from capsule.errors import InvalidDocument
from capsule.format import validation
from capsule.format.json import codec
from capsule.format.merge.annotations import Conflict, MergeResult
from capsule.format.merge.clean_form import clean
from capsule.format.merge.merge import merge
from capsule.format.tree.tree import Tree
from tests.core.format.replicas import (
    BY_HAND,
    HEADS,
    MESSAGES,
    Document,
    begun,
    operations,
    worked_on,
)
from tests.core.format.replicas import clean as cleaned

TYPES = ("chat", "direct", "group", "channel")
LATE = "2026-01-01T00:01:49.000Z"
ALL = (*MESSAGES, *MESSAGES, *HEADS, *BY_HAND)
#: What converges in any order: what stores write (see the module's docstring).
STORED = (*MESSAGES, *MESSAGES, *HEADS)
#: The same without an ancestor, where nobody knows what was deleted.
KEPT = tuple(kind for kind in STORED if kind not in ("delete", "prune"))
#: Where it is hardest: what one deletes, others edit, answer, and have as their active branch.
HISTORY = (*MESSAGES, "delete", "prune", "switch")


@st.composite
def versions(draw: Any, *kinds: str, many: int = 2) -> tuple[Document | None, list[Document]]:
    """A common ancestor, or none, and versions of it."""
    start = begun(draw(st.sampled_from(TYPES)), draw(st.integers(0, 7)), old=draw(st.booleans()))
    base = worked_on(start, draw(operations(*kinds)), "o", 20)
    sides = [worked_on(base, draw(operations(*kinds)), who) for who in "abc"[:many]]
    return (base if draw(st.integers(0, 9)) else None), sides


def written(document: Document) -> bytes:
    return codec.encode(document)


def by_id(document: Document) -> dict[str, Document]:
    return {message["id"]: message for message in document["history"]}


def contents(document: Document) -> list[str]:
    return [message["content"] for message in document["history"]]


def answered(document: Document) -> dict[str, str | None]:
    """Whom each message answers, by their contents."""
    tree, said = Tree(document["history"]), contents(document)
    return {
        said[at]: said[parent] if parent >= 0 else None for at, parent in enumerate(tree.parents)
    }


# -- Laws ------------------------------------------------------------------------------------------


@given(versions(*ALL))
def test_merging_a_version_with_itself_or_with_one_that_changed_nothing_gives_it(
    drawn: Any,
) -> None:
    base, (a, _) = drawn
    assert written(merge(base, a, a).document) == written(cleaned(a))
    if base is not None:
        for ours, theirs in ((a, base), (base, a)):
            assert written(merge(base, ours, theirs).document) == written(cleaned(a))


@given(versions(*ALL))
def test_the_result_is_valid_clean_and_the_same_with_the_sides_changed_and_the_arguments_stay(
    drawn: Any,
) -> None:
    base, (a, b) = drawn
    before = copy.deepcopy((base, a, b))
    one, other = merge(base, a, b), merge(base, b, a)
    assert one == other and (base, a, b) == before
    data = written(one.document)
    assert data == written(other.document) == clean(data, "merged", "conversations")
    assert written(codec.decode(data, "merged")) == data
    validation.check(one.document, data, "merged")
    assert one.document["metadata"]["lock"]["active"] is False
    odd = [{what for _, what in Tree(cleaned(side)["history"]).problems()} for side in (a, b)]
    assert {what for _, what in Tree(one.document["history"]).problems()} <= odd[0] | odd[1]


@given(versions(*ALL))
def test_nothing_of_either_side_vanishes(drawn: Any) -> None:
    base, sides = drawn
    merged = merge(base, *sides).document
    had = {} if base is None else by_id(cleaned(base))
    a, b = (by_id(cleaned(side)) for side in sides)
    result, said = by_id(merged), set(contents(merged))
    for mine, yours in ((a, b), (b, a)):
        for id, message in mine.items():
            alike = said_alike(message)
            if (
                id not in had
            ):  # It may have been typed without an id, and stand in another place now.
                id = next((was for was, it in had.items() if was not in mine and alike(it)), id)
            untouched = id in had and had[id]["content"] == message["content"]
            in_yours = id in yours or any(map(alike, yours.values()))
            if untouched and not in_yours:
                assert (
                    id not in result
                    or result[id]["content"] != message["content"]
                    or moved_fields(had[id], message)
                )
            elif untouched:
                assert id in result or message["content"] in said
            else:
                assert message["content"] in said
    standing = {one["field"]: [each["value"] for each in one["values"]] for one in recorded(merged)}
    for conflict in merge(base, *sides).conflicts:
        values = [value for value, _ in conflict.values]
        assert all(value in standing[conflict.field] for value in values)
        assert conflict.kept in values


def said_alike(message: Document) -> Callable[[Document], bool]:
    """Whether another message says the same."""
    return lambda other: all(
        message[name] == other[name] for name in ("role", "content", "timestamp")
    )


def moved_fields(before: Document, after: Document) -> bool:
    """Whether anything but whom it answers differs."""
    return {**before, "parent": None} != {**after, "parent": None}


def recorded(document: Document) -> list[Document]:
    found: list[Document] = document["metadata"].get("conflicts", [])
    return found


def ends(base: Document | None, sides: list[Document]) -> list[Document]:
    """What three versions end as, whichever two are merged first; each of them once."""
    found = {}
    for one, two, three in itertools.permutations(sides):
        pair = merge(base, one, two).document
        for end in (merge(base, pair, three).document, merge(base, three, pair).document):
            found[written(end)] = end
    return list(found.values())


@given(versions(*STORED, many=3))
def test_three_clones_end_alike_whichever_two_merge_first(drawn: Any) -> None:
    assume(drawn[0] is not None)
    assert len(ends(*drawn)) == 1


@given(versions(*KEPT, many=3))
def test_three_clones_without_an_ancestor_end_alike_if_none_deleted_anything(drawn: Any) -> None:
    assert len(ends(None, drawn[1])) == 1


@pytest.mark.slow
@given(versions(*HISTORY, many=3))
def test_three_clones_end_alike_when_one_deletes_messages_that_others_edit_answer_and_switch_to(
    drawn: Any,
) -> None:
    assume(drawn[0] is not None)
    (end,) = ends(*drawn)
    validation.check(end, written(end), "merged")
    assert end["metadata"].get("currentNode") in {*by_id(end), None}
    assert not Tree(end["history"]).problems()


@given(versions(*HISTORY, many=3))
def test_clones_that_merge_each_others_merges_crosswise_have_the_same_messages(drawn: Any) -> None:
    base, (a, b, c) = drawn
    assume(base is not None)
    ab, bc = merge(base, a, b).document, merge(base, b, c).document
    crosswise, straight = merge(b, ab, bc).document, merge(base, ab, c).document
    assert by_id(crosswise).keys() == by_id(straight).keys()
    for end in (crosswise, straight):
        assert end["metadata"].get("currentNode") in {*by_id(end), None}
        assert not Tree(end["history"]).problems()


def test_an_answer_goes_back_to_the_message_it_answered_when_that_comes_back() -> None:
    for type in TYPES:
        base = begun(type, 2)
        gone, answers, edited = (
            worked_on(base, [(kind, 1, 1, "x")], who)
            for who, kind in (("a", "delete"), ("b", "branch"), ("c", "edit"))
        )
        pair = merge(base, gone, answers).document
        assert answered(pair)["x b01010"] == "message 0"
        (end,) = ends(base, [gone, answers, edited])
        assert answered(end) == {
            "message 0": None,
            "edited x c01010": "message 0",
            "x b01010": "edited x c01010",
        }
        assert not any("metadata" in message for message in end["history"])


def test_a_branch_beside_a_line_is_not_taken_for_the_line_when_that_is_deleted() -> None:
    base = begun("group", 2)
    gone = worked_on(base, [("prune", 1, 1, "")], "a")
    beside = worked_on(base, [("branch", 0, 1, "x")], "b")
    went_on = worked_on(base, [("append", 0, 9, "y")], "c")
    (end,) = ends(base, [gone, beside, went_on])
    assert answered(end) == {"message 0": None, "x b01010": "message 0", "y c01090": "message 0"}
    assert end["history"][1]["metadata"] == {"originalParent": "m00"}


def test_a_branch_that_comes_back_is_active_again_unless_someone_switched_since() -> None:
    base = begun("chat", 3)
    base["history"][2] |= {"parent": "m00"}
    went = worked_on(base, [("switch", 1, 1, "")], "a")
    gone = worked_on(base, [("prune", 1, 1, "")], "b")
    pair = merge(base, went, gone).document
    assert pair["metadata"]["currentWanted"] == {
        "message": "m01",
        "instead": pair["metadata"].get("currentNode"),
    }
    edited = worked_on(base, [("edit", 1, 1, "x")], "c")
    (end,) = ends(base, [went, gone, edited])
    assert end["metadata"]["currentNode"] == "m01" and "currentWanted" not in end["metadata"]
    elsewhere = worked_on(pair, [("switch", 0, 1, "")], "d")
    elsewhere["metadata"]["currentNode"] = "m00"
    assert merge(base, elsewhere, edited).document["metadata"]["currentNode"] == "m00"


def test_fields_of_the_names_a_merge_uses_that_hold_something_else_are_left_alone() -> None:
    for own in [True, ["m00"], {"id": "m00"}, 7]:
        base = begun("group", 2)
        a = worked_on(base, [("branch", 0, 1, "x"), ("branch", 1, 1, "x")], "a")
        for message in a["history"][2:]:
            message["metadata"] = {"originalParent": own, "versionOf": own}
        b = worked_on(base, [("prune", 1, 1, ""), ("append", 0, 1, "y")], "b")
        merged = merge(base, a, b).document
        assert [
            message["metadata"] for message in merged["history"] if "x " in message["content"]
        ] == [{"originalParent": own, "versionOf": own}] * 2


@given(st.data())
def test_replicas_that_merge_at_random_end_alike(data: Any) -> None:
    """Each knows its versions by what went into them; what is merged is merged with the true common
    ancestor.
    """
    start = begun(data.draw(st.sampled_from(TYPES)), data.draw(st.integers(0, 4)))
    known: dict[frozenset[str], Document] = {frozenset(): start}
    at: dict[str, frozenset[str]] = dict.fromkeys("abc", frozenset())

    def together(one: str, other: str) -> None:
        mine, yours = at[one], at[other]
        common = mine & yours
        # As git does with one merge base: the version that is exactly what both have.
        if common in known:
            result = mine | yours
            merged = merge(known[common], known[mine], known[yours]).document
            assert written(cleaned(known.setdefault(result, merged))) == written(merged)
            at[one] = at[other] = result

    for turn in range(data.draw(st.integers(1, 5))):
        who = data.draw(st.sampled_from("abc"))
        kinds = operations("append", "append", "tag", "rename", "pin", most=3, back=False)
        done = data.draw(kinds)
        after = worked_on(known[at[who]], done, f"{who}{turn}", 100 + 100 * turn)
        at[who] = at[who] | {f"{who}{turn}"}
        known[at[who]] = after
        if data.draw(st.booleans()):
            together(who, data.draw(st.sampled_from("abc".replace(who, ""))))
    for one, other in ("ab", "bc", "ca", "ab"):
        together(one, other)
    assume(
        at["a"] == at["b"] == at["c"]
    )  # Else they crossed each other, and have no one common version.
    said = [message["id"] for message in known[at["a"]]["history"]]
    assert len(said) == len(set(said))
    assert {id[:2] for id in said if id[0] != "m"} <= at["a"]


# -- The history -----------------------------------------------------------------------------------


def both(base: Document, mine: list[Any], yours: list[Any]) -> MergeResult:
    return merge(base, worked_on(base, mine, "a"), worked_on(base, yours, "b"))


def test_in_a_chat_both_continuations_become_branches_and_the_later_is_active() -> None:
    merged = both(begun("chat", 2), [("append", 0, 1, "x")] * 2, [("append", 0, 9, "y")]).document
    assert answered(merged) == {
        "message 0": None,
        "message 1": "message 0",
        "x a01010": "message 1",
        "x a01021": "x a01010",
        "y b01090": "message 1",
    }
    assert ["parent" in message for message in merged["history"]] == [
        False,
        False,
        False,
        False,
        True,
    ]
    assert Tree(merged["history"]).path(merged["metadata"].get("currentNode")) == [0, 1, 4]


def test_in_a_group_the_messages_form_one_line_by_time() -> None:
    for type in TYPES[1:]:
        merged = both(
            begun(type, 1), [("append", 0, 1, "x"), ("append", 0, 9, "x")], [("append", 0, 5, "y")]
        ).document
        assert contents(merged) == ["message 0", "x a01010", "y b01050", "x a01101"]
        assert not any("parent" in message for message in merged["history"])


def test_a_field_of_the_metadata_that_is_called_as_one_of_the_head_stays() -> None:
    base = begun("chat", 1)
    base["metadata"] |= {"title": "mine", "history": "all"}
    a, b = (worked_on(base, [("append", 0, 1, who)], who) for who in "ab")
    merged = merge(base, a, b).document
    assert (merged["metadata"]["title"], merged["metadata"]["history"]) == ("mine", "all")


def test_fields_of_a_message_that_differ_combine() -> None:
    base = begun("chat", 2)
    a, b = copy.deepcopy(base), copy.deepcopy(base)
    a["history"][1] |= {"reasoning": "because"}
    b["history"][1] |= {"metadata": {"seen": True}}
    merged = merge(base, a, b)
    assert merged.document["history"][1] == {
        **base["history"][1],
        "reasoning": "because",
        "metadata": {"seen": True},
    }
    assert len(merged.document["history"]) == 2 and not merged.notes


def test_a_message_edited_on_both_sides_is_kept_in_both_versions_and_the_later_one_goes_on() -> (
    None
):
    merged = both(begun("chat", 3), [("edit", 1, 1, "early")], [("edit", 1, 9, "late")])
    document = merged.document
    assert contents(document) == [
        "message 0",
        "edited early a01010",
        "edited late b01090",
        "message 2",
    ]
    assert document["history"][2]["id"] == "m01"
    assert [entry.get("editedBy") for entry in document["history"]] == [None, "anna", None, None]
    assert answered(document)["edited early a01010"] == "message 0"
    assert answered(document)["message 2"] == "edited late b01090"
    assert "m01 was edited on both sides" in merged.notes[0] and not merged.conflicts


def test_a_change_on_one_side_stands_and_an_edit_beats_a_deletion() -> None:
    base, noted = begun("chat", 4), []
    for mine, yours, said, answers in (
        (
            ("edit", 1),
            "append",
            ["message 0", "edited x a01010", "message 2", "message 3", "y b01010"],
            {},
        ),
        (("delete", 1), "append", ["message 0", "message 2", "message 3", "y b01010"], {}),
        (
            ("delete", 1),
            "edit",
            ["message 0", "edited y b01010", "message 2", "message 3"],
            {"message 2": "edited y b01010"},
        ),
        (
            ("delete", 3),
            "append",
            ["message 0", "message 1", "message 2", "y b01010"],
            {"y b01010": "message 2"},
        ),
    ):
        merged = both(base, [(*mine, 1, "x")], [(yours, 1, 1, "y")])
        assert contents(merged.document) == said
        assert answers.items() <= answered(merged.document).items() and not merged.conflicts
        noted.append(len(merged.notes))
    assert noted == [
        0,
        0,
        1,
        1,
    ]  # What a person should look at: what was kept, and what answers another one now.


def test_messages_without_ids_are_the_same_in_both_clones() -> None:
    base = begun("chat", 3, old=True)
    merged = both(base, [("type in", 3, 1, "x")], [("append", 0, 1, "y")]).document
    assert sorted(contents(merged)) == sorted(
        ["message 0", "message 1", "message 2", "typed x a01010", "y b01010"]
    )
    assert merged["version"] == "2.1"


def test_messages_without_ids_that_both_sides_type_around_are_there_once() -> None:
    for type in TYPES:
        base = begun(type, 3, old=True)
        base["metadata"]["type"] = type
        a, b = (
            worked_on(base, [("type in", 1, 1, "x")], "a"),
            worked_on(base, [("type in", 0, 1, "y"), ("edit", 3, 1, "z")], "b"),
        )
        merged = merge(base, a, b).document
        assert sorted(contents(merged)) == [
            "edited z b01021",
            "message 0",
            "message 1",
            "typed x a01010",
            "typed y b01010",
        ]
        assert written(merge(base, b, a).document) == written(merged)
        for side in (a, b):
            assert {"message 0", "message 1"} <= set(contents(merge(None, side, merged).document))
            assert len(merge(None, side, merged).document["history"]) <= 6


def test_without_an_ancestor_messages_of_both_are_there_once() -> None:
    base = begun("group", 3)
    a, b = (worked_on(base, [("append", 0, 1, who)], who) for who in "ab")
    assert contents(merge(None, a, b).document) == [
        "message 0",
        "message 1",
        "message 2",
        "a a01010",
        "b b01010",
    ]


def test_a_version_that_changed_nothing_gives_way_also_where_an_id_stands_twice() -> None:
    base = begun("chat", 2)
    base["history"].append({**base["history"][0], "content": "the same id"})
    a = worked_on(base, [("append", 0, 1, "x")], "a")
    assert (
        merge(base, a, copy.deepcopy(base)).document
        == merge(base, copy.deepcopy(base), a).document
        == cleaned(a)
    )


def test_an_id_that_stands_twice_loses_no_message() -> None:
    base = begun("chat", 2)
    a = worked_on(base, [("append", 0, 1, "x")], "a")
    a["history"].append({**a["history"][0], "content": "the same id"})
    merged = merge(base, a, worked_on(base, [("append", 0, 2, "y")], "b")).document
    assert {"the same id", "message 0", "x a01010", "y b01020"} <= set(contents(merged))
    assert len(by_id(merged)) == len(merged["history"])


def test_contradicting_orders_have_one_result_and_a_message_moved_on_one_side_stays_moved() -> None:
    base = begun("channel", 4)
    moved = copy.deepcopy(base)
    moved["history"].insert(0, moved["history"].pop())
    b = worked_on(base, [("append", 0, 1, "y")], "b")
    assert contents(merge(base, moved, b).document)[0] == "message 3"
    reversed_ = copy.deepcopy(base)
    reversed_["history"].reverse()
    assert written(merge(base, moved, reversed_).document) == written(
        merge(base, reversed_, moved).document
    )


def test_a_circle_that_only_both_sides_together_make_is_opened() -> None:
    base = begun("chat", 3)
    a, b = copy.deepcopy(base), copy.deepcopy(base)
    a["history"][1]["parent"] = "m02"
    a["history"][2]["parent"] = "m00"
    b["history"][2]["parent"] = "m01"
    b["title"] = "else"
    merged = merge(base, a, b)
    assert not Tree(merged.document["history"]).problems()


def test_a_branch_that_one_side_switched_to_is_active_and_a_deleted_one_is_replaced() -> None:
    base = worked_on(begun("chat", 3), [("regenerate", 2, 1, "x")], "o")
    other = base["metadata"]["currentNode"]
    went = worked_on(base, [("switch", 2, 1, "")], "a")
    merged = merge(base, went, worked_on(base, [("tag", 0, 1, "t")], "b")).document
    assert merged["metadata"]["currentNode"] == "m02"
    gone = worked_on(base, [("prune", 3, 1, "")], "a")
    merged = merge(base, gone, worked_on(base, [("tag", 0, 1, "t")], "b")).document
    assert other not in by_id(merged)
    assert merged["metadata"].get("currentNode") in (None, "m02")


# -- The head --------------------------------------------------------------------------------------


def test_tags_are_a_set_to_which_both_sides_add_and_from_which_both_take() -> None:
    merged = both(
        begun("chat", 1), [("tag", 0, 1, "x"), ("untag", 0, 1, "")], [("tag", 0, 1, "y")]
    ).document
    assert merged["metadata"]["tags"] == ["b", "x", "y"]


def test_a_title_of_a_person_beats_one_made_by_rule() -> None:
    base = begun("chat", 1)
    base["metadata"]["titleSetBy"] = "auto"
    merged = both(base, [("rename", 1, 1, "mine")], [("name", 2, 9, "")])
    assert merged.document["title"] == "mine 1" and not merged.conflicts


def test_two_titles_of_persons_are_a_conflict_and_the_later_stands() -> None:
    merged = both(begun("chat", 1), [("rename", 1, 1, "early")], [("rename", 2, 9, "late")])
    assert merged.document["title"] == "late 2"
    early, late = ("early 1", "2026-01-01T00:01:41.000Z"), ("late 2", "2026-01-01T00:01:49.000Z")
    assert merged.conflicts == (Conflict("title", (early, late), "late 2"),)
    assert recorded(merged.document) == [
        {
            "field": "title",
            "values": [
                {"value": "early 1", "at": "2026-01-01T00:01:41.000Z"},
                {"value": "late 2", "at": "2026-01-01T00:01:49.000Z"},
            ],
        }
    ]


def test_one_title_that_two_persons_gave_has_the_later_time_in_every_order_of_merges() -> None:
    base = begun("chat", 1)
    titled = []
    for title, time in (
        ("x", "2026-01-01T00:01:41.000Z"),
        ("y", "2026-01-01T00:01:42.000Z"),
        ("y", LATE),
    ):
        version = copy.deepcopy(base) | {"title": title}
        version["metadata"] |= {"titleSetBy": "user", "titleSetAt": time}
        titled.append(version)
    for first, second, third in itertools.permutations(titled):
        merged = merge(base, merge(base, first, second).document, third).document
        (conflict,) = recorded(merged)
        assert {"value": "y", "at": LATE} in conflict["values"]


def test_a_conflict_that_one_side_settled_is_settled() -> None:
    merged = both(
        begun("chat", 1), [("rename", 1, 1, "early")], [("rename", 2, 9, "late")]
    ).document
    settled = copy.deepcopy(merged)
    del settled["metadata"]["conflicts"]
    after = merge(merged, settled, worked_on(merged, [("append", 0, 99, "y")], "b"))
    assert recorded(after.document) == [] and not after.conflicts


def test_conflicts_of_another_form_stay_until_one_side_takes_them_out() -> None:
    base, (a, b) = begun("chat", 1), (begun("chat", 1), begun("chat", 1))
    odd = ["mine", {"field": "title", "values": []}]
    twice = [
        {"field": "title", "values": [{"value": text, "at": at}]}
        for text, at in (("x", "1"), ("y", "2"), ("x", "3"))
    ]
    base["metadata"]["conflicts"] = a["metadata"]["conflicts"] = [*odd, *twice]
    b["metadata"]["conflicts"] = [odd[0], *twice]
    a["title"] = b["title"] = "Title"
    a["metadata"]["pinned"] = b["metadata"]["archived"] = True
    values = [{"value": "x", "at": "3"}, {"value": "y", "at": "2"}]
    assert recorded(merge(base, a, b).document) == [{"field": "title", "values": values}, "mine"]


def test_times_and_versions_are_the_earliest_and_the_latest() -> None:
    base = begun("chat", 1)
    a, b = copy.deepcopy(base), copy.deepcopy(base)
    a |= {"updatedAt": "2026-03-01T00:00:00.000Z", "version": "2.3"}
    b |= {"createdAt": "2025-01-01T00:00:00.000Z", "updatedAt": "2026-02-01T00:00:00.000Z"}
    merged = merge(base, a, b).document
    assert (merged["createdAt"], merged["updatedAt"], merged["version"]) == (
        b["createdAt"],
        a["updatedAt"],
        "2.3",
    )


def test_of_two_contexts_the_newer_capture_is_kept_with_the_digest_of_the_other() -> None:
    merged = both(begun("chat", 1), [("capture", 1, 1, "old")], [("capture", 2, 9, "new")])
    assert merged.document["context"]["fullContext"] == "new 2"
    assert merged.document["context"]["metadata"]["otherHashes"] == ["sha256:1old"]
    assert not merged.conflicts and "context" in merged.notes[0]


def test_servers_and_unknown_objects_are_merged_key_by_key() -> None:
    base = begun("chat", 1)
    base["x"] = {"one": 1, "two": 2}
    a, b = copy.deepcopy(base), copy.deepcopy(base)
    a["x"]["one"], b["x"]["three"] = "other", 3
    a["metadata"]["mcpServers"] = {"git": {"enabled": False}}
    b["metadata"]["mcpServers"] = ["web"]
    merged = merge(base, a, b)
    assert merged.document["x"] == {"one": "other", "two": 2, "three": 3}
    assert merged.document["metadata"]["mcpServers"] == {
        "git": {"enabled": False},
        "web": {"enabled": True},
    }
    assert not merged.conflicts


def test_true_and_one_are_different_and_digits_are_kept() -> None:
    base = codec.decode(written(begun("chat", 1) | {"x": 1, "y": 2}), "")
    a = codec.decode(written(base).replace(b'"x": 1', b'"x": true'), "")
    b = codec.decode(written(base).replace(b'"y": 2', b'"y": 2.50'), "")
    data = written(merge(base, a, b).document)
    assert b'"x": true' in data and b'"y": 2.50' in data


def test_versions_of_different_conversations_are_refused() -> None:
    a, b = begun("chat", 1), begun("chat", 1) | {"id": "other"}
    with pytest.raises(InvalidDocument, match=r"p\.json.*different conversations: c, other"):
        merge(None, a, b, "p.json")
