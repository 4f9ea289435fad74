"""Who answers whom, read off the lines of a canonical history, and no more of them than an answer needs.

In the canonical layout a message's id and its parent have each a line of their own, which nothing inside a message can
look like, and the parent's follows the id's. A message without such a line answers the one before it, so that a
conversation of a hundred thousand messages with ten branches has ten places to look at. What must stay true: an answer
here is the one that `tree` gives for the same history, as far as no message answers one behind it and no id stands
twice, which only a hand can bring about, and `validate` tells. No I/O but the function it is given.

Offsets are those of the line of an id, from the beginning of the history.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import orjson

from capsule.format.needles import places
from capsule.format.tree import ROOT

__all__ = ["Lines", "Named", "Strand"]

#: Read at once: little when the answer lies at the end, as it mostly does; and what fits the processor's cache.
_FIRST, _MOST = 1 << 14, 1 << 18
_ID = b'\n      "id": '
_PARENT = b'\n      "parent": '
#: An id stands right before its parent's line.
_NEAR = 1 << 8
_ALL_IDS = re.compile(rb'\n      "id": ("(?:[^"\\\n]|\\.)*")')


class Named(NamedTuple):
    """A message that names its parent: where its id stands, its id, and the parent's (`ROOT`: none)."""

    at: int
    id: str
    parent: str


class Lines:
    """The lines of one history.

    Args:
        read: Gives the bytes between two offsets.
        size: Bytes of the history, from the byte after its bracket to the end of its last entry.

    Attributes:
        searched: So many bytes were looked through.
    """

    def __init__(self, read: Callable[[int, int], bytes], size: int) -> None:
        self.read = read
        self.size = size
        self.searched = 0

    def _back(self, needle: bytes, start: int, end: int, step: int = 0) -> int:
        """The offset of the last line that begins with `needle` between two offsets; -1: there is none."""
        step = step or _FIRST
        while end > start:
            begin = max(start, end - step)
            found = self.read(begin, min(end + len(needle) - 1, self.size)).rfind(needle)
            self.searched += end - begin
            if found >= 0:
                return begin + found
            end, step = begin, min(step * 4, _MOST)
        return -1

    def _rest(self, at: int) -> bytes:
        """What stands in the line at an offset, its newline left out; a line is as long as it likes."""
        step = 128
        while True:
            line = self.read(at, min(at + step, self.size))
            end = line.find(b"\n", 1)
            if end >= 0 or at + step >= self.size:
                return line[1:end] if end >= 0 else line[1:]
            step *= 8

    def _value(self, at: int, key: bytes) -> str:
        """The text behind the key in the line at an offset; null: `ROOT`."""
        value = orjson.loads(self._rest(at)[len(key) - 1 :].removesuffix(b","))
        return value if isinstance(value, str) else ROOT

    def id_at(self, at: int) -> str:
        """The id in a line."""
        return self._value(at, _ID)

    def at(self, id: str, start: int = 0, end: int | None = None) -> int:
        """Where an id stands; -1: nowhere. Costs a search from the end back to it."""
        line = _ID + orjson.dumps(id)
        return self._back(line, start, self.size if end is None else end)

    def last(self, before: int | None = None) -> int:
        """Where the id of the last message stands, or of the last before an offset; -1: nowhere."""
        return self._back(_ID, 0, self.size if before is None else before)

    def after(self, at: int, before: int | None = None) -> int:
        """Where the id of the next message stands, or of the next before an offset; -1: there is none."""
        begin, step, end = at + 1, _FIRST, self.size if before is None else before
        while begin < end:
            found = self.read(begin, min(begin + step + len(_ID), self.size)).find(_ID)
            if found >= 0:
                return begin + found if begin + found < end else -1
            begin, step = begin + step, min(step * 4, _MOST)
        return -1

    def parent_at(self, at: int) -> str | None:
        """What the message whose id stands there names as its parent; `ROOT`: none; None: it names nothing."""
        following = at + 1 + len(self._rest(at))
        if self.read(following, min(following + len(_PARENT), self.size)) != _PARENT:
            return None
        return self._value(following, _PARENT)

    def sorted_at(self, id: str) -> int:
        """Where an id stands in a history whose ids are in order, as those of the store mostly are; -1: look for it.

        Costs a look at twenty places.
        """
        line, start, end = _ID + orjson.dumps(id), 0, self.size
        while end - start > _FIRST:
            middle = (start + end) // 2
            at = self.after(middle, end)
            if at < 0:
                end = middle + 1
            elif (found := self.id_at(at)) == id:
                return at
            elif found < id:
                start = at + 1
            else:
                end = middle + 1
        return self._back(line, start, end)

    def named(self, start: int = 0, end: int | None = None) -> list[Named]:
        """The messages between two offsets that name their parent, in order."""
        found = []
        for line in self._all(_PARENT, start, self.size if end is None else min(end + _NEAR, self.size)):
            at = self._back(_ID, 0, line, _NEAR)
            if start <= at and (end is None or at < end):
                found.append(Named(at, self.id_at(at), self._value(line, _PARENT)))
        return found

    def _all(self, needle: bytes, start: int, end: int) -> list[int]:
        """The offsets of all lines that begin with `needle` between two offsets, in order."""
        lines: list[int] = []
        find = places(end - start)
        for begin in range(start, end, _MOST):
            block = self.read(begin, min(begin + _MOST + len(needle) - 1, self.size))
            lines += [begin + at for at in find(block, needle)]
        self.searched += end - start
        return lines

    def ids(self, start: int) -> dict[str, int]:
        """Where all ids from an offset on stand. Costs a look at every byte."""
        block = self.read(start, self.size)
        return {orjson.loads(match[1]): start + match.start() for match in _ALL_IDS.finditer(block)}


