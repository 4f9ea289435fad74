"""Escape stored text for a terminal.

What must stay true: no control character passes but newline and tab, and none that changes the
direction of writing. The rest stays readable. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: C0 without newline and tab, DEL, C1, and characters that change the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    """Return a text with its control characters as escapes: `\\x1b`."""
    # Nearly all texts have none, and this is quick to check.
    if text.isprintable() or text.replace("\n", " ").replace("\t", " ").isprintable():
        return text
    return _CONTROL.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """Return a text for one line and one column: also newlines and tabs become escapes."""
    if text.isprintable():
        return text
    return escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def truncated(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters. A cut ends in an ellipsis."""
    if len(text) <= limit:
        return text
    return text[: limit - 1].rstrip() + "\u2026"


def call_of(call: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return name and arguments of a tool call. None: it has none.

    They are in the call itself, or in its `function`.
    """
    function = call.get("function")
    fields = function if isinstance(function, dict) else call
    for key in ("arguments", "input", "args"):
        if fields.get(key):
            return fields.get("name"), fields[key]
    return fields.get("name"), None


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
