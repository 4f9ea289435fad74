"""Decide which drafts keep their ids and senders, and turn the others into plain chats.

Invariants: imported content is data. Unless a person trusts the import, it becomes no conversation
in which agents take part, and no message from an agent or to one. Fields that are removed for that
are kept in `metadata.source`. Pure.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from capsule.format.documents.agents import is_agent_id
from capsule.format.documents.members import members_in
from capsule.ids import imported_conversation_id, is_id
from capsule.rules.policy import RESERVED_ID_PREFIX
from capsule.transfer.drafts.digests import (
    IMPORTED,
    OF_METADATA,
    RELATED,
    SOURCE,
    digest_of_message,
)
from capsule.transfer.interface import Draft, Fields
from capsule.transfer.records.round_trip import CAPSULE_KEY, with_source


def keeps_id(draft: Draft, *, is_trusted: bool) -> bool:
    """Whether a draft may come in under its own id: a chat of Capsule, and whatever is trusted."""
    is_chat = draft.metadata.get("type") in (None, "chat") and not RESERVED_ID_PREFIX.match(
        draft.id
    )
    return draft.is_own and is_id(draft.id) and (is_trusted or is_chat)


def as_plain_chat(draft: Draft, *, is_chat: bool) -> Draft:
    """A draft that is no part of what agents say to each other.

    Unless it is a chat, its participants are names, and what else it says of itself is beside our
    fields.
    """
    about = dict(draft.metadata)
    if draft.is_own:
        others = {
            name: other
            for name in RELATED
            if RESERVED_ID_PREFIX.match(other := str(about.get(name)))
        }
        about |= {
            name: imported_conversation_id(CAPSULE_KEY, other) for name, other in others.items()
        }
    if is_chat:
        return replace(draft, head={**draft.head, "metadata": about})
    said = {
        name: value
        for name, value in about.items()
        if name in ("currentNode", *OF_METADATA) and name != "type"
    }
    head: Fields = {**draft.head, "metadata": said}
    if draft.is_own:
        rest = {
            name: value
            for name, value in about.items()
            if name not in (*said, IMPORTED, "lock", "titleSetBy")
        }
        if "participants" in rest:
            rest["participants"] = [member.id for member in members_in(rest["participants"])]
        head = with_source(
            head, {**(known if isinstance(known := said.get(SOURCE), dict) else {}), **rest}
        )
    history = list(draft.history)
    for place, entry in enumerate(history):
        if "mentions" in entry or "from" in entry:
            history[place] = {name: value for name, value in entry.items() if name != "mentions"}
            if is_agent_id(str(entry.get("from", ""))):
                history[place]["from"] = sender_outside(str(entry["from"]))
    return replace(draft, head=head, history=history)


def sender_outside(agent: str) -> str:
    """Return the sender of a message that says it is from an agent. No agent has such an id."""
    return f"{agent}.imported"


def with_imported_senders(
    incoming: Mapping[str, Any], present: Mapping[str, Any] | None, agents: Container[str]
) -> dict[str, Any]:
    """Return a conversation as it comes in, in which no words that are new here are from an agent
    here.

    Args:
        incoming: The conversation as its source has it.
        present: The conversation as it is here; None: there is none.
        agents: The ids of the agents here.
    """
    known = (
        {entry["id"]: digest_of_message(entry) for entry in present["history"]} if present else {}
    )
    history = []
    for entry in incoming["history"]:
        if known.get(entry["id"]) == digest_of_message(entry):
            history.append(entry)
            continue
        named = {name: entry[name] for name in ("from", "editedBy") if entry.get(name) in agents}
        history.append({**entry, **{name: sender_outside(agent) for name, agent in named.items()}})
    return {**incoming, "history": history}
