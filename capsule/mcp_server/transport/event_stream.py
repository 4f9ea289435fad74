"""Encode the events of a store as a stream of server-sent events.

What must stay true: for each batch the store of the reader is asked for again, once to wait for the
batch and once before it is sent, so that a reader whose permission ended gets nothing more. The id
of an event is its durable cursor: a client that reconnects with `Last-Event-ID` misses no event and
gets none twice. The stream reports the cursor also while there are no events.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

import anyio.to_thread
import orjson

from capsule.errors import CapsuleError
from capsule.watch.events import as_json, topics_of

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.store.store import CoreStore


_log = logging.getLogger("capsule")
#: Seconds after which a stream without events shows that it lives.
BEAT_S: Final = 15.0


async def stream_events(
    store_of: Callable[[], CoreStore], wanted: frozenset[str], batch: Changes
) -> AsyncIterator[bytes]:
    """The stream, from a batch of changes on, until the store ends or `store_of` refuses.

    Args:
        store_of: Gives the store that acts for the reader; called in a thread, for each batch.
            Raises CapsuleError.
        wanted: The topics, as `check_topics` gives them.
        batch: The changes to begin with.
    """
    while True:
        yield encode_batch(batch, wanted)
        try:
            store = await anyio.to_thread.run_sync(store_of)
            batch = await store.await_changes(batch.cursor, timeout_s=BEAT_S)
            await anyio.to_thread.run_sync(
                store_of
            )  # What the reader may see can have changed in the wait.
        except CapsuleError as error:
            _log.warning("a stream of events ended: %s", error)
            return


def encode_batch(batch: Changes, wanted: frozenset[str]) -> bytes:
    """A batch as the stream has it. An id without data is no event, and the place that a client
    goes on from.
    """
    events = [
        b"id: %b\ndata: %b\n\n" % (change.cursor.encode(), orjson.dumps(as_json(change)))
        for change in batch.changes
        if wanted.intersection(topics_of(change))
    ]
    return b"".join([*events, b"id: %b\n\n" % batch.cursor.encode()])
