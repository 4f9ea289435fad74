"""A conversation as plain text for a model: the active branch, newest messages kept within a budget
of tokens.

What must stay true: a line that begins with `===` is a heading made here, and no text of a message,
a context or a name can hold one: such a line of theirs gets a `>` in front, and one that has it
already gets another, so that the texts can be had back exactly. Messages are left out whole, the
oldest first, and what is left out is said. Only the result of a tool is cut, where it takes more
than its part of the budget. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from capsule.errors import InvalidInput
from capsule.format.text.escaping import call_of
from capsule.format.tree.tree import active_path
from capsule.timestamps import blank_if_unknown

#: Whatever some reader takes for the end of a line, and what can stand unseen before a heading.
_BREAK = "[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
_UNSEEN = "[ \t\u00a0\u00ad\u1680\u180e\u2000-\u200f\u202a-\u202f\u205f-\u2064\u3000\ufeff]*"
_HEADING = re.compile(f"(\\A|{_BREAK})(>*{_UNSEEN}===)")
_NO_NAME = re.compile(r"[^\w.@:/ -]+")
_NO_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")

#: The context has this part of the budget at most, and so has each result of a tool: what was said
#: is what was asked for.
_SHARE = 4
#: Characters of a text that are looked at for a token: a token has fewer in any text but a run of
#: one character.
_CHARACTERS = 12
_LEFT_OUT_ROOM = 16

Estimate = Callable[[bytes], int]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation as text.

    Attributes:
        text: The text.
        tokens: What it takes, estimated piece by piece.
        messages: How many messages are in it.
        left_out: How many older ones of the active branch are not.
    """

    text: str
    tokens: int
    messages: int
    left_out: int


def quoted(text: str) -> str:
    """`text` with a `>` before every line that would read as a heading."""
    return _HEADING.sub(r"\1>\2", text)


def transcript(
    document: Mapping[str, Any],
    estimate: Estimate,
    *,
    budget: int | None = None,
    context: bool = False,
    rest: str = "all of it is in message {}",
) -> Transcript:
    """A conversation, as `Store.document` gives it, as text.

    Args:
        document: The conversation.
        estimate: How many tokens a text of UTF-8 bytes takes.
        budget: So many tokens at most; None: everything. The result of a tool that takes more than
            a quarter is cut, and says how to read the rest.
        context: Whether the project context comes first: its beginning, in a quarter of the budget.
        rest: How to read a message whole; `{}` is its id.

    Raises:
        InvalidInput: The budget is too small for the newest message.
    """
    path = active_path(document)
    top = f"=== conversation {document['id']}: {_line(document['title'])} ===\n"
    tokens = _cost(top, estimate)
    parts = [top]
    if context and document["context"].get("fullContext"):
        parts += _context(
            document["context"], estimate, None if budget is None else budget // _SHARE
        )
        tokens += sum(_cost(part, estimate) for part in parts[1:])
    room = None if budget is None else budget - tokens - _LEFT_OUT_ROOM
    kept: list[str] = []
    for entry in reversed(path):
        block = "\n".join(_blocks(entry))
        cost = _cost(block, estimate)
        if budget is not None and cost > budget // _SHARE and entry.get("role") == "tool":
            block = min(block, _cut_result(entry, rest, estimate, budget // _SHARE), key=len)
            cost = _cost(block, estimate)
        if room is not None and cost > room:
            break
        kept.append(block)
        tokens += cost
        room = None if room is None else room - cost
    left_out = len(path) - len(kept)
    if left_out and not kept:
        least = _cost("\n".join(_blocks(path[-1])), estimate) + tokens + _LEFT_OUT_ROOM
        newest = (
            f"the newest message of conversation {document['id']}, and only results of tools "
            "are cut"
        )
        raise InvalidInput(
            f"a budget of {budget} tokens is too small for {newest}; it needs about {least}"
        )
    if left_out:
        older = "1 older message is" if left_out == 1 else f"{left_out} older messages are"
        parts.append(f"=== {older} left out ===\n")
        tokens += _cost(parts[-1], estimate)
    return Transcript("\n".join([*parts, *reversed(kept)]), tokens, len(kept), left_out)


def _cost(text: str, estimate: Estimate) -> int:
    return max(1, estimate(text.encode()))


def _context(context: Mapping[str, Any], estimate: Estimate, budget: int | None) -> Iterator[str]:
    """The beginning of the context that takes no more than `budget`, cut at the end of a line."""
    text = context["fullContext"]
    about = context.get("metadata", {}).get("projectPath")
    top = f"=== project context{f' of {_line(about)}' if about else ''} ===\n"
    if budget is None or (
        len(text) <= budget * _CHARACTERS and _cost(top + quoted(text), estimate) <= budget
    ):
        yield f"{top}{quoted(text)}\n"
        return
    ends = [match.end() for match in re.finditer("\n", text[: budget * _CHARACTERS])]
    room = budget - _LEFT_OUT_ROOM  # For the most lines that fit.
    low = bisect_right(ends, room, key=lambda end: _cost(top + quoted(text[:end]), estimate))
    if low:
        yield top + quoted(text[: ends[low - 1]])
    lines = text.count("\n") + (not text.endswith("\n")) - low
    yield (
        f"=== {lines} {'more lines' if low else 'lines'} of the project context are left out ===\n"
    )


def _blocks(entry: Message) -> Iterator[str]:
    """A message: its heading and its text, then the tools it calls and what is attached to it."""
    role, sender = str(entry.get("role")), entry.get("from")
    who = f"{role} ({_name(sender)})" if sender else role
    when = _line(blank_if_unknown(entry.get("timestamp")) or "no time") + (
        ", edited" if entry.get("editedAt") else ""
    )
    yield _block(f"{who}, {when}", str(entry.get("content") or ""))
    for call in entry.get("toolCalls") or ():
        name, arguments = call_of(call)
        said = (
            arguments
            if isinstance(arguments, str)
            else orjson.dumps(arguments).decode()
            if arguments
            else ""
        )
        yield _block(f"{who} calls {_name(name or 'a tool')}", said)
    for attached in entry.get("attachments") or ():
        name = next(
            (attached[key] for key in ("name", "path", "filename", "id") if attached.get(key)),
            "a file",
        )
        yield _block(f"{who} attached {_name(name)}", "")


def _cut_result(entry: Message, rest: str, estimate: Estimate, budget: int) -> str:
    """Return the result of a tool with as much of its text as takes no more than `budget`, or with
    none of it.
    """
    text = str(entry.get("content") or "")

    def made(length: int) -> str:
        how = rest.replace("{}", _name(entry.get("id")))
        left_out = (
            f"=== {len(text) - length} more characters of this result are left out; {how} ===\n"
        )
        first, *others = _blocks({**entry, "content": text[:length]})
        return "\n".join([first, left_out, *others])

    low, high = 0, min(len(text), budget * _CHARACTERS)
    while low < high:
        middle = (low + high + 1) // 2
        if _cost(made(middle), estimate) <= budget:
            low = middle
        else:
            high = middle - 1
    return made(low)


def _block(heading: str, text: str) -> str:
    return f"=== {heading} ===\n" + (f"{quoted(text)}\n" if text else "")


def _name(name: Any) -> str:
    """A name that can't end its heading, or say that it is another's."""
    return _NO_NAME.sub("_", str(name)[:200])


def _line(text: str) -> str:
    return _NO_LINE.sub(" ", text[:500])
