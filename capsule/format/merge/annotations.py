"""What a merge notes in a capsule for a person and for the next merge: who writes, reads and
settles each note.

What must stay true: no note says whose a value was, so that every order of merging writes the same;
a conflict that one side settled stays settled; and a field of a note's name with another form of
value is kept as it is. Pure.

- `metadata.conflicts`: the fields that both sides changed, with their values, for a person to
  settle;
- `metadata.currentWanted`: the `message` that a version switched to and that is deleted, and what
  is active `instead`;
- `versionOf` in the metadata of a message: the id of the message that it is a version of, and lost;
- `originalParent` there: its deleted parent (or null), where a merge gave it another one; or its
  parent, where it stands beside a line and would be taken for a part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from capsule.format.merge.three_way import ABSENT, encode_value

Message = Mapping[str, Any]
VERSION_OF, ORIGINAL_PARENT = "versionOf", "originalParent"

# -- Conflicts -------------------------------------------------------------------------------------

#: Values by what is written for them, each with the time when it was set, if known.
_Values = dict[bytes, tuple[Any, str | None]]
#: Conflicts by (0, field). An entry of another form stands as its only value, by (1, what is
#: written for it).
_Recorded = dict[tuple[int, Any], _Values]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that two merged versions changed differently.

    Attributes:
        field: The field, such as `title` or `metadata.description`; a dot within a name is written
            `\\.`.
        values: The candidates, each with the time when it was set, if known; a value of None: the
            field is absent.
        kept: The present value.
        id: The conversation; empty in the result of a merge.
        title: Its title; likewise.
    """

    field: str
    values: tuple[tuple[Any, str | None], ...]
    kept: Any
    id: str = ""
    title: str = ""

    @classmethod
    def of(
        cls, where: Iterable[str], values: Iterable[tuple[Any, str | None]], kept: Any
    ) -> Conflict:
        """The conflict of the field at `where`. A value is ABSENT where there is none."""
        name = ".".join(name.replace("\\", "\\\\").replace(".", "\\.") for name in where)
        present = sorted(values, key=lambda value: encode_value(value[0]))
        return cls(name, tuple((_or_none(value), at) for value, at in present), _or_none(kept))

    def as_json(self) -> dict[str, Any]:
        """The fields for `--json`."""
        values = [_value_as_json(*value) for value in self.values]
        return {
            "id": self.id,
            "title": self.title,
            "field": self.field,
            "kept": self.kept,
            "values": values,
        }


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge made.

    Attributes:
        document: The document; of a capsule in its clean form.
        conflicts: The conflicts that this merge adds, for a person to settle.
        notes: What was decided besides, in words.
    """

    document: dict[str, Any]
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()


def conflicts_in(document: Mapping[str, Any]) -> list[Conflict]:
    """The conflicts that a capsule awaits a decision on, by field."""
    conflicts = []
    for (is_other, name), values in sorted(_read(document["metadata"].get("conflicts")).items()):
        if not is_other:
            kept: Any = document
            for step in _path(name):
                kept = kept.get(step) if isinstance(kept, dict) else None
            candidates = tuple(values[key] for key in sorted(values))
            conflicts.append(Conflict(name, candidates, kept, document["id"], document["title"]))
    return conflicts


def merge_conflicts(
    base: Any, ours: Any, theirs: Any, added: Iterable[Conflict], title: tuple[Any, Any]
) -> list[Any]:
    """`metadata.conflicts` of both sides, less what one of them settled, and with what this merge
    adds.

    Args:
        base, ours, theirs: The field in each version.
        added: The conflicts of this merge.
        title: The title of the result, and when it was set.
    """
    was, *sides = map(_read, (base, ours, theirs))
    result: _Recorded = {}
    for key in {**sides[0], **sides[1]}:
        there = [side[key] for side in sides if key in side]
        if len(there) == 2 or there[0] != was.get(key):
            result[key] = _joined(*there)
    for conflict in added:
        values = {encode_value(value): (value, at) for value, at in conflict.values}
        key = 0, conflict.field
        result[key] = _joined(*(side[key] for side in sides if key in side), values)
    of_title = result.get((0, "title"), {})
    if (written := encode_value(title[0])) in of_title:
        result[0, "title"] = _joined(of_title, {written: title})
    return _as_json(result)


def remove_conflict(metadata: dict[str, Any], field: str) -> bool:
    """Take a field out of the conflicts in this metadata; False: it has none. The last one takes
    `conflicts` away.
    """
    recorded = _read(metadata.get("conflicts"))
    if recorded.pop((0, field), None) is None:
        return False
    metadata["conflicts"] = _as_json(recorded)
    if not metadata["conflicts"]:
        del metadata["conflicts"]
    return True


def resolve(document: dict[str, Any], field: str, value: Any) -> None:
    """Give a field its value, in copies of the objects that contain it; None removes it."""
    inside = document
    *above, name = _path(field)
    for step in above:
        there = inside.get(step)
        inside[step] = dict(there) if isinstance(there, dict) else {}
        inside = inside[step]
    if value is None:
        inside.pop(name, None)
    else:
        inside[name] = value


def _path(field: str) -> list[str]:
    parts = [""]
    letters = iter(field)
    for letter in letters:
        if letter == ".":
            parts.append("")
        else:
            parts[-1] += next(letters, "\\") if letter == "\\" else letter
    return parts


def _or_none(value: Any) -> Any:
    return None if value is ABSENT else value


def _read(value: Any) -> _Recorded:
    recorded: _Recorded = {}
    for entry in value if isinstance(value, list) else ():
        match entry:
            case {"field": str(name), "values": [_, *_] as items, **others} if not others and all(
                map(_is_value, items)
            ):
                values = [
                    {encode_value(item["value"]): (item["value"], item.get("at"))} for item in items
                ]
                recorded[0, name] = _joined(recorded.get((0, name), {}), *values)
            case _:
                written = encode_value(entry)
                recorded[1, written] = {written: (entry, None)}
    return recorded


def _is_value(item: Any) -> bool:
    is_known = isinstance(item, dict) and {"value"} <= set(item) <= {"value", "at"}
    return is_known and isinstance(item.get("at", ""), str)


def _joined(*sides: _Values) -> _Values:
    """All values; of two times at which one was set the later counts."""
    result: _Values = {}
    for side in sides:
        for key, (value, at) in side.items():
            result[key] = value, max(at or "", result.get(key, ("", ""))[1] or "") or None
    return result


def _as_json(recorded: _Recorded) -> list[Any]:
    entries = []
    for (is_other, name), values in sorted(recorded.items()):
        listed = [values[key] for key in sorted(values)]
        entries.append(
            listed[0][0]
            if is_other
            else {"field": name, "values": [_value_as_json(*value) for value in listed]}
        )
    return entries


def _value_as_json(value: Any, at: str | None) -> dict[str, Any]:
    return {"value": value, "at": at} if at else {"value": value}


# -- The branch that a version wanted --------------------------------------------------------------


def deferred_switch(metadata: Mapping[str, Any]) -> tuple[str, str | None] | None:
    """The message and what took its place, as an earlier merge noted them, unless somebody went
    elsewhere since.
    """
    wanted = metadata.get("currentWanted")
    if not isinstance(wanted, dict) or not isinstance(wanted.get("message"), str):
        return None
    instead = wanted.get("instead")
    return (wanted["message"], instead) if instead == metadata.get("currentNode") else None


# -- Where a message belongs -----------------------------------------------------------------------


def version_of(message: Message) -> str | None:
    """The message that this one is a version of, if it lost in a merge; else None."""
    about = message.get("metadata")
    other = about.get(VERSION_OF) if about else None
    return other if isinstance(other, str) and other else None


def has_original_parent(message: Message) -> bool:
    """Whether a merge noted the parent of the message."""
    about = message.get("metadata")
    return about is not None and isinstance(about.get(ORIGINAL_PARENT, 0), str | None)


def with_original_parent(message: Message, parent: str | None) -> dict[str, Any]:
    """The message with its parent noted, where nobody has a field of that name."""
    about = message.get("metadata") or {}
    return {**message, "metadata": {**about, ORIGINAL_PARENT: about.get(ORIGINAL_PARENT, parent)}}


def without_parent(message: Message) -> dict[str, Any]:
    """The message without its parent and the note about it."""
    result = {name: value for name, value in message.items() if name != "parent"}
    if has_original_parent(message):
        result["metadata"] = {
            name: value for name, value in message["metadata"].items() if name != ORIGINAL_PARENT
        }
        if not result["metadata"]:
            del result["metadata"]
    return result


def digest(message: Message) -> str:
    """What tells one version of a message from another, in hexadecimal."""
    from hashlib import sha256  # OpenSSL with it, which a reader does not need.

    return sha256(
        orjson.dumps(
            {name: value for name, value in without_parent(message).items() if name != "id"}
        )
    ).hexdigest()
