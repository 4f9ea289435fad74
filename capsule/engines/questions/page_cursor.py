"""Make and read the cursor of a list or a search: where its next page begins.

A cursor is base64url of: version (1 byte), checksums of the generation of the index and of the
request (4 bytes each), and, deflated, a JSON array: time, newest message, newest title, number of
required words, the numbers of the returned messages and of the returned titles. Each number of a
list is stored as the distance from the one before.

What must stay true: pages of one search never repeat a message and skip none, whatever is appended
meanwhile. A score can change with every message that is indexed, so a cursor has no score.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any
from zlib import MAX_WBITS, compressobj, crc32, decompressobj
from zlib import error as DeflateError

import orjson

from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from capsule.engines.queries import ListRequest
    from capsule.format.documents.head import Head

_VERSION = 4
_CHECKSUM_BYTES = 4
_HEADER_BYTES = 1 + 2 * _CHECKSUM_BYTES
#: No cursor inflates to more, in bytes.
_MAX_INFLATED = 1 << 20


@dataclass(slots=True)
class PageCursor:
    """The decoded cursor. A num is the row number of a message or a conversation in the index.

    Attributes:
        now_ms: The time that ages are counted from, in milliseconds since 1970.
        newest_num: The newest message that the search considers.
        newest_title_num: The newest conversation that the search considers.
        required_parts: The number of words of the query that a hit must have. 0: all of them.
        returned_nums: The messages on earlier pages.
        returned_title_nums: The conversations on earlier pages.
    """

    now_ms: int
    newest_num: int
    newest_title_num: int
    required_parts: int = 0
    returned_nums: set[int] = field(default_factory=set)
    returned_title_nums: set[int] = field(default_factory=set)

    def encode(self, generation: str, cursor_key: str) -> str:
        """Return the cursor as text.

        Args:
            generation: The generation of the index, 16 hexadecimal digits. The row numbers are
                valid in this one only.
            cursor_key: The request as text. The cursor is refused for any other request.
        """
        fields = [
            self.now_ms,
            self.newest_num,
            self.newest_title_num,
            self.required_parts,
            _deltas(self.returned_nums),
            _deltas(self.returned_title_nums),
        ]
        deflate = compressobj(wbits=-MAX_WBITS)
        compressed = deflate.compress(orjson.dumps(fields)) + deflate.flush()
        data = _header(generation, cursor_key) + compressed
        return urlsafe_b64encode(data).rstrip(b"=").decode()

    @classmethod
    def decode(cls, cursor: str, generation: str, cursor_key: str) -> PageCursor:
        """Decode a cursor.

        Raises:
            InvalidInput: It is no cursor, or it belongs to another request or another generation
                of the index.
        """
        try:
            data = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
            header = data[:_HEADER_BYTES]
            inflate = decompressobj(wbits=-MAX_WBITS)
            fields = orjson.loads(inflate.decompress(data[_HEADER_BYTES:], _MAX_INFLATED))
            now_ms, newest_num, newest_title_num, required = (_number(n) for n in fields[:4])
            returned, titles = (set(accumulate(map(_number, deltas))) for deltas in fields[4:])
        except (ValueError, TypeError, LookupError, DeflateError):
            raise InvalidInput(
                "that is not a cursor; use the cursor of the last page, or none to start again"
            ) from None
        expected = _header(generation, cursor_key)
        request_checksum = slice(1 + _CHECKSUM_BYTES, None)
        is_same_request = header[request_checksum] == expected[request_checksum]
        if header[:1] != bytes([_VERSION]) or not is_same_request:
            raise InvalidInput(
                "the cursor belongs to another query; use it with the options of the first page"
            )
        if header != expected:
            raise InvalidInput(
                "the cursor is of another store, or of an index that was rebuilt since; start "
                "again without a cursor"
            )
        return cls(
            now_ms=now_ms,
            newest_num=newest_num,
            newest_title_num=newest_title_num,
            required_parts=required,
            returned_nums=returned,
            returned_title_nums=titles,
        )


@dataclass(frozen=True, slots=True)
class ListPage:
    """The conversations of one page of a list.

    Attributes:
        heads: The conversations.
        has_more: Whether there are further ones behind them.
        page: Where the page begins.
        generation: The generation of the index.
        cursor_key: The request as text.
    """

    heads: list[Head]
    has_more: bool
    page: PageCursor
    generation: str
    cursor_key: str

    def cursor(self, count: int, nums: Mapping[str, int]) -> str | None:
        """Return the cursor after the first `count` conversations of this page. None: it is the end.

        Args:
            count: The number of conversations that were used.
            nums: The row number of each conversation.
        """
        if count >= len(self.heads) and not self.has_more:
            return None
        returned = self.page.returned_title_nums | {nums[head.id] for head in self.heads[:count]}
        page = replace(self.page, returned_title_nums=returned)
        return page.encode(self.generation, self.cursor_key)


def list_page(
    heads: Iterable[Head], request: ListRequest, generation: str, nums: Mapping[str, int]
) -> ListPage:
    """Return one page of a list: the first one, or the one at the cursor of the request.

    Args:
        heads: All conversations of the list, in its order.
        request: The request, whose cursor is not sealed.
        generation: The generation of the index.
        nums: The row number of each conversation.

    Raises InvalidInput if the limit is less than one, and as `PageCursor.decode`.
    """
    if request.limit is not None and request.limit < 1:
        raise InvalidInput(f"limit: at least one conversation, not {request.limit}")
    if request.cursor:
        page = PageCursor.decode(request.cursor, generation, request.cursor_key)
    else:
        page = PageCursor(now_ms=0, newest_num=0, newest_title_num=0)
    unreturned = (head for head in heads if nums[head.id] not in page.returned_title_nums)
    on_page = list(islice(unreturned, request.limit))
    has_more = next(unreturned, None) is not None
    return ListPage(on_page, has_more, page, generation, request.cursor_key)


def _header(generation: str, cursor_key: str) -> bytes:
    """Return version and checksums."""
    header = bytes([_VERSION])
    for text in (generation, cursor_key):
        header += crc32(text.encode("utf-8", "surrogatepass")).to_bytes(_CHECKSUM_BYTES)
    return header


def _number(value: Any) -> int:
    """Check a row number or a time. Raises ValueError."""
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError
    return value


def _deltas(numbers: set[int]) -> list[int]:
    """Return the numbers, sorted, each as the distance from the one before. That deflates best."""
    ordered = sorted(numbers)
    return [number - previous for previous, number in zip([0, *ordered], ordered, strict=False)]
