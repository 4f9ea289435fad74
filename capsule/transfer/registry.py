"""List the formats, find the format of a file, and read the drafts of a file in its format.

A format is a `Format` in a module of this package, or in another package that has an entry point of
the group `capsule.formats`, whose value is a `Format` or a list of them. A file is offered to the
formats of other packages first, and last to those that accept nearly everything.

Of a file that no format takes, the program that it may come from is guessed by its path and its
beginning, only to name the file in the report.

Invariants: the content decides the format, never the file name. A format that fails on a file ends
that file only.
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

#: A program, what the path of its files has, and what their content begins with or has.
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
    for program, of_path, of_head in _PROGRAMS:
        if of_path and re.search(of_path, path):
            return program
        if of_head and re.search(of_head, head):
            return program
    return ""


GROUP = "capsule.formats"
#: Modules of this package, in this order; each has FORMATS, a list.
_MODULES = (
    "plain.capsules web.chatgpt web.claude_ai agents.claude_code agents.codex agents.gemini "
    "agents.opencode "
    "agents.cursor web.llama_webui web.open_webui web.librechat web.grok web.ai_studio "
    "agents.llm_logs "
    "agents.specstory agents.atif plain.jsonl plain.markdown plain.html"
)
_FAILURES = (*FORMAT_ERRORS, sqlite3.Error, OSError)
#: What JSON of conversations has, and that of a project rarely.
_SAID = rb'"(?:\w*[mM]essages\w*|history|mapping|conversations?(?:Id)?|exchanges|role|session_?[iI]d)"\s*:'


@cache
def formats() -> dict[str, Format]:
    """All formats, by name. Cost: importing their modules at the first call."""
    known: dict[str, Format] = {}
    for entry in metadata.entry_points(group=GROUP):
        _add(known, entry.load())
    for name in _MODULES.split():
        _add(known, import_module(f"capsule.transfer.formats.{name}").FORMATS)
    return known


def _add(known: dict[str, Format], made: Format | Iterable[Format]) -> None:
    for format in made if isinstance(made, Iterable) else (made,):
        known.setdefault(format.name, format)


def format_named(name: str) -> Format:
    """The format of a name. Raises InvalidInput."""
    format = formats().get(name)
    if format is None:
        raise InvalidInput(f"{name[:60]!r} is not a format; the formats are {', '.join(formats())}")
    return format


def format_of(source: Source, only: Format | None = None) -> Format | None:
    """The format of a file; None: none that is read, or it is read as a part of another file.

    A file is taken for the `only` format that is given, unless it is a part of another.
    """
    for format in formats().values() if only is None else (only,):
        if format.read is not None:
            if _format_says(format.is_part, source):
                return None
            if only is not None or _format_says(format.recognizes, source):
                return format
    return None


def has_value(source: Source) -> bool:
    """Return whether a file begins with what can be read: an archive, an object of JSON, or a known
    format.
    """
    return source.is_packed or any(first_records(source)) or format_of(source, None) is not None


def is_part(source: Source) -> bool:
    """Whether a file belongs to another one, which reads it."""
    return any(_format_says(format.is_part, source) for format in formats().values())


def guess_of(source: Source) -> str:
    """Return the program that a file may come from that no format takes. Empty: it looks like no
    conversation.
    """
    program = program_of(source.name, source.head)
    if not program and json_shape(source) and re.search(_SAID, source.head):
        return "an unknown program"
    return program


def report_unknown(source: Source, note: Callable[[str, str, int | None], object] | None) -> None:
    """Report a file that no format takes, and that is no part of another one.

    Args:
        source: The file. It is damaged if it has a fault, and looks like conversations.
        note: Takes the path, the reason and the line of any other file; None: others are not worth
            a word.
    """
    is_ours, faults = re.search(_SAID, source.head) is not None, list[tuple[str, int | None]]()
    if json_shape(source) and (is_ours or note is not None):
        # It reads to the first fault, or to the end.
        any(
            faults
            for _ in json_records(
                source.chunks(), source.head, lambda fault, line: faults.append((fault, line))
            )
        )
    fault, line = faults[0] if faults else ("", None)
    reason = f"in no known format: {fault}" if fault else "in no known format"
    if fault and is_ours:
        source.tell(reason, line)
    elif note is not None:
        note(source.name, reason, line)


def _format_says(question: Callable[[Source], bool], source: Source) -> bool:
    try:
        return question(source)
    except (*_FAILURES, CapsuleError):  # What is odd about the head is reported when it is read.
        return False


def drafts_of(source: Source, format: Format) -> Iterator[Draft]:
    """The conversations of a file in a format. What the format fails on is reported, and ends the
    file.

    A conversation whose texts the format does not find is reported and left out: the file only
    looks like the format.
    """
    if format.read is None:
        return
    misread = 0
    try:
        for draft in format.read(source):
            if not is_understood(draft):
                misread += 1
                continue
            for entry in unread_messages(draft):
                line = draft.lines.get(str(entry.get("id")), draft.line)
                source.tell("a message without content, though its record has a text", line)
            for entry in messages_with_unread_parts(draft):
                line = draft.lines.get(str(entry.get("id")), draft.line)
                source.tell("a part of a message is not understood, though it has a text", line)
            yield recall(draft)
    except CapsuleError as error:
        source.tell(error.message[:300])
    except _FAILURES as error:
        source.tell(f"not understood as {format.title}: {type(error).__name__}: {error}"[:300])
    if misread:
        source.tell(
            f"looks like {format.title}, but is not understood: the texts of {misread} "
            "conversations were not found"
        )
