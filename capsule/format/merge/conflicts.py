"""The conflicts that a merge leaves for a person, and how they stand in a file.

What must stay true: `metadata.conflicts` is sorted and does not say whose a value was, so that every order of merging
writes the same; a conflict that one side settled stays settled; and an entry of another form is kept as it is. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from capsule.format.merge.values import ABSENT, bytes_of

_Values = dict[bytes, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that both sides changed.

    Attributes:
        field: The field: `title`, `metadata.description`; a dot within a name is written `\\.`.
        values: What it could be, in an order that doesn't depend on the sides; None: not there, or null.
        kept: Which of them stands for now.
    """

    field: str
    values: tuple[Any, ...]
    kept: Any

    @classmethod
    def of(cls, where: Iterable[str], ours: Any, theirs: Any, kept: Any) -> Conflict:
        """What both sides changed at `where`; a value is ABSENT where there is none."""
        mine, yours, stands = (None if one is ABSENT else one for one in (*sorted((ours, theirs), key=bytes_of), kept))
        return cls(field_name(where), (mine, yours), stands)


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge made.

    Attributes:
        document: The document; of a capsule in its clean form.
        conflicts: What both sides changed and a person has to settle; only what this merge found.
        notes: What was decided besides, in words.
    """

    document: dict[str, Any]
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()


def field_name(where: Iterable[str]) -> str:
    """A field in one word; `field_path` takes it apart."""
    return ".".join(name.replace("\\", "\\\\").replace(".", "\\.") for name in where)


def field_path(name: str) -> tuple[str, ...]:
    """The way to a field."""
    parts = [""]
    letters = iter(name)
    for letter in letters:
        if letter == "\\":
            parts[-1] += next(letters, "\\")
        elif letter == ".":
            parts.append("")
        else:
            parts[-1] += letter
    return tuple(parts)


def settled(metadata: dict[str, Any], name: str) -> bool:
    """Take a field out of what awaits a decision in this metadata; False: it wasn't there. The last takes all away."""
    recorded = Recorded.of(metadata.get("conflicts"))
    if recorded.fields.pop(name, None) is None:
        return False
    metadata["conflicts"] = recorded.as_json()
    if not metadata["conflicts"]:
        del metadata["conflicts"]
    return True


@dataclass(slots=True)
class Recorded:
    """The content of `metadata.conflicts`.

    Attributes:
        fields: The values that each field could have, by what is written for them.
        others: Entries of another form, by the same.
    """

    fields: dict[str, _Values] = field(default_factory=dict)
    others: dict[bytes, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any) -> Recorded:
        """What a file has there."""
        result = cls()
        for entry in value if isinstance(value, list) else ():
            if _is_entry(entry):
                values = result.fields.setdefault(entry["field"], {})
                for one in entry["values"]:
                    _put(values, one)
            else:
                result.others[bytes_of(entry)] = entry
        return result

    def with_theirs(self, theirs: Recorded, base: Recorded) -> Recorded:
        """Both sides', but for what one of them took out."""
        result = Recorded()
        for name in {**self.fields, **theirs.fields}:
            mine, yours, was = self.fields.get(name), theirs.fields.get(name), base.fields.get(name)
            if (mine is None and yours == was) or (yours is None and mine == was):
                continue
            values = result.fields.setdefault(name, {})
            for one in (*(mine or {}).values(), *(yours or {}).values()):
                _put(values, one)
        for key, entry in {**self.others, **theirs.others}.items():
            if key not in base.others or (key in self.others and key in theirs.others):
                result.others[key] = entry
        return result

    def add(self, conflict: Conflict, times: Mapping[bytes, str | None], sides: Sequence[Recorded]) -> None:
        """Add what a merge found.

        Args:
            conflict: What it found.
            times: When each value was set, by what is written for it; None: unknown.
            sides: What the two sides have recorded already.
        """
        values = self.fields.setdefault(conflict.field, {})
        for side in sides:
            for one in side.fields.get(conflict.field, {}).values():
                _put(values, one)
        for value in conflict.values:
            at = times.get(bytes_of(value))
            _put(values, {"value": value} | ({"at": at} if at else {}))

    def set_at(self, name: str, value: Any, at: str) -> None:
        """Note when a value of a field was set, if it is one of those recorded."""
        if bytes_of(value) in self.fields[name]:
            _put(self.fields[name], {"value": value, "at": at})

    def as_json(self) -> list[dict[str, Any]]:
        """What stands in the file."""
        entries: list[dict[str, Any]] = [
            {"field": name, "values": [values[key] for key in sorted(values)]}
            for name, values in sorted(self.fields.items())
        ]
        return entries + [self.others[key] for key in sorted(self.others)]


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and set(entry) == {"field", "values"}
        and isinstance(entry["field"], str)
        and isinstance(entry["values"], list)
        and len(entry["values"]) > 0
        and all(_is_value(one) for one in entry["values"])
    )


def _is_value(one: Any) -> bool:
    return (
        isinstance(one, dict) and "value" in one and set(one) <= {"value", "at"} and isinstance(one.get("at", ""), str)
    )


def _put(values: _Values, one: dict[str, Any]) -> None:
    """Add a value; of two times that one was set the later counts."""
    key = bytes_of(one["value"])
    at = max(one.get("at") or "", values.get(key, {}).get("at") or "")
    values[key] = {"value": one["value"]} | ({"at": at} if at else {})
