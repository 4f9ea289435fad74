"""Read JSON files exactly and strictly, and write them canonically.

`decode` first tries orjson, which is quick. If orjson does not write the same bytes again, Python's
own parser reads the file with hooks that keep every detail. An error names line, column and remedy.

A number that orjson would write differently (beyond 64 bits, ``2.50``, ``-0``, ``1e999``) is kept as
an `orjson.Fragment`, which writes its own text. Equal texts of up to 64 characters mostly give the
same fragment, so documents can be compared with `==`. Where this must be certain, compare what
`encode` returns.

What must stay true: `decode` refuses what `encode` could not write back. What it accepts is written
again with every key, every text and the digits of every number. The layout is orjson's with two
spaces and a newline at the end, and the storage layer addresses its lines. This module knows JSON,
and nothing of conversations.
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

#: The levels of objects and lists that orjson writes, the document itself included.
MAX_DEPTH = 254
_LAYOUT = orjson.OPT_INDENT_2
_FILE = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE

_PLAIN = frozenset({str, int, bool, type(None), orjson.Fragment})
_CONTAINERS = frozenset({dict, list, tuple})
#: A longer fragment is not shared between documents.
_MAX_SHARED_LENGTH = 64
_MAX_PROBLEMS = 100
_TOO_DEEP = f"objects and lists are nested more than {MAX_DEPTH} levels deep; make it flatter"
_HALF = "half a character (a lone surrogate), which UTF-8 can't represent"
#: A position in the text and what is wrong there.
_Fault = tuple[int, str]


class _DuplicateKey(Exception):
    """Two keys of one name in one object."""


class _Constant(Exception):
    """NaN or an infinity, which Python reads and JSON does not have."""


# --- Reading ---


def decode(data: bytes, path: str) -> dict[str, Any]:
    """Return the document in `data`, the whole file. A byte order mark and CRLF are accepted.

    Raises:
        InvalidDocument: `data` is no JSON, no object, or has something that could not be written
            back unchanged. The error names the file `path`, line and column.

    Cost: for bytes as `encode` writes them, about twice that of `orjson.loads`. For others several
    times that.
    """
    if data.startswith(b"{\n"):
        try:
            document: dict[str, Any] = orjson.loads(data)
            if orjson.dumps(document, option=_FILE) == data:
                return document
        except (ValueError, TypeError):
            pass  # The exact reader decides, and names the problem.
    return _decode_exactly(_text(data, path), path)


def _decode_exactly(text: str, path: str) -> dict[str, Any]:
    try:
        document = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise _invalid(path, text, _conflicts(text) or [_syntax_fault(error, text)]) from None
    except _DuplicateKey:
        faults = []
        for position, name in locations.duplicate_keys(text):
            faults.append((position, f"a second field {name!r} in the same object; keep one"))
        raise _invalid(path, text, faults) from None
    except _Constant:
        faults = []
        for position, name in locations.constants(text):
            faults.append((position, f"{name} is not a JSON number; write null or a number"))
        raise _invalid(path, text, faults) from None
    except RecursionError:
        raise _too_deep(path, text) from None
    if not isinstance(document, dict):
        start = len(text) - len(text.lstrip())
        reason = f"must be an object {{...}}, is {kind_of(document)}"
        raise _invalid(path, text, [(start, reason)])
    try:
        orjson.dumps(document)
    except TypeError:
        faults = []
        for position, escape in locations.lone_surrogates(text):
            faults.append((position, f"{escape} is {_HALF}; remove it"))
        if not faults:
            raise _too_deep(path, text) from None
        raise _invalid(path, text, faults) from None
    return document


def decode_entries(data: bytes, path: str) -> list[dict[str, Any]]:
    """Return the entries in a JSON array that `encode_entries` wrote. Raises InvalidDocument."""
    document = decode(b'{\n  "history": ' + data[:-1] + b"\n  ]\n}\n", path)
    entries: list[dict[str, Any]] = document["history"]
    return entries


def decode_record(data: bytes) -> dict[str, Any]:
    """Return a record of the log, which may be deeper than a document by one level.

    Raises ValueError or RecursionError.
    """
    record: dict[str, Any] = _DECODER.decode(data.decode())
    return record


def _text(data: bytes, path: str) -> str:
    """Return the text of a file without its byte order mark. Raises InvalidDocument."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        valid_text = locations.decode_leniently(data[: error.start])
        line, column = line_column(valid_text, len(valid_text))
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
def _shared_fragment(token: str) -> Any:
    return orjson.Fragment(token.encode())


