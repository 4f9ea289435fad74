"""A conversation as the index had it last, for the time when its file is damaged.

What must stay true: of a message whose fields the index does not all have, it says so; the digest tells.
"""

from __future__ import annotations

import sqlite3
import zlib
from typing import Any

import orjson

from capsule.engines.index.heads import HEAD_COLUMNS, head_of
from capsule.engines.index.reading import lines_of, messages_of
from capsule.format.documents.new import empty_context, new_metadata
from capsule.format.facts import FIELDS, NUMBER, TEXT
from capsule.format.json.canonical import order_message
from capsule.timestamps import from_ms

_TOP = ("id", "title", "version", "createdAt", "updatedAt")
#: What is not of the document, or not all that it has.
_OF_THE_FILE = ("path", "bytes", "conflicts", "imported")


def recalled(db: sqlite3.Connection, id: str) -> tuple[dict[str, Any], frozenset[str]] | None:
    """A conversation from the rows of the index, and the ids of the messages whose fields it does not all have.

    Returns: None if the index does not have the conversation. Cost: reading its rows.
    """
    columns = HEAD_COLUMNS.replace("damaged", "''")
    row = db.execute(
        f"SELECT num, current, context, {columns} FROM capsules WHERE id = ? AND gone = 0 AND head IS NOT NULL", (id,)
    ).fetchone()
    if row is None:
        return None
    number, current, context, *fields = row
    head = head_of(tuple(fields), "").as_json() | {"currentNode": current}
    about = {name: value for name, value in head.items() if value and name not in _TOP + _OF_THE_FILE}
    document = {name: head[name] for name in _TOP} | {"metadata": new_metadata() | about}
    if context == zlib.crc32(orjson.dumps(empty_context())):
        document["context"] = empty_context()
    history, partial = [], set()
    for num, message, parent, role, sender, time_ms, content, digest in db.execute(
        "SELECT num, id, parent, role, sender, time_ms, content, digest FROM messages WHERE capsule = ? ORDER BY at",
        (number,),
    ):
        entry = {"role": role, "content": content, "timestamp": from_ms(time_ms), "id": message}
        entry |= ({} if parent is None else {"parent": parent or None}) | ({"from": sender} if sender else {})
        facts = db.execute(f"SELECT path, value FROM facts WHERE message = ? AND type IN ({NUMBER}, {TEXT})", (num,))
        known = order_message(entry | {path: value for path, value in facts if path in FIELDS})
        same = messages_of([known], [lines_of(known)])
        if same is None or same[0].digest != digest:
            partial.add(message)
            known = order_message(entry)  # A fact may be of the metadata.
        history.append(known)
    return document | {"history": history}, frozenset(partial)
