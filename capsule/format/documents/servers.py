"""Read and change the MCP servers of a conversation: `metadata.mcpServers`.

It is an object of overrides by the names of servers: `{"name": {"enabled": true}}`. A server without
an override is on or off by default.

What must stay true: only what differs from the default is recorded. Unknown fields of an override
are kept. Pure; no pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capsule.errors import InvalidInput

#: The most characters of a server's name.
_MAX = 200

Overrides = dict[str, Any]


def check_server(name: str) -> str:
    """Return `name` if it may be the name of an MCP server. Raises InvalidInput."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _MAX:
        rule = f"1 to {_MAX} characters, and none that controls a terminal"
        raise InvalidInput(f"{str(name)[:60]!r} is not a name of an MCP server: {rule}")
    return name


def are_switches(value: Any) -> bool:
    """Return whether a value is an object of overrides.

    A list of names, as drafts of version 2.1 had it, counts too.
    """
    if isinstance(value, dict):
        return all(_is_override(item) for item in value.values())
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _is_override(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("enabled"), bool)


def overrides_in(value: Any) -> Overrides:
    """Return a copy of the overrides in a valid `mcpServers`.

    The servers in a list of names are on.
    """
    if isinstance(value, Mapping):
        return {name: dict(override) for name, override in value.items()}
    return {name: {"enabled": True} for name in value or ()}


def switches_in(value: Any) -> dict[str, bool]:
    """Return for each server in a valid `mcpServers` whether it is on."""
    return {name: override["enabled"] is True for name, override in overrides_in(value).items()}


def with_switches(value: Any, switches: Mapping[str, bool | None]) -> Overrides:
    """Return the overrides of a valid `mcpServers` after some servers were switched.

    `switches` has by name True (on), False (off) or None (the default). Raises InvalidInput if a
    name can't be one, or has another value.
    """
    if not isinstance(switches, Mapping):
        raise InvalidInput(
            f"mcpServers: give names, each with true, false or null, not {str(switches)[:60]!r}"
        )
    overrides = overrides_in(value)
    for name, enabled in switches.items():
        check_server(name)
        if enabled is None:
            overrides.pop(name, None)
        elif isinstance(enabled, bool):
            overrides[name] = {**overrides.get(name, {}), "enabled": enabled}
        else:
            raise InvalidInput(
                f"mcpServers.{name}: must be true, false or null, is {str(enabled)[:60]!r}"
            )
    return overrides
