"""Write a conversation as lines of text, so that `git diff` and `git log -p` read like a chat.

What must stay true: a change in one message changes its lines and no others. Therefore nothing is
numbered, named by its position, or aligned. Only the line of a message begins with a time, and no
stored text can imitate one. No control character passes. `updatedAt` has no line, because it would
be in every difference. This module reads no file.

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

#: A message of one line, up to this many characters, is on the line of its sender.
_MAX_INLINE = 120
#: Longer values are truncated.
_MAX_VALUE = 200
#: The fields of the metadata that have a line of their own form, or none. A lock has none: nobody
#: edits it, and a file of the working tree may have one.
_SPECIAL_METADATA = frozenset(
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
#: Default values of the metadata, which have no line.
_DEFAULTS: dict[str, Any] = {"mode": "api", "isSummary": False, "pinned": False, "archived": False}
_CAPSULE_FIELDS = frozenset(field_names(""))
_METADATA_FIELDS = frozenset(field_names("metadata"))
_MESSAGE_FIELDS = frozenset(field_names("history"))
#: The fields of a message that have a form of their own, or none. Every other one has a line.
_SPECIAL_MESSAGE_FIELDS = frozenset(
    {
        "role",
        "content",
        "timestamp",
        "id",
        "parent",
        "from",
        "replyTo",
        "editedAt",
        "model",
        "editedBy",
        "toolCalls",
        "toolCallId",
        "reasoning",
        "attachments",
    }
)
#: The fields of a message that are listed in brackets behind its sender, with their labels.
_BRACKETED_FIELDS = (
    ("replyTo", "reply to"),
    ("editedAt", "edited"),
    ("editedBy", "by"),
    ("toolCallId", "result of"),
)
_ORDINAL_ENDINGS = {"1": "st", "2": "nd", "3": "rd"}


def readable(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a capsule of any version that `validation.check` accepts, without line
    ends.

    Cost: a walk over the messages. The whole text is never in memory.
    """
    yield from _head(document)
    history = document.get("history") or []
    tree = Tree(history)
    if history:
        yield ""
    for position, entry in enumerate(history):
        yield from _message(entry, _branch(tree, history, position))


def as_text(data: bytes) -> Iterator[bytes]:
    """Yield the lines of a file, each with its line end. A file that is no valid conversation is
    yielded unchanged.
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
    """Yield the lines before the messages."""
    metadata = document.get("metadata") or {}
    yield f"conversation {_plain(document.get('id'))}"
    title = f"title: {_plain(document.get('title'))}"
    if metadata.get("titleSetBy"):
        title += f" (by {_plain(metadata['titleSetBy'])})"
    yield title
    yield from _metadata(document, metadata)
    for name, value in document.items():
        if name not in _CAPSULE_FIELDS and value is not None:
            yield f"{_field(name)}: {_plain(value)}"
    yield (
        f"created: {_time(document.get('createdAt'))}, version "
        f"{_plain(document.get('version', 'missing'))}"
    )
    context = document.get("context") or {}
    if context.get("fullContext") or (context.get("metadata") or {}).get("contextHash"):
        yield f"context: {_context(context)}"


def _metadata(document: Mapping[str, Any], metadata: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the metadata, without the fields that have their default."""
    if metadata.get("type"):
        yield f"type: {_plain(metadata['type'])}"
    if metadata.get("tags"):
        yield f"tags: {', '.join(map(_plain, metadata['tags']))}"
    for name, value in metadata.items():
        is_empty = value in (None, [], {})
        if name not in _SPECIAL_METADATA and not is_empty and not _is_default(name, value):
            yield f"{_field(name, _METADATA_FIELDS)}: {_plain(value)}"
    if metadata.get("currentNode"):
        yield f"active branch: {_leaf(document, metadata['currentNode'])}"
    for conflict in metadata.get("conflicts") or ():
        yield f"conflict: {_conflict(conflict)}"


def _is_default(name: str, value: Any) -> bool:
    default = _DEFAULTS.get(name)
    if isinstance(default, bool):
        return value is default  # 0 is another value than False.
    return bool(value == default)


def _context(context: Mapping[str, Any]) -> str:
    """Return a context in one line: its project, its size, and its hashes."""
    metadata = context.get("metadata") or {}
    text = context.get("fullContext") or ""
    facts = []
    if metadata.get("projectPath"):
        facts.append(_plain(metadata["projectPath"]))
    if metadata.get("filesIncluded"):
        facts.append(f"{_plain(metadata['filesIncluded'])} files")
    if metadata.get("estimatedTokens"):
        facts.append(f"{_plain(metadata['estimatedTokens'])} tokens")
    if metadata.get("contextHash"):
        facts.append(_plain(metadata["contextHash"]))
    # The context hash is the one that was written. This one also changes with an edit by hand.
    facts.append(f"{len(text)} characters ({crc32(text.encode()):08x})")
    return ", ".join(fact for fact in facts if fact)


