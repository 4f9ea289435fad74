"""The server as a client starts it: `capsule mcp` as a process of its own, over stdio and over
HTTP.

What must stay true: the test speaks the wire's own JSON here, so that nothing of the SDK's client
hides what the server does; a process that a test starts is gone when the test ends; and nothing
sleeps, everything waits for an answer.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import platformdirs

from capsule.errors import NotFound
from capsule.mcp_server.access import Scope, Tokens

ROOT = Path(__file__).resolve().parents[3]
#: How long a test waits for what must come, in seconds.
PATIENCE_S = 60.0
#: Starts the program with other limits of time than its own: what a test waits for may take longer
#: on a slow machine.
_WITH_LIMITS = """
from importlib import import_module
for place, seconds in {limits}.items():
    module, _, name = place.partition(".")
    module = import_module("capsule.mcp_server.transport." + module)
    getattr(module, name)
    setattr(module, name, seconds)
from capsule_cli.__main__ import main
main()
"""
#: A client that takes answers as text and as data.
CAPABILITIES = {"extensions": {"capsule/answers": {"takes": ["text", "data"]}}}
HANDSHAKE = {
    "protocolVersion": "2025-11-25",
    "capabilities": CAPABILITIES,
    "clientInfo": {"name": "test", "version": "1"},
}
MODERN = "2026-07-28"


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join((str(ROOT), str(ROOT / "cli")))
    # Warnings of the SDK's own dependencies are no matter of these tests.
    return {**os.environ, "PYTHONPATH": paths, "PYTHONWARNINGS": "default", **more}


def eventually(is_so: Callable[[], bool], what: str) -> None:
    """Wait until `is_so`."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.005)


