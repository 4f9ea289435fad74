"""A conversation as lines to read, so that their difference reads like a chat: what `git diff` and
`git log -p` show.

What must stay true: a change in one message changes its lines and no others, so nothing is
numbered, named by its place, or aligned; only a message begins with a time, and no stored text can
pose as one; no control character passes. `updatedAt` has no line: it would be in every difference.
Pure.

    conversation 550e8400-e29b-41d4-a716-446655440000
    title: Plans (by user)
    tags: work, garden

    2025-01-12 10:00:00 user: Hello
    2025-01-12 10:01:00 assistant (gpt-4):
        A text of several lines, or a long one,
        stands below, indented.
      calls search {"query": "gardens"}
    2025-01-12 10:02:00 user [2nd answer to assistant 2025-01-12 10:01:00]: Hello again
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from zlib import crc32

import orjson

from capsule.errors import InvalidDocument
from capsule.format import validation
from capsule.format.fields import field_names
from capsule.format.json import codec
from capsule.format.text.escaping import call_of, escape_controls, one_line
from capsule.format.tree.tree import Tree
from capsule.timestamps import blank_if_unknown

Message = Mapping[str, Any]

#: A text of one line is short up to so many characters.
_SHORT = 120
#: Longer values are cut.
_CUT = 200
#: Fields with a word of their own, or none: a lock is nobody's change, and in a file of the working
#: tree it may stand.
_HEADED = frozenset(
    {
        "tags",
        "lock",
        "titleSetBy",
        "titleSetAt",
        "type",
        "conflicts",
        "currentNode",
        "currentWanted",
    }
)
#: What a conversation has of which nothing is known.
_USUAL: dict[str, Any] = {"mode": "api", "isSummary": False, "pinned": False, "archived": False}
_CAPSULE, _ABOUT, _MESSAGE = (frozenset(field_names(part)) for part in ("", "metadata", "history"))
#: The fields of a message that have words of their own, or none; each other one has a line.
_WORDED = frozenset(
    {"role", "content", "timestamp", "id", "parent", "from", "replyTo", "editedAt", "model"}
)
_WORDED |= {"editedBy", "toolCalls", "toolCallId", "reasoning", "attachments"}
_WAYS = {"1": "st", "2": "nd", "3": "rd"}


def readable(document: Mapping[str, Any]) -> Iterator[str]:
    """The lines of a capsule of any version that `validation.check` accepts, without line ends.

    Cost: a walk over the messages; a conversation is never held as text in whole.
    """
    yield from _head(document)
    history = document.get("history") or []
    tree = Tree(history)
    for place, entry in enumerate(history):
        if not place:
            yield ""
        yield from _message(entry, _branch(tree, history, place))


def as_text(data: bytes) -> Iterator[bytes]:
    """A file as lines to read, each with its line end; one that is no conversation, broken ones
    too, as it is.
    """
    try:
        document = codec.decode(data, "")
        validation.check(document, data, "")
    except InvalidDocument:
        yield data
        return
    for line in readable(document):
        yield f"{line}\n".encode()


def _head(document: Mapping[str, Any]) -> Iterator[str]:
    about = document.get("metadata") or {}
    yield f"conversation {_plain(document.get('id'))}"
    setter = about.get("titleSetBy")
    yield f"title: {_plain(document.get('title'))}" + (f" (by {_plain(setter)})" if setter else "")
    if about.get("type"):
        yield f"type: {_plain(about['type'])}"
    if about.get("tags"):
        yield f"tags: {', '.join(map(_plain, about['tags']))}"
    for name, value in about.items():
        if name not in _HEADED and value not in (None, [], {}) and not _is(value, _USUAL.get(name)):
            yield f"{_field(name, _ABOUT)}: {_plain(value)}"
    if about.get("currentNode"):
        yield f"active branch: {_pointed_at(document, about['currentNode'])}"
    for conflict in about.get("conflicts") or ():
        yield f"conflict: {_conflict(conflict)}"
    for name, value in document.items():
        if name not in _CAPSULE and value is not None:
            yield f"{_field(name)}: {_plain(value)}"
    yield (
        f"created: {_time(document.get('createdAt'))}, version "
        f"{_plain(document.get('version', 'missing'))}"
    )
    context = document.get("context") or {}
    if context.get("fullContext") or (context.get("metadata") or {}).get("contextHash"):
        yield f"context: {_context(context)}"


def _is(value: Any, usual: Any) -> bool:
    return value is usual if isinstance(usual, bool) else value == usual


def _context(context: Mapping[str, Any]) -> str:
    """A context in one line: where it is from, what it holds, and what tells it from another."""
    about, text = context.get("metadata") or {}, context.get("fullContext") or ""
    facts = [
        _plain(about["projectPath"]) if about.get("projectPath") else "",
        f"{_plain(about['filesIncluded'])} files" if about.get("filesIncluded") else "",
        f"{_plain(about['estimatedTokens'])} tokens" if about.get("estimatedTokens") else "",
        _plain(about["contextHash"]) if about.get("contextHash") else "",
        # The hash is as somebody wrote it; this tells a text that was edited by hand, too.
        f"{len(text)} characters ({crc32(text.encode()):08x})",
    ]
    return ", ".join(fact for fact in facts if fact)


def _pointed_at(document: Mapping[str, Any], id: str) -> str:
    entry = next((entry for entry in document.get("history") or () if entry.get("id") == id), None)
    return f"of {_name(entry)}" if entry else f"of a message that isn't here, {_plain(id)}"


def _conflict(conflict: Any) -> str:
    """A conflict that a merge left: the field, and what the sides want."""
    if not isinstance(conflict, dict) or not isinstance(conflict.get("values"), list):
        return _plain(conflict)
    wanted = (
        value.get("value") if isinstance(value, dict) else value for value in conflict["values"]
    )
    return f"{_plain(conflict.get('field'))}: {' or '.join(_cut(_json(value)) for value in wanted)}"


def _branch(tree: Tree, history: list[Message], place: int) -> str:
    """The message that this one answers, when it is not the one before it, and its number among the
    answers.

    The count of the answers is left out: it would change with each new one.
    """
    parent = tree.parents[place]
    number, _ = tree.forks.get(place, (1, 1))
    if parent == place - 1 and number == 1:
        return ""
    target = _name(history[parent]) if parent >= 0 else "nothing"
    return f"{_ordinal(number)} answer to {target}" if number > 1 else f"answers {target}"


def _ordinal(number: int) -> str:
    digits = str(number)
    return digits + ("th" if digits[-2:-1] == "1" else _WAYS.get(digits[-1], "th"))


def _name(entry: Message) -> str:
    """A message as others refer to it: by what an edit doesn't change."""
    return f"{_plain(entry.get('role'))} {_time(entry.get('timestamp'))}"


