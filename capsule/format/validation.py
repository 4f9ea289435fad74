"""Check documents: the table of their kinds, each field of an object, and everything that is wrong.

`DocumentKind` has what differs between conversations, agents and projects. `check` walks over a
document by the table of `capsule.format.fields`, and collects a problem for each wrong field, with
its line and column. `oddities` finds what is valid but probably a mistake.

What must stay true: strict about the fields that the format knows, silent about others, and lenient
about a newer minor version, which may have more choices. Nothing here raises another error on any
value that JSON can hold. A document that `check` accepts can be read by the models and upgraded by
`migrations.upgrade`. A kind is an entry of the table, and no other code asks for one by its name.
No pydantic: commands that must start fast check documents. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import orjson

from capsule import timestamps
from capsule.errors import InvalidDocument, InvalidInput, Problem
from capsule.format.documents.agents import (
    check_agent_id,
    check_project_id,
    is_agent_id,
    is_project_id,
)
from capsule.format.documents.creation import FORMAT_VERSION
from capsule.format.documents.servers import are_switches
from capsule.format.fields import PARTS, Field
from capsule.format.json import codec
from capsule.format.json.canonical import in_order, order_record
from capsule.format.json.codec import kind_of
from capsule.format.json.locations import JsonPath, format_path, locate_all
from capsule.format.migrations import LATEST_VERSION, newer_version_message, parse_version
from capsule.ids import check_id, is_id
from capsule.timestamps import is_canonical

Document = dict[str, Any]
#: The path of a value, and what is wrong with it.
_Fault = tuple[JsonPath, str]
#: The search for problems ends here: a longer list helps nobody.
MAX_PROBLEMS = 200
_MAX_QUOTED = 60
_WHOLE_NUMBER = re.compile(rb"-?[0-9]+")
_ZONE = re.compile(r"[+-]\d\d(:?\d\d){0,2}(\.\d+)?$")


# --- The kinds of documents ---


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of documents that a store shares with other clones.

    Attributes:
        name: The name of the folder where they are.
        noun: What one of them is called.
        part: The name of its fields in `fields.PARTS`.
        is_id: Returns whether a text may be the id of one.
        check_id: Raises InvalidInput unless its argument may be the id of one.
        has_entries: Whether they have a history. Those without one are merged field by field, and
            replaced as a whole.
    """

    name: str
    noun: str
    part: str
    is_id: Callable[[str], bool]
    check_id: Callable[[str], str]
    has_entries: bool = False

    def ordered(self, document: Document) -> Document:
        """Return the document in canonical order."""
        if self.has_entries:
            return in_order(document)
        return order_record(document, self.part)

    def check(self, document: Document, path: str, data: bytes | None = None) -> None:
        """Raise InvalidDocument with each wrong field unless `document` is of this kind.

        The problems name the file `path` and lines of `data`. None: of the file that the store
        would write.
        """
        content = codec.encode(document) if data is None else data
        check(document, content, path, self.part, self.check_id)

    def read(self, data: bytes, path: str) -> Document:
        """Return the document in a file, in canonical order. Raises InvalidDocument."""
        document = codec.decode(data, path)
        self.check(document, path, data)
        return self.ordered(document)

    def problems_of(self, data: bytes, path: str) -> list[Problem]:
        """Return everything wrong or odd about a file, in the order of the file."""
        try:
            document = codec.decode(data, path)
            self.check(document, path, data)
        except InvalidDocument as error:
            return list(error.problems)
        if not self.has_entries:
            return []
        return oddities(document, path, data)


CONVERSATION = DocumentKind("conversations", "conversation", "", is_id, check_id, has_entries=True)
AGENT = DocumentKind("agents", "agent", "agent", is_agent_id, check_agent_id)
PROJECT = DocumentKind("projects", "project", "project", is_project_id, check_project_id)
#: The registry of the sessions. It is not in `KINDS`, because a store has only one.
REGISTRY = DocumentKind("sessions", "registry", "registry", is_id, check_id)
#: The kinds by their names.
KINDS = {kind.name: kind for kind in (CONVERSATION, AGENT, PROJECT)}


# --- Checking a document ---

