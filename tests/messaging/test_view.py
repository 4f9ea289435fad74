"""What an agent sees: a conversation that it may not read is in no answer, and refused where it is
named.
"""

from __future__ import annotations

import json
import os
from base64 import urlsafe_b64decode
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from capsule import Changes, InvalidDocument, InvalidInput, NotFound, Refused, Store, timestamps
from capsule.engines.files.engine import FilesEngine
from capsule.engines.interface import Engine
from capsule.engines.queries import SearchRequest
from capsule.engines.questions.ranking import PROFILES
from capsule.ids import new_id
from capsule.store.view import AgentView
from capsule.timestamps import ms_of
from tests.core.store.doors import BY_ID, CURSOR, FOR_ALL, WRITES
from tests.core.store.making import EARLY, LATE, branched, make
from tests.messaging.test_canaries import said


@pytest.fixture
def store(each_store: Store) -> Store:
    return each_store


CARL = {"id": "carl", "joinedAt": EARLY, "leftAt": LATE}


@pytest.mark.parametrize("ask", sorted((BY_ID | WRITES).keys() - {"versions.restore"}))
@pytest.mark.parametrize("agent", ["eve", "carl"])
def test_a_conversation_that_an_agent_is_not_in_is_answered_as_one_that_is_not_there(
    store: Store, ask: str, agent: str
) -> None:
    eve, door = store.beside(agent=agent), (BY_ID | WRITES)[ask]
    missing = said(lambda: door(eve, "team"))
    branched(store, "team", "anna", CARL)
    assert said(lambda: door(eve, "team")) == missing
    assert "team" in missing


@pytest.mark.parametrize("sound", [b"{", b'"timestamp": '])
def test_a_damaged_group_is_there_for_nobody_but_the_owner(tmp_path: Path, sound: bytes) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store, store.beside(agent="eve") as eve:
        doors = {
            name: door for name, door in (BY_ID | WRITES).items() if name != "versions.restore"
        }
        missing = {
            name: said(lambda door=door: door(eve, "group_1")) for name, door in doors.items()
        }  # type: ignore[misc]
        file = tmp_path / str(
            branched(store, "group_1", "anna", "bob") and store.head("group_1").path
        )
        file.write_bytes(file.read_bytes().replace(sound, sound + b"!", 1))
        os.utime(file, (0, 10**9))  # Nobody is saving it just now.
        assert {
            name: said(lambda door=door: door(eve, "group_1")) for name, door in doors.items()
        } == missing  # type: ignore[misc]
        assert (eve.ids(), list(eve.heads()), eve.stats().conversations, eve.list().heads) == (
            [],
            [],
            0,
            [],
        )
        with pytest.raises(InvalidDocument):
            store.load("group_1")


def test_a_damaged_direct_is_there_for_its_two_agents(tmp_path: Path) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        for agent in ("anna", "bob", "eve"):
            store.agents.register(agent)
        id = store.messages.send("hello", agent="anna", to="bob").conversation
        (tmp_path / store.head(id).path).write_text("{")
        for agent, error in (
            ("anna", InvalidDocument),
            ("bob", InvalidDocument),
            ("eve", NotFound),
        ):
            with pytest.raises(error):
                store.beside(agent=agent).load(id)
        assert [store.beside(agent=agent).ids() for agent in ("anna", "eve")] == [[id], []]


@pytest.mark.parametrize("ask", sorted(BY_ID.keys() - {"versions.restore"}))
@pytest.mark.parametrize("id", ["team", "direct_anna_bob"])
def test_a_participant_and_the_owner_are_answered(store: Store, ask: str, id: str) -> None:
    branched(store, id, "anna", "bob", type="direct" if id != "team" else "group")
    BY_ID[ask](store, id)
    if ask not in (
        "branches.switch",
        "locks.take",
    ):  # One hides what others said, one keeps them from writing.
        BY_ID[ask](store.beside(agent="bob"), id)


