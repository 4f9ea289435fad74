"""Write a conversation as plain text for a model: its active branch, within a budget of tokens.

The newest messages are taken first, until the budget is used up. Each message is a heading and its
text, then a heading for each tool that it calls and each attachment.

What must stay true: a line that begins with `===` is a heading made here. No text of a message, a
context or a name can contain one: such a line of theirs gets a `>` in front, and one that has it
already gets another, so the texts can be recovered exactly. Messages are left out as a whole, the
oldest first, and a heading tells how many. Only the result of a tool is cut, if it takes more than
its share of the budget. Pure.
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

#: Everything that some reader takes for the end of a line, and what can be unseen before a heading.
_BREAK = "[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]"
_UNSEEN = "[ \t\u00a0\u00ad\u1680\u180e\u2000-\u200f\u202a-\u202f\u205f-\u2064\u3000\ufeff]*"
_HEADING = re.compile(f"(\\A|{_BREAK})(>*{_UNSEEN}===)")
_NO_NAME = re.compile(r"[^\w.@:/ -]+")
_NO_LINE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")

#: The context takes at most this part of the budget, and so does each result of a tool: the
#: messages of people and models are more important.
_SHARE = 4
#: No token has more characters, except in a run of one character. So no more of a text is looked at.
_CHARACTERS_PER_TOKEN = 12
#: Tokens for a heading about what is left out.
_LEFT_OUT_ROOM = 16
_MAX_NAME, _MAX_LINE = 200, 500

#: Returns the number of tokens in a text of UTF-8 bytes.
Estimate = Callable[[bytes], int]
Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Transcript:
    """A conversation as text.

    Attributes:
        text: The text.
        tokens: Its tokens, estimated piece by piece.
        messages: The number of messages in it.
        left_out: The number of older messages of the active branch that are not.
    """

    text: str
    tokens: int
    messages: int
    left_out: int


def quoted(text: str) -> str:
    """Return a text with a `>` before every line that would read as a heading."""
    return _HEADING.sub(r"\1>\2", text)


def transcript(
    document: Mapping[str, Any],
    estimate: Estimate,
    *,
    budget: int | None = None,
    context: bool = False,
    rest: str = "all of it is in message {}",
) -> Transcript:
    """Return a conversation as text.

    Args:
        document: The conversation, as `Store.document` returns it.
        estimate: Returns the number of tokens in a text.
        budget: The most tokens; None: everything. The result of a tool that takes more than a
            quarter is cut, and tells how to read the rest.
        context: Whether the beginning of the project context comes first, in a quarter of the
            budget.
        rest: How to read a message whole. `{}` is replaced by its id.

    Raises:
        InvalidInput: The budget is too small for the newest message.
    """
    path = active_path(document)
    parts = [f"=== conversation {document['id']}: {_clean_line(document['title'])} ===\n"]
    share = None if budget is None else budget // _SHARE
    if context and document["context"].get("fullContext"):
        parts += _context(document["context"], estimate, share)
    tokens = sum(_cost(part, estimate) for part in parts)
    blocks: list[str] = []
    remaining = None if budget is None else budget - tokens - _LEFT_OUT_ROOM
    for entry in reversed(path):
        block, cost = _block_within(entry, rest, estimate, share)
        if remaining is not None:
            if cost > remaining:
                break
            remaining -= cost
        blocks.append(block)
        tokens += cost
    left_out = len(path) - len(blocks)
    if left_out and not blocks:
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
    blocks.reverse()
    return Transcript(
        text="\n".join([*parts, *blocks]),
        tokens=tokens,
        messages=len(blocks),
        left_out=left_out,
    )


def _cost(text: str, estimate: Estimate) -> int:
    return max(1, estimate(text.encode()))


def _block_within(
    entry: Message, rest: str, estimate: Estimate, share: int | None
) -> tuple[str, int]:
    """Return a message as text, and its tokens. The result of a tool is cut to `share` tokens."""
    block = "\n".join(_blocks(entry))
    cost = _cost(block, estimate)
    if share is None or cost <= share or entry.get("role") != "tool":
        return block, cost
    shorter = min(block, _cut_result(entry, rest, estimate, share), key=len)
    return shorter, _cost(shorter, estimate)


def _context(context: Mapping[str, Any], estimate: Estimate, budget: int | None) -> Iterator[str]:
    """Yield the beginning of the context that fits into `budget`, cut at the end of a line."""
    text = context["fullContext"]
    project_path = context.get("metadata", {}).get("projectPath")
    origin = f" of {_clean_line(project_path)}" if project_path else ""
    top = f"=== project context{origin} ===\n"
    if budget is None:
        yield f"{top}{quoted(text)}\n"
        return
    max_length = budget * _CHARACTERS_PER_TOKEN
    if len(text) <= max_length and _cost(top + quoted(text), estimate) <= budget:
        yield f"{top}{quoted(text)}\n"
        return

    def cost_up_to(end: int) -> int:
        return _cost(top + quoted(text[:end]), estimate)

    line_ends = [match.end() for match in re.finditer("\n", text[:max_length])]
    count = bisect_right(line_ends, budget - _LEFT_OUT_ROOM, key=cost_up_to)
    if count:
        yield top + quoted(text[: line_ends[count - 1]])
    left_out = text.count("\n") + (not text.endswith("\n")) - count
    noun = "more lines" if count else "lines"
    yield f"=== {left_out} {noun} of the project context are left out ===\n"


def _blocks(entry: Message) -> Iterator[str]:
    """Yield a message: heading and text, then the tools that it calls and its attachments."""
    writer = str(entry.get("role"))
    if entry.get("from"):
        writer += f" ({_clean_name(entry['from'])})"
    time = _clean_line(blank_if_unknown(entry.get("timestamp")) or "no time")
    if entry.get("editedAt"):
        time += ", edited"
    yield _block(f"{writer}, {time}", str(entry.get("content") or ""))
    for call in entry.get("toolCalls") or ():
        name, arguments = call_of(call)
        arguments_text = arguments
        if not isinstance(arguments, str):
            arguments_text = orjson.dumps(arguments).decode() if arguments else ""
        yield _block(f"{writer} calls {_clean_name(name or 'a tool')}", arguments_text)
    for attachment in entry.get("attachments") or ():
        names = [attachment.get(key) for key in ("name", "path", "filename", "id")]
        file_name = next((name for name in names if name), "a file")
        yield _block(f"{writer} attached {_clean_name(file_name)}", "")


def _cut_result(entry: Message, rest: str, estimate: Estimate, budget: int) -> str:
    """Return the result of a tool with as much of its text as fits into `budget`, perhaps none."""
    text = str(entry.get("content") or "")
    advice = rest.replace("{}", _clean_name(entry.get("id")))

    def cut_to(length: int) -> str:
        left_out = (
            f"=== {len(text) - length} more characters of this result are left out; {advice} ===\n"
        )
        first, *other_blocks = _blocks({**entry, "content": text[:length]})
        return "\n".join([first, left_out, *other_blocks])

    low = 0
    high = min(len(text), budget * _CHARACTERS_PER_TOKEN)
    while low < high:
        middle = (low + high + 1) // 2
        if _cost(cut_to(middle), estimate) <= budget:
            low = middle
        else:
            high = middle - 1
    return cut_to(low)


def _block(heading: str, text: str) -> str:
    block = f"=== {heading} ===\n"
    return f"{block}{quoted(text)}\n" if text else block


def _clean_name(name: Any) -> str:
    """Return a name that can neither end its heading nor imitate another name."""
    return _NO_NAME.sub("_", str(name)[:_MAX_NAME])


def _clean_line(text: str) -> str:
    """Return a text as one line of a heading."""
    return _NO_LINE.sub(" ", text[:_MAX_LINE])
