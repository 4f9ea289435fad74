"""Describe a tool call for a reader: a line that summarizes it, and its arguments as code and diffs.

The names of tools and arguments are those of the programs whose sessions are imported. Other
arguments are drawn as JSON.

Invariant: every argument of a call is part of its description, whatever tool it calls. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeGuard

import orjson

from capsule.format.text.escaping import call_of, one_line, truncated
from capsule.transfer.records.coercion import json_of, without
from capsule.transfer.rendering.texts import difference, language_of, valid

_PATHS = (
    "file_path",
    "filePath",
    "path",
    "target_file",
    "absolute_path",
    "notebook_path",
    "filename",
)
_COMMANDS = ("command", "cmd", "script")
_OLD_TEXTS = ("old_string", "oldString", "old_str")
_NEW_TEXTS = ("new_string", "newString", "new_str", "insert_text")
_CONTENTS = ("content", "contents", "file_text", "new_source")
_PATCHES = ("patch", "diff", "patchText", "input")
#: The arguments that summarize a call, the best first.
_SUBJECTS = (
    "pattern",
    "query",
    "queries",
    "url",
    "description",
    "prompt",
    "task",
    "skill",
    "title",
    "name",
    "q",
)
#: The values of `command` of an editor of files.
_EDITOR_COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit", "delete", "rename")
_PATCHED_FILE = re.compile(
    r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(.*)", re.MULTILINE
)


def as_text(value: Any, *, option: int | None = orjson.OPT_INDENT_2) -> str:
    """Return a value as a text for a reader: a text unchanged, an empty one for None, or JSON."""
    if isinstance(value, str):
        return value
    try:
        return "" if value is None else orjson.dumps(value, option=option).decode()
    except TypeError:  # Nested too deep, or with text that is no Unicode.
        try:
            return repr(value)
        except RecursionError:
            return "(nested too deep to be shown)"


def line(value: Any, max_chars: int = 160) -> str:
    """Return the first line of a value that is not empty, cut to `max_chars` characters."""
    text = as_text(value, option=None)[: 25 * max_chars]
    return truncated(one_line(valid(text).strip().partition("\n")[0]), max_chars)


def counted(text: str, noun: str = "line") -> str:
    """Return the number of lines, or of words, of a text, in words."""
    number = len(text.split()) if noun == "word" else len(text.splitlines())
    return f"{number:,} {noun}{'s' * (number != 1)}"


def describe_call(call: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return a line about a call, and its arguments as texts, each with its language.

    The language is also `diff`, or empty if it is not known.
    """
    name, raw_arguments = call_of(call)
    title = line(name, 80) or "Tool"
    arguments = json_of(raw_arguments)
    if isinstance(arguments, dict):
        description = _describe_known_tool(title, arguments)
        others = as_text(without(arguments, *description.drawn_arguments) or None)
        parts = [(description.text, description.language), (others, "json")]
        return description.summary, [part for part in parts if part[0]]
    if _is_patch(arguments):
        return title + _patch_summary(arguments), [(arguments, "diff")]
    return _titled(title, arguments), [(as_text(arguments), "")] if arguments else []


class _CallDescription(NamedTuple):
    """The description of a call.

    Attributes:
        summary: A line.
        text: A text that shows some arguments. Empty: none.
        language: The language of the text.
        drawn_arguments: The names of the arguments that the summary and the text show whole.
    """

    summary: str
    text: str = ""
    language: str = ""
    drawn_arguments: tuple[str, ...] = ()


def _describe_known_tool(name: str, arguments: dict[str, Any]) -> _CallDescription:
    """Describe a call by the first of these: a patch, edits, a command, a file, a subject."""
    patch_key = next((key for key in _PATCHES if _is_patch(arguments.get(key))), "")
    command_key = patch_key or _first(arguments, _COMMANDS)
    command = _command(arguments.get(command_key))
    if _is_patch(command):
        return _CallDescription(name + _patch_summary(command), command, "diff", (command_key,))
    path_key = _first(arguments, _PATHS)
    path = line(arguments.get(path_key))
    drawn_path = (path_key,) if path == arguments.get(path_key) else ()
    edits, edit_keys = _edits(arguments)
    if edits:
        diff = "\n".join(difference(old, new) for old, new in edits)
        summary = f"{name} {path}{_line_counts(diff)}"
        return _CallDescription(summary, diff, "diff", (*drawn_path, *edit_keys))
    if command_key and not (path and command in _EDITOR_COMMANDS):
        summary = f"{name}: {line(command)}"
        return _CallDescription(summary, as_text(command), "bash", (command_key,))
    content_key = _first(arguments, _CONTENTS) if path else ""
    if content_key:
        text = as_text(arguments[content_key])
        summary = f"{name} {path} ({counted(text)})"
        return _CallDescription(summary, text, language_of(path), (*drawn_path, content_key))
    subject_key = command_key or _first(arguments, _SUBJECTS)
    if subject_key:
        summary = _titled(name, arguments[subject_key])
        return _CallDescription(f"{summary} in {path}" if path else summary)
    if path:
        return _CallDescription(f"{name} {path}", drawn_arguments=drawn_path)
    return _CallDescription(_titled(name, arguments))


def _command(value: Any) -> Any:
    """Return a command as one text: of a list of words, the script of a shell, or a patch."""
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        return value
    if len(value) == 3 and value[0].endswith("sh") and value[1] in ("-c", "-lc"):
        return value[2]
    return value[-1] if _is_patch(value[-1]) else shlex.join(value)


def _first(arguments: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the first of these names with a text or list that is not empty. Empty: none."""
    for name in names:
        if isinstance(arguments.get(name), str | list) and arguments[name]:
            return name
    return ""


def _titled(name: str, subject: Any) -> str:
    subject_line = line(subject) if subject else ""
    return f"{name}: {subject_line}" if subject_line else name


def _edits(arguments: Mapping[str, Any]) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return the old and the new text of each edit of a call.

    Also returns the names of the arguments that are nothing but these texts.
    """
    edits = arguments.get("edits", [arguments])
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        return [], ()
    texts = []
    names: tuple[str, str] = ("", "")
    has_texts_only = True
    for edit in reversed(edits):
        old_name = _first(edit, _OLD_TEXTS)
        new_name = next((name for name in _NEW_TEXTS if isinstance(edit.get(name), str)), "")
        if not new_name:
            return [], ()
        names = (old_name, new_name)
        texts.append((as_text(edit.get(old_name)), edit[new_name]))
        has_texts_only = has_texts_only and edit.keys() <= {*names}
    texts.reverse()
    if "edits" not in arguments:
        return texts, names
    return texts, ("edits",) if has_texts_only else ()


def _is_patch(text: Any) -> TypeGuard[str]:
    if not isinstance(text, str):
        return False
    return "*** Begin Patch" in text[:2000] or text.startswith(("diff --git ", "--- ", "@@ "))


def _patch_summary(text: str) -> str:
    """Return which files a patch changes, and how many lines, after a space."""
    files = list(dict.fromkeys(_PATCHED_FILE.findall(text)))
    summary = f" {line(files[0])}" if files else ""
    if len(files) > 1:
        summary += f" and {len(files) - 1} more"
    return summary + _line_counts(text)


def _line_counts(diff: str) -> str:
    """Return how many lines a diff adds and removes, after a space."""
    headers = ("+++ ", "--- ") if diff.startswith(("diff --git ", "--- ")) else ()
    signs = [row[0] for row in diff.split("\n") if row[:1] in ("+", "-") and row[:4] not in headers]
    return f" (+{signs.count('+')} −{signs.count('-')})"