@pytest.mark.parametrize("ask", FOR_ALL)
def test_no_answer_about_all_conversations_has_one_that_the_agent_is_not_in(
    store: Store, ask: str
) -> None:
    CURSOR[:] = [store.changes().cursor]
    make(store, "plan", type="chat")
    store.changes()  # The index has to see a conversation before it goes.
    for agent in ("eve", "carl"):
        assert "team" not in repr(FOR_ALL[ask](store.beside(agent=agent))).lower()
    make(
        store, "team", "anna", CARL, forkedFrom="plan", isSummary=True, sourceConversationId="plan"
    )
    make(store, "team-gone", "anna", CARL)
    store.edits.message("team", "team-first", "first of the team")
    store.changes()
    store.delete("team-gone")
    with store.locks.take("team"):
        seen = {
            agent: repr(FOR_ALL[ask](store.beside(agent=agent))).lower()
            for agent in ("eve", "carl", "anna")
        }
        assert "team" not in seen["eve"]
        assert "team" not in seen["carl"]
        # Anna changed and deleted nothing, so its trash is empty.
        assert ("team" in seen["anna"]) == (ask not in ("conflicts.list", "trash.list"))


def test_a_prefix_names_no_conversation_that_the_agent_is_not_in(store: Store) -> None:
    make(store, "team-of-anna", "anna")
    make(store, "team-of-eve", "eve")
    assert store.beside(agent="eve").resolve("team") == "team-of-eve"
    with pytest.raises(NotFound):
        store.beside(agent="carl").resolve("team")


def test_an_agent_that_leaves_sees_no_more_and_one_that_is_added_sees_it(store: Store) -> None:
    make(store, "team", "anna", "bob")
    bob = store.beside(agent="bob")
    assert bob.ids() == ["team"]
    now = store.head("team").updated_at

    def take_part(*participants: Any) -> None:
        def change(head: dict[str, Any]) -> None:
            head["metadata"]["participants"] = list(participants)

        store.inner.change_head("team", change)

    take_part("anna", {"id": "bob", "leftAt": LATE})
    assert bob.ids() == []
    with pytest.raises(NotFound):
        bob.load("team")
    take_part("anna", {"id": "bob", "joinedAt": "2021-01-01T00:00:00.000Z"})
    assert bob.ids() == ["team"]
    assert now and bob.load("team").history == []


@pytest.fixture
def late(store: Store) -> Store:
    """The store of carl, who was added to a group of three messages; then two more came."""
    make(store, "team", "anna", {"id": "carl", "joinedAt": "2024-01-01T00:00:00.000Z"})
    old = {"role": "user", "from": "anna", "timestamp": LATE}
    store.append_many("team", [{"content": f"old {n}", "id": f"old-{n}", **old} for n in (1, 2)])
    for n in (1, 2):
        store.append_many(
            "team", [{"role": "user", "content": f"new {n}", "from": "anna", "id": f"new-{n}"}]
        )
    return store.beside(agent="carl")


def test_of_a_group_that_an_agent_joined_later_it_reads_what_was_said_since(late: Store) -> None:
    said = ["new 1", "new 2"]
    assert [message.content for message in late.load("team").history] == said
    assert [message["content"] for message in late.document("team")["history"]] == said
    assert [message.content for message in late.tail("team", 10)] == said
    assert [message.content for message in late.branches.path("team")] == said
    assert b"old" not in late.read("team")
    assert [hit.message for hit in late.search("old").hits] == []
    assert [hit.message for hit in late.search("new").hits] == ["new-2", "new-1"]
    for hidden in ("old-1", "@1", "team-first"):
        with pytest.raises(NotFound):
            late.find_message("team", hidden)
        with pytest.raises(NotFound):
            late.page("team", around=hidden)


