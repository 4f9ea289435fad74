"""The promise of every engine: each question is answered without what is hidden from who asks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest

from capsule import InvalidInput, Store
from capsule.engines.changes import Changes
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.queries import Filter, ListRequest, Queries, SearchRequest
from capsule.engines.read_marks import UnreadFilter
from capsule.format.documents.creation import new_capsule
from capsule.rules.consent import PolicyInputs
from capsule.rules.policy import Viewer
from capsule.timestamps import ms_of

EARLY, LATE = "2026-01-01T10:00:00.000Z", "2026-01-02T10:00:00.000Z"
#: Who takes part: eve may not read `closed`, and `late` only from her coming on. The others say
#: nothing of it.
MEMBERS = {"open": [], "closed": ["anna"], "late": ["anna", {"id": "eve", "joinedAt": LATE}]}
ALL = {f"{id}-{at}" for id in MEMBERS for at in (0, 1)}
SEEN = {"open-0", "open-1", "late-1"}


@pytest.fixture
def filled(store: Store) -> Store:
    for id, members in MEMBERS.items():
        said = [
            {
                "role": "user",
                "content": "a fish !",
                "timestamp": time,
                "id": f"{id}-{at}",
                "from": "anna",
                "topic": id,
            }
            for at, time in enumerate((EARLY, LATE))
        ]
        document = new_capsule(id, f"About {id} fish", EARLY, type="group", messages=said)
        document["updatedAt"] = LATE
        document["metadata"] |= {"forkedFrom": "source"} | (
            {"participants": members} if members else {}
        )
        store.engine.create(CONVERSATIONS, document)
    return store


def eve_of(store: Store) -> Queries:
    return store.engine.queries(Viewer("eve", PolicyInputs()))


def found(questions: Queries, query: str = "fish", **asked: Any) -> set[str]:
    """What a search finds on all its pages: messages, and the conversations of titles."""
    hits, search = [], SearchRequest(query, limit=2, now_ms=ms_of(LATE), **asked)
    while True:
        page = questions.search(search)
        hits += [hit.message or hit.id for hit in page.hits]
        if page.cursor is None:
            assert len(hits) == len(set(hits))
            return set(hits)
        search = replace(search, cursor=page.cursor)


def listed(questions: Queries, **asked: Any) -> set[str]:
    """The conversations on the pages of a list, with the numbers of their messages."""
    page = questions.conversations(ListRequest(**asked))
    rest = (
        set()
        if (cursor := page.cursor()) is None
        else listed(questions, **asked | {"cursor": cursor})
    )
    return (
        rest
        | {head.id for head in page.heads}
        | {f"{id}:{count}" for id, count in page.messages.items()}
    )


def reported(found: Changes) -> set[str]:
    return {message for change in found.changes for message in change.messages}


def of(places: Iterable[Any]) -> set[str]:
    return {place.message for place in places}


IDS, HERS = {*MEMBERS}, {"open", "late"}
FIRST = "1.0.0"  # The cursor of an index that is gone, before everything.
#: Of each question: what the owner hears, and what eve does.
ASKED: list[tuple[str, Callable[[Queries], Any], Any, Any]] = [
    ("search", lambda ask: found(ask), ALL | IDS, SEEN | HERS),
    ("search", lambda ask: found(ask, "!", profile="exact"), ALL, SEEN),
    (
        "search",
        lambda ask: found(ask, profile="exact", ids=("closed",)),
        {"closed", "closed-0", "closed-1"},
        set(),
    ),
    ("search", lambda ask: found(ask, "closed", title_only=True), {"closed"}, set()),
    ("conversations", lambda ask: listed(ask), IDS, HERS),
    ("conversations", lambda ask: listed(ask, order="latest"), IDS, HERS),
    ("conversations", lambda ask: listed(ask, forks_of="source"), IDS, HERS),
    (
        "conversations",
        lambda ask: listed(ask, filter=Filter(), order="title", limit=1),
        IDS | {"open:2", "closed:2", "late:2"},
        HERS | {"open:2", "late:1"},
    ),
    (
        "facets",
        lambda ask: {*ask.facets(Filter(), {}).tags} | {ask.facets(Filter(), {}).conversations},
        {3},
        {2},
    ),
    (
        "facets",
        lambda ask: ask.facets(Filter(agent="anna"), {"anna": "/x"}).projects,
        {"/x": 2},
        {"/x": 1},
    ),
    ("messages", lambda ask: of(ask.messages({"topic": {"$ne": "x"}})), ALL, SEEN),
    (
        "messages",
        lambda ask: of(ask.messages({"topic": {"$regex": "^c"}})),
        {"closed-0", "closed-1"},
        set(),
    ),
    (
        "values",
        lambda ask: [sum(value[1] for value in ask.values("topic", id)) for id in MEMBERS],
        [2, 2, 2],
        [2, 0, 1],
    ),
    ("stats", lambda ask: (ask.stats().conversations, ask.stats().messages), (3, 6), (2, 3)),
    (
        "participations",
        lambda ask: {mine.id for mine in ask.participations("anna")},
        {"closed", "late"},
        {"late"},
    ),
    ("unread_positions", lambda ask: of(ask.unread_positions(UnreadFilter())), ALL, SEEN),
    (
        "summarize_unread",
        lambda ask: [ask.summarize_unread(id, UnreadFilter()).total for id in MEMBERS],
        [2, 2, 2],
        [2, 0, 1],
    ),
    (
        "ids_at",
        lambda ask: [[*ask.ids_at(id, [0, 1])] for id in MEMBERS],
        [[0, 1]] * 3,
        [[0, 1], [], [1]],
    ),
    ("find", lambda ask: {id for id in ALL if ask.find(id) == (id[:-2], int(id[-1]))}, ALL, SEEN),
    ("find", lambda ask: ask.find("closed-1", "closed"), ("closed", 1), None),
    (
        "last_valid_version",
        lambda ask: len((ask.last_valid_version("closed") or [{"history": ()}])[0]["history"]),
        2,
        0,
    ),
    ("changes", lambda ask: reported(ask.changes(FIRST, 9)), ALL, SEEN),
]


@pytest.mark.parametrize(
    ("name", "ask", "owners", "eves"), ASKED, ids=[f"{name}" for name, *_ in ASKED]
)
def test_a_question_is_answered_without_what_is_hidden_from_who_asks(
    filled: Store, name: str, ask: Callable[[Queries], Any], owners: Any, eves: Any
) -> None:
    assert (ask(filled.queries), ask(eve_of(filled))) == (owners, eves)
    filled.queries.refresh(["open"])
    filled.queries.refresh(anew=True)
    assert (ask(filled.queries), ask(eve_of(filled))) == (owners, eves)


def test_every_question_is_asked_here() -> None:
    names = {name for name in vars(Queries) if not name.startswith("_")}
    assert (
        names == {name for name, *_ in ASKED} | {"refresh", "advance", "in_one_transaction"}
        and len(names) <= 16
    )


@pytest.mark.parametrize("as_eve", [False, True])
def test_a_follower_goes_on_behind_any_message_and_its_cursor_stays_while_there_is_nothing_to_report(
    filled: Store, as_eve: bool
) -> None:
    questions = eve_of(filled) if as_eve else filled.queries
    since = questions.changes(None, 9).cursor
    both = [
        {"role": "user", "content": "new"} for _ in range(2)
    ]  # One write: not every engine joins two of them.
    new = [str(message.id) for message in filled.append_many("open", both)]
    (change,) = questions.changes(since, 9).changes
    assert change.messages == tuple(new)
    after = questions.advance(change.before, 1)
    assert reported(questions.changes(after, 9)) == {new[1]}
    assert questions.changes(change.cursor, 9).changes == []
    filled.append("closed", content="hidden")
    assert (questions.changes(change.cursor, 9).cursor == change.cursor) == as_eve
    for id in MEMBERS:
        filled.delete(id)
    deleted, cursor = set(), change.cursor
    while (page := questions.changes(cursor, 1)).changes:
        deleted |= {each.id for each in page.changes if each.kind == "deleted"}
        cursor = page.cursor
    assert deleted == (HERS if as_eve else IDS)
    for ask in (questions.advance, lambda cursor: questions.changes(cursor, 9)):
        with pytest.raises(InvalidInput):
            ask("nonsense")


def test_a_search_where_there_is_nothing_to_be_read_finds_nothing(store: Store) -> None:
    assert store.search("fish").hits == [] and store.search("fish", title_only=True).hits == []
