"""`capsule mcp --http`: who comes in, what is refused and how, and how it stops."""

from __future__ import annotations

import http.client
import json
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.errors import InvalidInput, Refused
from capsule.mcp_server.access import SCOPES
from capsule.mcp_server.transport.process import listen, parse_address
from tests.core.cli.conftest import Program
from tests.core.mcp_server.serving import (
    HANDSHAKE,
    PATIENCE_S,
    Http,
    admit,
    bearer,
    eventually,
    modern_envelope,
    over_http,
)

pytestmark = pytest.mark.slow

ID = "the-one"
#: Limits that a server which stops never reaches: for open requests, and for what ends them.
LAST_ANSWERS, CLOSING = {"http.LAST_ANSWERS_S": PATIENCE_S}, {"http.CLOSING_S": PATIENCE_S}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Store.init(tmp_path / "store")
    # A call waits for a test that holds a conversation as long as that takes.
    (tmp_path / "store" / "capsule.toml").write_text(
        '[storage]\nmutex_timeout = "100s"\n', encoding="utf-8"
    )
    with Store.open(tmp_path / "store", keep_locks=False) as store:
        store.create(id=ID, title="The one", type="group")
    return tmp_path / "store"


def text(result: Any) -> str:
    return str(result["content"][0]["text"])


def refuses(root: Path, *words: str, code: int) -> str:
    """What the command says when it does not serve."""
    return Program(root)("mcp", "--store", str(root), *words, expect=code).stderr


def error_of(answer: tuple[int, dict[str, str], Any]) -> tuple[int, str]:
    """The status and the words of a refusal, which is a JSON-RPC error whatever refuses."""
    status, headers, body = answer
    told = json.loads(body) if isinstance(body, bytes) else body
    assert headers["content-type"] == "application/json"
    assert told["jsonrpc"] == "2.0"
    assert told["id"] is None
    return status, told["error"]["message"]


