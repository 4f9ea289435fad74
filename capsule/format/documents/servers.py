"""Which MCP servers a conversation has other than by default: `metadata.mcpServers`.

What must stay true: only what differs from the default is there; what else stands beside `enabled`
in an override is kept. Pure; no pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from capsule.errors import InvalidInput

_MAX = 200

Overrides = dict[str, Any]


def check_server(name: str) -> str:
    """`name`, when it can be that of an MCP server. Raises InvalidInput."""
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _MAX:
        rule = f"1 to {_MAX} characters, and none that controls a terminal"
        raise InvalidInput(f"{str(name)[:60]!r} is not a name of an MCP server: {rule}")
    return name


def are_switches(value: Any) -> bool:
    """Whether a value is an object of switches; or a list of names, as drafts of version 2.1 had
    it.
    """
    if isinstance(value, dict):
        return all(
            isinstance(item, dict) and isinstance(item.get("enabled"), bool)
            for item in value.values()
        )
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def overrides_in(value: Any) -> Overrides:
    """The overrides in a valid `mcpServers`, as an object of their own; a list of names is servers
    that are on.
    """
    if isinstance(value, Mapping):
        return {name: dict(override) for name, override in value.items()}
    return {name: {"enabled": True} for name in value or ()}


def switches_in(value: Any) -> dict[str, bool]:
    """Which servers a valid `mcpServers` has on (True) or off."""
    return {name: override["enabled"] is True for name, override in overrides_in(value).items()}


def with_switches(value: Any, switches: Mapping[str, bool | None]) -> Overrides:
    """What becomes of a valid `mcpServers` when some servers are switched: on, off, or (None) as by
    default.

    Raises InvalidInput if a name can't be one, or is switched to something else.
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
