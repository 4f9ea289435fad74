"""Turn errors into text for a model: what failed, on what, and which tool to call next.

What must stay true: no other module words an error of the store for a tool's result. An error that
is neither a `CapsuleError` nor an `ExplainedError` is a bug: the client does not get its text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from capsule.errors import (
    Action,
    CapsuleError,
    InvalidDocument,
    Locked,
    LockLost,
    Refused,
    StorageFailed,
)
from capsule.rules.locking import holder_details
from capsule.untrusted_text import quoted, visible, word

#: How much of an argument an error repeats, and how long it is at most, in characters.
_MAX_ECHO_CHARS, _MAX_ERROR_CHARS = 80, 2000
ASK_NO_MORE: Final = "Don't ask again unless they bring it up."

#: The call that helps, or what only the user can do. `{}` is replaced by `Remedy.on`, mostly an id.
REMEDIES: Final[dict[Action, str]] = {
    "list": "call list_conversations to list them",
    "show": "read what changed with read_conversation, then try again",
    "messages": "call read_conversation on {} to list them",
    "new": "make one with create_conversation",
    "init": "the user has to make one",
    "move": "the user can move it",
    "unlock": "ask them to release it, wait with watch_changes, or, if the user agrees, call "
    "unlock_conversation with "
    "force: true",
    "edit": "use action edit for it",
    "trash": "tools can't list the trash; the user can",
    "webhook": "the user has to make it",
    "copy": "the user can copy the store into files",
    "update": "the user has to update Capsule",
    "migrate": "the user has to migrate the store",
    "repair": "the user has to repair it first",
    "conflicts": "the user can list the conflicts",
    "log": "the user can look through its history in git",
    "set up git": "the user has to set up git for conversations",
    "join histories": "the user has to decide whether they belong together",
}


class ExplainedError(ToolError):
    """An error of a tool or a question whose text is written for the model."""


def describe_holder(lock: dict[str, object]) -> str:
    """Return the holder of a lock in words. Texts from the conversation's file are marked as
    stored.
    """
    name = holder_details(lock, word)
    since = str(lock.get("timestamp") or "an unknown time")
    return (
        f"{word(str(lock.get('user') or 'somebody'))}{name} on "
        f"{word(str(lock.get('host') or '?'))} since {word(since)}"
    )


def explained(error: CapsuleError) -> str:
    """Return an error of the store in words, with the tool that helps."""
    match error:
        case Locked():
            text = f"conversation {error.id} is locked by {describe_holder(error.holder)}; nothing was done"
        case LockLost():
            lock_state = (
                f"it is now locked by {describe_holder(error.holder)}"
                if error.holder
                else "it is not locked now"
            )
            text = (
                f"the lock this server held on conversation {error.id} was taken away: {lock_state}; "
                "nothing was done"
            )
        case InvalidDocument():
            text = (
                f"{visible(error.message)}\nThe file stays unchanged; a person has to correct "
                "it. Tell the user."
            )
        case Refused(path=""):  # By a rule. What the system refuses has a path.
            text = f"{visible(error.message)}; nothing was done"
        case StorageFailed() | Refused():
            text = (
                f"{visible(error.message)}\nThe system refused it; nothing was done. Tell the user."
            )
        case _:
            text = visible(error.message)
    if error.remedy is None:
        return text
    return f"{text}; {visible(REMEDIES[error.remedy.action].format(error.remedy.on))}"


def ensure_known_arguments(
    name: str, arguments: Mapping[str, Any], parameters: Collection[str]
) -> None:
    """Raise ToolError if a tool is called with an argument that it does not have."""
    unknown = [argument for argument in arguments if argument not in parameters]
    if unknown:
        names = ", ".join(quoted(argument, _MAX_ECHO_CHARS) for argument in unknown[:5])
        raise ToolError(
            f"{name} was not called: it has no argument {names}; its arguments are: "
            f"{', '.join(parameters)}"
        )


def tool_error(name: str, error: ToolError, arguments: Mapping[str, Any]) -> ToolError:
    """Return the error for the client in place of an error that a tool ended in. It may be the
    same.

    Of a long argument, it repeats only the beginning.

    Args:
        name: The name of the tool.
        error: The error that the SDK raised. Its cause is the original error.
        arguments: The arguments of the call.
    """
    cause = error.__cause__
    if isinstance(cause, CapsuleError):
        return ToolError(_shortened(explained(cause), arguments))
    # Without a cause, the tool or this server raised it with its own text.
    if isinstance(error, UnexpectedToolError) or cause is None:
        return error
    if isinstance(cause, ValidationError):
        faults = [
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
            for fault in cause.errors(include_url=False)
        ]
        return ToolError(
            _shortened(f"{name} was not called: {visible('; '.join(faults))}", arguments)
        )
    if isinstance(cause, ExplainedError):
        return ToolError(str(cause))
    # Any other cause is the SDK's own error for a wrong answer of the client. Its words name the
    # function that asked.
    return ToolError(
        f"Nothing was done: the answer did not fit the question, so it counts as no. {ASK_NO_MORE}"
    )


def client_refusal(error: MCPError) -> ToolError:
    """Return the error of a tool whose question the client answered with an error."""
    client_message = quoted(error.error.message, _MAX_ECHO_CHARS)
    return ToolError(
        f"Nothing was done: the client answered the question with the error {client_message}, which "
        f"counts as no. {ASK_NO_MORE}"
    )


def _shortened(text: str, arguments: Mapping[str, Any]) -> str:
    """Return an error without the ends of long arguments, and not longer
    than `_MAX_ERROR_CHARS`.
    """
    for value in sorted(_texts(arguments), key=len, reverse=True):
        if len(value) > _MAX_ECHO_CHARS:
            text = text.replace(visible(value), visible(value[:_MAX_ECHO_CHARS]) + "\u2026")
    return (
        text
        if len(text) <= _MAX_ERROR_CHARS
        else f"{text[: _MAX_ERROR_CHARS - 500]}\u2026 {text[-450:]}"
    )


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in nested arguments."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, part in value.items():
            yield key
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
