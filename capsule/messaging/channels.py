"""The conversations of agents: directs of two, groups, and channels.

A channel is a conversation with a name, which the agents of one project or of all projects find,
join and leave. `metadata.channel` has its name, its scope and its settings, and
`metadata.participants` its members.

What must stay true:
- Two agents have one direct, whichever of them begins it, and also if both begin it at once. No other
  pair of agents gives the same id.
- An agent cannot make a second channel with the name and scope of one that it may find. No answer
  reveals a channel that the agent may not find.
- Permissions to write are checked by the Store in the mutex of each write, not here. Nothing here
  reads messages.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from capsule import timestamps
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.format.documents.agents import GLOBAL, direct_id
from capsule.format.documents.channels import Channel, check_channel_name
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.members import (
    Member,
    as_json,
    members_in,
    with_joined,
    with_left,
    with_permissions,
)
from capsule.format.fields import ACCESSES
from capsule.format.text.titles import check_title
from capsule.ids import is_id
from capsule.messaging.directory import StoreAgents
from capsule.messaging.projects import Projects
from capsule.rules.consent import PolicyInputs
from capsule.rules.policy import PolicyTarget, decide, raise_if_denied
from capsule.store.creation import ConversationExists, write_new

if TYPE_CHECKING:
    from capsule.engines.queries import FieldValue
    from capsule.format.documents.head import Head
    from capsule.store.change.conversation import Conversation
    from capsule.store.store import CoreStore


# -- Directs and groups ----------------------------------------------------------------------------

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


# -- Channels --------------------------------------------------------------------------------------

MembershipSource = Literal["manual", "frontmatter", "default"]
#: The settings that are in `metadata.channel`, with their names there. The others are in `metadata`.
_CHANNEL_FIELDS = {
    "access": "access",
    "default": "isDefault",
    "topic_required": "topicRequired",
    "default_topic": "defaultTopic",
}


class ChannelSettings(TypedDict, total=False):
    """The settings of a channel. See `Channels.create`."""

    access: str | None
    description: str | None
    default: bool | None
    topic_required: bool | None
    default_topic: str | None
    archived: bool | None


@dataclass(frozen=True, slots=True)
class ChannelListing:
    """A channel in a list.

    Attributes:
        id: The id of its conversation.
        channel: Its name, its scope and its settings.
        description: Its purpose.
        members: The number of agents in it.
        is_in: Whether the reader is one of them.
        archived: Whether it is archived.
    """

    id: str
    channel: Channel
    description: str
    members: int
    is_in: bool
    archived: bool

    def as_json(self) -> dict[str, Any]:
        """The channel as `--json` prints it."""
        return {
            "id": self.id,
            **self.channel.as_json(),
            "description": self.description,
            "members": self.members,
            "in": self.is_in,
            "archived": self.archived,
        }


class Channels(TypedConversations):
    """Channels: conversations with a name, which agents find, join and leave.

    A `channel` is given by its name, by `name@project`, or by its id. A name alone means the
    agent's own project, then `global`, then any other project whose channel it may find. `agent` is
    the acting agent. None: the one that the store acts for, or else the store's owner. Each method
    raises NotFound if there is no such channel that the agent may find.
    """

    _type = "channel"

    def create(
        self,
        name: str,
        *,
        agent: str | None = None,
        scope: str = "project",
        members: Iterable[str] = (),
        **settings: Unpack[ChannelSettings],
    ) -> Head:
        """Make a channel. Its maker is a member with all permissions.

        Args:
            name: Its name: lower-case letters, digits and `-`, at most 80.
            agent: The agent that makes it.
            scope: `project` (the agent's own, or `global` for the owner), `global`, or the id or
                name of a project.
            members: The other agents in it, by their ids or names.
            settings: `access`: `open` (the agents of the scope join as they like), `members` (by
                invitation, from other projects too) or `private` (nobody joins later).
                `description`: its purpose. `default`: whether the agents of its scope join it when
                they are registered, if it is open. `topic_required`: whether a message needs a
                topic. `default_topic`: the topic of a message without one.

        Raises:
            NotFound: The agent or the project does not exist. For a member that does not exist an agent
                gets Refused.
            InvalidInput: An argument can't be accepted, or there is such a channel that the agent
                may find.
            Refused: The agent may not make it, which for a global default channel is a person's
                right; or one of the members lets the maker not write to it, as `agents.discover`
                says.

        Cost: as `list`, and writing a new file.
        """
        maker = self._acting_agent(agent)
        stamp = timestamps.now()
        if maker is not None:
            self._people.documents.ensure_exists(maker)
        channel = Channel(check_channel_name(name), self._scope(scope, maker))
        others = self._people.directory.resolve_all(members, maker)
        all_permissions = dict.fromkeys(("canLeave", "canSend", "canInvite", "canManage"), True)
        participants = with_joined(
            None,
            [] if maker is None else [maker],
            stamp,
            invitedBy="self",
            source="manual",
            **all_permissions,
        )
        participants = with_joined(
            participants, others, stamp, invitedBy=maker or "system", source="manual"
        )
        metadata: Document = {
            "channel": channel.as_json(),
            "participants": participants,
            "createdBy": maker,
        }
        _apply_settings(metadata, settings)
        id = channel.id
        # If the id is in use although the maker finds no such channel, the maker may not know of
        # that channel. Another id conceals it.
        is_in_use = self._store.inner.whole_engine.exists(CONVERSATIONS, id)
        if settings.get("access") == "private" or is_in_use:
            id = channel.id_apart(random_suffix())
        document = new_capsule(
            id, name, stamp, type="channel", title_set_by="user", metadata=metadata
        )
        try:
            with suppress(NotFound):
                raise ConversationExists(self.get(channel.id, agent=maker).id)
            return self._write_new(maker, document)
        except ConversationExists:
            raise InvalidInput(
                f"there is a channel {name}@{channel.scope} already; "
                "join it, or choose another name"
            ) from None

    def join(
        self, channel: str, *, agent: str | None = None, source: MembershipSource = "manual"
    ) -> Head:
        """Join a channel, or come back to it.

        Args:
            channel: The channel.
            agent: The agent that joins.
            source: Why it joins. `manual`: it was asked to. `frontmatter`: a file of its project
                says so. `default`: the channel does. An agent that left comes back only by
                `manual`. One that was removed does not come back by `default`.

        Raises Refused: joining takes an invitation (the error says who may invite), or the agent
        has left. Cost: copying the file.
        """
        joining_agent = self._people.registered_agent(agent)
        id = self.resolve(channel, joining_agent)

        def change(head: Document, stamp: str) -> None:
            participants = head["metadata"].get("participants")
            member = None
            for participant in members_in(participants):
                if participant.id == joining_agent:
                    member = participant
            if _stays_out(member, source):
                raise Refused(
                    f"{joining_agent} has left {id}, and comes back only by joining it itself",
                    id=id,
                    path="",
                )
            origin: Document = {
                "invitedBy": "system" if source == "default" else "self",
                "source": source,
            }
            if member is not None and member.is_invited and member.opted_out_at:
                # It was invited and left by itself: its `invitedBy` is kept.
                origin = {}
            head["metadata"]["participants"] = with_joined(
                participants, [joining_agent], stamp, **origin
            )

        return self._change(id, joining_agent, change)

    def leave(self, channel: str, *, agent: str | None = None) -> Head:
        """Leave a channel for good. Only the agent itself can join again, and a private channel only
        by a new invitation.

        Args:
            channel: The channel.
            agent: The agent that leaves.

        Raises Refused: the agent may not leave it, for example its own notes. Cost: copying the
        file.
        """
        leaving_agent = self._store.inner.required_agent(agent)
        return self._change_members(
            channel,
            leaving_agent,
            lambda members, time: with_left(members, [leaving_agent], time, optedOutAt=time),
        )

    def invite(
        self,
        channel: str,
        agents: Iterable[str],
        *,
        agent: str | None = None,
        can_send: bool | None = None,
        can_leave: bool | None = None,
        can_invite: bool | None = None,
        can_manage: bool | None = None,
    ) -> Head:
        """Add agents to a channel, of other projects too. Members get the permissions that are given.

        Args:
            channel: The channel.
            agents: The agents, by their ids or names.
            agent: The agent that invites them.
            can_send, can_leave, can_invite, can_manage: Whether they may write, leave, invite
                others, and change the channel and remove others. None: a new member gets the
                channel's default, and a member keeps its own permission.

        Raises Refused: the agent may not invite (the error says who may). It may not give these
        permissions, for which it needs the one to manage. One of the agents does not let it write
        to it, as `agents.discover` says. One has left the channel for good. Or the channel is
        private, and one of the agents was never in it. Cost: copying the file.
        """
        inviting_agent = self._acting_agent(agent)
        invited = self._people.directory.resolve_all(agents, inviting_agent)
        permissions: Document = {
            "canSend": can_send,
            "canLeave": can_leave,
            "canInvite": can_invite,
            "canManage": can_manage,
        }
        permissions = {name: value for name, value in permissions.items() if value is not None}
        origin: Document = {"invitedBy": inviting_agent or "system", "source": "manual"}

        def add_members(members: Any, time: str) -> Any:
            with_new_permissions = with_permissions(members, invited, permissions)
            return with_joined(with_new_permissions, invited, time, **origin, **permissions)

        return self._change_members(channel, inviting_agent, add_members)

    def remove(self, channel: str, member: str, *, agent: str | None = None) -> Head:
        """Remove an agent from a channel. It may be invited again.

        Args:
            channel: The channel.
            member: The member: its id or name.
            agent: The agent that removes it.

        Raises Refused: the agent may not manage the channel. Cost: copying the file.
        """
        removing_agent = self._acting_agent(agent)
        ids = {participant.id for participant in self._head(channel, agent).participants}
        member_id = member
        if member not in ids:  # The agents of members may have been forgotten.
            member_id = self._people.directory.resolve(member, removing_agent)
        return self._change_members(
            channel, removing_agent, lambda members, time: with_left(members, [member_id], time)
        )

    def _change_members(
        self, channel: str, agent: str | None, with_change: Callable[[Any, str], Any]
    ) -> Head:
        """Change the members of a channel.

        `with_change` takes the members and the time, and returns the members after the change.
        """

        def change(head: Document, stamp: str) -> None:
            metadata = head["metadata"]
            metadata["participants"] = with_change(metadata.get("participants"), stamp)

        return self._change(self.resolve(channel, agent), agent, change)

    def update(
        self, channel: str, *, agent: str | None = None, **settings: Unpack[ChannelSettings]
    ) -> Head:
        """Change the settings of a channel. Its name and its scope cannot change.

        Args:
            channel: The channel.
            agent: The agent that changes it.
            settings: As `create` takes them. None: the setting is not changed. An empty text: it is
                removed. `archived`: whether it is archived.

        Raises InvalidInput, and Refused as `create`, or if the agent may not manage it. Cost:
        copying the file.
        """
        acting_agent = self._acting_agent(agent)
        return self._change(
            self.resolve(channel, acting_agent),
            acting_agent,
            lambda head, stamp: _apply_settings(head["metadata"], settings),
        )

    def get(self, channel: str, *, agent: str | None = None) -> ChannelListing:
        """Look up a channel.

        Args:
            channel: The channel.
            agent: The reader.

        Raises InvalidInput: several have this name. The error lists them.

        Cost: by its id, reading the beginning of its file, if it changed. By its name, as `list`. In a
        database, one round trip, whatever is not in the index yet.
        """
        reader = self._acting_agent(agent)
        name = channel
        if "_" in channel:  # Each id has one, and no name.
            listing = self._find_by_id(channel, reader)
            if listing is not None:
                return listing
            # The id is of no channel that the reader may find, but its name may be of one.
            parts = channel.split("_")
            project = parts[1]
            name_in_id = parts[2] if len(parts) > 2 else ""
            name = f"{name_in_id}@{project}"
        named, _, _ = name.partition("@")
        heads = self._store.inner.whole_engine.heads_with("channel", named)
        inputs = self._people.directory.state(reader)
        listings = {listing.id: listing for listing in _visible_listings(heads, reader, inputs)}
        channels = {id: listing.channel for id, listing in listings.items()}
        ids = self._people.directory.resolve_channels(reader, name, channels)
        if len(ids) == 1:
            return listings[ids[0]]
        if ids:
            names = ", ".join(f"{channels[id].name}@{channels[id].scope} ({id})" for id in ids)
            raise InvalidInput(f"several channels are called {channel}; name one: {names}")
        condition = "" if reader is None else f" that {reader} finds"
        raise NotFound(f"there is no channel {channel[:80]!r}{condition}", id=channel)

    def resolve(self, channel: str, agent: str | None = None) -> str:
        """Return the id of a channel that an agent may find.

        Raises NotFound, InvalidInput. Cost: as `get`.
        """
        return self.get(channel, agent=agent).id

    def members(self, channel: str, *, agent: str | None = None) -> list[Member]:
        """List the members of a channel, with their permissions.

        Args:
            channel: The channel.
            agent: The reader.

        Raises Refused: the agent may not read it. Cost: reading the beginning of its file.
        """
        return [member for member in self._head(channel, agent).participants if member.is_in]

    def topics(self, channel: str, *, agent: str | None = None) -> list[FieldValue]:
        """List the topics of a channel, the latest first, each with the number of its messages and
        the time of the last one.

        Args:
            channel: The channel.
            agent: The reader.

        Raises NotFound, InvalidInput, and Refused if the agent may not read it. Cost: bringing the
        index up to date.
        """
        id = self._head(channel, agent).id
        return self._store.inner.store_for(self._acting_agent(agent)).queries.values("topic", id)

    def _head(self, channel: str, agent: str | None) -> Head:
        """Return the head of a channel that an agent may read."""
        reader = self._acting_agent(agent)
        return self._store.inner.store_for(reader).head(self.resolve(channel, reader))

    def _find_by_id(self, id: str, reader: str | None) -> ChannelListing | None:
        """Return a channel by its id. None: there is none that the reader may find.

        It is read in a transaction, which keeps the parsed head for a write that follows.
        """
        engine = self._store.inner.whole_engine
        if is_id(id) and engine.exists(CONVERSATIONS, id):
            with (
                suppress(NotFound, InvalidDocument),
                engine.transaction(CONVERSATIONS, id) as transaction,
            ):
                target = PolicyTarget.from_parsed_head(transaction.head)
                description = transaction.head.metadata.get("description")
                inputs = self._people.directory.state(reader, target)
                return _listing_if_visible(target, description, reader, inputs)
        return None

    def _scope(self, scope: str, maker: str | None) -> str:
        """Return the scope that `project`, `global`, or the id or name of a project means."""
        if scope == GLOBAL:
            return GLOBAL
        if scope == "project":
            if maker is None:
                return GLOBAL
            return self._people.directory.profile(maker).project or GLOBAL
        acting = self._store.inner.store_for(maker)
        return acting.inner.object_of(Projects).get(scope).id

    def mute(
        self,
        conversation: str,
        on: bool | None = True,
        *,
        notify: str | None = None,
        agent: str | None = None,
    ) -> None:
        """Set which messages of a conversation an agent is notified of.

        Args:
            conversation: A channel, or any conversation as `Store.resolve` takes it.
            on: Whether it is muted. In a muted conversation only mentions of the agent are unread
                and wake it. None: that is not changed.
            notify: Which messages wake the agent: `all`, `mentions` (as if it were muted), or
                `none`. None: that is not changed.
            agent: The agent.

        Raises InvalidInput, and Refused if the agent may not read it. Cost: writing a small file.
        """
        reader = self._store.inner.required_agent(agent)
        if notify not in (None, "all", "mentions", "none"):
            raise InvalidInput(f"notify: all, mentions or none, not {notify[:40]!r}")
        with suppress(NotFound):
            conversation = self.resolve(conversation, reader)
        acting = self._store.inner.store_for(reader)
        id = acting.head(acting.resolve(conversation)).id
        changes: Document = {}
        if on is not None:
            changes["muted"] = on
        if notify is not None:
            changes["notify"] = notify

        def change(document: Document) -> None:
            preferences = document.get("reading") or {}
            of_conversation = (preferences.get(id) or {}) | changes
            document["reading"] = preferences | {id: of_conversation}

        self._people.documents.edit(reader, change)

    def join_defaults(self, agent: str, exclude: Iterable[str] = ()) -> None:
        """Let an agent join the open default channels of its scope in which it has never been.

        Args:
            agent: The agent.
            exclude: Names or ids of channels that it leaves again for good. `*`: all.

        Raises Refused, StorageFailed. Cost: as `list`, and as `join` for each. Without channels,
        one scan.
        """
        excluded = {*exclude}
        if not any(
            id.startswith("channel_") for id in self._store.inner.whole_engine.ids(CONVERSATIONS)
        ):
            return  # Without channels, no index has to be brought up to date.
        for listing in self.list(agent=agent):
            channel = listing.channel
            if listing.is_in or not channel.is_default or channel.access != "open":
                continue
            with suppress(Refused, NotFound):  # It has left, or the channel changed meanwhile.
                self.join(listing.id, agent=agent, source="default")
                if excluded & {"*", channel.name, listing.id}:
                    self.leave(listing.id, agent=agent)

    def list(self, *, agent: str | None = None, archived: bool = False) -> list[ChannelListing]:
        """List the channels that an agent may find, in the order of their ids, without notes.

        Args:
            agent: The reader.
            archived: Whether archived channels are listed too.

        Raises Refused, StorageFailed. Cost: bringing the index up to date, and some microseconds
        for each channel.
        """
        from capsule.engines.queries import ListRequest

        reader = self._acting_agent(agent)
        heads = self._store.inner.whole_engine.queries().conversations(ListRequest()).heads
        inputs = self._people.directory.state(reader)
        listings = _visible_listings(heads, reader, inputs)
        return [listing for listing in listings if archived or not listing.archived]


def _stays_out(member: Member | None, source: MembershipSource) -> bool:
    """Return whether an agent that was in a channel does not come back for this reason."""
    if source == "manual" or member is None or member.is_in:
        return False
    return source == "default" or bool(member.opted_out_at)


def _visible_listings(
    heads: Iterable[Head], reader: str | None, inputs: PolicyInputs
) -> list[ChannelListing]:
    """Return the channels among some conversations that the reader may find, in the order of their
    ids, without notes.
    """
    listings = []
    for head in heads:
        if head.channel is None or head.channel.owner:
            continue
        target = PolicyTarget.from_head(head)
        listing = _listing_if_visible(target, head.description, reader, inputs)
        if listing is not None:
            listings.append(listing)
    return sorted(listings, key=lambda listing: listing.id)


def _listing_if_visible(
    target: PolicyTarget, description: str | None, reader: str | None, inputs: PolicyInputs
) -> ChannelListing | None:
    """Return the list item of a channel. None: the reader may not find it."""
    channel = target.channel
    if channel is None or not decide(reader, "find", target, inputs).allowed:
        return None
    return ChannelListing(
        id=target.id,
        channel=channel,
        description=description or "",
        members=len(target.present_ids),
        is_in=reader in target.present_ids,
        archived=target.archived,
    )


def _apply_settings(metadata: Document, settings: ChannelSettings) -> None:
    """Change the settings of a channel in the metadata of its head."""
    access = settings.get("access")
    if access not in (None, *ACCESSES):
        raise InvalidInput(f"access: one of {', '.join(ACCESSES)}, not {access!r:.40}")
    for name, value in settings.items():
        if value is None:
            continue
        new_value = None if value == "" else value
        if name in _CHANNEL_FIELDS:
            metadata["channel"][_CHANNEL_FIELDS[name]] = new_value
        else:
            metadata[name] = new_value
