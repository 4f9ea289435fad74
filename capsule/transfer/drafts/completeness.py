"""What a format found of the texts that its records have: a format claims content.

What must stay true: a sound message that has no text is no unread one. Capsules are not asked: they
may hold anything. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from capsule.transfer.drafts.digests import SOURCE
from capsule.transfer.interface import Draft, Fields
from capsule.transfer.records.coercion import object_of, objects_of
from capsule.transfer.records.round_trip import ABSENT

#: The roles of those who speak.
_SPEAKERS = ("user", "assistant")
#: What a message may say.
_SAID = ("content", "reasoning", "toolCalls", "attachments")
#: Two words, or two characters of a writing that has no spaces.
_WORDS = re.compile(r"[^\W\d_]{2,}[^\w\s]*\s+[^\w\s]*[^\W\d_]{2,}|[^\W\d_\x00-\u2fff]{2,}")
#: The fields of records that have the text of a message.
_TEXTS = frozenset({"content", "text", "value", "message", "parts"})
#: The fields of what is kept of a record that hold the parts of its content that were not read.
_PART_LISTS = ("content", "parts", "result", "$others")
#: The fields of a part that have its text.
_PART_TEXTS = ("text", "content")
#: The types of parts that hold a text.
_TEXT_TYPES = frozenset(
    {"text", "input_text", "output_text", "summary_text", "thinking", "think", "reasoning"}
)
#: In what is kept of a message, the records before it, which are no part of it.
_BEFORE = "before"


def is_understood(draft: Draft) -> bool:
    """Whether a format found the texts of a draft: not if most messages are empty, and their
    records have words.
    """
    if draft.is_own:
        return True
    history = objects_of(draft.history)
    if not history:
        return not _has_words(_kept(object_of(draft.head)))
    spoken = [entry for entry in history if entry.get("role") in _SPEAKERS]
    unread = [
        entry
        for entry in _empty_messages(draft)
        if _has_words(_kept(entry)) or _lacks_text(_kept(entry))
    ]
    return 2 * len(unread) <= len(spoken)


def unread_messages(draft: Draft) -> list[Fields]:
    """Return the empty messages whose records have no field for a text but an unknown one: its name
    is damaged.
    """
    return [entry for entry in _empty_messages(draft) if _lacks_text(_kept(entry))]


def messages_with_unread_parts(draft: Draft) -> list[Fields]:
    """Return the messages whose records have a part that was not read and holds a text: its type or
    a key of it is damaged, or new.
    """
    if draft.is_own:
        return []
    return [entry for entry in objects_of(draft.history) if _has_unread_part(entry)]


def _has_unread_part(entry: Fields) -> bool:
    source = _kept(entry)
    if (
        entry.get("role") == "tool"
        and not entry.get("content")
        and _has_words(source.get("result"))
    ):
        return True
    for name in _PART_LISTS:
        parts = source.get(name)
        if name == "$others" and isinstance(parts, dict):
            parts = list(parts.values())
        if any(map(_is_unread_text, objects_of(parts))):
            return True
    return False


def _is_unread_text(part: Fields) -> bool:
    """Return whether a part holds a text that no format reads.

    A part of a known type is read if it has the field for its text. A part of an unknown type may
    hold anything, so it counts only if it has such a field.
    """
    kind = part.get("type")
    texts = [part[name] for name in _PART_TEXTS if name in part]
    if kind is not None and kind not in _TEXT_TYPES:
        return any(map(_has_words, texts))
    if kind is not None and any(isinstance(text, str) for text in texts):
        return False
    return any(isinstance(value, str) and _WORDS.search(value) for value in part.values())


def _empty_messages(draft: Draft) -> list[Fields]:
    """The messages of people and models, seen by people, that say nothing."""
    if draft.is_own:
        return []
    return [
        entry
        for entry in objects_of(draft.history)
        if entry.get("role") in _SPEAKERS
        and object_of(entry.get("metadata")).get("hidden") is not True
        and not any(entry.get(name) for name in _SAID)
    ]


def _kept(entry: Fields) -> Fields:
    """What is kept of the record of a message, or of a head."""
    source = object_of(object_of(entry.get("metadata")).get(SOURCE))
    return {name: value for name, value in source.items() if name != _BEFORE}


def _has_words(source: Any) -> bool:
    return any(isinstance(value, str) and _WORDS.search(value) for value in _values(source))


def _lacks_text(source: Fields) -> bool:
    for value in _values(source):
        if (
            isinstance(value, dict)
            and isinstance(absent := value.get(ABSENT), list)
            and not _TEXTS.isdisjoint(absent)
        ):
            others = {name: other for name, other in value.items() if name != ABSENT}
            if any(isinstance(other, str) and other for other in _values(others)):
                return True
    return False


def _values(value: Any) -> Iterator[Any]:
    """A value and all values in it."""
    stack = [value]
    while stack:
        inner = stack.pop()
        yield inner
        if isinstance(inner, dict):
            stack += inner.values()
        elif isinstance(inner, list):
            stack += inner
