"""The routes of the pages, and the process that serves them.

What must stay true: every request goes through the gate. Only the files of the program (scripts,
styles) and the page to sign in are open to everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from capsule.mcp_server.transport import process
from capsule.web import events
from capsule.web.gate import Gate
from capsule.web.pages import (
    conversation,
    conversations,
    entry,
    history,
    inbox,
    overview,
    people,
    repairs,
    search,
    transfer,
    workers,
    writing,
)
from capsule.web.site import TYPES, WebSite
from capsule.web.view import View, get

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from capsule.mcp_server.transport.process import ListeningSocket

#: How long requests may still run when the server ends, in seconds.
_SHUTDOWN_S: Final = 0.5


async def _static(request: Request) -> Response:
    """Return a file of the program from memory, without the cost of a thread."""
    site: WebSite = request.app.state.site
    name = request.path_params["path"].partition("/")[2]
    if name not in site.static:
        return Response("there is no such file\n", 404, media_type="text/plain")
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(site.static[name], media_type=TYPES[name.rpartition(".")[2]], headers=headers)


def _missing(view: View) -> Response:
    from capsule.errors import NotFound

    raise NotFound(f"there is no page {view.request.url.path}", id="")


#: All routes. The first one that matches is used.
ROUTES: Final = [
    Route("/static/{path:path}", _static),  # No page: here no visitor is known.
    *entry.ROUTES,
    *events.ROUTES,
    *conversations.ROUTES,
    *writing.ROUTES,  # Before `conversation`, whose routes match any id of a message.
    *transfer.ROUTES,
    *conversation.ROUTES,
    *history.ROUTES,
    *inbox.ROUTES,
    *search.ROUTES,
    *people.ROUTES,
    *workers.ROUTES,
    *repairs.ROUTES,
    *overview.ROUTES,
    get("/{path:path}", _missing),
]


def application(site: WebSite, hosts: tuple[str, ...]) -> ASGIApp:
    """Return the application: the pages behind their gate.

    Args:
        site: The shared parts of the pages.
        hosts: The allowed values of the header `Host`, with the port.
    """
    app = Starlette(routes=ROUTES)
    app.state.site = site
    return Gate(app, site, hosts)


def serve(
    site: WebSite,
    hosts: tuple[str, ...],
    listener: ListeningSocket,
    ready: Callable[[], None],
    tls: tuple[str, str] | None = None,
) -> None:
    """Serve until the process gets a signal. Never returns.

    Args:
        site: The shared parts of the pages. Its store is closed at the end.
        hosts: As in `application`.
        listener: The socket of the server.
        ready: Called when the server accepts requests.
        tls: The paths of the certificate and of its key. None: without TLS.
    """
    options: dict[str, Any] = {
        "lifespan": "off",
        "proxy_headers": False,
        **site.connections.options(),
    }
    if tls is not None:
        options["ssl_certfile"], options["ssl_keyfile"] = tls
    process.run(
        application(site, hosts),
        listener,
        ready,
        site.store.close,
        last_s=_SHUTDOWN_S,
        **options,
    )
