"""Whatever a client asks for, it gets what its agent may read, and hears of nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError
from mcp_types import Implementation, PromptReference, ResourceTemplateReference

from capsule import Store
from capsule.mcp_server.server import build
from capsule.mcp_server.stores import Stores
from tests.mcp_server.serving import admit, over_http
from tests.mcp_server.talking import until
from tests.messaging.making import make

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:resources/.*subscribe is removed:mcp.shared.exceptions.MCPDeprecationWarning"),
]
CONVERSATIONS = "capsule://conversations"


class OfEach(Stores):
    """The stores of a server whose clients are the agents that they are called after, as tokens name them."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._of = {agent: store.beside(agent=agent) for agent in ("anna", "eve")}

    def of(self, ctx: Any) -> Store:
        return self._of[ctx.session.client_params.client_info.name]


@asynccontextmanager
async def client_of(agent: str, store: Store, era: str, **options: Any) -> AsyncIterator[Client]:
    server = build(OfEach(store), version="1")
    async with Client(server, mode=era, client_info=Implementation(name=agent, version="1"), **options) as client:
        yield client


async def answers(client: Client) -> dict[str, str]:
    """Everything that a client is told of the conversations `team` and `plan`."""

    async def told(ask: Any) -> str:
        try:
            return str(await ask)
        except MCPError as error:
            return f"refused: {error}"

    ids = ResourceTemplateReference(uri=f"{CONVERSATIONS}/{{id}}")
    titles = ResourceTemplateReference(uri=f"{CONVERSATIONS}{{?tag,title}}")
    asked: dict[str, Any] = {
        "resources": client.list_resources(),
        "all": client.read_resource(CONVERSATIONS),
        "by title": client.read_resource(f"{CONVERSATIONS}?title=a"),
        "completed id": client.complete(ref=ids, argument={"name": "id", "value": ""}),
        "completed title": client.complete(ref=titles, argument={"name": "title", "value": ""}),
        "completed name": client.complete(
            ref=PromptReference(name="continue_conversation"), argument={"name": "conversation", "value": ""}
        ),
        "catch_up": client.get_prompt("catch_up", {"since": "2000-01-01"}),
        "list_conversations": client.call_tool("list_conversations", {}),
        "search": client.call_tool("search", {"query": "first"}),
    }
    return {name: await told(ask) for name, ask in asked.items()}


@pytest.mark.both_eras
async def test_what_is_listed_found_and_completed_is_what_the_agent_may_read(store: Store, era: str) -> None:
    for id in ("team", "plan"):
        make(store, id, *(["anna"] if id == "team" else []))
    for agent in ("anna", "eve"):
        async with client_of(agent, store, era) as client:
            for name, told in (await answers(client)).items():
                assert ("team" in told.lower()) == (agent == "anna"), (agent, name, told)
                assert "plan" in told.lower(), (agent, name, told)


@pytest.mark.both_eras
async def test_a_conversation_that_the_agent_is_not_in_is_refused_by_its_address_and_by_tools(
    store: Store, era: str
) -> None:
    make(store, "team", "anna")
    arguments = {
        "read_conversation": {"id": "team"},
        "append_message": {"id": "team", "content": "x"},
        "update_conversation": {"id": "team", "title": "x"},
        "branch": {"id": "team", "action": "fork"},
        "lock_conversation": {"id": "team"},
        "delete_conversation": {"id": "team", "confirm": True},
    }
    before = store.read("team")
    async with client_of("eve", store, era) as client:
        for address in ("team", "team/messages/@last"):
            with pytest.raises(MCPError) as refused:
                await client.read_resource(f"{CONVERSATIONS}/{address}")
            assert "first" not in str(refused.value)
        with pytest.raises(MCPError):
            await client.get_prompt("continue_conversation", {"conversation": "team"})
        for tool, given in arguments.items():
            result = await client.call_tool(tool, given)
            assert result.is_error, tool
            assert "first" not in str(result), tool
    assert store.read("team") == before


async def test_a_subscriber_of_2025_hears_only_of_what_its_agent_may_read(store: Store) -> None:
    await hears_only_of_plan(store, "legacy")


async def test_a_subscriber_of_2026_hears_only_of_what_its_agent_may_read(store: Store) -> None:
    await hears_only_of_plan(store, "2026-07-28")


async def hears_only_of_plan(store: Store, era: str) -> None:
    for id in ("team", "plan"):
        make(store, id, *(["anna"] if id == "team" else []))
    uris = [f"{CONVERSATIONS}/team", f"{CONVERSATIONS}/plan", CONVERSATIONS]
    heard: list[str] = []

    async def note(message: Any) -> None:
        root = getattr(message, "root", message)
        if "resources" in getattr(root, "method", ""):
            heard.append(str(getattr(root.params, "uri", "list")))

    async def hear(stream: Any) -> None:
        async for event in stream:
            heard.append(str(getattr(event, "uri", "list")))

    async def write_and_wait() -> None:
        other = store.beside()
        other.append("team", content="hidden")
        other.changes()
        make(other, "theirs", "anna")
        other.changes()
        other.delete("theirs")
        other.append("plan", content="seen")
        await until(lambda: f"{CONVERSATIONS}/plan" in heard)
        tasks.cancel_scope.cancel()

    options = {"message_handler": note} if era == "legacy" else {}
    async with client_of("eve", store, era, **options) as client, anyio.create_task_group() as tasks:
        if era == "legacy":
            for uri in uris:
                await client.subscribe_resource(uri)
            await write_and_wait()
        else:
            async with listen(client.session, resource_subscriptions=uris, resources_list_changed=True) as stream:
                tasks.start_soon(hear, stream)
                await write_and_wait()
    assert set(heard) <= {f"{CONVERSATIONS}/plan", CONVERSATIONS}
    assert heard.count(CONVERSATIONS) <= 1


@pytest.mark.slow
def test_over_http_the_agent_is_the_one_of_the_token(root: Path) -> None:
    with Store.open(root) as store:
        make(store, "team", "anna")
    tokens = {name: admit(root, name) for name in ("anna", "eve")}
    with over_http(root) as server:
        for agent, token in tokens.items():
            session = server.session(token)
            for method, given in (("resources/list", {}), ("resources/read", {"uri": CONVERSATIONS})):
                _, _, told = server.post(method, given, **session.headers)
                assert ("team" in str(told)) == (agent == "anna")
            _, _, told = server.post("resources/read", {"uri": f"{CONVERSATIONS}/team"}, **session.headers)
            assert ("first" in str(told)) == (agent == "anna")
            for called in (session.call, lambda tool, token=token, **given: server.modern_call(tool, token, **given)):
                found = called("read_conversation", id="team")
                assert bool(found.get("isError")) == (agent == "eve")
                assert ("team" in str(called("list_conversations"))) == (agent == "anna")
