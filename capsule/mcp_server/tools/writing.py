"""The tools that change something.

What must stay true: a tool checks its arguments, makes one call of the store, and returns an
output. An argument that an action does not use is refused. The user is asked before anything that a
person may not want (`questions`). Messages are removed only after the user agreed to the removal of
exactly these. The parameters have the names that clients see, so they are in camelCase.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import ElicitationResult, Resolve
from mcp_types import CallToolResult
from pydantic import Field

from capsule.errors import InvalidInput
from capsule.mcp_server.stores import (
    access_of,
    author_field,
    author_of_call,
    resolve_conversation,
    store_of,
)
from capsule.mcp_server.tools import answers, questions
from capsule.mcp_server.tools.answers import (
    AppendOutput,
    BranchOutput,
    ConversationOutput,
    WriteOutput,
    conversation_line,
    conversation_output,
    tool_result,
)
from capsule.mcp_server.tools.questions import (
    Confirmation,
    CurrentTitle,
    EditTarget,
    PlannedRemoval,
    SummaryText,
    What,
    ensure_confirmed,
    read_up_to,
    summary_text,
)
from capsule.mcp_server.tools.reading import Id, Role
from capsule.untrusted_text import visible, word

if TYPE_CHECKING:
    from capsule.format.models import Message


# -- Conversations, messages and locks -------------------------------------------------------------

Kind = Literal["chat", "direct", "group", "channel"]
Key = Annotated[
    str,
    Field(
        max_length=256, description="Any new text; a retry with the same one makes nothing twice"
    ),
]
Confirm = Annotated[bool, Field(description="The user agreed; for clients that can't ask")]


def create_conversation(
    ctx: Context,
    summary: Annotated[SummaryText, Resolve(summary_text)],
    title: Annotated[str, Field(description="Empty: made from the first user message")] = "",
    content: Annotated[str, Field(description="First message, or the summary")] = "",
    role: Annotated[
        Role | None, Field(description="Role of content; default user, for a summary assistant")
    ] = None,
    type: Annotated[
        Kind, Field(description="direct is for two, group and channel for many writers")
    ] = "chat",
    tags: Annotated[list[str], Field(description="Its tags")] = [],  # noqa: B006 - the schema's default; never changed
    summaryOf: Annotated[
        str, Field(description="Conversation that content sums up, or id:message: read up to there")
    ] = "",
    idempotencyKey: Key = "",
) -> Annotated[CallToolResult, ConversationOutput]:
    """Make a conversation. It is not locked."""
    store, key = store_of(ctx), idempotencyKey or None
    if summaryOf:
        source, up_to = read_up_to(store, summaryOf)
        head = store.summaries.add(
            source,
            summary.text,
            title=title or None,
            tags=tags,
            of=summary.mark or store.summaries.mark(source, up_to),
            type=type,
            role=role or "assistant",
            created_by=author_of_call(ctx),
            key=key,
        )
    else:
        if role and not content:
            raise InvalidInput("role is for the first message: give content too")
        messages = (
            [{"role": role or "user", "content": content, **author_field(ctx)}] if content else []
        )
        head = store.create(
            title=title or None,
            type=type,
            tags=tags,
            messages=messages,
            created_by=author_of_call(ctx),
            key=key,
        )
    output = conversation_output(head, store.instance_id)
    return tool_result(f"Made: {conversation_line(output)}", output)


def append_message(
    ctx: Context,
    id: Id,
    content: Annotated[str, Field(description="Its text")],
    role: Role = "assistant",
    sender: Annotated[str, Field(description="Agent id of the writer")] = "",
    idempotencyKey: Key = "",
) -> Annotated[CallToolResult, AppendOutput]:
    """Write a message into a conversation's own history. It is on disk when this answers."""
    store, conversation_id = resolve_conversation(ctx, id)
    author = author_field(ctx, sender)
    repeated = False
    if idempotencyKey:
        message, repeated = store.append_once(
            conversation_id, idempotencyKey, role=role, content=content, **author
        )
    else:
        message = store.append(conversation_id, role=role, content=content, **author)
    output = AppendOutput(**_write_output(conversation_id, message).model_dump(), repeated=repeated)
    outcome = "Was appended before under this key; nothing was done now" if repeated else "Appended"
    return tool_result(
        f"{outcome}: message {word(output.message)} (@{output.at}) of conversation {conversation_id}.",
        output,
    )


def _write_output(id: str, message: Message) -> WriteOutput:
    assert message.id is not None
    assert message.at is not None
    return WriteOutput(id=id, message=visible(message.id), at=message.at)


