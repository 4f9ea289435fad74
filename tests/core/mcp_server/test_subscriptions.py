"""Subscriptions: a client of either era hears what another process does, and nothing runs while nobody listens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.subscriptions import listen
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourcesListChanged, ResourceUpdated

from capsule import Store
from tests.core.mcp_server.talking import serving, until
from tests.processes import Child

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:resources/.*subscribe is removed:mcp.shared.exceptions.MCPDeprecationWarning"),
]

WRITES = """
    with Store.open(sys.argv[1]) as store:
        while True:
            what = hear()
            if what == "append":
                say(store.append(sys.argv[2], content="from afar").id)
            elif what == "create":
                say(store.create(title="new", type="group").id)
            else:
                break
"""


class Hearing:
    """A client's ear for the notifications of 2025."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str | None]] = []

    async def __call__(self, message: Any) -> None:
        root = getattr(message, "root", message)
        if getattr(root, "method", "").startswith("notifications/resources"):
            self.heard.append((root.method.removeprefix("notifications/resources/"), getattr(root.params, "uri", None)))


async def test_a_2025_client_hears_of_another_process(store: Store, root: Path) -> None:
    id = store.create(id="c1", title="t", type="group").id
    child = Child(WRITES, str(root), id)
    hearing = Hearing()
    server = serving(store)
    try:
        async with Client(server, mode="legacy", message_handler=hearing) as client:
            assert client.server_capabilities.resources is not None
            assert client.server_capabilities.resources.subscribe is True
            assert client.server_capabilities.resources.list_changed is True
            assert not server.following.followed
            await client.subscribe_resource("capsule://conversations/c1")
            assert server.following.followed
            child.say("append")
            child.hear()
            await until(lambda: ("updated", "capsule://conversations/c1") in hearing.heard)
            child.say("create")
            new = child.hear()
            await until(lambda: ("list_changed", None) in hearing.heard)
            assert ("updated", f"capsule://conversations/{new}") not in hearing.heard
            await client.unsubscribe_resource("capsule://conversations/c1")
            await until(lambda: not server.following.followed)
        child.say("end")
    finally:
        child.close()


async def test_a_2026_client_hears_of_another_process(store: Store, root: Path) -> None:
    id = store.create(id="c1", title="t", type="group").id
    child = Child(WRITES, str(root), id)
    server = serving(store)
    heard: list[Any] = []
    uris = ["capsule://conversations/c1", "capsule://conversations"]
    try:
        async with Client(server, mode="2026-07-28") as client:
            with pytest.raises(MCPError):
                await client.subscribe_resource("capsule://conversations/c1")
            async with listen(client.session, resource_subscriptions=uris, resources_list_changed=True) as stream:

                async def hear() -> None:
                    async for event in stream:
                        heard.append(event)

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(hear)
                    child.say("append")
                    child.hear()
                    await until(lambda: {ResourceUpdated(uri=uri) for uri in uris} <= set(heard))
                    child.say("create")
                    child.hear()
                    await until(lambda: ResourcesListChanged() in heard)
                    tasks.cancel_scope.cancel()
            await until(lambda: not server.following.followed)
        child.say("end")
    finally:
        child.close()


async def test_a_message_can_be_subscribed_to(store: Store) -> None:
    id = store.create(id="c1", title="t", type="group").id
    message = store.append(id, content="x")
    hearing = Hearing()
    server = serving(store)
    uri = f"capsule://conversations/c1/messages/{message.id}"
    async with Client(server, mode="legacy", message_handler=hearing) as client:
        await client.subscribe_resource(uri)
        with store.beside() as other:
            other.edits.message(id, str(message.id), "y")
        await until(lambda: ("updated", uri) in hearing.heard)


async def test_the_store_is_not_followed_after_the_last_listener_went_away(store: Store) -> None:
    server = serving(store)
    async with Client(server, mode="legacy") as client:
        for uri in ("file:///etc/passwd", "capsule://nothing", "capsule://conversations/c1/else"):
            with pytest.raises(MCPError, match="there is no resource"):
                await client.subscribe_resource(uri)
        await client.subscribe_resource("capsule://conversations")
        assert server.following.followed
    await until(lambda: not server.following.followed)


async def test_nothing_is_followed_for_a_client_that_never_asked(store: Store, era: str) -> None:
    server = serving(store)
    async with Client(server, mode=era) as client:
        await client.list_tools()
        await client.read_resource("capsule://conversations")
        assert not server.following.followed
