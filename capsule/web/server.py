"""The server of the page: the routes, and the process that serves them.

What must stay true: every path goes through the gate; the program's own files and the way in are
open to everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from capsule.mcp_server.transport import http_process
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

    from capsule.mcp_server.transport.http_process import ListeningSocket

#: Seconds that requests still have when the server ends.
_LAST_ANSWERS_S: Final = 0.5


async def _static(
    request: Request,
) -> Response:  # From memory: a thread would cost more than the answer.
    site: WebSite = request.app.state.site
    name = request.path_params["path"].partition("/")[2]
    if name not in site.static:
        return Response("there is no such file\n", 404, media_type="text/plain")
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(site.static[name], media_type=TYPES[name.rpartition(".")[2]], headers=headers)


def _missing(view: View) -> Response:
    from capsule.errors import NotFound

    raise NotFound(f"there is no page {view.request.url.path}", id="")


#: All addresses.
ROUTES: Final = [
    Route("/static/{path:path}", _static),  # All of it, as no visitor is known there.
    *entry.ROUTES,
    *events.ROUTES,
    *conversations.ROUTES,
    *writing.ROUTES,  # Before those that take any id of a message.
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
    """The pages behind their gate.

    Args:
        site: What they share.
        hosts: What the header `Host` may say.
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
    """Serve until a signal comes; never returns.

    Args:
        site: What the pages share. Its store is closed at the end.
        hosts: As in `application`.
        listener: Where the server listens.
        ready: Called when requests are answered.
        tls: The files of the certificate and of its key; None: without TLS.
    """
    files = {} if tls is None else {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]}
    options: dict[str, Any] = {
        "lifespan": "off",
        "proxy_headers": False,
        **site.connections.options(),
        **files,
    }
    http_process.run(
        application(site, hosts),
        listener,
        ready,
        site.store.close,
        last_s=_LAST_ANSWERS_S,
        **options,
    )