def test_who_joined_a_group_later_hears_of_no_message_that_it_may_not_read(store: Store) -> None:
    begin = store.beside(agent="carl").changes().cursor
    make(store, "team", "anna")
    for n in (1, 2):
        store.changes()  # The index notices the last change before carl joins only when carl asks.
        store.append_many(
            "team", [{"role": "user", "content": "old", "id": f"old-{n}", "timestamp": LATE}]
        )
    joined = {"id": "carl", "joinedAt": timestamps.now()}
    store.inner.change_head(
        "team", lambda head: head["metadata"].update(participants=["anna", joined])
    )
    carl, new = (
        store.beside(agent="carl"),
        [str(store.append("team", content="new").id) for _ in range(2)],
    )
    store.edits.message("team", "old-1", "other")
    for since in (begin, "another.0.0"):
        told = carl.changes(since).changes
        assert [message for change in told for message in change.messages] == new
        assert all(change.messages for change in told if change.kind == "appended")
        assert all(change.at >= joined["joinedAt"] for change in told)
        assert told[-1].count == 2
    store.branches.remove("team", new[0], keep_children=True)
    (last,) = carl.changes(told[-1].cursor).changes
    assert (last.kind, last.messages, last.removed) == ("edited", (), ())
    store.delete("team")
    told = carl.changes(begin).changes
    assert (told[-1].kind, [change.messages for change in told if change.messages]) == (
        "deleted",
        [],
    )
    assert all(change.at >= joined["joinedAt"] for change in told)


def test_what_was_said_before_is_read_where_the_group_says_so_and_by_who_was_there(
    store: Store,
) -> None:
    joined = {"id": "carl", "joinedAt": "2024-01-01T00:00:00.000Z"}
    make(store, "open", "anna", joined, history="all")
    make(store, "team", "anna", joined)
    texts = {
        (agent, id): [message.content for message in store.beside(agent=agent).load(id).history]
        for agent in ("anna", "carl")
        for id in ("open", "team")
    }
    assert [key for key, said in texts.items() if said == ["first"]] == [
        ("anna", "open"),
        ("anna", "team"),
        ("carl", "open"),
    ]


SEARCHES = [
    *({"profile": profile, "in_tools": True} for profile in PROFILES),
    *(
        {"query": query}
        for query in ("fish OR sea", "fish sea nothing", '"the sea"', "fi*", "", "!")
    ),
    {"title_only": True, "query": "fish OR plan"},
    {"ids": ("plan-1", "team"), "limit": 2},
]


def _written(store: Store) -> None:
    make(store, "secret", "anna", title="Fish fish")
    for n in range(20):
        store.append_many("secret", [{"content": "fish and the sea !" * n, "role": "user"}])


@pytest.mark.parametrize(
    "write",
    [
        _written,
        lambda store: store.delete("hidden"),
        lambda store: store.messages.send("the fish", agent="anna", to="bob"),
        lambda store: store.notes.write("a fish", agent="anna"),
        lambda store: store.channels.create("fish", agent="anna", access="private"),
    ],
)
def test_what_others_write_changes_no_score_no_order_no_count_and_no_cursor(
    late: Store, store: Store, write: Callable[[Store], object]
) -> None:
    for agent in ("anna", "bob", "carl"):
        store.agents.register(agent)
    make(store, "hidden", "anna")
    for n in range(1, 5):
        said = [{"role": "user", "content": "a fish !" * n + " in the sea" * (n % 3)}]
        store.create(id=f"plan-{n}", title=f"Plan {n} fish", tags=["fish"] * (n % 2), messages=said)
    since, counts = late.changes().cursor, late.stats()
    assert {
        head.bytes
        for head in (late.head("team"), *late.heads(), *late.list().heads)
        if head.id == "team"
    } == {0}
    assert (
        {large.id: large.messages for large in counts.largest}["team"]
        == late.list().messages["team"]
        == 2
    )

    def seen() -> Any:
        basic: dict[str, Any] = {"query": "fish", "limit": 3, "now_ms": ms_of(LATE)}
        asked = [SearchRequest(**(basic | search)) for search in SEARCHES]
        hits = [late.queries.search(each).as_json() for each in asked]
        page = late.list(limit=2)
        return json.dumps(hits), late.stats(), page.cursor(), page.total, late.changes(since)

    before = seen()
    write(store)
    assert seen() == before
    store.edits.message("team", "old-1", "fish fish")
    assert (seen()[0], late.stats()) == (before[0], counts)


