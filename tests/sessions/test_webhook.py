"""Messages by HTTP: what is signed comes in once, and what goes out is signed."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest

from capsule import NotFound, Refused, Store, connections
from capsule.errors import InvalidInput, StoreBusy
from capsule.sessions.adapters import programs
from capsule.sessions.adapters.interface import OutgoingMessage, ReceivedMessage
from capsule.sessions.adapters.programs import (
    MAX_BODY_BYTES,
    WINDOW_S,
    WebhookAdapter,
    Webhooks,
    sign,
    verify,
)

#: The example in the tests of the specification's own library.
SECRET, ID, AT, BODY = (
    "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    "msg_p5jXN8AQM9LWM0D4loKWxJek",
    1614265330,
    b'{"test": 2432232314}',
)
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(id: str = ID, at: object = AT, signature: str = SIGNATURE) -> dict[str, str]:
    return {"webhook-id": id, "webhook-timestamp": str(at), "webhook-signature": signature}


def test_a_signature_is_that_of_the_specification() -> None:
    assert sign(f"whsec_{SECRET}", ID, AT, BODY) == sign(SECRET, ID, AT, BODY) == SIGNATURE


@pytest.mark.parametrize(
    ("given", "body", "late_s", "is_right"),
    [
        (headers(), BODY, 0, True),
        (headers(signature=f"v1,AAAA v2,xx {SIGNATURE}"), BODY, 0, True),
        (headers(), BODY, WINDOW_S, True),
        (headers(), BODY, WINDOW_S + 1, False),
        (headers(), BODY, -WINDOW_S - 1, False),
        (headers(), BODY + b" ", 0, False),
        (headers(id="another"), BODY, 0, False),
        (headers(at=AT + 1), BODY, 0, False),
        (headers(at="-1"), BODY, 0, False),
        (headers(id=""), BODY, 0, False),
        (headers(signature="v1,Ä"), BODY, 0, False),
        (headers(signature=sign(SECRET, "a.1", AT, BODY), id="a.1"), BODY, 0, False),
        ({}, BODY, 0, False),
    ],
)
def test_a_request_counts_only_with_a_right_signature_of_these_minutes(
    given: dict[str, str], body: bytes, late_s: int, is_right: bool
) -> None:
    if is_right:
        assert verify(SECRET, given, body, AT + late_s) == ID
    else:
        with pytest.raises(Refused):
            verify(SECRET, given, body, AT + late_s)


class Host:
    """Takes messages, and knows them again."""

    def __init__(self) -> None:
        self.arrived: dict[str, ReceivedMessage] = {}
        self.fails = False

    def receive(self, arrived: Sequence[ReceivedMessage]) -> None:
        if self.fails:
            raise StoreBusy("busy", id="", holder="")
        if any(self.arrived.get(one.id, one).text != one.text for one in arrived):
            raise InvalidInput("other content", id=arrived[0].id)
        self.arrived |= {one.id: one for one in arrived}


def request(url: str, secret: str, body: bytes, id: str = "msg_1", at: int | None = None) -> Any:
    at = int(time.time()) if at is None else at
    given = headers(id, at, sign(secret, id, at, body))
    return httpx2.post(url, content=body, headers=given, timeout=30)


@contextmanager
def serving(store: Store, host: Host) -> Iterator[tuple[str, int]]:
    """Takes webhooks for a host at an address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=200)
    adapter = WebhookAdapter(store.engine, lambda: listener)
    adapter.start(host)
    try:
        yield listener.getsockname()
    finally:
        adapter.stop()