class Process:
    """`capsule mcp` and what it says on stderr. `limits`: seconds, by module and name in
    `transport`.
    """

    def __init__(
        self, *words: str, root: Path, limits: dict[str, float] | None = None, **settings: Any
    ) -> None:
        pipe = subprocess.PIPE
        usual: dict[str, Any] = {
            "stdin": pipe,
            "stdout": pipe,
            "stderr": pipe,
            "env": environment(),
        }
        self.root = root
        program = ["-c", _WITH_LIMITS.format(limits=limits)] if limits else ["-m", "capsule_cli"]
        command = [sys.executable, *program, "mcp", "--store", str(root), *words]
        self.process = subprocess.Popen(command, **usual | settings)
        self._said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._said.append(line.decode())

    @property
    def said(self) -> str:
        """What it said on stderr so far; all of it once it has ended."""
        if self.process.poll() is not None:
            self._listener.join(PATIENCE_S)
        return "".join(self._said)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, when it has ended."""
        return self.process.wait(PATIENCE_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._listener.join(PATIENCE_S)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


class Stdio(Process):
    """A client over stdio that speaks by hand."""

    def __init__(self, *words: str, root: Path, **settings: Any) -> None:
        super().__init__(*words, root=root, **settings)
        self._last = 0

    def send(
        self, method: str, params: dict[str, Any] | None = None, *, notify: bool = False
    ) -> int:
        """Ask, without waiting for the answer. Returns: the id of the request."""
        assert self.process.stdin is not None
        self._last += 1
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        if not notify:
            message["id"] = self._last
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()
        return self._last

    def answers(self) -> Iterator[Any]:
        """Every message that comes, until the server closes its end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield json.loads(line)

    def answer(self, request: int) -> Any:
        """The answer to a request."""
        for message in self.answers():
            if message.get("id") == request and "method" not in message:
                return message
        raise AssertionError(f"no answer; exit code {self.ended()}\n{self.said}")

    def shake_hands(self) -> None:
        assert "result" in self.answer(self.send("initialize", HANDSHAKE))
        self.send("notifications/initialized", notify=True)

    def send_call(self, tool: str, **arguments: Any) -> int:
        return self.send("tools/call", {"name": tool, "arguments": arguments})

    def call(self, tool: str, **arguments: Any) -> Any:
        """The structured result of a tool."""
        result = self.answer(self.send_call(tool, **arguments))["result"]
        assert not result.get("isError"), result
        return result["structuredContent"]

    def leave(self) -> None:
        """Close the client's end of the server's stdin."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()


class Http(Process):
    """A server over HTTP on a free port of loopback."""

    def __init__(
        self, *words: str, root: Path, where: str = "127.0.0.1:0", **settings: Any
    ) -> None:
        self.token = admit(root, "tester", "admin")
        super().__init__("--http", where, *words, root=root, **settings)
        eventually(
            lambda: "/mcp" in self.said or self.process.poll() is not None,
            "the server says where it is",
        )
        found = re.search(r"http://(\S+):(\d+)/mcp", self.said)
        assert found, self.said
        self.url, self.host, self.port = found[0], found[1].strip("[]"), int(found[2])

    def request(
        self, method: str, path: str = "/mcp", body: bytes | None = None, **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of an answer."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        try:
            # An empty token stands for none.
            headers = {
                name: value for name, value in (bearer(self.token) | headers).items() if value
            }
            told = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, told)
            answer = connection.getresponse()
            return (
                answer.status,
                {name.lower(): value for name, value in answer.getheaders()},
                answer.read(),
            )
        finally:
            connection.close()

    def post(
        self, method: str, params: dict[str, Any] | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Post a request; the JSON of its answer, also when that came as a stream."""
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params or {}}
        headers = {
            "content_type": "application/json",
            "accept": "application/json, text/event-stream",
        } | headers
        status, told, body = self.request("POST", "/mcp", json.dumps(message).encode(), **headers)
        return status, told, _json(told, body)

    def modern(
        self, method: str, params: dict[str, Any] | None = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Post a request of the protocol of 2026, which knows no sessions."""
        meta, more = modern_envelope(method, (params or {}).get("name"))
        return self.post(method, {**(params or {}), **meta}, **more, **headers)

    def modern_call(self, tool: str, token: str | None = None, **arguments: Any) -> Any:
        """The result of a tool in the protocol of 2026."""
        _, _, told = self.modern(
            "tools/call", {"name": tool, "arguments": arguments}, **bearer(token)
        )
        return told["result"]

    def session(self, token: str | None = None) -> Session:
        """Begin a session of the protocol of 2025."""
        status, told, answer = self.post("initialize", HANDSHAKE, **bearer(token))
        assert status == 200, answer
        session = Session(self, told["mcp-session-id"], token)
        note = json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}).encode()
        status, _, _ = self.request("POST", "/mcp", note, **session.headers)
        assert status == 202
        return session


class Session:
    """A session of a server over HTTP."""

    def __init__(self, server: Http, id: str, token: str | None) -> None:
        self._server = server
        self.id = id
        self.headers: dict[str, Any] = {
            "content_type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp_session_id": id,
            "mcp_protocol_version": HANDSHAKE["protocolVersion"],
            **bearer(server.token if token is None else token),
        }

    def call(self, tool: str, **arguments: Any) -> Any:
        """The result of a tool."""
        status, _, told = self._server.post(
            "tools/call", {"name": tool, "arguments": arguments}, **self.headers
        )
        assert status == 200, told
        return told["result"]

    def end(self) -> int:
        """DELETE the session; the status."""
        return self._server.request("DELETE", **self.headers)[0]

    def is_over(self) -> bool:
        return self._server.post("ping", **self.headers)[0] == 404


def modern_envelope(method: str, name: str | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """What a request of the protocol of 2026 has in its parameters and in its headers."""
    about: dict[str, Any] = {
        "protocolVersion": MODERN,
        "clientInfo": {"name": "test", "version": "1"},
        "clientCapabilities": CAPABILITIES,
    }
    headers = {
        "content_type": "application/json",
        "accept": "application/json, text/event-stream",
        "mcp_protocol_version": MODERN,
        "mcp_method": method,
    }
    named = {"mcp_name": name} if name else {}
    return {
        "_meta": {f"io.modelcontextprotocol/{key}": value for key, value in about.items()}
    }, headers | named


def bearer(token: str | None) -> dict[str, str]:
    return {} if token is None else {"authorization": token and f"Bearer {token}"}


def admit(root: Path, name: str, scope: Scope = "write") -> str:
    """A new token for the store, in the place of the one that the name had."""
    tokens = Tokens(platformdirs.user_config_path("capsule", appauthor=False), str(root))
    with suppress(NotFound):
        tokens.revoke(name)
    return tokens.add(name, scope=scope)


def _json(headers: dict[str, str], body: bytes) -> Any:
    if headers.get("content-type", "").startswith("text/event-stream"):
        told = [
            json.loads(line[5:])
            for line in body.decode().splitlines()
            if line.startswith("data:") and line[5:].strip()
        ]
        return next(message for message in told if "method" not in message)
    return json.loads(body) if body else None


@contextmanager
def over_stdio(root: Path, *words: str, **settings: Any) -> Iterator[Stdio]:
    """A client over stdio that has shaken hands."""
    client = Stdio(*words, root=root, **settings)
    try:
        client.shake_hands()
        yield client
    finally:
        client.close()


@contextmanager
def over_http(root: Path, *words: str, **settings: Any) -> Iterator[Http]:
    """A server over HTTP."""
    server = Http(*words, root=root, **settings)
    try:
        yield server
    finally:
        server.close()
