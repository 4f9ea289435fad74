"""The tools of an agent that a worker runs, as its model sees them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from capsule import Store, timestamps
from capsule.mcp_server.tools.answers import token_cost
from capsule.sessions.events import Route, destinations_event, inbound_message, reply_id
from capsule.sessions.mcp_tools import SESSION
from capsule.sessions.registry import AgentSetup, Registry, SessionRecord
from capsule.sessions.rules import schedules
from capsule.sessions.rules.messages import receive
from capsule.sessions.session import Session
from capsule.sessions.worker.toolkit import Toolkit
from tests.core.mcp_server.serving import Stdio, environment, over_stdio
from tests.core.mcp_server.talking import data, error, serving, talking, text

pytestmark = pytest.mark.anyio
HOME = Route("conversations", "direct_anna_bot")
NAMES = {
    "send_message",
    "send_file",
    "edit_message",
    "add_reaction",
    "ask_question",
    "schedule",
    "keep",
}
OPTIONS = [{"label": "Yes", "value": "y"}]


@asynccontextmanager
async def working(store: Store, era: str) -> AsyncIterator[Client]:
    """A client of a server that was started for the message `m1`, in one try."""
    server = serving(store, tools="session", toolkit=Toolkit(store, "s1", "m1"))
    async with talking(store, era, server=server) as client:
        yield client


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory() as store:
        session = Session.create(store.engine, "s1", "bot")
        asked = inbound_message(id="m1", content="Hello", sender="anna", route=HOME)
        session.write_inbound(lambda session_state: receive(session_state, [asked]))
        team = {"team": {"channel": "conversations", "place": "team"}}
        session.write_inbound(lambda session_state: [destinations_event(destinations=team)])
        yield store


async def test_the_tools_of_a_session_are_offered_alone_and_cost_under_2000_tokens(
    store: Store, era: str
) -> None:
    async with working(store, era) as client:
        tools = (await client.list_tools()).tools
        assert client.instructions == SESSION.instructions
    assert {tool.name for tool in tools} == NAMES
    assert not [
        tool.name
        for tool in tools
        if {"session", "from", "agent"} & set(tool.input_schema["properties"])
    ]
    listed = [tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools]
    assert token_cost(json.dumps(listed, separators=(",", ":"), ensure_ascii=False)) < 2000


async def test_what_is_kept_is_there_for_a_later_run(store: Store, era: str) -> None:
    async with working(store, era) as client:
        await client.call_tool("keep", {"action": "set", "key": "page", "value": "7\n8"})
    async with working(store, era) as client:
        kept = await client.call_tool("keep", {"action": "get"})
        assert (text(kept), data(kept)) == ('Kept:\npage: "7\\n8"', {"kept": {"page": "7\n8"}})
        assert text(await client.call_tool("keep", {"action": "clear"})) == "Kept: nothing."


@pytest.mark.both_eras
async def test_what_an_earlier_try_sent_is_told_and_not_sent_again(store: Store, era: str) -> None:
    id = reply_id("s1", "m1", 1)
    async with working(store, era) as client:
        sent = await client.call_tool("send_message", {"text": "On it.", "to": "team"})
    assert text(sent) == f"Noted as {id}."
    assert data(sent) == {"message": id}
    async with working(store, era) as client:
        sent = await client.call_tool("send_message", {"text": "I begin."})
        assert text(sent) == (
            f'Not sent: an earlier try at these messages sent this instead, as {id}: "On it.". '
            "Call again to send "
            "yours too."
        )
        assert data(sent) == {"message": id, "earlier": "On it."}
        refused = await client.call_tool("send_message", {"text": "x", "to": "eve"})
    assert "'eve' is not a destination" in error(refused)


async def test_a_question_waits_for_its_answer(store: Store, era: str) -> None:
    session = Session(store.engine, "s1")
    async with working(store, era) as client:
        waiting = await client.call_tool(
            "ask_question", {"text": "Ship?", "options": OPTIONS, "seconds": 0}
        )
        asked = reply_id("s1", "m1", 1)
        assert text(waiting) == f"No answer yet to question {asked}."
        said = inbound_message(
            id="x", content="Yes", kind="system", sender="anna", question=asked, value="y"
        )

        async with anyio.create_task_group() as tasks:
            answers: list[Any] = []

            async def ask() -> None:
                answers.append(await client.call_tool("ask_question", {"question": asked}))

            tasks.start_soon(ask)
            await anyio.sleep(0)
            session.write_inbound(lambda session_state: receive(session_state, [said]))
    assert text(answers[0]) == 'anna chose "y".'
    assert data(answers[0]) == {"question": asked, "value": "y", "from": "anna"}
    async with working(store, era) as client:
        again = await client.call_tool("ask_question", {"text": "Ship it?", "options": OPTIONS})
    assert data(again) == {"question": asked, "earlier": "Ship?"}
    assert text(again).endswith("or with question to wait for the answer.")
    assert len(session.read().outbound.messages) == 1


async def test_a_task_is_made_and_listed(store: Store, era: str) -> None:
    session, id = Session(store.engine, "s1"), reply_id("s1", "m1", 1)
    async with working(store, era) as client:
        task = {"prompt": "Report", "cron": "0 9 * * *", "timeZone": "Europe/Berlin"}
        assert (
            text(await client.call_tool("schedule", {"action": "make", **task}))
            == f"Noted as {id}."
        )
        now = timestamps.now()
        session.write_inbound(lambda session_state: schedules.run_next_task(session_state, now))
        (found,) = data(await client.call_tool("schedule", {"action": "list"}))["found"]
        assert (found["series"], found["prompt"], found["cron"]) == (id, "Report", "0 9 * * *")
        refused = await client.call_tool(
            "schedule", {"action": "make", "prompt": "x", "cron": "never"}
        )
    assert "'never'" in error(refused)


@pytest.mark.slow
@pytest.mark.sample
def test_the_environment_says_which_session_a_server_is_for(root: Path) -> None:
    with Store.open(root) as store:
        store.agents.register("bot")
        session = Session.create(store.engine, "s1", "bot")
        Registry(store.engine).edit(
            lambda state: state.put(AgentSetup("bot"), SessionRecord("s1", "bot"))
        )
        env = environment(CAPSULE_AGENT="bot", CAPSULE_SESSION="s1", CAPSULE_MESSAGE="m1")
        with over_stdio(root, "--tools", "session", env=env) as client:
            sent = client.call("send_message", text="On it.")
        assert sent["message"] == reply_id("s1", "m1", 1)
        assert [
            message.event["content"] for message in session.read().outbound.messages.values()
        ] == ["On it."]


@pytest.mark.slow
def test_a_server_for_a_session_sends_by_its_destinations_alone(root: Path) -> None:
    with Store.open(root) as store:
        store.agents.register("bot")
        store.agents.register("anna")
        Session.create(store.engine, "s1", "bot")
        Registry(store.engine).edit(
            lambda state: state.put(AgentSetup("bot"), SessionRecord("s1", "bot"))
        )
        env = environment(CAPSULE_AGENT="bot", CAPSULE_SESSION="s1", CAPSULE_MESSAGE="m1")
        with over_stdio(root, "--tools", "messaging", env=env) as client:
            refused = client.answer(client.send_call("send_message", text="x", to="anna"))["result"]
            assert refused["isError"] and "not a destination" in refused["content"][0]["text"]
    for wrong in ({"CAPSULE_AGENT": "bot"}, {"CAPSULE_AGENT": "eve", "CAPSULE_SESSION": "s1"}):
        server = Stdio("--tools", "session", root=root, env=environment(**wrong))
        assert server.ended() != 0
        server.close()


async def test_a_server_for_no_session_says_so(store: Store, era: str) -> None:
    async with working(store, era) as client:
        serving(store, tools="session")
        assert "for no session" in error(
            await client.call_tool("add_reaction", {"message": "m1", "emoji": "x"})
        )