_FIELDS: dict[str, dict[str, Field]] = {
    part: {field.name: field for field in fields} for part, fields in PARTS.items()
}
_REQUIRED = {
    part: tuple(field.name for field in fields if field.required) for part, fields in PARTS.items()
}
_KINDS_WITH_PARTS = frozenset({"part", "parts", "members", "entries"})


def check(
    document: dict[str, Any],
    data: bytes,
    path: str,
    kind: str = "",
    check_id: Callable[[str], object] = check_id,
) -> None:
    """Raise InvalidDocument unless `document` is valid, with a problem for each wrong field.

    Args:
        document: The document.
        data: Its file, for line and column.
        path: The name of the file, for the error.
        kind: The part of the format that it has to be. By default a capsule.
        check_id: Raises InvalidInput unless its argument may be the document's id.
    """
    faults = list(islice(_document_faults(document, kind, check_id), MAX_PROBLEMS))
    if faults:
        raise InvalidDocument.of(_with_locations(faults, data, path))


def decode_checked(data: bytes, path: str, id: str | None) -> dict[str, Any]:
    """Return the capsule in a file, checked, with nothing changed.

    Raises InvalidDocument if it is none, or if it has another id than `id`, which the name of the
    file gives it. None: any id.
    """
    document = codec.decode(data, path)
    check(document, data, path)
    if id is not None and document["id"] != id:
        reason = (
            f"is {document['id']!r}, but the file's name says {id!r}; rename the file, or "
            "correct the id"
        )
        raise InvalidDocument.of(_with_locations([(("id",), reason)], data, path))
    return document


def check_arguments(document: dict[str, Any], note: str = "") -> None:
    """Check a document that was made from arguments. Raises InvalidInput, which ends in `note`."""
    faults = []
    for json_path, reason in islice(_document_faults(document), MAX_PROBLEMS):
        faults.append(f"{format_path(json_path)}: {reason}")
    if faults:
        raise InvalidInput("; ".join(faults) + note)


def _with_locations(faults: list[_Fault], data: bytes, path: str) -> list[Problem]:
    """Return faults as problems with line and column, in the order of the file."""
    places = locate_all(data, [json_path for json_path, _ in faults])
    problems = []
    for json_path, reason in faults:
        line, column = places[json_path]
        problems.append(Problem(path, line, column, format_path(json_path), reason))
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _document_faults(
    document: dict[str, Any], kind: str = "", check_id: Callable[[str], object] = check_id
) -> Iterator[_Fault]:
    """Yield everything wrong with a document. Of a newer major version only the version is."""
    version = document.get("version", FORMAT_VERSION if kind else "1.0")
    parsed = parse_version(version)
    if parsed is None:
        actual = repr(version) if isinstance(version, str) else kind_of(version)
        yield ("version",), f'must be a text like "2.1", is {actual}'
    elif parsed[0] > LATEST_VERSION[0]:
        yield ("version",), newer_version_message(version)
        return
    is_legacy = parsed is not None and parsed < (2, 0)
    any_choice = parsed is not None and parsed > LATEST_VERSION
    required = _REQUIRED[kind]
    if is_legacy and not kind:
        required = ("id", "history")
    for json_path, reason in _part_faults(kind, document, (), required, any_choice=any_choice):
        # Everything but a missing version was yielded above.
        if json_path != ("version",) or reason == "is missing":
            yield json_path, reason
    if isinstance(document.get("id"), str):
        try:
            check_id(document["id"])
        except InvalidInput as error:
            yield ("id",), error.message


def _part_faults(
    part: str,
    value: dict[str, Any],
    json_path: JsonPath,
    required: tuple[str, ...],
    *,
    any_choice: bool,
) -> Iterator[_Fault]:
    """Yield what is wrong with an object of the format and with the objects in it.

    Args:
        part: The name of its fields in `PARTS`.
        value: The object.
        json_path: Its path.
        required: The fields that it must have.
        any_choice: Whether fields with choices may have other values.
    """
    for name in required:
        if name not in value:
            yield (*json_path, name), "is missing"
    for name, item in value.items():
        field = _FIELDS[part].get(name)
        if field is None:
            continue
        reason = problem_with(field, item, any_choice=any_choice)
        if reason:
            yield (*json_path, name), reason
            continue
        child_part = f"{part}.{name}" if part else name
        if item and field.kind in _KINDS_WITH_PARTS and child_part in _FIELDS:
            path = (*json_path, name)
            yield from _child_faults(field, child_part, item, path, any_choice=any_choice)


