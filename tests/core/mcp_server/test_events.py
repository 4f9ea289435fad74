"""`GET /events`: who gets which events, and how a stream goes on and ends."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from tests.core.cli.conftest import Program
from tests.core.mcp_server.serving import PATIENCE_S, Http, admit, bearer, over_http

pytestmark = pytest.mark.slow


class Stream:
    """The events of an open stream, and the cursor behind the last one."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer
        self.cursor = ""
        self.events: list[dict[str, Any]] = []

    def read(self) -> bool:
        """Read a line; whether there was one."""
        line = self._answer.readline().decode()
        name, _, value = line.rstrip("\n").partition(": ")
        if name == "id":
            self.cursor = value
        elif name == "data":
            self.events.append(json.loads(value))
        return bool(line)

    def until(self, message: str) -> None:
        """Read up to the event of a message."""
        while message not in self.messages:
            assert self.read()

    @property
    def messages(self) -> list[str]:
        return [message for event in self.events for message in event.get("messages", [])]


@contextmanager
def stream(server: Http, token: str, query: str = "", **headers: str) -> Iterator[Stream]:
    """An open stream, which has said where it begins."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    told = {name.replace("_", "-"): value for name, value in {**bearer(token), **headers}.items()}
    connection.request("GET", f"/events{query}", headers=told)
    answer = connection.getresponse()
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (
        200,
        "text/event-stream",
    )
    found = Stream(answer)
    while not found.cursor:
        assert found.read()
    try:
        yield found
    finally:
        answer.close()
        connection.close()


@pytest.fixture
def talking(root: Path) -> Iterator[Store]:
    with Store.open(root, keep_locks=False) as store:
        for agent in ("anna", "bob", "carl"):
            store.agents.register(agent)
        yield store


def test_a_subscriber_gets_the_events_of_what_its_agent_may_read_and_of_its_topics(
    root: Path, talking: Store
) -> None:
    tokens = {agent: admit(root, agent) for agent in ("anna", "bob", "carl")}
    with (
        over_http(root) as server,
        stream(server, tokens["bob"]) as bob,
        stream(server, tokens["carl"]) as carl,
        stream(server, tokens["anna"], "?topics=groups,channels") as anna,
    ):
        secret = talking.messages.send("CANARY", agent="anna", to="bob")
        group = talking.groups.create("Release", agent="anna", with_=["carl"])
        bob.until(
            str(secret.message)
        )  # Changes that one look finds have no order among conversations: so the
        while (
            not anna.events
        ):  # last event, which the others come before, is written when both were found.
            assert anna.read()
        open_ = talking.create(type="group")
        last = str(talking.append(open_.id, content="CANARY").id)
        bob.until(last)
        carl.until(last)
        assert {event["id"] for event in bob.events} == {secret.conversation, open_.id}
        assert {event["id"] for event in carl.events} == {group.id, open_.id}
        assert [event["id"] for event in anna.events] == [group.id]
        assert "CANARY" not in str([bob.events, carl.events, anna.events])


def test_a_stream_that_is_cut_goes_on_from_its_cursor_with_each_event_once(
    root: Path, talking: Store
) -> None:
    token = admit(root, "bob")
    id = talking.create(type="group").id
    written: list[str] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            written.append(str(talking.append(id, content="x").id))

    with over_http(root) as server:
        with stream(server, token) as first:
            cursor = first.cursor  # Of a client that got no event at all.
        heard: list[str] = []
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(20):
                with stream(server, token, last_event_id=cursor) as found:
                    for _ in range(
                        7
                    ):  # And so it is cut anywhere, between an id and its event too.
                        found.read()
                    while not found.events:
                        found.read()
                    heard += found.messages
                    cursor = found.events[-1]["cursor"]
        finally:
            stop.set()
            writer.join()
        written.append(
            str(talking.append(id, content="the last").id)
        )  # Which none of the streams before has read.
        with stream(server, token, f"?since={cursor}") as found:
            found.until(written[-1])
            heard += found.messages
    assert heard == written


def test_a_stream_ends_with_its_token_and_needs_one(root: Path, talking: Store) -> None:
    token = admit(root, "bob")
    with over_http(root) as server:
        with stream(server, token) as found:
            Program(root)("--store", str(root), "mcp", "tokens", "revoke", "bob")
            while found.read():
                pass
        for status, path, headers in (
            (401, "/events", bearer(token)),
            (401, "/events", bearer("")),
            (400, "/events", {"last_event_id": "x"}),
            (400, "/events?since=x", {}),
            (400, "/events?topics=weather", {}),
            (421, "/events", {"host": "evil.example.org"}),
            (403, "/events", {"origin": "http://evil.example.org"}),
            (405, "/events", {}),
        ):
            answer = server.request("POST" if status == 405 else "GET", path, None, **headers)
            assert answer[0] == status and json.loads(answer[2])["error"]["message"], (
                path,
                headers,
            )
