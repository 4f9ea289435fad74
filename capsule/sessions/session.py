"""A session: its two files, each with one side that writes it, and what both add up to.

What must stay true: what a side decides, it decides under the mutex of its own file, with both
files read as they are then; and all that one decision gives is one append, durable but for what
`may_be_lost`. A power cut may leave the first events of an append that it interrupted, and not the
later ones: so an answer stands before the end of the message that it answers. What the events mean
stands in `inbound.py`, `outbound.py`, `folds.py` and `rules/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import orjson

from capsule import timestamps
from capsule.engines.interface import (
    INBOUND,
    OUTBOUND,
    Engine,
    EntriesSince,
    Lease,
    Transaction,
    retry,
)
from capsule.errors import ConcurrentWrite, InvalidInput
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.format.json.canonical import order_message
from capsule.ids import check_id, new_message_id
from capsule.sessions.events import Event, may_be_lost
from capsule.sessions.session_state import InboundState, OutboundState, SessionState

#: What a side writes, given what both files say.
EventRule = Callable[[SessionState], list[Event]]
MessageFolder = Literal["inbox", "outbox"]
#: What the heartbeat of a session is noted for.
KIND = "sessions"
F = TypeVar("F", bound=InboundState | OutboundState)
Written = TypeVar("Written", bound=list[Event] | None)


class _SessionFile(Generic[F]):
    """One of the two files, folded as far as it was read."""

    def __init__(self, engine: Engine, kind: str, id: str, new: Callable[[str], F]) -> None:
        self._engine = engine
        self.kind = kind
        self.box: MessageFolder = "inbox" if kind == INBOUND else "outbox"
        self.id = id
        self._new = new
        self._cursor: Any = None
        self.fold = new(id)

    def refresh(self) -> None:
        """Bring the fold up to date."""
        self.apply_news(self._engine.follow(self.kind, self.id, self._cursor))

    def apply_news(self, news: EntriesSince) -> None:
        self._cursor = None  # Until all is taken in: else it is begun anew.
        if news.is_complete:
            self.fold = self._new(self.id)
        for event in news.entries:
            self.fold.apply(event)
        self._cursor = news.position

    def write(
        self, other: _SessionFile[Any], act: Callable[[Transaction], Written], lease: Lease | None
    ) -> Written:
        """What `act` appended, in a transaction in which both folds are up to date, for who has the
        lease.

        None: it wrote in another way.
        """

        def write() -> Written:
            with self._engine.transaction(self.kind, self.id) as transaction:
                transaction.read_set = {} if lease is None else lease.as_read_set
                self.apply_news(transaction.follow(self._cursor))
                # A writer there has taken in its file before it looks here: nobody waits for it.
                other.refresh()
                written = act(transaction)
                self.apply_news(transaction.follow(self._cursor, written))
                return written

        return retry(write, self._engine.name(self.kind, self.id), self.id)


class Session:
    """A session. Use it in one thread; another thread or process makes one for itself.

    Args:
        engine: The engine of the store.
        id: The session. That it exists is found out when it is used: NotFound then.
    """

    #: That of its host or worker: who has lost it writes nothing, but gets StoreBusy.
    lease: Lease | None = None

    def __init__(self, engine: Engine, id: str) -> None:
        self.id = check_id(id)
        self._engine = engine
        self._in = _SessionFile(engine, INBOUND, id, InboundState)
        self._out = _SessionFile(engine, OUTBOUND, id, OutboundState)

    @classmethod
    def create(cls, engine: Engine, id: str, title: str) -> Session:
        """The session with this id, made if it is not there. Raises InvalidInput if an id has a
        dot.

        Cost: two small files, durably.
        """
        if "." in id:
            raise InvalidInput(f"{id[:60]!r} is not an id of a session: it has a dot")
        for kind in (OUTBOUND, INBOUND):
            with suppress(ConcurrentWrite):
                engine.create(kind, new_capsule(id, title, timestamps.now()))
        return cls(engine, id)

    def read(self) -> SessionState:
        """What both sides wrote, up to date; to be read until the next call.

        Raises NotFound, InvalidDocument. Cost: two looks if nothing changed, else reading the new
        events.
        """
        self._out.refresh()  # First, as an ack leaves its file after its message.
        self._in.refresh()
        return self.last_state

    @property
    def last_state(self) -> SessionState:
        """What both sides wrote until the last call, which read or wrote; to be read until the next
        one.
        """
        return SessionState(self._in.fold, self._out.fold)

    def write_inbound(self, edit: EventRule) -> list[Event]:
        """Write to the inbound, as the host.

        Args:
            edit: Gives the events to write, from both files as they are; none: nothing is written.
                What must not be missing when the others are there comes first. It runs under the
                mutex, and again if another program wrote the file meanwhile, so it only decides.

        Returns: the events as they were written, each with its id and time.

        Raises StoreBusy, Refused, StorageFailed, and the errors of `edit`; then nothing was
        written. Cost: one append, durably.
        """
        return self._write(self._in, self._out, edit, {})

    def write_outbound(
        self, edit: EventRule, files: Mapping[str, bytes] | None = None
    ) -> list[Event]:
        """Write to the outbound, as the worker, and files, by their names, to the outbox if
        anything is written.

        As `write_inbound`. A compaction takes out the files that no message names.
        """
        return self._write(self._out, self._in, edit, files or {})

    def _write(
        self,
        mine: _SessionFile[Any],
        other: _SessionFile[Any],
        edit: EventRule,
        files: Mapping[str, bytes],
    ) -> list[Event]:
        made: list[Event] = []

        def act(transaction: Transaction) -> list[Event]:
            if made and all(
                transaction.find(event["id"]) for event in made
            ):  # By a try that was interrupted.
                transaction.ensure_durable()
                return made
            now = timestamps.now(transaction.state.newest_message_time)
            made[:] = [_complete(event, now) for event in edit(self.last_state)]
            if made:
                for name, data in files.items():
                    self._engine.files.write(mine.box, self.id, name, data)
                encoded = [codec.encode_entry(event) for event in made]
                stamp = timestamps.later_than(transaction.state.newest_updated_at)
                transaction.waits_for_flush = not all(map(may_be_lost, made))
                transaction.append(made, encoded, stamp, time=now, head=None, ends_active=True)
            return made

        return mine.write(other, act, self.lease)

    def compact(self, now: str) -> None:
        """Rewrite both files with the fewest events that say the same, unless they have no more,
        and erase the files of the messages that are done. Whoever follows them reads them anew.

        Args:
            now: The time.

        Raises StoreBusy, Refused, StorageFailed. Cost: proportional to the files, of which each is
        bounded.
        """

        def act(
            box: MessageFolder,
            compacted: Callable[[SessionState, str], list[Event]],
            transaction: Transaction,
        ) -> None:
            events, document = (
                [_complete(event, now) for event in compacted(self.last_state, now)],
                transaction.document(),
            )
            gone = {
                each.get("id") for each in document["history"] if each.get("event") == "message"
            }
            gone -= {event["id"] for event in events}
            if gone or len(events) < transaction.state.entries:
                stamp = timestamps.later_than(transaction.state.newest_updated_at)
                transaction.replace(document | {"updatedAt": stamp, "history": events})
            said = codec.encode_entries(events)
            for name in self._engine.files.names(box, self.id):
                if orjson.dumps(name)[1:-1] not in said:
                    self._engine.files.erase(box, self.id, name)

        self._in.write(
            self._out, partial(act, self._in.box, SessionState.compacted_inbound), self.lease
        )
        self._out.write(
            self._in, partial(act, self._out.box, SessionState.compacted_outbound), self.lease
        )

    def record_heartbeat(self) -> None:
        """Note that the worker is at work. Any thread may. Cost: writing a byte, not durably."""
        self._engine.leases.record_heartbeat(self.id)

    def heartbeat(self) -> str | None:
        """When the worker was last at work; None: never. Cost: a look at a file."""
        return self._engine.leases.last_heartbeat(self.id)

    def file(self, box: MessageFolder, name: str) -> bytes:
        """What a file of a message holds. Raises NotFound, InvalidInput, InvalidDocument. Cost:
        reading it.
        """
        return self._engine.files.read(box, self.id, name)


def _complete(event: Event, now: str) -> Event:
    """An event with an id and a time, in canonical order."""
    return order_message({"timestamp": now, "id": new_message_id()} | event)
