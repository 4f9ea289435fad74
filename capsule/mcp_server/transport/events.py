"""`GET /events`: the events of the store as a stream (server-sent events), for whoever has a token.

What must stay true: a subscriber gets the events that the agent of its token may read, asked anew for each batch. The
id of an event is its durable cursor, so that a client that connects again with `Last-Event-ID` misses none and gets
none twice. The stream says the cursor also while there is no event. The edge of the server ends it with the token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import orjson
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from capsule.errors import CapsuleError, InvalidInput
from capsule.mcp_server.sessions import log
from capsule.watch.events import as_json, check_topics, topics_of

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.mcp_server.sessions import HttpStores

#: Seconds after which a stream without events shows that it lives. A holder's store that is idle is closed later.
_BEAT_S: Final = 15.0


def events_of(stores: HttpStores, named: TransportSecuritySettings) -> Callable[[Request], Awaitable[Response]]:
    """What answers `GET /events?since=CURSOR&topics=LIST` on a server that may be called by these names."""
    guard = TransportSecurityMiddleware(named)

    async def events(request: Request) -> Response:
        if not request.user.is_authenticated:
            return Response(status_code=401, headers={"www-authenticate": 'Bearer error="invalid_token"'})
        if (refused := await guard.validate_request(request)) is not None:
            return refused
        asked = request.query_params
        since = request.headers.get("last-event-id") or asked.get("since")
        try:
            wanted = check_topics(filter(None, asked.get("topics", "").split(",")))
            store = await anyio.to_thread.run_sync(stores.of_holder, request.user.username)
            first = await anyio.to_thread.run_sync(partial(store.changes, since))
        except CapsuleError as error:
            return Response(error.message, status_code=400 if isinstance(error, InvalidInput) else 503)
        stream = _stream(stores, request.user.username, wanted, first)
        return StreamingResponse(stream, media_type="text/event-stream", headers={"cache-control": "no-store"})

    return events


async def _stream(stores: HttpStores, holder: str, wanted: frozenset[str], batch: Changes) -> AsyncIterator[bytes]:
    while True:
        yield _framed(batch, wanted)
        try:
            store = await anyio.to_thread.run_sync(stores.of_holder, holder)
            batch = await store.await_changes(batch.cursor, timeout_s=_BEAT_S)
        except CapsuleError as error:
            log.warning("a stream of events ended: %s", error)
            return


def _framed(batch: Changes, wanted: frozenset[str]) -> bytes:
    """A batch as the stream has it. An id without data is no event, and the place that a client goes on from."""
    events = [
        b"id: %b\ndata: %b\n\n" % (change.cursor.encode(), orjson.dumps(as_json(change)))
        for change in batch.changes
        if wanted.intersection(topics_of(change))
    ]
    return b"".join([*events, b"id: %b\n\n" % batch.cursor.encode()])
