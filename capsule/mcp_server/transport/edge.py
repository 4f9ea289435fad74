"""What the SDK leaves to the server: bytes that are no message, refusals, and open requests when
something ends.

What must stay true: an invalid request is answered, to its id if JSON-RPC allows that id; every
refusal over HTTP is a JSON-RPC error; and open requests end as HTTP ends them, with a complete
answer or a stream that is closed.

The SDK's own readers drop an invalid request, take it for a notification, or answer to no id.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import orjson
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    JSONRPCMessage,
    JSONRPCNotification,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from capsule.fence import visible

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

#: Where on the server the protocol is spoken, and where the events are.
PATH: Final = "/mcp"
EVENTS: Final = "/events"
#: Seconds that open requests still have when the server stops. Streams end at once.
LAST_ANSWERS_S: Final = 0.7
#: Seconds that uvicorn has after that, and that the answer to a DELETE waits for the release of the
#: locks.
CLOSING_S: Final = 0.5
#: Seconds in which the log has one refusal of a Host or an Origin, for each address.
_SELDOM_S: Final = 60.0
#: Messages in place of the SDK's own.
_WORDS: Final = {
    401: "a token is needed that is known, and neither revoked nor expired: Authorization: Bearer "
    "TOKEN; "
    "one is made with: capsule mcp tokens add NAME",
    413: "the request is too large",
}
_RULE: Final = 'jsonrpc is "2.0", id a text or a whole number, method a text, and params an object'
_CUT: Final = (
    "the text is no Unicode: a character of it was cut in two (a lone surrogate, or invalid UTF-8)"
)


class Unacceptable(Exception):
    """Bytes that are no message; `answer` has the bytes of the error for their sender."""

    def __init__(self, id: Any, code: int, reason: str) -> None:
        super().__init__(reason)
        self.answer = error_of(id, code, reason)


def message_of(data: bytes) -> JSONRPCMessage:
    """The message that these bytes are. Raises Unacceptable: they are none."""
    value = _value(data)
    message: JSONRPCMessage | None = None
    with suppress(ValidationError, RecursionError):
        message = jsonrpc_message_adapter.validate_python(value, by_name=False)
    if message is None or (isinstance(message, JSONRPCNotification) and "id" in value):
        raise Unacceptable(_id(value), INVALID_REQUEST, f"Invalid Request: {_RULE}")
    return message


def _value(data: bytes) -> Any:
    """The JSON in these bytes. Raises Unacceptable: there is none, or a wrong text or number
    in it.
    """
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(data)
    # orjson refuses a wrong text or number too, but the answer needs the id of the request.
    infinite: list[str] = []

    def number(text: str) -> float:
        if math.isinf(value := float(text)):
            infinite.append(text)
        return value

    try:
        value = json.loads(
            data.decode("utf-8", "replace"), parse_constant=_no_number, parse_float=number
        )
    except (ValueError, RecursionError) as error:
        raise Unacceptable(None, PARSE_ERROR, f"Parse error: {str(error)[:200]}") from None
    reason = f"{infinite[0][:40]} is too large for a number of 64 bits" if infinite else _CUT
    raise Unacceptable(_id(value), INVALID_PARAMS, reason)


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _id(value: Any) -> Any:
    """The id to answer to: the request's, when it can be one."""
    if not isinstance(value, dict) or {"result", "error"} & value.keys():
        return None  # It is an answer of the client, and its id is that of a request of the server.
    id = value.get("id")
    is_id = (
        isinstance(id, str | int | float)
        and not isinstance(id, bool)
        and id not in (math.inf, -math.inf)
    )
    return id if is_id else None


