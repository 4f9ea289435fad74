"""The tools of channels, mentions, permissions and notes, as the models of three agents
see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from mcp import Client

from capsule import Store
from tests.core.mcp_server.talking import acting, data, error, text

pytestmark = pytest.mark.anyio


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with three agents of one project."""
    with Store.in_memory() as store:
        for agent in ("anna", "bob", "carl"):
            store.agents.register(agent, "/srv/api")
        yield store


async def done(client: Client, tool: str, action: str, **more: Any) -> Any:
    """What a tool with actions found; one thing alone, if it is one."""
    found = data(await client.call_tool(tool, {"action": action, **more}))["found"]
    return found[0] if len(found) == 1 else found


async def said(client: Client, channel: str, words: str, **more: Any) -> str:
    """The id of a message in a channel."""
    answer = await client.call_tool("send_message", {"text": words, "channel": channel, **more})
    return str(data(answer)["message"])


async def read(client: Client, **arguments: Any) -> list[str]:
    found = data(await client.call_tool("read_messages", arguments))
    return [message["content"] for message in found["messages"]]


async def test_a_channel_is_made_found_joined_by_invitation_and_left(
    store: Store, era: str
) -> None:
    async with acting(store, "anna", era) as anna, acting(store, "bob", era) as bob:
        about = {"access": "members", "description": "What goes out", "topicRequired": True}
        made = await done(anna, "manage_channel", "create", channel="releases", **about)
        assert (made["name"], made["access"], made["in"], made["members"]) == (
            "releases",
            "members",
            True,
            1,
        )
        assert not (await done(bob, "manage_channel", "list"))["in"]
        assert "anna" in error(
            await bob.call_tool("manage_channel", {"action": "join", "channel": "releases"})
        )
        await done(
            anna, "manage_channel", "invite", channel="releases", agents=["bob"], canSend=False
        )
        error(
            await bob.call_tool("send_message", {"channel": "releases", "text": "x", "topic": "a"})
        )
        assert "topic" in error(
            await anna.call_tool("send_message", {"channel": "releases", "text": "x"})
        )
        await said(anna, "releases", "v2", topic="api")
        shown = await done(bob, "manage_channel", "show", channel="releases")
        assert (shown["members"], shown["topics"]) == (["anna", "bob"], ["api"])
        await done(anna, "manage_channel", "update", channel="releases", description="Other")
        assert (await done(bob, "manage_channel", "show", channel="releases"))[
            "description"
        ] == "Other"
        answer = await bob.call_tool("manage_channel", {"action": "leave", "channel": "releases"})
        assert text(answer).startswith("Left; ") and made["id"] in text(answer)
        await done(anna, "manage_channel", "remove", channel="releases", agents=["anna"])


async def test_a_channel_is_read_by_topic_thread_and_filter_in_pages(store: Store) -> None:
    async with acting(store, "anna") as anna, acting(store, "bob") as bob:
        await done(anna, "manage_channel", "create", channel="dev", agents=["bob"])
        root = await said(
            anna, "dev", "one", topic="api", confidence=0.9, intent="plan", model="m-1"
        )
        await said(bob, "dev", "two", thread=root, confidence=0.2)
        await said(anna, "dev", "three", topic="web", priority="high")
        assert await read(bob, channel="dev", topic="api") == ["one", "two"]
        assert await read(bob, channel="dev", thread=root) == ["one", "two"]
        assert await read(
            bob, channel="dev", where={"confidence": {"$gte": 0.5}, "model": "m-1"}
        ) == ["one"]
        page = data(await bob.call_tool("read_messages", {"channel": "dev", "last": 2}))
        assert [message["content"] for message in page["messages"]] == ["two", "three"]
        assert await read(bob, channel="dev", last=2, cursor=page["before"]) == ["one"]
        answer = text(await bob.call_tool("read_messages", {"channel": "dev", "topic": "web"}))
        assert "topic web, priority high]\nthree\n[MARK end]" in answer
        heard = data(
            await bob.call_tool("listen", {"seconds": 0, "channel": "dev", "topic": "web"})
        )["messages"]
        assert [(message["content"], message["topic"]) for message in heard] == [("three", "web")]
        assert "name one" in error(
            await bob.call_tool("read_messages", {"channel": "dev", "other": "anna"})
        )
        assert "name a channel" in error(await bob.call_tool("read_messages", {}))
        for where in ({"confidence": {"$near": 1}}, {"$where": "1=1"}):
            error(await bob.call_tool("read_messages", {"channel": "dev", "where": where}))


async def test_pages_that_do_not_fit_into_an_answer_are_shorter(store: Store) -> None:
    async with acting(store, "anna") as anna, acting(store, "bob") as bob:
        words = [f"{n} " + "word " * 1000 for n in range(8)]
        for each in words:
            await anna.call_tool("send_message", {"to": "bob", "text": each})
        found: list[str] = []
        arguments: dict[str, Any] = {"other": "anna"}
        while True:
            page = data(await bob.call_tool("read_messages", arguments))
            found = [message["content"] for message in page["messages"]] + found
            if "before" not in page:
                break
            arguments["cursor"] = page["before"]
        assert found == words


