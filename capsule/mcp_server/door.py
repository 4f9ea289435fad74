"""Who comes in over HTTP: an ASGI application in front of the SDK's.

What must stay true: a request reaches the SDK only when its Host and Origin are the server's, and its token is one
that stands in the file now; every refusal is a JSON-RPC error; and a request that is open when the server stops is
ended as HTTP ends one, so that a client sees an answer or the end of a stream, and never waits for the rest of one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.lowlevel
import anyio.to_thread
import orjson
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp_types import INVALID_REQUEST
from starlette.requests import Request

from capsule.errors import CapsuleError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from capsule.mcp_server.tokens import Tokens

__all__ = ["Door"]

#: How long requests may still take when the server stops, in seconds. Streams end at once.
LAST_ANSWERS_S: Final = 0.7
#: How long the answer that a session has ended waits for its locks to be released, in seconds.
RELEASE_S: Final = 1.0
_SESSION = b"mcp-session-id"
_BEARER = re.compile(rb"bearer +([^ ]+) *", re.IGNORECASE)


class Door:
    """The application that uvicorn calls.

    Args:
        app: The SDK's application.
        tokens: Who may come in.
        checks: The headers Host and Origin that are accepted.
        require_token: Whether a token is demanded even while there is none.
        ended: Told the id of a session that its client has ended.
    """

    def __init__(
        self,
        app: ASGIApp,
        tokens: Tokens,
        checks: TransportSecuritySettings,
        *,
        require_token: bool,
        ended: Callable[[str], None],
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._checks = TransportSecurityMiddleware(checks)
        self._demands_token = require_token
        self._ended = ended
        self._open: set[_Exchange] = set()
        self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, send)
        refused = await self._refused(scope, exchange)
        if refused is not None:
            await refused(exchange.send)
        elif scope["path"] == "/health":
            await _answer(200, {"status": "ok"})(exchange.send)
        else:
            await self._serve(exchange, receive)

    async def _refused(self, scope: Scope, exchange: _Exchange) -> _Answer | None:
        """Why a request does not come in; None: it does."""
        if self._is_over:
            return _error(503, "the server is being stopped", {"connection": "close"})
        wrong = await self._checks.validate_request(Request(scope))
        if wrong is not None:
            return _error(wrong.status_code, f"{bytes(wrong.body).decode()}; a name is allowed with --allow-host NAME")
        if scope["path"] == "/health":
            return None
        given = next((value for name, value in scope["headers"] if name == b"authorization"), None)
        try:
            self._demands_token = self._demands_token or bool(self._tokens.all())
            if not self._demands_token:
                return None
            match = None if given is None else _BEARER.fullmatch(given)
            if match is None:
                told = "a token is needed: Authorization: Bearer TOKEN; one is made with: capsule tokens add NAME"
                return _error(401, told, {"www-authenticate": 'Bearer realm="capsule"'})
            exchange.holder = self._tokens.holder_of(match[1].decode("latin-1"))
        except CapsuleError as error:
            return _error(503, f"who may come in can't be found out: {error}")
        if exchange.holder is None:
            header = 'Bearer realm="capsule", error="invalid_token", error_description="unknown or revoked"'
            return _error(401, "this token is unknown, or was revoked", {"www-authenticate": header})
        # The SDK compares this with who began the session: a session is of use to its own holder only.
        scope["user"] = AuthenticatedUser(AccessToken(token="", client_id=exchange.holder, scopes=[]))
        return None

    async def _serve(self, exchange: _Exchange, receive: Receive) -> None:
        scope = exchange.scope
        self._open.add(exchange)
        try:
            with exchange.cancel:
                await self._app(scope, receive, exchange.send)
        finally:
            self._open.discard(exchange)
        if exchange.cancel.cancelled_caught:
            await exchange.finish()
        elif exchange.is_deleted:
            # Answered when the locks are free, so that who reads the answer can rely on it; a call of the session
            # that still runs may hold one up.
            session = next(value for name, value in scope["headers"] if name == _SESSION)
            with anyio.move_on_after(RELEASE_S):
                await anyio.to_thread.run_sync(self._ended, session.decode("latin-1"), abandon_on_cancel=True)
            await exchange.go_on()

    def holders(self) -> set[str]:
        """The names of those who may come in now; nobody when that can't be found out."""
        try:
            return {token.name for token in self._tokens.all()}
        except CapsuleError:
            return set()

    def drop_all_but(self, holders: set[str]) -> None:
        """End what is open for holders whose token was revoked."""
        for exchange in list(self._open):
            if exchange.holder is not None and exchange.holder not in holders:
                exchange.cancel.cancel()

    async def close(self) -> None:
        """Let nobody in any more, end streams at once, and give other requests an instant to be answered."""
        self._is_over = True
        for exchange in list(self._open):
            if exchange.scope["method"] == "GET":
                exchange.cancel.cancel()
        with anyio.move_on_after(LAST_ANSWERS_S):
            while self._open:
                await anyio.sleep(0.01)

    def drop_all(self) -> None:
        """End what is open."""
        for exchange in list(self._open):
            exchange.cancel.cancel()


class _Exchange:
    """One request and its answer, as far as it has gone.

    Attributes:
        holder: Whose token came with it.
        status: The answer's, once it has begun.
    """

    def __init__(self, scope: Scope, send: Send) -> None:
        self.scope = scope
        self.cancel = anyio.CancelScope()
        self.holder: str | None = None
        self.status: int | None = None
        self._send = send
        self._is_complete = False
        self._instead: _Answer | None = None
        self._held_back: list[MutableMapping[str, Any]] = []

    @property
    def is_deleted(self) -> bool:
        """Whether this ended a session; the answer is then held back until `go_on`."""
        return self.scope["method"] == "DELETE" and self.status is not None and self.status < 300

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """What the application answers; its one refusal that is no JSON becomes some."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if self.status == 413:
                self._instead = _error(413, "the request is too large")
                return
        if message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body", False)
            if self._instead is not None:
                if self._is_complete:
                    await self._instead(self._send)
                return
        if self.is_deleted:
            self._held_back.append(message)
        else:
            await self._send(message)

    async def go_on(self) -> None:
        """Send what was held back."""
        for message in self._held_back:
            await self._send(message)

    async def finish(self) -> None:
        """End the answer where it stands."""
        if self._is_complete:
            return
        if self.status is None:
            await _error(503, "the server is being stopped", {"connection": "close"})(self._send)
        else:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})


class _Answer:
    """A whole answer, ready to be sent."""

    def __init__(self, status: int, value: Any, headers: dict[str, str]) -> None:
        body = orjson.dumps(value)
        told = {"content-type": "application/json", "content-length": str(len(body)), **headers}
        named = [(name.encode(), value.encode()) for name, value in told.items()]
        self._start = {"type": "http.response.start", "status": status, "headers": named}
        self._body = {"type": "http.response.body", "body": body, "more_body": False}

    async def __call__(self, send: Send) -> None:
        await send(self._start)
        await send(self._body)


def _answer(status: int, value: Any) -> _Answer:
    return _Answer(status, value, {})


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> _Answer:
    value = {"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": message}}
    return _Answer(status, value, headers or {})
