"""Read and write the annotations that a merge leaves in a capsule, for a person and later merges.

- `metadata.conflicts`: fields that both sides changed differently, with the candidate values. A
  person decides about them.
- `metadata.currentWanted`: a `message` that a version switched to and that is deleted, and the
  message that is active `instead`.
- `versionOf` in the metadata of a message: the id of the message of which it is a lost version.
- `originalParent` there, in two cases: the deleted parent, if a merge gave the message another one;
  or the present parent (or null), if the message is next to the line of the conversation and would
  be taken for a part of it. `capsule.format.merge.history` describes the line.

What must stay true: no annotation tells which side had a value, so every order of merges writes the
same. A conflict that one side settled stays settled. A field of the same name with a value of
another form is kept unchanged. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from capsule.format.merge.three_way import ABSENT, encode_value

Message = Mapping[str, Any]
VERSION_OF, ORIGINAL_PARENT = "versionOf", "originalParent"

# --- Conflicts ---

#: Candidate values by their JSON, each with the time at which it was set, if known.
_Candidates = dict[bytes, tuple[Any, str | None]]
#: Recorded conflicts by (`_FIELD`, its name). An entry of another form is its own only value, by
#: (`_OTHER`, its JSON).
_Recorded = dict[tuple[int, Any], _Candidates]
_FIELD, _OTHER = 0, 1


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
    def from_values(
        cls,
        json_path: Iterable[str],
        values: Iterable[tuple[Any, str | None]],
        present_value: Any,
    ) -> Conflict:
        """Return the conflict of the field at `json_path`. An absent value is `ABSENT`."""
        name = ".".join(name.replace("\\", "\\\\").replace(".", "\\.") for name in json_path)
        candidates = sorted(values, key=lambda value: encode_value(value[0]))
        return cls(
            field=name,
            values=tuple((_none_if_absent(value), time) for value, time in candidates),
            kept=_none_if_absent(present_value),
        )

    def as_json(self) -> dict[str, Any]:
        """The fields for `--json`."""
        values = [_candidate_as_json(*value) for value in self.values]
        return {
            "id": self.id,
            "title": self.title,
            "field": self.field,
            "kept": self.kept,
            "values": values,
        }


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The result of a merge.

    Attributes:
        document: The document; of a capsule in its clean form.
        conflicts: The conflicts that this merge adds, for a person to settle.
        notes: Other decisions of the merge, in words.
    """

    document: dict[str, Any]
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()


def conflicts_in(document: Mapping[str, Any]) -> list[Conflict]:
    """Return the unsettled conflicts of a capsule, sorted by field."""
    conflicts = []
    recorded = _parse_conflicts(document["metadata"].get("conflicts"))
    for (form, name), candidates in sorted(recorded.items()):
        if form == _OTHER:
            continue
        value: Any = document
        for step in _split_field(name):
            value = value.get(step) if isinstance(value, dict) else None
        conflict = Conflict(
            field=name,
            values=tuple(candidates[key] for key in sorted(candidates)),
            kept=value,
            id=document["id"],
            title=document["title"],
        )
        conflicts.append(conflict)
    return conflicts


def merge_conflicts(
    base: Any,
    ours: Any,
    theirs: Any,
    *,
    added: Iterable[Conflict],
    title_and_time: tuple[Any, Any],
) -> list[Any]:
    """Return the merged `metadata.conflicts`.

    It has the conflicts of both sides and of this merge, without those that one side settled.

    Args:
        base, ours, theirs: The field in each version.
        added: The conflicts of this merge.
        title_and_time: The title of the result, and the time at which it was set.
    """
    base_recorded = _parse_conflicts(base)
    sides = [_parse_conflicts(ours), _parse_conflicts(theirs)]
    result: _Recorded = {}
    for key in {**sides[0], **sides[1]}:
        present = [side[key] for side in sides if key in side]
        if len(present) == 2 or present[0] != base_recorded.get(key):
            result[key] = _join_candidates(*present)
    for conflict in added:
        candidates = {encode_value(value): (value, time) for value, time in conflict.values}
        key = _FIELD, conflict.field
        earlier = [side[key] for side in sides if key in side]
        result[key] = _join_candidates(*earlier, candidates)
    # The title alone has a time of its own in the capsule. A side may have set it again, to one of
    # the candidates: then that candidate gets the later time, so that every order of merges agrees.
    title_candidates = result.get((_FIELD, "title"), {})
    title_key = encode_value(title_and_time[0])
    if title_key in title_candidates:
        result[_FIELD, "title"] = _join_candidates(title_candidates, {title_key: title_and_time})
    return _conflicts_as_json(result)


def remove_conflict(metadata: dict[str, Any], field: str) -> bool:
    """Remove a field from the conflicts in `metadata` itself. Return whether it was there.

    The last conflict takes `conflicts` with it.
    """
    recorded = _parse_conflicts(metadata.get("conflicts"))
    if recorded.pop((_FIELD, field), None) is None:
        return False
    metadata["conflicts"] = _conflicts_as_json(recorded)
    if not metadata["conflicts"]:
        del metadata["conflicts"]
    return True


