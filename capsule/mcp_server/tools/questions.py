"""Ask the client before a tool runs: its user for consent, or its model for a summary (sampling, until
the protocol of 2025-11-25).

Each tool that needs consent has a function `ask_to_...`. The SDK calls it before the tool, and
gives the tool the user's answer. The question is a request during the call, or a result that asks
for more, by the era of the protocol.

What must stay true:
- Nothing is done unless the user agreed. A client that can ask always asks. Only if it can't,
  `confirm: true` counts, by which the model says that it asked the user. Even that is not enough to
  replace or remove the text of a person.
- The model is asked only for a summary that the call does not bring. The conversation is given to it
  fenced, as data. The summary records the last message that the model read, not a later one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import anyio.to_thread
from mcp.server.mcpserver import Context, Elicit
from mcp.server.mcpserver.resolve import AcceptedElicitation, ElicitationResult, Resolve
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    SamplingMessage,
    TextContent,
)
from mcp_types.version import is_version_at_least
from pydantic import BaseModel, ConfigDict, Field

from capsule.errors import InvalidDocument, InvalidInput
from capsule.format.references import find_message
from capsule.mcp_server.errors import ASK_NO_MORE, ExplainedError, describe_holder
from capsule.mcp_server.stores import access_of, resolve_conversation, store_of
from capsule.store.objects.edits import author_relation
from capsule.store.objects.summaries import Mark
from capsule.untrusted_text import TextFence, counted, quoted, visible, word

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.store import CoreStore


# -- Questions to the user -------------------------------------------------------------------------

#: The messages that `delete_messages` removes.
What = Literal["with_answers", "alone", "other_branches"]
#: From this version of the protocol on, a result can ask a question.
_QUESTION_IN_RESULT = "2026-07-28"


class Confirmation(BaseModel):
    """The user's answer. An answer of another form counts as no (`errors.tool_error`)."""

    # The title is part of the form that the client gets.
    model_config = ConfigDict(extra="forbid", strict=True, title="Yes")
    yes: bool = Field(default=True, title="Do it")


def can_ask(ctx: Context) -> bool:
    """Return whether the client can ask its user."""
    if ctx.protocol_version is None:
        return False
    elicitation = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return (
        is_version_at_least(ctx.protocol_version, _QUESTION_IN_RESULT)
        or ctx.session.can_send_request
    )


def _ask(
    ctx: Context, question: str, confirm: bool, *, instead: str = ""
) -> Confirmation | Elicit[Confirmation]:
    """Return the question for the client, or the answer of a client that can't ask.

    Args:
        ctx: The context of the call.
        question: The question.
        confirm: Whether the model says that it asked the user.
        instead: What to do instead, if this is not enough. Empty: it is enough.

    Raises ExplainedError: the client can't ask, and `confirm` is not enough.
    """
    if can_ask(ctx):
        return Elicit(question, Confirmation)
    if instead:
        raise ExplainedError(
            "Nothing was done. This text is by somebody else, so the user must be asked, and "
            f"the client can't ask: {question} {instead}"
        )
    if confirm:
        return Confirmation()
    raise ExplainedError(
        f"Nothing was done. This needs the user's consent, and the client can't ask: {question} "
        "If the user agrees, call again with confirm: true."
    )


def ensure_confirmed(answer: ElicitationResult[Confirmation]) -> None:
    """Raise ExplainedError unless the user agreed."""
    if isinstance(answer, AcceptedElicitation):
        if answer.data.yes:
            return
        outcome = "said no"
    elif answer.action == "decline":
        outcome = "declined"
    else:
        outcome = "closed the question without an answer"
    raise ExplainedError(f"Nothing was done: the user {outcome}. {ASK_NO_MORE}")


def _title_and_id(head: Head) -> str:
    return f"{quoted(head.title)} ({head.id})" if head.title else head.id


def ask_to_delete(ctx: Context, id: str, confirm: bool) -> Confirmation | Elicit[Confirmation]:
    """Ask whether to delete a conversation."""
    store, conversation_id = resolve_conversation(ctx, id)
    try:
        description = _title_and_id(store.head(conversation_id))
        history: list[dict[str, Any]] = store.document(conversation_id)["history"]
        is_all_own = all(author_relation(entry, access_of(ctx).name) == "own" for entry in history)
    except InvalidDocument:
        description, is_all_own = f"{conversation_id}, whose file is damaged", False
    question = f"Delete the conversation {description}? It goes to the store's trash."
    return _ask(
        ctx,
        question,
        confirm,
        instead="" if is_all_own else f"The user can do it: capsule delete {conversation_id}",
    )


class CurrentTitle(BaseModel):
    """The title at the time of the question."""

    title: str