async def test_mentions_are_listed_by_kind_and_done(store: Store, era: str) -> None:
    async with acting(store, "anna", era) as anna, acting(store, "bob", era) as bob:
        await done(anna, "manage_channel", "create", channel="dev", agents=["bob"])
        arguments = {"channel": "dev", "text": "@bob --review, @carl, @nobody"}
        answer = await anna.call_tool("send_message", arguments)
        assert "nobody called: nobody" in text(answer) and "no member: carl" in text(answer)
        assert data(answer)["mentions"]["valid"] == ["bob"]
        await done(bob, "manage_channel", "notify", channel="dev", notify="mentions")
        await said(anna, "dev", "noise")
        assert data(await bob.call_tool("inbox", {}))["unread"] == 1
        for notify in ("none", "all"):
            await done(bob, "manage_channel", "notify", channel="dev", notify=notify)
            assert data(await bob.call_tool("inbox", {}))["unread"] == 2
        message = data(answer)["message"]
        mention = await done(bob, "mentions", "list", kind="review")
        assert (mention["id"], mention["from"], mention["state"]) == (message, "anna", "unread")
        await bob.call_tool("listen", {"seconds": 0})
        await bob.call_tool("listen", {"seconds": 0})
        assert (await done(bob, "mentions", "list"))["state"] == "read"
        await done(bob, "mentions", "done", message=message)
        assert await done(bob, "mentions", "list") == []
        assert (await done(bob, "mentions", "list", state="done"))["id"] == message
        assert message in error(
            await anna.call_tool("mentions", {"action": "done", "message": message})
        )


async def test_who_may_message_an_agent_is_its_own_to_say(store: Store, era: str) -> None:
    async with acting(store, "anna", era) as anna, acting(store, "bob", era) as bob:
        await done(bob, "manage_permissions", "set", dm="restricted", discoverable="project")
        assert "permission" in error(
            await anna.call_tool("send_message", {"to": "bob", "text": "x"})
        )
        known = {
            agent["id"]: agent for agent in data(await anna.call_tool("list_agents", {}))["agents"]
        }
        assert known["bob"]["availability"] == "requires permission" and "dm" not in known["bob"]
        assert "bob, online, project" in text(await anna.call_tool("list_agents", {}))
        mine = await done(bob, "manage_permissions", "show")
        assert (mine["dmPolicy"], mine["discoverable"]) == ("restricted", "project")
        assert [request["agent"] for request in mine["requests"]] == ["anna"]
        await done(bob, "manage_permissions", "allow", other="anna", reason="asked nicely")
        assert not (await anna.call_tool("send_message", {"to": "bob", "text": "x"})).is_error
        mine = await done(bob, "manage_permissions", "block", other="anna", reason='no"ise')
        assert mine["dm"]["anna"]["permission"] == "block" and mine["requests"] == []
        assert '"no\\"ise"' in text(await bob.call_tool("manage_permissions", {"action": "show"}))
        error(await anna.call_tool("send_message", {"to": "bob", "text": "x"}))
        assert (await done(bob, "manage_permissions", "reset", other="anna"))["dm"] == {}
        assert "no agent ''" in error(
            await bob.call_tool("manage_permissions", {"action": "allow"})
        )


async def test_notes_are_found_by_tags_and_words_and_by_those_that_are_allowed(
    store: Store, era: str
) -> None:
    async with acting(store, "anna", era) as anna, acting(store, "bob", era) as bob:
        await done(anna, "notes", "write", text="the token rotates", tags=["ops"], session="s1")
        await done(anna, "notes", "write", text="the page is slow", tags=["web"])
        assert (await done(anna, "notes", "search", tags=["ops"]))["text"] == "the token rotates"
        written = await anna.call_tool(
            "notes", {"action": "write", "text": "three", "tags": ["a", "b c"]}
        )
        assert "tags: a; " in text(written)
        assert len(await done(anna, "notes", "search", tags=["ops", "web"], anyTag=True)) == 2
        assert await done(anna, "notes", "search", tags=["ops", "web"]) == []
        assert (await done(anna, "notes", "search", text="slow"))["text"] == "the page is slow"
        error(await bob.call_tool("notes", {"action": "search", "other": "anna"}))
        await done(anna, "notes", "share", other="bob")
        assert (await done(bob, "notes", "search", other="anna", session="s1"))[
            "text"
        ] == "the token rotates"
        await done(anna, "notes", "unshare", other="bob")
        error(await bob.call_tool("notes", {"action": "search", "other": "anna"}))


async def test_the_directory_is_read_as_a_resource(store: Store) -> None:
    async with acting(store, "anna") as anna:
        await done(anna, "manage_channel", "create", channel="dev")
        for what, name in (("agents", "carl"), ("channels", "dev"), ("projects", "/srv/api")):
            (contents,) = (await anna.read_resource(f"capsule://directory/{what}")).contents
            assert name in contents.model_dump_json()
