"""What changed between two versions of a conversation, as data and in words."""

from __future__ import annotations

import copy
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from capsule.format import migrations
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.format.merge.comparison import compare

NOON = "2026-01-01T12:00:00.000Z"
LATER = "2026-01-02T12:00:00.000Z"


def said(id: str, content: str = "hi", **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, "timestamp": NOON, "id": id} | more


def conversation(*messages: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return new_capsule("c1", "Plan", NOON, messages=messages, metadata=metadata)


def changed(document: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """The document with other fields in its metadata."""
    return document | {"metadata": document["metadata"] | metadata}


def ids(messages: Any) -> list[str]:
    return [message["id"] for message in messages]


AB = conversation(said("a"), said("b"))


def test_a_conversation_comes_and_goes() -> None:
    for before, after, words, told in (
        (None, AB, ["created with 2 messages"], {"created": True, "added": ["a", "b"]}),
        (
            None,
            conversation(said("a")),
            ["created with a message"],
            {"created": True, "added": ["a"]},
        ),
        (None, conversation(), ["created"], {"created": True}),
        (AB, None, ["deleted"], {"deleted": True, "removed": ["a", "b"]}),
        (None, None, [], {}),
    ):
        comparison = compare(before, after)
        assert (comparison.words(), comparison.as_json(), bool(comparison)) == (
            words,
            told,
            bool(told),
        )


def test_added_edited_and_removed_messages_are_listed_in_the_order_of_the_history() -> None:
    before = conversation(said("a"), said("b"), said("c"))
    after = conversation(said("b", "other words", editedAt=LATER), said("c"), said("e"), said("d"))
    comparison = compare(before, after)
    assert ids(comparison.added) == ["e", "d"] and ids(comparison.removed) == ["a"]
    assert [(was["content"], now["content"]) for was, now in comparison.edited] == [
        ("hi", "other words")
    ]
    assert comparison.words() == ["2 messages added", "a message edited", "a message removed"]
    assert comparison.as_json() == {"added": ["e", "d"], "removed": ["a"], "edited": ["b"]}


def test_neither_a_lock_nor_the_time_of_the_change_is_a_change() -> None:
    locked = changed(
        AB, lock={"active": True, "instanceId": "i", "timestamp": LATER, "user": "u", "host": "h"}
    )
    comparison = compare(AB, locked | {"updatedAt": LATER})
    assert not comparison and comparison.words() == [] and comparison.as_json() == {}


def test_fields_that_the_next_write_fills_in_are_no_change() -> None:
    typed = orjson.loads(
        b'{"id":"c1","title":"Plan","version":"2.0","createdAt":"2026-01-01T12:00:00Z",'
        b'"updatedAt":"2026-01-01T12:00:00Z","history":[{"role":"user","content":"hi"},'
        b'{"role":"assistant","content":"yo","timestamp":"2026-01-01T13:00:00+01:00"}]}'
    )
    written, _ = migrations.upgrade(typed)
    assert not compare(typed, written) and not compare(written, typed)


def test_a_typed_message_is_known_again_when_its_words_or_its_place_change() -> None:
    before = conversation(said("a"))
    one = {"role": "assistant", "content": "first", "timestamp": LATER}
    before["history"].append(one)
    edited = before | {"history": [before["history"][0], one | {"content": "better"}]}
    assert compare(before, edited).words() == ["a message edited"]
    moved_on = before | {
        "history": [said("a"), said("x", "in between"), migrations.upgrade(before)[0]["history"][1]]
    }
    typed_above = before | {
        "history": [said("a"), {"role": "user", "content": "new", "timestamp": NOON}, one]
    }
    assert compare(before, moved_on).words() == ["a message added"]
    assert ids(compare(before, typed_above).added) == [
        migrations.upgrade(typed_above)[0]["history"][1]["id"]
    ]


def test_changes_of_the_tree_have_words() -> None:
    a, b, c, moved = said("a"), said("b"), said("c"), said("c", parent="a")
    fork, roots = (
        conversation(a, b, moved, currentNode="c"),
        [said("a", parent=None), said("b", parent=None)],
    )
    for before, after, words in (
        (AB, conversation(a, said("b", parent="a")), []),
        (conversation(a, b, c), conversation(a, b, moved), ["a message moved to another branch"]),
        (conversation(a, b, c), conversation(a, moved), ["a message removed"]),
        (
            conversation(a, b, type="group"),
            conversation(a, said("x"), b, type="group"),
            ["a message added"],
        ),
        (
            conversation(*roots, currentNode="b"),
            conversation(*reversed(roots), currentNode="b"),
            ["messages put in another order"],
        ),
        (fork, changed(fork, currentNode="b"), ["switched to another branch"]),
        (fork, conversation(a, b, moved, said("d"), currentNode="d"), ["a message added"]),
        (changed(AB, currentNode="a"), changed(AB, currentNode="b"), ["currentNode changed"]),
        (conversation(a, said("a", "again")), conversation(a), ["a message removed"]),
        (
            conversation(a, said("a", "again")),
            conversation(a, said("a", "edited")),
            ["a message edited"],
        ),
    ):
        assert compare(before, after).words() == words
    assert compare(fork, changed(fork, currentNode="b")).switched


def test_each_field_of_the_head_has_words() -> None:
    for change, words in [
        ({"tags": ["b", "c"]}, ["tagged c", "untagged a"]),
        ({"tags": ["b", "a"]}, ["tags put in another order"]),
        ({"tags": ["a", "b", "x, y"]}, ["tagged 'x, y'"]),
        ({"archived": True, "pinned": False}, ["unpinned", "archived"]),
        ({"description": "all of it"}, ["description set"]),
        ({"participants": ["bob", "cleo"]}, ["bob, cleo joined", "anna left"]),
        ({"participants": ["anna", {"id": "bob", "joinedAt": LATER}]}, ["bob joined"]),
        ({"participants": [{"id": "anna", "leftAt": LATER}]}, ["anna left"]),
        ({"participants": [{"id": "anna", "joinedAt": LATER}]}, ["participants changed"]),
        ({"history": "all"}, ["participants read everything"]),
        ({"mcpServers": {"files": {"enabled": False}}}, ["MCP servers changed"]),
        ({"type": "group"}, ["type changed to group"]),
        ({"conflicts": [{"field": "title"}]}, ["1 conflict to resolve"]),
        ({"x-mine": 1}, ["x-mine set"]),
        ({"x-theirs": 2}, ["x-theirs changed"]),
        ({"x-theirs": None}, ["x-theirs removed"]),
        ({"titleSetBy": "auto"}, ["titleSetBy changed"]),
    ]:
        old = {
            "tags": ["a", "b"],
            "pinned": True,
            "participants": ["anna"],
            "x-theirs": 1,
            "titleSetBy": "user",
        }
        before = conversation(**old)
        comparison = compare(before, changed(before, **change))
        assert comparison.words() == words
        told = comparison.as_json()["fields"]
        assert told == {
            f"metadata.{name}": {"before": before["metadata"].get(name), "after": value}
            for name, value in change.items()
        }


def test_a_name_that_a_person_gave_is_one_change() -> None:
    after = changed(AB, titleSetBy="user", titleSetAt=LATER) | {"title": "It's\x1b[2J"}
    assert compare(AB, after).words() == ['renamed to "It\'s\\x1b[2J"']
    assert compare(AB, AB | {"title": "x" * 200}).words() == [f"renamed to '{'x' * 59}…'"]


def test_a_changed_context_shows_neither_its_text_nor_its_files() -> None:
    about = {"contextHash": "sha256:1", "files": [{"path": "a"}]}
    comparison = compare(AB, AB | {"context": {"fullContext": "much", "metadata": about}})
    assert comparison.words() == ["project context changed"]
    assert comparison.as_json()["fields"]["context"]["after"] == {"contextHash": "sha256:1"}
    assert compare(AB, AB | {"context": AB["context"] | {"fullContext": "typed"}}).words() == [
        "project context changed"
    ]


def test_numbers_count_by_their_digits_and_keys_in_any_order() -> None:
    def decoded(number: str) -> Any:
        data = codec.encode(conversation(said("a", metadata={"n": 7, "m": True})))
        return codec.decode(data.replace(b'"n": 7', b'"n": ' + number.encode()), "c1.json")

    big = "123456789012345678901234567890"
    assert compare(decoded(big), decoded(big + "1")).words() == ["a message edited"]
    assert not compare(decoded(big), decoded(big)) and compare(decoded("1"), decoded("true"))
    turned = conversation(said("a", metadata={"m": True, "n": 7}))
    assert not compare(decoded("7"), turned)


MESSAGES = st.lists(
    st.builds(said, st.sampled_from("abcdef"), st.sampled_from(["hi", "yo"])),
    max_size=6,
    unique_by=lambda m: m["id"],
)


@given(MESSAGES, MESSAGES)
def test_the_changes_turn_one_version_into_the_other(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    before, after = conversation(*one), conversation(*other)
    kept = copy.deepcopy((before, after))
    comparison = compare(before, after)
    assert (before, after) == kept
    edited = {now["id"]: now["content"] for _, now in comparison.edited}
    made = {
        m["id"]: edited.get(m["id"], m["content"])
        for m in one
        if m["id"] not in ids(comparison.removed)
    }
    made |= {m["id"]: m["content"] for m in comparison.added}
    assert made == {m["id"]: m["content"] for m in other}
    back = compare(after, before)
    assert ids(back.added) == ids(comparison.removed) and ids(back.removed) == ids(comparison.added)
    assert bool(comparison) == bool(back) == bool(comparison.words()) == (one != other)