def _message(entry: Message, branch: str) -> Iterator[str]:
    """A line, and below it what has no place on it."""
    facts = [branch] if branch else []
    named = (
        ("replyTo", "reply to"),
        ("editedAt", "edited"),
        ("editedBy", "by"),
        ("toolCallId", "result of"),
    )
    for name, words in named:
        if value := entry.get(name):
            facts.append(f"{words} {_time(value) if name == 'editedAt' else _plain(value)}")
    who = _plain(entry.get("role"))
    who += f" {_plain(entry['from'])}" if entry.get("from") else ""
    who += f" ({_plain(entry['model'])})" if entry.get("model") else ""
    who += f" [{', '.join(facts)}]" if facts else ""
    begin, text = f"{_time(entry.get('timestamp'))} {who}:", entry.get("content") or ""
    if len(text) <= _SHORT and "\n" not in text:
        yield f"{begin} {one_line(text)}" if text else begin
    else:
        yield begin
        yield from _indented(text)
    if entry.get("reasoning"):
        yield "  reasoning:"
        yield from _indented(entry["reasoning"])
    for call in entry.get("toolCalls") or ():
        yield f"  calls {_call(call)}"
    for attached in entry.get("attachments") or ():
        yield f"  attached {_plain(attached)}"
    for name, value in entry.items():
        if name not in _WORDED and value not in (None, {}):
            yield f"  {_field(name, _MESSAGE)}: {_plain(value)}"


def _field(name: str, known_names: frozenset[str] = frozenset()) -> str:
    """A field's name; of an unknown one in quotes, as it may be any text."""
    return name if name in known_names else _plain(_json(name))


def _indented(text: str) -> Iterator[str]:
    """A text line by line; an empty one stays empty, as git marks blanks at the end of a line."""
    for line in escape_controls(text).split("\n"):
        yield f"    {line}" if line else ""


def _call(call: Mapping[str, Any]) -> str:
    """Name and arguments of a tool call; the rest of it besides."""
    name, arguments = call_of(call)
    if not name:
        return _plain(call)
    id = f" ({_plain(call['id'])})" if call.get("id") else ""
    return _plain(name) + ("" if arguments is None else f" {_plain(arguments)}") + id


def _time(value: Any) -> str:
    """A time to the second; in another form than the store writes, as it stands."""
    time = blank_if_unknown(value and str(value))
    if not time:
        return "no time"
    return one_line(f"{time[:10]} {time[11:19]}" if len(time) == 24 and time[10] == "T" else time)


def _plain(value: Any) -> str:
    """A value in one line, cut; the size of what is cut is said, so that a change in there mostly
    shows.
    """
    return _cut(value if isinstance(value, str) else _json(value))


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _cut(text: str) -> str:
    line = one_line(text)
    return (
        line
        if len(line) <= _CUT
        else f"{line[:_CUT]}... ({len(text)} characters, {crc32(text.encode()):08x})"
    )
