"""A client that lost an answer asks again, and nothing is there twice."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError

from capsule import Store
from capsule.ids import keyed_message_id
from tests.core.mcp_server.talking import data, error, talking

pytestmark = [pytest.mark.slow, pytest.mark.anyio]

#: A server that is killed right after it appended, before it answers; or right before.
DYING = f"""
import os, signal, sys
sys.path[:0] = [{str(Path(__file__).resolve().parents[3])!r}]
from capsule import Store
from capsule.mcp_server.server import build
from capsule.mcp_server.stores import ClientStores
store = Store.open(sys.argv[1])
append = store.append_once
def dying(*args, **more):
    if sys.argv[2] == "after":
        append(*args, **more)
    os.kill(os.getpid(), signal.SIGKILL)
store.append_once = dying
build(ClientStores(store), version="1").run()
"""


@pytest.mark.parametrize("killed", ["after", "before"])
async def test_a_retry_after_the_server_was_killed_before_it_answered_doubles_nothing(
    root: Path, store: Store, era: str, killed: str
) -> None:
    id = store.create(title="t", type="group").id
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


async def test_a_retry_gets_the_conversation_that_the_first_call_made(
    store: Store, root: Path, era: str
) -> None:
    plan = store.create(
        id="plan-1", title="Plan", type="group", messages=[{"role": "user", "content": "a"}]
    ).id
    calls: list[tuple[str, dict[str, str]]] = [
        ("create_conversation", {"title": "New", "content": "Hello"}),
        ("create_conversation", {"title": "Empty", "idempotencyKey": "other"}),
        ("create_conversation", {"summaryOf": plan, "content": "Short."}),
        ("branch", {"id": plan, "action": "fork"}),
    ]
    made: set[str] = set()
    for tool, arguments in calls:
        arguments = {"idempotencyKey": "k", **arguments}
        found: list[str] = []
        for _ in range(2):
            with Store.open(root, keep_locks=False) as fresh:  # What is derived may go in between.
                async with talking(fresh, era) as client:
                    found.append(data(await client.call_tool(tool, arguments))["id"])
        assert found[0] == found[1], tool
        made.add(found[0])
    assert len(made) == 4
    assert set(store.ids()) == {plan, *made}


async def test_a_retry_gets_the_message_that_the_first_call_made_and_moves_nothing(
    store: Store, era: str
) -> None:
    talk = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    store.create(id="plan-1", title="Plan", type="group", messages=talk)
    async with talking(store, era) as client:
        for n, arguments in enumerate(
            ({"action": "edit", "message": "@0"}, {"action": "regenerate", "message": "@1"})
        ):
            arguments = {
                "id": "plan-1",
                "content": f"new {n}",
                "idempotencyKey": f"k{n}",
                **arguments,
            }
            first = data(await client.call_tool("branch", arguments))["leaf"]
            store.branches.switch("plan-1", "@1")
            before = store.read("plan-1")
            assert first == keyed_message_id("plan-1", f"k{n}")
            assert data(await client.call_tool("branch", arguments))["leaf"] == first
            assert store.read("plan-1") == before
            said = error(await client.call_tool("branch", {**arguments, "content": "other"}))
            assert "used before" in said
    assert len(store.load("plan-1").history) == 4


@pytest.mark.sample
async def test_a_key_is_for_one_conversation_and_not_for_one_that_was_deleted(
    store: Store, era: str
) -> None:
    async with talking(store, era) as client:
        first = {"content": "Hello", "idempotencyKey": "k"}
        id = data(await client.call_tool("create_conversation", first))["id"]
        said = error(await client.call_tool("create_conversation", {**first, "content": "Other"}))
        assert "used before" in said and id in said
        titled = {"title": "One", "idempotencyKey": "titled"}
        other = data(await client.call_tool("create_conversation", titled))["id"]
        assert "used before" in error(
            await client.call_tool("create_conversation", {**titled, "title": "Two"})
        )
        store.rename(other, "A person's")
        assert data(await client.call_tool("create_conversation", titled))["id"] == other
        store.delete(other)
        store.rename(id, "A person's")
        assert data(await client.call_tool("create_conversation", first))["title"] == "A person's"
        store.delete(id)
        assert "deleted since" in error(await client.call_tool("create_conversation", first))
        assert "idempotency key" in error(
            await client.call_tool("create_conversation", {"idempotencyKey": " "})
        )
    assert store.ids() == []


def test_many_creators_under_one_key_make_one_conversation(root: Path) -> None:
    start = threading.Barrier(8)

    def make(n: int) -> str:
        with Store.open(root, keep_locks=False) as own:
            start.wait()
            return own.create(title="t", key="k").id

    with ThreadPoolExecutor(8) as pool, Store.open(root) as store:
        assert set(pool.map(make, range(8))) == set(store.ids()) and len(store.ids()) == 1