def resolve(document: dict[str, Any], field: str, value: Any) -> None:
    """Set a field of a conflict to a value, in `document` itself. None removes the field.

    The objects in `document` that contain the field are replaced by copies. The conflict stays
    recorded until `remove_conflict` is called. A title has fields beside it, and is set with
    `set_title` instead.
    """
    parent = document
    *steps, name = _split_field(field)
    for step in steps:
        child = parent.get(step)
        parent[step] = dict(child) if isinstance(child, dict) else {}
        parent = parent[step]
    if value is None:
        parent.pop(name, None)
    else:
        parent[name] = value


def _split_field(field: str) -> list[str]:
    """Return the keys of a field's name. A backslash escapes the next character."""
    parts = [""]
    letters = iter(field)
    for letter in letters:
        if letter == ".":
            parts.append("")
        elif letter == "\\":
            parts[-1] += next(letters, "\\")
        else:
            parts[-1] += letter
    return parts


def _none_if_absent(value: Any) -> Any:
    return None if value is ABSENT else value


def _parse_conflicts(value: Any) -> _Recorded:
    recorded: _Recorded = {}
    for entry in value if isinstance(value, list) else ():
        match entry:
            case {"field": str(name), "values": [_, *_] as items, **other_fields} if (
                not other_fields and all(map(_is_candidate, items))
            ):
                candidates = [recorded.get((_FIELD, name), {})]
                for item in items:
                    key = encode_value(item["value"])
                    candidates.append({key: (item["value"], item.get("at"))})
                recorded[_FIELD, name] = _join_candidates(*candidates)
            case _:
                entry_key = encode_value(entry)
                recorded[_OTHER, entry_key] = {entry_key: (entry, None)}
    return recorded


def _is_candidate(item: Any) -> bool:
    if not isinstance(item, dict) or not {"value"} <= set(item) <= {"value", "at"}:
        return False
    return isinstance(item.get("at", ""), str)


def _join_candidates(*sides: _Candidates) -> _Candidates:
    """Return all candidates. If one was set at two times, the later counts."""
    result: _Candidates = {}
    for side in sides:
        for key, (value, time) in side.items():
            _, earlier_time = result.get(key, (None, None))
            result[key] = value, max(time or "", earlier_time or "") or None
    return result


def _conflicts_as_json(recorded: _Recorded) -> list[Any]:
    entries: list[Any] = []
    for (form, name), candidates in sorted(recorded.items()):
        values = [candidates[key] for key in sorted(candidates)]
        if form == _OTHER:
            entries.append(values[0][0])
        else:
            values_as_json = [_candidate_as_json(*value) for value in values]
            entries.append({"field": name, "values": values_as_json})
    return entries


def _candidate_as_json(value: Any, time: str | None) -> dict[str, Any]:
    return {"value": value, "at": time} if time else {"value": value}


# --- The branch that a version switched to ---


class Switch(NamedTuple):
    """A switch of a version to another branch.

    Attributes:
        message: The id of the message that it switched to. ABSENT: to no message.
        instead: The message that an earlier merge made active instead, because `message` is
            deleted. None: that merge made none active. ABSENT: no merge found `message` deleted.
    """

    message: Any
    instead: Any


def deferred_switch(metadata: Mapping[str, Any]) -> Switch | None:
    """Return the switch to a deleted message that an earlier merge noted in a version.

    None: no merge noted one, or somebody switched to another branch since.
    """
    deferred = metadata.get("currentWanted")
    if not isinstance(deferred, dict) or not isinstance(deferred.get("message"), str):
        return None
    instead = deferred.get("instead")
    if instead != metadata.get("currentNode"):
        return None
    return Switch(deferred["message"], instead)


# --- Annotations of a message ---


def version_of(message: Message) -> str | None:
    """Return the id of the message of which this one is a lost version, or None."""
    metadata = message.get("metadata")
    if not metadata:
        return None
    winner = metadata.get(VERSION_OF)
    return winner if isinstance(winner, str) and winner else None


def has_original_parent(message: Message) -> bool:
    """Return whether a merge noted the parent of the message. Null is a parent: that of a root."""
    metadata = message.get("metadata")
    return metadata is not None and isinstance(metadata.get(ORIGINAL_PARENT, ABSENT), str | None)


def with_original_parent(message: Message, parent: str | None) -> dict[str, Any]:
    """Return the message with its parent noted, unless it has a field of that name."""
    metadata = message.get("metadata") or {}
    noted_parent = metadata.get(ORIGINAL_PARENT, parent)
    return {**message, "metadata": {**metadata, ORIGINAL_PARENT: noted_parent}}


def without_parent(message: Message) -> dict[str, Any]:
    """Return the message without its parent and the note about it."""
    result = {name: value for name, value in message.items() if name != "parent"}
    if has_original_parent(message):
        metadata = dict(message["metadata"])
        metadata.pop(ORIGINAL_PARENT, None)
        result["metadata"] = metadata
        if not metadata:
            del result["metadata"]
    return result


def digest(message: Message) -> str:
    """Return a digest of a version of a message, in hexadecimal, without its id and parent."""
    from hashlib import sha256  # It loads OpenSSL, which a command that only reads does not need.

    content = without_parent(message)
    content.pop("id", None)
    return sha256(orjson.dumps(content)).hexdigest()
