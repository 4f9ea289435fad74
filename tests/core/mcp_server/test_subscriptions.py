"""Subscriptions: a client of either era hears what another process does, and nothing runs while
nobody listens.
"""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError

from capsule import Store
from tests.core.mcp_server.talking import serving, until

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings(
        "ignore:resources/.*subscribe is removed:mcp.shared.exceptions.MCPDeprecationWarning"
    ),
]


class Hearing:
    """A client's ear for the notifications of 2025, and for the events of a stream of 2026."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None]] = []

    async def __call__(self, message: Any) -> None:
        root = getattr(message, "root", message)
        if getattr(root, "method", "").startswith("notifications/resources"):
            self.heard.append(
                (
                    root.method.removeprefix("notifications/resources/"),
                    getattr(root.params, "uri", None),
                )
            )

    async def listen(self, stream: Any) -> None:
        async for event in stream:
            uri = getattr(event, "uri", None)
            self.heard.append(("updated" if uri else "list_changed", uri))


@pytest.mark.both_eras
async def test_a_client_hears_of_what_it_subscribed_to(store: Store, era: str) -> None:
    store.create(id="c1", title="t", type="group")
    message = str(store.append("c1", content="x").id)
    uris = [f"capsule://conversations{path}" for path in ("", "/c1", f"/c1/messages/{message}")]
    hearing, server = Hearing(), serving(store)

    async def write_and_wait() -> None:
        with store.beside() as other:
            other.edits.message("c1", message, "y")
            await until(lambda: {("updated", uri) for uri in uris} <= set(hearing.heard))
            new = other.create(title="new", type="group").id
            await until(lambda: ("list_changed", None) in hearing.heard)
        assert ("updated", f"capsule://conversations/{new}") not in hearing.heard

    async with Client(server, mode=era, message_handler=hearing) as client:
        assert not server.subscriptions.is_following
        if era == "legacy":
            capability = client.server_capabilities.resources
            assert capability is not None and capability.subscribe and capability.list_changed
            for uri in uris:
                await client.subscribe_resource(uri)
            assert server.subscriptions.is_following
            await write_and_wait()
            for uri in uris:
                await client.unsubscribe_resource(uri)
        else:
            with pytest.raises(MCPError):
                await client.subscribe_resource(uris[0])
            async with (
                listen(
                    client.session, resource_subscriptions=uris, resources_list_changed=True
                ) as stream,
                anyio.create_task_group() as tasks,
            ):
                tasks.start_soon(hearing.listen, stream)
                await write_and_wait()
                tasks.cancel_scope.cancel()
        await until(lambda: not server.subscriptions.is_following)


async def test_the_store_is_not_followed_after_the_last_listener_went_away(store: Store) -> None:
    server = serving(store)
    async with Client(server, mode="legacy") as client:
        for uri in ("file:///etc/passwd", "capsule://nothing", "capsule://conversations/c1/else"):
            with pytest.raises(MCPError, match="there is no resource"):
                await client.subscribe_resource(uri)
        await client.subscribe_resource("capsule://conversations")
        assert server.subscriptions.is_following
    await until(lambda: not server.subscriptions.is_following)


async def test_nothing_is_followed_for_a_client_that_never_asked(store: Store, era: str) -> None:
    server = serving(store)
    async with Client(server, mode=era) as client:
        await client.list_tools()
        await client.read_resource("capsule://conversations")
        assert not server.subscriptions.is_following
