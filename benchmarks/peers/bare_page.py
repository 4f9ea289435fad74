"""The limit for `capsule web`: a page of a few bytes by bare Starlette, and texts that it sends on
from memory.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Route

_PAGE = (
    "<!doctype html><html lang=en><title>Bare</title><script src=/script.js "
    "defer></script><main>A text </main></html>"
)
_SCRIPT = (
    "new EventSource('/events').onmessage = sent => "
    "document.querySelector('main').append(sent.data, ' ')"
)
_waiting: set[asyncio.Queue[str]] = set()


async def _page(request: Request) -> Response:
    return HTMLResponse(_PAGE)


async def _still(request: Request) -> Response:
    return HTMLResponse(_PAGE.replace("<script src=/script.js defer></script>", ""))


async def _script(request: Request) -> Response:
    return Response(_SCRIPT, media_type="text/javascript")


async def _events(request: Request) -> Response:
    async def lines() -> AsyncIterator[str]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        _waiting.add(queue)
        try:
            yield "data: mark-0-\n\n"  # Who waits for the first text knows that it listens.
            while True:
                yield f"data: {await queue.get()}\n\n"
        finally:
            _waiting.discard(queue)

    return StreamingResponse(lines(), media_type="text/event-stream")


async def _append(request: Request) -> Response:
    text = (await request.body()).decode()
    for queue in _waiting:
        queue.put_nowait(text)
    return Response()


def main() -> None:
    """Print the address, and serve until the process is killed."""
    routes = [
        Route("/", _page),
        Route("/still", _still),
        Route("/script.js", _script),
        Route("/events", _events),
    ]
    app = Starlette(routes=[*routes, Route("/append", _append, methods=["POST"])])
    listening = socket.create_server(("127.0.0.1", 0))
    # asyncio sets it only where the protocol was named: else the body of a small answer waits 40 ms
    # behind its head.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run([listening])


if __name__ == "__main__":
    main()
