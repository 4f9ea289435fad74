"""Puts one member into a JSON document or takes it out, as a person with an editor would: nothing else changes.

What must stay true: an edit puts text in or takes text out around the one member it is about, in the layout that the
document has, and every other character stays, comments, order, blanks and commas included. The result is read again:
it says what it said, but for that member, or the edit is refused.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from capsule.mcp_server.clients.jsonc import Malformed, Member, Node, Text, read

__all__ = ["CannotEdit", "get", "remove", "set_member"]

_INDENT = re.compile(r"[ \t]*")


class CannotEdit(Malformed):
    """The document is JSON, and what is to hold the member is no object."""


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a document is written."""

    newline: str
    unit: str
    colon: str
    inline: bool


def get(document: Text, path: Iterable[str]) -> Node | None:
    """The value at a path of names; None when it isn't there."""
    node = document.root
    for key in path:
        member = node.last(key) if node is not None else None
        node = member.node if member else None
    return node


def set_member(text: str, path: tuple[str, ...], value: Any, *, plain: bool = False) -> str:
    """The document with `value` at `path`; the objects on the way are made when they aren't there.

    An object that is there already keeps what `value` has no word about.

    Raises:
        Malformed: It is no JSON; CannotEdit: something on the way is no object.
    """
    document = read(text, plain=plain)
    if document.root is None:
        layout = _Layout(_newline(text), "  ", ": ", False)
        made = _written(_nested(path, value), layout, "") + layout.newline
        lead = text if not text or text.endswith(("\n", "\r")) else text + layout.newline
        return _checked(document, (lead if document.comments else "") + made, path, value)
    holder, missing = _holder(document, path)
    if missing:
        return _checked(document, _insert(document, holder, missing[0], _nested(missing[1:], value)), path, value)
    for key, wanted in value.items():
        # Read again each time: every edit moves what comes after it.
        document_now = read(text, plain=plain)
        entry, _ = _holder(document_now, path)
        member = entry.last(key)
        if member is None:
            text = _insert(document_now, entry, key, wanted)
        elif member.node.value != wanted or type(member.node.value) is not type(wanted):
            layout = _layout(document_now, entry)
            written = _written(wanted, layout, _indent_of(text, member.start))
            text = text[: member.node.start] + written + text[member.node.end :]
    return _checked(document, text, path, value)


def remove(text: str, path: tuple[str, ...], *, plain: bool = False) -> str:
    """The document without the member at `path`; what holds it stays, if empty.

    Raises:
        Malformed: It is no JSON.
    """
    document = read(text, plain=plain)
    wanted = copy.deepcopy(document.value)
    result = document
    while True:
        holder = get(result, path[:-1])
        member = holder.last(path[-1]) if holder else None
        if holder is None or member is None:
            break
        result = read(_without(result, holder, member), plain=plain)
    held = wanted
    for key in path[:-1]:
        held = held.get(key) if isinstance(held, dict) else None
    if isinstance(held, dict):
        held.pop(path[-1], None)
    if result.value != wanted:
        raise CannotEdit("the entry can't be taken out without changing something else", 0)
    return result.text


def _holder(document: Text, path: tuple[str, ...]) -> tuple[Node, tuple[str, ...]]:
    """The deepest object on the path that is there, and the names still missing."""
    node = document.root
    assert node is not None
    for depth in range(len(path) + 1):
        if not node.is_object:
            where = ".".join(path[:depth]) or "the document"
            raise CannotEdit(f"{where} is no object, and the entry has to go into one", node.start)
        if depth == len(path):
            break
        member = node.last(path[depth])
        if member is None:
            return node, path[depth:]
        node = member.node
    return node, ()


