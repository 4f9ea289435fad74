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
from capsule.transfer.records.coercion import without
from capsule.transfer.records.round_trip import CAPSULE_KEY, with_source


def keeps_id(draft: Draft, *, is_trusted: bool) -> bool:
    """Return whether a draft keeps its id: a chat of Capsule, or any trusted capsule."""
    if not draft.is_own or not is_id(draft.id):
        return False
    is_chat = draft.metadata.get("type") in (None, "chat")
    return is_trusted or (is_chat and not RESERVED_ID_PREFIX.match(draft.id))


def as_plain_chat(draft: Draft, *, is_chat: bool) -> Draft:
    """Return a draft that is no conversation of agents.

    Args:
        draft: The draft.
        is_chat: Whether it is a chat already. Then only its links to conversations of agents are
            changed. Otherwise its participants become names, and its other unknown metadata is
            moved to `metadata.source`.
    """
    metadata = dict(draft.metadata)
    if draft.is_own:
        for name in RELATED:
            related_id = str(metadata.get(name))
            if RESERVED_ID_PREFIX.match(related_id):
                metadata[name] = imported_conversation_id(CAPSULE_KEY, related_id)
    if is_chat:
        return replace(draft, head={**draft.head, "metadata": metadata})
    plain_metadata = {
        name: value
        for name, value in metadata.items()
        if name in ("currentNode", *OF_METADATA) and name != "type"
    }
    head: Fields = {**draft.head, "metadata": plain_metadata}
    if draft.is_own:
        removed = without(metadata, *plain_metadata, IMPORTED, "lock", "titleSetBy")
        if "participants" in removed:
            removed["participants"] = [member.id for member in members_in(removed["participants"])]
        head = with_source(head, {**_source_of(plain_metadata), **removed})
    history = [_without_agents(entry) for entry in draft.history]
    return replace(draft, head=head, history=history)


def _source_of(metadata: Fields) -> Fields:
    source = metadata.get(SOURCE)
    return source if isinstance(source, dict) else {}


def _without_agents(entry: Fields) -> Fields:
    """Return a message without mentions, and not from an agent."""
    if "mentions" not in entry and "from" not in entry:
        return entry
    plain_entry = without(entry, "mentions")
    sender = str(entry.get("from", ""))
    if is_agent_id(sender):
        plain_entry["from"] = sender_outside(sender)
    return plain_entry


def sender_outside(agent: str) -> str:
    """Return the sender for an imported message that names an agent. No agent has such an id."""
    return f"{agent}.imported"


def with_imported_senders(
    incoming: Mapping[str, Any], present: Mapping[str, Any] | None, agents: Container[str]
) -> dict[str, Any]:
    """Return an imported conversation in which no new message is from an agent of this store.

    Args:
        incoming: The conversation as its source has it.
        present: The conversation as this store has it. None: it is new.
        agents: The ids of the agents of this store.
    """
    present_digests: dict[str, str] = {}
    if present:
        for entry in present["history"]:
            present_digests[entry["id"]] = digest_of_message(entry)
    history = []
    for entry in incoming["history"]:
        if present_digests.get(entry["id"]) == digest_of_message(entry):
            history.append(entry)
            continue
        new_senders = {
            name: sender_outside(entry[name])
            for name in ("from", "editedBy")
            if entry.get(name) in agents
        }
        history.append({**entry, **new_senders})
    return {**incoming, "history": history}