@pytest.mark.sample
def test_an_address_is_loopback_unless_it_says_otherwise() -> None:
    for text, address in (
        ("8765", ("127.0.0.1", 8765)),
        (":8765", ("127.0.0.1", 8765)),
        ("localhost:0", ("localhost", 0)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("[::1]:8765", ("::1", 8765)),
    ):
        assert parse_address(text) == address
    for text in (
        "",
        "localhost",
        "::1:8765",
        "a:b",
        "1:99999",
        "http://localhost:1",
        "[x]:1",
        "-1",
    ):
        with pytest.raises(InvalidInput, match="not an address"):
            parse_address(text)


def test_the_server_says_where_it_is_and_that_it_is_well(root: Path) -> None:
    for where in ("localhost:0", *(["[::1]:0"] if socket.has_ipv6 else [])):
        with over_http(root, where=where) as server:
            status, headers, body = server.request("GET", "/health", authorization="")
            assert (status, headers["content-type"], json.loads(body)) == (
                200,
                "application/json",
                {"status": "ok"},
            )
            assert str(root) in server.said
            assert server.post("initialize", HANDSHAKE)[0] == 200


@pytest.mark.sample
def test_a_taken_port_and_an_address_of_others_are_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port} of 127.0.0.1 is taken"):
            listen("127.0.0.1", port)
    for host, problem in (
        ("192.0.2.1", "not an address of this machine"),
        ("no.such.host.invalid", "is unknown here"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            listen(host, 0)


def test_a_connection_sends_what_it_has_at_once() -> None:
    listener = listen("127.0.0.1", 0)
    with (
        listener.socket,
        socket.create_connection(("127.0.0.1", listener.port)),
        listener.socket.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_every_request_needs_a_known_token_that_is_still_good(root: Path) -> None:
    for where in ("0", "0.0.0.0:0"):
        assert "capsule mcp tokens add" in refuses(root, "--http", where, code=6)
    assert "named by its token" in refuses(root, "--http", "0", "--instance", "anna", code=2)
    with over_http(root, where="0.0.0.0:0") as server:
        anna = server.token
        status, headers, body = server.post("initialize", HANDSHAKE, authorization="")
        assert error_of((status, headers, body))[0] == 401
        assert headers["www-authenticate"].startswith("Bearer ")
        for wrong in (
            "Bearer",
            "Bearer x",
            f"Bearer {anna}x",
            f"Basic {anna}",
            anna,
            f"Bearer {anna} {anna}",
        ):
            assert error_of(server.post("initialize", HANDSHAKE, authorization=wrong))[0] == 401, (
                wrong
            )
        assert server.post("initialize", HANDSHAKE, authorization=f"bearer {anna}")[0] == 200
        # Its names are not known to it: the token is what keeps others out.
        assert server.post("initialize", HANDSHAKE, host="capsule.example.org")[0] == 200
        expired = Program(root)(
            "--store", str(root), "mcp", "tokens", "add", "bert", "--expires", "0s"
        ).line
        assert server.post("initialize", HANDSHAKE, **bearer(expired))[0] == 401
        # The last token gone does not open the door, and neither does a file that can't be read.
        Program(root)("--store", str(root), "mcp", "tokens", "revoke", "tester")
        assert server.post("initialize", HANDSHAKE)[0] == 401
        (file,) = (Path.home() / ".config" / "capsule" / "tokens").glob("*.json")
        file.write_text("{", encoding="utf-8")
        assert error_of(server.post("initialize", HANDSHAKE))[0] == 401
        eventually(lambda: "not a file of tokens" in server.said, "why nobody is let in")
    assert "not a file of tokens" in refuses(root, "--http", "0", code=5)


def test_a_token_says_who_writes_and_what_it_may(root: Path) -> None:
    tokens: dict[str, str] = {name: admit(root, name, name) for name in SCOPES}
    with over_http(root) as server:

        def tools(token: str) -> set[str]:
            return {
                tool["name"]
                for tool in server.modern("tools/list", **bearer(token))[2]["result"]["tools"]
            }

        narrow, wide, widest = (tools(tokens[name]) for name in SCOPES)
        assert narrow < wide < widest
        assert "delete_conversation" in widest - wide
        for call in (
            server.modern_call,
            lambda tool, token, **more: server.session(token).call(tool, **more),
        ):
            assert "'write'" in text(call("append_message", tokens["read"], id=ID, content="x"))
            assert not call("read_conversation", tokens["read"], id=ID).get("isError")
            assert not call("append_message", tokens["write"], id=ID, content="x", role="user").get(
                "isError"
            )
            assert call("append_message", tokens["write"], id=ID, content="x", sender="admin")[
                "isError"
            ]
            assert "'admin'" in text(
                call("unlock_conversation", tokens["write"], id=ID, force=True)
            )
            assert not call("unlock_conversation", tokens["write"], id=ID).get("isError")
            assert not call(
                "unlock_conversation", tokens["admin"], id=ID, force=True, confirm=True
            ).get("isError")
        assert (
            server.modern("tools/call", {"name": "nothing", "arguments": {}})[2]["error"]["code"]
            == -32602
        )
    with Store.open(root) as store:
        assert [message.from_ for message in store.load(ID).history] == ["write", "write"]
    with over_http(root, "--read-only") as server:
        assert "'write'" in text(server.modern_call("append_message", id=ID, content="x"))


def test_a_web_page_whose_name_points_here_is_refused(root: Path) -> None:
    with over_http(root) as server:
        good = f"localhost:{server.port}"
        for host, origin in (
            (good, ""),
            (good.upper(), f"http://{good}"),
            (good, f"HTTP://{good.title()}"),
        ):
            assert server.post("initialize", HANDSHAKE, host=host, origin=origin)[0] == 200
        for host in (
            "evil.example.org",
            f"evil.example.org:{server.port}",
            "127.0.0.1",
            f"127.0.0.1:{server.port}.evil.org",
        ):
            status, told = error_of(server.post("initialize", HANDSHAKE, host=host))
            assert status == 421, host
            assert "--allow-host" in told
        for origin in (
            "http://evil.example.org",
            "null",
            f"http://localhost:{server.port}.evil.org",
            "http://localhost:1",
        ):
            assert error_of(server.post("initialize", HANDSHAKE, origin=origin))[0] == 403, origin
        assert sum("Invalid" in line for line in server.said.splitlines()) == 1, (
            "for each client, one a minute"
        )
        # Also in the protocol without sessions.
        assert error_of(server.modern("tools/list", host="evil.example.org"))[0] == 421


def test_every_refusal_is_an_error_of_json_rpc_and_no_stream_is_resumed(root: Path) -> None:
    kind = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
    with over_http(root) as server:
        for method, path, body, headers, status in (
            ("GET", "/nowhere", None, {}, 404),
            ("POST", "/health", b"{}", {}, 405),
            ("PUT", "/mcp", b"{}", kind, 405),
            ("POST", "/mcp", b"{", kind, 400),
            ("POST", "/mcp", b"3", kind, 400),
            ("POST", "/mcp", b"{}", {"content_type": "text/plain"}, 400),
            (
                "POST",
                "/mcp",
                b'{"jsonrpc":"2.0","id":1,"method":"ping"}',
                kind | {"mcp_session_id": "x"},
                404,
            ),
        ):
            assert error_of(server.request(method, path, body, **headers))[0] == status, (
                method,
                path,
                body,
            )
        session = server.session()
        for id, said in (
            (b"null", None),
            (b"1.5", 1.5),
            (b"true", None),
            (b"{}", None),
            (b'"\\ud800"', "\ud800"),
        ):
            message = b'{"jsonrpc":"2.0","id":%s,"method":"ping"}' % id
            answer = server.request("POST", "/mcp", message, **session.headers)
            assert (answer[0], json.loads(answer[2])["id"]) == (400, said)
        # No stream can be resumed: whoever asks for that gets a new one.
        stream = _begin(server, "GET", None, server.session().headers | {"last_event_id": "42"})
        answer = stream.getresponse()
        assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (
            200,
            "text/event-stream",
        )
        stream.close()


def test_calls_that_wait_for_one_conversation_do_not_hold_up_the_others(root: Path) -> None:
    with over_http(root) as server, Store.open(root, keep_locks=False) as store:
        session = server.session()
        with store.engine.storage.hold("conversations", ID):
            waiting = [
                _begin(
                    server,
                    "POST",
                    _call(n, "append_message", id=ID, content=str(n)),
                    session.headers,
                )
                for n in range(100, 160)
            ]
            assert not session.call("create_conversation", title="Another", type="group").get(
                "isError"
            )
            assert not session.call("list_conversations").get("isError")
        for connection in waiting:
            assert b'"isError":true' not in connection.getresponse().read()
            connection.close()
    with Store.open(root) as store:
        assert len(store.load(ID).history) == 60


def test_the_name_of_a_proxy_can_be_allowed(root: Path) -> None:
    with over_http(root, "--allow-host", "capsule.example.org") as server:
        for host in ("capsule.example.org", "capsule.example.org:8443"):
            assert (
                server.post("initialize", HANDSHAKE, host=host, origin=f"https://{host}")[0] == 200
            )
        assert server.post("initialize", HANDSHAKE, host="example.org")[0] == 421


def test_a_body_beyond_the_limit_is_refused_in_json_whether_its_size_is_told_or_not(
    root: Path,
) -> None:
    (root / "capsule.toml").write_text("[limits]\nmessage_bytes = 1000\n", encoding="utf-8")
    head = {"content_type": "application/json", "accept": "application/json, text/event-stream"}
    large = (
        b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "'
        + b"x" * (2 << 20)
        + b'"}}'
    )
    with over_http(root) as server:
        head |= bearer(server.token)
        assert error_of(server.request("POST", "/mcp", large, **head))[0] == 413
        connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
        parts = (large[at : at + 65536] for at in range(0, len(large), 65536))
        headers = {name.replace("_", "-"): value for name, value in head.items()}
        connection.request("POST", "/mcp", parts, headers, encode_chunked=True)
        answer = connection.getresponse()
        assert (
            error_of(
                (answer.status, {"content-type": answer.headers["content-type"]}, answer.read())
            )[0]
            == 413
        )
        connection.close()
        assert server.post("initialize", HANDSHAKE)[0] == 200


def test_a_message_of_the_largest_size_is_accepted(root: Path) -> None:
    (root / "capsule.toml").write_text("[limits]\nmessage_bytes = 10_000_000\n", encoding="utf-8")
    with over_http(root) as server:
        # Two bytes each in a file, and six as most clients write JSON.
        content = "ü" * 4_900_000
        assert not server.modern_call("append_message", id=ID, content=content).get("isError")
    with Store.open(root) as store:
        assert store.load(ID).history[0].content == content


def _subscribe(
    server: Http, token: str
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    """A subscription of the protocol of 2026, which has no session."""
    meta, headers = modern_envelope("subscriptions/listen")
    params = {"notifications": {"resourceSubscriptions": ["capsule://conversations"]}, **meta}
    body = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    ).encode()
    connection = _begin(server, "POST", body, {**headers, **bearer(token)})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["content-type"].partition(";")[0]) == (
        200,
        "text/event-stream",
    )
    assert b"acknowledged" in answer.readline() + answer.readline() + answer.readline()
    return connection, answer


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_ends_long_polls_and_streams_as_http_ends_them(root: Path, number: int) -> None:
    with over_http(root, limits=CLOSING) as server:
        session = server.session()
        opened = {"/mcp": session.headers, "/events": bearer(server.token)}
        streams = [_begin(server, "GET", None, headers, path) for path, headers in opened.items()]
        answers = [stream.getresponse() for stream in streams]
        assert [answer.status for answer in answers] == [200, 200]
        subscribed, subscription = _subscribe(server, server.token)
        poll = _begin(server, "POST", _call(1, "watch_changes", seconds=50), session.headers)
        # A session answers in order of arrival: the poll has been taken when this is answered.
        session.call("list_conversations")
        server.signal(number)
        # All end completely: a connection that is cut would raise IncompleteRead here.
        for answer in (*answers, subscription):
            answer.read()
        assert b"isError" not in poll.getresponse().read()
        assert server.ended() == (130 if number == signal.SIGINT else 0)
        assert "Traceback" not in server.said
        for connection in (*streams, subscribed, poll):
            connection.close()


def test_a_subscription_without_a_session_ends_with_the_token(root: Path) -> None:
    anna = admit(root, "anna")
    with over_http(root) as server:
        connection, stream = _subscribe(server, anna)
        Program(root)("--store", str(root), "mcp", "tokens", "revoke", "anna")
        stream.read()
        connection.close()


def test_a_request_that_is_still_being_sent_is_refused_when_its_token_is_revoked(
    root: Path,
) -> None:
    anna = admit(root, "anna")
    with over_http(root) as server:
        headers = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "content-length": "1000",
            **bearer(anna),
        }
        connection = _begin(server, "POST", b"{", headers)
        Program(root)("--store", str(root), "mcp", "tokens", "revoke", "anna")
        answer = connection.getresponse()
        assert answer.status == 401
        assert "neither revoked nor expired" in json.loads(answer.read())["error"]["message"]
        connection.close()


@contextmanager
def held_up(server: Http) -> Iterator[http.client.HTTPConnection]:
    """A server that is told to stop while the call of this connection waits for a conversation."""
    with (
        Store.open(server.root, keep_locks=False) as store,
        store.engine.storage.hold("conversations", ID),
    ):
        session = server.session()
        waiting = _begin(
            server, "POST", _call(7, "append_message", id=ID, content="waits"), session.headers
        )
        session.call("list_conversations")  # A session answers in order of arrival.
        server.signal(signal.SIGTERM)
        yield waiting


def test_a_call_that_can_not_be_cancelled_does_not_keep_the_server(root: Path) -> None:
    with over_http(root) as server, held_up(server) as waiting:
        assert server.ended() == 0
        waiting.close()


def test_a_second_signal_ends_it_at_once(root: Path) -> None:
    with over_http(root, limits=LAST_ANSWERS) as server, held_up(server) as waiting:
        eventually(lambda: _status(server) != 200, "the door is closed")
        server.signal(signal.SIGINT)
        assert server.ended() == 128 + signal.SIGINT
        waiting.close()


def test_a_write_in_progress_at_the_stop_is_answered(root: Path) -> None:
    with over_http(root, limits=LAST_ANSWERS | CLOSING) as server:
        with held_up(server) as waiting:
            eventually(lambda: _status(server) != 200, "the door is closed")
        body = waiting.getresponse().read().decode()
        assert '"isError":true' not in body
        assert '"id":7' in body
        assert server.ended() == 0
        waiting.close()
    with Store.open(root) as store:
        assert [message.content for message in store.load(ID).history] == ["waits"]


def _status(server: Http) -> int:
    try:
        return server.request("GET", "/health")[0]
    except OSError:
        return 0


def _call(request: int, tool: str, **arguments: Any) -> bytes:
    params = {"name": tool, "arguments": arguments}
    return json.dumps(
        {"jsonrpc": "2.0", "id": request, "method": "tools/call", "params": params}
    ).encode()


def _begin(
    server: Http, method: str, body: bytes | None, headers: dict[str, str], path: str = "/mcp"
) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=PATIENCE_S)
    connection.request(
        method, path, body, {name.replace("_", "-"): value for name, value in headers.items()}
    )
    return connection