def _child_faults(
    field: Field, child_part: str, value: Any, json_path: JsonPath, *, any_choice: bool
) -> Iterator[_Fault]:
    """Yield what is wrong with the objects in a field that has parts."""
    required = _REQUIRED[child_part]
    if field.kind == "part":
        yield from _part_faults(child_part, value, json_path, required, any_choice=any_choice)
        return
    if field.kind == "parts" and _are_valid(child_part, value):
        return
    steps: Iterable[tuple[Any, Any]] = enumerate(value)
    if field.kind == "entries":
        steps = value.items()
    for step, entry in steps:
        path = (*json_path, step)
        if isinstance(entry, dict):
            yield from _part_faults(child_part, entry, path, required, any_choice=any_choice)
        elif field.kind == "parts":
            yield path, f"must be an object, is {kind_of(entry)}"
        elif not isinstance(entry, str):
            yield path, f"must be a text or an object, is {kind_of(entry)}"


def _are_valid(part: str, entries: list[Any]) -> bool:
    """Return whether all objects in a list are surely valid.

    They mostly are, and checked field by field they cost half. False if they have parts themselves,
    or must be checked one by one.
    """
    if set(map(type, entries)) != {dict}:
        return False
    names = set[str]().union(*entries)
    for name in names & _FIELDS[part].keys():
        field = _FIELDS[part][name]
        values = [entry[name] for entry in entries if name in entry]
        if field.kind in _KINDS_WITH_PARTS or (field.required and len(values) < len(entries)):
            return False
        if not _are_valid_values(field, values):
            return False
    return names.issuperset(_REQUIRED[part])


def _are_valid_values(field: Field, values: list[Any]) -> bool:
    if field.kind in ("text", "time") and set(map(type, values)) == {str}:
        if field.kind == "time" and all(map(is_canonical, values)):
            return True
        if field.kind == "text" and not field.choices:
            return True
        return not any(problem_with(field, value) for value in set(values))
    return not any(problem_with(field, value) for value in values)


# --- Checking the value of a field ---


def problem_with(field: Field, value: Any, *, any_choice: bool = False) -> str:
    """Return what is wrong with a value of a field, as the decoder returned it. Empty: nothing.

    `any_choice` accepts choices that this version does not know.
    """
    types, is_valid, description = _VALUE_RULES[field.kind]
    if value is None:
        return "" if field.null else f"must be {description}, is null"
    if not isinstance(value, types) or (is_valid is not None and not is_valid(value)):
        return f"must be {description}, is {kind_of(value)}{_first_wrong_item(field, value)}"
    if field.choices and not any_choice and value not in field.choices:
        return f"must be one of {', '.join(field.choices)}, is {_quoted(value)}"
    if field.kind == "time" and canonical_time(value) is None:
        return f"must be a time like 2025-01-12T10:30:00.000Z (ISO 8601), is {_quoted(value)}"
    return ""


def canonical_time(text: str) -> str | None:
    """Return a time as the format writes it. None: `text` is no time in any ISO 8601 form."""
    return timestamps.sortable(text) or None


def _is_whole(value: Any) -> bool:
    if isinstance(value, orjson.Fragment):
        return _WHOLE_NUMBER.fullmatch(orjson.dumps(value)) is not None
    return not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    number = float(orjson.dumps(value)) if isinstance(value, orjson.Fragment) else value
    return type(number) in (int, float) and 0 <= number <= 1


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _are_entries(value: Any) -> bool:
    return _are_objects([*value.values()])


def _are_mentions(value: Any) -> bool:
    """Return whether the lists of names and the object of kinds are such, if they are there."""
    if not all(_are_texts(value.get(name, [])) for name in ("valid", "invalid", "unknown")):
        return False
    kinds = value.get("kinds", {})
    return isinstance(kinds, dict) and _are_texts(list(kinds.values()))