def error_of(id: Any, code: int, message: str) -> bytes:
    """The bytes of an error. An id with a lone surrogate comes back as it came, escaped."""
    answer = {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
    return json.dumps(answer, separators=(",", ":")).encode()


class Edge:
    """The application that uvicorn calls, around the SDK's; `ended` gets the id of a session that
    its client ended.
    """

    def __init__(self, app: ASGIApp, ended: Callable[[str], None]) -> None:
        self._app, self._ended = app, ended
        self._open: dict[anyio.CancelScope, Scope] = {}
        self._is_over = False
        #: When a client's Host or Origin was last refused with a line in the log, by its address.
        self._complaints: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _normalised(scope)
        answer = _Answer(scope, receive, send, self)
        with anyio.CancelScope() as cancel:
            self._open[cancel] = scope
            try:
                if not self._is_over:
                    await self._app(scope, answer.receive, answer.send)
            finally:
                del self._open[cancel]
        if cancel.cancelled_caught or self._is_over:
            await answer.finish()

    def drop_all_but(self, holders: set[str]) -> None:
        """End the open requests of holders whose token was revoked or has expired."""
        for cancel, scope in self._open.items():
            user = scope.get("user")  # Known once the SDK has seen the token.
            if user is not None and user.is_authenticated and user.display_name not in holders:
                cancel.cancel()

    async def close(self) -> None:
        """Accept no more requests, end streams at once, and give other requests an instant to be
        answered.
        """
        self._is_over = True
        for cancel, scope in self._open.items():
            if scope["method"] == "GET":
                cancel.cancel()
        with anyio.move_on_after(LAST_ANSWERS_S):
            while self._open:
                await anyio.sleep(0.01)
        for cancel in self._open:
            cancel.cancel()

    async def release(self, session: str) -> None:
        """Release a session's locks before the answer that it has ended; a call of it may delay
        this.
        """
        with anyio.move_on_after(CLOSING_S):
            await anyio.to_thread.run_sync(self._ended, session, abandon_on_cancel=True)

    def complain(self, scope: Scope, words: str) -> None:
        """Log the refusal of a Host or an Origin: for each address one a minute."""
        now, client = time.monotonic(), (scope.get("client") or ("",))[0]
        self._complaints = {
            each: at for each, at in self._complaints.items() if now - at < _SELDOM_S
        }
        if self._complaints.setdefault(client, now) == now:
            headers = dict(scope["headers"])
            value = headers.get(b"host" if "Host" in words else b"origin", b"").decode("latin-1")
            logging.getLogger("capsule").warning(
                "refused a request of %s: %s: %s", client, words, visible(value[:200])
            )


def _normalised(scope: Scope) -> Scope:
    """A request whose Host and Origin can be compared, and that asks for no stream of the protocol
    to be resumed.
    """
    folded = (b"host", b"origin")
    headers = [
        (name, value.lower() if name in folded else value) for name, value in scope["headers"]
    ]
    kept = [pair for pair in headers if pair[0] != b"last-event-id" or scope["path"] == EVENTS]
    return {**scope, "headers": kept}


class _Answer:
    """The answer to one request, as far as it was sent; a refusal becomes a JSON-RPC error."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, edge: Edge) -> None:
        self._scope, self._receive, self._send, self._edge = scope, receive, send, edge
        self._asked: list[bytes] = []
        self._start: MutableMapping[str, Any] = {}
        self._is_complete = False
        self._body = b""

    async def receive(self) -> MutableMapping[str, Any]:
        """Receive what the client sends, and keep it until it is accepted."""
        message = await self._receive()
        self._asked.append(message.get("body", b""))
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send what the application answers."""
        if message["type"] == "http.response.start":
            # The SDK takes a request with no valid id for a notification, and accepts it.
            is_lost = message["status"] == 202 and self._unacceptable()
            self._start = {**message, "status": 400} if is_lost else message
            if self._start["status"] < 400:
                self._asked.clear()
                if self._scope["method"] == "DELETE":
                    session = dict(self._scope["headers"]).get(b"mcp-session-id", b"")
                    await self._edge.release(session.decode("latin-1"))
                await self._send(message)
            return
        self._is_complete = not message.get("more_body", False)
        if self._start["status"] < 400:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if self._is_complete:
            await self._refuse()

    def _unacceptable(self) -> bytes:
        """The error for a body that is no message; empty: it is one, or none is needed."""
        if self._scope["method"] == "POST":
            try:
                message_of(b"".join(self._asked))
            except Unacceptable as error:
                return error.answer
        return b""

    async def _refuse(self) -> None:
        status, body = self._start["status"], self._body
        if status == 400 and (error := self._unacceptable()):
            body = error
        elif b'"jsonrpc"' not in body:
            words = _WORDS.get(status) or body.decode("utf-8", "replace") or "refused"
            if status in (403, 421):
                self._edge.complain(self._scope, words)
                words += "; a name is allowed with --allow-host NAME"
            body = error_of(None, INVALID_REQUEST, words)
        own = (b"content-type", b"content-length")
        headers = [
            (name, value) for name, value in self._start["headers"] if name.lower() not in own
        ]
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def finish(self) -> None:
        """End the answer where it stands."""
        if self._is_complete:
            return
        if self._start.get("status", 503) < 400:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            self._body = b"the server is being stopped"
            self._start = {
                "type": "http.response.start",
                "status": 503,
                "headers": [(b"connection", b"close")],
            }
            await self._refuse()
