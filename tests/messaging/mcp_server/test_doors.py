"""One rule at every door: what an agent may not read is in no answer of a tool, resource or event,
over HTTP too.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from capsule import Store
from capsule.watch.events import event_json
from tests.core.mcp_server.serving import admit, over_http
from tests.core.mcp_server.talking import acting
from tests.core.mcp_server.test_events import stream

pytestmark = pytest.mark.anyio

#: In each text, title, name and description that carl may not read.
CANARY = "canary"


def people(store: Store) -> None:
    """Anna and bob of one project, carl of another, and dora who is linked to nobody."""
    for agent, project in (("anna", "api"), ("bob", "api"), ("carl", "web")):
        store.agents.register(agent, f"/srv/{project}")
    store.agents.register("dave", "/srv/api")
    store.agents.policy("dave", discoverable="project")


def say(store: Store, id: str) -> str:
    store.messages.send(f"the {CANARY} @carl", agent="anna", conversation=id, topic=CANARY)
    return id


#: What carl may not read, and bob may.
CLOSED: dict[str, Callable[[Store], str]] = {
    "direct": lambda store: (
        store.messages.send(f"the {CANARY}", agent="anna", to="bob").conversation
    ),
    "group": lambda store: say(
        store, store.groups.create(f"The {CANARY}", agent="anna", with_=["bob"]).id
    ),
    "private": lambda store: channel(store, access="private", members=["bob"]),
    "members": lambda store: channel(store, access="members", members=["bob"]),
    "open, of another project": lambda store: channel(store, members=["bob"]),
}


def channel(store: Store, **settings: Any) -> str:
    head = store.channels.create(CANARY, agent="anna", description=f"Of the {CANARY}", **settings)
    return say(store, head.id)


def calls(id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls that could give away a conversation."""
    yield "list_conversations", {}
    yield "search", {"query": "the"}
    yield "read_conversation", {"id": id}
    yield "read_messages", {"conversation": id}
    yield "read_messages", {"channel": id, "where": {"topic": {"$exists": True}}}
    yield "append_message", {"id": id, "content": "x"}
    yield "send_message", {"conversation": id, "text": "x"}
    yield "listen", {"seconds": 0}
    yield "listen", {"seconds": 0, "conversation": id}
    yield "inbox", {}
    yield "mentions", {"action": "list", "state": "all"}
    yield "watch_changes", {"id": id, "seconds": 0}
    yield "manage_channel", {"action": "list"}
    yield "manage_channel", {"action": "show", "channel": id}
    yield "manage_channel", {"action": "join", "channel": id}
    yield "manage_channel", {"action": "invite", "channel": id, "agents": ["carl"]}
    yield "manage_group", {"action": "list"}
    yield "manage_group", {"action": "add", "id": id, "agents": ["carl"]}
    yield "notes", {"action": "search", "text": "the", "other": "anna"}
    yield "list_agents", {}


