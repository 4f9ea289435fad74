"""Serve MCP to many clients over streamable HTTP, and the events of the store at `GET /events`.

The SDK's application checks the token, the headers Host and Origin, and the size of a request, and
it owns the sessions. `HttpGuard` is ASGI middleware around it and does the rest: it answers bodies
that are no message, turns every refusal into a JSON-RPC error, and ends open requests.

What must stay true: every request needs a token, but `GET /health`. An invalid request is answered, with its id if
JSON-RPC allows that id. When the server stops or a token is revoked, each open request ends with a
complete answer or a closed stream. A subscriber of events gets only what the agent of its token may
read, which is checked again for each batch.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from mcp.server import transport_security
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from mcp_types import (
    INVALID_REQUEST,
)
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from capsule.errors import CapsuleError, InvalidInput
from capsule.mcp_server.sdk import MalformedMessage, encode_error, parse_message
from capsule.mcp_server.stores import log
from capsule.mcp_server.transport import process
from capsule.mcp_server.transport.process import (
    ListeningSocket,
    run_in_daemon_thread,
    stream_events,
)
from capsule.untrusted_text import visible
from capsule.watch.events import check_topics

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from capsule.mcp_server.access import Tokens
    from capsule.mcp_server.server import CapsuleServer
    from capsule.mcp_server.stores import HttpClientStores


#: The paths of the protocol and of the events.
PATH: Final = "/mcp"
EVENTS: Final = "/events"
#: Seconds for open requests when the server stops. Streams end at once.
LAST_ANSWERS_S: Final = 0.7
#: Seconds for uvicorn after that, and for the release of locks before a DELETE is answered.
CLOSING_S: Final = 0.5
#: Seconds in which one refusal of a Host or an Origin is logged for each address.
_LOG_PERIOD_S: Final = 60.0
#: The header `www-authenticate` of a request without a valid token.
_INVALID_TOKEN: Final = 'Bearer error="invalid_token"'
#: Messages in place of the SDK's own.
_REFUSALS: Final = {
    401: "a valid token is needed, neither revoked nor expired: Authorization: Bearer TOKEN; "
    "make one with: capsule mcp tokens add NAME",
    413: "the request is too large",
}


class HttpGuard:
    """ASGI middleware around the SDK's application.

    Args:
        app: The application.
        ended: Called with the id of a session that its client closed.
    """

    def __init__(self, app: ASGIApp, ended: Callable[[str], None]) -> None:
        self._app, self._ended = app, ended
        self._open: dict[anyio.CancelScope, Scope] = {}
        self._is_closing = False
        #: The time of the last logged refusal of a Host or an Origin, by the client's address.
        self._refusal_times: dict[str, float] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the start and end of the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = _normalized(scope)
        answer = _GuardedResponse(scope, receive, send, self)
        with anyio.CancelScope() as cancel:
            self._open[cancel] = scope
            try:
                if not self._is_closing:
                    await self._app(scope, answer.receive, answer.send)
            finally:
                del self._open[cancel]
        if cancel.cancelled_caught or self._is_closing:
            await answer.finish(is_stopping=self._is_closing)

    def cancel_requests_except(self, holders: set[str]) -> None:
        """End the open requests of holders whose token was revoked or has expired."""
        for cancel, scope in self._open.items():
            user = scope.get("user")  # Known once the SDK has seen the token.
            if user is not None and user.is_authenticated and user.display_name not in holders:
                cancel.cancel()

    async def close(self) -> None:
        """Accept no more requests, end streams at once, and give other requests `LAST_ANSWERS_S` to
        be answered.
        """
        self._is_closing = True
        for cancel, scope in self._open.items():
            if scope["method"] == "GET":
                cancel.cancel()
        with anyio.move_on_after(LAST_ANSWERS_S):
            while self._open:
                await anyio.sleep(0.01)
        for cancel in self._open:
            cancel.cancel()

    async def release(self, session: str) -> None:
        """Release a session's locks before its end is answered. If a call delays the release,
        answer after `CLOSING_S`.
        """
        with anyio.move_on_after(CLOSING_S):
            await anyio.to_thread.run_sync(self._ended, session, abandon_on_cancel=True)

    def log_refusal(self, scope: Scope, reason: str) -> None:
        """Log the refusal of a Host or an Origin, for each address once a minute."""
        now, client = time.monotonic(), (scope.get("client") or ("",))[0]
        self._refusal_times = {
            address: logged_s
            for address, logged_s in self._refusal_times.items()
            if now - logged_s < _LOG_PERIOD_S
        }
        if self._refusal_times.setdefault(client, now) == now:
            headers = dict(scope["headers"])
            value = headers.get(b"host" if "Host" in reason else b"origin", b"").decode("latin-1")
            logging.getLogger("capsule").warning(
                "refused a request of %s: %s: %s", client, reason, visible(value[:200])
            )


def _normalized(scope: Scope) -> Scope:
    """Return a request with a Host and an Origin in lower case. It has no `Last-Event-ID`, unless
    it is for the events: streams of the protocol are not resumed.
    """
    folded = (b"host", b"origin")
    headers = [
        (name, value.lower() if name in folded else value) for name, value in scope["headers"]
    ]
    forwarded_headers = [
        pair for pair in headers if pair[0] != b"last-event-id" or scope["path"] == EVENTS
    ]
    return {**scope, "headers": forwarded_headers}


class _GuardedResponse:
    """The response to one request. A refusal becomes a JSON-RPC error.

    The chunks of the request are stored until the application accepts it, because its refusal must
    have the id of the request.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, guard: HttpGuard) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._guard = guard
        #: The body of the request, until it is accepted.
        self._request_chunks: list[bytes] = []
        #: The start of the response. Empty: it has not started.
        self._start: MutableMapping[str, Any] = {}
        self._is_complete = False
        #: The body of a refusal.
        self._body = b""

    async def receive(self) -> MutableMapping[str, Any]:
        """Receive a part of the request, and store it until the request is accepted."""
        message = await self._receive()
        self._request_chunks.append(message.get("body", b""))
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send a part of the response."""
        if message["type"] == "http.response.start":
            self._start = message
            # The SDK takes a request without a valid id for a notification, and accepts it.
            if message["status"] == 202 and self._malformed_error():
                self._start = {**message, "status": 400}
            if self._start["status"] < 400:
                self._request_chunks.clear()
                if self._scope["method"] == "DELETE":
                    session = dict(self._scope["headers"]).get(b"mcp-session-id", b"")
                    await self._guard.release(session.decode("latin-1"))
                await self._send(message)
            return
        self._is_complete = not message.get("more_body", False)
        if self._start["status"] < 400:
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if self._is_complete:
            await self._refuse()

    def _malformed_error(self) -> bytes:
        """Return the error for a request that is no valid message. Empty: it is valid."""
        if self._scope["method"] == "POST":
            try:
                parse_message(b"".join(self._request_chunks))
            except MalformedMessage as error:
                return error.answer
        return b""

    async def _refuse(self) -> None:
        status = self._start["status"]
        body = self._body
        if status == 400 and (error := self._malformed_error()):
            body = error
        elif b'"jsonrpc"' not in body:
            reason = _REFUSALS.get(status) or body.decode("utf-8", "replace") or "refused"
            if status in (403, 421):
                self._guard.log_refusal(self._scope, reason)
                reason += "; allow a name with --allow-host NAME"
            body = encode_error(None, INVALID_REQUEST, reason)
        replaced_headers = (b"content-type", b"content-length")
        headers = [
            (name, value)
            for name, value in self._start["headers"]
            if name.lower() not in replaced_headers
        ]
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def finish(self, *, is_stopping: bool) -> None:
        """End the response early: the server stops, or else the token was revoked or has expired."""
        if self._is_complete:
            return
        if self._start.get("status", 503) < 400:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        headers = [(b"connection", b"close")]
        if is_stopping:
            self._body = b"the server is being stopped"
        else:
            self._body = b""  # The text of `_REFUSALS`.
            headers.append((b"www-authenticate", _INVALID_TOKEN.encode()))
        self._start = {
            "type": "http.response.start",
            "status": 503 if is_stopping else 401,
            "headers": headers,
        }
        await self._refuse()


def events_endpoint(
    stores: HttpClientStores, security: TransportSecuritySettings
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of `GET /events?since=CURSOR&topics=LIST`.

    Args:
        stores: The stores of the server.
        security: The accepted values of the headers Host and Origin.
    """
    guard = TransportSecurityMiddleware(security)

    async def events(request: Request) -> Response:
        if not request.user.is_authenticated:
            return Response(status_code=401, headers={"www-authenticate": _INVALID_TOKEN})
        if (refusal := await guard.validate_request(request)) is not None:
            return refusal
        parameters = request.query_params
        since = request.headers.get("last-event-id") or parameters.get("since")
        try:
            topics = check_topics(filter(None, parameters.get("topics", "").split(",")))
            store = await anyio.to_thread.run_sync(stores.store_of_holder, request.user.username)
            batch = await anyio.to_thread.run_sync(partial(store.changes, since))
        except CapsuleError as error:
            return Response(
                error.message, status_code=400 if isinstance(error, InvalidInput) else 503
            )
        stream = stream_events(
            partial(stores.store_of_holder, request.user.username), topics, batch
        )
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    return events


