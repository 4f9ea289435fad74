"""Update the rows of the index from parsed documents, and collect what changed for the journal.

For each conversation the writer compares the rows with an `IndexUpdate`. It changes only the rows
that differ, and appends a change of each kind (appended, edited, head, ...) to `changes`. A deleted
conversation keeps its row and number, as it can be restored.

What must stay true: everything happens in the caller's transaction, so that rows, full-text index
and journal agree.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import count, repeat
from typing import Any, NamedTuple

import orjson

from capsule.engines.index.search import words
from capsule.engines.questions.heads import HEAD_FIELDS, encode_head
from capsule.engines.questions.parsing import ConversationRow, IndexedMessage, IndexUpdate
from capsule.format.documents.head import Head
from capsule.format.tree import tree
from capsule.timestamps import ms_of, sortable

#: The values are those of `NumberedMessage`: its four numbers, then the fields of the message
#: without its facts.
_INSERT_MESSAGE = (
    "INSERT INTO messages(num, capsule, at, front, id, parent, role, sender, time_ms, words, "
    "tokens, content, tools, digest, active) "
    "VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)"
)
#: A message for the table `messages`. The tuple has: its row number, the number of its
#: conversation, its position there, and the digest of all ids up to it.
NumberedMessage = tuple[tuple[int, int, int, int], IndexedMessage]
#: The size of the conversations that are written together into an empty index, in bytes.
_BATCH_BYTES = 4 << 20


class _MessageChanges(NamedTuple):
    """The ids of messages that were appended, edited (or inserted between others) and removed."""

    appended: list[str]
    edited: list[str]
    removed: list[str]


class IndexWriter:
    """Writes the rows of one index, within one transaction.

    Attributes:
        changes: The changes for the journal: kind, conversation and further fields of a `Change`.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._next_message_num = db.execute(
            "SELECT coalesce(max(num), 0) + 1 FROM messages"
        ).fetchone()[0]
        self._next_conversation_num = db.execute(
            "SELECT coalesce(max(num), 0) + 1 FROM capsules"
        ).fetchone()[0]
        self.changes: list[tuple[str, str, dict[str, Any]]] = []

    def get(self, id: str) -> ConversationRow | None:
        """Return the row of a conversation, by the names of its columns."""
        cursor = self._db.execute("SELECT * FROM capsules WHERE id = ?", (id,))
        row = cursor.fetchone()
        if row is None:
            return None
        return dict(zip([column[0] for column in cursor.description], row, strict=True))

    def _set(self, num: int, values: dict[str, Any]) -> None:
        """Set some columns of conversation `num`."""
        columns = f"{' = ?, '.join(values)} = ?"
        self._db.execute(f"UPDATE capsules SET {columns} WHERE num = ?", (*values.values(), num))

    def _write(
        self,
        num: int,
        id: str,
        old_row: ConversationRow | None,
        values: dict[str, Any],
        head: Head | None = None,
    ) -> None:
        """Replace the row of a conversation, its title in the full-text index and its members.

        Columns that are not in `values` get their defaults.
        """
        old_values = old_row or {}
        # Not INSERT OR REPLACE: SQLite can undo that, for which FTS5 flushes its memory each time.
        self._db.execute("DELETE FROM capsules WHERE num = ?", (num,))
        columns = ", ".join(("num", "id", *values))
        marks = ", ?" * len(values)
        self._db.execute(
            f"INSERT INTO capsules({columns}) VALUES(?, ?{marks})", (num, id, *values.values())
        )
        self._change_title(num, _title_and_tags(old_values), _title_and_tags(values))
        if values.get("head") != old_values.get("head"):
            self._db.execute("DELETE FROM members WHERE capsule = ?", (num,))
            members = []
            if head is not None:
                members = [(member.id, num) for member in head.participants if member.is_in]
            self._db.executemany("INSERT INTO members VALUES(?, ?)", members)

    def _record_change(
        self, kind: str, id: str, update: IndexUpdate, old_tag: str = "", **fields: Any
    ) -> None:
        """Add a change for the journal, with the fields of a `Change`."""
        if update.tag and kind != "appended":
            fields["tag"] = update.tag
            fields["was"] = old_tag
        fields["source"] = "store" if update.by_store else "outside"
        self.changes.append((kind, id, fields))

    def remove(self, id: str, row: ConversationRow, *, by_store: bool) -> None:
        """Mark a conversation as deleted, and remove its messages. The row stays."""
        self._remove_messages("capsule", row["num"])
        self._write(row["num"], id, row, {"gone": True})
        self.changes.append(("deleted", id, {"source": "store" if by_store else "outside"}))

    def put(self, id: str, row: ConversationRow | None, update: IndexUpdate) -> None:
        """Update the rows of a conversation.

        A damaged conversation keeps the rows of its last valid version, with the damage.

        Args:
            id: The conversation.
            row: Its row, from `get`.
            update: The parsed document.
        """
        if row is None or row["gone"]:
            self._add(id, row, update)
        elif update.damaged:
            values = _version_columns(update) | {"tag": "", "damaged": update.damaged}
            self._set(row["num"], values)
            if row["damaged"] != update.damaged:
                self._record_change("damaged", id, update, damaged=update.damaged)
        else:
            self._update_valid(id, row, update)

    # -- A new conversation ------------------------------------------------------------------------

    def _add(self, id: str, row: ConversationRow | None, update: IndexUpdate) -> None:
        """Add a conversation that is new or was deleted."""
        num = row["num"] if row else self._next_conversation_num
        self._next_conversation_num = max(self._next_conversation_num, num + 1)
        self._add_words(self._insert([(num, id, update)]))
        ids = [message.id for message in update.messages or []]
        kind = "created" if row is None else "restored"
        self._record_change(kind, id, update, messages=ids, count=update.entries)
        if update.damaged:
            self._record_change("damaged", id, update, damaged=update.damaged)
        elif update.head is not None and update.head.lock is not None:
            self._record_change("locked", id, update, lock=update.head.lock, count=update.entries)

    def fill(self, conversations: Iterable[tuple[str, IndexUpdate]]) -> None:
        """Fill an empty index in large batches.

        While a second thread adds the words of one batch to the full-text index, this one reads the
        next batch.
        """
        # Imported here, as only the first indexing needs it.
        from concurrent.futures import Future, ThreadPoolExecutor

        with ThreadPoolExecutor(1) as executor:
            pending: Future[object] = executor.submit(object)
            for batch in _batches(conversations):
                pending.result()
                pending = executor.submit(
                    words.prepare_adding(self._db, _words_of(self._insert(batch)))
                )
            pending.result()

    def _insert(self, conversations: list[tuple[int, str, IndexUpdate]]) -> list[NumberedMessage]:
        """Insert the rows of conversations that have no messages in the index.

        Returns: the messages. The caller adds their words to the full-text index.
        """
        numbered: list[NumberedMessage] = []
        branched: list[tuple[int, str | None]] = []
        for num, id, update in conversations:
            messages = update.messages or []
            word_count, token_count, parent_count = _counts(messages)
            is_linear = update.current is None and not parent_count
            values = _columns(update, word_count, token_count, is_linear=is_linear)
            self._write(num, id, None, values, update.head)
            numbered += self._numbered(num, 0, messages)
            if not is_linear:
                branched.append((num, update.current))
        self._insert_rows(numbered)
        for num, current in branched:
            self._mark_active(num, current)
        return numbered

    def _numbered(
        self,
        conversation_num: int,
        position: int,
        messages: list[IndexedMessage],
        first_num: int | None = None,
    ) -> list[NumberedMessage]:
        """Give consecutive messages their numbers.

        Args:
            conversation_num: The number of the conversation.
            position: The position of the first message.
            messages: The messages.
            first_num: The row number of the first message. None: a new one.
        """
        if first_num is None:
            first_num = self._next_message_num
            self._next_message_num += len(messages)
        ids = [message.id for message in messages]
        digests = self._ids_digests(conversation_num, position, ids)
        numbers = zip(
            count(first_num), repeat(conversation_num), count(position), digests, strict=False
        )
        return list(zip(numbers, messages, strict=True))

    def _insert_messages(self, numbered: list[NumberedMessage]) -> None:
        """Insert messages. In the order of their row numbers this is quickest."""
        self._insert_rows(numbered)
        self._add_words(numbered)

    def _insert_rows(self, numbered: list[NumberedMessage]) -> None:
        rows = []
        facts = []
        for numbers, message in numbered:
            rows.append(numbers + message[:-1])
            for fact in message.facts:
                facts.append((numbers[0], *fact))
        self._db.executemany(_INSERT_MESSAGE, rows)
        self._db.executemany("INSERT OR IGNORE INTO facts VALUES(?, ?, ?, ?)", facts)

    def _ids_digests(self, conversation_num: int, position: int, ids: list[str]) -> list[int]:
        """Return, for each message from a position on, the digest of all ids up to it."""
        # It loads OpenSSL, which a program that finds the index up to date does not need.
        from hashlib import sha256

        ids_digest = 0
        # Not for a new conversation: while an index is filled, this query would be a full scan.
        if position:
            rows = self._db.execute(
                "SELECT front FROM messages WHERE capsule = ? AND at = ?",
                (conversation_num, position - 1),
            )
            for (previous,) in rows:
                ids_digest = previous
        digests = []
        for id in ids:
            text = f"{ids_digest} {id}"
            ids_digest = int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:7])
            digests.append(ids_digest)
        return digests

    # -- A conversation that changed ---------------------------------------------------------------

    def _mark_active(self, conversation_num: int, current: str | None) -> None:
        """Compute again which messages are on the active branch."""
        rows = self._db.execute(
            "SELECT num, id, parent, active FROM messages WHERE capsule = ? ORDER BY at",
            (conversation_num,),
        ).fetchall()
        flags = tree.active_flags([(id, parent) for _, id, parent, _ in rows], current)
        changed = []
        for (num, _, _, old_flag), flag in zip(rows, flags, strict=True):
            if flag != bool(old_flag):
                changed.append((flag, num))
        self._db.executemany("UPDATE messages SET active = ? WHERE num = ?", changed)

    def _update_valid(self, id: str, row: ConversationRow, update: IndexUpdate) -> None:
        """Update a conversation from a valid document."""
        if row["damaged"]:
            self._record_change("repaired", id, update, count=update.entries)
        changes = self._update_messages(row, update)
        current = row["current"] if update.head is None else update.current
        word_count, token_count, parent_count = self._count_words(row, update)
        is_linear = not parent_count and current is None
        values = _columns(update, word_count, token_count, is_linear=is_linear)
        if update.head is None:
            self._set(row["num"], values)
        else:
            self._write(row["num"], id, row, values, update.head)
        stays_linear = is_linear and row["linear"]
        if not stays_linear and (any(changes) or current != row["current"]):
            self._mark_active(row["num"], current)
        if changes.edited or changes.removed:
            self._record_change(
                "edited",
                id,
                update,
                row["tag"],
                messages=changes.edited,
                removed=changes.removed,
                count=update.entries,
            )
        if changes.appended:
            self._record_change(
                "appended", id, update, messages=changes.appended, count=update.entries
            )
        if update.head is not None:
            self._record_head_changes(id, row, update, update.head)

    def _count_words(self, row: ConversationRow, update: IndexUpdate) -> tuple[int, int, int]:
        """Return the numbers of words, of tokens and of messages that name a parent."""
        if (
            update.start and row["linear"]
        ):  # Only the end is new, and no older message has a parent.
            word_count, token_count, parent_count = _counts(update.messages or [])
            return row["words"] + word_count, row["tokens"] + token_count, parent_count
        return self._db.execute(  # type: ignore[no-any-return]
            "SELECT coalesce(sum(words), 0), coalesce(sum(tokens), 0), count(parent) FROM "
            "messages WHERE capsule = ?",
            (row["num"],),
        ).fetchone()

    def _update_messages(self, row: ConversationRow, update: IndexUpdate) -> _MessageChanges:
        """Update the messages from `update.start` on.

        Equal messages at the beginning and at the end of this range stay. Those at the end only get
        another position, if the number of messages between them changed.
        """
        new = update.messages or []
        conversation_num = row["num"]
        old = self._db.execute(
            "SELECT num, id, digest FROM messages WHERE capsule = ? AND at >= ? ORDER BY at",
            (conversation_num, update.start),
        ).fetchall()
        shortest = min(len(old), len(new))
        equal_first = 0
        while equal_first < shortest and _is_equal(old[equal_first], new[equal_first]):
            equal_first += 1
        equal_last = 0
        while equal_last < shortest - equal_first and _is_equal(old[~equal_last], new[~equal_last]):
            equal_last += 1
        old_middle = old[equal_first : len(old) - equal_last]
        new_middle = new[equal_first : len(new) - equal_last]
        if len(old) != len(new) and equal_last:
            self._db.execute(
                "UPDATE messages SET at = at + ? WHERE capsule = ? AND at >= ?",
                (len(new) - len(old), conversation_num, update.start + len(old) - equal_last),
            )
        position = update.start + equal_first
        changes = self._apply_differences(
            conversation_num, position, old_middle, new_middle, at_end=not equal_last
        )
        old_ids = [id for _, id, _ in old_middle]
        new_ids = [message.id for message in new_middle]
        if (old_middle or equal_last) and old_ids != new_ids:
            following_ids = [message.id for message in new[equal_first:]]
            digests = self._ids_digests(conversation_num, position, following_ids)
            self._db.executemany(
                "UPDATE messages SET front = ? WHERE capsule = ? AND at = ?",
                zip(digests, repeat(conversation_num), count(position), strict=False),
            )
        return changes

    def _apply_differences(
        self,
        conversation_num: int,
        position: int,
        old: list[tuple[int, str, int]],
        new: list[IndexedMessage],
        *,
        at_end: bool,
    ) -> _MessageChanges:
        """Replace a range of messages.

        Messages are matched by id. A matched message keeps its row number. If several have the same
        id, they are matched in their order.

        Args:
            conversation_num: The number of the conversation.
            position: The position of the first message of the range.
            old: Row number, id and digest of the messages in the index.
            new: The messages of the document.
            at_end: Whether the range reaches to the end of the history.
        """
        if not old and at_end:
            self._insert_messages(self._numbered(conversation_num, position, new))
            return _MessageChanges([message.id for message in new], [], [])
        matched_rows, removed_rows = _match_by_id(old, new)
        edited: list[str] = []
        added: list[tuple[int, IndexedMessage]] = []
        last_matched = -1
        for index, (message, row) in enumerate(zip(new, matched_rows, strict=True)):
            if row is None:
                added.append((index, message))
                continue
            num, _, digest = row
            last_matched = index
            if digest == message.digest:
                self._db.execute(
                    "UPDATE messages SET at = ? WHERE num = ?", (position + index, num)
                )
            else:
                self._remove_messages("num", num)
                self._insert_messages(
                    self._numbered(conversation_num, position + index, [message], num)
                )
                edited.append(message.id)
        for num, _, _ in removed_rows:
            self._remove_messages("num", num)
        appended: list[str] = []
        for index, message in added:
            self._insert_messages(self._numbered(conversation_num, position + index, [message]))
            is_appended = index > last_matched and at_end
            (appended if is_appended else edited).append(message.id)
        removed = [id for _, id, _ in removed_rows]
        if not (edited or removed or appended) and new:
            edited = [message.id for message in new]  # Only their order changed.
        return _MessageChanges(appended, edited, removed)

    def _remove_messages(self, column: str, number: int) -> None:
        """Remove the messages with a number in a column: `num` or `capsule`."""
        self._remove_words(column, number)
        numbers = f"SELECT num FROM messages WHERE {column} = ?"
        self._db.execute(f"DELETE FROM facts WHERE message IN ({numbers})", (number,))
        self._db.execute(f"DELETE FROM messages WHERE {column} = ?", (number,))

    # -- The full-text index -----------------------------------------------------------------------

    def _add_words(self, numbered: list[NumberedMessage]) -> None:
        words.add(self._db, _words_of(numbered))

    def _remove_words(self, column: str, number: int) -> None:
        rows = self._db.execute(
            f"SELECT num, content, tools FROM messages WHERE {column} = ? ORDER BY num", (number,)
        )
        words.remove(self._db, rows.fetchall())

    def _change_title(self, num: int, old: words.TitleAndTags, new: words.TitleAndTags) -> None:
        words.change_title(self._db, num, old, new)

    def _record_head_changes(
        self, id: str, row: ConversationRow, update: IndexUpdate, head: Head
    ) -> None:
        """Record which fields of the head changed, and a change of the lock."""
        old_values = orjson.loads(row["head"]) if row["head"] else [None] * len(HEAD_FIELDS)
        new_values = orjson.loads(encode_head(head))
        fields = []
        for name, old_value, new_value in zip(HEAD_FIELDS, old_values, new_values, strict=True):
            if old_value != new_value:
                fields.append(name)
        if update.current != row["current"]:
            fields.append("current_node")
        rest_checksum, context_checksum = update.head_checksums
        if not fields and rest_checksum != row["rest"]:
            fields.append("metadata")
        if context_checksum != row["context"]:
            fields.append("context")
        if fields:
            self._record_change("head", id, update, row["tag"], fields=fields, count=update.entries)
        old_lock = orjson.loads(row["lock"]) if row["lock"] else None
        if _lock_holder(old_lock) == _lock_holder(head.lock):
            return
        kind = "unlocked" if head.lock is None else "locked"
        lock = old_lock if head.lock is None else head.lock
        self._record_change(kind, id, update, row["tag"], lock=lock, count=update.entries)


