"""Which format a file is in, and the drafts in it.

What must stay true: content tells the format, never a name. A format that fails on a file takes no other file away.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any

from capsule.errors import CapsuleError
from capsule.transfer.interface import ODD, Draft, Format, Source
from capsule.transfer.registry import formats

_FAILURES = (*ODD, sqlite3.Error, OSError)


def format_of(source: Source, only: Format | None = None) -> Format | None:
    """The format of a file; None: none that is read, or it is read as a part of another file.

    Args:
        source: The file.
        only: The only format to think of. The file is taken for one, unless it is a part of another.
    """
    for format in formats().values() if only is None else (only,):
        if format.read is not None:
            if _asked(format.is_part, source):
                return None
            if only is not None or _asked(format.recognizes, source):
                return format
    return None


def _asked(question: Any, source: Source) -> bool:
    try:
        return bool(question(source))
    except _FAILURES:  # What is odd about the head is told when it is read.
        return False


def drafts_of(source: Source, format: Format) -> Iterator[Draft]:
    """The conversations of a file in a format. What the format fails on is told, and ends the file."""
    if format.read is None:
        return
    try:
        yield from format.read(source)
    except CapsuleError as error:
        source.tell(error.message[:300])
    except _FAILURES as error:
        source.tell(f"not understood as {format.title}: {type(error).__name__}: {error}"[:300])
