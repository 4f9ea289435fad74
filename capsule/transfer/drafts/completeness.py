"""Check whether a format found the texts that its records have.

A format keeps the fields of a record that it does not read, in `metadata.source`. If a message is
empty and these fields have words, the format probably did not understand the record.

Invariant: a sound message without a text does not count as unread. Capsules are not checked, since
they may have any fields. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from capsule.transfer.drafts.digests import SOURCE
from capsule.transfer.interface import Draft, Fields
from capsule.transfer.records.coercion import object_of, objects_of
from capsule.transfer.records.round_trip import ABSENT

#: The roles of messages of people and models.
_SPEAKERS = ("user", "assistant")
#: The fields of a message with content.
_CONTENT_FIELDS = ("content", "reasoning", "toolCalls", "attachments")
#: Two words, or two characters of a script without spaces.
_WORDS = re.compile(r"[^\W\d_]{2,}[^\w\s]*\s+[^\w\s]*[^\W\d_]{2,}|[^\W\d_\x00-\u2fff]{2,}")
#: The fields of records that have the text of a message.
_TEXT_FIELDS = frozenset({"content", "text", "value", "message", "parts"})
#: The unread fields of a record that have parts of its content.
_PART_LISTS = ("content", "parts", "result", "$others")
#: The fields of a part that have its text.
_PART_TEXTS = ("text", "content")
#: The types of parts that hold a text.
_TEXT_TYPES = frozenset(
    {"text", "input_text", "output_text", "summary_text", "thinking", "think", "reasoning"}
)
#: The unread field with the records before a message, which are no part of it.
_PRECEDING_RECORDS = "before"


def is_understood(draft: Draft) -> bool:
    """Return whether a format found the texts of a draft.

    It did not, if more than half of the messages are empty, and their records have words.
    """
    if draft.is_own:
        return True
    history = objects_of(draft.history)
    if not history:
        return not _has_words(_unread_fields(object_of(draft.head)))
    spoken_count = sum(entry.get("role") in _SPEAKERS for entry in history)
    unread_count = 0
    for entry in _empty_messages(draft):
        fields = _unread_fields(entry)
        unread_count += _has_words(fields) or _lacks_text(fields)
    return 2 * unread_count <= spoken_count


def unread_messages(draft: Draft) -> list[Fields]:
    """Return the empty messages whose records have their text in an unknown field.

    Then the name of the field is damaged.
    """
    return [entry for entry in _empty_messages(draft) if _lacks_text(_unread_fields(entry))]


def messages_with_unread_parts(draft: Draft) -> list[Fields]:
    """Return the messages whose records have an unread part with a text.

    Then its type or one of its keys is damaged, or new.
    """
    if draft.is_own:
        return []
    return [entry for entry in objects_of(draft.history) if _has_unread_part(entry)]


def _has_unread_part(entry: Fields) -> bool:
    fields = _unread_fields(entry)
    is_empty_result = entry.get("role") == "tool" and not entry.get("content")
    if is_empty_result and _has_words(fields.get("result")):
        return True
    for name in _PART_LISTS:
        parts = fields.get(name)
        if name == "$others" and isinstance(parts, dict):
            parts = list(parts.values())
        if any(map(_is_unread_text, objects_of(parts))):
            return True
    return False


def _is_unread_text(part: Fields) -> bool:
    """Return whether a part has a text that no format reads.

    A part of a known type is read if it has the field for its text. A part of an unknown type may
    have any content, so it counts only if it has such a field.
    """
    kind = part.get("type")
    texts = [part[name] for name in _PART_TEXTS if name in part]
    if kind is not None and kind not in _TEXT_TYPES:
        return any(map(_has_words, texts))
    if kind is not None and any(isinstance(text, str) for text in texts):
        return False
    return any(isinstance(value, str) and _WORDS.search(value) for value in part.values())


def _empty_messages(draft: Draft) -> list[Fields]:
    """Return the visible messages of people and models without any content."""
    if draft.is_own:
        return []
    return [entry for entry in objects_of(draft.history) if _is_empty(entry)]


def _is_empty(entry: Fields) -> bool:
    if entry.get("role") not in _SPEAKERS:
        return False
    is_hidden = object_of(entry.get("metadata")).get("hidden") is True
    return not is_hidden and not any(entry.get(name) for name in _CONTENT_FIELDS)


def _unread_fields(entry: Fields) -> Fields:
    """Return the fields of the record of a message, or of a head, that the format did not read."""
    source = object_of(object_of(entry.get("metadata")).get(SOURCE))
    return {name: value for name, value in source.items() if name != _PRECEDING_RECORDS}


def _has_words(fields: Any) -> bool:
    return any(isinstance(value, str) and _WORDS.search(value) for value in _values(fields))


def _lacks_text(fields: Fields) -> bool:
    """Return whether a record lacks the field for its text and has a text in an unread field."""
    for value in _values(fields):
        absent = value.get(ABSENT) if isinstance(value, dict) else None
        if not isinstance(absent, list) or _TEXT_FIELDS.isdisjoint(absent):
            continue
        others = {name: other for name, other in value.items() if name != ABSENT}
        if any(isinstance(other, str) and other for other in _values(others)):
            return True
    return False


def _values(value: Any) -> Iterator[Any]:
    """Return a value and all values in it."""
    stack = [value]
    while stack:
        inner = stack.pop()
        yield inner
        if isinstance(inner, dict):
            stack += inner.values()
        elif isinstance(inner, list):
            stack += inner