def _leaf(document: Mapping[str, Any], id: str) -> str:
    """Return the phrase for the end of the active branch."""
    for entry in document.get("history") or ():
        if entry.get("id") == id:
            return f"of {_name(entry)}"
    return f"of a message that isn't here, {_plain(id)}"


def _conflict(conflict: Any) -> str:
    """Return a conflict of a merge in one line: the field, and the values of the sides."""
    if not isinstance(conflict, dict) or not isinstance(conflict.get("values"), list):
        return _plain(conflict)
    candidates = []
    for item in conflict["values"]:
        value = item.get("value") if isinstance(item, dict) else item
        candidates.append(_truncated(_json(value)))
    return f"{_plain(conflict.get('field'))}: {' or '.join(candidates)}"


def _branch(tree: Tree, history: list[Message], position: int) -> str:
    """Return the phrase for the parent of a message, and its number among the answers to it. It is
    empty for the first answer to the preceding message.

    The count of the answers is left out: it would change with each new one.
    """
    parent = tree.parents[position]
    number, _ = tree.forks.get(position, (1, 1))
    if parent == position - 1 and number == 1:
        return ""
    target = _name(history[parent]) if parent >= 0 else "nothing"
    return f"{_ordinal(number)} answer to {target}" if number > 1 else f"answers {target}"


def _ordinal(number: int) -> str:
    digits = str(number)
    if digits[-2:-1] == "1":  # 11th, 112th.
        return f"{digits}th"
    return digits + _ORDINAL_ENDINGS.get(digits[-1], "th")


def _name(entry: Message) -> str:
    """Return how other lines refer to a message: by fields that an edit does not change."""
    return f"{_plain(entry.get('role'))} {_time(entry.get('timestamp'))}"


def _message(entry: Message, branch: str) -> Iterator[str]:
    """Yield the lines of a message: its time and sender, its text, and its other fields."""
    first_line = f"{_time(entry.get('timestamp'))} {_sender(entry, branch)}:"
    text = entry.get("content") or ""
    if len(text) > _MAX_INLINE or "\n" in text:
        yield first_line
        yield from _indented(text)
    elif text:
        yield f"{first_line} {one_line(text)}"
    else:
        yield first_line
    if entry.get("reasoning"):
        yield "  reasoning:"
        yield from _indented(entry["reasoning"])
    for call in entry.get("toolCalls") or ():
        yield f"  calls {_call(call)}"
    for attachment in entry.get("attachments") or ():
        yield f"  attached {_plain(attachment)}"
    for name, value in entry.items():
        if name not in _SPECIAL_MESSAGE_FIELDS and value not in (None, {}):
            yield f"  {_field(name, _MESSAGE_FIELDS)}: {_plain(value)}"


def _sender(entry: Message, branch: str) -> str:
    """Return the role and the sender of a message, its model, and facts in brackets."""
    facts = [branch] if branch else []
    for name, label in _BRACKETED_FIELDS:
        value = entry.get(name)
        if value:
            facts.append(f"{label} {_time(value) if name == 'editedAt' else _plain(value)}")
    sender = _plain(entry.get("role"))
    if entry.get("from"):
        sender += f" {_plain(entry['from'])}"
    if entry.get("model"):
        sender += f" ({_plain(entry['model'])})"
    if facts:
        sender += f" [{', '.join(facts)}]"
    return sender


def _field(name: str, known_names: frozenset[str] = frozenset()) -> str:
    """Return a field's name. An unknown one is in quotes, because it may be any text."""
    return name if name in known_names else _plain(_json(name))


def _indented(text: str) -> Iterator[str]:
    """Yield a text line by line. An empty line gets no blanks, which git would mark as an error."""
    for line in escape_controls(text).split("\n"):
        yield f"    {line}" if line else ""


def _call(call: Mapping[str, Any]) -> str:
    """Return the name, the arguments and the id of a tool call in one line."""
    name, arguments = call_of(call)
    if not name:
        return _plain(call)
    words = [_plain(name)]
    if arguments is not None:
        words.append(_plain(arguments))
    if call.get("id"):
        words.append(f"({_plain(call['id'])})")
    return " ".join(words)


def _time(value: Any) -> str:
    """Return a time to the second. A time in another form than the store's is unchanged."""
    time = blank_if_unknown(value and str(value))
    if not time:
        return "no time"
    if len(time) == 24 and time[10] == "T":
        return one_line(f"{time[:10]} {time[11:19]}")
    return one_line(time)


def _plain(value: Any) -> str:
    """Return a value in one line, truncated."""
    return _truncated(value if isinstance(value, str) else _json(value))


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _truncated(text: str) -> str:
    """Return a text in one line, truncated. A truncated text gets its length and its hash, so that
    a change in the omitted part changes the line.
    """
    line = one_line(text)
    if len(line) <= _MAX_VALUE:
        return line
    return f"{line[:_MAX_VALUE]}... ({len(text)} characters, {crc32(text.encode()):08x})"