#: For each kind of field: the types of its values, what else they must be, and the description.
_VALUE_RULES: dict[str, tuple[Any, Callable[[Any], bool] | None, str]] = {
    "text": (str, None, "a text"),
    "time": (str, None, "a time (a text like 2025-01-12T10:30:00.000Z)"),
    "whole": ((int, orjson.Fragment), _is_whole, "a whole number"),
    "share": ((int, float, orjson.Fragment), _is_share, "a number from 0 to 1"),
    "yes or no": (bool, None, "true or false"),
    "texts": (list, _are_texts, "a list of texts"),
    "object": (dict, None, "an object"),
    "objects": (list, _are_objects, "a list of objects"),
    "mentions": (
        dict,
        _are_mentions,
        "an object of valid, invalid and unknown, lists of texts, and kinds, an object of texts",
    ),
    "entries": (dict, _are_entries, "an object of objects"),
    "switches": (
        (dict, list),
        are_switches,
        'an object of names, each with {"enabled": true} or {"enabled": false}',
    ),
    "part": (dict, None, "an object"),
    "parts": (list, None, "a list of objects"),
    "members": (list, None, "a list of texts and objects"),
}


def _first_wrong_item(field: Field, value: Any) -> str:
    """Return the first wrong item of a list or of an object of switches, as a clause."""
    if field.kind == "switches" and isinstance(value, dict):
        for name, item in value.items():
            if not isinstance(item, dict):
                return f" whose {_quoted(name)} is {kind_of(item)}"
            if not isinstance(item.get("enabled"), bool):
                return f" whose {_quoted(name)} is one without it"
    if field.kind not in {"texts", "objects"} or not isinstance(value, list):
        return ""
    expected_type = str if field.kind == "texts" else dict
    for index, item in enumerate(value):
        if not isinstance(item, expected_type):
            return f" whose item {index} is {kind_of(item)}"
    return ""


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTED else text[: _MAX_QUOTED - 3] + "...")


# --- Oddities ---


def oddities(document: dict[str, Any], path: str, data: bytes) -> list[Problem]:
    """Return what is odd about a valid capsule, in the order of the file.

    That is a second message of one id, a time without a zone, a `parent` or `currentNode` that is
    no message, a cycle of messages, and `mcpServers` as a list of names.
    """
    faults = [*_odd_metadata(document), *_odd_messages(document["history"])]
    return _with_locations(faults, data, path)


def _odd_metadata(document: dict[str, Any]) -> Iterator[_Fault]:
    metadata = document.get("metadata", {})
    times: dict[JsonPath, Any] = {
        ("createdAt",): document.get("createdAt"),
        ("updatedAt",): document.get("updatedAt"),
        ("metadata", "lock", "timestamp"): metadata.get("lock", {}).get("timestamp"),
    }
    for json_path, time in times.items():
        if _lacks_zone(time):
            yield json_path, _WITHOUT_ZONE
    if isinstance(metadata.get("mcpServers"), list):
        yield ("metadata", "mcpServers"), _LIST_OF_SERVERS
    current = metadata.get("currentNode")
    ids = {entry["id"] for entry in document["history"] if entry.get("id")}
    if current is not None and current not in ids:
        yield (
            ("metadata", "currentNode"),
            f"{current[:60]!r} is not the id of a message here; correct or remove it",
        )


def _odd_messages(history: list[dict[str, Any]]) -> Iterator[_Fault]:
    first_index: dict[str, int] = {}
    for index, entry in enumerate(history):
        for name in ("timestamp", "editedAt"):
            if _lacks_zone(entry.get(name)):
                yield ("history", index, name), _WITHOUT_ZONE
        id = entry.get("id")
        if not id:
            continue
        if id in first_index:
            yield (
                ("history", index, "id"),
                f"the id of history[{first_index[id]}] again; give it another, or remove it",
            )
        first_index.setdefault(id, index)
    from capsule.format.tree.tree import Tree  # Only this rare question needs it.

    for index, reason in Tree(history).problems():
        yield ("history", index, "parent"), reason


_LIST_OF_SERVERS = (
    "a list of names, as drafts of 2.1 had it; it is read as servers that are on: write "
    '{"name": {"enabled": true}}'
)
_WITHOUT_ZONE = "a time without a zone; it is read as UTC: write a Z behind it"


def _lacks_zone(time: Any) -> bool:
    """Return whether a value is a time that does not name its zone."""
    return isinstance(time, str) and not has_zone(time) and canonical_time(time) is not None


def has_zone(text: str) -> bool:
    """Return whether a time names its zone."""
    return text.endswith(("Z", "z")) or _ZONE.search(text[10:]) is not None
