"""The cursor of a search: where its next page begins.

What must stay true: pages of one search never repeat a message and skip none, whatever is appended meanwhile. A
score can change with every message that is indexed, so a cursor holds no score: it holds the time that ages are
counted from, the newest message that counts, and which ones were given already.

A cursor is base64url of: version (1 byte), generation of the index (8 bytes), digest of what was asked (4), and
numbers of 7 bits a byte: time, top, top of the titles, count and numbers of the titles given, those of the messages
given; each number of a list as its distance from the one before.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b

from capsule.errors import InvalidInput

__all__ = ["Page"]

_VERSION = 1
_HEAD = 1 + 8 + 4


@dataclass(slots=True)
class Page:
    """What the next page is made from.

    Attributes:
        now_ms: The time that ages are counted from.
        top: The number of the newest message that is looked at.
        top_title: The number of the newest conversation.
        given: The numbers of the messages that were given already.
        given_titles: Those of the conversations that were.
    """

    now_ms: int
    top: int
    top_title: int
    given: set[int] = field(default_factory=set)
    given_titles: set[int] = field(default_factory=set)

    def cursor(self, generation: str, asked: str) -> str:
        """The text of it.

        Args:
            generation: Of the index (16 hexadecimal digits): the numbers are good for no other.
            asked: What was asked, in any words: another search can't go on here.
        """
        numbers = [self.now_ms, self.top, self.top_title, len(self.given_titles)]
        numbers += [*_steps(self.given_titles), *_steps(self.given)]
        data = _head(generation, asked) + b"".join(map(_packed, numbers))
        return urlsafe_b64encode(data).rstrip(b"=").decode()

    @classmethod
    def of(cls, cursor: str, generation: str, asked: str) -> Page:
        """The page that a cursor stands for.

        Raises:
            InvalidInput: It is no cursor, or of another search, or of an index that is gone.
        """
        try:
            data = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
            head, numbers = data[:_HEAD], list(_unpacked(data[_HEAD:]))
            now_ms, top, top_title, titles = numbers[:4]
        except ValueError:
            raise InvalidInput("that is no cursor of a search; take the one of its last page") from None
        if head[:1] != bytes([_VERSION]) or head[9:] != _head(generation, asked)[9:]:
            raise InvalidInput("the cursor is that of another search; give the query and the options of that one")
        if head != _head(generation, asked):
            raise InvalidInput("the index was built anew since the cursor was made; search again from the start")
        given_titles, given = numbers[4 : 4 + titles], numbers[4 + titles :]
        return cls(now_ms, top, top_title, set(_sums(given)), set(_sums(given_titles)))


def _head(generation: str, asked: str) -> bytes:
    digest = blake2b(asked.encode("utf-8", "surrogatepass"), digest_size=4).digest()
    return bytes([_VERSION]) + blake2b(generation.encode(), digest_size=8).digest() + digest


def _steps(numbers: Iterable[int]) -> Iterator[int]:
    before = 0
    for number in sorted(numbers):
        yield number - before
        before = number


def _sums(steps: Iterable[int]) -> Iterator[int]:
    total = 0
    for step in steps:
        total += step
        yield total


def _packed(number: int) -> bytes:
    made = bytearray()
    while number > 127:
        made.append(number & 127 | 128)
        number >>= 7
    made.append(number)
    return bytes(made)


def _unpacked(data: bytes) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if not byte & 128:
            if number >= 1 << 63:
                raise ValueError
            yield number
            number = shift = 0
    if shift:
        raise ValueError
