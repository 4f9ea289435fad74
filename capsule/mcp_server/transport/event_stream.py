"""Encode the events of a store as a stream of server-sent events.

The id of an event is its durable cursor. A client that reconnects with `Last-Event-ID` misses no
event and gets none twice. The stream sends its cursor also while there are no events.

What must stay true: for each batch the reader's store is asked for twice, before the wait and
before the batch is sent. So a reader whose permission has ended gets nothing more.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import orjson

from capsule.errors import CapsuleError
from capsule.watch.events import event_json, topics_of

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.store.store import CoreStore


_log = logging.getLogger("capsule")
#: Seconds after which a stream without events sends its cursor, to show that it is alive.
BEAT_S: Final = 15.0


async def stream_events(
    store_of: Callable[[], CoreStore], topics: frozenset[str], batch: Changes
) -> AsyncIterator[bytes]:
    """Yield the stream from a batch of changes on, until the store is closed or `store_of` refuses.

    Args:
        store_of: Returns the store that acts for the reader. Called in a thread for each batch.
            Raises
            CapsuleError: the reader has no permission any more.
        topics: The topics, as `check_topics` returns them.
        batch: The changes to begin with.
    """
    while True:
        yield encode_batch(batch, topics)
        try:
            store = await anyio.to_thread.run_sync(store_of)
            batch = await store.await_changes(batch.cursor, timeout_s=BEAT_S)
            # The reader's permission may have ended during the wait.
            await anyio.to_thread.run_sync(store_of)
        except CapsuleError as error:
            _log.warning("a stream of events ended: %s", error)
            return


def encode_batch(batch: Changes, topics: frozenset[str]) -> bytes:
    """Return a batch as bytes of the stream. The last id has no data: it is no event, but the
    position from which a client continues.
    """
    events = [
        b"id: %b\ndata: %b\n\n" % (change.cursor.encode(), orjson.dumps(event_json(change)))
        for change in batch.changes
        if topics.intersection(topics_of(change))
    ]
    return b"".join([*events, b"id: %b\n\n" % batch.cursor.encode()])
