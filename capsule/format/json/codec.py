"""Bytes to documents and back: the exact, strict reader and the canonical writer.

What must stay true: `decode` refuses what `encode` could not write back, and loses nothing: what it
accepts is written again with every key, every text and the very digits of every number. The
writer's layout is orjson's of two spaces with a newline at the end; the storage layer addresses its
lines.

A number that orjson would write differently from how it is written in the file (beyond 64 bits,
``2.50``, ``-0``, ``1e999``) is kept as an `orjson.Fragment`, which stands for its text. Equal texts
of up to 64 characters mostly give the same fragment, so that documents compare; where that matters,
compare what `encode` gives.

This module knows JSON, and nothing of conversations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from math import isfinite
from typing import Any, NoReturn

import orjson

from capsule.errors import InvalidDocument, InvalidInput, Problem
from capsule.format.json import locations
from capsule.format.json.locations import JsonPath, format_path, line_column

#: Objects and lists inside each other, the document itself included: what orjson writes.
MAX_DEPTH = 254
_LAYOUT = orjson.OPT_INDENT_2
_FILE = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE

_PLAIN = frozenset({str, int, bool, type(None), orjson.Fragment})
_CONTAINERS = frozenset({dict, list, tuple})
_DEEP = f"objects and lists are nested more than {MAX_DEPTH} levels deep; make it flatter"
_HALF = "half a character (a lone surrogate), which UTF-8 can't represent"


class _DuplicateKey(Exception):
    """Two keys of one name in one object."""


class _Constant(Exception):
    """NaN or an infinity, which Python reads and JSON does not have."""


def decode(data: bytes, path: str) -> dict[str, Any]:
    """The document that stands in `data`, the whole file, exactly. A byte order mark and CRLF are
    accepted.

    Raises:
        InvalidDocument: It is no JSON, no object, or holds what could not be written back
            unchanged; with the file's name, which is `path`, line and column.

    Cost: for bytes as `encode` writes them, about twice what `orjson.loads` takes; else several
    times that.
    """
    if data.startswith(b"{\n"):
        try:
            quick: dict[str, Any] = orjson.loads(data)
            if orjson.dumps(quick, option=_FILE) == data:
                return quick
        except (ValueError, TypeError):
            pass  # What can't be read or written so is left to the exact reader.
    text = _text(data, path)
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _invalid(path, text, _conflicts(text) or [_syntax(error, text)]) from None
    except _DuplicateKey:
        twice = [
            (at, f"a second field {name!r} in the same object; keep one")
            for at, name in locations.duplicate_keys(text)
        ]
        raise _invalid(path, text, twice) from None
    except _Constant:
        numbers = [
            (at, f"{name} is not a JSON number; write null or a number")
            for at, name in locations.constants(text)
        ]
        raise _invalid(path, text, numbers) from None
    except RecursionError:
        raise _too_deep(path, text) from None
    if not isinstance(document, dict):
        start = len(text) - len(text.lstrip())
        kind = f"must be an object {{...}}, is {kind_of(document)}"
        raise _invalid(path, text, [(start, kind)])
    try:
        orjson.dumps(document)
    except TypeError:
        halves = [
            (at, f"{escape} is {_HALF}; remove it")
            for at, escape in locations.lone_surrogates(text)
        ]
        raise (_invalid(path, text, halves) if halves else _too_deep(path, text)) from None
    return document


def decode_entries(data: bytes, path: str) -> list[dict[str, Any]]:
    """The entries in `data`, a JSON array as `encode_entries` writes it, exactly. Raises
    InvalidDocument.
    """
    entries: list[dict[str, Any]] = decode(b'{\n  "history": ' + data[:-1] + b"\n  ]\n}\n", path)[
        "history"
    ]
    return entries


def decode_record(data: bytes) -> dict[str, Any]:
    """As `decode`, of a record of the log, which may be deeper by one. Raises ValueError or
    RecursionError.
    """
    record: dict[str, Any] = _DECODER.decode(data.decode())
    return record


def encode(document: Mapping[str, Any]) -> bytes:
    """The bytes of a file that holds `document`, in the layout of the store and the order of the
    mapping.

    Raises InvalidInput if something in it has no place in JSON, by its path.
    """
    plain = document if type(document) is dict else dict(document)
    try:
        data = orjson.dumps(plain, option=_FILE)
    except TypeError as error:
        _refuse(plain, 0, error)
    _check(plain, plain.values(), 0)
    return data


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """The bytes of one entry of `history` as they stand in a file the store wrote.

    The lines stand four spaces in, from ``    {`` to ``    }``, without a comma or newline at the end. Raises
    InvalidInput if something in it has no place in JSON, by its path.
    """
    plain = entry if type(entry) is dict else dict(entry)
    try:
        # Two lists around it give the indentation, and the depth the entry will have in the file.
        data = orjson.dumps([[plain]], option=_LAYOUT)[6:-6]
    except TypeError as error:
        _refuse(plain, 2, error)
    for value in plain.values():
        if type(value) not in _PLAIN:
            _check(plain, (value,), 2)
    return data


def encode_entries(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """A JSON array of entries of `history`, laid out as in a file that the store wrote. Raises
    InvalidInput.
    """
    return b"[\n" + b",\n".join(map(encode_entry, entries)) + b"]"


def _text(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = locations.decode_leniently(data[: error.start])
        line, column = line_column(before, len(before))
        reason = f"byte 0x{data[error.start]:02x} is not valid UTF-8; save the file as UTF-8"
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            reason = "the file is UTF-16; save it as UTF-8"
        raise InvalidDocument.of([Problem(path, line, column, "", reason)]) from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _DuplicateKey
    return fields


@lru_cache(maxsize=4096)
def _shared(token: str) -> Any:
    return orjson.Fragment(token.encode())


def _fragment(token: str) -> Any:
    return _shared(token) if len(token) <= 64 else orjson.Fragment(token.encode())


def _int(token: str) -> Any:
    fits = len(token) < 19 or (len(token) <= 20 and -(2**63) <= int(token) < 2**64)
    return int(token) if fits and token != "-0" else _fragment(token)


def _float(token: str) -> Any:
    number = float(token)
    return number if orjson.dumps(number) == token.encode() else _fragment(token)


def _constant(_: str) -> NoReturn:
    raise _Constant


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_int=_int, parse_float=_float, parse_constant=_constant
)


def _invalid(path: str, text: str, faults: list[tuple[int, str]]) -> InvalidDocument:
    return InvalidDocument.of(
        [Problem(path, *line_column(text, at), "", reason) for at, reason in faults[:100]]
    )


def _too_deep(path: str, text: str) -> InvalidDocument:
    return _invalid(path, text, [(locations.too_deep(text, MAX_DEPTH) or 0, _DEEP)])


#: A line that git begins a conflict, its common ancestor, its other side or its end with
#: (`merge.conflictStyle`).
_MARKER = r"(?m)^(<<<<<<<|\|\|\|\|\|\|\||=======|>>>>>>>)[^\n]*$"


def _conflicts(text: str) -> list[tuple[int, str]]:
    """Where git has left conflicts to be settled; none unless a conflict begins,
    divides and ends.
    """
    markers = list(re.finditer(_MARKER, text))
    if not {"<<<<<<<", "=======", ">>>>>>>"} <= {marker[1] for marker in markers}:
        return []
    reason = (
        "a conflict of a git merge; keep one of the sides and remove the marker lines, or "
        "take a whole side with git checkout --ours or --theirs; a clone that is set up for "
        "conversations merges them by message"
    )
    return [(marker.start(), reason) for marker in markers if marker[1] == "<<<<<<<"]


_COMMA = "a comma too many before the closing bracket; remove it"
_WORDS = {
    "Expecting property name enclosed in double quotes": (
        "a field name in double quotes is expected here; is there a comma too many before?"
    ),
    "Expecting ',' delimiter": "a comma or a closing bracket is missing before this",
    "Expecting ':' delimiter": "a colon is missing between the field's name and its value",
    "Expecting value": "a value is expected here; is there a comma too many before, or a quote "
    "missing?",
    "Unterminated string starting at": "the text that starts here has no closing quote",
    "Extra data": "the document is complete before this; remove what follows",
}


def _syntax(error: json.JSONDecodeError, text: str) -> tuple[int, str]:
    """Where and what the error is, the same in every version of Python."""
    at, before = error.pos, text[: error.pos].rstrip(" \t\r\n")
    if before.endswith(",") and text[at : at + 1] in {"}", "]"}:
        return len(before) - 1, _COMMA
    if error.msg.startswith("Illegal trailing comma"):
        return at, _COMMA
    if error.msg.startswith("Invalid \\") and text[at] != "\\":
        at -= 1
    return at, _in_words(error, text)


def _in_words(error: json.JSONDecodeError, text: str) -> str:
    """What is wrong, for a person; ends in the way out."""
    if not text.strip():
        return "the file is empty; restore it from a backup, or delete it"
    rest = text[error.pos :].lstrip()
    unclosed = error.msg.startswith("Unterminated")
    if not rest and not unclosed:
        return (
            "the file ends in the middle of the document; complete it, or restore it from a backup"
        )
    if rest.startswith("\0"):
        return "NUL bytes; remove them, or restore the file from a backup"
    if error.msg.startswith("Invalid control character"):
        code = ord(text[error.pos])
        return (
            f"a raw control character (U+{code:04X}) inside a text; write it as \\u{code:04x}"
            + (
                ", a line break as \\n, or close the text before it with a quote"
                if code in {10, 13}
                else ""
            )
        )
    if error.msg.startswith("Invalid \\"):
        return "this backslash starts no JSON escape; write a backslash itself as \\\\"
    return _WORDS.get(
        error.msg, error.msg[:1].lower() + error.msg[1:] + "; correct it in an editor"
    )


def kind_of(value: Any) -> str:
    """What `value` is, in the words of the messages."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {
        str: "a text",
        list | tuple: "a list",
        int | float | orjson.Fragment: "a number",
        dict: "an object",
    }
    return next(
        (name for kind, name in names.items() if isinstance(value, kind)),
        f"a {type(value).__name__}",
    )


