"""Making the index's messages from the entries of a history.

What must stay true: equal entries have equal digests, wherever they stand and in whatever layout; an entry without an
id or a time is refused, and migrating the document gives it both.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import orjson

from capsule.engines.index.search.folding import count as count_words
from capsule.format import canonical
from capsule.format.facts import Fact, facts_of
from capsule.format.tree.tree import ROOT
from capsule.timestamps import ms_of

_BETWEEN = b"\n    },\n    {\n"
_FIRST, _LAST = len(b"\n    {\n"), len(b"\n    }")


class Message(NamedTuple):
    """One message as the index has it; see `schema` for the columns of the same names, and for the table of facts."""

    id: str
    parent: str | None
    role: str
    sender: str | None
    time_ms: int
    words: int
    content: str
    tools: str | None
    digest: int
    facts: list[Fact]


#: Makes a message of a tuple, at a third of the cost.
_message = partial(tuple.__new__, Message)


def pieces_of(block: bytes) -> list[bytes]:
    """The lines of each entry in the bytes of a canonical history, without its braces."""
    return block[_FIRST:-_LAST].split(_BETWEEN) if block else []


def messages_of(entries: list[dict[str, Any]], pieces: Iterable[bytes]) -> list[Message] | None:
    """The messages, each with the lines it stands in; None when one has no id, no time or an order of its own."""
    made = []
    for entry, piece in zip(entries, pieces, strict=True):
        get = entry.get
        role, content, stamp, id = entry["role"], entry["content"], get("timestamp"), get("id")
        parent = (entry["parent"] or ROOT) if "parent" in entry else None
        if not id or not stamp or not canonical.is_in_order(tuple(entry)):
            return None
        digest = crc32(piece) << 31 | len(piece) & 0x7FFFFFFF
        words, tools = count_words(content), _tools(entry)
        facts = facts_of(entry)
        made.append(_message((id, parent, role, get("from"), ms_of(stamp), words, content, tools, digest, facts)))
    return made


def _tools(entry: dict[str, Any]) -> str | None:
    """Tool calls and reasoning as text; None when there are none."""
    if "reasoning" not in entry and "toolCalls" not in entry:
        return None
    parts = [entry["reasoning"]] if isinstance(entry.get("reasoning"), str) else []
    if entry.get("toolCalls"):
        parts.append(orjson.dumps(entry["toolCalls"]).decode())
    return "\n".join(part for part in parts if part) or None
