"""Stored text as it may be shown on a terminal.

What must stay true: no control character passes (newline and tab excepted), nor one that turns the
direction of writing; what is left can be read. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: C0 but newline and tab, DEL, C1, and what turns the direction of writing.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def escape_controls(text: str) -> str:
    """`text` as it may be shown: control characters and escape sequences as their escapes."""
    # Nearly all may, and this is quick to say.
    if text.isprintable() or text.replace("\n", " ").replace("\t", " ").isprintable():
        return text
    return _CONTROL.sub(_escape, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """`text` as it may be shown in one line and one column."""
    return (
        text
        if text.isprintable()
        else escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")
    )


def truncated(text: str, most: int) -> str:
    """The beginning of a text, of so many characters at most."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "\u2026"


def call_of(call: Mapping[str, Any]) -> tuple[Any, Any]:
    """Name and arguments of a tool call, in the two forms that are common; None: it has none."""
    inner = call.get("function")
    call = inner if isinstance(inner, dict) else call
    return call.get("name"), next(
        (call[key] for key in ("arguments", "input", "args") if call.get(key)), None
    )


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