def current_title(ctx: Context, id: str, title: str) -> CurrentTitle:
    """Return the title that the call replaces. Empty: it replaces none."""
    store = store_of(ctx)
    return CurrentTitle(title=store.head(store.resolve(id)).title if title else "")


def ask_to_retitle(
    ctx: Context,
    id: str,
    title: str,
    confirm: bool,
    current_title: Annotated[CurrentTitle, Resolve(current_title)],
) -> Confirmation | Elicit[Confirmation]:
    """Ask whether to replace a title that a person gave."""
    if not title:
        return Confirmation()
    store = store_of(ctx)
    head = replace(store.head(store.resolve(id)), title=current_title.title)
    if not head.named or head.title == title.strip(" \t"):
        return Confirmation()
    return _ask(ctx, f"Replace the title of {_title_and_id(head)} by {quoted(title)}?", confirm)


class PlannedRemoval(BaseModel):
    """The messages that are removed if the user agrees. They may be none.

    Attributes:
        message: The id of the message that is removed. Empty: other branches are removed.
        alone: Whether its answers stay.
        words: The description of the messages for the question.
        ids: The ids of all messages that are removed.
        roles: The number of them by role.
        are_own: Whether the caller wrote all of them.
    """

    message: str = ""
    alone: bool = False
    words: str = ""
    ids: tuple[str, ...] = ()
    roles: dict[str, int] = {}
    are_own: bool = True

    @property
    def count(self) -> str:
        """Return the number of messages, in all and of each role."""
        roles = ", ".join(f"{n} {word(role)}" for role, n in self.roles.items())
        return f"{counted(len(self.ids), 'message')} ({roles})"


def planned_removal(ctx: Context, id: str, message: str, what: What) -> PlannedRemoval:
    """Return the messages that a call of `delete_messages` removes."""
    if bool(message) == (what == "other_branches"):
        needs = "takes no message" if message else "needs message: its id, @N or @last"
        raise InvalidInput(f"what {what} {needs}")
    store, conversation_id = resolve_conversation(ctx, id)
    if not message:
        removal = store.branches.trim(conversation_id, dry_run=True)
        is_all_own = _are_own(ctx, store.branches.tree(conversation_id)[0], removal.ids)
        words = "everything outside of the active branch"
        return PlannedRemoval(words=words, ids=removal.ids, roles=removal.roles, are_own=is_all_own)
    history, _, _ = store.branches.tree(conversation_id)
    position = find_message(history, message, conversation_id)
    message_id = str(history[position]["id"])
    alone = what == "alone"
    removal = store.branches.remove(conversation_id, message_id, keep_children=alone, dry_run=True)
    with_it = "and all that answers it" if len(removal.ids) > 1 else "and keep its answers"
    description = f"message @{position} {quoted(history[position]['content'], 60)} {with_it}"
    is_all_own = _are_own(ctx, history, removal.ids)
    return PlannedRemoval(
        message=message_id,
        alone=alone,
        words=description,
        ids=removal.ids,
        roles=removal.roles,
        are_own=is_all_own,
    )


def _are_own(ctx: Context, history: Iterable[Mapping[str, Any]], ids: Collection[str]) -> bool:
    agent = access_of(ctx).name
    return all(author_relation(entry, agent) == "own" for entry in history if entry["id"] in ids)


def ask_to_remove(
    ctx: Context,
    id: str,
    confirm: bool,
    removal: Annotated[PlannedRemoval, Resolve(planned_removal)],
) -> Confirmation | Elicit[Confirmation]:
    """Ask whether to remove messages."""
    if not removal.ids:
        return Confirmation()
    store, conversation_id = resolve_conversation(ctx, id)
    head = store.head(conversation_id)
    planned_removal = f"{removal.words}, {removal.count}? They go to the store's trash."
    question = f"Delete from the conversation {_title_and_id(head)}: {planned_removal}"
    message_id = f"The user can do it: capsule delete {head.id} --which {removal.message}"
    command = (
        message_id if removal.message else f"The user can do it: capsule branch trim {head.id}"
    )
    return _ask(ctx, question, confirm, instead="" if removal.are_own else command)


class EditTarget(BaseModel):
    """The message that is edited.

    Attributes:
        id: Its id.
        needs_yes: Whether the edit replaces a text that is not the caller's own, so that the user
            is
            asked.
    """

    id: str
    needs_yes: bool


def edit_target(ctx: Context, id: str, message: str, content: str) -> EditTarget:
    """Return the message that a call edits."""
    store = store_of(ctx)
    found = store.find_message(store.resolve(id), message)
    is_own = (
        author_relation({"role": found.role, "from": found.from_}, access_of(ctx).name) == "own"
    )
    return EditTarget(id=str(found.id), needs_yes=not is_own and found.content != content)


