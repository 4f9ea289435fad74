"""Where errors end: on stderr, with their exit code.

What must stay true: this is the one place that turns an error into words for the terminal. A `CapsuleError` is
expected and told in its own words; anything else is a bug and stays a traceback.
"""

from __future__ import annotations

import sys
from typing import Any

from capsule.errors import CapsuleError
from capsule_cli.output import Stopped, say, shown

__all__ = ["BROKEN_PIPE", "INTERRUPTED", "report", "report_error"]

#: What a shell reports for a program that SIGINT or SIGPIPE ended.
INTERRUPTED = 130
BROKEN_PIPE = 141


def report(message: str, code: int, kind: str, fields: dict[str, Any] | None = None, *, as_json: bool) -> None:
    """Tell an error on stderr: in words, or as one line that holds a JSON object."""
    if not as_json:
        for line in shown(message).split("\n"):
            say(line)
        return
    import orjson

    told: dict[str, Any] = {"code": code, "kind": kind, "message": message}
    told.update((name, value) for name, value in (fields or {}).items() if name not in told)
    sys.stderr.write(orjson.dumps({"error": told}, default=_plain).decode() + "\n")
    sys.stderr.flush()


def report_error(error: CapsuleError | Stopped, *, as_json: bool) -> int:
    """Tell `error` on stderr. Returns: its exit code."""
    fields = error.fields if isinstance(error, CapsuleError) else None
    report(error.message, error.exit_code, type(error).__name__, fields, as_json=as_json)
    return error.exit_code


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (set, frozenset)) else str(value)
