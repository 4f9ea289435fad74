"""Which messages an agent got and acknowledged: from the answer of `listen` to the read cursors in the
document of the agent.

`listen` records what it returned (`record_returned`). The next call, or `ack`, takes these marks
(`take_pending`) and acknowledges them (`acknowledge`): the read cursors move, the messages that
mention the agent are noted as read, and its doorbells and notices learn of it.

What must stay true: a message counts as read when it was acknowledged, and not before, so that an
agent that dies in between gets it again. A cursor only moves forward. Messages that were returned
and not acknowledged are known to this process alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
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
#: How far an agent has read, by the keys of its cursors.
ReadMarks = Mapping[str, "ReadMark"]


class Receipts:
    """What the agents of one open store have acknowledged.

    Args:
        store: The store, as its owner sees it.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.object_of(StoreAgents)
        self._thread_lock = threading.Lock()
        self._pending: dict[str, dict[str, ReadMark]] = {}

    def record_returned(self, agent: str, mail: Iterable[Mail], part: Part | None = None) -> str:
        """Record that messages were returned to an agent, and return the cursor that names them.

        Args:
            agent: The agent.
            mail: The messages.
            part: The part of each conversation that the agent reads. None: everything.
        """
        marks = {}
        for message in mail:
            marks[cursor_key(message.conversation, part)] = message.at, message.front
        with self._thread_lock:
            pending = self._pending.setdefault(agent, {})
            for key, mark in marks.items():
                # Another thread of the agent may have got more.
                pending[key] = max(mark, pending.get(key, mark))
        pieces = []
        for key, (position, digest) in marks.items():
            pieces.append(f"{quote(key, safe='/')}:{position}:{quote(digest, safe='')}")
        return ",".join(pieces)

    def take_pending(self, agent: str) -> ReadMarks:
        """Return the marks of everything that was returned to an agent, and forget them."""
        with self._thread_lock:
            return self._pending.pop(agent, {})

    def acknowledge(
        self,
        agent: str,
        marks: ReadMarks,
        last_version: DocumentVersion | None = None,
        after_change: Callable[[Document], object] = lambda document: None,
    ) -> None:
        """Acknowledge everything up to some messages, which the index has.

        Args:
            agent: The agent.
            marks: The messages.
            last_version: The version of the agent's document, if it was read just now. None: it is
                read.
            after_change: Is called in the same transaction of the index, with the agent's document
                as it will be. It may be called again if another process changed the document.

        Cost: writing a small file.
        """
        queries = self._store.queries

        def change(document: Document) -> None:
            self._move_cursors(agent, document, marks)
            after_change(document)

        self._people.documents.edit(
            agent,
            lambda document: queries.in_one_transaction(partial(change, document)),
            last_version=last_version,
        )
        try:
            doorbells.record_read(self._store, agent)
        except CapsuleError as error:
            _log.warning("could not reset the doorbells of %s after it read: %s", agent, error)
        notices.update(self._store, agent)

    def _move_cursors(self, agent: str, document: Document, marks: ReadMarks) -> None:
        """Move the cursors in an agent's document to marks, and note the mentions before them as
        read.
        """
        queries = self._store.queries
        cursors = dict(document.get("cursors") or {})
        concerns = document.get("concerns") or {}
        part_cursors = part_cursors_by_conversation(cursors)
        new_concerns: dict[str, Any] = {}
        for key, (position, digest) in marks.items():
            id, part = parse_cursor_key(key)
            old_marks = marks_in_cursor(cursors.get(key))
            marks_at = partial(queries.ids_at, id, refresh=False)
            if first_unread_position(old_marks, marks_at) > position:
                continue
            mentions = queries.unread_positions(
                UnreadFilter(old_marks, (agent,), mentioning=agent, part=part), id, refresh=False
            )
            cursor = make_cursor(position, digest, marks_at)
            if cursor is None:
                continue  # The message was moved or removed. What follows is returned again.
            cursors[key] = cursor
            if part is None:
                for other_part, part_cursor in part_cursors.get(id, {}).items():
                    part_marks = marks_in_cursor(part_cursor)
                    if first_unread_position(part_marks, marks_at) <= position + 1:
                        # The cursor of the conversation covers that of the part.
                        del cursors[cursor_key(id, other_part)]
            for mention in mentions:
                if mention.position <= position and mention.message not in concerns:
                    new_concerns[mention.message] = {"conversation": id}
        document["cursors"] = cursors
        if new_concerns:
            now = timestamps.now()
            for concern in new_concerns.values():
                concern["readAt"] = now
            document["concerns"] = concerns | new_concerns

    def set_mention_done(
        self, agent: str, message: str, conversation: str, *, is_done: bool
    ) -> None:
        """Note that an agent is done with a message that mentions it, or that it is not."""

        def change(document: Document) -> None:
            concerns = document.get("concerns") or {}
            now = timestamps.now()
            concern = {"conversation": conversation, "readAt": now, "doneAt": now}
            concern |= concerns.get(message, {})
            if not is_done:
                del concern["doneAt"]
            document["concerns"] = concerns | {message: concern}

        self._people.documents.edit(agent, change)

    @staticmethod
    def parse_cursor(cursor: str) -> ReadMarks:
        """Return the marks in a cursor that `record_returned` made. Raises InvalidInput."""
        marks = {}
        try:
            for piece in cursor.split(","):
                if piece:
                    key, position, digest = piece.split(":")
                    marks[unquote(key)] = int(position), unquote(digest)
        except ValueError:
            raise InvalidInput(
                "that is not a cursor; take `cursor` of what `listen` returned"
            ) from None
        return marks
