"""Leave out of a query what the asker may not read, by conditions on the rows of the index.

What must stay true: a hidden message counts in no answer. Who may read what is decided elsewhere
(`capsule.rules.policy`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import orjson

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping


ALWAYS_MS = -(1 << 62)


class VisibilityFilter(NamedTuple):
    """The conversations that are hidden from the asker, by their numbers.

    Attributes:
        wholly: Those of which nothing may be read.
        partly: Those of which messages may be read from a time on, each with that time.
        nothing: Whether the owner asks: nothing is hidden.
        from_ms: The time from which on a conversation may be read, as SQL with a place for its
            number.
        of_messages: The condition that a row `m` of `messages` meets unless it is hidden.
        of_conversations: The condition that a row `c` of `capsules` meets unless it is hidden.
    """

    wholly: list[int]
    partly: dict[int, int]
    nothing: bool = False
    from_ms: str = ""
    of_messages: str = "TRUE"
    of_conversations: str = "TRUE"

    @classmethod
    def of(cls, wholly: list[int], partly: dict[int, int], from_ms: str) -> VisibilityFilter:
        """What is hidden, by numbers."""
        hidden = cls(wholly, partly, from_ms=from_ms)
        of_messages = " AND ".join(["TRUE", *hidden.conditions("m.capsule", "m.time_ms")])
        return hidden._replace(
            of_messages=of_messages,
            of_conversations=" AND ".join(["TRUE", *hidden.conditions("c.num")]),
        )

    def conditions(self, capsule: str, time: str = "") -> list[str]:
        """The conditions that a row meets unless it is hidden, by the columns of its conversation
        and its time.
        """
        wholly = [f"{capsule} NOT IN ({', '.join(map(str, self.wholly))})"] if self.wholly else []
        return wholly + (
            [f"{time} >= {self.from_ms.format(capsule)}"] if self.partly and time else []
        )


#: The owner asks.
SEES_ALL = VisibilityFilter([], {}, nothing=True)


def hide(db: sqlite3.Connection, hidden: Mapping[str, int | None]) -> VisibilityFilter:
    """Hide conversations from the next questions; with a number: only their messages before this
    time, in milliseconds since 1970."""
    wholly, partly = numbers(db, hidden)
    if partly:
        db.create_function("seen_from", 1, lambda capsule: partly.get(capsule, ALWAYS_MS))
    return VisibilityFilter.of(wholly, partly, "seen_from({})")


def numbers(
    db: sqlite3.Connection, hidden: Mapping[str, int | None]
) -> tuple[list[int], dict[int, int]]:
    """The numbers of the conversations that are hidden wholly, and of those in part, each with its
    time.
    """
    question = "SELECT num, id FROM capsules WHERE id IN (SELECT value FROM json_each(?))"
    rows = db.execute(question, (orjson.dumps(list(hidden)).decode(),)).fetchall() if hidden else []
    since = {num: time_ms for num, id in rows if (time_ms := hidden[id]) is not None}
    return [num for num, _ in rows if num not in since], since


def seen_of(db: sqlite3.Connection, num: int, since_ms: int) -> tuple[int, int, int, int]:
    """The number of messages from a time on, in milliseconds since 1970, and of their words, bytes
    and tokens.
    """
    sums = (
        "coalesce(sum(words), 0), coalesce(sum(length(CAST(content AS BLOB))), 0), "
        "coalesce(sum(tokens), 0)"
    )
    question = f"SELECT count(*), {sums} FROM texts WHERE capsule = ? AND time_ms >= ?"
    counts: tuple[int, int, int, int] = db.execute(question, (num, since_ms)).fetchone()
    return counts
