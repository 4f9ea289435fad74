"""The tools of the core, and their schemas for clients. Rooms register their own tools.

What must stay true: the names, descriptions and schemas of the set of conversations cost under
3,500 tokens and are at most thirteen tools. The set of messaging costs under 3,000, and that of a
session under 2,000. A test measures it. So the schemas have only what a model needs: no titles, no
nulls, and each part where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp_types import ToolAnnotations

from capsule.mcp_server.tools import reading, writing

#: The hints for clients about a tool.
READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
# A hint that is left out is false: read-only, and idempotent.
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
    (writing.branch, ADDS),
    (writing.delete_messages, REPLACES),
    (writing.update_conversation, REPLACES),
    (writing.delete_conversation, REPLACES),
    (writing.lock_conversation, SETS),
    (writing.unlock_conversation, REPLACES),
    (reading.watch_changes, READS),
)


def lean(schema: Any, definitions: Mapping[str, Any] = {}) -> Any:
    """Return a schema of pydantic without the parts that tell a model nothing.

    Args:
        schema: The schema, or a part of it.
        definitions: The schemas that it may refer to, by name.
    """
    if isinstance(schema, list):
        return [lean(item, definitions) for item in schema]
    if not isinstance(schema, dict):
        return schema
    known_definitions = {**definitions, **schema.get("$defs", {})}
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return lean(known_definitions[name], known_definitions)
    result: dict[str, Any] = {}
    for key, value in _without_null(schema).items():
        if key == "properties":
            result[key] = {name: lean(part, known_definitions) for name, part in value.items()}
        elif _is_useful(key, value):
            result[key] = lean(value, known_definitions)
    return result


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema in which a choice between one type and null is replaced by that type."""
    options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
    if len(options) != 1:
        return schema
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**rest, **options[0]}


def _is_useful(key: str, value: Any) -> bool:
    """Return whether a part of a schema tells a model something."""
    if key == "$defs":
        return False
    if key == "title":
        return not isinstance(value, str)
    return key != "default" or value not in (None, False, 0, "", [], {})
