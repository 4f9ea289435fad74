"""Tool calls for a reader: a line that says what a call does, and what it brings with it as code
and as a diff.

What must stay true: every argument of a call is in what is drawn of it, whatever tool it calls. The
names of tools and arguments are those that the programs use whose sessions are imported; others are
drawn as JSON. Pure.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any, TypeGuard

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
_OLD, _NEW = (
    ("old_string", "oldString", "old_str"),
    ("new_string", "newString", "new_str", "insert_text"),
)
_CONTENTS = ("content", "contents", "file_text", "new_source")
_PATCHES = ("patch", "diff", "patchText", "input")
_ABOUT = (
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
#: Verbs that an editor of files takes as its `command`.
_VERBS = ("view", "create", "str_replace", "insert", "undo_edit", "delete", "rename")
_FILE = re.compile(r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(.*)", re.MULTILINE)


def as_text(value: Any, *, option: int | None = orjson.OPT_INDENT_2) -> str:
    """A value for a reader: a text as it is, nothing for None, else its JSON."""
    if isinstance(value, str):
        return value
    try:
        return "" if value is None else orjson.dumps(value, option=option).decode()
    except TypeError:  # Nested too deep, or with text that is no Unicode.
        try:
            return repr(value)
        except RecursionError:
            return "(nested too deep to be shown)"


def line(value: Any, most: int = 160) -> str:
    """The first line of a value that says something, cut to `most` characters."""
    text = as_text(value, option=None)[: 25 * most]
    return truncated(one_line(valid(text).strip().partition("\n")[0]), most)


def counted(text: str, noun: str = "line") -> str:
    """How many lines, or words, a text has, in words."""
    number = len(text.split()) if noun == "word" else len(text.splitlines())
    return f"{number:,} {noun}{'s' * (number != 1)}"


def describe_call(call: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """What a call of the file does: in a line, and as texts, each with its language, `diff`, or
    nothing known.
    """
    name, given = call_of(call)
    name, given = line(name, 80) or "Tool", json_of(given)
    if isinstance(given, dict):
        summary, text, language, drawn = _describe_known_tool(name, given)
        parts = [(text, language), (as_text(without(given, *drawn) or None), "json")]
        return summary, [part for part in parts if part[0]]
    if _is_patch(given):
        return name + _of_patch(given), [(given, "diff")]
    return _titled(name, given), [(as_text(given), "")] if given else []


def _describe_known_tool(name: str, given: dict[str, Any]) -> tuple[str, str, str, tuple[str, ...]]:
    """The line about a call, the text that stands for some of its arguments, its language, and
    which these are.
    """
    key = next((key for key in _PATCHES if _is_patch(given.get(key))), "") or _first(
        given, _COMMANDS
    )
    words = given.get(key)
    if isinstance(words, list) and all(isinstance(word, str) for word in words):
        is_shell = len(words) == 3 and words[0].endswith("sh") and words[1] in ("-c", "-lc")
        words = words[2] if is_shell else words[-1] if _is_patch(words[-1]) else shlex.join(words)
    if _is_patch(words):
        return name + _of_patch(words), words, "diff", (key,)
    path_key = _first(given, _PATHS)
    path = line(given.get(path_key))
    whole_path = (path_key,) if path == given.get(path_key) else ()
    edits, edited = _edits(given)
    if edits:
        diff = "\n".join(difference(old, new) for old, new in edits)
        return f"{name} {path}{_counted(diff)}", diff, "diff", (*whole_path, *edited)
    if key and not (path and words in _VERBS):
        return f"{name}: {line(words)}", as_text(words), "bash", (key,)
    if path and (written := _first(given, _CONTENTS)):
        text = as_text(given[written])
        return f"{name} {path} ({counted(text)})", text, language_of(path), (*whole_path, written)
    if about := key or _first(given, _ABOUT):
        return _titled(name, given[about]) + (f" in {path}" if path else ""), "", "", ()
    return (f"{name} {path}", "", "", whole_path) if path else (_titled(name, given), "", "", ())


def _first(given: Mapping[str, Any], names: tuple[str, ...]) -> str:
    return next(
        (name for name in names if isinstance(given.get(name), str | list) and given[name]), ""
    )


def _titled(name: str, about: Any) -> str:
    return f"{name}: {said}" if about and (said := line(about)) else name


def _edits(given: Mapping[str, Any]) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """The texts that a call replaces, each with what it is replaced by, and the arguments of which
    these are all.
    """
    edits = given.get("edits", [given])
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        return [], ()
    keys = [
        (_first(edit, _OLD), next((key for key in _NEW if isinstance(edit.get(key), str)), ""))
        for edit in edits
    ]
    if not all(new for _, new in keys):
        return [], ()
    is_all = all(edit.keys() <= {*names} for edit, names in zip(edits, keys, strict=True))
    made = [
        (as_text(edit.get(old)), edit[new]) for edit, (old, new) in zip(edits, keys, strict=True)
    ]
    return made, keys[0] if "edits" not in given else ("edits",) * is_all


def _is_patch(text: Any) -> TypeGuard[str]:
    return isinstance(text, str) and (
        "*** Begin Patch" in text[:2000] or text.startswith(("diff --git ", "--- ", "@@ "))
    )


def _of_patch(text: str) -> str:
    """Which files a patch changes, and how many lines."""
    files = list(dict.fromkeys(_FILE.findall(text)))
    about = f" {line(files[0])}" if files else ""
    return about + (f" and {len(files) - 1} more" if len(files) > 1 else "") + _counted(text)


def _counted(diff: str) -> str:
    headers = ("+++ ", "--- ") if diff.startswith(("diff --git ", "--- ")) else ()
    rows = [row[0] for row in diff.split("\n") if row[:1] in ("+", "-") and row[:4] not in headers]
    return f" (+{rows.count('+')} −{rows.count('-')})"