def _fragment(token: str) -> Any:
    if len(token) <= _MAX_SHARED_LENGTH:
        return _shared_fragment(token)
    return orjson.Fragment(token.encode())


def _int(token: str) -> Any:
    # Counted first, as Python refuses to convert a text of thousands of digits.
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


# --- Problems of a file, in words ---


def _invalid(path: str, text: str, faults: list[_Fault]) -> InvalidDocument:
    problems = []
    for position, reason in faults[:_MAX_PROBLEMS]:
        problems.append(Problem(path, *line_column(text, position), "", reason))
    return InvalidDocument.of(problems)


def _too_deep(path: str, text: str) -> InvalidDocument:
    return _invalid(path, text, [(locations.too_deep(text, MAX_DEPTH) or 0, _TOO_DEEP)])


#: A line with which git begins a conflict, its common ancestor (`merge.conflictStyle`), its other
#: side, or ends it.
_MARKER = r"(?m)^(<<<<<<<|\|\|\|\|\|\|\||=======|>>>>>>>)[^\n]*$"


def _conflicts(text: str) -> list[_Fault]:
    """Return the conflicts that git's merge left. None unless one begins, divides and ends."""
    markers = list(re.finditer(_MARKER, text))
    if not {"<<<<<<<", "=======", ">>>>>>>"} <= {marker[1] for marker in markers}:
        return []
    reason = (
        "a conflict of a git merge; keep one of the sides and remove the marker lines, or "
        "take a whole side with git checkout --ours or --theirs; a clone that is set up for "
        "conversations merges them by message"
    )
    return [(marker.start(), reason) for marker in markers if marker[1] == "<<<<<<<"]


