"""Count the messages of the conversations on one page of a list, and find their models."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import orjson

from capsule.engines.index.visibility import VisibilityFilter, count_visible

#: The model that the last messages of a valid conversation name. `{}` is a condition about them.
_MODEL = """(SELECT f.value FROM messages AS m CROSS JOIN facts AS f ON f.message = m.num
    WHERE m.capsule = c.num AND c.damaged = '' AND m.at >= c.entries - 50 AND {}
    AND f.path = 'model' AND typeof(f.value) = 'text' ORDER BY m.at DESC LIMIT 1)"""


def count_messages(
    db: sqlite3.Connection, nums: Iterable[int], visibility: VisibilityFilter
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the number of messages of some conversations, and their last models, by id.

    Args:
        db: The index, within a transaction.
        nums: The row numbers of the conversations.
        visibility: The asker reads these in part.
    """
    model = _MODEL.format(visibility.message_condition)
    rows = db.execute(
        f"SELECT num, c.id, entries, {model} FROM capsules AS c JOIN json_each(?) ON num = value",
        (orjson.dumps(list(nums)).decode(),),
    ).fetchall()
    messages: dict[str, int] = {}
    models: dict[str, str] = {}
    for num, id, count, model_name in rows:
        if num in visibility.visible_from_ms:
            messages[id] = count_visible(db, num, visibility.visible_from_ms[num])[0]
        else:
            messages[id] = count
        if model_name:
            models[id] = model_name
    return messages, models