def test_a_request_is_taken_once_and_only_from_who_has_the_secret(store: Store) -> None:
    hook, host = Webhooks(store.engine.local).keep("ci"), Host()
    with serving(store, host) as (_, port):
        url = f"http://127.0.0.1:{port}/hooks/"
        body = json.dumps({"text": "The build is red.", "from": "ci-bot", "thread": "t1"}).encode()
        answers = [request(url + "ci", hook.secret, body) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json() == answers[1].json()
        (arrived,) = host.arrived.values()
        assert (arrived.id, arrived.channel, arrived.place) == (
            answers[0].json()["id"],
            "webhook",
            "ci",
        )
        assert (arrived.text, arrived.sender, arrived.thread, arrived.kind) == (
            "The build is red.",
            "ci-bot",
            "t1",
            "webhook",
        )
        assert request(url + "ci", hook.secret, b'{"action": "opened"}', "msg_2").status_code == 200
        assert [one.text for one in host.arrived.values()][1] == '{"action": "opened"}'
        wrong = request(url + "ci", SECRET, body, "msg_3")
        nobody = request(url + "cd", hook.secret, body, "msg_3")
        assert (wrong.status_code, nobody.status_code, wrong.content) == (401, 401, nobody.content)
        assert (
            request(
                url + "ci", hook.secret, body, "msg_3", int(time.time()) - 2 * WINDOW_S
            ).status_code
            == 401
        )
        assert (
            request(url + "ci", hook.secret, b" " * (MAX_BODY_BYTES + 1), "msg_3").status_code
            == 413
        )
        assert request(url + "ci", hook.secret, b"another body").status_code == 409
        host.fails = True
        assert request(url + "ci", hook.secret, body, "msg_3").status_code == 503
        assert len(host.arrived) == 2


_BEGUN = b"POST /hooks/hook HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n"


@pytest.mark.parametrize("begun", [b"", _BEGUN])
def test_who_connects_and_does_not_go_on_keeps_nobody_out(store: Store, begun: bytes) -> None:
    hook = Webhooks(store.engine.local).keep("hook")
    with ExitStack() as held:
        address = held.enter_context(serving(store, Host()))
        for one in [held.enter_context(socket.create_connection(address)) for _ in range(150)]:
            with suppress(OSError):  # It had to make room.
                one.sendall(begun)
        url = f"http://127.0.0.1:{address[1]}/hooks/hook"
        assert request(url, hook.secret, b'{"text": "Hello."}').status_code == 200


@pytest.mark.parametrize(
    ("sent", "ends"),
    [(b"POST /hooks/hook HTTP/1.1\r\n", b""), (_BEGUN + b"{", b"connection: close")],
)
def test_a_connection_ends_without_headers_in_time_and_after_one_request(
    store: Store, monkeypatch: pytest.MonkeyPatch, sent: bytes, ends: bytes
) -> None:
    if not ends:
        monkeypatch.setattr(connections, "_HEAD_S", 0.1)
    with serving(store, Host()) as address, socket.create_connection(address) as silent:
        silent.sendall(sent)
        with suppress(ConnectionResetError):
            answer = b"".join(iter(lambda: silent.recv(4096), b""))
            assert ends in answer and bool(ends) == bool(answer)


def test_what_goes_out_is_signed_and_a_refusal_is_an_error_to_try_again(store: Store) -> None:
    taken: list[tuple[dict[str, str], bytes]] = []
    codes = [503, 204]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            taken.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(codes.pop(0))
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        hooks = Webhooks(store.engine.local)
        hook = hooks.keep("ci", f"http://127.0.0.1:{server.server_port}/in")
        adapter = WebhookAdapter(store.engine)
        out = OutgoingMessage(
            id="0-1",
            kind="chat",
            session="s_1",
            agent="helper",
            place="ci",
            text="Fixed.",
            thread="t1",
        )
        with pytest.raises(OSError):
            adapter.deliver(out)
        assert adapter.deliver(out) == "0-1"
        for given, body in taken:
            assert verify(hook.secret, given, body, time.time()) == "0-1"
        told = json.loads(taken[0][1])
        assert {
            "text": "Fixed.",
            "thread": "t1",
            "from": "helper",
            "place": "ci",
            "id": "0-1",
        }.items() <= told.items()
        hooks.keep("ci", "")
        with pytest.raises(Refused):
            adapter.deliver(out)
    finally:
        server.shutdown()
        server.server_close()


def test_a_webhook_of_a_clone_does_not_count(tmp_path: Any) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        hooks = Webhooks(store.engine.local)
        hook = hooks.keep("ci", "https://example.org/in")
        assert hooks.keep("ci").secret == hook.secret
        path = Path(store.engine.name(programs.KIND, "ci"))
        path.write_bytes(path.read_bytes())
        with pytest.raises(NotFound):
            hooks.get("ci")
        assert hooks.keep("ci").secret != hook.secret
        hooks.remove("ci")
        with pytest.raises(NotFound):
            hooks.get("ci")
        assert b"whsec" not in path.read_bytes()