def writes(id: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Calls that would change a conversation, or keep others out of it."""
    yield "update_conversation", {"id": id, "title": "x"}
    yield "branch", {"id": id, "action": "fork"}
    yield "lock_conversation", {"id": id}
    yield "delete_conversation", {"id": id, "confirm": True}


CONVERSATIONS = "capsule://conversations"
DIRECTORY = [f"capsule://directory/{what}" for what in ("channels", "agents", "projects")]


def others(client: Client, id: str) -> Iterator[tuple[bool, Awaitable[Any]]]:
    """Whatever else a client asks: whether it names the conversation, and what it is answered."""
    yield False, client.list_resources()
    for uri in (CONVERSATIONS, f"{CONVERSATIONS}?title=a", *DIRECTORY):
        yield False, client.read_resource(uri)
    for uri in (id, f"{id}/messages/@last"):
        yield True, client.read_resource(f"{CONVERSATIONS}/{uri}")
    yield False, client.get_prompt("catch_up", {"since": "2000-01-01"})
    yield True, client.get_prompt("continue_conversation", {"conversation": id})
    ids = ResourceTemplateReference(uri=f"{CONVERSATIONS}/{{id}}")
    titles = ResourceTemplateReference(uri=f"{CONVERSATIONS}{{?tag,title}}")
    named = PromptReference(name="continue_conversation")
    for ref, name in ((ids, "id"), (titles, "title"), (named, "conversation")):
        yield False, client.complete(ref=ref, argument={"name": name, "value": ""})


async def answers(client: Client, id: str) -> list[str]:
    """All that an agent gets by MCP which could give away a conversation; where it names the id
    itself, without it.
    """
    asked: list[tuple[bool, Awaitable[Any]]] = [
        (id in str(arguments), client.call_tool(tool, arguments)) for tool, arguments in calls(id)
    ]
    found = []
    for is_named, ask in (*asked, *others(client, id)):
        try:
            told = (await ask).model_dump_json()
        except MCPError as error:
            told = str(error)
        found.append(told.replace(id, "ID") if is_named else told)
    return found


@pytest.mark.both_eras
@pytest.mark.parametrize("kind", CLOSED)
async def test_no_door_gives_away_what_an_agent_may_not_read(kind: str, era: str) -> None:
    with Store.in_memory() as store:
        people(store)
        since = store.changes().cursor
        id = CLOSED[kind](store)
        store.notes.write(f"the {CANARY}", agent="anna", tags=[CANARY])
        before = store.read(id)
        async with acting(store, "bob", era) as bob, acting(store, "carl", era) as carl:
            told = await answers(carl, id)
            assert [each for each in told if CANARY in each or "dave" in each or id in each] == []
            assert store.beside(agent="carl").changes(since).changes == []
            for tool, arguments in writes(id):
                refused = await carl.call_tool(tool, arguments)
                assert refused.is_error and CANARY not in refused.model_dump_json().replace(
                    id, "ID"
                ), tool
            assert store.read(id) == before
            assert CANARY in "".join(await answers(bob, id))  # Last, as bob may let carl in.


@pytest.mark.slow
@pytest.mark.sample
def test_over_http_the_holder_of_the_token_gets_what_its_agent_may_read(root: Path) -> None:
    with Store.open(root, keep_locks=False) as store, over_http(root, "--tools", "all") as server:
        people(store)
        since = {
            agent: store.beside(keep_locks=False, agent=agent).changes().cursor
            for agent in ("carl", "bob")
        }
        closed = {CLOSED[kind](store) for kind in ("direct", "group", "open, of another project")}
        store.changes()  # What is noticed at once comes in no order.
        end = store.append(store.create(type="group").id, content="x")  # Which everybody may read.

        def told(agent: str) -> tuple[str, set[str]]:
            token = admit(root, agent)
            session = server.session(token)
            doors = (session.call, partial(server.modern_call, token=token))
            said = [
                json.dumps(door(tool, **more)).replace(id, "ID")
                for door in doors
                for id in closed
                for tool, more in calls(id)
            ]
            for id in closed:
                for uri in (CONVERSATIONS, f"{CONVERSATIONS}/{id}"):
                    _, _, read = server.post("resources/read", {"uri": uri}, **session.headers)
                    said.append(json.dumps(read).replace(id, "ID" if uri.endswith(id) else id))
            with stream(server, token, f"?since={since[agent]}") as found:
                found.until(str(end.id))
            return "".join(said), {event["id"] for event in found.events}

        words, ids = told("carl")
        assert CANARY not in words and not ids & closed
        words, ids = told("bob")
        assert CANARY in words and closed < ids


def test_an_event_of_a_channel_stops_with_the_link_that_let_the_agent_in() -> None:
    with Store.in_memory() as store:
        people(store)
        store.projects.link("web", "api", direction="out")
        since = store.changes().cursor
        id = channel(store)
        with store.beside(agent="carl") as carl:
            carl.channels.join(id)
            assert id in {event_json(change)["id"] for change in carl.changes(since).changes}
            store.projects.unlink("web", "api")
            assert id not in {event_json(change)["id"] for change in carl.changes(since).changes}