def _match_by_id(
    old: list[tuple[int, str, int]], new: list[IndexedMessage]
) -> tuple[list[tuple[int, str, int] | None], list[tuple[int, str, int]]]:
    """Match the messages of a document with rows (number, id, digest) of the same id.

    Returns: for each message its row, or None, and the other rows, sorted.
    """
    rows_by_id: dict[str, list[tuple[int, str, int]]] = {}
    for row in reversed(old):
        rows_by_id.setdefault(row[1], []).append(row)
    matched_rows: list[tuple[int, str, int] | None] = []
    for message in new:
        candidates = rows_by_id.get(message.id)
        matched_rows.append(candidates.pop() if candidates else None)
    other_rows = sorted(row for rows in rows_by_id.values() for row in rows)
    return matched_rows, other_rows


def _is_equal(old: tuple[int, str, int], new: IndexedMessage) -> bool:
    """Return whether a row (number, id, digest) has this message."""
    return old[1:] == (new.id, new.digest)


def _batches(
    conversations: Iterable[tuple[str, IndexUpdate]],
) -> Iterator[list[tuple[int, str, IndexUpdate]]]:
    """Number conversations from 1, and yield them in batches of about `_BATCH_BYTES`."""
    batch: list[tuple[int, str, IndexUpdate]] = []
    size = 0
    for num, (id, update) in enumerate(conversations, 1):
        batch.append((num, id, update))
        size += update.version.size
        if size > _BATCH_BYTES:
            yield batch
            batch = []
            size = 0
    yield batch


