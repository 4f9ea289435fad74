"""Where things stand in the text of a JSON file: used only when something is wrong with it.

What must stay true: nothing here raises on any text, recurses, or looks at a value more than once;
a place is a line and a column in characters, both from 1, and a byte order mark counts as nothing.
Lines end in LF (a CR before it belongs to its line).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Literal

JsonPath = tuple[str | int, ...]
LineColumn = tuple[int, int]
Kind = Literal["open", "close", "key", "string", "word"]

_TOKEN = r'(?s)([{}\[\],:])|("[^"\\]*(?:\\.[^"\\]*)*")|([^\s{}\[\],:"]+)'
#: A pair of surrogates, one that is alone, or another escape.
_ESCAPE = r"(?s)\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(\\u[dD][89a-fA-F]..)|\\."
_BARE = r"[A-Za-z_][A-Za-z0-9_-]*"
_BOM = "\ufeff"


def decode_leniently(data: bytes) -> str:
    """The text of a file, its byte order mark dropped, whatever is not valid UTF-8 replaced."""
    return data.decode("utf-8", "replace").removeprefix(_BOM)


def line_column(text: str, position: int) -> LineColumn:
    """The line and column of the character at `position`."""
    return text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)


def format_path(where: JsonPath) -> str:
    """A path as messages show it: ``history[3].role``; a very long one loses its middle."""
    words = ""
    for step in where:
        if isinstance(step, int):
            words += f"[{step}]"
        elif re.fullmatch(_BARE, step):
            words += f".{step}" if words else step
        else:
            words += f"[{json.dumps(step, ensure_ascii=False)}]"
    return words if len(words) <= 160 else f"{words[:120]}...{words[-20:]}"


def _tokens(text: str) -> Iterator[tuple[Kind, int, str]]:
    """The tokens of `text` that are no commas or colons: what each is, where it starts, what it
    says.
    """
    objects: list[bool] = []
    key_next = False
    for match in re.finditer(_TOKEN, text):
        token = match.group()
        if match.lastindex == 2:
            yield ("key" if key_next else "string"), match.start(), token
            key_next = False
        elif match.lastindex == 3:
            yield "word", match.start(), token
        elif token in "{[":
            objects.append(token == "{")
            key_next = objects[-1]
            yield "open", match.start(), token
        elif token in "}]":
            if objects:
                objects.pop()
            key_next = False
            yield "close", match.start(), token
        elif token == ",":
            key_next = bool(objects) and objects[-1]


def _text_in(token: str) -> str:
    try:
        return str(json.loads(token, strict=False)) if "\\" in token else token[1:-1]
    except ValueError:
        return token[1:-1]


def locate_all(data: bytes, wheres: Iterable[JsonPath]) -> dict[JsonPath, LineColumn]:
    """The line and column of each path in `wheres`, found in one walk over the file.

    A path that leads to nothing has the place of its deepest part that exists.
    """
    wanted = list(wheres)
    asked = {where[:depth] for where in wanted for depth in range(len(where) + 1)}
    deepest = max(map(len, wanted), default=-1)
    text = decode_leniently(data)
    starts: dict[JsonPath, int] = {}
    path: list[
        str | int
    ] = []  # Of each container around the walk, the key or the index that it has come to.
    for kind, position, token in _tokens(text):
        if kind == "key":
            path[-1] = _text_in(token)
        elif kind == "close":
            del path[-1:]
        else:
            if path and isinstance(path[-1], int):
                path[-1] += 1
            if len(path) <= deepest and (where := tuple(path)) in asked:
                starts.setdefault(where, position)
            if kind == "open":
                path.append("" if token == "{" else -1)
    ends = {
        where: next((starts[part] for part in _upwards(where) if part in starts), 0)
        for where in wanted
    }
    lines: dict[int, LineColumn] = {}
    line, seen = 1, 0
    for position in sorted(set(ends.values())):
        line, seen = line + text.count("\n", seen, position), position
        lines[position] = line, position - text.rfind("\n", 0, position)
    return {where: lines[position] for where, position in ends.items()}


def _upwards(where: JsonPath) -> Iterator[JsonPath]:
    return (where[:depth] for depth in range(len(where), -1, -1))


def locate(data: bytes, where: JsonPath) -> LineColumn:
    """The line and column of the value at the path `where`, or of the deepest part of it that
    exists.
    """
    return locate_all(data, [where])[where]


def duplicate_keys(text: str) -> Iterator[tuple[int, str]]:
    """Every key that stands a second time in its object: its position and name."""
    frames: list[set[str]] = []
    for kind, position, token in _tokens(text):
        if kind == "open":
            frames.append(set())
        elif kind == "close":
            if frames:
                frames.pop()
        elif kind == "key" and frames:
            name = _text_in(token)
            if name in frames[-1]:
                yield position, name
            frames[-1].add(name)


def lone_surrogates(text: str) -> Iterator[tuple[int, str]]:
    """Every ``\\ud800``-like escape that is not one half of a pair: its position, and how it is
    written.
    """
    for kind, start, token in _tokens(text):
        if kind in {"key", "string"} and "\\u" in token:
            yield from (
                (start + match.start(), match[1])
                for match in re.finditer(_ESCAPE, token)
                if match[1]
            )


def constants(text: str) -> Iterator[tuple[int, str]]:
    """Every NaN, Infinity and -Infinity: its position and name."""
    for kind, position, token in _tokens(text):
        if kind == "word" and token in {"NaN", "Infinity", "-Infinity"}:
            yield position, token


def too_deep(text: str, limit: int) -> int | None:
    """The position of the first bracket that opens more than `limit` levels."""
    depth = 0
    for kind, position, _ in _tokens(text):
        if kind == "open":
            depth += 1
            if depth > limit:
                return position
        elif kind == "close":
            depth -= 1
    return None
