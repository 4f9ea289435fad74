"""List the formats, find the format of a file, and read the drafts of a file in its format.

A format is a `Format` in a module of this package, or in another package that has an entry point of
the group `capsule.formats`, whose value is a `Format` or a list of them. A file is offered to the
formats of other packages first, and last to those that accept nearly everything. So another package
can replace a format of this one by its name. A package that can't be imported ends every import.

Of a file that no format takes, the program that it may come from is guessed by its path and its
beginning, only to name the file in the report.

What must stay true: the content decides the format, unless the caller names one. (The name of a
file may tell that it is a part of another one.) An error in a file's content (`_FAILURES`,
CapsuleError) ends that file only.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib import import_module, metadata

from capsule.errors import CapsuleError, InvalidInput
from capsule.transfer.drafts.completeness import (
    is_understood,
    messages_with_unread_parts,
    unread_messages,
)
from capsule.transfer.drafts.export_note import recall
from capsule.transfer.interface import (
    FORMAT_ERRORS,
    Draft,
    Format,
    Source,
    first_records,
    json_shape,
)
from capsule.transfer.reading.json_stream import json_records

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
