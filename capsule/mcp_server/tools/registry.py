"""The core's tools: which there are, and what a client learns of each. Those of rooms stand with
their rooms.

What must stay true: all that a client sends its model of the set of conversations (names,
descriptions, schemas) is under 3,500 tokens, at most thirteen tools, of the set of messaging under
3,000, and of a session under 2,000; a test measures it. Hence the schemas say only what a model
needs: no titles, no nulls, and a part stands where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp_types import ToolAnnotations

from capsule.mcp_server.tools import branches, reading, writing

#: What a client learns of a tool, besides its description.
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
# What isn't said is false: that a tool only reads, and that it does the same when called twice.
ADDS = ToolAnnotations(destructive_hint=False, open_world_hint=False)
SETS = ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False)
REPLACES = ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False)

Tools = tuple[tuple[Callable[..., Any], ToolAnnotations], ...]

CONVERSATIONS: Tools = (
    (reading.list_conversations, READS),
    (reading.read_conversation, READS),
    (reading.search, READS),
    (writing.create_conversation, ADDS),
    (writing.append_message, ADDS),
    (writing.edit_message, REPLACES),
    (branches.branch, ADDS),
    (branches.delete_messages, REPLACES),
    (writing.update_conversation, REPLACES),
    (writing.delete_conversation, REPLACES),
    (writing.lock_conversation, SETS),
    (writing.unlock_conversation, REPLACES),
    (reading.watch_changes, READS),
)


def lean(schema: Any, parts: Mapping[str, Any] = {}) -> Any:
    """A schema that pydantic made, without what tells a model nothing; `parts` are parts that it
    refers to.
    """
    if isinstance(schema, list):
        return [lean(item, parts) for item in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {**parts, **schema.get("$defs", {})}
    if "$ref" in schema:
        return lean(parts[schema["$ref"].rpartition("/")[2]], parts)
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) == 1:
        schema = {key: value for key, value in schema.items() if key != "anyOf"} | options[0]
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            kept[key] = {name: lean(part, parts) for name, part in value.items()}
        elif key == "$defs" or (key == "title" and isinstance(value, str)):
            continue
        elif key != "default" or value not in (None, False, 0, "", [], {}):
            kept[key] = lean(value, parts)
    return kept
