"""`GET /events`: the events of the store as a stream (server-sent events), for whoever has a token.

What must stay true: a subscriber gets the events that the agent of its token may read, asked anew
for each batch, as `capsule.mcp_server.transport.served` says. The edge of the server ends the
stream with the token.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from capsule.errors import CapsuleError, InvalidInput
from capsule.mcp_server.transport.served import streamed
from capsule.watch.events import check_topics

if TYPE_CHECKING:
    from capsule.mcp_server.sessions import HttpStores


def events_of(
    stores: HttpStores, named: TransportSecuritySettings
) -> Callable[[Request], Awaitable[Response]]:
    """What answers `GET /events?since=CURSOR&topics=LIST` on a server that may be called by these
    names.
    """
    guard = TransportSecurityMiddleware(named)

    async def events(request: Request) -> Response:
        if not request.user.is_authenticated:
            return Response(
                status_code=401, headers={"www-authenticate": 'Bearer error="invalid_token"'}
            )
        if (refused := await guard.validate_request(request)) is not None:
            return refused
        asked = request.query_params
        since = request.headers.get("last-event-id") or asked.get("since")
        try:
            wanted = check_topics(filter(None, asked.get("topics", "").split(",")))
            store = await anyio.to_thread.run_sync(stores.of_holder, request.user.username)
            first = await anyio.to_thread.run_sync(partial(store.changes, since))
        except CapsuleError as error:
            return Response(
                error.message, status_code=400 if isinstance(error, InvalidInput) else 503
            )
        stream = streamed(partial(stores.of_holder, request.user.username), wanted, first)
        return StreamingResponse(
            stream, media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    return events
