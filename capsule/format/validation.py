"""Whether a document is a capsule, and everything that is wrong when it is not.

What must stay true: strict about the fields the format knows, silent about the others; lenient
about a newer minor version, whose enumerations may have grown. Every problem has the place it
stands at. What `check` lets pass, the models take and `migrations.current` can bring up to date. No
pydantic: a hand edit is checked by commands that must start fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from capsule.errors import InvalidDocument, InvalidInput, Problem
from capsule.format.documents.new import CURRENT
from capsule.format.fields import PARTS, Field
from capsule.format.json import codec
from capsule.format.json.places import Where, dotted, locate_all
from capsule.format.migrations import KNOWN, parse_version, too_new
from capsule.format.values import canonical_time, fault, has_zone
from capsule.ids import check_id
from capsule.timestamps import is_canonical

#: So many problems are looked for; a file with more is not helped by a longer list.
MAX_PROBLEMS = 200

_Fault = tuple[Where, str]
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


def decoded(data: bytes, path: str, id: str | None) -> dict[str, Any]:
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


def check_made(document: dict[str, Any], note: str = "") -> None:
    """Make sure that a document made from arguments is a capsule. Raises InvalidInput, which ends
    in `note`.
    """
    if faults := [
        f"{dotted(where)}: {reason}" for where, reason in islice(_problems(document), MAX_PROBLEMS)
    ]:
        raise InvalidInput("; ".join(faults) + note)


def notes(document: dict[str, Any], path: str, data: bytes) -> list[Problem]:
    """What is odd about a valid capsule, in the order of the file: a second message of one id,
    times without a zone, a `parent` or a `currentNode` that is no message, circles of messages, and
    `mcpServers` as a list of names."""
    return _placed(list(_oddities(document)), data, path)


def _placed(faults: list[_Fault], data: bytes, path: str) -> list[Problem]:
    places = locate_all(data, [where for where, _ in faults])
    problems = [Problem(path, *places[where], dotted(where), reason) for where, reason in faults]
    return sorted(problems, key=lambda problem: (problem.line, problem.column))


def _problems(
    document: dict[str, Any], kind: str = "", check_id: Callable[[str], object] = check_id
) -> Iterator[_Fault]:
    version = document.get("version", CURRENT if kind else "1.0")
    parsed = parse_version(version)
    if parsed is None:
        said = f"is {version!r}" if isinstance(version, str) else f"is {codec.kind_of(version)}"
        yield ("version",), f'must be a text like "2.1", {said}'
    elif parsed[0] > KNOWN[0]:
        yield ("version",), too_new(version)
        return
    legacy = parsed is not None and parsed < (2, 0)
    any_choice = parsed is not None and parsed > KNOWN
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
    part: str, value: dict[str, Any], where: Where, required: tuple[str, ...], *, any_choice: bool
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
        reason = fault(field, item, any_choice=any_choice)
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
        if any(fault(field, value) for value in values):
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
            f"{current[:60]!r} is the id of no message here; correct or remove it",
        )


_LISTED = (
    "a list of names, as drafts of 2.1 had it; it is read as servers that are on: write "
    '{"name": {"enabled": true}}'
)
_ZONELESS = "a time without a zone; it is read as UTC: write a Z behind it"


def _zoneless(time: str) -> bool:
    return not has_zone(time) and canonical_time(time) is not None
