"""The questions to the user before something is done, and the answers where the client can't ask.

What must stay true: nothing is done unless the user said yes. A client that can ask always asks.
Only where it can't does `confirm: true` count, with which the model says that it asked the user;
and not even that is enough to replace or remove words of a person. The SDK carries a question in
either era of the protocol: a request in the middle of the call, or an answer that asks for more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mcp.server.mcpserver import Context, Elicit
from mcp.server.mcpserver.resolve import AcceptedElicitation, ElicitationResult, Resolve
from mcp_types.version import is_version_at_least
from pydantic import BaseModel, ConfigDict, Field

from capsule.errors import InvalidDocument, InvalidInput
from capsule.format.references import find_message
from capsule.mcp_server.errors import ASK_NO_MORE, ExplainedError, describe_holder
from capsule.mcp_server.stores import access_of, resolve_conversation, store_of
from capsule.store.objects.edits import author_relation
from capsule.untrusted_text import counted, quoted, word

if TYPE_CHECKING:
    from capsule.format.documents.head import Head


#: What `delete_messages` takes out.
What = Literal["with_answers", "alone", "other_branches"]
_ASKS_IN_ITS_ANSWER = "2026-07-28"


class Confirmation(BaseModel):
    """The user's answer. Another form of it counts as no (`errors.of_tool`)."""

    # The title is part of the form that the client gets.
    model_config = ConfigDict(extra="forbid", strict=True, title="Yes")
    yes: bool = Field(default=True, title="Do it")


def can_ask(ctx: Context) -> bool:
    """Return whether the client can ask its user."""
    if ctx.protocol_version is None:
        return False
    asks = ctx.client_capabilities.elicitation if ctx.client_capabilities else None
    if asks is None or (asks.form is None and asks.url is not None):
        return False
    return (
        is_version_at_least(ctx.protocol_version, _ASKS_IN_ITS_ANSWER)
        or ctx.session.can_send_request
    )


