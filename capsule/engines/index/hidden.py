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
    """The numbers of the conversations that are wholly hidden; and whether some are in part, as `seen_from` says."""

    wholly: list[int]
    partly: bool

    def conditions(self, capsule: str, time: str = "") -> list[str]:
        """What a row must be so as not to be hidden, given the columns of its conversation and of its time."""
        wholly = [f"{capsule} NOT IN ({', '.join(map(str, self.wholly))})"] if self.wholly else []
        return wholly + ([f"{time} >= seen_from({capsule})"] if self.partly and time else [])


def hide(db: sqlite3.Connection, hidden: Mapping[str, int | None]) -> Hidden:
    """Hide conversations from the next questions; with a number: only their messages before this time, in milliseconds
    since 1970."""
    question = "SELECT num, id FROM capsules WHERE id IN (SELECT value FROM json_each(?))"
    found = db.execute(question, (orjson.dumps(list(hidden)).decode(),)).fetchall() if hidden else []
    since = {num: time_ms for num, id in found if (time_ms := hidden[id]) is not None}
    if since:
        db.create_function("seen_from", 1, lambda capsule: since.get(capsule, _ALWAYS_MS))
    return Hidden([num for num, _ in found if num not in since], bool(since))