def test_a_cursor_of_an_agent_is_sealed_and_stays_until_it_is_shown_something(store: Store) -> None:
    for id in ("team", "plan"):
        make(store, id, *(["anna"] if id == "team" else []))
    eve, other = store.beside(agent="eve"), store.beside(agent="eve")
    since = eve.changes().cursor
    for _ in range(12):
        store.append("team", content="hidden")
        assert {each.changes(since).cursor for each in (eve, other)} == {since}
        assert other.wait_for_changes(since, timeout_s=0).cursor == since
    store.append("plan", content="seen")
    assert eve.changes(since, ids=["team"]).changes == []
    ((change,), cursor) = (found := eve.changes(since)).changes, found.cursor
    assert (change.id, change.cursor, len(cursor)) == ("plan", cursor, len(since))
    assert other.changes(since) == found
    assert other.changes(cursor) == Changes([], cursor)
    number = store.changes().cursor.split(".")[1]
    assert number.encode() not in urlsafe_b64decode(cursor + "==")
    flipped = [
        cursor[:at] + ("B" if char == "A" else "A") + cursor[at + 1 :]
        for at, char in enumerate(cursor)
    ]
    for wrong in (*flipped[:-1], cursor[:-2], cursor[:8], cursor + "A" * 128, "x", "ü"):
        with pytest.raises(InvalidInput, match="not a cursor of eve"):
            eve.changes(wrong)
    with pytest.raises(InvalidInput):
        store.beside(agent="carl").changes(cursor)


def test_a_cursor_of_an_agent_holds_when_the_store_is_opened_again(tmp_path: Path) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path, agent="eve") as eve:
        since = eve.changes().cursor
        eve.create(id="plan", title="Plan")
    for drop in (False, True):
        with Store.open(tmp_path, agent="eve") as eve:
            if drop:
                cast(FilesEngine, eve.inner.whole_engine).index.drop()
            assert [change.id for change in eve.changes(since).changes] == ["plan"]


def test_an_agent_hears_of_no_program_of_an_agent_that_it_does_not_find(store: Store) -> None:
    for agent in ("anna", "bob"):
        store.agents.register(agent)
        store.engine.leases.acquire(new_id(), {"agent": agent, "session": f"s-{agent}"})
    store.agents.policy("anna", discoverable="private")
    assert [
        about["agent"]
        for about in store.beside(agent="bob").engine.leases.live_instances().values()
    ] == ["bob"]
    assert len(store.engine.leases.live_instances()) == 2


@pytest.mark.parametrize("limit", [1, 2, 20])
def test_the_places_and_the_pages_of_what_came_later_are_those_of_the_whole(
    late: Store, limit: int
) -> None:
    page = late.page("team", limit)
    seen = [(place, entry["content"]) for place, entry in page.entries]
    while (cursor := page.older()) is not None:
        page = late.page("team", limit, cursor=cursor)
        seen = [(place, entry["content"]) for place, entry in page.entries] + seen
    assert seen == [(3, "new 1"), (4, "new 2")]
    assert [message.at for message in late.tail("team", limit)] == [3, 4][-limit:]
    assert [message.at for message in late.load("team").history] == [3, 4]
    assert late.find_message("team", "@3").id == "new-1"
    assert late.append("team", content="mine").at == late.find_message("team", "@last").at == 5


def test_an_agent_reads_pages_of_a_group_in_which_nothing_was_said_since(store: Store) -> None:
    make(store, "team", "anna", {"id": "carl", "joinedAt": "2024-01-01T00:00:00.000Z"})
    carl = store.beside(agent="carl")
    assert (carl.page("team").entries, carl.tail("team", 5), carl.document("team")["history"]) == (
        [],
        [],
        [],
    )


def test_what_a_late_one_saves_moves_nothing_that_it_did_not_see(late: Store) -> None:
    mine = late.append("team", content="mine")
    read = late.read("team")
    with pytest.raises(Refused):
        late.edits.rewrite("team", read.replace(b"mine", b"changed"), read)
    assert late.edits.message("team", str(mine.id), "changed").at == 5


