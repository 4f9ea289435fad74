"""An agent that subscribes hears of no conversation that it may not read."""

from __future__ import annotations

import anyio
import pytest
from mcp.client.subscriptions import listen

from capsule import Store
from tests.core.mcp_server.talking import acting, until
from tests.core.mcp_server.test_subscriptions import Hearing
from tests.core.store.making import make

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings(
        "ignore:resources/.*subscribe is removed:mcp.shared.exceptions.MCPDeprecationWarning"
    ),
]


@pytest.mark.both_eras
async def test_a_subscriber_hears_only_of_what_its_agent_may_read(store: Store, era: str) -> None:
    store.agents.register("eve")
    make(store, "team", "anna")
    make(store, "plan")
    uris = [f"capsule://conversations{path}" for path in ("/team", "/plan", "")]
    hearing = Hearing()

    async def write_and_wait() -> None:
        other = store.beside()
        other.append("team", content="hidden")
        other.changes()
        make(other, "theirs", "anna")
        other.changes()
        other.delete("theirs")
        other.append("plan", content="seen")
        await until(lambda: ("updated", uris[1]) in hearing.heard)
        tasks.cancel_scope.cancel()

    options = {"message_handler": hearing} if era == "legacy" else {}
    async with acting(store, "eve", era, **options) as client, anyio.create_task_group() as tasks:
        if era == "legacy":
            for uri in uris:
                await client.subscribe_resource(uri)
            await write_and_wait()
        else:
            async with listen(
                client.session, resource_subscriptions=uris, resources_list_changed=True
            ) as stream:
                tasks.start_soon(hearing.listen, stream)
                await write_and_wait()
    heard = [uri for _, uri in hearing.heard]
    assert set(heard) <= set(uris[1:]) and heard.count(uris[2]) <= 1
