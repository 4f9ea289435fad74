"""The promises of every engine about participants: whose conversations there are, and what was said
from a place on.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from capsule import Store
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.queries import Queries
from capsule.engines.read_marks import UnreadFilter, UnreadSummary
from capsule.format.documents.creation import new_capsule
from capsule.ids import new_message_id
from capsule.timestamps import ms_of

EARLY, LATE = "2026-01-01T10:00:00.000Z", "2026-01-02T10:00:00.000Z"


def said(sender: str | None, text: str, time: str = EARLY) -> dict[str, Any]:
    message = {"role": "user", "content": text, "timestamp": time, "id": new_message_id()}
    return message if sender is None else message | {"from": sender}


def make(
    store: Store,
    id: str,
    members: list[Any],
    messages: list[dict[str, Any]] | None = None,
    **about: Any,
) -> None:
    metadata = {"participants": members, **about}
    document = new_capsule(id, "Titled", EARLY, type="group", messages=messages or [])
    document["metadata"] |= metadata
    store.engine.create(CONVERSATIONS, document)


def set_members(store: Store, id: str, members: list[Any], stamp: str = LATE) -> None:
    with store.engine.transaction(CONVERSATIONS, id) as transaction:
        head = transaction.head.document
        transaction.set_head(
            head | {"updatedAt": stamp, "metadata": head["metadata"] | {"participants": members}}
        )


def conversations(questions: Queries, agent: str) -> list[str]:
    return [mine.id for mine in questions.participations(agent)]


def test_an_agent_has_the_conversations_that_it_takes_part_in(store: Store) -> None:
    questions = store.queries
    make(
        store,
        "two",
        ["anna", {"id": "bob", "joinedAt": LATE}],
        [said("anna", "one")],
        history="all",
    )
    make(store, "one", ["anna"], archived=True)
    make(store, "none", [{"id": "anna", "joinedAt": EARLY, "leftAt": LATE}, "bob"])
    store.create(id="open", type="group")
    assert questions.participations("nobody") == []
    assert sorted(conversations(questions, "anna")) == ["one", "two"] and sorted(
        conversations(questions, "bob")
    ) == [
        "none",
        "two",
    ]
    two = next(mine for mine in questions.participations("bob") if mine.id == "two")
    assert (two.type, two.title, two.entries, two.archived, two.history) == (
        "group",
        "Titled",
        1,
        False,
        "all",
    )
    assert [(member.id, member.joined_at) for member in two.participants] == [
        ("anna", ""),
        ("bob", LATE),
    ]
    assert two.ids_digest == questions.ids_at("two", [0])[0][1]
    assert [
        (mine.archived, mine.ids_digest)
        for mine in questions.participations("anna")
        if mine.id == "one"
    ] == [(True, "")]


def test_of_many_changes_the_conversations_of_each_agent_are_what_the_heads_say(
    store: Store, rng: random.Random
) -> None:
    agents, ids = ["anna", "bob", "carl"], [f"group-{n}" for n in range(5)]
    make(store, "unchanged", agents)
    for number in range(120):
        id = rng.choice(ids)
        if not store.engine.exists(CONVERSATIONS, id):
            make(store, id, rng.sample(agents, rng.randrange(4)))
        elif rng.random() < 0.2:
            store.delete(id)
            if rng.random() < 0.5:
                store.trash.restore(id)
        elif rng.random() < 0.5:
            store.append(id, content="x")
        else:
            left = [{"id": agent, "leftAt": LATE} for agent in rng.sample(agents, 1)]
            others = [agent for agent in agents if agent != left[0]["id"] and rng.random() < 0.7]
            set_members(
                store,
                id,
                [*left, *others],
                f"2026-02-01T10:{number // 60:02}:{number % 60:02}.000Z",
            )
        agent = rng.choice(agents)
        heads = [
            head
            for head in store.heads()
            if any(m.id == agent and m.is_in for m in head.participants)
        ]
        assert sorted(conversations(store.queries, agent)) == sorted(head.id for head in heads)
        counts = {mine.id: mine.entries for mine in store.queries.participations(agent)}
        assert counts == {head.id: len(store.document(head.id)["history"]) for head in heads}
    known = {mine.id: mine for mine in store.queries.participations("anna")}
    again = next(
        mine for mine in store.queries.participations("anna", known) if mine.id == "unchanged"
    )
    assert again == known["unchanged"] and (again is known["unchanged"]) == bool(again.version)


def test_messages_are_found_by_place_and_by_id(store: Store) -> None:
    questions, messages = store.queries, [said("anna", str(n)) for n in range(9)]
    make(store, "plan", [], messages)
    make(store, "other", [], [said("anna", "elsewhere")])
    ids = [message["id"] for message in messages]
    there = questions.ids_at("plan", [0, 7, 8, 9, 400, -1])
    assert {at: id for at, (id, _) in there.items()} == {0: ids[0], 7: ids[7], 8: ids[8]}
    assert questions.ids_at("plan", []) == {} == questions.ids_at("missing", [0])
    assert [questions.find(id, "plan") for id in ids] == [("plan", at) for at in range(9)]
    assert questions.find("missing", "plan") is None and questions.find(ids[0], "other") is None
    assert questions.find(ids[3]) == ("plan", 3) and questions.find("missing") is None
    new = str(store.append("plan", content="new").id)
    assert questions.ids_at("plan", [9])[9][0] == new and questions.find(new, "plan") == ("plan", 9)
    assert questions.find(new) == ("plan", 9)


def test_what_others_said_after_a_place_is_counted(store: Store) -> None:
    questions = store.queries
    messages = [
        said("bob", "0"),
        said("anna", "1"),
        said(None, "2", LATE),
        said("carl", "3"),
        said("bob", "4", LATE),
    ]
    messages.append(said("anna", "5"))
    make(store, "plan", [], messages)
    four, five = (
        (4, messages[4]["id"], "bob", "4", LATE),
        (5, messages[5]["id"], "anna", "5", EARLY),
    )

    def said_after(conversation: str = "plan", **wanted: Any) -> UnreadSummary:
        return questions.summarize_unread(conversation, UnreadFilter(**wanted))

    assert said_after(excluded_senders=("anna",)) == (4, ("bob", "", "carl"), four)
    assert said_after(read_marks=((0, messages[0]["id"]),), excluded_senders=("bob",)) == (
        4,
        ("anna", "", "carl"),
        five,
    )
    assert said_after(excluded_senders=("anna", "bob"), since_ms=ms_of(LATE)).senders == ("",)
    assert said_after(excluded_senders=("anna",), since_ms=ms_of(LATE)) == (2, ("", "bob"), four)
    assert (
        said_after(read_marks=((4, messages[4]["id"]),), excluded_senders=("anna",))
        == (0, (), None)
        == said_after("missing")
    )
    store.append("plan", content="6", from_="dora")
    found = said_after(read_marks=((4, messages[4]["id"]),), excluded_senders=("anna",))
    assert (found.total, found.senders) == (1, ("dora",)) and found.last is not None
    assert (found.last.position, found.last.content) == (6, "6")


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "fedcba"),
        ({"read_marks": ((1, "b"), (0, "a"), (4, "d"))}, "fedc"),
        ({"mentioning": "anna"}, "dc"),
        ({"mentioning": "bob"}, "d"),
        ({"part": ("topic", "api")}, "eb"),
        ({"part": ("thread", "a")}, "cba"),
        ({"part": ("thread", "a"), "mentioning": "anna"}, "c"),
        ({"part": ("metadata", "a' OR 1 --")}, ""),
        ({"read_parts": ((("topic", "api"), ((3, "d"),)),)}, "fedca"),
        (
            {
                "read_parts": (
                    (("topic", "api"), ((4, "e"),)),
                    (("thread", "a"), ((1, "b"), (2, "gone"))),
                )
            },
            "fdc",
        ),
    ],
)
def test_mentions_and_parts_are_found_behind_a_place(
    store: Store, wanted: dict[str, Any], found: str
) -> None:
    fields: list[dict[str, Any]] = [
        {},
        {"topic": "api", "thread": "a"},
        {"thread": "a", "mentions": {"valid": ["anna"]}},
        {"mentions": {"valid": ["@all"], "invalid": ["carl"]}},
        {"topic": "api"},
        {"topic": "apiary"},
    ]
    make(
        store,
        "plan",
        [],
        [{**said("bob", id), "id": id, **more} for id, more in zip("abcdef", fields, strict=True)],
    )
    make(store, "other", [], [said("bob", "0")])
    behind = UnreadFilter(**wanted)
    assert "".join(each.message for each in store.queries.unread_positions(behind, "plan")) == found
    assert store.queries.summarize_unread("plan", behind).total == len(found)
    if wanted.keys() & {"read_marks", "read_parts"}:
        return  # What was read is of one conversation.
    everywhere = [
        each.message
        for each in store.queries.unread_positions(behind)
        if each.conversation == "plan"
    ]
    assert "".join(everywhere) == found
