"""What a client may do, and for which agent: the scope and the identity of a call.

`read` changes nothing. `write` adds and changes. `admin` also removes the messages and locks of
others.

What must stay true: the identity and the scope come from the start of the server or from the token,
never from an argument of a call. Every tool has a scope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

if TYPE_CHECKING:
    from mcp.server.mcpserver.tools import Tool

#: Which tools a server offers.
Toolset = Literal["conversations", "messaging", "all", "session"]
Scope = Literal["read", "write", "admin"]
#: The scopes, from the narrowest to the widest. Each includes those before it.
SCOPES: tuple[Scope, ...] = get_args(Scope)
#: The tools that need `admin`. Unlocking by force needs it too.
_ADMIN_TOOLS = frozenset({"delete_conversation", "delete_messages"})
#: The actions of any tool that change nothing.
_READ_ACTIONS = ("list", "show", "search")


@dataclass(frozen=True, slots=True)
class Access:
    """What a client may do, and for which agent. Without a name, an argument of a call may name the
    agent.
    """

    name: str | None = None
    scope: Scope = "admin"

    def includes(self, scope: Scope) -> bool:
        """Return whether the client has a scope."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)


def required_scope(tool: Tool, arguments: Mapping[str, Any] | None = None) -> Scope:
    """Return the scope that a call needs. Without arguments, return the narrowest scope with which
    any call of the tool is permitted.
    """
    if tool.annotations is not None and tool.annotations.read_only_hint:
        return "read"
    actions = tool.parameters["properties"].get("action", {}).get("enum", ())
    if any(
        action in _READ_ACTIONS and (arguments is None or arguments.get("action") == action)
        for action in actions
    ):
        return "read"
    forced = tool.name == "unlock_conversation" and bool((arguments or {}).get("force"))
    return "admin" if tool.name in _ADMIN_TOOLS or forced else "write"
