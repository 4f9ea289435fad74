"""Puts one table into a TOML document or takes it out; comments, order and every other byte stay.

What must stay true: a new table is put at the end, and a table is taken out with its header and its lines, which
leaves all other lines as they are; a value within it is changed by tomlkit, which keeps the comments. Whatever was
done, the result is read again with the standard library's reader and says what it should, or the edit is refused.
"""

from __future__ import annotations

import copy
import re
import tomllib
from dataclasses import dataclass
from typing import Any

from capsule.mcp_server.clients.jsonc import Malformed

__all__ = ["read", "remove", "set_table"]

_STRINGS = re.compile(
    r"""
    \"\"\" (?: [^\\] | \\. )*? \"{3,5}      # may span lines, with escapes
    | ''' .*? '{3,5}                       # may span lines, without
    | " (?: [^"\\\n] | \\. )* "
    | ' [^'\n]* '
    """,
    re.DOTALL | re.VERBOSE,
)
_HEADER = re.compile(r"[ \t]*\[")
_PLACE = re.compile(r"line (\d+), column (\d+)")


@dataclass(frozen=True, slots=True)
class _Section:
    """A table, from its header to the end of its last line that says something."""

    path: tuple[str, ...]
    start: int
    end: int


def read(text: str) -> dict[str, Any]:
    """What a document says.

    Raises:
        Malformed: It is no TOML.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what, place = str(error), _PLACE.search(str(error))
        at = len(text)
        if place is not None:
            lines = text.split("\n")
            at = sum(len(line) + 1 for line in lines[: int(place[1]) - 1]) + int(place[2]) - 1
            what = what[: what.rindex("(")].strip()
        raise Malformed(what, min(at, len(text))) from error


def set_table(text: str, path: tuple[str, ...], value: dict[str, Any]) -> str:
    """The document with these values in the table at `path`; what else the table says stays.

    Raises:
        Malformed: It is no TOML, or the table has no place in it.
    """
    said = read(text)
    wanted = copy.deepcopy(said)
    held: Any = wanted
    for key in path:
        held = held.setdefault(key, {})
        if not isinstance(held, dict):
            raise Malformed(f"{key} is no table, and the entry has to go into one", 0)
    known = bool(held)
    held.update(value)
    if wanted == said:
        return text
    made = _changed(text, path, value) if known else _appended(text, path, value)
    if not known and not _says(made, wanted):
        # The tables above it are written in one line, which no header may add to.
        made = _changed(text, path, value)
    if not _says(made, wanted) or not _only_there(text, made, path):
        raise Malformed("the entry can't be put in without changing something else; put it in by hand", 0)
    return made


def remove(text: str, path: tuple[str, ...]) -> str:
    """The document without the table at `path`, and those below it.

    Raises:
        Malformed: It is no TOML, or something else would change.
    """
    wanted = copy.deepcopy(read(text))
    held: Any = wanted
    for key in path[:-1]:
        held = held.get(key, {})
    if not isinstance(held, dict) or path[-1] not in held:
        return text
    del held[path[-1]]
    made = _cut(text, path)
    if made == text:
        made = _deleted(text, path)
    if _pruned(read(made)) != _pruned(wanted) or not _only_there(made, text, path):
        raise Malformed("the entry can't be taken out without changing something else; take it out by hand", 0)
    return made


def _says(text: str, wanted: dict[str, Any]) -> bool:
    try:
        return read(text) == wanted
    except Malformed:
        return False


def _only_there(text: str, made: str, path: tuple[str, ...]) -> bool:
    """Whether two documents differ in the table at `path` only; where it has no header, within one line only."""
    if _cut(text, path) == _cut(made, path):
        return True
    if _common(text, made) + _common(text[::-1], made[::-1]) >= len(text):
        return True
    lines, others = text.splitlines(), made.splitlines()
    return len(lines) == len(others) and sum(a != b for a, b in zip(lines, others, strict=True)) == 1


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _pruned(value: Any) -> Any:
    """Without the empty tables: a table that only its own tables implied goes with the last of them."""
    if not isinstance(value, dict):
        return value
    pruned = {key: _pruned(one) for key, one in value.items()}
    return {key: one for key, one in pruned.items() if one != {}}


def _appended(text: str, path: tuple[str, ...], value: dict[str, Any]) -> str:
    """The text with the table at its end, after a blank line; without a line end when the text had none."""
    import tomlkit

    newline = _newline(text)
    document = tomlkit.document()
    inner: Any = tomlkit.table()
    for key, one in value.items():
        inner[key] = one
    for key in reversed(path):
        outer: Any = document if key == path[0] else tomlkit.table(is_super_table=True)
        outer[key] = inner
        inner = outer
    block = tomlkit.dumps(document).replace("\n", newline)
    if not text:
        return block
    ended = text.endswith("\n")
    return text + newline + block if ended else text + newline + newline + block.removesuffix(newline)


def _changed(text: str, path: tuple[str, ...], value: dict[str, Any]) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    table: Any = document
    for key in path:
        if key not in table:
            table[key] = tomlkit.inline_table() if isinstance(table, tomlkit.items.InlineTable) else tomlkit.table()
        table = table[key]
    for key, one in value.items():
        if table.get(key) != one:
            table[key] = one
    return tomlkit.dumps(document)


def _deleted(text: str, path: tuple[str, ...]) -> str:
    import tomlkit

    document = tomlkit.parse(text)
    table: Any = document
    for key in path[:-1]:
        table = table[key]
    del table[path[-1]]
    return tomlkit.dumps(document)


def _cut(text: str, path: tuple[str, ...]) -> str:
    """The text without the sections of the table at `path`, and what set them off."""
    for section in reversed(_sections(text)):
        if section.path[: len(path)] != path:
            continue
        before, after = text[: section.start], text[section.end :]
        newline = _newline(text)
        if not after.strip() and before.endswith(newline * 2):
            # As it was put there: at the end, after a blank line.
            ended = text[: section.end].endswith("\n")
            before = before.removesuffix(newline) if ended else before.removesuffix(newline * 2)
        elif after.startswith(newline) and (not before or before.endswith(newline * 2)):
            after = after.removeprefix(newline)
        text = before + after
    return text


def _sections(text: str) -> list[_Section]:
    """The tables that have headers, in order."""
    found: list[tuple[tuple[str, ...], int]] = []
    ends: list[int] = []
    at = depth = 0
    while at < len(text):
        line = at
        header = _HEADER.match(text, at) if depth == 0 else None
        at, depth, says = _line(text, at, depth)
        if header is not None:
            found.append((_path(text[line:at]), line))
            ends.append(at)
        elif says and ends:
            ends[-1] = at
    return [_Section(path, start, end) for (path, start), end in zip(found, ends, strict=True)]


def _line(text: str, at: int, depth: int) -> tuple[int, int, bool]:
    """To the end of a line, which a string may carry further: where, how deep in brackets, and whether it says much."""
    says = False
    while at < len(text):
        mark = text[at]
        if mark == "\n":
            return at + 1, depth, says
        if mark == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
            continue
        string = _STRINGS.match(text, at)
        says = says or mark not in " \t\r"
        depth += (mark in "[{") - (mark in "]}") if string is None else 0
        at = string.end() if string is not None else at + 1
    return at, depth, says


def _path(header: str) -> tuple[str, ...]:
    """The names in a header, `[a."b.c"]` or `[[a]]`."""
    value: Any = tomllib.loads(header)
    path: list[str] = []
    while isinstance(value, dict | list) and value:
        if isinstance(value, list):
            value = value[0]
            continue
        key = next(iter(value))
        path.append(key)
        value = value[key]
    return tuple(path)


def _newline(text: str) -> str:
    at = text.find("\n")
    return "\r\n" if at > 0 and text[at - 1] == "\r" else "\n"
