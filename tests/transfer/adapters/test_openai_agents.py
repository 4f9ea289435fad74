"""A session of the OpenAI Agents SDK, by the SDK itself. `make test-all` installs it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.transfer.adapters.openai_agents import CapsuleSession
from tests.transfer.exchange import run_twice

pytestmark = pytest.mark.slow
ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {
        "role": "user",
        "content": [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": "x:"},
        ],
    },
    {"role": "developer", "content": "be brief", "custom": None},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"},
    {
        "type": "reasoning",
        "id": "rs_2",
        "summary": [{"type": "summary_text", "text": "think"}],
        "status": "completed",
    },
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}', "id": "fc_1"},
    {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "not JSON"},
    {"type": "function_call_output", "call_id": "c1", "output": "one"},
    {
        "type": "function_call_output",
        "call_id": "c2",
        "output": [{"type": "input_text", "text": "two"}],
    },
    {
        "type": "web_search_call",
        "id": "ws_1",
        "action": {"type": "search", "query": "q"},
        "status": "completed",
    },
    {"role": "user", "content": "half of \ud83d", "custom": ["\udc00"]},
    {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": "Done.", "annotations": [], "logprobs": []}],
        "capsule": {"of": "another"},
    },
]


def test_items_come_back_equal_and_are_messages_that_people_read() -> None:
    store = Store.in_memory()
    session = CapsuleSession("any / id", store)

    async def use() -> None:
        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items(ITEMS[:3])
        await session.add_items(ITEMS[3:])
        assert await session.get_items() == ITEMS
        assert await session.get_items(limit=2) == ITEMS[-2:]
        assert await session.get_items(limit=0) == []
        assert await session.pop_item() == ITEMS[-1]
        assert await CapsuleSession("any / id", store).get_items() == ITEMS[:-1]

    asyncio.run(use())

    history = store.document(session.conversation_id)["history"]
    assert [entry["content"] for entry in history if entry["role"] == "user"] == [
        "hi",
        "look",
        "half of \ufffd",
    ]
    assert history[5]["toolCalls"] == [{"id": "c1", "name": "f", "arguments": {"a": 1}}]
    assert (history[7]["role"], history[7]["toolCallId"]) == ("tool", "c1")

    async def clear() -> None:
        await session.clear_session()
        await session.clear_session()
        assert await session.get_items() == []
        await session.add_items(ITEMS[:1])
        assert await session.get_items() == ITEMS[:1]

    asyncio.run(clear())


def test_what_a_person_writes_into_the_conversation_is_an_item() -> None:
    store = Store.in_memory()
    session = CapsuleSession("s", store)
    calls = [
        {"id": "1", "name": "f", "arguments": {}},
        {"id": "2", "name": "g", "arguments": {"b": 2}},
    ]

    async def use() -> list[Any]:
        await session.add_items(ITEMS[:1])
        store.append(session.conversation_id, role="user", content="by hand")
        store.append(session.conversation_id, role="assistant", content="I call", toolCalls=calls)
        return await session.get_items()

    _, mine, said, first, second = asyncio.run(use())
    assert mine == {"role": "user", "content": "by hand"}
    assert said["content"] == [{"type": "output_text", "text": "I call"}]
    assert [(one["call_id"], one["arguments"]) for one in (first, second)] == [
        ("1", "{}"),
        ("2", '{"b":2}'),
    ]


def test_a_run_of_the_sdk_continues_the_conversation() -> None:
    agents = pytest.importorskip("agents", reason="make test-all installs openai-agents")
    from agents.memory import Session
    from agents.models.interface import Model
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    class Canned(Model):
        """A model that calls a tool, and then says how many items it saw."""

        async def get_response(
            self, system_instructions: Any, input: Any, *args: Any, **fields: Any
        ) -> Any:
            if input[-1].get("type") == "function_call_output":
                text = ResponseOutputText(
                    text=f"saw {len(input)}", type="output_text", annotations=[]
                )
                said: Any = ResponseOutputMessage(
                    id="m", content=[text], role="assistant", status="completed", type="message"
                )
            else:
                said = ResponseFunctionToolCall(
                    arguments="{}", call_id=f"c{len(input)}", name="look", type="function_call"
                )
            return agents.ModelResponse(output=[said], usage=agents.Usage(), response_id=None)

        def stream_response(self, *args: Any, **fields: Any) -> Any:
            raise NotImplementedError

    @agents.function_tool
    def look() -> str:
        """Look."""
        return "seen"

    store = Store.in_memory()
    session = CapsuleSession("s", store)
    agent = agents.Agent(name="a", model=Canned(), tools=[look])

    async def run() -> list[str]:
        options = {"session": session, "run_config": agents.RunConfig(tracing_disabled=True)}
        return [
            (await agents.Runner.run(agent, text, **options)).final_output
            for text in ("one", "two")
        ]

    assert isinstance(session, Session)
    assert asyncio.run(run()) == ["saw 3", "saw 7"]
    roles = [entry["role"] for entry in store.document(session.conversation_id)["history"]]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2


def test_two_processes_append_to_a_session_and_no_item_is_lost(tmp_path: Path) -> None:
    Store.init(tmp_path)
    script = """
        import asyncio, sys
        from capsule import Store
        from capsule.transfer.adapters.openai_agents import CapsuleSession

        async def add(session, who):
            for n in range(40):
                await session.add_items([{"role": "user", "content": f"{who} {n}"}])

        with Store.open(sys.argv[1]) as store:
            asyncio.run(add(CapsuleSession("s", store), sys.argv[2]))
    """
    run_twice(script, tmp_path)

    with Store.open(tmp_path) as store:
        items = asyncio.run(CapsuleSession("s", store).get_items())
    for who in "ab":
        own = [item["content"] for item in items if item["content"][0] == who]
        assert own == [f"{who} {n}" for n in range(40)]
    assert len(items) == 80
