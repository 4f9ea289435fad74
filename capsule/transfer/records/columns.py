"""Columns: the fields of a record that have a field of ours each, in both directions. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capsule.transfer.records.pairs import Fields, Pair

_ABSENT: Any = object()


def is_on(value: Any) -> bool:
    """Whether a switch is on."""
    return value is True


def context_of(text: Any) -> Fields | None:
    """The context that holds a text of instructions; None: `text` is no text, or empty."""
    return {"fullContext": text} if isinstance(text, str) and text else None


def text_of_context(context: Fields) -> Any:
    """The instructions that a context has."""
    return context.get("fullContext")


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a record, and ours.

    Attributes:
        theirs: The name in the record.
        ours: Our name; with `metadata.` before it, that of a field of the metadata; None: we have none.
        read: Our value of the record's; one that is empty is left out. Without it, texts are taken as they are.
        write: The record's value of ours; None: the field is only read.
        default: What a record has where we have nothing; without it, the record lacks the field.
    """

    theirs: str
    ours: str | None = None
    read: Callable[[Any], Any] = lambda value: value if isinstance(value, str) else None
    write: Callable[[Any], Any] | None = lambda value: value
    default: Any = _ABSENT


def pair_of(*columns: Column) -> Pair:
    """The pair of functions of a table. Of several columns with one field of ours, the first that is there is read."""

    def read(record: Fields) -> Fields:
        fields: Fields = {}
        metadata: Fields = {}
        for column in columns:
            if column.ours and (value := column.read(record.get(column.theirs))):
                name = column.ours.removeprefix("metadata.")
                (fields if name == column.ours else metadata).setdefault(name, value)
        return fields | {"metadata": metadata} if metadata else fields

    def write(fields: Fields) -> Fields:
        record: Fields = {}
        for column in columns:
            name = (column.ours or "").removeprefix("metadata.")
            home = fields if name == column.ours else fields.get("metadata", {})
            if name in home and column.write is not None:
                record[column.theirs] = column.write(home[name])
            elif column.default is not _ABSENT:
                record[column.theirs] = column.default
        return record

    return Pair(read, write)
