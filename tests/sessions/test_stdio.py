"""Messages as lines of JSON: each is answered, and a line that is none stops nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence

from capsule.errors import InvalidInput
from capsule.sessions.adapters.interface import OutgoingFile, OutgoingMessage, ReceivedMessage
from capsule.sessions.adapters.programs import StdioAdapter


class Host:
    def __init__(self) -> None:
        self.arrived: list[ReceivedMessage] = []

    def receive(self, arrived: Sequence[ReceivedMessage]) -> None:
        if arrived[0].id == "other":
            raise InvalidInput("other content")
        self.arrived += arrived


def test_lines_come_in_and_go_out_and_each_is_answered() -> None:
    host, written, ended = Host(), [], threading.Event()
    lines = [
        (
            b'{"id": "m1", "text": "Hello.", "from": "anna", "place": "desk", "group": true, '
            b'"mentions": ["helper"]}\n'
        ),
        b"\n",
        b"no json\n",
        b'{"text": 1}\n',
        b'{"text": "x", "hops": -1}\n',
        b'{"text": "x", "id": "other"}\n',
        b'{"text": "by itself"}\n',
    ]
    adapter = StdioAdapter(lines, written.append, ended.set)
    adapter.start(host)
    assert ended.wait(60)
    said = [json.loads(line) for line in written]
    assert [one.get("code") for one in said] == [None, 2, 2, 2, 2, None]
    assert said[0] == {"received": "m1"} and said[-1] == {"received": host.arrived[1].id}
    first, second = host.arrived
    assert (first.sender, first.place, first.is_group, first.mentions) == (
        "anna",
        "desk",
        True,
        {"helper"},
    )
    assert (second.channel, second.place, second.text) == ("stdio", "stdio", "by itself")
    out = OutgoingMessage(
        "o1",
        "file",
        "s_1",
        "helper",
        "desk",
        text="Here.",
        files=[OutgoingFile("a.txt", lambda: b"A")],
    )
    assert adapter.deliver(out) == "o1"
    told = {"id": "o1", "kind": "file", "place": "desk", "from": "helper", "text": "Here."}
    assert json.loads(written[-1]) == told | {"files": [{"name": "a.txt", "data": "QQ=="}]}


def test_it_ends_when_nobody_reads_the_answers() -> None:
    host, ended = Host(), threading.Event()

    def write(line: bytes) -> None:
        raise BrokenPipeError

    StdioAdapter([b'{"text": "a"}', b'{"text": "b"}'], write, ended.set).start(host)
    assert ended.wait(60) and len(host.arrived) == 1
