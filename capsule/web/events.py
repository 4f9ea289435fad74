"""`GET /events`: the changes of the store as server-sent events, for open pages.

The stream begins at the cursor of the page, and ends when the visitor's token is revoked.

What must stay true: the id of an event is its durable cursor. A browser that connects again with
`Last-Event-ID`, to this server or to the next one, misses no event and gets none twice.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from capsule.errors import CapsuleError, InvalidInput
from capsule.mcp_server.transport.process import encode_batch, stream_events
from capsule.watch.events import check_topics
from capsule.web.view import View

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


async def _events(request: Request) -> Response:
    """Answer with the stream. With `wait=0`, only the events so far are sent, for browsers that
    can't share one stream.
    """
    view = View(request)
    since = request.headers.get("last-event-id") or view.parameter("since") or None
    admission = view.site.admission
    cookie = request.cookies.get(view.site.cookie, "")

    def store_of_visitor() -> CoreStore:
        if admission.visitor_of(cookie) is None:
            raise InvalidInput("the token was revoked")
        return view.store

    try:
        first = await anyio.to_thread.run_sync(partial(view.store.changes, since))
    except CapsuleError as error:
        status = 400 if isinstance(error, InvalidInput) else 503
        return Response(error.message + "\n", status, media_type="text/plain")
    kind = "text/event-stream"
    if view.parameter("wait") == "0":
        return Response(encode_batch(first, check_topics(())), media_type=kind)
    return StreamingResponse(
        stream_events(store_of_visitor, check_topics(()), first), media_type=kind
    )


ROUTES = [Route("/events", _events)]
