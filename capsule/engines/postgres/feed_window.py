"""The latest changes of the feed, which a process was told of, so that it need not ask the database.

What must stay true: the window has every change from its start to its end that somebody in this
process waits for. A cursor is answered from the window only if it is certain that no change is
missing between the cursor and the start. This module reads and writes nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict

from capsule.engines.postgres.feed_reader import FeedNews, FeedRow
from capsule.engines.questions.change_cursors import ChangeCursor as Cursor

#: The largest number of changes, and of cursors, that are kept.
_MAX_CHANGES = 5_000
_MAX_CURSORS = 1_000


class FeedWindow:
    """The latest changes. The caller has a lock."""

    def __init__(self) -> None:
        self._generation = ""
        #: The places between which it has the changes. Without a start it has none.
        self._start: int | None = None
        self._end = 0
        self._rows: list[FeedRow] = []
        #: For a cursor that was given out: the place up to which the feed was read.
        self._read_until: OrderedDict[str, int] = OrderedDict()

    def add(self, news: FeedNews) -> None:
        """Add what is new. News without a generation empty the window."""
        if news.generation != self._generation or news.start is not None:
            self._generation = news.generation
            self._start = news.start
            self._rows = []
        self._end = news.end
        self._rows += news.changes
        if len(self._rows) > _MAX_CHANGES:
            self._start = self._rows[-_MAX_CHANGES // 2].place
            self._rows = [row for row in self._rows if row.place >= self._start]

    def note_cursor(self, cursor: str, read_until: int) -> None:
        """Note that the feed was read up to a place for a cursor, which is after all its changes."""
        self._read_until[cursor] = read_until
        self._read_until.move_to_end(cursor)
        while len(self._read_until) > _MAX_CURSORS:
            self._read_until.popitem(last=False)

    def rows_after(self, cursor: Cursor, limit: int) -> list[FeedRow] | None:
        """Return the first changes after a cursor. None: the database must be asked."""
        if self._start is None or cursor.generation != self._generation:
            return None
        read_until = max(self._read_until.get(str(cursor), 0), cursor.time_ms)
        if read_until < self._start:
            return None
        position = bisect_right(self._rows, (cursor.time_ms, cursor.seq), key=lambda row: row[:2])
        return self._rows[position : position + limit]

    @property
    def end(self) -> int:
        """The place up to which it has the changes."""
        return self._end