def edit_message(
    ctx: Context,
    id: Id,
    message: Annotated[str, Field(description="Id, @N or @last")],
    content: Annotated[str, Field(description="Its whole new text")],
    target: Annotated[EditTarget, Resolve(questions.edit_target)],
    answer: Annotated[ElicitationResult[Confirmation], Resolve(questions.ask_to_edit)],
) -> Annotated[CallToolResult, WriteOutput]:
    """Replace a message's text: your own, or the user's after asking them. The old text stays in
    the trash.
    """
    ensure_confirmed(answer)
    store, conversation_id = resolve_conversation(ctx, id)
    output = _write_output(
        conversation_id,
        store.edits.message(conversation_id, target.id, content, is_agreed=target.needs_yes),
    )
    return tool_result(
        f"Edited: message {word(output.message)} (@{output.at}) of conversation {conversation_id}.",
        output,
    )


def update_conversation(
    ctx: Context,
    id: Id,
    answer: Annotated[ElicitationResult[Confirmation], Resolve(questions.ask_to_retitle)],
    current_title: Annotated[CurrentTitle, Resolve(questions.current_title)],
    title: Annotated[str, Field(description="Its new title")] = "",
    tags: Annotated[
        list[str] | None, Field(description="All its tags; they replace the present ones")
    ] = None,
    pinned: Annotated[bool | None, Field(description="Pin it to the top of lists")] = None,
    archived: Annotated[bool | None, Field(description="Hide it from lists")] = None,
    mcpServers: Annotated[
        dict[str, bool | None] | None,
        Field(description="MCP servers to turn on or off; null: the default"),
    ] = None,
    confirm: Confirm = False,
) -> Annotated[CallToolResult, ConversationOutput]:
    """Change the given fields. Asks the user before it replaces a title of the user's."""
    ensure_confirmed(answer)
    store, conversation_id = resolve_conversation(ctx, id)
    head = store.update(
        conversation_id,
        title=title or None,
        instead_of=current_title.title,
        tags=tags,
        pinned=pinned,
        archived=archived,
        mcp_servers=mcpServers,
    )
    changed = conversation_output(head, store.instance_id)
    return tool_result(f"Changed: {conversation_line(changed)}", changed)


def delete_conversation(
    ctx: Context,
    id: Id,
    answer: Annotated[ElicitationResult[Confirmation], Resolve(questions.ask_to_delete)],
    confirm: Confirm = False,
) -> Annotated[CallToolResult, answers.DeletionOutput]:
    """Move a conversation to the trash, after asking the user."""
    ensure_confirmed(answer)
    store, conversation_id = resolve_conversation(ctx, id)
    # A client that can't ask is let through only where all messages are its own.
    item = store.delete(conversation_id, is_agreed=questions.can_ask(ctx))
    deleted = answers.DeletionOutput(id=item.id, deleted_at=item.deleted_at)
    return tool_result(
        f"Deleted: {item.id}. The user can bring it back: capsule restore {item.id}", deleted
    )


def lock_conversation(
    ctx: Context,
    id: Id,
    answer: Annotated[ElicitationResult[Confirmation], Resolve(questions.ask_to_take_over)],
    confirm: Confirm = False,
) -> Annotated[CallToolResult, answers.LockOutput]:
    """Lock a chat: only you can write to it until unlock_conversation, or until this
    server ends.
    """
    ensure_confirmed(answer)
    store, conversation_id = resolve_conversation(ctx, id)
    client = ctx.session.client_params
    program = None
    if client is not None:
        program = f"{client.client_info.name} {client.client_info.version}".strip()[:100]
    store.locks.take(conversation_id, client=program, agent=access_of(ctx).name)
    return tool_result(
        f"Locked for you: {conversation_id}.", answers.LockOutput(id=conversation_id, locked=True)
    )


def unlock_conversation(
    ctx: Context,
    id: Id,
    answer: Annotated[ElicitationResult[Confirmation], Resolve(questions.ask_to_unlock)],
    force: Annotated[
        bool, Field(description="Also somebody else's lock, after asking the user")
    ] = False,
    confirm: Confirm = False,
) -> Annotated[CallToolResult, answers.LockOutput]:
    """Release the lock you hold."""
    ensure_confirmed(answer)
    store, conversation_id = resolve_conversation(ctx, id)
    was_locked = store.locks.release(conversation_id, force=force)
    return tool_result(
        f"Unlocked: {conversation_id}." if was_locked else f"{conversation_id} was not locked.",
        answers.LockOutput(id=conversation_id, locked=False),
    )


# -- Branches --------------------------------------------------------------------------------------

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
    removal_plan: Annotated[PlannedRemoval, Resolve(questions.planned_removal)],
    answer: Annotated[ElicitationResult[Confirmation], Resolve(questions.ask_to_remove)],
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
    is_agreed = questions.can_ask(ctx)  # Else all that goes is the caller's own.
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
