"""Serving many clients over streamable HTTP.

What must stay true: every request needs a token; every refusal is a JSON-RPC error; and when the server stops or a
token is revoked, open requests end as HTTP ends them: with a complete answer, or a stream that is closed.

The SDK's application checks the token, the Host and the Origin; `_Edge`, in front of it, does the rest.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
import orjson
import uvicorn
from mcp.server import transport_security
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from capsule.errors import CapsuleError
from capsule.mcp_server.access import SCOPES
from capsule.mcp_server.sessions import log
from capsule.mcp_server.transport.address import EVENTS, PATH, Listener, security
from capsule.mcp_server.transport.events import events_of
from capsule.mcp_server.transport.lifetime import beside, finish, signalled
from capsule.mcp_server.transport.messages import Unacceptable, error_of, message_of, parsed

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from capsule.mcp_server.server import CapsuleServer
    from capsule.mcp_server.sessions import HttpStores
    from capsule.mcp_server.transport.tokens import Tokens

_MOST_SESSIONS: Final = 500
#: Seconds between two looks for revoked tokens and idle holders.
_TIDY_S: Final = 2.0
#: Seconds that open requests still have when the server stops. Streams end at once.
_LAST_ANSWERS_S: Final = 0.7
#: Seconds that uvicorn has after that, and that the answer to a DELETE waits for the release of the locks.
_CLOSING_S: Final = 0.5
#: Messages in place of the SDK's own.
_WORDS: Final = {
    401: "a token is needed that is known, and neither revoked nor expired: Authorization: Bearer TOKEN; "
    "one is made with: capsule tokens add NAME",
    413: "the request is too large",
}
#: Seconds in which the log has one refusal of a Host or an Origin, for each address.
_SELDOM_S: Final = 60.0
#: The address of the client of a request.
_CLIENT: ContextVar[str] = ContextVar("client", default="")
_NAMED: Final = "; a name is allowed with --allow-host NAME"


class _Verifier:
    """Looks each token up in the file of tokens."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def verify_token(self, token: str) -> AccessToken | None:
        try:
            known = self._tokens.holder_of(token)
        except CapsuleError as error:
            log.error("nobody is let in: %s", error)
            return None
        if known is None:
            return None
        scopes = SCOPES[: SCOPES.index(known.scope) + 1]
        return AccessToken(token="", client_id=known.name, scopes=list(scopes), expires_at=known.expires_s)


def admitting(tokens: Tokens) -> dict[str, Any]:
    """The options of a server whose every request needs one of these tokens."""
    # Without a resource's address, the SDK uses the issuer's for nothing.
    nowhere = AnyHttpUrl("http://localhost")
    settings = AuthSettings(issuer_url=nowhere, resource_server_url=None, required_scopes=["read"])
    return {"token_verifier": _Verifier(tokens), "auth": settings}


