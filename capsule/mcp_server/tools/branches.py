"""The tools for the branches of a conversation: one that adds and switches, one that takes messages
out.

What must stay true: one call is one action of the store; messages are taken out only when the user
agreed to these very ones; and an argument that an action has no use for is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import ElicitationResult, Resolve
from mcp_types import CallToolResult
from pydantic import Field

from capsule.errors import InvalidInput
from capsule.mcp_server.stores import author_field, author_of_call, resolve_conversation
from capsule.mcp_server.tools import confirmations
from capsule.mcp_server.tools.answers.results import (
    BranchOutput,
    conversation_line,
    conversation_output,
    tool_result,
)
from capsule.mcp_server.tools.confirmations import (
    Confirmation,
    PlannedRemoval,
    What,
    ensure_confirmed,
)
from capsule.mcp_server.tools.reading import Id
from capsule.mcp_server.tools.writing import Confirm, Key
from capsule.untrusted_text import visible, word

if TYPE_CHECKING:
    from capsule.format.models import Message

Action = Literal["switch", "next", "previous", "edit", "regenerate", "fork"]
_NEEDS_MESSAGE = ("switch", "edit")
_MAKES_MESSAGE = ("edit", "regenerate")
_STEPS = {"switch": 0, "next": 1, "previous": -1}


def branch(
    ctx: Context,
    id: Id,
    action: Action,
    message: Annotated[
        str,
        Field(
            description="Id, @N or @last; needed for switch and edit; else the default "
            "is the newest"
        ),
    ] = "",
    content: Annotated[
        str, Field(description="Text of the new version, for edit and regenerate")
    ] = "",
    idempotencyKey: Key = "",
) -> Annotated[CallToolResult, BranchOutput]:
    """switch to the branch of message, or to the next/previous version beside it; edit: put a new
    version beside a message; regenerate: another answer beside one; fork: copy the branch up to
    message into a new conversation."""
    if action in _NEEDS_MESSAGE and not message:
        raise InvalidInput(f"action {action} needs message: its id, @N or @last")
    if (action in _MAKES_MESSAGE) != bool(content):
        needs = "needs content: the text of the new message" if not content else "takes no content"
        raise InvalidInput(f"action {action} {needs}")
    if idempotencyKey and action in _STEPS:
        raise InvalidInput(f"action {action} makes nothing, so it takes no idempotencyKey")
    (store, id), key = resolve_conversation(ctx, id), idempotencyKey or None
    match action:
        case "fork":
            forked = store.forks.create(
                id, at=message or None, created_by=author_of_call(ctx), key=key
            )
            made = conversation_output(forked, store.instance_id)
            return tool_result(
                f"Forked from {id}: {conversation_line(made)}", BranchOutput(id=made.id)
            )
        case "edit":
            return _beside(
                id, store.branches.revise(id, message, content, key=key, **author_field(ctx))
            )
        case "regenerate":
            return _beside(
                id,
                store.branches.regenerate(
                    id, content, message or None, key=key, **author_field(ctx)
                ),
            )
    switched = store.branches.switch(id, message or None, step=_STEPS[action])
    leaf = visible(switched.leaf)
    done, already = ("Switched", "") if switched.changed else ("Nothing was done", " already")
    said = f"leads through message {word(visible(switched.message))} to {word(leaf)}{already}"
    return tool_result(
        f"{done}: the active branch of conversation {id} {said}.", BranchOutput(id=id, leaf=leaf)
    )


def _beside(id: str, message: Message) -> CallToolResult:
    leaf = visible(str(message.id))
    said = (
        f"Made: message {word(leaf)} (@{message.at}) of conversation {id}; the active branch "
        "leads through it."
    )
    return tool_result(said, BranchOutput(id=id, leaf=leaf))


def delete_messages(
    ctx: Context,
    id: Id,
    leaving: Annotated[PlannedRemoval, Resolve(confirmations.planned_removal)],
    asked: Annotated[ElicitationResult[Confirmation], Resolve(confirmations.ask_to_remove)],
    message: Annotated[str, Field(description="Id, @N or @last; for all but other_branches")] = "",
    what: Annotated[
        What, Field(description="other_branches: all but the active branch")
    ] = "with_answers",
    confirm: Confirm = False,
) -> Annotated[CallToolResult, BranchOutput]:
    """Move a message and all its answers, or it alone, or the other branches to the trash, after
    asking the user. Your own message goes alone."""
    ensure_confirmed(asked)
    store, id = resolve_conversation(ctx, id)
    if not leaving.ids:
        return tool_result(
            f"Nothing was done: conversation {id} has no other branch.", BranchOutput(id=id)
        )
    is_agreed = confirmations.can_ask(ctx)  # Else all that goes is the caller's own.
    if leaving.message:
        removal = store.branches.remove(
            id,
            leaving.message,
            keep_children=leaving.alone,
            expected=leaving.ids,
            is_agreed=is_agreed,
        )
    else:
        removal = store.branches.trim(id, expected=leaving.ids, is_agreed=is_agreed)
    leaf = visible(removal.leaf) if removal.leaf else None
    now = f"the active branch ends at message {word(leaf)}" if leaf else "no message is left"
    said = (
        f"Deleted from conversation {id}: {leaving.count}; {now}. The user can bring them "
        f"back: capsule restore {id}"
    )
    return tool_result(said, BranchOutput(id=id, leaf=leaf, removed=len(removal.ids)))
