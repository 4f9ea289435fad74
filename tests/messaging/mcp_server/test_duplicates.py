"""A call that was made before is recognised and told, and carried out all the same."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from mcp_types import CallToolResult

from capsule import Store
from capsule.mcp_server import server
from tests.core.mcp_server.talking import acting, data, text

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("agents")]
HELLO = {"text": "Hello", "to": "bob"}


async def send(client: Client, **inputs: Any) -> CallToolResult:
    return await client.call_tool("send_message", {**HELLO, **inputs})


def is_told(answer: CallToolResult) -> bool:
    told = "You made the same call" in text(answer)
    assert told == ("sameCallSecondsAgo" in data(answer))
    return told


@pytest.mark.both_eras
async def test_the_same_call_in_the_same_session_is_told_and_not_hidden(
    store: Store, era: str
) -> None:
    async with acting(store, "anna", era) as anna:
        assert [is_told(await send(anna)) for _ in range(3)] == [False, True, True]
        assert not is_told(await send(anna, text="Hello!"))
        assert not is_told(await send(anna, to="carl"))
    assert [message.content for message in store.load("direct_anna_bob").history] == [
        "Hello",
        "Hello",
        "Hello",
        "Hello!",
    ]


async def test_the_calls_of_two_agents_and_of_two_sessions_are_never_taken_for_one(
    store: Store,
) -> None:
    async with acting(store, "anna") as anna, acting(store, "carl") as carl:
        assert [is_told(await send(client)) for client in (anna, carl, anna, carl)] == [
            False,
            False,
            True,
            True,
        ]
    async with acting(store, "anna") as anna:
        assert not is_told(await send(anna))


async def test_a_call_is_known_for_ten_minutes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with acting(store, "anna") as anna:
        await send(anna)
        monkeypatch.setattr(server, "_MEMORY_S", 0.0)
        assert not is_told(await send(anna))


async def test_what_makes_nothing_twice_and_what_failed_is_no_call_made_before(
    store: Store,
) -> None:
    async with acting(store, "anna") as anna:
        for name, inputs in (
            ("inbox", {}),
            ("list_agents", {}),
            ("set_status", {"text": "busy"}),
            ("listen", {"seconds": 0}),
        ):
            assert not any([is_told(await anna.call_tool(name, inputs)) for _ in range(2)]), name
        assert not any([is_told(await send(anna, idempotencyKey="k1")) for _ in range(2)])
        assert (await send(anna, to="dora")).is_error
        store.agents.register("dora")
        assert not is_told(await send(anna, to="dora"))


def test_only_so_many_calls_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_MAX_CALLS", 2)
    made = server.RecentCalls()
    assert [
        made.seconds_since_same_call("anna", "s", "send", {"n": number}) for number in (1, 2, 3, 1)
    ] == [None] * 4
    assert made.seconds_since_same_call("anna", "s", "send", {"n": 1}) is not None
