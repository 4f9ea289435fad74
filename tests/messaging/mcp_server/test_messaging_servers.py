"""Messaging between servers that are processes of their own, over stdio and over HTTP."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.messaging import doorbells
from capsule.messaging.doorbells import DoorbellTarget
from tests.core.mcp_server.serving import (
    PATIENCE_S,
    Stdio,
    admit,
    environment,
    eventually,
    over_http,
    over_stdio,
)

pytestmark = pytest.mark.slow

TOOLS = ("--tools", "messaging")


def texts(found: dict[str, Any]) -> list[str]:
    """The texts of an answer of `listen`."""
    return [message["content"] for message in found["messages"]]


@pytest.mark.files
def test_two_servers_over_stdio_talk_and_their_agents_are_online_while_they_run(root: Path) -> None:
    with Store.open(root) as store, over_stdio(root, *TOOLS, "--as", "anna") as anna:
        with over_stdio(root, *TOOLS, "--as", "bob") as bob:
            assert [(agent.id, agent.online) for agent in store.agents.list()] == [
                ("anna", True),
                ("bob", True),
            ]
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


@pytest.mark.files
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
                assert [agent["id"] for agent in client.call("list_agents")["agents"]] == [
                    "grosse-web"
                ]
        assert store.agents.get("grosse-web").project_path == str(folder)
        with over_stdio(root, *TOOLS, cwd=folder, env=environment(CAPSULE_AGENT="carl")) as client:
            listed = client.call("list_agents")["agents"]
        assert [agent["id"] for agent in listed if agent.get("you")] == ["carl"]


def test_a_name_means_the_agent_of_the_folder_which_the_server_is_started_in(
    root: Path, tmp_path: Path
) -> None:
    folders = [tmp_path / "api", tmp_path / "web"]
    with Store.open(root) as store:
        for folder in folders:
            folder.mkdir()
            store.agents.register(project=str(folder))
    ids = []
    for folder, name, said in (
        (0, "bob", "bob in the project"),
        (1, "bob", "is a new agent"),
        (0, "bob@web", ""),
    ):
        with over_stdio(root, *TOOLS, "--as", name, cwd=folders[folder]) as server:
            ids += [
                agent["id"] for agent in server.call("list_agents")["agents"] if agent.get("you")
            ]
            assert said in server.said
    assert ids[0] == "bob" and ids[1] == ids[2] and ids[1].startswith("bob-")


def test_a_name_that_is_none_of_an_agent_is_refused_at_the_start(root: Path) -> None:
    server = Stdio(*TOOLS, "--as", "Anna_B", root=root)
    try:
        assert server.ended() == 2
        assert "Anna_B" in server.said
    finally:
        server.close()


def test_over_http_the_token_says_who_it_is_and_the_session_how_long_they_are_online(
    root: Path,
) -> None:
    tokens = {name: admit(root, name) for name in ("anna", "bob")}
    with Store.open(root) as store, over_http(root, *TOOLS) as server:
        anna, bob = server.session(tokens["anna"]), server.session(tokens["bob"])
        assert store.agents.get("bob").online
        sent = anna.call("send_message", to="bob", text="hello")["structuredContent"]
        assert sent["recipients"] == {"bob": "stored"}
        assert texts(bob.call("listen")["structuredContent"]) == ["hello"]
        # A client of 2026 has no session; it is the same agent, and bob's session did not say that
        # it got this.
        answer = server.modern_call("listen", tokens["bob"], seconds=0)
        assert texts(answer["structuredContent"]) == ["hello"]
        assert (
            texts(server.modern_call("listen", tokens["bob"], seconds=0)["structuredContent"]) == []
        )
        assert anna.end() == 200
        eventually(lambda: not store.agents.get("anna").online, "anna is offline")
        assert store.agents.get("bob").online


def test_an_answer_that_did_not_reach_its_client_over_http_is_not_acknowledged(root: Path) -> None:
    token = admit(root, "bob")
    with Store.open(root) as store, over_http(root, *TOOLS) as server:
        store.agents.register("anna")
        bob = server.session(token)
        call = {
            "jsonrpc": "2.0",
            "id": 7,
            "method": "tools/call",
            "params": {"name": "listen", "arguments": {}},
        }
        body = json.dumps(call)
        headers = {
            **bob.headers,
            "host": f"{server.host}:{server.port}",
            "content-length": str(len(body)),
        }
        lines = [
            "POST /mcp HTTP/1.1",
            *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()),
        ]
        with socket.create_connection((server.host, server.port)) as connection:
            connection.sendall("\r\n".join([*lines, "", body]).encode())
            eventually(lambda: store.agents.get("bob").listening, "bob listens")
        store.messages.send("one", agent="anna", to="bob")
        eventually(lambda: not store.agents.get("bob").listening, "the call is over")
        assert texts(bob.call("listen", seconds=0)["structuredContent"]) == ["one"]
        assert texts(bob.call("listen", seconds=0)["structuredContent"]) == []


def test_a_server_rings_for_its_agent_when_mail_comes_and_it_does_not_listen(
    root: Path, tmp_path: Path
) -> None:
    rung = tmp_path / "rung"
    program = shlex.join(
        [sys.executable, "-c", f"import sys; open({str(rung)!r}, 'a').write(sys.stdin.read())"]
    )
    with Store.open(root) as store, over_stdio(root, *TOOLS, "--as", "bob"):
        store.agents.register("anna")
        doorbells.register(store, "bob", DoorbellTarget("command", {"command": program}))
        group = store.groups.create("Release", agent="anna", with_=["bob"])
        store.append(
            group.id, content="hello", **{"from": "anna"}
        )  # Nobody rings who writes so, as git or an editor.
        eventually(
            lambda: rung.exists() and "1 unread from anna" in rung.read_text(), "the bell is rung"
        )
        assert "hello" not in rung.read_text()


def test_a_server_in_another_folder_serves_the_agent_and_leaves_that_folder_alone(
    root: Path, tmp_path: Path
) -> None:
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    with Store.open(root) as store:
        store.agents.register("anna")
        store.agents.register("bob", str(home))
        limits = {"process._RELEASE_S": PATIENCE_S}
        for name, cwd in (("anna", home), ("carl", other), ("bob", other)):
            with over_stdio(root, *TOOLS, "--as", name, cwd=cwd, limits=limits) as server:
                sender = "bob" if name == "anna" else "anna"
                store.messages.send("hello", agent=sender, to=name)
                assert texts(server.call("listen", seconds=0)) == ["hello"]
                assert [agent.id for agent in store.agents.list() if agent.online] == [name]
                assert not list(home.iterdir())
                server.leave()
                assert server.ended() == 0
        paths = {agent.id: agent.project_path for agent in store.agents.list()}
        assert paths == {"anna": None, "bob": str(home), "carl": None}
        assert not list(other.iterdir())
        note = (home / "CLAUDE.md").read_text()
        assert "1 from anna" in note and "hello" not in note
