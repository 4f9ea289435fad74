"""A client that lost the answer to an append asks again, and nothing is there twice."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from capsule import Store
from capsule.ids import keyed_message_id
from tests.mcp_server.talking import data, talking

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

#: A server that is killed right after it appended, before it answers; or right before.
DYING = f"""
import os, signal, sys
sys.path[:0] = [{str(Path(__file__).resolve().parents[2])!r}]
from capsule import Store
from capsule.mcp_server.server import build
from capsule.mcp_server.stores import OneStore
store = Store.open(sys.argv[1])
append = store.append_once
def dying(*args, **more):
    if sys.argv[2] == "after":
        append(*args, **more)
    os.kill(os.getpid(), signal.SIGKILL)
store.append_once = dying
build(OneStore(store), version="1").run()
"""


@pytest.mark.parametrize("killed", ["after", "before"])
async def test_a_retry_after_the_server_was_killed_before_it_answered_doubles_nothing(
    root: Path, store: Store, era: str, killed: str
) -> None:
    id = store.create(title="t").id
    store.unlock(id)
    arguments = {"id": id, "content": "once", "idempotencyKey": "k"}
    dying = StdioServerParameters(command=sys.executable, args=["-c", DYING, str(root), killed])
    async with Client(dying, mode=era) as client:
        with pytest.raises(MCPError):
            await client.call_tool("append_message", arguments)
    assert len(store.tail(id, 9)) == (1 if killed == "after" else 0)
    async with talking(store, era) as client:
        for repeated in (killed == "after", True):
            found = data(await client.call_tool("append_message", arguments))
            assert found["message"] == keyed_message_id(id, "k")
            assert found.get("repeated", False) == repeated
    assert [message.content for message in store.tail(id, 9)] == ["once"]