def _nested(path: tuple[str, ...], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _checked(before: Text, text: str, path: tuple[str, ...], value: Any) -> str:
    """The text, after having made sure that it says what it should, and kept every comment."""
    after = read(text, plain=before.plain)
    wanted = copy.deepcopy(before.value) if before.root is not None else {}
    held = wanted
    for key in path:
        held = held.setdefault(key, {})
    held.update(value)
    kept = [before.text[start:end] for start, end in before.comments]
    if after.value != wanted or [text[start:end] for start, end in after.comments] != kept:
        raise CannotEdit("the entry can't be put in without changing something else", 0)
    return text


def _insert(document: Text, holder: Node, key: str, value: Any) -> str:
    """The text with a member more, as the last one of an object."""
    text, layout = document.text, _layout(document, holder)
    outer = _indent_of(text, holder.start)
    if not holder.members:
        at = max([holder.start + 1, *(end for _, end in _comments(document, holder.start, holder.end))])
        inner = outer + layout.unit
        member = f"{json.dumps(key, ensure_ascii=False)}{layout.colon}{_written(value, layout, inner)}"
        rest = text[at : holder.end - 1]
        if layout.inline and not _is_line_comment(text, document, at):
            return text[:at] + member + text[at:]
        closing = "" if "\n" in rest or "\r" in rest else layout.newline + outer
        return text[:at] + layout.newline + inner + member + closing + text[at:]
    last = holder.members[-1]
    after = last.node.end if last.comma is None else last.comma + 1
    at, broken = _rest_of_line(document, after, holder.end - 1)
    inline = layout.inline and not broken
    inner = _indent_of(text, last.start) if _begins_line(text, last.start) else outer + layout.unit
    member = f"{json.dumps(key, ensure_ascii=False)}{layout.colon}{_written(value, layout, inner)}"
    blank = ("" if layout.colon == ":" else " ") if inline else layout.newline + inner
    comma = "," if last.comma is None else ""
    trailing = "," if last.comma is not None else ""
    return text[: last.node.end] + comma + text[last.node.end : at] + blank + member + trailing + text[at:]


def _without(document: Text, holder: Node, member: Member) -> str:
    """The text without a member, with its comma or the one that it was the reason for."""
    text = document.text
    index = next(i for i, one in enumerate(holder.members) if one is member)
    before = holder.members[index - 1] if index else None
    begin = holder.start + 1 if before is None else (before.comma or before.node.end) + 1
    comments = _comments(document, begin, member.start)
    start = max([begin, *(end for _, end in comments)])
    stop = member.node.end
    cuts = []
    if member.comma is not None:
        if text[stop : member.comma].strip():
            cuts.append((member.comma, member.comma + 1))
        else:
            stop = member.comma + 1
    elif before is not None and before.comma is not None:
        cuts.append((before.comma, before.comma + 1))
    follows = text[stop : holder.end]
    if _is_line_comment(text, document, start) and not follows.lstrip(" \t").startswith(("\n", "\r")):
        # The comment before it runs to the end of the line: what follows must not become a part of it.
        start = _end_of_break(text, start)
    elif len(holder.members) == 1 and not comments and not follows[:-1].strip():
        # The only member: what is left is an empty object, with no blanks in it.
        stop = holder.end - 1
    elif before is None and member.comma is not None and not comments:
        # The first of several: the blanks before it are those of the next one, which has its own.
        rest = text[stop:]
        start = member.start if _same_line(text, member, stop) else start
        stop += len(rest) - len(rest.lstrip(" \t")) if start == member.start else 0
    for cut in sorted([*cuts, (start, stop)], reverse=True):
        text = text[: cut[0]] + text[cut[1] :]
    return text


def _same_line(text: str, member: Member, stop: int) -> bool:
    """Whether what follows a member stands on the same line, and so takes its place."""
    follows = text[stop:].lstrip(" \t")
    return bool(follows) and not follows.startswith(("\n", "\r"))


def _comments(document: Text, start: int, end: int) -> list[tuple[int, int]]:
    return [one for one in document.comments if start <= one[0] and one[1] <= end]


def _is_line_comment(text: str, document: Text, end: int) -> bool:
    return any(stop == end and text.startswith("//", start) for start, stop in document.comments)


def _end_of_break(text: str, at: int) -> int:
    return at + 2 if text.startswith("\r\n", at) else at + 1


def _rest_of_line(document: Text, at: int, end: int) -> tuple[int, bool]:
    """Past the comments that follow on the same line; and whether the last of them runs to the line's end."""
    text = document.text
    for start, stop in _comments(document, at, end):
        if "\n" in text[at:start] or "\r" in text[at:start]:
            break
        if text[at:start].strip(" \t,"):
            break
        at = stop
    return at, _is_line_comment(text, document, at)


def _begins_line(text: str, at: int) -> bool:
    return text[:at].rstrip(" \t").endswith(("\n", "\r"))


def _indent_of(text: str, at: int) -> str:
    """The blanks at the beginning of the line of an offset."""
    begin = max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1
    match = _INDENT.match(text, begin, at)
    return match[0] if match else ""


def _newline(text: str) -> str:
    found = re.search(r"\r\n|\n|\r", text)
    return found[0] if found else "\n"


def _layout(document: Text, holder: Node) -> _Layout:
    """The layout for a new member of `holder`, read off its neighbours, else off the document."""
    text, root = document.text, document.root
    assert root is not None
    unit = "  "
    if root.members and _begins_line(text, root.members[0].start):
        outer, inner = _indent_of(text, root.start), _indent_of(text, root.members[0].start)
        unit = inner[len(outer) :] if inner.startswith(outer) and inner != outer else unit
    if holder.members:
        inline = not any(_begins_line(text, member.start) for member in holder.members)
    else:
        inline = bool(root.members) and not any(mark in text[root.start : root.end] for mark in "\r\n")
    near = [*reversed(holder.members), *root.members]
    spaced = all(not text[_after_colon(text, one) :].startswith(tuple('{["-0123456789tfn')) for one in near[:1])
    return _Layout(_newline(text), unit, ": " if spaced else ":", inline)


def _after_colon(text: str, member: Member) -> int:
    """The offset after a member's colon; blanks and comments may stand around it."""
    return text.rfind(":", member.start, member.node.start) + 1


def _written(value: Any, layout: _Layout, indent: str) -> str:
    """A value as the document would have it: objects a member a line, all else on one."""
    if not isinstance(value, dict) or layout.inline or not value:
        separators = (",", ":") if layout.colon == ":" else (", ", ": ")
        return json.dumps(value, ensure_ascii=False, separators=separators)
    inner = indent + layout.unit
    members = (
        f"{inner}{json.dumps(key, ensure_ascii=False)}{layout.colon}{_written(one, layout, inner)}"
        for key, one in value.items()
    )
    return "{" + layout.newline + f",{layout.newline}".join(members) + layout.newline + indent + "}"