def serve(
    server: CapsuleServer,
    stores: HttpStores,
    listener: Listener,
    *,
    tokens: Tokens,
    hosts: tuple[str, ...] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes; never returns.

    Args:
        server: The server, built with the options of `admitting`.
        stores: The stores behind it.
        listener: Where it listens.
        tokens: Whose requests are answered.
        hosts: Further names by which clients may call the server, such as that of a proxy before it.
        ready: Called when requests are answered.
    """
    settings = stores.main().settings

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    server.custom_route("/health", methods=["GET"])(health)
    named = security(listener, hosts)
    server.custom_route(EVENTS, methods=["GET"])(events_of(stores, named))

    app = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=named,
        # A session is a lease: one that is idle for as long as a lock may be has gone, and its locks with it.
        session_idle_timeout=settings.lock_ttl_s,
        max_sessions=_MOST_SESSIONS,
        # A message of the largest size, with every letter beyond ASCII escaped, and room for what is around it.
        max_request_body_size=3 * settings.message_bytes + (1 << 20),
    )
    edge = _Edge(app, stores.end)
    http = _Uvicorn(uvicorn.Config(edge, log_config=None, log_level="warning", access_log=False, server_header=False))

    async def run() -> None:
        codes: list[int] = []
        stopping, stopped = anyio.Event(), anyio.Event()

        def stop(code: int) -> None:
            codes.append(code)
            stopping.set()

        async def listen() -> None:
            await http.serve([listener.socket])
            stopped.set()

        async with anyio.create_task_group() as tasks:
            await tasks.start(signalled, stop)
            tasks.start_soon(listen)
            tasks.start_soon(_tidy, edge, stores, tokens)
            for work in server.beside():
                tasks.start_soon(work)
            while not http.started:
                await anyio.sleep(0.005)
            ready()
            await stopping.wait()
            beside(stores.release)
            await edge.close()
            http.should_exit = True
            with anyio.move_on_after(_CLOSING_S):
                await stopped.wait()
            finish(codes[0], stores.close)

    logging.getLogger(transport_security.__name__).addFilter(_Seldom())
    _raise_limit_of_files()
    anyio.run(run)


async def _tidy(edge: _Edge, stores: HttpStores, tokens: Tokens) -> None:
    while True:
        await anyio.sleep(_TIDY_S)
        try:
            holders = {token.name for token in tokens.all() if not token.is_over(time.time())}
        except CapsuleError:
            holders = set()
        edge.drop_all_but(holders)
        await anyio.to_thread.run_sync(stores.tidy, holders)


def _raise_limit_of_files() -> None:
    """Raise the limit of open files as far as it goes: each session needs some."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


class _Seldom(logging.Filter):
    """Lets one refusal of a Host or an Origin a minute into the log, for each address."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        now, client = time.monotonic(), _CLIENT.get()
        self._last = {each: at for each, at in self._last.items() if now - at < _SELDOM_S}
        return self._last.setdefault(client, now) == now


class _Uvicorn(uvicorn.Server):
    """uvicorn, without its way of handling signals: it raises them anew when it has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Edge:
    """The application that uvicorn calls, around the SDK's.

    Args:
        app: The SDK's application.
        ended: Called with the id of a session that its client has ended.
    """

    def __init__(self, app: ASGIApp, ended: Callable[[str], None]) -> None:
        self._app = app
        self._ended = ended
        self._open: dict[anyio.CancelScope, Scope] = {}
        self._is_over = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _normalised(scope)
        answer = _Answer(scope, receive, send, self._ended)
        _CLIENT.set((scope.get("client") or ("",))[0])
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
        """Accept no more requests, end streams at once, and give other requests an instant to be answered."""
        self._is_over = True
        for cancel, scope in self._open.items():
            if scope["method"] == "GET":
                cancel.cancel()
        with anyio.move_on_after(_LAST_ANSWERS_S):
            while self._open:
                await anyio.sleep(0.01)
        for cancel in self._open:
            cancel.cancel()


def _normalised(scope: Scope) -> Scope:
    """A request whose Host and Origin can be compared, and that asks for no stream of the protocol to be resumed."""
    folded = (b"host", b"origin")
    headers = [(name, value.lower() if name in folded else value) for name, value in scope["headers"]]
    kept = [pair for pair in headers if pair[0] != b"last-event-id" or scope["path"] == EVENTS]
    return {**scope, "headers": kept}


class _Answer:
    """The answer to one request, as far as it was sent."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, ended: Callable[[str], None]) -> None:
        self._scope = scope
        self._receive = receive
        self._asked: list[bytes] = []
        self._send = send
        self._ended = ended
        self._is_begun = self._is_complete = False
        self._refused: MutableMapping[str, Any] | None = None
        self._body = b""

    async def receive(self) -> MutableMapping[str, Any]:
        """Receive what the client sends, and keep it."""
        message = await self._receive()
        self._asked.append(message.get("body", b""))
        return message

    def _unacceptable(self) -> bytes:
        """The error for what is no message; empty: it is one. The SDK takes a request with no valid id for a notice."""
        try:
            message_of(parsed(b"".join(self._asked)))
        except Unacceptable as error:
            return error_of(*error.args)
        return b""

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send what the application answers; a refusal becomes a JSON-RPC error."""
        if message["type"] == "http.response.start":
            self._is_begun = True
            if message["status"] == 202 and self._unacceptable():
                message = {**message, "status": 400}
            if message["status"] >= 400:
                self._refused = message
                return
            self._asked.clear()
            if self._scope["method"] == "DELETE":
                await self._release()
        elif message["type"] == "http.response.body":
            self._is_complete = not message.get("more_body", False)
            if self._refused is not None:
                self._body += message.get("body", b"")
                if self._is_complete:
                    await self._refuse(self._refused, self._body)
                return
        await self._send(message)

    async def _release(self) -> None:
        """Release the session's locks before the answer, so that its reader can rely on it; a call may delay this."""
        session = dict(self._scope["headers"]).get(b"mcp-session-id", b"").decode("latin-1")
        with anyio.move_on_after(_CLOSING_S):
            await anyio.to_thread.run_sync(self._ended, session, abandon_on_cancel=True)

    async def _refuse(self, start: MutableMapping[str, Any], body: bytes) -> None:
        try:
            told = orjson.loads(body)
        except orjson.JSONDecodeError:
            told = None
        code = (told.get("error") or {}).get("code") if isinstance(told, dict) and "jsonrpc" in told else None
        is_unread = start["status"] == 400 and (not body or code in (PARSE_ERROR, INVALID_PARAMS))
        if is_unread and (error := self._unacceptable()):
            body = error
        elif not isinstance(told, dict) or "jsonrpc" not in told:
            words = _WORDS.get(start["status"], body.decode("utf-8", "replace") or "refused")
            if isinstance(told, dict) and "error_description" in told and start["status"] == 403:
                words = str(told["error_description"])
            words += _NAMED if "Host header" in words or "Origin header" in words else ""
            body = error_of(None, INVALID_REQUEST, words)
        own = (b"content-type", b"content-length")
        headers = [(name, value) for name, value in start["headers"] if name.lower() not in own]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def finish(self) -> None:
        """End the answer where it stands."""
        if not self._is_begun:
            start = {"type": "http.response.start", "status": 503, "headers": [(b"connection", b"close")]}
            await self._refuse(start, b"the server is being stopped")
        elif not self._is_complete:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
