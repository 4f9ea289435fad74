"""The conversations that a question leaves out, as conditions about rows.

What must stay true: a message that is hidden counts in no answer. Who may read what is decided elsewhere.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

import orjson

_ALWAYS_MS = -(1 << 62)


class Hidden(NamedTuple):
    """The numbers of the conversations that are wholly hidden; and of those that are in part, with the time from which
    `seen_from` lets them be seen. `nothing`: the owner asks, from whom nothing ever is. `of_messages`: what a
    row `m` of `messages` must be so as not to be hidden."""

    wholly: list[int]
    partly: dict[int, int]
    nothing: bool = False
    of_messages: str = "TRUE"

    @property
    def of_conversations(self) -> str:
        """What a row `c` of `capsules` must be so as not to be hidden."""
        return " AND ".join(["TRUE", *self.conditions("c.num")])

    def conditions(self, capsule: str, time: str = "") -> list[str]:
        """What a row must be so as not to be hidden, given the columns of its conversation and of its time."""
        wholly = [f"{capsule} NOT IN ({', '.join(map(str, self.wholly))})"] if self.wholly else []
        return wholly + ([f"{time} >= seen_from({capsule})"] if self.partly and time else [])


#: The owner asks.
NOTHING = Hidden([], {}, nothing=True)


def hide(db: sqlite3.Connection, hidden: Mapping[str, int | None]) -> Hidden:
    """Hide conversations from the next questions; with a number: only their messages before this time, in milliseconds
    since 1970."""
    question = "SELECT num, id FROM capsules WHERE id IN (SELECT value FROM json_each(?))"
    rows = db.execute(question, (orjson.dumps(list(hidden)).decode(),)).fetchall() if hidden else []
    since = {num: time_ms for num, id in rows if (time_ms := hidden[id]) is not None}
    if since:
        db.create_function("seen_from", 1, lambda capsule: since.get(capsule, _ALWAYS_MS))
    numbered = Hidden([num for num, _ in rows if num not in since], since)
    conditions = numbered.conditions("m.capsule", "m.time_ms")
    return numbered._replace(of_messages=" AND ".join(["TRUE", *conditions]))


def seen_of(db: sqlite3.Connection, num: int, since_ms: int) -> tuple[int, int, int]:
    """The messages of a conversation from a time on, in milliseconds since 1970: how many, their words and bytes."""
    question = "SELECT count(*), total(words), total(length(CAST(content AS BLOB))) FROM messages WHERE capsule = ?"
    messages, words, size = db.execute(f"{question} AND time_ms >= ?", (num, since_ms)).fetchone()
    return messages, int(words), int(size)
