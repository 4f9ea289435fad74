"""Errors as a model reads them: what failed, on what, and which tool to call next.

What must stay true: this is the only place that turns an error of the store into a result. Whatever is neither a
`CapsuleError` nor raised for the model is a bug; the SDK keeps its text on the server, and so does this.
"""

from __future__ import annotations

import re

from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from pydantic import ValidationError

from capsule.errors import CapsuleError, InvalidDocument, Locked, LockLost, Refused, StorageFailed
from capsule.mcp_server.fence import visible, word

__all__ = ["explained", "holder", "of_tool"]

#: The ways out that the store's messages name are commands; a model has tools. In this order.
_INSTEAD = (
    (re.compile(r"list them with: capsule list\b"), "call list_conversations to see which there are"),
    (re.compile(r"list them with: capsule show (\S+) --json"), r"call read_conversation on \1 to see which there are"),
    (re.compile(r"See the ids with: capsule show (\S+) --json"), r"Call read_conversation on \1 to see the ids"),
    (re.compile(r"a new version of it is made by editing it in a branch of its own"), "use action edit for it"),
    (re.compile(r"list them with: capsule trash\b"), "the trash is not open to tools; the user can look into it"),
    (re.compile(r"make one with: capsule new\b"), "make one with create_conversation"),
    (re.compile(r"make one with: capsule init\b.*"), "the user has to make one"),
)


def holder(lock: dict[str, object]) -> str:
    """Who holds a lock, in words; what the capsule says of them is stored text."""
    name = f" ({word(str(lock['name']))})" if lock.get("name") else ""
    since = str(lock.get("timestamp") or "an unknown time")
    return (
        f"{word(str(lock.get('user') or 'somebody'))}{name} on {word(str(lock.get('host') or '?'))} since {word(since)}"
    )


def explained(error: CapsuleError) -> str:
    """An error of the store, with its way out in terms of tools."""
    match error:
        case Locked():
            return (
                f"conversation {error.id} is locked by {holder(error.holder)}; nothing was done. Ask them to release "
                "it, wait with watch_changes, or, if the user agrees, call unlock_conversation with force: true"
            )
        case LockLost():
            now = f"it is now locked by {holder(error.holder)}" if error.holder else "it is not locked now"
            return (
                f"the lock this server held on conversation {error.id} was taken away: {now}; nothing was done. "
                "Read what changed with read_conversation, then try again"
            )
        case InvalidDocument():
            return f"{visible(error.message)}\nThe file is kept as it is; a person has to correct it. Tell the user."
        case StorageFailed() | Refused():
            return f"{visible(error.message)}\nThe system did not let it; nothing was done. Tell the user."
    text = error.message
    for command, instead in _INSTEAD:
        text = command.sub(instead, text)
    return visible(text)


def of_tool(name: str, error: ToolError) -> ToolError | None:
    """The error to raise in place of one that a tool ended in; None: that one."""
    cause = error.__cause__
    if isinstance(cause, CapsuleError):
        return ToolError(explained(cause))
    if isinstance(error, UnexpectedToolError):
        return None
    if isinstance(cause, ValidationError):
        wrong = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in cause.errors(include_url=False)]
        return ToolError(f"{name} was not called: {visible('; '.join(wrong))}")
    prefix = f"Error executing tool {name}: "
    return ToolError(str(error).removeprefix(prefix)) if str(error).startswith(prefix) else None
