"""The cursor of a list or a search: where its next page begins.

What must stay true: pages of one search never repeat a message and skip none, whatever is appended
meanwhile. A score can change with every message that is indexed, so a cursor has no score. It has
the time that ages are counted from, the newest message that counts, and the numbers of the messages
that were returned already.

A cursor is base64url of: version (1 byte), checksums of the generation of the index and of the
request (4 bytes each), and, deflated, a JSON array: time, newest message, newest title, count of
words, the numbers of the returned messages and of the returned titles. Each number of a list is the
distance from the one before.
"""

from __future__ import annotations

import sqlite3
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any
from zlib import MAX_WBITS, compressobj, crc32, decompressobj
from zlib import error as DeflateError

import orjson

from capsule.engines.index.visibility import seen_of
from capsule.engines.queries import Listed
from capsule.errors import InvalidInput
from capsule.format.documents.head import Head

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping

    from capsule.engines.index.index import Index
    from capsule.engines.queries import (
        Listed,
        ListRequest,
    )
    from capsule.format.documents.head import Head


_VERSION = 4


_HEAD = 1 + 4 + 4


_LONGEST = 1 << 20


#: The model that the last messages of a sound conversation name, with a condition about them.
_MODEL = """(SELECT f.value FROM messages AS m CROSS JOIN facts AS f ON f.message = m.num
    WHERE m.capsule = c.num AND c.damaged = '' AND m.at >= c.entries - 50 AND {}
    AND f.path = 'model' AND typeof(f.value) = 'text' ORDER BY m.at DESC LIMIT 1)"""


@dataclass(slots=True)
class PageCursor:
    """What the next page is made from.

    Attributes:
        now_ms: The time that ages are counted from.
        top: The number of the newest message that is looked at.
        top_title: The number of the newest conversation.
        having: How many words of the query a hit has; 0: all of them.
        given: The numbers of the messages that were given already.
        given_titles: Those of the conversations that were.
    """

    now_ms: int
    top: int
    top_title: int
    having: int = 0
    given: set[int] = field(default_factory=set)
    given_titles: set[int] = field(default_factory=set)

    def cursor(self, generation: str, asked: str) -> str:
        """The cursor as text.

        Args:
            generation: Of the index (16 hexadecimal digits): the numbers are good for no other.
            asked: What was asked, in any words: the cursor fits no other search.
        """
        given = [_steps(self.given), _steps(self.given_titles)]
        numbers = orjson.dumps([self.now_ms, self.top, self.top_title, self.having, *given])
        deflate = compressobj(wbits=-MAX_WBITS)
        data = _head(generation, asked) + deflate.compress(numbers) + deflate.flush()
        return urlsafe_b64encode(data).rstrip(b"=").decode()

    @classmethod
    def of(cls, cursor: str, generation: str, asked: str) -> PageCursor:
        """The page that a cursor stands for.

        Raises:
            InvalidInput: It is no cursor, or of another search, or of an index that is gone.
        """
        try:
            data = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
            inflate = decompressobj(wbits=-MAX_WBITS)
            head, numbers = data[:_HEAD], orjson.loads(inflate.decompress(data[_HEAD:], _LONGEST))
            now_ms, top, top_title, having = (_number(number) for number in numbers[:4])
            given, titles = (set(accumulate(map(_number, steps))) for steps in numbers[4:])
        except (ValueError, TypeError, LookupError, DeflateError):
            raise InvalidInput(
                "that is not a cursor; use the cursor of the last page, or none to start again"
            ) from None
        if head[:1] != bytes([_VERSION]) or head[5:] != _head(generation, asked)[5:]:
            raise InvalidInput(
                "the cursor belongs to another query; use it with the options of the first page"
            )
        if head != _head(generation, asked):
            raise InvalidInput(
                "the cursor is of another store, or of an index that was rebuilt since; start "
                "again without a cursor"
            )
        return cls(now_ms, top, top_title, having, given, titles)


def listed(
    db: sqlite3.Connection,
    heads: list[Head],
    asked: ListRequest,
    index: Index,
    since: Mapping[str, int | None],
) -> Listed:
    """The first page of these conversations, in their order, or what a cursor of the same list
    leaves of them.

    `since` says from when on the asker reads one, in part.
    """
    if asked.limit is not None and asked.limit < 1:
        raise InvalidInput(f"limit: at least one conversation, not {asked.limit}")
    generation, numbers = index.generation, index.numbers
    page = (
        PageCursor.of(asked.cursor, generation, asked.words)
        if asked.cursor
        else PageCursor(0, 0, 0)
    )
    left = (head for head in heads if numbers[head.id] not in page.given_titles)
    shown = list(islice(left, asked.limit))
    has_more = next(left, None) is not None

    def following(count: int) -> str | None:
        given = page.given_titles | {numbers[head.id] for head in shown[:count]}
        is_last = count >= len(shown) and not has_more
        return (
            None if is_last else replace(page, given_titles=given).cursor(generation, asked.words)
        )

    theirs = index.hide(db, {head.id: since[head.id] for head in shown if since.get(head.id)})
    question = (
        f"SELECT num, c.id, entries, {_MODEL} FROM capsules AS c JOIN json_each(?) ON "
        "c.num = CAST(value AS BIGINT)"
    )
    nums = orjson.dumps([numbers[head.id] for head in shown]).decode()
    messages, models = dict[str, int](), dict[str, str]()
    for num, id, count, model in db.execute(
        question.format(theirs.of_messages), (nums,)
    ).fetchall():
        messages[id] = seen_of(db, num, theirs.partly[num])[0] if num in theirs.partly else count
        models |= {id: model} if model else {}
    return Listed(shown, messages, models, len(heads), following)


def _head(generation: str, asked: str) -> bytes:
    sums = (
        crc32(text.encode("utf-8", "surrogatepass")).to_bytes(4) for text in (generation, asked)
    )
    return bytes([_VERSION, *b"".join(sums)])


def _number(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError
    return value


def _steps(numbers: set[int]) -> list[int]:
    """Sorted, each as its distance from the one before: that deflates best."""
    ordered = sorted(numbers)
    return [number - before for before, number in zip([0, *ordered], ordered, strict=False)]
