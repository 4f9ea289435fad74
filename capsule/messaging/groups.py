"""The conversations of agents: directs of two, and groups.

What must stay true: two agents have one direct, whichever of them begins it, and also if both begin
it at once. No other pair of agents gives the same id. Permissions are checked by the Store in the
mutex of each write, not here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput, Refused
from capsule.format.documents.agents import direct_id
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.members import Member, as_json, members_in, with_joined, with_left
from capsule.format.text.titles import check_title
from capsule.messaging.directory import StoreAgents
from capsule.rules.policy import PolicyTarget, decide, raise_if_denied
from capsule.store.creation import ConversationExists, write_new

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.change.conversation import Conversation
    from capsule.store.store import CoreStore


_RANDOM = "abcdefghijklmnopqrstuvwxyz0123456789"
Document = dict[str, Any]


def random_suffix() -> str:
    """Return nine random characters, for an id that nobody can guess."""
    import secrets  # Imported here: it loads OpenSSL, which a command that only reads does not need.

    return "".join(secrets.choice(_RANDOM) for _ in range(9))


def ensure_direct(acting: CoreStore, a: str, b: str) -> str:
    """Make the direct of two agents, unless it exists, and return its id.

    Args:
        acting: The store that acts for one of them.
        a, b: The agents.

    Raises Refused if both are the same agent. Cost: writing a new file.
    """
    if a == b:
        raise Refused(f"{a} can't write to itself: a message goes to another agent", path="")
    id = direct_id(a, b)
    both = sorted((a, b))
    document = new_capsule(
        id,
        ", ".join(both),
        timestamps.now(),
        type="direct",
        metadata={"participants": both, "createdBy": a},
    )
    with suppress(ConversationExists):  # The other agent was quicker.
        write_new(acting.inner, document)
    return id


class TypedConversations:
    """The base of objects that make and change the conversations of one type."""

    #: The type of the conversations.
    _type = ""

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.object_of(StoreAgents)

    def _acting_agent(self, agent: str | None) -> str | None:
        """Return the agent that a call is for. None: the store's owner."""
        if agent is None and self._store.agent is None:
            return None
        return self._store.inner.required_agent(agent)

    def _change(self, id: str, agent: str | None, change: Callable[[Document, str], None]) -> Head:
        """Change the head of a conversation.

        Args:
            id: The conversation.
            agent: The agent that changes it. None: as `_acting_agent`.
            change: Changes the head in place. It takes the head and the time of the change.
        """
        acting = self._store.inner.store_for(self._acting_agent(agent))

        def change_conversation(conversation: Conversation) -> Document:
            if conversation.head.type != self._type:
                raise InvalidInput(
                    f"conversation {id} is not a {self._type}, but a {conversation.head.type}"
                )
            # Later than each message: a new participant reads messages from this time on.
            state = conversation.transaction.state
            stamp = timestamps.later_than(max(state.newest_message_time, state.updated_at))
            return conversation.change_head(lambda head: change(head, stamp))

        with self._people.recording_requests(acting.agent):
            document = acting.inner.change(id, change_conversation)
            return acting.inner.parsed_head(id, document)

    def _write_new(self, maker: str | None, document: Document) -> Head:
        """Write a new conversation. An agent can add only agents that exist.

        Args:
            maker: The agent that makes it. None: the store's owner.
            document: The conversation.
        """
        inner = self._store.inner.store_for(maker).inner
        target = PolicyTarget.from_document(document)
        with self._people.recording_requests(maker):
            if not all(map(self._people.documents.exists, target.present_ids)):
                # Without members, all participants count as added by the maker.
                without_members = replace(target, members=())
                inputs = inner.inputs_for(without_members, target.present_ids)
                raise_if_denied(decide(maker, "create", target, inputs), target.id)
            return write_new(inner, document)


