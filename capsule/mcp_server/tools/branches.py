"""The tools for branches: one adds and switches branches, the other removes messages.

What must stay true: one call is one action of the store. Messages are removed only after the user
agreed to the removal of exactly these. An argument that an action does not use is refused.
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
_ACTIONS_WITH_MESSAGE = ("switch", "edit")
_ACTIONS_WITH_CONTENT = ("edit", "regenerate")
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
    if action in _ACTIONS_WITH_MESSAGE and not message:
        raise InvalidInput(f"action {action} needs message: its id, @N or @last")
    if (action in _ACTIONS_WITH_CONTENT) != bool(content):
        needs = "needs content: the text of the new message" if not content else "takes no content"
        raise InvalidInput(f"action {action} {needs}")
    if idempotencyKey and action in _STEPS:
        raise InvalidInput(f"action {action} makes nothing, so it takes no idempotencyKey")
    (store, conversation_id), key = resolve_conversation(ctx, id), idempotencyKey or None
    match action:
        case "fork":
            forked = store.forks.create(
                conversation_id, at=message or None, created_by=author_of_call(ctx), key=key
            )
            forked_output = conversation_output(forked, store.instance_id)
            return tool_result(
                f"Forked from {conversation_id}: {conversation_line(forked_output)}",
                BranchOutput(id=forked_output.id),
            )
        case "edit":
            return _new_version_result(
                conversation_id,
                store.branches.revise(
                    conversation_id, message, content, key=key, **author_field(ctx)
                ),
            )
        case "regenerate":
            return _new_version_result(
                conversation_id,
                store.branches.regenerate(
                    conversation_id, content, message or None, key=key, **author_field(ctx)
                ),
            )
    switched = store.branches.switch(conversation_id, message or None, step=_STEPS[action])
    leaf = visible(switched.leaf)
    verb, already = ("Switched", "") if switched.changed else ("Nothing was done", " already")
    outcome = f"leads through message {word(visible(switched.message))} to {word(leaf)}{already}"
    return tool_result(
        f"{verb}: the active branch of conversation {conversation_id} {outcome}.",
        BranchOutput(id=conversation_id, leaf=leaf),
    )


def _new_version_result(id: str, message: Message) -> CallToolResult:
    """Return the result of a call that made an alternative of a message."""
    leaf = visible(str(message.id))
    outcome = (
        f"Made: message {word(leaf)} (@{message.at}) of conversation {id}; the active branch "
        "leads through it."
    )
    return tool_result(outcome, BranchOutput(id=id, leaf=leaf))


def delete_messages(
    ctx: Context,
    id: Id,
    removal_plan: Annotated[PlannedRemoval, Resolve(confirmations.planned_removal)],
    answer: Annotated[ElicitationResult[Confirmation], Resolve(confirmations.ask_to_remove)],
    message: Annotated[str, Field(description="Id, @N or @last; for all but other_branches")] = "",
    what: Annotated[
        What, Field(description="other_branches: all but the active branch")
    ] = "with_answers",
    confirm: Confirm = False,
) -> Annotated[CallToolResult, BranchOutput]:
    """Move a message and all its answers, or it alone, or the other branches to the trash, after
    asking the user. Your own message goes alone."""
    ensure_confirmed(answer)
    store, conversation_id = resolve_conversation(ctx, id)
    if not removal_plan.ids:
        return tool_result(
            f"Nothing was done: conversation {conversation_id} has no other branch.",
            BranchOutput(id=conversation_id),
        )
    is_agreed = confirmations.can_ask(ctx)  # Else all that goes is the caller's own.
    if removal_plan.message:
        removal = store.branches.remove(
            conversation_id,
            removal_plan.message,
            keep_children=removal_plan.alone,
            expected=removal_plan.ids,
            is_agreed=is_agreed,
        )
    else:
        removal = store.branches.trim(
            conversation_id, expected=removal_plan.ids, is_agreed=is_agreed
        )
    leaf = visible(removal.leaf) if removal.leaf else None
    end_text = f"the active branch ends at message {word(leaf)}" if leaf else "no message is left"
    outcome = (
        f"Deleted from conversation {conversation_id}: {removal_plan.count}; {end_text}. The user can bring them "
        f"back: capsule restore {conversation_id}"
    )
    return tool_result(
        outcome, BranchOutput(id=conversation_id, leaf=leaf, removed=len(removal.ids))
    )
