"""List the formats, find the format of a file, and read the drafts of a file in its format.

A format is a `Format` in a module of this package, or in another package that has an entry point of
the group `capsule.formats`, whose value is a `Format` or a list of them. A file is offered to the
formats of other packages first, and last to those that accept nearly everything. So another package
can replace a format of this one by its name. A package that can't be imported ends every import.

A format keeps the fields of a record that it does not read, in `metadata.source`. If a message is
empty and these fields have words, the format probably did not understand the record, and the drafts
are reported (`is_understood`). Of a file that no format takes, the program that it may come from is
guessed by its path and its beginning, only to name the file in the report.

What must stay true: the content decides the format, unless the caller names one. (The name of a
file may tell that it is a part of another one.) An error in a file's content (`_FAILURES`,
CapsuleError) ends that file only. A sound message without a text does not count as unread. Capsules
are not checked for unread texts, since they may have any fields.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module, metadata
from typing import Any

from capsule.errors import CapsuleError, InvalidInput
from capsule.transfer.drafts.digests import SOURCE
from capsule.transfer.drafts.reimport import recall
from capsule.transfer.interface import (
    FORMAT_ERRORS,
    Draft,
    Fields,
    Format,
    Source,
    first_records,
    json_shape,
)
from capsule.transfer.reading.json_stream import json_records
from capsule.transfer.records.mapping import ABSENT, object_of, objects_of

# -- Whether a format found all texts --------------------------------------------------------------

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


# -- The formats -----------------------------------------------------------------------------------

#: Programs, each with a pattern for the path of its files, and one for their beginning.
_PROGRAMS: tuple[tuple[str, str, bytes], ...] = (
    (
        "VS Code Copilot",
        r"/chatSessions/[^/]+\.jsonl?$",
        rb'"responderUsername"\s*:\s*"GitHub Copilot',
    ),
    ("Copilot CLI", r"\.copilot/(?:history-)?session-state/", b""),
    ("aider", r"\.aider\.chat\.history\.md$", rb"\A\s*# aider chat started at "),
    ("Cline or Roo Code", r"/(?:api_conversation_history|ui_messages)\.json$", b""),
    ("Continue", r"\.continue/sessions/[^/]+\.json$", b""),
    ("Qwen Code", r"\.qwen/.*\.jsonl?$", b""),
    ("Goose", r"/goose/sessions/", b""),
    ("Zed", r"/zed/threads/", b""),
    ("Windsurf", r"\.codeium/windsurf/", b""),
    ("Amp", r"/amp/threads/[^/]+\.json$", b""),
    ("LM Studio", r"\.conversation\.json$", b""),
    ("SillyTavern", "", rb'\A\s*\{[^\n]*"chat_metadata"\s*:'),
)


def program_of(name: str, head: bytes) -> str:
    """Return the program that a file may come from. Empty: there is no guess.

    Args:
        name: The path of the file.
        head: The beginning of its content.
    """
    path = "/" + name.replace("\\", "/")
    for program, path_pattern, head_pattern in _PROGRAMS:
        if path_pattern and re.search(path_pattern, path):
            return program
        if head_pattern and re.search(head_pattern, head):
            return program
    return ""


#: The entry points with the formats of other packages.
GROUP = "capsule.formats"
#: The modules of this package, in the order in which a file is offered. Each has a list FORMATS.
_MODULES = (
    "plain.capsules web.chatgpt web.claude_ai agents.claude_code agents.codex agents.gemini "
    "agents.opencode "
    "agents.cursor web.llama_webui web.open_webui web.librechat web.grok web.ai_studio "
    "agents.llm_logs "
    "agents.specstory agents.atif plain.jsonl plain.markdown plain.html"
)
#: The errors that a format raises for a file that it can't read.
_FAILURES = (*FORMAT_ERRORS, sqlite3.Error, OSError)
#: Keys in the JSON of conversations, which other JSON of a project rarely has.
_CONVERSATION_KEYS = rb'"(?:\w*[mM]essages\w*|history|mapping|conversations?(?:Id)?|exchanges|role|session_?[iI]d)"\s*:'


@cache
def formats() -> dict[str, Format]:
    """Return all formats, by name. Cost: importing their modules at the first call."""
    all_formats: dict[str, Format] = {}
    for entry_point in metadata.entry_points(group=GROUP):
        _add(all_formats, entry_point.load())
    for name in _MODULES.split():
        _add(all_formats, import_module(f"capsule.transfer.formats.{name}").FORMATS)
    return all_formats


def _add(all_formats: dict[str, Format], added: Format | Iterable[Format]) -> None:
    """Add one or several formats. Of two with one name the first counts."""
    for format in added if isinstance(added, Iterable) else (added,):
        all_formats.setdefault(format.name, format)


def format_named(name: str) -> Format:
    """Return the format with a name. Raises InvalidInput."""
    format = formats().get(name)
    if format is None:
        raise InvalidInput(f"{name[:60]!r} is not a format; the formats are {', '.join(formats())}")
    return format


def format_of(source: Source, only: Format | None = None) -> Format | None:
    """Return the format of a file. None: no format reads it, or it is a part of another file.

    Ask `is_part` which of both it is.

    Args:
        source: The file.
        only: The one format that may be returned, whatever the content of the file.
    """
    # An earlier format that recognizes a file has precedence over a later one whose part it is.
    for format in formats().values() if only is None else (only,):
        if format.read is None:  # It is only written.
            continue
        if _format_says(format.is_part, source):
            return None
        if only is not None or _format_says(format.recognizes, source):
            return format
    return None


def has_value(source: Source) -> bool:
    """Return whether a file may have conversations.

    It does if it is an archive, begins with an object of JSON, or is in a known format.
    """
    return source.is_packed or any(first_records(source)) or format_of(source, None) is not None


def is_part(source: Source) -> bool:
    """Return whether a file belongs to another one, which reads it."""
    return any(_format_says(format.is_part, source) for format in formats().values())


def guess_of(source: Source) -> str:
    """Return the program that an unknown file may come from. Empty: it looks like no conversation."""
    program = program_of(source.name, source.head)
    if not program and json_shape(source) and re.search(_CONVERSATION_KEYS, source.head):
        return "an unknown program"
    return program


def report_unknown(
    source: Source, report_note: Callable[[str, str, int | None], object] | None
) -> None:
    """Report a file that no format takes, and that is no part of another one.

    A file that looks like conversations and has invalid JSON counts as damaged: `source` reports
    it. For any other file there is only a note.

    Args:
        source: The file.
        report_note: Gets the path, the reason and the line of a note. None: there are no notes.
    """
    looks_like_conversations = re.search(_CONVERSATION_KEYS, source.head) is not None
    fault = ""
    line = None
    if json_shape(source) and (looks_like_conversations or report_note is not None):
        fault, line = _first_fault(source)
    reason = f"in no known format: {fault}" if fault else "in no known format"
    if fault and looks_like_conversations:
        source.tell(reason, line)
    elif report_note is not None:
        report_note(source.name, reason, line)


def _first_fault(source: Source) -> tuple[str, int | None]:
    """Return the first fault in the JSON of a file, and its line. Empty: it has none."""
    faults: list[tuple[str, int | None]] = []
    records = json_records(
        source.chunks(), source.head, lambda fault, line: faults.append((fault, line))
    )
    for _ in records:
        if faults:
            break
    return faults[0] if faults else ("", None)


def _format_says(question: Callable[[Source], bool], source: Source) -> bool:
    """Return the answer of a format about a file. A format that fails answers no."""
    try:
        return question(source)
    except (*_FAILURES, CapsuleError):  # Damage of the head is reported when it is read.
        return False


def drafts_of(source: Source, format: Format) -> Iterator[Draft]:
    """Return the conversations of a file in a format. A failure is reported and ends the file.

    A conversation whose texts the format does not find is reported and left out: the file only
    looks like the format.
    """
    if format.read is None:  # It is only written.
        return
    misread_count = 0
    try:
        for draft in format.read(source):
            if is_understood(draft):
                _report_unread(draft, source)
                # A file that Capsule exported has the ids of its messages in a note.
                yield recall(draft)
            else:
                misread_count += 1
    except CapsuleError as error:
        source.tell(error.message[:300])
    except _FAILURES as error:
        source.tell(f"not understood as {format.title}: {type(error).__name__}: {error}"[:300])
    if misread_count:
        source.tell(
            f"looks like {format.title}, but is not understood: the texts of {misread_count} "
            "conversations were not found"
        )


def _report_unread(draft: Draft, source: Source) -> None:
    """Report the messages of a draft whose record has a text that was not read."""
    for entry in unread_messages(draft):
        line = draft.lines.get(str(entry.get("id")), draft.line)
        source.tell("a message without content, though its record has a text", line)
    for entry in messages_with_unread_parts(draft):
        line = draft.lines.get(str(entry.get("id")), draft.line)
        source.tell("a part of a message is not understood, though it has a text", line)
