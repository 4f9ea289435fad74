"""What a value of a known field may be, and what is said when it is something else.

What must stay true: nothing here raises on any value that JSON can hold.

[joined: validation] Whether a document is a capsule, and everything that is wrong when it is not.

What must stay true: strict about the fields the format knows, silent about the others; lenient
about a newer minor version, whose enumerations may have grown. Every problem has the place it
stands at. What `check` lets pass, the models take and `migrations.current` can bring up to date. No
pydantic: a hand edit is checked by commands that must start fast.

[joined: kinds] The kinds of documents that a store shares with other clones.

What must stay true: what differs between kinds stands in this table, and nowhere is a kind asked
for by its name. Pure; no pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
from capsule.format.documents.creation import CURRENT
from capsule.format.documents.servers import are_switches
from capsule.format.fields import PARTS, Field
from capsule.format.json import codec
from capsule.format.json.canonical import in_order, order_record
from capsule.format.json.codec import kind_of
from capsule.format.json.locations import JsonPath, format_path, locate_all
from capsule.format.migrations import LATEST_VERSION, newer_version_message, parse_version
from capsule.ids import check_id, is_id
from capsule.timestamps import is_canonical

_WHOLE = re.compile(rb"-?[0-9]+")


def canonical_time(text: str) -> str | None:
    """`text` as the format writes times; None when it is not a time in any ISO 8601 form."""
    return timestamps.sortable(text) or None


def has_zone(text: str) -> bool:
    """Whether a time says which zone it is of. Meant for texts that are times."""
    return (
        text.endswith(("Z", "z"))
        or re.search(r"[+-]\d\d(:?\d\d){0,2}(\.\d+)?$", text[10:]) is not None
    )


def problem_with(field: Field, value: Any, *, any_choice: bool = False) -> str:
    """What is wrong with `value`, as the decoder gave it, as the value of `field`, in words; empty
    when nothing is.

    `any_choice` accepts values of enumerations that this version does not know.
    """
    types, is_it, called = _KINDS[field.kind]
    if value is None:
        return "" if field.null else f"must be {called}, is null"
    if not isinstance(value, types) or (is_it and not is_it(value)):
        return f"must be {called}, is {kind_of(value)}{_first_wrong(field, value)}"
    if field.choices and not any_choice and value not in field.choices:
        return f"must be one of {', '.join(field.choices)}, is {_short(value)}"
    if field.kind == "time" and canonical_time(value) is None:
        return f"must be a time like 2025-01-12T10:30:00.000Z (ISO 8601), is {_short(value)}"
    return ""


def _is_whole(value: Any) -> bool:
    is_text = isinstance(value, orjson.Fragment)
    return (
        _WHOLE.fullmatch(orjson.dumps(value)) is not None
        if is_text
        else not isinstance(value, bool)
    )


def _list_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(isinstance(item, kind) for item in value)


_are_texts, _are_objects = _list_of(str), _list_of(dict)


def _is_share(value: Any) -> bool:
    number = float(orjson.dumps(value)) if isinstance(value, orjson.Fragment) else value
    return type(number) in (int, float) and 0 <= number <= 1


def _are_mentions(value: Any) -> bool:
    """Whether an object has lists of names, and an object of the kinds of some, as far as it has
    these fields.
    """
    kinds = value.get("kinds", {})
    lists = all(_are_texts(value.get(name, [])) for name in ("valid", "invalid", "unknown"))
    return lists and isinstance(kinds, dict) and _are_texts(list(kinds.values()))


#: The types of the values of a kind, what else tells them, and what the kind is called.
_KINDS: dict[str, tuple[Any, Callable[[Any], bool] | None, str]] = {
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
    "entries": (dict, lambda value: _are_objects([*value.values()]), "an object of objects"),
    "switches": (
        (dict, list),
        are_switches,
        'an object of names, each with {"enabled": true} or {"enabled": false}',
    ),
    "part": (dict, None, "an object"),
    "parts": (list, None, "a list of objects"),
    "members": (list, None, "a list of texts and objects"),
}


def _first_wrong(field: Field, value: Any) -> str:
    """Which item spoils a list, or an object of switches."""
    if field.kind == "switches" and isinstance(value, dict):
        return next(
            f" whose {_short(name)} is "
            + ("one without it" if isinstance(item, dict) else kind_of(item))
            for name, item in value.items()
            if not (isinstance(item, dict) and isinstance(item.get("enabled"), bool))
        )
    if field.kind not in {"texts", "objects"} or not isinstance(value, list):
        return ""
    wanted = str if field.kind == "texts" else dict
    at, item = next((at, item) for at, item in enumerate(value) if not isinstance(item, wanted))
    return f" whose item {at} is {kind_of(item)}"


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")


#: So many problems are looked for; a file with more is not helped by a longer list.
MAX_PROBLEMS = 200

_Fault = tuple[JsonPath, str]
_RULES: dict[str, dict[str, Field]] = {
    part: {field.name: field for field in fields} for part, fields in PARTS.items()
}
_WITH_PARTS = frozenset({"part", "parts", "members", "entries"})
_REQUIRED = {
    part: tuple(field.name for field in fields if field.required) for part, fields in PARTS.items()
}


def check(
    document: dict[str, Any],
    data: bytes,
    path: str,
    kind: str = "",
    check_id: Callable[[str], object] = check_id,
) -> None:
    """Raise InvalidDocument unless `document` is a capsule: one problem for each wrong field, in
    the order of the file.

    Args:
        document: The document.
        data: The file, which gives line and column.
        path: Its name, for the error.
        kind: The part of the format that it has to be; that of a capsule by default.
        check_id: Raises InvalidInput unless its argument may be the document's id.
    """
    if faults := list(islice(_problems(document, kind, check_id), MAX_PROBLEMS)):
        raise InvalidDocument.of(_placed(faults, data, path))


def decode_checked(data: bytes, path: str, id: str | None) -> dict[str, Any]:
    """The capsule in the bytes of a file that anybody may have written, checked, as its file has
    it.

    Raises InvalidDocument if it is none, or if it has another id than `id`, which the file's name
    gives it; None: any.
    """
    document = codec.decode(data, path)
    check(document, data, path)
    if id is not None and document["id"] != id:
        reason = (
            f"is {document['id']!r}, but the file's name says {id!r}; rename the file, or "
            "correct the id"
        )
        raise InvalidDocument.of(_placed([(("id",), reason)], data, path))
    return document


def check_arguments(document: dict[str, Any], note: str = "") -> None:
    """Make sure that a document made from arguments is a capsule. Raises InvalidInput, which ends
    in `note`.
    """
    if faults := [
        f"{format_path(where)}: {reason}"
        for where, reason in islice(_problems(document), MAX_PROBLEMS)
    ]:
        raise InvalidInput("; ".join(faults) + note)


def oddities(document: dict[str, Any], path: str, data: bytes) -> list[Problem]:
    """What is odd about a valid capsule, in the order of the file: a second message of one id,
    times without a zone, a `parent` or a `currentNode` that is no message, circles of messages, and
    `mcpServers` as a list of names."""
    return _placed(list(_oddities(document)), data, path)


def _placed(faults: list[_Fault], data: bytes, path: str) -> list[Problem]:
    places = locate_all(data, [where for where, _ in faults])
    problems = [
        Problem(path, *places[where], format_path(where), reason) for where, reason in faults
    ]
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _problems(
    document: dict[str, Any], kind: str = "", check_id: Callable[[str], object] = check_id
) -> Iterator[_Fault]:
    version = document.get("version", CURRENT if kind else "1.0")
    parsed = parse_version(version)
    if parsed is None:
        said = f"is {version!r}" if isinstance(version, str) else f"is {codec.kind_of(version)}"
        yield ("version",), f'must be a text like "2.1", {said}'
    elif parsed[0] > LATEST_VERSION[0]:
        yield ("version",), newer_version_message(version)
        return
    legacy = parsed is not None and parsed < (2, 0)
    any_choice = parsed is not None and parsed > LATEST_VERSION
    required = ("id", "history") if legacy and not kind else _REQUIRED[kind]
    for where, reason in _part(kind, document, (), required, any_choice=any_choice):
        if where != ("version",) or reason == "is missing":
            yield where, reason
    if isinstance(document.get("id"), str):
        try:
            check_id(document["id"])
        except InvalidInput as error:
            yield ("id",), error.message


def _part(
    part: str,
    value: dict[str, Any],
    where: JsonPath,
    required: tuple[str, ...],
    *,
    any_choice: bool,
) -> Iterator[_Fault]:
    """What is wrong with one object of the format, and with those inside it."""
    for name in required:
        if name not in value:
            yield (*where, name), "is missing"
    rules = _RULES[part]
    for name, item in value.items():
        field = rules.get(name)
        if field is None:
            continue
        reason = problem_with(field, item, any_choice=any_choice)
        if reason:
            yield (*where, name), reason
        elif (
            item
            and field.kind in _WITH_PARTS
            and (inside := f"{part}.{name}" if part else name) in _RULES
        ):
            required = _REQUIRED[inside]
            if field.kind == "part":
                yield from _part(inside, item, (*where, name), required, any_choice=any_choice)
                continue
            if field.kind == "parts" and _are_right(inside, item):
                continue
            for at, entry in item.items() if field.kind == "entries" else enumerate(item):
                if isinstance(entry, dict):
                    yield from _part(
                        inside, entry, (*where, name, at), required, any_choice=any_choice
                    )
                elif field.kind == "parts" or not isinstance(entry, str):
                    text = "" if field.kind == "parts" else "a text or "
                    yield (*where, name, at), f"must be {text}an object, is {codec.kind_of(entry)}"


def _are_right(part: str, entries: list[Any]) -> bool:
    """Whether nothing is wrong with any object in a list, as mostly: by field, at half the cost of
    one by one. Also False if they have parts themselves."""
    if set(map(type, entries)) != {dict}:
        return False
    names = set[str]().union(*entries)
    for name in names & _RULES[part].keys():
        field = _RULES[part][name]
        values = [entry[name] for entry in entries if name in entry]
        if field.kind in _WITH_PARTS or (field.required and len(values) < len(entries)):
            return False
        if field.kind in ("text", "time") and set(map(type, values)) == {str}:
            if all(map(is_canonical, values)) if field.kind == "time" else not field.choices:
                continue
            values = list(set(values))
        if any(problem_with(field, value) for value in values):
            return False
    return names.issuperset(_REQUIRED[part])


def _oddities(document: dict[str, Any]) -> Iterator[_Fault]:
    lock = document.get("metadata", {}).get("lock", {})
    for where, time in (
        (("createdAt",), document.get("createdAt")),
        (("updatedAt",), document.get("updatedAt")),
        (("metadata", "lock", "timestamp"), lock.get("timestamp")),
    ):
        if isinstance(time, str) and _zoneless(time):
            yield where, _ZONELESS
    if isinstance(document.get("metadata", {}).get("mcpServers"), list):
        yield ("metadata", "mcpServers"), _LISTED
    ids = {
        entry["id"]: at
        for at, entry in reversed(list(enumerate(document["history"])))
        if entry.get("id")
    }
    for at, entry in enumerate(document["history"]):
        for name in ("timestamp", "editedAt"):
            if isinstance(entry.get(name), str) and _zoneless(entry[name]):
                yield ("history", at, name), _ZONELESS
        own = entry.get("id")
        if own and ids[own] != at:
            yield (
                ("history", at, "id"),
                f"the id of history[{ids[own]}] again; give it another, or remove it",
            )
    from capsule.format.tree.tree import Tree  # What is odd is asked for by few.

    for at, reason in Tree(document["history"]).problems():
        yield ("history", at, "parent"), reason
    current = document.get("metadata", {}).get("currentNode")
    if current is not None and current not in ids:
        yield (
            ("metadata", "currentNode"),
            f"{current[:60]!r} is not the id of a message here; correct or remove it",
        )


_LISTED = (
    "a list of names, as drafts of 2.1 had it; it is read as servers that are on: write "
    '{"name": {"enabled": true}}'
)
_ZONELESS = "a time without a zone; it is read as UTC: write a Z behind it"


def _zoneless(time: str) -> bool:
    return not has_zone(time) and canonical_time(time) is not None


Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of documents.

    Attributes:
        name: The name of the folder in which they are.
        noun: What one of them is called.
        part: Its fields, by their name in `fields.PARTS`.
        is_id: Whether a text may be the id of one.
        check_id: Raises InvalidInput unless its argument may be the id of one.
        has_entries: Whether they have a history. Those without one are merged field by field, and
            replaced whole.
    """

    name: str
    noun: str
    part: str
    is_id: Callable[[str], bool]
    check_id: Callable[[str], str]
    has_entries: bool = False

    def ordered(self, document: Document) -> Document:
        """The same document in canonical order."""
        return in_order(document) if self.has_entries else order_record(document, self.part)

    def check(self, document: Document, path: str, data: bytes | None = None) -> None:
        """Raise InvalidDocument unless `document` is of this kind: a problem for each wrong field,
        as in the file.

        The problems name the file `path` and lines of `data`; None: of the document as the store
        would write it.
        """
        check(
            document,
            codec.encode(document) if data is None else data,
            path,
            self.part,
            self.check_id,
        )

    def read(self, data: bytes, path: str) -> Document:
        """The document in a file, in canonical order. Raises InvalidDocument."""
        document = codec.decode(data, path)
        self.check(document, path, data)
        return self.ordered(document)

    def problems_of(self, data: bytes, path: str) -> list[Problem]:
        """Everything wrong or odd about a file, in the order of the file; none when all is well."""
        try:
            document = codec.decode(data, path)
            self.check(document, path, data)
        except InvalidDocument as error:
            return list(error.problems)
        return oddities(document, path, data) if self.has_entries else []


CONVERSATION = DocumentKind("conversations", "conversation", "", is_id, check_id, has_entries=True)
AGENT = DocumentKind("agents", "agent", "agent", is_agent_id, check_agent_id)
PROJECT = DocumentKind("projects", "project", "project", is_project_id, check_project_id)
#: The kinds by their names.
KINDS = {kind.name: kind for kind in (CONVERSATION, AGENT, PROJECT)}
