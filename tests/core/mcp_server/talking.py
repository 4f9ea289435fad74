"""Talking to the server with the SDK's own client, in memory."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import anyio
from mcp import Client
from mcp.client.extension import advertise
from mcp_types import CallToolResult, ElicitResult, TextContent

from capsule import Store
from capsule.mcp_server.access import Access, Scope, Toolset
from capsule.mcp_server.server import CapsuleServer, build
from capsule.mcp_server.stores import ClientStores
from capsule.mcp_server.tools.answers import EXTENSION


@cache
def _server(tools: Toolset, agent: str) -> CapsuleServer:
    return build(ClientStores(Store.in_memory()), version="1.2.3", tools=tools)


def serving(
    store: Store,
    access: Access | None = None,
    tools: Toolset = "conversations",
    toolkit: Any = None,
) -> CapsuleServer:
    """The server of all tests, with this store from here on: its schemas cost more than
    most tests.
    """
    server = _server(tools, str(store.agent))
    ClientStores.__init__(server.stores, store, access, {"toolkit": toolkit})
    return server


@asynccontextmanager
async def talking(
    store: Store,
    era: str,
    *,
    server: CapsuleServer | None = None,
    takes: Sequence[str] = ("text", "data"),
    **options: Any,
) -> AsyncIterator[Client]:
    """A client of a server, by default of one for this store, which takes answers in
    these forms.
    """
    extensions = [advertise(EXTENSION, {"takes": list(takes)})] if takes else []
    async with Client(
        server or serving(store), mode=era, extensions=extensions, **options
    ) as client:
        yield client


@asynccontextmanager
async def acting(
    store: Store, agent: str, era: str = "legacy", scope: Scope = "admin", **options: Any
) -> AsyncIterator[Client]:
    """A client of a server that acts for an agent, with all tools."""
    with store.beside(agent=agent) as own:
        own.agents.serve(agent)
        server = serving(own, Access(agent, scope), "all")
        async with talking(own, era, server=server, **options) as client:
            yield client


async def until(true: Callable[[], bool]) -> None:
    """Wait for something that another task or process does."""
    with anyio.fail_after(60):
        while not true():
            await anyio.sleep(0.005)


class Answering:
    """A client's user, who answers every question alike and remembers them."""

    def __init__(self, action: str, content: dict[str, Any] | None = None) -> None:
        self.questions: list[str] = []
        self._answer = ElicitResult(action=action, content=content)  # type: ignore[arg-type]

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.questions.append(params.message)
        return self._answer


def text(result: Any) -> str:
    """The text of a tool's answer, its marks made the same in every run."""
    assert isinstance(result, CallToolResult)
    assert len(result.content) == 1
    assert isinstance(result.content[0], TextContent)
    said = result.content[0].text
    marks = re.search(r"lines \[([0-9a-f]{6,16}) \.\.\.\]", said)
    return said.replace(marks[1], "MARK") if marks else said


def error(result: Any) -> str:
    """The text of a tool's answer that is an error."""
    assert result.is_error, result
    assert result.structured_content is None
    return text(result)


def data(result: Any) -> dict[str, Any]:
    """The structured content of a tool's answer that is none."""
    assert not result.is_error, result
    found = result.structured_content
    assert isinstance(found, dict)
    return found
