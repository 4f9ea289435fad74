"""What an agent might try with a file that it edits as a whole, or with a version that it says is
an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from capsule import NotFound, Refused, Store
from capsule.engines.interface import CONVERSATIONS
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean_document
from tests.core.store.making import EARLY, LATE, channel, make

Document = dict[str, Any]
NEWS, NOW = "channel_global_news", "2030-01-01T00:00:00.000Z"


AGENTS = dict.fromkeys(("anna", "bob", "carl", "eve"))


def edit(store: Store, agent: str, id: str, change: Callable[[Document], object]) -> None:
    """Save a conversation as an agent's editor does."""
    data = store.read(id)
    document = codec.decode(data, id)
    change(document)
    store.beside(agent=agent).edits.rewrite(id, codec.encode(document), data)


def item(document: Document, agent: str) -> Document:
    found: Document = next(
        each for each in document["metadata"]["participants"] if agent in each.values()
    )
    return found


@pytest.mark.parametrize(
    "added", ["carl", {"id": "carl", "joinedAt": EARLY}, {"id": "eve", "joinedAt": EARLY}]
)
def test_who_is_added_to_a_group_reads_nothing_of_before(store: Store, added: Any) -> None:
    make(
        store,
        "team",
        "anna",
        {"id": "bob", "joinedAt": LATE},
        {"id": "eve", "joinedAt": EARLY, "leftAt": LATE},
    )
    store.append("team", content="later")

    def change(document: Document) -> None:
        whom, about = added if isinstance(added, str) else added["id"], document["metadata"]
        others = [
            each for each in about["participants"] if isinstance(each, str) or each["id"] != whom
        ]
        about["participants"] = [*others, added]

    with pytest.raises(Refused):
        edit(store, "bob", "team", change)


def test_a_manager_who_was_taken_out_does_not_come_back_as_one(store: Store) -> None:
    channel(store, NEWS, {"id": "anna", "canManage": True})
    store.channels.invite(NEWS, ["carl"], can_manage=True)
    store.channels.remove(NEWS, "carl")

    def back(document: Document) -> None:
        item(document, "carl").update(leftAt=None, joinedAt=NOW, invitedBy="self")

    with pytest.raises(Refused):
        edit(store, "carl", NEWS, back)
    assert store.beside(agent="carl").channels.join(NEWS).participants[-1].can_manage is None


def test_nobody_says_of_another_that_it_stays_out_for_good(store: Store) -> None:
    channel(store, NEWS, {"id": "anna", "canManage": True}, {"id": "eve", "joinedAt": EARLY})
    with pytest.raises(Refused):
        edit(
            store,
            "anna",
            NEWS,
            lambda document: item(document, "eve").update(leftAt=NOW, optedOutAt=NOW),
        )
    store.beside(agent="anna").channels.remove(NEWS, "eve")


@pytest.mark.parametrize("by", ["auto", "user"])
def test_who_edits_its_message_renames_no_channel_by_that(store: Store, by: str) -> None:
    channel(store, NEWS, "eve")
    agent = store.beside(agent="eve")
    agent.append(NEWS, content="mine")
    version = deepcopy(store.document(NEWS))
    version["title"], version["metadata"]["titleSetBy"], version["history"][0]["content"] = (
        "Other",
        by,
        "mine!",
    )
    with pytest.raises(Refused):
        agent.versions.restore(NEWS, version)


@pytest.mark.parametrize(
    "about",
    [
        {"type": "group", "participants": ["eve"]},
        {
            "type": "channel",
            "participants": ["eve"],
            "createdBy": "eve",
            "channel": {"name": "mine", "scope": "global"},
        },
    ],
)
def test_no_agent_closes_what_is_open_to_all(store: Store, about: Document) -> None:
    make(store, "plan", type="chat")
    with pytest.raises(Refused):
        edit(store, "eve", "plan", lambda document: document["metadata"].update(about))


