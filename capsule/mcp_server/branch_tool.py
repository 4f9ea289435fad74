"""The tool `branch`: all that is done with the branches of a conversation, behind one name.

What must stay true: one call is one action of the store; messages are taken out only when the user agreed to these
very ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.resolve import ElicitationResult, Resolve
from mcp_types import CallToolResult
from pydantic import Field

from capsule.errors import InvalidInput
from capsule.mcp_server import questions
from capsule.mcp_server.access import author, written_by
from capsule.mcp_server.fence import visible, word
from capsule.mcp_server.questions import Going, Yes, agreed
from capsule.mcp_server.reading_tools import Id
from capsule.mcp_server.results import Branched, about, answer, conversation_of
from capsule.mcp_server.stores import store_of
from capsule.mcp_server.writing_tools import Confirm

if TYPE_CHECKING:
    from capsule.format.models import Message
    from capsule.store import Store

__all__ = ["branch"]

Action = Literal["switch", "next", "previous", "edit", "regenerate", "fork", "delete", "delete_one", "prune"]
_NEEDS_MESSAGE = ("switch", "edit", "delete", "delete_one")
_NEEDS_CONTENT = ("edit", "regenerate")
_STEPS = {"switch": 0, "next": 1, "previous": -1}


def branch(
    ctx: Context,
    id: Id,
    action: Action,
    leaving: Annotated[Going, Resolve(questions.going)],
    asked: Annotated[ElicitationResult[Yes], Resolve(questions.may_remove)],
    message: Annotated[str, Field(description="Id, @N or @last")] = "",
    content: str = "",
    confirm: Confirm = False,
) -> Annotated[CallToolResult, Branched]:
    """switch to message, or next/previous beside it; edit/regenerate: new version (content) beside it; fork: new
    conversation up to it; after asking the user: delete it and its answers, delete_one: it alone, or prune other
    branches."""
    if action in _NEEDS_MESSAGE and not message:
        raise InvalidInput(f"action {action} needs message: its id, @N or @last")
    if action in _NEEDS_CONTENT and not content:
        raise InvalidInput(f"action {action} needs content: the text of the new message")
    agreed(asked)
    store = store_of(ctx)
    id = store.resolve(id)
    match action:
        case "fork":
            made = conversation_of(store.fork(id, at=message or None, created_by=author(ctx)), store.instance_id)
            return answer(f"Forked from {id}: {about(made)}", Branched(id=made.id))
        case "edit":
            return _beside(id, store.branch(id, message, content, **written_by(ctx)))
        case "regenerate":
            return _beside(id, store.regenerate(id, content, message or None, **written_by(ctx)))
        case "delete" | "delete_one" | "prune":
            return _without(store, id, leaving)
    switched = store.switch(id, message or None, step=_STEPS[action])
    leaf = visible(switched.leaf)
    done, already = ("Switched", "") if switched.changed else ("Nothing was done", " already")
    said = f"leads through message {word(visible(switched.message))} to {word(leaf)}{already}"
    return answer(f"{done}: the active branch of conversation {id} {said}.", Branched(id=id, leaf=leaf))


def _beside(id: str, message: Message) -> CallToolResult:
    leaf = visible(str(message.id))
    said = f"Made: message {word(leaf)} (@{message.at}) of conversation {id}, where the active branch now ends."
    return answer(said, Branched(id=id, leaf=leaf))


def _without(store: Store, id: str, leaving: Going) -> CallToolResult:
    """Take the messages out to which the user agreed."""

    if not leaving.ids:
        return answer(f"Nothing was done: conversation {id} has no other branch.", Branched(id=id))
    if leaving.message:
        removal = store.delete_message(id, leaving.message, keep_children=leaving.alone, expected=leaving.ids)
    else:
        removal = store.prune(id, expected=leaving.ids)
    leaf = visible(removal.leaf) if removal.leaf else None
    now = f"the active branch ends in message {word(leaf)}" if leaf else "no message is left"
    said = f"Deleted from conversation {id}: {leaving.count}; {now}."
    return answer(said, Branched(id=id, leaf=leaf, removed=len(removal.ids)))
