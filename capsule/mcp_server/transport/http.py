"""Serving many clients over streamable HTTP.

What must stay true: every request needs a token; every refusal is a JSON-RPC error; and when the
server stops or a token is revoked, open requests end as HTTP ends them: with a complete answer, or
a stream that is closed.

The SDK's application checks the token, the Host, the Origin and the size, and has the sessions;
`edge`, in front of it, does the rest.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from mcp.server import transport_security
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.settings import AuthSettings
from mcp.server.transport_security import TransportSecuritySettings
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from capsule.errors import CapsuleError
from capsule.mcp_server.sessions import log
from capsule.mcp_server.transport import edge, running
from capsule.mcp_server.transport.address import Listener
from capsule.mcp_server.transport.edge import EVENTS, PATH
from capsule.mcp_server.transport.events import events_of
from capsule.mcp_server.transport.lifetime import beside

if TYPE_CHECKING:
    from capsule.mcp_server.server import CapsuleServer
    from capsule.mcp_server.sessions import HttpStores
    from capsule.mcp_server.transport.tokens import Tokens

_MOST_SESSIONS: Final = 500
#: Seconds between two looks for revoked tokens and idle holders.
_TIDY_S: Final = 2.0


def _security(listener: Listener, hosts: tuple[str, ...]) -> TransportSecuritySettings:
    """Which values of the headers Host and Origin are accepted.

    On loopback that is what keeps out a web page whose name was made to point here (DNS rebinding).
    Elsewhere the server can't know its names, and a page has no token; so there they are checked
    when `hosts` says them.
    """
    names = listener.names(name for host in hosts for name in (host, f"{host}:*"))
    origins = [f"{scheme}://{name}" for name in names for scheme in ("http", "https")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=bool(names), allowed_hosts=names, allowed_origins=origins
    )


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
        return AccessToken(
            token="", client_id=known.name, scopes=[known.scope], expires_at=known.expires_s
        )


def admitting(tokens: Tokens) -> dict[str, Any]:
    """The options of a server whose every request needs one of these tokens."""
    # Without a resource's address, the SDK uses the issuer's for nothing.
    nowhere = AnyHttpUrl("http://localhost")
    settings = AuthSettings(issuer_url=nowhere, resource_server_url=None)
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
        server: Built with the options of `admitting`.
        hosts: Further names by which clients may call the server, such as that of a proxy before
            it.
        ready: Called when requests are answered.
    """
    settings = stores.main().settings

    named = _security(listener, hosts)
    server.custom_route("/health", methods=["GET"])(_health)
    server.custom_route(EVENTS, methods=["GET"])(events_of(stores, named))
    app = server.streamable_http_app(
        streamable_http_path=PATH,
        transport_security=named,
        # A session is a lease: one that is idle for as long as a lock may be has gone, and its
        # locks with it.
        session_idle_timeout=settings.lock_ttl_s,
        max_sessions=_MOST_SESSIONS,
        # A message of the largest size, with every letter beyond ASCII escaped, and room for what
        # is around it.
        max_request_body_size=3 * settings.message_bytes + (1 << 20),
    )
    outer = edge.Edge(app, stores.end)

    async def ending() -> None:
        beside(stores.release)
        await outer.close()

    # It logs each refusal of a Host or an Origin, and the edge one a minute.
    logging.getLogger(transport_security.__name__).setLevel(logging.ERROR)
    _raise_limit_of_files()
    works: list[Callable[[], Coroutine[Any, Any, None]]] = [
        partial(_tidy, outer, stores, tokens),
        *server.beside(),
    ]
    running.run(
        outer, listener, ready, stores.close, last_s=edge.CLOSING_S, beside=works, ending=ending
    )


async def _health(request: Request) -> Response:
    return JSONResponse({"status": "ok"})


async def _tidy(outer: edge.Edge, stores: HttpStores, tokens: Tokens) -> None:
    while True:
        await anyio.sleep(_TIDY_S)
        try:
            holders = {token.name for token in tokens.all() if not token.is_over(time.time())}
        except CapsuleError:
            holders = set()
        outer.drop_all_but(holders)
        await anyio.to_thread.run_sync(stores.tidy, holders)


def _raise_limit_of_files() -> None:
    """Raise the limit of open files as far as it goes: each session needs some."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
