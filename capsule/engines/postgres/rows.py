"""Brings the rows of the index to the present versions of conversations.

`RowWriter` compares the rows of a conversation with its parsed document, and collects what differs
for all conversations of a transaction. Then it deletes, changes and inserts the rows of each table
at once.

A list of words with their positions is a `tsvector`. `words` has one for each message, and another
one if the message calls tools. `names` has one for each title with its tags.

What must stay true:
- Everything happens in one transaction that holds the lock of the index.
- A message keeps the number of its row as long as its conversation has a message with its id. A
  deleted conversation keeps its row, as it can be restored.
- The words are those of the index of files, from the same tokenizer. A text that is too long for a
  `tsvector` is found by the words that fit, and does not keep other texts from being indexed.
- The sums in `indexed` are those of the rows.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import orjson

from capsule.engines.postgres.tables import IndexTables, without_nul
from capsule.engines.questions.heads import encode_head
from capsule.engines.questions.parsing import IndexedMessage, IndexUpdate
from capsule.engines.questions.query import fold
from capsule.format.facts import BOOL, IN_LIST, NULL, TEXT
from capsule.format.tree import tree
from capsule.timestamps import ms_of, sortable

_WORD = re.compile("[0-9a-z\x80-\U0010ffff]+")
#: Limits of a `tsvector`: the last position, the positions of one word, and the size in bytes (the
#: last one with a margin).
_LAST_POSITION = 16383
_MAX_POSITIONS = 255
_MAX_BYTES = 900_000
#: The characters of a word that are indexed.
LONGEST_WORD = 500
#: The number of positions between two texts in one list, so that no phrase is found across them.
_GAP = 8

_READ_ROWS = """SELECT c.id, c.num, c.gone, c.entries, c.words, c.tokens, c.linear, c.head, n.length,
    (SELECT front FROM messages WHERE capsule = c.num AND at = c.entries - 1)
    FROM capsules AS c LEFT JOIN names AS n ON n.num = c.num WHERE c.id = ANY(%(ids)s::text[])"""
_READ_NEXT_NUMS = """SELECT (SELECT coalesce(max(num), 0) + 1 FROM messages),
    (SELECT coalesce(max(num), 0) + 1 FROM capsules)"""
_READ_MESSAGES = """SELECT num, id, parent, digest, at, front, active FROM messages
    WHERE capsule = %(num)s ORDER BY at"""
#: The columns of a conversation that are written, besides its number.
_COLUMNS = (
    "id",
    "stamp",
    "gone",
    "version",
    "era",
    "size",
    "tag",
    "head",
    "title",
    "updated_at",
    "updated_ms",
    "mode",
    "source",
    "tags",
    "archived",
    "lock",
    "forked",
    "damaged",
    "entries",
    "words",
    "tokens",
    "linear",
)
_WRITE_CONVERSATIONS = f"""INSERT INTO capsules (num, {", ".join(_COLUMNS)})
    SELECT num, {", ".join(_COLUMNS)} FROM json_populate_recordset(NULL::capsules, %(rows)s::text::json)
    ON CONFLICT (num) DO UPDATE SET {", ".join(f"{name} = excluded.{name}" for name in _COLUMNS)}"""
_MOVE_MESSAGES = """UPDATE messages AS m SET at = u.at, front = u.front, active = u.active
    FROM unnest(%(nums)s::bigint[], %(at)s::integer[], %(fronts)s::bigint[], %(active)s::integer[])
    AS u (num, at, front, active) WHERE m.num = u.num"""
_ADD_TO_SUMS = """UPDATE indexed SET texts = texts + %(texts)s, text_words = text_words + %(text_words)s,
    titles = titles + %(titles)s, title_words = title_words + %(title_words)s"""
_MESSAGE_COLUMNS = (
    "num",
    "capsule",
    "at",
    "front",
    "active",
    "id",
    "parent",
    "role",
    "sender",
    "time_ms",
    "words",
    "tokens",
    "length",
    "digest",
)


class DocumentVersionRow(NamedTuple):
    """A version of a conversation in the database: its number, its era and its size in bytes."""

    version: int
    era: int
    size: int


class _ConversationRow(NamedTuple):
    """The row of a conversation before the update.

    Attributes:
        title_words: The number of words of its title and tags. None: it has neither.
        front: The digest of the ids of all its messages. None: it has none.
    """

    num: int
    gone: int
    entries: int
    words: int
    tokens: int
    linear: int
    head: str | None
    title_words: int | None
    front: int | None


class _MessageRow(NamedTuple):
    """The row of a message, as `_READ_MESSAGES` reads it."""

    num: int
    id: str
    parent: str | None
    digest: int
    at: int
    front: int
    active: int


class RowWriter:
    """Writes the rows of some conversations, within one transaction that holds the lock of the index.

    Call `put` or `remove` for each conversation, then `flush`.

    Args:
        tables: The tables.
        stamp: The stamp for the rows of the conversations.
        ids: The conversations. Their rows are read at once.
    """

    def __init__(self, tables: IndexTables, stamp: int, ids: Iterable[str]) -> None:
        self._tables = tables
        self._stamp = stamp
        self._old_rows: dict[str, _ConversationRow] = {}
        for id, *columns in tables.query(_READ_ROWS, {"ids": list(ids)}):
            self._old_rows[id] = _ConversationRow(*columns)
        ((self._next_message_num, self._next_conversation_num),) = tables.query(_READ_NEXT_NUMS)
        self._conversations: list[dict[str, Any]] = []
        #: The conversations whose members, and those whose titles or tags may have changed.
        self._changed_members: list[int] = []
        self._members: list[tuple[str, int]] = []
        self._changed_names: list[int] = []
        self._names: list[tuple[int, str, int]] = []
        self._removed_messages: list[int] = []
        #: For `_MOVE_MESSAGES`: number, position, digest of the ids, and whether it is active.
        self._moved_messages: list[tuple[int, int, int, int]] = []
        self._messages: list[tuple[Any, ...]] = []
        self._facts: list[tuple[Any, ...]] = []
        self._words: list[tuple[int, str, str | None]] = []
        self._sums = {"texts": 0, "text_words": 0, "titles": 0, "title_words": 0}

    # -- One conversation --------------------------------------------------------------------------

    def remove(self, id: str) -> None:
        """Mark a conversation as deleted, and remove everything else about it."""
        row = self._old_rows.get(id)
        if row is None or row.gone:
            return
        self._removed_messages += [message.num for message in self._read_messages(row.num)]
        self._write_members(row.num, [])
        self._write_name(row, row.num, "", ())
        self._conversations.append(
            {
                "num": row.num,
                "id": id,
                "stamp": self._stamp,
                "gone": 1,
                "title": "",
                "updated_ms": 0,
                "source": "",
                "tags": "[]",
                "damaged": "",
                "entries": 0,
                "words": 0,
                "tokens": 0,
                "linear": 1,
                "tag": "",
            }
        )

    def put(self, id: str, version: DocumentVersionRow, update: IndexUpdate) -> None:
        """Bring the rows of a conversation to a version.

        Args:
            id: The conversation.
            version: The version.
            update: The document of this version, or what was appended to the version of the rows.
        """
        row = self._old_rows.get(id)
        if row is None:
            num = self._next_conversation_num
            self._next_conversation_num += 1
        else:
            num = row.num
        messages = update.messages or []
        has_parents = any(message.parent is not None for message in messages)
        is_linear = update.current is None and not has_parents
        words = sum(message.words for message in messages)
        tokens = sum(message.tokens for message in messages)
        if row is not None and update.start:
            words += row.words
            tokens += row.tokens
            is_linear = is_linear and bool(row.linear)
        if row is not None and update.start and is_linear:
            self._append(num, update.start, row.front or 0, messages)
        elif row is None or not row.entries:
            self._replace(num, [], 0, messages, update.current)
        else:
            old = self._read_messages(num)
            self._replace(num, old, update.start, messages, update.current)
        self._write_head(num, id, row, version, update, words, tokens, is_linear=is_linear)

    def _write_head(
        self,
        num: int,
        id: str,
        row: _ConversationRow | None,
        version: DocumentVersionRow,
        update: IndexUpdate,
        words: int,
        tokens: int,
        *,
        is_linear: bool,
    ) -> None:
        values: dict[str, Any] = {
            "num": num,
            "id": id,
            "stamp": self._stamp,
            "gone": 0,
            "version": version.version,
            "era": version.era,
            "size": version.size,
            "tag": update.tag,
            "damaged": update.damaged,
            "updated_at": update.updated_at,
            "updated_ms": ms_of(sortable(update.updated_at)) if update.updated_at else 0,
            "entries": update.entries,
            "words": words,
            "tokens": tokens,
            "linear": int(is_linear),
            "title": "",
            "source": "",
            "tags": "[]",
        }
        head = update.head
        members = []
        title = ""
        tags: Sequence[str] = ()
        encoded_head = None
        if head is not None:
            title = head.title
            tags = head.tags
            encoded_head = encode_head(head).decode()
            members = [member.id for member in head.participants if member.is_in]
            values |= {
                "head": encoded_head,
                "title": title,
                "mode": head.mode,
                "source": head.source,
                "tags": orjson.dumps(tags).decode(),
                "archived": int(head.archived),
                "lock": orjson.dumps(head.lock).decode() if head.lock is not None else None,
                "forked": head.forked_from,
            }
        self._conversations.append(values)
        if row is None or encoded_head != row.head:
            self._write_members(num, members)
            self._write_name(row, num, title, tags)

    def _write_members(self, num: int, members: list[str]) -> None:
        self._changed_members.append(num)
        self._members += [(member, num) for member in dict.fromkeys(members)]

    def _write_name(
        self, row: _ConversationRow | None, num: int, title: str, tags: Sequence[str]
    ) -> None:
        self._changed_names.append(num)
        if row is not None and row.title_words is not None:
            self._sums["titles"] -= 1
            self._sums["title_words"] -= row.title_words
        if title or tags:
            vector, length = vector_of(title, *tags)
            self._names.append((num, vector, length))
            self._sums["titles"] += 1
            self._sums["title_words"] += length

    # -- Its messages ------------------------------------------------------------------------------

    def _read_messages(self, conversation_num: int) -> list[_MessageRow]:
        rows = self._tables.query(_READ_MESSAGES, {"num": conversation_num})
        return [_MessageRow(*row) for row in rows]

    def _append(
        self, conversation_num: int, start: int, front: int, messages: list[IndexedMessage]
    ) -> None:
        """Add messages to the end of a conversation without branches."""
        fronts = _fronts(front, messages)
        for at, (message, message_front) in enumerate(zip(messages, fronts, strict=True), start):
            self._insert(self._new_message_num(), conversation_num, at, message_front, 1, message)

    def _replace(
        self,
        conversation_num: int,
        old: list[_MessageRow],
        start: int,
        messages: list[IndexedMessage],
        current: str | None,
    ) -> None:
        """Replace the messages from a position on, and find the active branch again.

        A message with the id of an old one keeps its number. If several have the same id, they are
        matched in their order. Only rows that differ are written.
        """
        kept = old[:start]
        old_by_id: dict[str, deque[_MessageRow]] = {}
        for row in old[start:]:
            old_by_id.setdefault(row.id, deque()).append(row)
        links = [(row.id, row.parent) for row in kept]
        links += [(message.id, message.parent) for message in messages]
        flags = [int(flag) for flag in tree.active_flags(links, current)]
        for row, flag in zip(kept, flags, strict=False):
            if row.active != flag:
                self._moved_messages.append((row.num, row.at, row.front, flag))
        fronts = _fronts(kept[-1].front if kept else 0, messages)
        for at, (message, front) in enumerate(zip(messages, fronts, strict=True), start):
            flag = flags[at]
            candidates = old_by_id.get(message.id)
            matched = candidates.popleft() if candidates else None
            if matched is None:
                self._insert(self._new_message_num(), conversation_num, at, front, flag, message)
            elif matched.digest != message.digest:
                self._removed_messages.append(matched.num)
                self._insert(matched.num, conversation_num, at, front, flag, message)
            elif (matched.at, matched.front, matched.active) != (at, front, flag):
                self._moved_messages.append((matched.num, at, front, flag))
        for candidates in old_by_id.values():
            self._removed_messages += [row.num for row in candidates]

    def _new_message_num(self) -> int:
        num: int = self._next_message_num
        self._next_message_num += 1
        return num

    def _insert(
        self,
        num: int,
        conversation_num: int,
        at: int,
        front: int,
        active: int,
        message: IndexedMessage,
    ) -> None:
        vector, length = vector_of(message.content)
        vector_with_tools = None
        if message.tools:
            vector_with_tools, length = vector_of(message.content, message.tools)
        self._words.append((num, vector, vector_with_tools))
        numbers = (message.time_ms, message.words, message.tokens, length, message.digest)
        texts = (message.id, message.parent, message.role, message.sender)
        self._messages.append((num, conversation_num, at, front, active, *texts, *numbers))
        for path, type, value in dict.fromkeys(message.facts):
            self._facts.append((num, path, type, *_fact_value(type, value)))
        self._sums["texts"] += 1
        self._sums["text_words"] += length

    # -- The tables --------------------------------------------------------------------------------

    def flush(self) -> None:
        """Write everything to the tables."""
        tables = self._tables
        if self._removed_messages:
            nums = {"nums": self._removed_messages}
            tables.query("DELETE FROM words WHERE num = ANY(%(nums)s::bigint[])", nums)
            tables.query("DELETE FROM facts WHERE message = ANY(%(nums)s::bigint[])", nums)
            lengths = tables.query(
                "DELETE FROM messages WHERE num = ANY(%(nums)s::bigint[]) RETURNING length", nums
            )
            self._sums["texts"] -= len(lengths)
            self._sums["text_words"] -= sum(length for (length,) in lengths)
        if self._moved_messages:
            moved = zip(*self._moved_messages, strict=True)
            values = dict(zip(("nums", "at", "fronts", "active"), map(list, moved), strict=True))
            tables.query(_MOVE_MESSAGES, values)
        if self._changed_members:
            nums = {"nums": self._changed_members}
            tables.query("DELETE FROM members WHERE capsule = ANY(%(nums)s::bigint[])", nums)
        if self._changed_names:
            nums = {"nums": self._changed_names}
            tables.query("DELETE FROM names WHERE num = ANY(%(nums)s::bigint[])", nums)
        rows = [
            {name: without_nul(value) for name, value in row.items()} for row in self._conversations
        ]
        tables.query(_WRITE_CONVERSATIONS, {"rows": orjson.dumps(rows).decode()})
        tables.copy("members", ("agent", "capsule"), self._members)
        tables.copy("names", ("num", "vector", "length"), self._names)
        tables.copy("messages", _MESSAGE_COLUMNS, self._messages)
        tables.copy("facts", ("message", "path", "type", "value", "number"), self._facts)
        tables.copy("words", ("num", "vector", "tools"), self._words)
        tables.query(_ADD_TO_SUMS, self._sums)


def _fronts(front: int, messages: list[IndexedMessage]) -> list[int]:
    """Return, for each message, the digest of all ids up to it. `front`: that of the ids before."""
    from hashlib import sha256

    fronts = []
    for message in messages:
        text = f"{front} {message.id}"
        front = int.from_bytes(sha256(text.encode("utf-8", "surrogatepass")).digest()[:7])
        fronts.append(front)
    return fronts


def _fact_value(type: int, value: str | float) -> tuple[str, str | None]:
    """Return a fact as text, and as a number if it is one.

    The number is given as text, as PostgreSQL's type `numeric` keeps every digit.
    """
    plain_type = type & ~IN_LIST
    if plain_type == TEXT:
        return str(value), None
    if type in (NULL, NULL + IN_LIST):
        number = "0"
    elif plain_type == BOOL:
        number = str(int(value))
    else:
        number = orjson.dumps(value).decode()
    return number, number


def count_words(text: str) -> int:
    """Return the number of words of a text, as the index counts them."""
    return len(_words_of(text))


def _words_of(text: str) -> list[str]:
    return _WORD.findall(text.lower() if text.isascii() else fold(text))


def vector_of(*texts: str) -> tuple[str, int]:
    """Return the words of some texts with their positions, as the text of a `tsvector`.

    The second value is the number of all words.
    """
    positions_by_word: dict[str, list[int]] = {}
    position = 0
    count = 0
    size = 0
    for text in texts:
        for full_word in _words_of(text):
            count += 1
            position += 1
            word = full_word[:LONGEST_WORD]
            positions = positions_by_word.get(word)
            if positions is None:
                size += 4 * len(word) + 8
                if size > _MAX_BYTES:
                    continue
                positions_by_word[word] = [min(position, _LAST_POSITION)]
            elif len(positions) < _MAX_POSITIONS:
                size += 2
                positions.append(min(position, _LAST_POSITION))
        position += _GAP
    lexemes = []
    for word, positions in positions_by_word.items():
        lexemes.append(f"'{word}':{','.join(map(str, positions))}")
    return " ".join(lexemes), count
