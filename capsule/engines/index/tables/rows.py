"""Correcting the rows of the index to what a file says, and writing down what that changes.

What must stay true: everything happens in the caller's transaction, so that rows, words and journal
agree; and only rows that differ are touched.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from itertools import count, repeat
from typing import Any

import orjson

from capsule.engines.index.heads import HEAD_FIELDS, fields_of
from capsule.engines.index.parsing import ConversationRow, IndexedMessage, IndexUpdate
from capsule.engines.index.search import words
from capsule.format.documents.head import Head
from capsule.format.tree import tree
from capsule.timestamps import ms_of, sortable

#: The fields of an `IndexedMessage` but its facts in their order, behind its number, its conversation and
#: its place.
_MESSAGE = (
    "INSERT INTO messages(num, capsule, at, front, id, parent, role, sender, time_ms, words, "
    "tokens, content, tools,"
    " digest, active) VALUES(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1)"
)
#: The number of a message, its conversation, its place there, the digest of the ids up to it; and
#: the message.
Placed = tuple[tuple[int, int, int, int], IndexedMessage]
#: The bytes of the conversations that come into an empty index together.
_BATCH_BYTES = 4 << 20


class IndexWriter:
    """The rows of one index, within one transaction.

    Attributes:
        changes: What was changed, for the journal: kind, id and further fields.
    """

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._next = db.execute("SELECT coalesce(max(num), 0) + 1 FROM messages").fetchone()[0]
        self._next_capsule = db.execute(
            "SELECT coalesce(max(num), 0) + 1 FROM capsules"
        ).fetchone()[0]
        self.changes: list[tuple[str, str, dict[str, Any]]] = []

    def get(self, id: str) -> ConversationRow | None:
        """The row of a conversation, by the names of its columns."""
        cursor = self._db.execute("SELECT * FROM capsules WHERE id = ?", (id,))
        row = cursor.fetchone()
        return (
            None
            if row is None
            else dict(zip([column[0] for column in cursor.description], row, strict=True))
        )

    def _set(self, num: int, values: dict[str, Any]) -> None:
        columns = f"{' = ?, '.join(values)} = ?"
        self._db.execute(f"UPDATE capsules SET {columns} WHERE num = ?", (*values.values(), num))

    def _write(
        self,
        num: int,
        id: str,
        row: ConversationRow | None,
        values: dict[str, Any],
        head: Head | None = None,
    ) -> None:
        """Have the row of a conversation say these values and nothing else, with its title and who
        takes part.
        """
        was = row or {}
        # Not INSERT OR REPLACE: SQLite can undo that, for which FTS5 writes what it gathered, each
        # time.
        self._db.execute("DELETE FROM capsules WHERE num = ?", (num,))
        columns, marks = ", ".join(("num", "id", *values)), ", ?" * len(values)
        self._db.execute(
            f"INSERT INTO capsules({columns}) VALUES(?, ?{marks})", (num, id, *values.values())
        )
        old, new = ((of.get("title", ""), of.get("tags", "[]")) for of in (was, values))
        self._change_title(num, old, new)
        if values.get("head") != was.get("head"):
            self._db.execute("DELETE FROM members WHERE capsule = ?", (num,))
            members = (
                [(member.id, num) for member in head.participants if member.is_in]
                if head is not None
                else []
            )
            self._db.executemany("INSERT INTO members VALUES(?, ?)", members)

    def _tell(self, kind: str, id: str, state: IndexUpdate, was: str = "", **fields: Any) -> None:
        source = "store" if state.by_store else "outside"
        if state.tag and kind != "appended":
            fields |= {"tag": state.tag, "was": was}
        self.changes.append((kind, id, {**fields, "source": source}))

    def remove(self, id: str, row: ConversationRow, *, by_store: bool) -> None:
        """Note that the file is gone. The row stays, as the file may come back."""
        self._remove_messages("capsule", row["num"])
        self._write(row["num"], id, row, {"gone": True})
        self.changes.append(("deleted", id, {"source": "store" if by_store else "outside"}))

    def put(self, id: str, row: ConversationRow | None, state: IndexUpdate) -> None:
        """Have the rows of a conversation say what was found in its file."""
        if row is None or row["gone"]:
            self._new(id, row, state)
        elif state.damaged:
            self._set(row["num"], _file(state) | {"tag": "", "damaged": state.damaged})
            if row["damaged"] != state.damaged:
                self._tell("damaged", id, state, damaged=state.damaged)
        else:
            self._sound(id, row, state)

    # -- A conversation that was not there ---------------------------------------------------------

    def _new(self, id: str, row: ConversationRow | None, state: IndexUpdate) -> None:
        num = row["num"] if row else self._next_capsule
        self._next_capsule = max(self._next_capsule, num + 1)
        self._add_words(self._insert([(num, id, state)]))
        ids = [message.id for message in state.messages or []]
        kind = "created" if row is None else "restored"
        self._tell(kind, id, state, messages=ids, count=state.entries)
        if state.damaged:
            self._tell("damaged", id, state, damaged=state.damaged)
        elif state.head is not None and state.head.lock is not None:
            self._tell("locked", id, state, lock=state.head.lock, count=state.entries)

    def fill(self, conversations: Iterable[tuple[str, IndexUpdate]]) -> None:
        """Fill an empty index; many messages at a time, as that is the quickest.

        While another thread has SQLite take in the words of some conversations, this one reads the
        next.
        """
        from concurrent.futures import (
            Future,
            ThreadPoolExecutor,
        )  # Only a first indexing has a use for them.

        with ThreadPoolExecutor(1) as beside:
            adding: Future[object] = beside.submit(object)
            for batch in _batches(conversations):
                adding.result()
                adding = beside.submit(words.adding(self._db, _words_of(self._insert(batch))))
            adding.result()

    def _insert(self, conversations: list[tuple[int, str, IndexUpdate]]) -> list[Placed]:
        """Make the rows of conversations that have no messages there; the words of their messages
        are not added.
        """
        placed, branched = [], []
        for num, id, state in conversations:
            messages = state.messages or []
            words, tokens, parents = _counts(messages)
            linear = state.current is None and not parents
            values = _values(state, (words, tokens), linear)
            self._write(num, id, None, values, state.head)
            placed += self._placed(num, 0, messages)
            if not linear:
                branched.append((num, state.current))
        self._insert_rows(placed)
        for num, current in branched:
            self._mark_active(num, current)
        return placed

    def _placed(
        self, capsule: int, at: int, messages: list[IndexedMessage], first: int = 0
    ) -> list[Placed]:
        """Messages from place `at` on, numbered from `first`; 0: as the newest."""
        if not first:
            first, self._next = self._next, self._next + len(messages)
        fronts = self._fronts(capsule, at, [message.id for message in messages])
        return list(
            zip(
                zip(count(first), repeat(capsule), count(at), fronts, strict=False),
                messages,
                strict=True,
            )
        )

    def _insert_messages(self, placed: list[Placed]) -> None:
        """Put messages there, in the order of their numbers, as that is the quickest."""
        self._insert_rows(placed)
        self._add_words(placed)

    def _insert_rows(self, placed: list[Placed]) -> None:
        self._db.executemany(_MESSAGE, [place + message[:-1] for place, message in placed])
        facts = [(place[0], *fact) for place, message in placed for fact in message.facts]
        self._db.executemany("INSERT OR IGNORE INTO facts VALUES(?, ?, ?, ?)", facts)

    def _fronts(self, capsule: int, at: int, ids: list[str]) -> list[int]:
        """For each of these messages from place `at` on, the digest of the ids up to it."""
        from hashlib import (
            sha256,
        )  # OpenSSL with it, which who finds the index up to date has no use for.

        front = 0
        # Not for a new conversation: while all are indexed, the index for this question does not
        # exist yet.
        if at:
            question = "SELECT front FROM messages WHERE capsule = ? AND at = ?"
            front = next((front for (front,) in self._db.execute(question, (capsule, at - 1))), 0)
        fronts = []
        for id in ids:
            made = sha256(f"{front} {id}".encode("utf-8", "surrogatepass")).digest()
            fronts.append(front := int.from_bytes(made[:7]))
        return fronts

    # -- A conversation that changed ---------------------------------------------------------------

    def _mark_active(self, capsule: int, current: str | None) -> None:
        """Work out anew which messages lie on the active branch."""
        rows = self._db.execute(
            "SELECT num, id, parent, active FROM messages WHERE capsule = ? ORDER BY at", (capsule,)
        ).fetchall()
        on = tree.active_flags([(id, parent) for _, id, parent, _ in rows], current)
        self._db.executemany(
            "UPDATE messages SET active = ? WHERE num = ?",
            [
                (now, num)
                for (num, _, _, was), now in zip(rows, on, strict=True)
                if now != bool(was)
            ],
        )

    def _sound(self, id: str, row: ConversationRow, state: IndexUpdate) -> None:
        """A file that was read; its messages from `start` on, and its head unless only `updatedAt`
        changed.
        """
        if row["damaged"]:
            self._tell("repaired", id, state, count=state.entries)
        appended, edited, removed = changed = self._messages(row, state)
        current = row["current"] if state.head is None else state.current
        *counts, has_parents = self._counted(row, state)
        linear = not has_parents and current is None
        values = _values(state, counts, linear)
        if state.head is None:
            self._set(row["num"], values)
        else:
            self._write(row["num"], id, row, values, state.head)
        if not (linear and row["linear"]) and (any(changed) or current != row["current"]):
            self._mark_active(row["num"], current)
        if edited or removed:
            self._tell(
                "edited",
                id,
                state,
                row["tag"],
                messages=edited,
                removed=removed,
                count=state.entries,
            )
        if appended:
            self._tell("appended", id, state, messages=appended, count=state.entries)
        if state.head is not None:
            self._tell_head(id, row, state, state.head)

    def _counted(self, row: ConversationRow, state: IndexUpdate) -> tuple[int, int, int]:
        """How many words and tokens a conversation has, and how many messages that name
        a parent.
        """
        if state.start and row["linear"]:  # What lies before the end is as it was.
            words, tokens, parents = _counts(state.messages or [])
            return row["words"] + words, row["tokens"] + tokens, parents
        return self._db.execute(  # type: ignore[no-any-return]
            "SELECT coalesce(sum(words), 0), coalesce(sum(tokens), 0), count(parent) FROM "
            "messages WHERE capsule = ?",
            (row["num"],),
        ).fetchone()

    def _messages(
        self, row: ConversationRow, state: IndexUpdate
    ) -> tuple[list[str], list[str], list[str]]:
        """Bring the messages from `found.start` on up to date; ids appended, edited (or put in
        between), removed.
        """
        new, start, capsule = state.messages or [], state.start, row["num"]
        old = self._db.execute(
            "SELECT num, id, digest FROM messages WHERE capsule = ? AND at >= ? ORDER BY at",
            (capsule, start),
        ).fetchall()
        first, shortest = 0, min(len(old), len(new))
        while first < shortest and old[first][1:] == (new[first].id, new[first].digest):
            first += 1
        last = 0
        while last < shortest - first and old[~last][1:] == (new[~last].id, new[~last].digest):
            last += 1
        before, after = old[first : len(old) - last], new[first : len(new) - last]
        if len(old) != len(new) and last:
            self._db.execute(
                "UPDATE messages SET at = at + ? WHERE capsule = ? AND at >= ?",
                (len(new) - len(old), capsule, start + len(old) - last),
            )
        changed = self._differing(capsule, start + first, before, after, at_end=not last)
        if (before or last) and [id for _, id, _ in before] != [message.id for message in after]:
            fronts = self._fronts(capsule, start + first, [message.id for message in new[first:]])
            numbered = ((front, capsule, at) for at, front in enumerate(fronts, start + first))
            self._db.executemany(
                "UPDATE messages SET front = ? WHERE capsule = ? AND at = ?", numbered
            )
        return changed

    def _differing(
        self,
        capsule: int,
        at: int,
        old: list[tuple[int, str, int]],
        new: list[IndexedMessage],
        *,
        at_end: bool,
    ) -> tuple[list[str], list[str], list[str]]:
        """As `_messages`, for a stretch that begins at place `at`."""
        if not old and at_end:
            self._insert_messages(self._placed(capsule, at, new))
            return [message.id for message in new], [], []
        there: dict[str, list[tuple[int, str, int]]] = {}
        for row in reversed(old):
            there.setdefault(row[1], []).append(row)
        edited: list[str] = []
        added: list[tuple[int, IndexedMessage]] = []
        last_kept = -1
        for i, message in enumerate(new):
            same = there.get(message.id)
            if not same:
                added.append((i, message))
                continue
            num, _, digest = same.pop()
            last_kept = i
            if digest == message.digest:
                self._db.execute("UPDATE messages SET at = ? WHERE num = ?", (at + i, num))
            else:
                self._remove_messages("num", num)
                self._insert_messages(self._placed(capsule, at + i, [message], num))
                edited.append(message.id)
        gone = [row for left in there.values() for row in left]
        gone.sort()
        for num, _, _ in gone:
            self._remove_messages("num", num)
        appended: list[str] = []
        for i, message in added:
            self._insert_messages(self._placed(capsule, at + i, [message]))
            if i > last_kept and at_end:
                appended.append(message.id)
            else:
                edited.append(message.id)
        removed = [id for _, id, _ in gone]
        if not (edited or removed or appended) and new:
            edited = [message.id for message in new]  # Only their order changed.
        return appended, edited, removed

    def _remove_messages(self, column: str, number: int) -> None:
        self._remove_words(column, number)
        numbers = f"SELECT num FROM messages WHERE {column} = ?"
        self._db.execute(f"DELETE FROM facts WHERE message IN ({numbers})", (number,))
        self._db.execute(f"DELETE FROM messages WHERE {column} = ?", (number,))

    # -- Words -------------------------------------------------------------------------------------

    def _add_words(self, placed: list[Placed]) -> None:
        words.add(self._db, _words_of(placed))

    def _remove_words(self, column: str, number: int) -> None:
        rows = self._db.execute(
            f"SELECT num, content, tools FROM messages WHERE {column} = ? ORDER BY num", (number,)
        )
        words.remove(self._db, rows.fetchall())

    def _change_title(self, num: int, old: words.Title, new: words.Title) -> None:
        words.change_title(self._db, num, old, new)

    def _tell_head(self, id: str, row: ConversationRow, state: IndexUpdate, head: Head) -> None:
        was = orjson.loads(row["head"]) if row["head"] else [None] * len(HEAD_FIELDS)
        now = orjson.loads(fields_of(head))
        fields = [name for name, old, new in zip(HEAD_FIELDS, was, now, strict=True) if old != new]
        if state.current != row["current"]:
            fields.append("current_node")
        if not fields and state.head_checksums[0] != row["rest"]:
            fields.append("metadata")
        if state.head_checksums[1] != row["context"]:
            fields.append("context")
        if fields:
            self._tell("head", id, state, row["tag"], fields=fields, count=state.entries)
        old_lock = orjson.loads(row["lock"]) if row["lock"] else None
        if _owner(old_lock) != _owner(head.lock):
            kind, lock = ("locked", head.lock) if head.lock is not None else ("unlocked", old_lock)
            self._tell(kind, id, state, row["tag"], lock=lock, count=state.entries)


def _batches(
    conversations: Iterable[tuple[str, IndexUpdate]],
) -> Iterator[list[tuple[int, str, IndexUpdate]]]:
    """Conversations with their numbers, of which some are taken in together."""
    batch: list[tuple[int, str, IndexUpdate]] = []
    size = 0
    for num, (id, state) in enumerate(conversations, 1):
        batch.append((num, id, state))
        size += state.version.size
        if size > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    yield batch


def _words_of(placed: list[Placed]) -> list[words.WordsRow]:
    return [(place[0], message.content, message.tools) for place, message in placed]


def _file(state: IndexUpdate) -> dict[str, Any]:
    """The columns that tell one state of the file from another."""
    token, size, order, changed_ns = state.version
    return {
        "version": token,
        "size": size,
        "written": order,
        "changed_ns": changed_ns,
        "racy": state.must_recheck,
    }


def _counts(messages: list[IndexedMessage]) -> tuple[int, int, int]:
    """How many words and tokens messages have, and how many of them name a parent."""
    words = tokens = parents = 0
    for message in messages:
        words += message.words
        tokens += message.tokens
        parents += message.parent is not None
    return words, tokens, parents


def _values(state: IndexUpdate, counts: Iterable[int], linear: bool) -> dict[str, Any]:
    """The columns of a conversation that was read, by their names; those of its head where that was
    read.
    """
    head, values = state.head, _file(state) | {"entries": state.entries, "linear": linear}
    values |= zip(("words", "tokens"), counts, strict=True)
    if state.history_span is not None:
        values |= dict(zip(("history", "tail", "digest"), state.history_span, strict=True))
    if state.updated_at:
        values |= {"updated_at": state.updated_at, "updated_ms": ms_of(sortable(state.updated_at))}
    if head is None and state.updated_at:
        return values
    values |= {"tag": state.tag, "damaged": state.damaged, "current": state.current}
    values["rest"], values["context"] = state.head_checksums
    if head is not None:
        values |= {
            "head": fields_of(head).decode(),
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


def _owner(lock: dict[str, Any] | None) -> Any:
    return None if lock is None else (lock.get("instanceId"), lock.get("host"), lock.get("name"))
