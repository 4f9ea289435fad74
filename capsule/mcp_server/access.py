"""What a client may do, and as whom: the identity and the scope of a call.

What must stay true: both come from how the server was started or from the token, never from an
argument; and every tool has a scope. `read` changes nothing. `write` adds and changes. `admin` also
takes away what others wrote or hold.
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
#: From the narrowest to the widest; each holds those before it.
SCOPES: tuple[Scope, ...] = get_args(Scope)
#: The tools that need `admin`; to unlock by force does too.
_ADMIN_TOOLS = frozenset({"delete_conversation", "delete_messages"})
#: The actions, of whatever tool, that change nothing.
_READ_ACTIONS = ("list", "show", "search")


@dataclass(frozen=True, slots=True)
class Access:
    """What a client may do, and as which agent; without a name, an argument of a call may
    give one.
    """

    name: str | None = None
    scope: Scope = "admin"

    def has(self, scope: Scope) -> bool:
        """Whether it has this scope."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)


def required_scope(tool: Tool, arguments: Mapping[str, Any] | None = None) -> Scope:
    """The scope that a call needs; without arguments, the narrowest with which the tool is
    of use.
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