_EXTRA_COMMA = "a comma too many before the closing bracket; remove it"
#: Our words for the errors of Python's parser.
_PHRASES = {
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


def _syntax_fault(error: json.JSONDecodeError, text: str) -> _Fault:
    """Return position and reason of a syntax error, the same in every version of Python."""
    position = error.pos
    text_before = text[:position].rstrip(" \t\r\n")
    if text_before.endswith(",") and text[position : position + 1] in {"}", "]"}:
        return len(text_before) - 1, _EXTRA_COMMA
    if error.msg.startswith("Illegal trailing comma"):
        return position, _EXTRA_COMMA
    if error.msg.startswith("Invalid \\") and text[position] != "\\":
        return position - 1, _syntax_reason(error, text)
    return position, _syntax_reason(error, text)


def _syntax_reason(error: json.JSONDecodeError, text: str) -> str:
    """Return a description of the error, with the remedy."""
    if not text.strip():
        return "the file is empty; restore it from a backup, or delete it"
    following = text[error.pos :].lstrip()
    if not following and not error.msg.startswith("Unterminated"):
        return (
            "the file ends in the middle of the document; complete it, or restore it from a backup"
        )
    if following.startswith("\0"):
        return "NUL bytes; remove them, or restore the file from a backup"
    if error.msg.startswith("Invalid control character"):
        code = ord(text[error.pos])
        reason = f"a raw control character (U+{code:04X}) inside a text; write it as \\u{code:04x}"
        if code in {10, 13}:
            reason += ", a line break as \\n, or close the text before it with a quote"
        return reason
    if error.msg.startswith("Invalid \\"):
        return "this backslash starts no JSON escape; write a backslash itself as \\\\"
    unknown = error.msg[:1].lower() + error.msg[1:] + "; correct it in an editor"
    return _PHRASES.get(error.msg, unknown)


def kind_of(value: Any) -> str:
    """Return the kind of a value, for messages: "a text"."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    names = {
        str: "a text",
        list | tuple: "a list",
        int | float | orjson.Fragment: "a number",
        dict: "an object",
    }
    for kind, name in names.items():
        if isinstance(value, kind):
            return name
    return f"a {type(value).__name__}"


# --- Writing ---


def encode(document: Mapping[str, Any]) -> bytes:
    """Return the bytes of a file with `document`, in the layout of the store.

    The keys keep the order of the mapping. Raises InvalidInput that names the path of a value that
    JSON does not have.
    """
    plain = document if type(document) is dict else dict(document)
    try:
        data = orjson.dumps(plain, option=_FILE)
    except TypeError as error:
        _refuse(plain, 0, error)
    _check(plain, plain.values(), 0)
    return data


def encode_entry(entry: Mapping[str, Any]) -> bytes:
    """Return the bytes of one entry of `history`, as they are in a file of the store.

    The lines are indented by four spaces, from ``    {`` to ``    }``, without a comma or newline
    at the end. Raises InvalidInput that names the path of a value that JSON does not have.
    """
    plain = entry if type(entry) is dict else dict(entry)
    try:
        # Two lists around it give the indentation, and the depth of an entry in a file.
        data = orjson.dumps([[plain]], option=_LAYOUT)[6:-6]
    except TypeError as error:
        _refuse(plain, 2, error)
    for value in plain.values():
        if type(value) not in _PLAIN:
            _check(plain, (value,), 2)
    return data


def encode_entries(entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a JSON array of entries in the layout of a file. Raises InvalidInput."""
    return b"[\n" + b",\n".join(map(encode_entry, entries)) + b"]"


def _check(document: dict[str, Any], values: Iterable[Any], depth: int) -> None:
    """Refuse what orjson writes and JSON does not have: NaN as null, an enum, a date, a dataclass.

    Args:
        document: The document, for the error.
        values: The values in it that are checked.
        depth: The depth of the document in its file.
    """
    pending = [values]
    while pending:
        for value in pending.pop():
            kind = type(value)
            if kind in _PLAIN or (kind is float and isfinite(value)):
                continue
            if kind not in _CONTAINERS:
                _refuse(document, depth, None)
            children = value.values() if kind is dict else value
            if not _PLAIN.issuperset(map(type, children)):
                pending.append(children)


def _refuse(document: dict[str, Any], depth: int, error: TypeError | None) -> NoReturn:
    """Raise InvalidInput for the first value in `document` that can't be written."""
    pending: list[tuple[JsonPath, Any]] = [((), document)]
    while pending:
        json_path, value = pending.pop()
        reason = _value_fault(value, len(json_path) + depth)
        if reason:
            raise InvalidInput(f"{format_path(json_path)}: {reason}" if json_path else reason)
        children: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict):
            children = value.items()
        elif isinstance(value, list | tuple):
            children = enumerate(value)
        # Reversed, so that the last one, which is popped next, is the first in the document.
        pending.extend(reversed([((*json_path, step), child) for step, child in children]))
    raise InvalidInput(f"this can't be written as JSON: {error}")


def _value_fault(value: Any, depth: int) -> str:
    """Return what is wrong with a value itself, without its children. Empty: nothing."""
    kind = type(value)
    if kind is str:
        return "" if _is_utf8(value) else f"{_HALF}; remove it"
    if kind is float:
        if isfinite(value):
            return ""
        return f"{value} is not a JSON number; use null or a finite number"
    if kind is int:
        return "" if -(2**63) <= value < 2**64 else "a number beyond 64 bits; write it as a text"
    if kind in _CONTAINERS:
        if depth >= MAX_DEPTH:
            return _TOO_DEEP
        return _key_fault(value) if kind is dict else ""
    if kind in _PLAIN:
        return ""
    kinds = "use str, int, float, bool, None, list, dict"
    return f"a value of type {kind.__name__} is not valid JSON; {kinds}"


def _key_fault(value: dict[Any, Any]) -> str:
    for key in value:
        if type(key) is not str:
            return f"the key {key!r} is not a plain str"
        if not _is_utf8(key):
            return f"the key {key!r} holds {_HALF}"
    return ""


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
