"""The tools of a store: which there are, in which sets, and what a client is told of each.

What must stay true: all that a client sends its model of the set of conversations (names, descriptions, schemas) is
under 3,500 tokens, at most thirteen tools, of the set of messaging under 3,000, and of a session under 2,000; a test
measures it. Hence the schemas say only what a model needs: no titles, no nulls, and a part stands where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mcp_types import ToolAnnotations

from capsule.mcp_server.access import Toolset
from capsule.mcp_server.tools import branches, reading, writing
from capsule.messaging.tools import agents, channels, messages
from capsule.sessions import tools as sessions

_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
# What isn't said is false: that a tool only reads, and that it does the same when called twice.
_ADDS = ToolAnnotations(destructive_hint=False, open_world_hint=False)
_SETS = ToolAnnotations(destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_REPLACES = ToolAnnotations(destructive_hint=True, idempotent_hint=True, open_world_hint=False)

Tools = tuple[tuple[Callable[..., Any], ToolAnnotations], ...]

_CONVERSATIONS: Tools = (
    (reading.list_conversations, _READS),
    (reading.read_conversation, _READS),
    (reading.search, _READS),
    (writing.create_conversation, _ADDS),
    (writing.append_message, _ADDS),
    (writing.edit_message, _REPLACES),
    (branches.branch, _ADDS),
    (branches.delete_messages, _REPLACES),
    (writing.update_conversation, _REPLACES),
    (writing.delete_conversation, _REPLACES),
    (writing.lock_conversation, _SETS),
    (writing.unlock_conversation, _REPLACES),
    (reading.watch_changes, _READS),
)
_MESSAGING: Tools = (
    (messages.send_message, _ADDS),
    (messages.listen, _SETS),
    (messages.inbox, _READS),
    (messages.read_messages, _READS),
    (messages.mentions, _SETS),
    (agents.list_agents, _READS),
    (agents.manage_permissions, _SETS),
    (agents.set_status, _SETS),
    (channels.manage_channel, _ADDS),
    (channels.manage_group, _ADDS),
    (channels.notes, _ADDS),
)
_SESSION: Tools = (
    (sessions.send_message, _ADDS),
    (sessions.send_file, _ADDS),
    (sessions.edit_message, _REPLACES),
    (sessions.add_reaction, _ADDS),
    (sessions.ask_question, _ADDS),
    (sessions.schedule, _ADDS),
    (sessions.keep, _SETS),
)
TOOLS: dict[Toolset, Tools] = {
    "conversations": _CONVERSATIONS,
    "messaging": _MESSAGING,
    "all": (*_CONVERSATIONS, *_MESSAGING),
    "session": _SESSION,
}


def lean(schema: Any, parts: Mapping[str, Any] = {}) -> Any:
    """A schema that pydantic made, without what tells a model nothing.

    Args:
        schema: The schema; none of its parts holds itself.
        parts: The parts it refers to, besides its own.
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