@pytest.mark.parametrize(
    ("type", "id"), [("chat", "plan"), ("group", "team"), ("direct", "direct_bob_eve")]
)
def test_a_version_of_what_is_not_there_puts_no_words_into_the_mouths_of_others(
    store: Store, type: str, id: str
) -> None:
    make(store, id, "bob", "eve", type=type)
    version = store.document(id)
    with Store.in_memory() as other, pytest.raises(Refused):
        other.beside(agent="eve").versions.restore(id, version)
    version["history"][0]["from"] = "eve"
    with Store.in_memory() as other:
        assert other.beside(agent="eve").versions.restore(id, version).head.id == id


def test_a_merge_is_no_door_for_an_agent(store: Store) -> None:
    make(store, "team", "anna", "eve")
    base = codec.encode(clean_document(store.document("team"), "team"))
    for theirs in (None, base.replace(b"first", b"other")):
        with pytest.raises(Refused):
            store.beside(agent="eve").incoming.bring_in(CONVERSATIONS, "team", base, theirs)


def test_a_store_that_acts_for_an_agent_becomes_no_other(store: Store) -> None:
    eve = store.beside(agent="eve")
    assert (eve.beside().agent, eve.beside(agent="eve").agent) == ("eve", "eve")
    with pytest.raises(Refused):
        eve.beside(agent="anna")


def test_an_agent_of_a_project_does_not_become_one_of_none(store: Store) -> None:
    zed = store.agents.register("zed", "/home/api")
    agents = store.beside(agent="zed").agents
    with pytest.raises(Refused):
        agents.forget("zed")
    assert agents.register("zed").project == zed.project


@pytest.mark.parametrize(
    "copy", [lambda store: store.forks.create(NEWS), lambda store: store.summaries.add(NEWS, "s")]
)
def test_nobody_lets_others_into_a_copy_of_what_it_was_invited_to(
    store: Store, copy: Callable[[Store], Any]
) -> None:
    channel(
        store, NEWS, "anna", {"id": "eve", "joinedAt": EARLY, "invitedBy": "anna"}, access="members"
    )
    id = copy(store.beside(agent="eve")).id
    invited = {"id": "carl", "joinedAt": NOW, "invitedBy": "eve"}
    with pytest.raises(Refused):
        edit(
            store, "eve", id, lambda document: document["metadata"]["participants"].append(invited)
        )
    assert store.channels.list(agent="carl")[0].id == NEWS
    assert len(store.channels.list(agent="carl")) == 1


def _appends(store: Store) -> None:
    store.beside(agent="eve").append("team", content="x", timestamp=NOW)


def _edits(store: Store) -> None:
    said = {"role": "user", "content": "x", "timestamp": NOW, "id": "new", "from": "eve"}
    edit(store, "eve", "team", lambda document: document["history"].append(said))


@pytest.mark.parametrize("write", [_appends, _edits])
def test_no_message_is_of_a_later_time_and_shows_who_comes_back_what_was_said_meanwhile(
    store: Store, write: Callable[[Store], None]
) -> None:
    make(store, "team", "anna", "eve")
    with pytest.raises(Refused):
        write(store)
    make(store, "plan")
    store.beside(agent="eve").append("plan", content="x", timestamp=NOW)


@pytest.mark.parametrize(
    "write",
    [
        lambda eve, which: eve.edits.message("team", which, "x"),
        lambda eve, which: eve.branches.switch("team", which),
        lambda eve, which: eve.branches.revise("team", which, "x"),
        lambda eve, which: eve.branches.remove("team", which),
        lambda eve, which: eve.branches.remove("team", which, expected=["x"]),
    ],
)
def test_a_change_names_no_message_that_the_agent_may_not_read(
    store: Store, write: Callable[[Store, str], object]
) -> None:
    make(store, "team", "anna", {"id": "eve", "joinedAt": NOW})
    eve = store.beside(agent="eve")
    for which in ("@0", "team-first", "team-"):
        with pytest.raises(NotFound):
            write(eve, which)