def _words_of(numbered: list[NumberedMessage]) -> list[words.WordsRow]:
    return [(numbers[0], message.content, message.tools) for numbers, message in numbered]


def _title_and_tags(values: dict[str, Any]) -> words.TitleAndTags:
    return values.get("title", ""), values.get("tags", "[]")


def _version_columns(update: IndexUpdate) -> dict[str, Any]:
    """Return the columns of the version."""
    return {
        "version": update.version.token,
        "size": update.version.size,
        "written": update.version.order,
        "changed_ns": update.version.changed_ns,
        "racy": update.must_recheck,
    }


def _counts(messages: list[IndexedMessage]) -> tuple[int, int, int]:
    """Return the numbers of words, of tokens and of messages that name a parent."""
    word_count = token_count = parent_count = 0
    for message in messages:
        word_count += message.words
        token_count += message.tokens
        parent_count += message.parent is not None
    return word_count, token_count, parent_count


def _columns(
    update: IndexUpdate, word_count: int, token_count: int, *, is_linear: bool
) -> dict[str, Any]:
    """Return the columns of a conversation by their names; those of the head if it was parsed."""
    values = _version_columns(update)
    values |= {
        "entries": update.entries,
        "linear": is_linear,
        "words": word_count,
        "tokens": token_count,
    }
    if update.history_span is not None:
        values |= zip(("history", "tail", "digest"), update.history_span, strict=True)
    if update.updated_at:
        values["updated_at"] = update.updated_at
        values["updated_ms"] = ms_of(sortable(update.updated_at))
    head = update.head
    if head is None and update.updated_at:
        return values
    values |= {"tag": update.tag, "damaged": update.damaged, "current": update.current}
    values |= zip(("rest", "context"), update.head_checksums, strict=True)
    if head is not None:
        values |= {
            "head": encode_head(head).decode(),
            "title": head.title,
            "created_at": head.created_at,
            "mode": head.mode,
            "source": head.source,
            "tags": orjson.dumps(head.tags).decode(),
            "archived": head.archived,
            "lock": orjson.dumps(head.lock).decode() if head.lock is not None else None,
            "forked": head.forked_from,
        }
    return values


def _lock_holder(lock: dict[str, Any] | None) -> Any:
    return None if lock is None else (lock.get("instanceId"), lock.get("host"), lock.get("name"))