def _ask(
    ctx: Context, question: str, confirm: bool, *, instead: str = ""
) -> Confirmation | Elicit[Confirmation]:
    """The question; where the client can't ask, `confirm` is the answer, unless there is something
    to do `instead`.
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


def ensure_confirmed(asked: ElicitationResult[Confirmation]) -> None:
    """Raise unless the user said yes."""
    if isinstance(asked, AcceptedElicitation):
        if asked.data.yes:
            return
        said = "said no"
    else:
        said = "declined" if asked.action == "decline" else "closed the question without an answer"
    raise ExplainedError(f"Nothing was done: the user {said}. {ASK_NO_MORE}")


def _named(head: Head) -> str:
    return f"{quoted(head.title)} ({head.id})" if head.title else head.id


def ask_to_delete(ctx: Context, id: str, confirm: bool) -> Confirmation | Elicit[Confirmation]:
    """Delete this conversation?"""
    store, id = resolve_conversation(ctx, id)
    try:
        named = _named(store.head(id))
        history: list[dict[str, Any]] = store.document(id)["history"]
        are_own = all(author_relation(entry, access_of(ctx).name) == "own" for entry in history)
    except InvalidDocument:
        named, are_own = f"{id}, whose file is damaged", False
    question = f"Delete the conversation {named}? It goes to the store's trash."
    return _ask(
        ctx,
        question,
        confirm,
        instead="" if are_own else f"The user can do it: capsule delete {id}",
    )


class CurrentTitle(BaseModel):
    """The title that stands there when the user is asked."""

    title: str


def current_title(ctx: Context, id: str, title: str) -> CurrentTitle:
    """The title that is to be replaced; empty when none is."""
    store = store_of(ctx)
    return CurrentTitle(title=store.head(store.resolve(id)).title if title else "")


def ask_to_retitle(
    ctx: Context,
    id: str,
    title: str,
    confirm: bool,
    standing: Annotated[CurrentTitle, Resolve(current_title)],
) -> Confirmation | Elicit[Confirmation]:
    """Replace a title that a person gave?"""
    if not title:
        return Confirmation()
    store = store_of(ctx)
    head = replace(store.head(store.resolve(id)), title=standing.title)
    if not head.named or head.title == title.strip(" \t"):
        return Confirmation()
    return _ask(ctx, f"Replace the title of {_named(head)} by {quoted(title)}?", confirm)


class PlannedRemoval(BaseModel):
    """The messages that go when the user agrees; none of them where the call takes none out."""

    message: str = ""
    alone: bool = False
    words: str = ""
    ids: tuple[str, ...] = ()
    roles: dict[str, int] = {}
    are_own: bool = True

    @property
    def count(self) -> str:
        """How many messages there are, and how many of each role."""
        roles = ", ".join(f"{n} {word(role)}" for role, n in self.roles.items())
        return f"{counted(len(self.ids), 'message')} ({roles})"


def planned_removal(ctx: Context, id: str, message: str, what: What) -> PlannedRemoval:
    """The messages that a call of `delete_messages` takes out."""
    if bool(message) == (what == "other_branches"):
        needs = "takes no message" if message else "needs message: its id, @N or @last"
        raise InvalidInput(f"what {what} {needs}")
    store, id = resolve_conversation(ctx, id)
    if not message:
        removal = store.branches.trim(id, dry_run=True)
        are_own = _are_own(ctx, store.branches.tree(id)[0], removal.ids)
        words = "everything outside of the active branch"
        return PlannedRemoval(words=words, ids=removal.ids, roles=removal.roles, are_own=are_own)
    history, _, _ = store.branches.tree(id)
    place = find_message(history, message, id)
    which, alone = str(history[place]["id"]), what == "alone"
    removal = store.branches.remove(id, which, keep_children=alone, dry_run=True)
    with_it = "and all that answers it" if len(removal.ids) > 1 else "and keep its answers"
    said = f"message @{place} {quoted(history[place]['content'], 60)} {with_it}"
    are_own = _are_own(ctx, history, removal.ids)
    return PlannedRemoval(
        message=which,
        alone=alone,
        words=said,
        ids=removal.ids,
        roles=removal.roles,
        are_own=are_own,
    )


def _are_own(ctx: Context, history: Iterable[Mapping[str, Any]], ids: Collection[str]) -> bool:
    me = access_of(ctx).name
    return all(author_relation(entry, me) == "own" for entry in history if entry["id"] in ids)


def ask_to_remove(
    ctx: Context,
    id: str,
    confirm: bool,
    leaving: Annotated[PlannedRemoval, Resolve(planned_removal)],
) -> Confirmation | Elicit[Confirmation]:
    """Delete these messages?"""
    if not leaving.ids:
        return Confirmation()
    store, id = resolve_conversation(ctx, id)
    head = store.head(id)
    planned_removal = f"{leaving.words}, {leaving.count}? They go to the store's trash."
    question = f"Delete from the conversation {_named(head)}: {planned_removal}"
    which = f"The user can do it: capsule delete {head.id} --which {leaving.message}"
    command = which if leaving.message else f"The user can do it: capsule branch trim {head.id}"
    return _ask(ctx, question, confirm, instead="" if leaving.are_own else command)


class EditTarget(BaseModel):
    """The message that is edited.

    Attributes:
        id: Its id.
        needs_yes: Whether the edit replaces words that are not the caller's own, so that the user
            is asked.
    """

    id: str
    needs_yes: bool


def edit_target(ctx: Context, id: str, message: str, content: str) -> EditTarget:
    """The message that a call means."""
    store = store_of(ctx)
    found = store.find_message(store.resolve(id), message)
    is_own = (
        author_relation({"role": found.role, "from": found.from_}, access_of(ctx).name) == "own"
    )
    return EditTarget(id=str(found.id), needs_yes=not is_own and found.content != content)


def ask_to_edit(
    ctx: Context, id: str, content: str, meant: Annotated[EditTarget, Resolve(edit_target)]
) -> Confirmation | Elicit[Confirmation]:
    """Replace words that are not the caller's own?"""
    if not meant.needs_yes:
        return Confirmation()
    store, id = resolve_conversation(ctx, id)
    message = store.find_message(id, meant.id)
    beside = "To put a new version beside it: branch with action edit."
    if (
        author_relation({"role": message.role, "from": message.from_}, access_of(ctx).name)
        == "agent"
    ):
        raise ExplainedError(
            f"Nothing was done: message {word(meant.id)} is by {quoted(str(message.from_))}, not "
            f"by you. {beside}"
        )
    which = (
        f"message @{message.at} {quoted(message.content, 60)} of the conversation "
        f"{_named(store.head(id))}"
    )
    return _ask(
        ctx,
        f"Replace {which} by {quoted(content, 60)}? A copy stays in the trash.",
        confirm=False,
        instead=f"The user can do it: capsule edit {id} --which {meant.id}. {beside}",
    )


def ask_to_take_over(ctx: Context, id: str, confirm: bool) -> Confirmation | Elicit[Confirmation]:
    """Take over the lock of somebody who is gone?"""
    store, id = resolve_conversation(ctx, id)
    head = store.head(id)
    state = store.locks.state(head)
    if state is None or state.state != "orphaned":
        return Confirmation()
    question = (
        f"Take over the lock on {_named(head)}? Its holder is {describe_holder(head.lock or {})}, "
        "whose program has ended."
    )
    return _ask(ctx, question, confirm)


def ask_to_unlock(
    ctx: Context, id: str, force: bool, confirm: bool
) -> Confirmation | Elicit[Confirmation]:
    """Take the lock from somebody else?"""
    store, id = resolve_conversation(ctx, id)
    head = store.head(id)
    state = store.locks.state(head)
    if not force or state is None or state.instance == store.instance_id:
        return Confirmation()
    gone = "whose program has ended" if state.state == "orphaned" else "who may be writing"
    return _ask(
        ctx,
        f"Take the lock on {_named(head)} from {describe_holder(head.lock or {})}, {gone}?",
        confirm,
    )