class Groups(TypedConversations):
    """Conversations of several agents, which only they read and write."""

    _type = "group"

    def create(
        self,
        name: str,
        *,
        agent: str | None = None,
        with_: Iterable[str] = (),
        history: str = "joined",
    ) -> Head:
        """Make a group.

        Args:
            name: Its name.
            agent: The agent that makes it and takes part. None: the one that the store acts for, or
                the store's owner, who takes no part.
            with_: The other agents that take part.
            history: What an agent reads that is added later. `joined`: messages since it was added.
                `all`: everything.

        Raises:
            NotFound: The agent does not exist. An agent gets Refused instead.
            InvalidInput: The name or `history` can't be accepted, or nobody would take part.
            Refused: One of the agents lets the maker not write to it, as `agents.discover` says.
            StorageFailed: The system refused a read or a write.

        Cost: writing a new file.
        """
        maker = self._acting_agent(agent)
        if maker is not None:
            self._people.documents.ensure_exists(maker)
        if history not in ("joined", "all"):
            raise InvalidInput(f"history: joined or all, not {history[:40]!r}")
        others = self._people.directory.resolve_all(with_, maker)
        members = dict.fromkeys(others if maker is None else (maker, *others))
        if not members:
            raise InvalidInput("a group needs a participant; name the agents that take part")
        stamp = timestamps.now()
        metadata: Document = {
            "participants": as_json(Member(id, stamp) for id in members),
            "createdBy": maker,
        }
        if history == "all":
            metadata["history"] = history
        id = f"group_{time.time_ns() // 1_000_000}_{random_suffix()}"
        document = new_capsule(
            id, check_title(name), stamp, type="group", title_set_by="user", metadata=metadata
        )
        return self._write_new(maker, document)

    def add(self, id: str, agents: Iterable[str], *, agent: str | None = None) -> Head:
        """Add agents to a group, or let them come back. It comes back from the archive too.

        Args:
            id: The group.
            agents: The agents to add. Those that take part already stay as they are.
            agent: The agent that adds them. None: the one that the store acts for, or the store's
                owner.

        Raises:
            NotFound: There is no such group that the agent takes part in, or no such agent. For an
                agent that does not exist an agent gets Refused.
            Refused: One of the added agents lets the agent not write to it, as `agents.discover`
                says.
            InvalidInput: The conversation is no group.

        Cost: copying the file.
        """
        added = self._people.directory.resolve_all(agents, self._acting_agent(agent))

        def change(head: Document, stamp: str) -> None:
            head["metadata"]["participants"] = with_joined(
                head["metadata"].get("participants"), added, stamp
            )
            head["metadata"].pop("archived", None)

        return self._change(id, agent, change)

    def leave(self, id: str, *, agent: str | None = None) -> Head:
        """Leave a group. When the last one leaves, it is archived.

        Args:
            id: The group.
            agent: The agent that leaves. None: the one that the store acts for.

        Raises the errors of `add`. Cost: copying the file.
        """
        leaving_agent = self._store.inner.required_agent(agent)

        def change(head: Document, stamp: str) -> None:
            metadata = head["metadata"]
            participants = with_left(metadata.get("participants"), [leaving_agent], stamp)
            metadata["participants"] = participants
            if not any(member.is_in for member in members_in(participants)):
                metadata["archived"] = True

        return self._change(id, leaving_agent, change)

    def rename(self, id: str, name: str, *, agent: str | None = None) -> Head:
        """Give a group another name.

        Args:
            id: The group.
            name: The name.
            agent: The agent that renames it. None: the one that the store acts for, or the store's
                owner.

        Raises the errors of `add`. Cost: copying the file.
        """
        title = check_title(name)
        return self._change(id, agent, lambda head, stamp: head.update(title=title))

    def list(self, *, agent: str | None = None) -> list[Head]:
        """List the groups that an agent takes part in, the latest first. For the owner: all groups.

        Args:
            agent: The agent. None: the one that the store acts for, or the store's owner.

        Raises NotFound, Refused. Cost: bringing the index up to date, and reading the beginning of
        each group's file.
        """
        reader = self._acting_agent(agent)
        if reader is None:
            from capsule.engines.queries import ListRequest

            heads = self._store.queries.conversations(ListRequest()).heads
            return [head for head in heads if head.type == "group"]
        acting = self._store.inner.store_for(reader)
        participations = self._store.queries.participations(reader)
        return [
            acting.head(participation.id)
            for participation in participations
            if participation.type == "group"
        ]
