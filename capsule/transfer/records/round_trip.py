"""Map a record of another program to our fields and back, without loss for the record.

A format reads a record into our fields, and writes the fields back as a record, as well as they
allow. What the written record lacks is stored in `metadata.source`, and an export puts it back.

`pair_of` makes such a pair of functions from a table, where each field of a record is one of ours.

Invariant: for any pair of functions, `to_record` gives back the record that `to_capsule` was given.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Fields = dict[str, Any]
#: The key in a file of another program under which an export writes its note.
CAPSULE_KEY = "capsule"
#: The keys of a difference: of fields that are to be left out, and of the items of a list by their
#: places.
ABSENT, _ITEMS = "$absent", "$items"
_MISSING: Any = object()


def difference(wanted: Fields, built: Fields) -> Fields:
    """What `apply_difference` needs to make `wanted` of `built`; empty if they are the same. JSON,
    if both are.
    """
    rest: Fields = {}
    missing = 0
    for key, value in wanted.items():
        other = built.get(key, _MISSING)
        if other is value:  # As most are: a pair hands texts on.
            continue
        kind = type(value)
        if kind is not type(other):
            missing += other is _MISSING
            rest[key] = value
        elif kind is dict:
            if (value or other) and (below := difference(value, other)):
                rest[key] = below
        elif kind is list:
            if (value or other) and (unlike := _value_difference(value, other)) is not None:
                rest[key] = unlike[0]
        elif value != other:
            rest[key] = value
    if len(built) + missing > len(wanted):
        rest[ABSENT] = [key for key in built if key not in wanted]
    return rest


def _value_difference(wanted: Any, built: Any) -> tuple[Any] | None:
    """The difference of two values; None: they are the same, and of the same types."""
    kind = type(wanted)
    if kind is not type(built):
        return (wanted,)
    if kind is dict:
        rest = difference(wanted, built)
        return (rest,) if rest else None
    if kind is list and len(wanted) == len(built):
        items = {}
        for n, (item, other) in enumerate(zip(wanted, built, strict=True)):
            if item is not other and (unlike := _value_difference(item, other)) is not None:
                items[str(n)] = unlike[0]
        return ({_ITEMS: items},) if items else None
    return None if wanted == built else (wanted,)


def apply_difference(built: Fields, rest: Fields) -> Fields:
    """`built` with a difference."""
    result = {key: value for key, value in built.items() if key not in rest.get(ABSENT, ())}
    for key, value in rest.items():
        if key != ABSENT:
            result[key] = _apply_value(result[key], value) if key in result else value
    return result


def _apply_value(built: Any, rest: Any) -> Any:
    if isinstance(rest, dict) and isinstance(built, dict):
        return apply_difference(built, rest)
    if (
        isinstance(rest, dict)
        and isinstance(built, list)
        and isinstance(items := rest.get(_ITEMS), dict)
    ):
        return [
            _apply_value(item, items[str(n)]) if str(n) in items else item
            for n, item in enumerate(built)
        ]
    return rest


@dataclass(frozen=True, slots=True)
class Pair:
    """Two pure functions that read and write one record: a message, or the head of a conversation.

    Attributes:
        read: Our fields of a record; new objects, and neither `metadata.source` nor the key
            `capsule`.
        write: The record of our fields, as well as it can be made of them.
    """

    read: Callable[[Fields], Fields]
    write: Callable[[Fields], Fields]

    def to_capsule(self, record: Fields) -> Fields:
        """Our fields of a record, with what they lack in `metadata.source`."""
        record = {key: value for key, value in record.items() if key != CAPSULE_KEY}
        fields = self.read(record)
        return with_source(fields, difference(record, self.write(fields)))

    def to_record(self, fields: Fields, *, is_edited: bool = False) -> Fields:
        """The record of our fields, with what a source had besides; of edited fields that only
        fills gaps.
        """
        plain, rest = without_source(fields)
        record = self.write(plain)
        if is_edited:
            return {key: value for key, value in rest.items() if key != ABSENT} | record
        return apply_difference(record, rest)


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
        ours: Our name; with `metadata.` before it, that of a field of the metadata; None: we have
            none.
        read: Our value of the record's; one that is empty is left out. Without it, texts are taken
            as they are.
        write: The record's value of ours; None: the field is only read.
        default: What a record has where we have nothing; without it, the record lacks the field.
    """

    theirs: str
    ours: str | None = None
    read: Callable[[Any], Any] = lambda value: value if isinstance(value, str) else None
    write: Callable[[Any], Any] | None = lambda value: value
    default: Any = _MISSING


def pair_of(*columns: Column) -> Pair:
    """The pair of functions of a table. Of several columns with one field of ours, the first that
    is there is read.
    """

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
            elif column.default is not _MISSING:
                record[column.theirs] = column.default
        return record

    return Pair(read, write)


def with_source(fields: Fields, rest: Fields) -> Fields:
    """Our fields with this as `metadata.source`; as they are if it is empty."""
    return fields | {"metadata": {**fields.get("metadata", {}), "source": rest}} if rest else fields


def without_source(fields: Fields) -> tuple[Fields, Fields]:
    """Our fields without `metadata.source`, and what stood there."""
    metadata = dict(fields.get("metadata", {}))
    rest = metadata.pop("source", {})
    plain = {key: value for key, value in fields.items() if key != "metadata"}
    return (plain | {"metadata": metadata} if metadata else plain), rest
