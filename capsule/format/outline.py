"""The branches of an orderly history, read off its lines: which stretches of messages there are, and what each answers.

A stretch is a message that names whom it answers, and those behind it that name nobody, so that each answers the one
before. A conversation of a hundred thousand messages with ten branches is ten stretches. What must stay true: where
every id stands once and every message behind the one it answers (`Anatomy.is_orderly`), an answer here is the one that
`tree` gives; it is read off the lines that name a parent, and those are looked through once.

Offsets are those of the line of an id, from the beginning of the history, as `lines` has them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

from capsule.format.lines import Lines, Named
from capsule.format.tree import ROOT

__all__ = ["Outline"]

#: A parent is looked for so far back first, in bytes: it mostly stands near.
_NEAR = 1 << 16


class Outline:
    """What was found in a history that has only grown since. Each question looks further as far as it must."""

    def __init__(self) -> None:
        self._begin = self._end = -1  # What lies between was looked through.
        self._starts: list[int] = []
        self._points: list[tuple[int, int]] = []  # Where the answered message stands (-1: none is), and the stretch.
        self._answered: dict[int, int] = {}
        self._ids: dict[str, int] = {}

    def find(self, lines: Lines, id: str) -> int:
        """Where an id stands; -1: nowhere."""
        if id not in self._ids:
            at = lines.sorted_at(id)
            at = lines.at(id) if at < 0 else at
            if at < 0:
                return at
            self._ids[id] = at
        return self._ids[id]

    def _look(self, lines: Lines, start: int) -> None:
        """Take in the stretches from an offset on."""
        if self._begin < 0:
            self._begin = self._end = lines.size
        parts = [(start, self._begin), (self._end, lines.size)]
        self._begin, self._end = min(start, self._begin), lines.size
        # Mostly parents stand near. Where they don't, one look at all ids costs less than many searches.
        enough = lines.searched + 2 * lines.size
        everywhere: dict[str, int] | None = None
        for begin, end in parts:
            for one in lines.named(begin, end) if begin < end else ():
                if everywhere is None and lines.searched > enough:
                    everywhere = lines.ids(0)
                self._take(one, self._parent_of(lines, one) if everywhere is None else everywhere.get(one.parent, -1))

    def _parent_of(self, lines: Lines, one: Named) -> int:
        if one.parent == ROOT:
            return -1
        near = lines.at(one.parent, max(0, one.at - _NEAR), one.at)
        return near if near >= 0 else self.find(lines, one.parent)

    def _take(self, one: Named, parent_at: int) -> None:
        if one.parent == one.id or (parent_at < 0 and one.parent != ROOT):
            return  # As if it named none.
        insort(self._starts, one.at)
        insort(self._points, (parent_at, one.at))
        self._answered[one.at] = parent_at

    def leaf(self, lines: Lines, at: int) -> int:
        """Where the message stands that is reached from one by following the newest child."""
        self._look(lines, at)
        while True:
            next = bisect_right(self._starts, at)
            end = self._starts[next] if next < len(self._starts) else lines.size
            point = bisect_left(self._points, (at, 0))
            if point == len(self._points) or self._points[point][0] >= end:
                return lines.last(end)
            # What answers a message beside the one behind it stands further back in the file, and is newer.
            at = self._points[bisect_right(self._points, (self._points[point][0], lines.size)) - 1][1]

    def siblings(self, lines: Lines, at: int) -> list[int]:
        """Where the messages stand that answer the same one as the one there, itself among them; in order."""
        self._look(lines, 0)
        above = self._answered[at] if at in self._answered else lines.last(at)
        first = bisect_left(self._points, (above, 0))
        found = [start for _, start in self._points[first : bisect_right(self._points, (above, lines.size))]]
        follower = lines.after(above)
        return found if follower < 0 or follower in self._answered else [follower, *found]

    def nearest_fork(self, lines: Lines, at: int) -> int:
        """Where the nearest message stands that has others beside it, from one towards the root, itself among them;
        -1: there is none."""
        self._look(lines, 0)
        while at >= 0:
            stretch = bisect_right(self._starts, at) - 1
            start = self._starts[stretch] if stretch >= 0 else lines.after(-1)
            point = bisect_left(self._points, (at, 0)) - 1
            if point >= 0 and self._points[point][0] >= start:
                return lines.after(self._points[point][0])
            if len(self.siblings(lines, start)) > 1:
                return start
            at = self._answered.get(start, -1)
        return -1