def ask_to_edit(
    ctx: Context, id: str, content: str, target: Annotated[EditTarget, Resolve(edit_target)]
) -> Confirmation | Elicit[Confirmation]:
    """Ask whether to replace a text that is not the caller's own."""
    if not target.needs_yes:
        return Confirmation()
    store, conversation_id = resolve_conversation(ctx, id)
    message = store.find_message(conversation_id, target.id)
    hint = "To put a new version beside it: branch with action edit."
    if (
        author_relation({"role": message.role, "from": message.from_}, access_of(ctx).name)
        == "agent"
    ):
        raise ExplainedError(
            f"Nothing was done: message {word(target.id)} is by {quoted(str(message.from_))}, not "
            f"by you. {hint}"
        )
    message_id = (
        f"message @{message.at} {quoted(message.content, 60)} of the conversation "
        f"{_title_and_id(store.head(conversation_id))}"
    )
    return _ask(
        ctx,
        f"Replace {message_id} by {quoted(content, 60)}? A copy stays in the trash.",
        confirm=False,
        instead=f"The user can do it: capsule edit {conversation_id} --which {target.id}. {hint}",
    )


def ask_to_take_over(ctx: Context, id: str, confirm: bool) -> Confirmation | Elicit[Confirmation]:
    """Ask whether to take over a lock whose holder has ended."""
    store, conversation_id = resolve_conversation(ctx, id)
    head = store.head(conversation_id)
    state = store.locks.state(head)
    if state is None or state.state != "orphaned":
        return Confirmation()
    question = (
        f"Take over the lock on {_title_and_id(head)}? Its holder is {describe_holder(head.lock or {})}, "
        "whose program has ended."
    )
    return _ask(ctx, question, confirm)


def ask_to_unlock(
    ctx: Context, id: str, force: bool, confirm: bool
) -> Confirmation | Elicit[Confirmation]:
    """Ask whether to release the lock of somebody else."""
    store, conversation_id = resolve_conversation(ctx, id)
    head = store.head(conversation_id)
    state = store.locks.state(head)
    if not force or state is None or state.instance == store.instance_id:
        return Confirmation()
    holder_state = "whose program has ended" if state.state == "orphaned" else "who may be writing"
    return _ask(
        ctx,
        f"Take the lock on {_title_and_id(head)} from {describe_holder(head.lock or {})}, {holder_state}?",
        confirm,
    )


# -- Questions to the model ------------------------------------------------------------------------

#: The most tokens of the transcript for the model, and of the model's text.
_MAX_TRANSCRIPT_TOKENS = 50_000
_MAX_SUMMARY_TOKENS = 4_000


class SummaryText(BaseModel):
    """The text of a summary, and the last message that the client's model read."""

    text: str
    mark: Mark | None = None


async def summary_text(ctx: Context, content: str, summaryOf: str) -> SummaryText:
    """Return the summary to store: the given one, else one by the client's model."""
    capabilities = ctx.client_capabilities
    is_offered = (
        capabilities is not None
        and capabilities.sampling is not None
        and ctx.session.can_send_request
    )
    if content or not summaryOf or not is_offered:
        return SummaryText(text=content)
    mark, prompt = await anyio.to_thread.run_sync(_prompt, ctx, summaryOf)
    request = CreateMessageRequest(
        params=CreateMessageRequestParams(
            messages=[SamplingMessage(role="user", content=TextContent(text=prompt))],
            max_tokens=_MAX_SUMMARY_TOKENS,
        )
    )
    metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
    completion = await ctx.session.send_request(request, CreateMessageResult, metadata=metadata)
    if not isinstance(completion.content, TextContent) or not completion.content.text.strip():
        raise ExplainedError(
            "Nothing was made: the client's model wrote no summary. Give one as content."
        )
    return SummaryText(text=completion.content.text, mark=mark)


def read_up_to(store: CoreStore, summary_of: str) -> tuple[str, str | None]:
    """Parse `ID` or `ID:MESSAGE`. Return the conversation's id, and the last message that was read
    for the summary. None: the end.
    """
    conversation, _, message = summary_of.partition(":")
    return store.resolve(conversation), message or None


def _prompt(ctx: Context, conversation: str) -> tuple[Mark, str]:
    """Return the mark of the conversation's end, and the prompt for the model."""
    from capsule.format.text.tokens import estimate
    from capsule.format.text.transcript import transcript

    store = store_of(ctx)
    document = store.document(read_up_to(store, conversation)[0])
    text = visible(transcript(document, estimate, budget=_MAX_TRANSCRIPT_TOKENS).text)
    fence = TextFence([text])
    return Mark.of(document), (
        f"Sum up the conversation {quoted(document['title'])}: what it is about, what was "
        "decided, what is open. "
        "Answer with the summary alone.\n\n"
        + fence.enclose([(f"transcript of {word(document['id'])}", text)])
    )
