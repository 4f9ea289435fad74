"""Messaging between servers that are processes of their own, over stdio and over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capsule import Store
from tests.mcp_server.serving import Stdio, admit, environment, eventually, over_http, over_stdio

TOOLS = ("--tools", "messaging")


def texts(found: dict[str, Any]) -> list[str]:
    """The texts of an answer of `listen`."""
    return [message["content"] for message in found["messages"]]


def test_two_servers_over_stdio_talk_and_their_agents_are_online_while_they_run(root: Path) -> None:
    with Store.open(root) as store, over_stdio(root, *TOOLS, "--as", "anna") as anna:
        with over_stdio(root, *TOOLS, "--as", "bob") as bob:
            assert [(agent.id, agent.online) for agent in store.agents.list()] == [("anna", True), ("bob", True)]
            waiting = bob.send_call("listen")
            eventually(lambda: store.agents.get("bob").listening, "bob listens")
            sent = anna.call("send_message", text="Is it green?")
            assert sent["conversation"] == "direct_anna_bob"
            assert texts(bob.answer(waiting)["result"]["structuredContent"]) == ["Is it green?"]
            bob.call("send_message", to="anna", text="It is.", replyTo=sent["message"])
            assert texts(anna.call("listen")) == ["It is."]
            anna.call("send_message", to="bob", text="Good.")
            assert texts(bob.call("listen", seconds=0)) == ["Good."]
        assert not store.agents.get("bob").online
        with over_stdio(root, *TOOLS, "--as", "bob") as bob:  # He never said that he got it.
            assert texts(bob.call("listen")) == ["Good."]
            assert texts(bob.call("listen", seconds=0)) == []


def test_a_cancelled_call_and_a_killed_server_lose_nothing(root: Path) -> None:
    with Store.open(root) as store, over_stdio(root, *TOOLS, "--as", "bob") as bob:
        store.agents.register("anna")
        waiting = bob.send_call("listen")
        eventually(lambda: store.agents.get("bob").listening, "bob listens")
        bob.send("notifications/cancelled", {"requestId": waiting}, notify=True)
        eventually(lambda: not store.agents.get("bob").listening, "bob listens no more")
        store.messages.send("one", agent="anna", to="bob")
        assert texts(bob.call("listen")) == ["one"]
        bob.process.kill()
        bob.ended()
        assert not store.agents.get("bob").online
        assert store.messages.inbox(agent="bob").unread == 1


def test_without_a_name_the_agent_is_that_of_the_folder_which_the_server_is_started_in(
    root: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "Größe Web"
    folder.mkdir()
    with Store.open(root) as store:
        for _ in range(2):
            with over_stdio(root, *TOOLS, cwd=folder) as client:
                assert [agent["id"] for agent in client.call("list_agents")["agents"]] == ["grosse-web"]
        assert store.agents.get("grosse-web").project_path == str(folder)
        with over_stdio(root, *TOOLS, cwd=folder, env=environment(CAPSULE_AGENT="carl")) as client:
            listed = client.call("list_agents")["agents"]
        assert [agent["id"] for agent in listed if agent.get("you")] == ["carl"]


def test_a_name_that_is_none_of_an_agent_is_refused_at_the_start(root: Path) -> None:
    server = Stdio(*TOOLS, "--as", "Anna_B", root=root)
    try:
        assert server.ended() == 2
        assert "Anna_B" in server.said
    finally:
        server.close()


def test_over_http_the_token_says_who_it_is_and_the_session_how_long_they_are_online(root: Path) -> None:
    tokens = {name: admit(root, name) for name in ("anna", "bob")}
    with Store.open(root) as store, over_http(root, *TOOLS) as server:
        anna, bob = server.session(tokens["anna"]), server.session(tokens["bob"])
        bob.call("inbox")
        assert store.agents.get("bob").online
        sent = anna.call("send_message", to="bob", text="hello")["structuredContent"]
        assert sent["recipients"] == {"bob": "stored"}
        assert texts(bob.call("listen")["structuredContent"]) == ["hello"]
        # A client of 2026 has no session; it is the same agent, and bob's session did not say that it got this.
        answer = server.modern_call("listen", tokens["bob"], seconds=0)
        assert texts(answer["structuredContent"]) == ["hello"]
        assert texts(server.modern_call("listen", tokens["bob"], seconds=0)["structuredContent"]) == []
        assert anna.end() == 200
        eventually(lambda: not store.agents.get("anna").online, "anna is offline")
        assert store.agents.get("bob").online
