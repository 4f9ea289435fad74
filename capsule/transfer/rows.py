"""What the readers of databases share: rows as objects, and objects without what is empty or mapped. Pure."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from capsule.transfer.interface import ODD, Draft, Fields, Source, json_of

if TYPE_CHECKING:
    import sqlite3


def rows(database: sqlite3.Connection, sql: str, *values: object) -> Iterator[Fields]:
    """The rows of a query, without their NULLs. Raises sqlite3.Error."""
    cursor = database.execute(sql, values)
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield {name: value for name, value in zip(names, row, strict=True) if value is not None}


def drafts(items: Iterable[Any], make: Callable[[Any], Draft | None], source: Source) -> Iterator[Draft]:
    """The drafts that are made of items; an item of which making it fails is told and passed over."""
    for item in items:
        try:
            draft = make(item)
        except ODD as error:
            source.tell(f"not understood: {type(error).__name__}: {error}"[:300])
            continue
        if draft is not None:
            yield draft


def rest(fields: Fields, *mapped: str) -> Fields:
    """What is not mapped."""
    return {name: value for name, value in fields.items() if name not in mapped}


def filled(fields: Fields, **others: Any) -> Fields:
    """The fields, and those of the others that are not empty."""
    return fields | {name: value for name, value in others.items() if value}


def object_of(value: Any) -> Fields:
    """An object, or the one that a text holds; else an empty one."""
    found = json_of(value)
    return found if isinstance(found, dict) else {}


def objects_of(value: Any) -> list[Fields]:
    """The objects of a list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def data_of(url: str) -> bytes | None:
    """What a `data:` URL has in base64. None: it is another URL. Raises ValueError."""
    head, comma, data = url.partition(",")
    return b64decode(data) if comma and head.startswith("data:") and head.endswith(";base64") else None
