"""The store's pages of messages, each cut to a budget of tokens.

What must stay true: a page is never empty while there are messages in its direction, so that
following the cursors comes to an end; and what doesn't fit is said.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput
from capsule.mcp_server.tools.answers.results import (
    MessageOutput,
    MessagePageOutput,
    chars_within,
    server_switches,
    token_cost,
)
from capsule.timestamps import blank_if_unknown
from capsule.untrusted_text import visible, word

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.pages import Page as Read
    from capsule.store.store import CoreStore

_OVERHEAD = 400  # The lines around the messages, the fence's note, the cursors.
_LABEL_COST = 10
_UTC = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9.]{2,}Z")
_OUTPUT_FIELDS = {"role", "content", "timestamp", "id", "parent", "from", "editedAt"}


def first_page_facts(store: CoreStore, head: Head) -> dict[str, Any]:
    """The facts of a whole conversation for the first page. Cost: of a summary, reading it and its
    source.
    """
    return {"mcp_servers": server_switches(head), "source": _source(store, head)}


def _source(store: CoreStore, head: Head) -> str | None:
    """What became of the source of a summary; None when it is none."""
    standing = store.summaries.standing(head.id) if head.is_summary else None
    of = f" of {word(head.source_conversation_id)}" if head.source_conversation_id else ""
    return f"a summary{of}; {standing}" if standing else None


def fit_page(
    read: Read,
    head: Head,
    max_tokens: int,
    forms: frozenset[str],
    offset: int = 0,
    facts: dict[str, Any] | None = None,
) -> MessagePageOutput:
    """As much of a page as fits, from the message on that was asked for.

    Args:
        max_tokens: The most the answer may cost.
        forms: In which forms it is sent; see `forms`.
        offset: Where to begin in the message, in characters.
        facts: The facts of the conversation, for the first page.
    """
    title = visible(head.title[:200])
    left = max_tokens - _OVERHEAD - len(forms) * token_cost(title)
    if facts and any(facts.values()):
        left -= _content_cost(facts, "", forms)
    chosen: dict[int, MessageOutput] = {}
    full: set[bool] = set()
    for index in sorted(
        range(len(read.entries)), key=lambda index: (abs(index - read.at), index < read.at)
    ):
        if (index < read.at) in full:
            continue
        place, entry = read.entries[index]
        message, text = _message_output(entry, place, offset)
        message.sibling = read.sibling(place)
        if not _fits(message, text, left, forms):
            if chosen:
                full.add(index < read.at)
                continue
            _cut(message, text, left, offset, forms)
        chosen[index] = message
        left -= _message_cost(message, forms)
    return MessagePageOutput(
        id=head.id,
        title=title,
        total=read.total,
        on_branch=read.on_branch if read.on_branch < read.total else None,
        inactive=not read.is_active,
        messages=[chosen[index] for index in sorted(chosen)],
        older=read.older(min(chosen, default=0)),
        newer=read.newer(max(chosen, default=-1) + 1),
        **(facts or {}),
    )


def _message_output(entry: dict[str, Any], at: int, offset: int) -> tuple[MessageOutput, str]:
    """A message yet without its text, and the text as it is stored, from `offset` on."""
    content = str(entry["content"])
    if offset >= max(len(content), 1):
        raise InvalidInput(f"offset: the message has {len(content)} characters")
    message = MessageOutput(
        id=visible(str(entry.get("id"))),
        at=at,
        role=visible(str(entry["role"])),
        text="",
        time=blank_if_unknown(entry.get("timestamp")) or None,
        sender=visible(entry["from"]) if entry.get("from") else None,
        edited="editedAt" in entry,
        also=[visible(name) for name in entry if name not in _OUTPUT_FIELDS and entry[name]][:10],
    )
    return message, content[offset:]


def _message_cost(message: MessageOutput, forms: frozenset[str]) -> int:
    data = message.model_dump(by_alias=True, exclude_defaults=True)
    return _LABEL_COST + _content_cost(data, message.text + message_label(message), forms)


def _content_cost(data: Any, text: str, forms: frozenset[str]) -> int:
    """What an answer of this costs in these forms; without a text, the data is said in words, at
    about its length.
    """
    costs = {"data": data, "text": text or data}
    return sum(token_cost(json.dumps(costs[form], ensure_ascii=False)) for form in forms)


def _fits(message: MessageOutput, text: str, budget: int, forms: frozenset[str]) -> bool:
    """Give a message its text; whether it then costs at most `budget`."""
    if len(text) > budget * 4:
        return False
    message.text = visible(text)
    return _message_cost(message, forms) <= budget


def _cut(
    message: MessageOutput, text: str, budget: int, offset: int, forms: frozenset[str]
) -> None:
    """Give a message that is too large for a page as much of its text as goes there."""
    end = _safe_cut(text, chars_within(text, budget // len(forms)))
    message.rest_from = offset + end
    while not _fits(message, text[:end], budget, forms) and end > 2:
        end = _safe_cut(text, end * 7 // 8)
        message.rest_from = offset + end


def _safe_cut(text: str, end: int) -> int:
    """Where to cut, near `end` and not inside a line break; 1 at least."""
    return max(end + (text[end - 1 : end + 1] == "\r\n"), 1)


def message_label(message: MessageOutput, before: str = "") -> str:
    """The words in the mark before a message; the day is said where it is not that of the time
    `before`.
    """
    said = [f"@{message.at}", word(message.role)]
    if message.sibling:
        said.append(message.sibling)
    if message.sender:
        said.append(f"from {word(message.sender)}")
    if message.time:
        said.append(_minute(message.time, before))
    if message.edited:
        said.append("edited")
    if message.also:
        said.append("has " + ", ".join(map(word, message.also)))
    if message.rest_from is not None:
        said.append(f"cut; for the rest: message: @{message.at}, offset: {message.rest_from}")
    return " ".join(said)


def _minute(time: str, before: str) -> str:
    """A time to the minute, in UTC."""
    if _UTC.fullmatch(time) is None:
        return word(time)
    day, minute = time[:10], time[11:16]
    return minute if before[:10] == day else f"{day} {minute}"
