"""The server of the page: the routes, and the process that serves them.

What must stay true: every path but the program's own files goes through the gate; and when the process is asked to end
it ends, whatever browsers still hold open.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from capsule.mcp_server.transport.lifetime import finish, signalled
from capsule.web import events
from capsule.web.admission import Gate
from capsule.web.pages import (
    conversation,
    conversations,
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
from capsule.web.site import TYPES, Site
from capsule.web.view import View, page

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from capsule import Store
    from capsule.mcp_server.transport.address import Listener

#: Seconds that requests still have when the server ends.
_LAST_ANSWERS_S: Final = 0.5


def _static(request: Request) -> Response:
    site: Site = request.app.state.site
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
    Route("/{path:path}", page(_missing)),
]


def application(site: Site, hosts: tuple[str, ...], *, is_secure: bool = False) -> ASGIApp:
    """The pages behind their gate.

    Args:
        site: What they share.
        hosts: What the header `Host` may say.
        is_secure: Whether browsers speak TLS with the server.
    """
    app = Starlette(routes=ROUTES)
    app.state.site = site
    return Gate(app, site.admission, hosts, is_secure=is_secure)


def serve(
    app: ASGIApp, store: Store, listener: Listener, ready: Callable[[], None], tls: tuple[str, str] | None = None
) -> None:
    """Serve until a signal comes; never returns.

    Args:
        app: What `application` gives.
        store: The store; it is closed at the end.
        listener: Where the server listens.
        ready: Called when requests are answered.
        tls: The files of the certificate and of its key; None: without TLS.
    """
    files = {} if tls is None else {"ssl_certfile": tls[0], "ssl_keyfile": tls[1]}
    http = _Uvicorn(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            lifespan="off",
            proxy_headers=False,
            **files,  # type: ignore[arg-type]
        )
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)

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
            while not http.started:
                await anyio.sleep(0.005)
            ready()
            await stopping.wait()
            http.should_exit = True
            with anyio.move_on_after(_LAST_ANSWERS_S):
                await stopped.wait()
            finish(codes[0], store.close)

    anyio.run(run)


class _Uvicorn(uvicorn.Server):
    """uvicorn, without its way of handling signals: it raises them anew when it has ended."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