def _check(document: dict[str, Any], values: Iterable[Any], depth: int) -> None:
    """Refuse what orjson writes though JSON has no such thing: NaN as null, an enum, a date, a
    dataclass.
    """
    rest = [values]
    while rest:
        for value in rest.pop():
            kind = type(value)
            if kind in _PLAIN or (kind is float and isfinite(value)):
                continue
            if kind not in _CONTAINERS:
                _refuse(document, depth, None)
            inside = value.values() if kind is dict else value
            if not _PLAIN.issuperset(map(type, inside)):
                rest.append(inside)


def _refuse(document: dict[str, Any], depth: int, error: TypeError | None) -> NoReturn:
    """Name the first thing in `document` that can't be written."""
    rest: list[tuple[JsonPath, Any]] = [((), document)]
    while rest:
        where, value = rest.pop()
        if reason := _fault(value, len(where) + depth):
            raise InvalidInput(f"{format_path(where)}: {reason}" if where else reason)
        if isinstance(value, dict | list | tuple):
            inside: Iterable[tuple[Any, Any]] = (
                value.items() if isinstance(value, dict) else enumerate(value)
            )
            rest.extend(reversed([((*where, step), item) for step, item in inside]))
    raise InvalidInput(f"this can't be written as JSON: {error}")


def _fault(value: Any, depth: int) -> str:
    kind = type(value)
    if kind is str:
        return "" if _is_utf8(value) else f"{_HALF}; remove it"
    if kind is float:
        return (
            "" if isfinite(value) else f"{value} is not a JSON number; use null or a finite number"
        )
    if kind is int:
        return "" if -(2**63) <= value < 2**64 else "a number beyond 64 bits; write it as a text"
    if kind in _CONTAINERS:
        if depth >= MAX_DEPTH:
            return _DEEP
        for key in value if kind is dict else ():
            if type(key) is not str:
                return f"the key {key!r} is not a plain str"
            if not _is_utf8(key):
                return f"the key {key!r} holds {_HALF}"
        return ""
    kinds = "use str, int, float, bool, None, list, dict"
    return "" if kind in _PLAIN else f"a value of type {kind.__name__} is not valid JSON; {kinds}"


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
