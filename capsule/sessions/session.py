"""A session: its two files, each with one writer, and the state that their events add up to.

`Session` reads both files as far as they are new, and writes to one of them. A writer passes a
rule: a function from the state of the session to the events to append. The rule runs in a
transaction, with both files up to date. `events.py` and `session_state.py` define what the events
mean, and `rules/` has the rules.

What must stay true:
- The host decides under the mutex of the inbound file, and the worker under the mutex of the
  outbound file, each with both files as they are then.
- All events of one decision are one append. It is durable when the call returns, except for events
  that `may_be_lost`.
- A power cut may leave only the first events of an append that it interrupted. So an answer comes
  before the end of the message that it answers.
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

#: Returns the events to append, for the state of the session.
EventRule = Callable[[SessionState], list[Event]]
#: The folder of the files that messages name: those of inbound or of outbound messages.
MessageFolder = Literal["inbox", "outbox"]
#: The kind of document under which heartbeats of sessions are recorded.
KIND = "sessions"
F = TypeVar("F", bound=InboundState | OutboundState)
AppendedEvents = TypeVar("AppendedEvents", bound=list[Event] | None)


class _SessionFile(Generic[F]):
    """One of the two files, with the state of the events that were read so far.

    Args:
        engine: The engine of the store.
        kind: `INBOUND` or `OUTBOUND`.
        id: The session's id.
        new_state: Returns the state of an empty file.
    """

    def __init__(self, engine: Engine, kind: str, id: str, new_state: Callable[[str], F]) -> None:
        self._engine = engine
        self.kind = kind
        self.folder: MessageFolder = "inbox" if kind == INBOUND else "outbox"
        self.id = id
        self._new_state = new_state
        #: The position up to which the file was read. None: it is read from the beginning.
        self._cursor: Any = None
        self.state = new_state(id)

    def refresh(self) -> None:
        """Apply the events that were written since the last call."""
        self.apply_entries(self._engine.follow(self.kind, self.id, self._cursor))

    def apply_entries(self, entries: EntriesSince) -> None:
        """Apply events that follow the cursor, and move it."""
        self._cursor = None  # If an event raises, the file is read from the beginning next time.
        if entries.is_complete:
            self.state = self._new_state(self.id)
        for event in entries.entries:
            self.state.apply(event)
        self._cursor = entries.position

    def write(
        self,
        other_file: _SessionFile[Any],
        act: Callable[[Transaction], AppendedEvents],
        lease: Lease | None,
    ) -> AppendedEvents:
        """Run `act` in a transaction of this file, with the states of both files up to date.

        Args:
            other_file: The other file.
            act: Appends to the file and returns the events, or returns None if it wrote otherwise.
                It runs again if another program wrote the file meanwhile.
            lease: The lease without which nothing is written. None: none is needed.

        Returns:
            What `act` returned.
        """

        def write() -> AppendedEvents:
            with self._engine.transaction(self.kind, self.id) as transaction:
                transaction.read_set = {} if lease is None else lease.as_read_set
                self.apply_entries(transaction.follow(self._cursor))
                # The writer of the other file has written it before it looks at this one, so none
                # of the two waits for the other.
                other_file.refresh()
                appended = act(transaction)
                self.apply_entries(transaction.follow(self._cursor, appended))
                return appended

        return retry(write, self._engine.name(self.kind, self.id), self.id)


class Session:
    """A session. Use it in one thread. Another thread or process makes one for itself.

    Args:
        engine: The engine of the store.
        id: The session's id. If it does not exist, its use raises NotFound.

    Attributes:
        lease: The lease of its host or worker. A holder that lost it gets StoreBusy and writes
            nothing.
    """

    lease: Lease | None = None

    def __init__(self, engine: Engine, id: str) -> None:
        self.id = check_id(id)
        self._engine = engine
        self._inbound = _SessionFile(engine, INBOUND, id, InboundState)
        self._outbound = _SessionFile(engine, OUTBOUND, id, OutboundState)

    @classmethod
    def create(cls, engine: Engine, id: str, title: str) -> Session:
        """Return the session with this id. It is created if it does not exist.

        Raises InvalidInput if the id has a dot. Cost: two small files, durably.
        """
        if "." in id:
            raise InvalidInput(f"{id[:60]!r} is not an id of a session: it has a dot")
        for kind in (OUTBOUND, INBOUND):
            with suppress(ConcurrentWrite):
                engine.create(kind, new_capsule(id, title, timestamps.now()))
        return cls(engine, id)

    def read(self) -> SessionState:
        """Return the current state. It changes with the next call.

        Raises NotFound, InvalidDocument. Cost: two looks if nothing changed, or else reading the
        new events.
        """
        self._outbound.refresh()  # First, because an ack leaves its file after its message.
        self._inbound.refresh()
        return self.last_state

    @property
    def last_state(self) -> SessionState:
        """The state at the last call that read or wrote. It changes with the next call."""
        return SessionState(inbound=self._inbound.state, outbound=self._outbound.state)

    def write_inbound(self, rule: EventRule) -> list[Event]:
        """Write to the inbound file, as the host.

        Args:
            rule: Returns the events to write, or nothing. An event that others depend on comes
                first. The rule runs under the mutex, and again if another program wrote the file
                meanwhile, so it may only decide.

        Returns:
            The events as they were written, each with its id and time.

        Raises StoreBusy, Refused, StorageFailed, and the errors of `rule`. Then nothing was
        written. Cost: one append, durably.
        """
        return self._write(self._inbound, self._outbound, rule, {})

    def write_outbound(
        self, rule: EventRule, files: Mapping[str, bytes] | None = None
    ) -> list[Event]:
        """Write to the outbound file, as the worker.

        Args:
            rule: As for `write_inbound`.
            files: Files of the messages, by name. They are written to the outbox together with the
                events. A compaction erases files that no message names any more.

        Returns and raises as `write_inbound`.
        """
        return self._write(self._outbound, self._inbound, rule, files or {})

    def _write(
        self,
        own_file: _SessionFile[Any],
        other_file: _SessionFile[Any],
        rule: EventRule,
        files: Mapping[str, bytes],
    ) -> list[Event]:
        """Append the events of a rule to one file, once, even if a try is interrupted."""
        new_events: list[Event] = []

        def act(transaction: Transaction) -> list[Event]:
            if new_events and all(transaction.find(event["id"]) for event in new_events):
                # An interrupted try has appended them.
                transaction.ensure_durable()
                return new_events
            now = timestamps.now(transaction.state.newest_message_time)
            new_events[:] = [_complete(event, now) for event in rule(self.last_state)]
            if new_events:
                for name, data in files.items():
                    self._engine.files.write(own_file.folder, self.id, name, data)
                encoded = [codec.encode_entry(event) for event in new_events]
                updated_at = timestamps.later_than(transaction.state.newest_updated_at)
                transaction.waits_for_flush = not all(map(may_be_lost, new_events))
                transaction.append(
                    new_events, encoded, updated_at, time=now, head=None, ends_active=True
                )
            return new_events

        return own_file.write(other_file, act, self.lease)

    def compact(self, now: str) -> None:
        """Rewrite both files with the fewest events that give the same state, and erase the files
        of finished messages. A file that has no more events already stays. Readers that follow a
        rewritten file read it from the beginning.

        Args:
            now: The time.

        Raises StoreBusy, Refused, StorageFailed. Cost: proportional to the files, which have a
        limited size.
        """
        self._inbound.write(
            self._outbound,
            partial(
                self._replace_events, self._inbound.folder, SessionState.compacted_inbound, now
            ),
            self.lease,
        )
        self._outbound.write(
            self._inbound,
            partial(
                self._replace_events, self._outbound.folder, SessionState.compacted_outbound, now
            ),
            self.lease,
        )

    def _replace_events(
        self,
        folder: MessageFolder,
        compacted: Callable[[SessionState, str], list[Event]],
        now: str,
        transaction: Transaction,
    ) -> None:
        """Replace the events of a file by its compacted events, and erase files without a message."""
        new_events = [_complete(event, now) for event in compacted(self.last_state, now)]
        document = transaction.document()
        removed_ids = {
            entry.get("id") for entry in document["history"] if entry.get("event") == "message"
        }
        removed_ids -= {event["id"] for event in new_events}
        if removed_ids or len(new_events) < transaction.state.entries:
            updated_at = timestamps.later_than(transaction.state.newest_updated_at)
            transaction.replace(document | {"updatedAt": updated_at, "history": new_events})
        encoded = codec.encode_entries(new_events)
        for name in self._engine.files.names(folder, self.id):
            if orjson.dumps(name)[1:-1] not in encoded:
                self._engine.files.erase(folder, self.id, name)

    def record_heartbeat(self) -> None:
        """Record that the worker is at work. Any thread may call it. Cost: writing a byte."""
        self._engine.leases.record_heartbeat(self.id)

    def heartbeat(self) -> str | None:
        """Return when the worker was last at work. None: never. Cost: a look at a file."""
        return self._engine.leases.last_heartbeat(self.id)

    def file(self, folder: MessageFolder, name: str) -> bytes:
        """Return the bytes of a file of a message.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading it.
        """
        return self._engine.files.read(folder, self.id, name)


def _complete(event: Event, now: str) -> Event:
    """Return an event with an id and a time, in canonical order."""
    return order_message({"timestamp": now, "id": new_message_id()} | event)
