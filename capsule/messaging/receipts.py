"""Which messages an agent got and acknowledged: from the answer of `listen` to the read cursors in the
document of the agent.

What must stay true: a message counts as read when it was acknowledged, and not before, so that an
agent that dies in between gets it again. A cursor only moves forward. Messages that were returned
and not acknowledged are known to this process alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from capsule import timestamps
from capsule.engines.read_marks import UnreadFilter
from capsule.errors import CapsuleError, InvalidInput
from capsule.messaging import doorbells, notices
from capsule.messaging.directory import StoreAgents
from capsule.messaging.unread import (
    cursor_key,
    first_unread_position,
    make_cursor,
    marks_in_cursor,
    parse_cursor_key,
    part_cursors_by_conversation,
)

if TYPE_CHECKING:
    from capsule.engines.interface import DocumentVersion
    from capsule.engines.read_marks import ReadMark
    from capsule.messaging.directory import Document
    from capsule.messaging.mail import Mail
    from capsule.messaging.unread import Part
    from capsule.store.store import CoreStore


_log = logging.getLogger("capsule")
#: By the key of a cursor, how far an agent has read there.
ReadMarks = Mapping[str, "ReadMark"]


class Receipts:
    """What the agents of one open store have acknowledged.

    Args:
        store: The store, as its owner sees it.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.object_of(StoreAgents)
        self._guard = threading.Lock()
        self._pending: dict[str, dict[str, ReadMark]] = {}

    def note_given(self, agent: str, mail: Iterable[Mail], part: Part | None = None) -> str:
        """Note what an agent was given of the part that it reads; the cursor that names it."""
        marks = {cursor_key(each.conversation, part): (each.at, each.front) for each in mail}
        with self._guard:
            pending = self._pending.setdefault(agent, {})
            for (
                key,
                mark,
            ) in marks.items():  # Of two threads that listen, one may have been given more.
                pending[key] = max(mark, pending.get(key, mark))
        named = [
            f"{quote(key, safe='/')}:{place}:{quote(mark, safe='')}"
            for key, (place, mark) in marks.items()
        ]
        return ",".join(named)

    def pending(self, agent: str) -> ReadMarks:
        """All that an agent was given on this store, once."""
        with self._guard:
            return self._pending.pop(agent, {})

    def acknowledge(
        self,
        agent: str,
        marks: ReadMarks,
        known: DocumentVersion | None = None,
        then: Callable[[Document], object] = lambda document: None,
    ) -> None:
        """Acknowledge everything up to these messages, which the index has.

        Args:
            agent: The agent.
            marks: The messages.
            known: The version of the agent's document, if it was read just now; None: it is read.
            then: Asks the index more, of the same state, given the agent's document as it is to be.
                It may run again.

        Cost: writing a small file.
        """
        questions = self._store.queries

        def change(document: Document) -> None:
            cursors, concerns = dict(document.get("cursors") or {}), document.get("concerns") or {}
            parts = part_cursors_by_conversation(cursors)
            read: Document = {}
            for key, (place, message) in marks.items():
                id, part = parse_cursor_key(key)
                was, marks_at = (
                    marks_in_cursor(cursors.get(key)),
                    partial(questions.ids_at, id, refresh=False),
                )
                if first_unread_position(was, marks_at) > place:
                    continue
                found = questions.unread_positions(
                    UnreadFilter(was, (agent,), mentioning=agent, part=part), id, refresh=False
                )
                # A message that was moved or removed is no mark: what stands behind the cursor
                # comes again.
                cursor = make_cursor(place, message, marks_at)
                if cursor is None:
                    continue
                cursors[key] = cursor
                for other, its in parts.get(id, {}).items() if part is None else ():
                    if first_unread_position(marks_in_cursor(its), marks_at) <= place + 1:
                        del cursors[
                            cursor_key(id, other)
                        ]  # The cursor of the conversation says as much.
                read |= {
                    each.message: {"conversation": id} for each in found if each.place <= place
                }
            document["cursors"] = cursors
            if read := {id: about for id, about in read.items() if id not in concerns}:
                now = timestamps.now()
                document["concerns"] = concerns | {
                    id: {**about, "readAt": now} for id, about in read.items()
                }
            then(document)

        self._people.documents.edit(
            agent,
            lambda document: questions.in_one_transaction(partial(change, document)),
            known=known,
        )
        try:
            doorbells.record_read(self._store, agent)
        except CapsuleError as error:
            _log.warning("the doorbells of %s do not know that it has read: %s", agent, error)
        notices.update(self._store, agent)

    def done(self, agent: str, message: str, conversation: str, *, is_done: bool) -> None:
        """Note that an agent is done with a message that mentions it, or that it is not."""

        def change(document: Document) -> None:
            concerns, now = document.get("concerns") or {}, timestamps.now()
            about = {"conversation": conversation, "readAt": now, "doneAt": now} | concerns.get(
                message, {}
            )
            if not is_done:
                del about["doneAt"]
            document["concerns"] = concerns | {message: about}

        self._people.documents.edit(agent, change)

    @staticmethod
    def marks_in(cursor: str) -> ReadMarks:
        """What a cursor names. Raises InvalidInput."""
        try:
            parts = [part.split(":") for part in cursor.split(",") if part]
            return {unquote(key): (int(place), unquote(message)) for key, place, message in parts}
        except ValueError:
            raise InvalidInput(
                "that is not a cursor; take `cursor` of what `listen` returned"
            ) from None
