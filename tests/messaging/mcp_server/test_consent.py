"""Who puts whom into a conversation by a tool: every combination of what two agents say of each
other.
"""

from __future__ import annotations

from typing import Any

import pytest

from capsule import Store
from tests.core.mcp_server.talking import acting
from tests.messaging.test_consent import PAIRS, expected, say

pytestmark = pytest.mark.anyio

#: Calls of anna that bring bob in, given the number of a try.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "group": ("manage_group", {"action": "create", "name": "g{}", "agents": ["bob"]}),
    "channel": (
        "manage_channel",
        {"action": "create", "channel": "c{}", "agents": ["bob"], "access": "private"},
    ),
    "invite": ("manage_channel", {"action": "invite", "channel": "news-{}", "agents": ["bob"]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
async def test_a_tool_brings_an_agent_in_with_the_consent_of_both(call: str) -> None:
    tool, arguments = CALLS[call]
    with Store.in_memory() as store:
        for id in ("anna", "bob"):
            store.agents.register(id)
        async with acting(store, "anna") as anna:
            for number, pair in enumerate(PAIRS):
                store.channels.create(f"news-{number}", agent="anna", access="members")
                say(store, "anna", "bob", pair)
                before = len(store.queries.participations("bob"))
                is_available = expected(*pair) == "available"
                given = {
                    key: text.format(number) if isinstance(text, str) else text
                    for key, text in arguments.items()
                }
                answer = await anna.call_tool(tool, given)
                assert answer.is_error != is_available, pair
                assert is_available or expected(*pair) in answer.model_dump_json(), pair
                assert len(store.queries.participations("bob")) == before + is_available, pair


async def test_an_agent_locks_no_channel_and_makes_no_global_default_by_a_tool() -> None:
    with Store.in_memory() as store:
        store.agents.register("anna")
        id = store.channels.create("news", agent="anna", scope="global").id
        async with acting(store, "anna") as anna:
            for tool, arguments in (
                ("lock_conversation", {"id": id}),
                ("manage_channel", {"action": "update", "channel": "news", "default": True}),
                (
                    "manage_channel",
                    {"action": "create", "channel": "all", "scope": "global", "default": True},
                ),
            ):
                answer = await anna.call_tool(tool, arguments)
                assert answer.is_error and "only a person may" in answer.model_dump_json()
        assert store.head(id).lock is None and not store.channels.get("news").channel.is_default