def test_an_agent_lists_and_restores_what_it_removed_itself_and_nothing_else(store: Store) -> None:
    store = store.beside(keep_locks=False)
    make(store, "team", "anna", "bob")
    make(store, "plan", type="chat")
    make(store, "own", type="chat")
    anna, bob = (store.beside(keep_locks=False, agent=agent) for agent in ("anna", "bob"))
    answer = str(bob.append("plan", content="answer").id)
    anna.branches.remove("plan", "plan-first")
    store.edits.message("plan", answer, "changed by the owner")
    anna.delete("own")
    store.delete("team")
    everything = {trashed.id: trashed for trashed in store.trash.list()}
    theirs, removed = store.trash.removed()
    assert [trashed.id for trashed in anna.trash.list()] == ["own"] and bob.trash.list() == []
    assert anna.trash.removed() == [removed] and bob.trash.removed() == []
    assert anna.trash.head(everything["team"]).damaged
    for agent, entry in ((anna, theirs), (bob, removed), (bob, theirs)):
        with pytest.raises(NotFound):
            agent.trash.restore_messages(entry.trashed)
    for agent, id in ((anna, "team"), (bob, "team"), (bob, "own")):
        with pytest.raises(NotFound):
            agent.trash.restore(id)
    assert anna.trash.restore_messages(removed.trashed) == ["plan-first"]
    assert [entry.id for entry in store.load("plan").history] == ["plan-first", answer]
    assert anna.trash.restore("own").id == "own"
    store.delete("own")
    assert anna.trash.list() == []
    with pytest.raises(Refused):
        bob.trash.purge()
    assert store.trash.restore("team").id == "team"


def test_a_key_that_made_what_the_agent_may_not_find_any_more_is_used_up(store: Store) -> None:
    for id in ("anna", "bob"):
        store.agents.register(id)
    channel = store.channels.create(
        "news", agent="anna", scope="global", access="private", members=["bob"]
    ).id
    made = store.beside(agent="bob").forks.create(channel, key="once").channel
    assert made is not None
    store.channels.remove(made.name, "bob")
    with pytest.raises(InvalidInput):
        store.beside(agent="bob").forks.create(channel, key="once")


def test_the_history_in_git_and_the_files_are_a_persons(store: Store) -> None:
    from capsule import git

    eve = store.beside(agent="eve")
    for ask in (
        lambda: git.open(eve),
        lambda: eve.engine.external_edits(),
        lambda: eve.incoming.version("conversations", "x"),
    ):
        with pytest.raises(Refused):
            ask()


@pytest.mark.parametrize("kind", ["inbound", "outbound", "sessions", "commands", "webhooks"])
def test_the_files_of_sessions_are_closed_to_an_agent(store: Store, kind: str) -> None:
    eve = store.beside(agent="eve").engine
    for ask in (
        lambda: eve.tracker(kind),
        lambda: eve.tracker(),
        lambda: eve.local.read(kind, "s_1"),
        lambda: eve.local.ids(kind),
        lambda: eve.local.edit(kind, "s_1", lambda before: {}),
        lambda: eve.local.delete(kind, "s_1"),
        lambda: eve.read(kind, "s_1"),
        lambda: eve.document(kind, "s_1"),
        lambda: eve.ids(kind),
        lambda: eve.version(kind, "s_1"),
        lambda: eve.put(kind, "s_1", b"{}", None),
        lambda: eve.create(kind, {"id": "s_1"}),
        lambda: eve.delete(kind, "s_1"),
        lambda: eve.transaction(kind, "s_1").__enter__(),
        lambda: eve.trash.restore(kind, "s_1", "token"),
    ):
        with pytest.raises((Refused, NotFound)):
            ask()
    assert eve.trash.entries(kind) == []


def test_what_an_agent_has_not_of_an_engine_is_refused_and_what_only_files_have_is_not_there(
    store: Store,
) -> None:
    eve = store.beside(agent="eve").engine
    for name in (name for name in dir(Engine) if not name.startswith("_")):
        assert hasattr(AgentView, name) or name in vars(eve)
        if getattr(AgentView, name, None) is AgentView._refuse:
            with pytest.raises(Refused):
                getattr(eve, name)("inbox", "s_1")
    for ask in (eve.leases.record_heartbeat, eve.leases.last_heartbeat):
        with pytest.raises(Refused):
            ask("inbound", "s_1")
    with pytest.raises(Refused):
        eve.files.names("inbox", "s_1")
    with pytest.raises(AttributeError):
        eve.storage  # type: ignore[attr-defined]  # noqa: B018
