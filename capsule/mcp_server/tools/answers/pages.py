"""Cut pages of messages to a budget of tokens, and write the line above each message.

A page is filled from the message that was asked for, in both directions. A message that does not
fit ends its direction. If the first message does not fit alone, its text is cut.

What must stay true: a page is never empty while there are messages in its direction, so that a
reader who follows the cursors reaches the end. The output says what was cut.
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

#: The cost of the lines around the messages, the note of the fence and the cursors, in tokens.
_OVERHEAD = 400
#: The cost of the marks around one message, in tokens.
_LABEL_COST = 10
_UTC = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9.]{2,}Z")
#: The fields of a message that the output has. Other fields are only named.
_OUTPUT_FIELDS = {"role", "content", "timestamp", "id", "parent", "from", "editedAt"}


def first_page_facts(store: CoreStore, head: Head) -> dict[str, Any]:
    """Return the facts of a conversation for its first page. Cost: for a summary, reading it and
    its source.
    """
    return {"mcp_servers": server_switches(head), "source": _source(store, head)}


def _source(store: CoreStore, head: Head) -> str | None:
    """Return the state of the source of a summary, in words. None: the conversation is no summary."""
    standing = store.summaries.standing(head.id) if head.is_summary else None
    if not standing:
        return None
    if head.source_conversation_id:
        return f"a summary of {word(head.source_conversation_id)}; {standing}"
    return f"a summary; {standing}"


def fit_page(
    page: Read,
    head: Head,
    max_tokens: int,
    forms: frozenset[str],
    offset: int = 0,
    facts: dict[str, Any] | None = None,
) -> MessagePageOutput:
    """Return as much of a page as fits into a budget, from the message that was asked for.

    Args:
        page: The page of the store.
        head: The head of the conversation.
        max_tokens: The most that the output may cost.
        forms: The forms in which it is sent, see `output_forms`.
        offset: The character of the message to begin with.
        facts: The facts of the conversation, for the first page.
    """
    title = visible(head.title[:200])
    remaining = max_tokens - _OVERHEAD - len(forms) * token_cost(title)
    if facts and any(facts.values()):
        remaining -= _content_cost(facts, "", forms)
    chosen: dict[int, MessageOutput] = {}
    full_directions: set[bool] = set()
    # The nearest messages first. Of two at the same distance, the newer one.
    order = sorted(
        range(len(page.entries)), key=lambda index: (abs(index - page.at), index < page.at)
    )
    for index in order:
        is_older = index < page.at
        if is_older in full_directions:
            continue
        position, entry = page.entries[index]
        message, text = _message_output(entry, position, offset)
        message.sibling = page.sibling(position)
        if not _fits(message, text, remaining, forms):
            if chosen:
                full_directions.add(is_older)
                continue
            _cut(message, text, remaining, offset, forms)
        chosen[index] = message
        remaining -= _message_cost(message, forms)
    return MessagePageOutput(
        id=head.id,
        title=title,
        total=page.total,
        on_branch=page.on_branch if page.on_branch < page.total else None,
        inactive=not page.is_active,
        messages=[chosen[index] for index in sorted(chosen)],
        older=page.older(min(chosen, default=0)),
        newer=page.newer(max(chosen, default=-1) + 1),
        **(facts or {}),
    )


def _message_output(entry: dict[str, Any], position: int, offset: int) -> tuple[MessageOutput, str]:
    """Return the output of a message without its text, and the text from `offset` on.

    Raises InvalidInput: the text has no such offset.
    """
    content = str(entry["content"])
    if offset >= max(len(content), 1):
        raise InvalidInput(f"offset: the message has {len(content)} characters")
    message = MessageOutput(
        id=visible(str(entry.get("id"))),
        at=position,
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
    """Return the cost of an output in these forms. Without a text, the data is written in words, at
    about its own length.
    """
    costs = {"data": data, "text": text or data}
    return sum(token_cost(json.dumps(costs[form], ensure_ascii=False)) for form in forms)


def _fits(message: MessageOutput, text: str, budget: int, forms: frozenset[str]) -> bool:
    """Set the text of a message. Return whether the message then costs at most `budget`."""
    if len(text) > budget * 4:
        return False
    message.text = visible(text)
    return _message_cost(message, forms) <= budget


def _cut(
    message: MessageOutput, text: str, budget: int, offset: int, forms: frozenset[str]
) -> None:
    """Set as much of the text of a message as fits into a page."""
    end = _safe_cut(text, chars_within(text, budget // len(forms)))
    message.rest_from = offset + end
    while not _fits(message, text[:end], budget, forms) and end > 2:
        end = _safe_cut(text, end * 7 // 8)
        message.rest_from = offset + end


def _safe_cut(text: str, end: int) -> int:
    """Return where to cut near `end`: not inside a line break, and at least 1."""
    return max(end + (text[end - 1 : end + 1] == "\r\n"), 1)


def message_label(message: MessageOutput, previous_time: str = "") -> str:
    """Return the words in the line above a message. The day is left out if it is the day of
    `previous_time`.
    """
    parts = [f"@{message.at}", word(message.role)]
    if message.sibling:
        parts.append(message.sibling)
    if message.sender:
        parts.append(f"from {word(message.sender)}")
    if message.time:
        parts.append(_short_time(message.time, previous_time))
    if message.edited:
        parts.append("edited")
    if message.also:
        parts.append("has " + ", ".join(map(word, message.also)))
    if message.rest_from is not None:
        parts.append(f"cut; for the rest: message: @{message.at}, offset: {message.rest_from}")
    return " ".join(parts)


def _short_time(time: str, previous_time: str) -> str:
    """Return a time to the minute, in UTC, without the day of `previous_time`."""
    if _UTC.fullmatch(time) is None:
        return word(time)
    day, minute = time[:10], time[11:16]
    return minute if previous_time[:10] == day else f"{day} {minute}"