_MAX_SESSIONS: Final = 500
#: Seconds between two checks for revoked tokens and idle holders.
_CHECK_PERIOD_S: Final = 2.0


def _security(listener: ListeningSocket, hosts: tuple[str, ...]) -> TransportSecuritySettings:
    """Return the accepted values of the headers Host and Origin.

    On loopback they keep out a web page whose name was made to point here (DNS rebinding).
    Elsewhere the server can't know its own names, and a web page has no token. So they are checked
    there only if `hosts` names them.
    """
    names = listener.names(name for host in hosts for name in (host, f"{host}:*"))
    origins = [f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(names), allowed_hosts=names, allowed_origins=origins
    )


class _TokenVerifier:
    """Looks up each token in the file of tokens."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    async def verify_token(self, token: str) -> AccessToken | None:
        try:
            stored = self._tokens.holder_of(token)
        except CapsuleError as error:
            log.error("no client is admitted: %s", error)
            return None
        if stored is None:
            return None
        return AccessToken(
            token="", client_id=stored.name, scopes=[stored.scope], expires_at=stored.expires_s
        )


def token_options(tokens: Tokens) -> dict[str, Any]:
    """Return the options of a server that needs one of these tokens for every request of the
    protocol.
    """
    # Without a resource's address, the SDK uses the issuer's for nothing.
    nowhere = AnyHttpUrl("http://localhost")
    settings = AuthSettings(issuer_url=nowhere, resource_server_url=None)
    return {"token_verifier": _TokenVerifier(tokens), "auth": settings}


def serve(
    server: CapsuleServer,
    stores: HttpClientStores,
    listener: ListeningSocket,
    *,
    tokens: Tokens,
    hosts: tuple[str, ...] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes. Never returns.

    Args:
        server: The server, built with the options of `token_options`.
        stores: The stores of the clients. They are closed at the end.
        listener: The socket.
        tokens: The tokens.
        hosts: Further names by which clients may call the server, such as the name of a proxy.
        ready: Called when requests are answered.
    """
    settings = stores.server_store().settings
    security = _security(listener, hosts)
    server.custom_route("/health", methods=["GET"])(_health)
    server.custom_route(EVENTS, methods=["GET"])(events_endpoint(stores, security))
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=security,
        # A session ends after it was idle as long as a lock may be. Its locks end with it.
        session_idle_timeout=settings.lock_ttl_s,
        max_sessions=_MAX_SESSIONS,
        # The largest message with every character escaped, and room for the rest of the request.
        max_request_body_size=3 * settings.message_bytes + (1 << 20),
    )
    guard = HttpGuard(app, stores.end)

    async def ending() -> None:
        run_in_daemon_thread(stores.release)
        await guard.close()

    # The SDK would log every refusal of a Host or an Origin. The guard logs one a minute.
    logging.getLogger(transport_security.__name__).setLevel(logging.ERROR)
    _raise_open_file_limit()
    tasks: list[Callable[[], Coroutine[Any, Any, None]]] = [
        partial(_close_idle_loop, guard, stores, tokens),
        *server.background_tasks(),
    ]
    process.run(
        guard,
        listener,
        ready,
        stores.close,
        last_s=CLOSING_S,
        background_tasks=tasks,
        ending=ending,
    )


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _close_idle_loop(guard: HttpGuard, stores: HttpClientStores, tokens: Tokens) -> None:
    """End requests of revoked tokens and close idle stores, every `_CHECK_PERIOD_S`."""
    while True:
        await anyio.sleep(_CHECK_PERIOD_S)
        try:
            holders = {token.name for token in tokens.all() if not token.has_expired(time.time())}
        except CapsuleError:
            holders = set()
        guard.cancel_requests_except(holders)
        await anyio.to_thread.run_sync(stores.close_idle, holders)


def _raise_open_file_limit() -> None:
    """Raise the limit of open files as far as permitted, because each session needs some."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
        new_limit = 65536 if hard_limit == resource.RLIM_INFINITY else min(hard_limit, 65536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (new_limit, hard_limit))