_END = 1 << 62


@dataclass(slots=True)
class Strand:
    """What is reached from one message by following the newest child: in the file, stretches of it.

    Attributes:
        top: The message's id.
        stretches: Where the ids of each stretch stand: from the first offset on, before the second.
        is_open: Whether the leaf is the last message of the file, so that the next one answers it without saying so;
            the last stretch has no end then.
        seen: So far the history has been looked at.
        named, also_named: Where the messages stand that name their parent; the second is another strand's.
    """

    top: str
    stretches: list[tuple[int, int]]
    is_open: bool = True
    seen: int = 0
    named: dict[str, int] = field(default_factory=dict)
    also_named: dict[str, int] = field(default_factory=dict)

    @classmethod
    def under(cls, lines: Lines, at: int) -> Strand:
        """The strand from the message on whose id stands at an offset."""
        strand = cls(lines.id_at(at), [(at, _END)], seen=at + 1)
        strand.follow(lines)
        return strand

    @classmethod
    def ending(cls, lines: Lines, current: str) -> Strand | None:
        """The active branch, from `current` on; None when that is no message.

        As soon as its newest answer is met, what stands before is not read, so this costs a look at what was appended
        since the branch was made the active one.
        """
        id, step, end = orjson.dumps(current), _FIRST, lines.size
        top, answer = _ID + id, _PARENT + id
        while end > 0:
            begin = max(0, end - step)
            block = lines.read(begin, min(end + len(answer), lines.size))
            found = max(block.rfind(answer), block.rfind(top))
            if found >= 0:
                at = begin + found
                strand = cls.under(lines, lines.last(at) if block.startswith(answer, found) else at)
                strand.top = current
                return strand
            end, step = begin, min(step * 4, _MOST)
        return None

    def copy(self) -> Strand:
        """One to try things on, before this one is asked for more. Costs little, as an append may need it each time."""
        return replace(self, stretches=list(self.stretches), named={}, also_named=self.named)

    def follow(self, lines: Lines) -> None:
        """Take in what was appended since; costs a look at that."""
        if self.seen >= lines.size:
            return
        named = lines.named(self.seen)
        # Mostly they stand near. Where they don't, one look at all ids costs less than many searches.
        enough = lines.searched + 2 * lines.size
        everywhere: dict[str, int] | None = None
        for one in named:
            if everywhere is None and lines.searched > enough:
                everywhere = lines.ids(0)
            if everywhere is None:
                self.take(lines, one, self.find(lines, one.parent, one.at))
            else:
                self.take(lines, one, everywhere.get(one.parent, -1))
        self.seen = lines.size

    def leaf(self, lines: Lines) -> str:
        """The id of the message that is reached."""
        return lines.id_at(lines.last(None if self.is_open else self.stretches[-1][1]))

    @property
    def _begin(self) -> int:
        return self.stretches[0][0]

    def find(self, lines: Lines, id: str, before: int) -> int:
        """Where an id stands from the beginning of the strand on and before an offset; -1: not there."""
        for named in (self.named, self.also_named):
            if id in named:
                return named[id]
        return -1 if id == ROOT else lines.at(id, self._begin, before)

    def take(self, lines: Lines, one: Named, parent_at: int) -> None:
        """Take in the next message that names its parent.

        Args:
            lines: The history.
            one: The message; those between the last one and this answer each the one before.
            parent_at: Where its parent's id stands, as `find` says.
        """
        self.named[one.id] = one.at
        if self.is_open:
            if one.parent == one.id or (parent_at < 0 and not self._is_known(lines, one)):
                return  # As if it named none.
            self.stretches[-1] = (self.stretches[-1][0], one.at)
        on = bisect_right(self.stretches, parent_at, key=_start_of) - 1
        if on >= 0 and parent_at < self.stretches[on][1]:
            self.stretches[on:] = [(self.stretches[on][0], parent_at + 1)]
        elif one.parent == self.top:
            self.stretches = []
        else:
            self.is_open = False
            return
        self.stretches.append((one.at, _END))
        self.is_open = True

    def _is_known(self, lines: Lines, one: Named) -> bool:
        """Whether a parent that wasn't found is one before the strand, or behind the message."""
        id = one.parent
        return id in (ROOT, self.top) or lines.at(id, 0, self._begin) >= 0 or lines.at(id, min(one.at, lines.size)) >= 0


def _start_of(stretch: tuple[int, int]) -> int:
    return stretch[0]
