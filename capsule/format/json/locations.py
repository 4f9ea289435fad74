"""Find lines and columns in the text of a JSON file, for the messages about its problems.

The text is walked token by token with a regular expression, not parsed, so any text will do. It is
used only when something is wrong with a file.

What must stay true: nothing here raises on any text, recurses, or looks at a value more than once.
Lines and columns count characters from 1, and a byte order mark does not count. Lines end in LF. A
CR before it belongs to its line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Literal

#: The keys and indexes that lead to a value.
JsonPath = tuple[str | int, ...]
LineColumn = tuple[int, int]
TokenKind = Literal["open", "close", "key", "string", "word"]

_TOKEN = r'(?s)([{}\[\],:])|("[^"\\]*(?:\\.[^"\\]*)*")|([^\s{}\[\],:"]+)'
#: A pair of surrogates, a lone surrogate (the group), or another escape.
_ESCAPE = r"(?s)\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\."
_BARE_KEY = r"[A-Za-z_][A-Za-z0-9_-]*"
_BYTE_ORDER_MARK = "\ufeff"
#: A longer path loses its middle in a message.
_MAX_PATH_LENGTH = 160


def decode_leniently(data: bytes) -> str:
    """Return the text of a file without its byte order mark. Invalid UTF-8 is replaced."""
    return data.decode("utf-8", "replace").removeprefix(_BYTE_ORDER_MARK)


def line_column(text: str, position: int) -> LineColumn:
    """Return the line and column of the character at `position`."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def format_path(json_path: JsonPath) -> str:
    """Return a path for a message: ``history[3].role``."""
    text = ""
    for step in json_path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(_BARE_KEY, step):
            text += f".{step}" if text else step
        else:
            text += f"[{json.dumps(step, ensure_ascii=False)}]"
    if len(text) <= _MAX_PATH_LENGTH:
        return text
    return f"{text[:120]}...{text[-20:]}"


def _tokens(text: str) -> Iterator[tuple[TokenKind, int, str]]:
    """Yield kind, position and text of each token that is no comma or colon."""
    is_object: list[bool] = []  # For each open bracket, whether it is a brace.
    key_next = False
    for match in re.finditer(_TOKEN, text):
        token = match.group()
        if match.lastindex == 2:
            yield ("key" if key_next else "string"), match.start(), token
            key_next = False
        elif match.lastindex == 3:
            yield "word", match.start(), token
        elif token in "{[":
            is_object.append(token == "{")
            key_next = is_object[-1]
            yield "open", match.start(), token
        elif token in "}]":
            if is_object:
                is_object.pop()
            key_next = False
            yield "close", match.start(), token
        elif token == ",":
            key_next = bool(is_object) and is_object[-1]


def _decode_string(token: str) -> str:
    """Return the text of a string token. One with an invalid escape is returned as written."""
    if "\\" in token:
        try:
            return str(json.loads(token, strict=False))
        except ValueError:
            pass
    return token[1:-1]


def locate_all(data: bytes, json_paths: Iterable[JsonPath]) -> dict[JsonPath, LineColumn]:
    """Return the line and column of each path, from one walk over the file.

    A path that leads to nothing has the place of its deepest part that exists.
    """
    paths = list(json_paths)
    text = decode_leniently(data)
    starts = _find_starts(text, paths)
    positions = {}
    for path in paths:
        positions[path] = 0
        for depth in range(len(path), -1, -1):
            if path[:depth] in starts:
                positions[path] = starts[path[:depth]]
                break
    lines: dict[int, LineColumn] = {}
    line = 1
    scanned_to = 0
    for position in sorted(set(positions.values())):
        line += text.count("\n", scanned_to, position)
        scanned_to = position
        lines[position] = line, position - text.rfind("\n", 0, position)
    return {path: lines[position] for path, position in positions.items()}


def _find_starts(text: str, paths: list[JsonPath]) -> dict[JsonPath, int]:
    """Return the position of the value at each path and at each beginning of a path."""
    prefixes = {path[:depth] for path in paths for depth in range(len(path) + 1)}
    max_depth = max(map(len, paths), default=-1)
    starts: dict[JsonPath, int] = {}
    # For each open bracket, the key or the index that the walk has come to.
    current_path: list[str | int] = []
    for kind, position, token in _tokens(text):
        if kind == "key":
            current_path[-1] = _decode_string(token)
            continue
        if kind == "close":
            del current_path[-1:]
            continue
        if current_path and isinstance(current_path[-1], int):
            current_path[-1] += 1
        if len(current_path) <= max_depth and tuple(current_path) in prefixes:
            starts.setdefault(tuple(current_path), position)
        if kind == "open":
            current_path.append("" if token == "{" else -1)
    return starts


def locate(data: bytes, json_path: JsonPath) -> LineColumn:
    """Return the line and column of a value, or of the deepest part of its path that exists."""
    return locate_all(data, [json_path])[json_path]


def duplicate_keys(text: str) -> Iterator[tuple[int, str]]:
    """Yield position and name of each key that its object has already."""
    keys_of_open: list[set[str]] = []
    for kind, position, token in _tokens(text):
        if kind == "open":
            keys_of_open.append(set())
        elif kind == "close":
            if keys_of_open:
                keys_of_open.pop()
        elif kind == "key" and keys_of_open:
            name = _decode_string(token)
            if name in keys_of_open[-1]:
                yield position, name
            keys_of_open[-1].add(name)


def lone_surrogates(text: str) -> Iterator[tuple[int, str]]:
    """Yield position and text of each escape like ``\\ud800`` that is not one half of a pair."""
    for kind, start, token in _tokens(text):
        if kind not in {"key", "string"} or "\\u" not in token:
            continue
        for match in re.finditer(_ESCAPE, token):
            if match[1]:
                yield start + match.start(), match[1]


def constants(text: str) -> Iterator[tuple[int, str]]:
    """Yield position and name of each NaN, Infinity and -Infinity."""
    for kind, position, token in _tokens(text):
        if kind == "word" and token in {"NaN", "Infinity", "-Infinity"}:
            yield position, token


def too_deep(text: str, limit: int) -> int | None:
    """Return the position of the first bracket that opens more than `limit` levels."""
    depth = 0
    for kind, position, _ in _tokens(text):
        if kind == "open":
            depth += 1
            if depth > limit:
                return position
        elif kind == "close":
            depth -= 1
    return None
