"""Channels: conversations with a name, which the agents of a project, or of all, find, join and
leave.

What must stay true: nobody makes a second channel of a name that it finds in a scope, and no answer
tells of another one. Who may do what is never decided here: the Store asks the rule in the mutex of
each write. It reads no message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack

from capsule import timestamps
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.format.documents.agents import GLOBAL
from capsule.format.documents.channels import Channel, check_channel_name
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.members import (
    Member,
    members_in,
    with_joined,
    with_left,
    with_permissions,
)
from capsule.format.fields import ACCESSES
from capsule.ids import is_id
from capsule.messaging.groups import Document, TypedConversations, random_suffix
from capsule.messaging.projects import Projects
from capsule.rules.consent import PolicyInputs
from capsule.rules.policy import PolicyTarget, decide
from capsule.store.creation import ConversationExists

if TYPE_CHECKING:
    from capsule.engines.queries import FieldValue
    from capsule.format.documents.head import Head

MembershipSource = Literal["manual", "frontmatter", "default"]
#: The settings in `metadata.channel`, and their names there; the others stand in the metadata.
_IN_CHANNEL = {"access": "access", "default": "isDefault"}
_IN_CHANNEL |= {"topic_required": "topicRequired", "default_topic": "defaultTopic"}


class ChannelSettings(TypedDict, total=False):
    """What a channel is, besides its name, its scope and its members. See `Channels.create`."""

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
        channel: Its name, its scope, and what else makes it a channel.
        description: What it is for.
        members: The number of agents in it.
        is_in: Whether the agent that asks is one of them.
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
        more = {
            "description": self.description,
            "members": self.members,
            "in": self.is_in,
            "archived": self.archived,
        }
        return {"id": self.id, **self.channel.as_json(), **more}


class Channels(TypedConversations):
    """Channels: conversations with a name, which agents find, join and leave.

    A `channel` is given by its name, by `name@project`, or by its id. A name alone means the
    agent's own project, then `global`, then any other project whose channel it finds. `agent` is
    who does something; None: the one that the store acts for, or else the store's owner. Each
    method raises NotFound if there is no such channel that the agent finds.
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
        """Make a channel. Its maker is in it, with every right.

        Args:
            name: Its name: lower-case letters, digits and `-`, at most 80.
            agent: The agent that makes it.
            scope: `project`: that of the agent, and `global` for the owner; `global`; or a project,
                by its id or name.
            members: The other agents in it, by their ids or names.
            settings: `access`: `open`, the agents of the scope join as they like; `members`, by
                invitation, from other projects too; `private`, nobody joins later. `description`.
                `default`: whether the agents of its scope join it when they are registered, if it
                is open. `topic_required`: whether a message needs a topic. `default_topic`: that of
                a message which names none.

        Raises:
            NotFound: There is no such agent or project. For a member that does not exist an agent
                gets Refused.
            InvalidInput: An argument can't be accepted, or there is such a channel that the agent
                finds.
            Refused: The agent may not make it, which for a global default channel is a person's
                right; or one of the members lets the maker not write to it, as `agents.discover`
                says.

        Cost: as `list`, and writing a new file.
        """
        maker, stamp = self._acting_agent(agent), timestamps.now()
        where = self._scope(scope, maker and self._people.documents.ensure_exists(maker))
        channel = Channel(check_channel_name(name), where)
        others = self._people.directory.resolve_all(members, maker)
        rights = dict.fromkeys(("canLeave", "canSend", "canInvite", "canManage"), True)
        first = with_joined(
            None, [maker] if maker else [], stamp, invitedBy="self", source="manual", **rights
        )
        about: Document = {
            "channel": channel.as_json(),
            "participants": with_joined(
                first, others, stamp, invitedBy=maker or "system", source="manual"
            ),
            "createdBy": maker,
        }
        _set(about, settings)
        # What is there by now, and is not found below, is hidden from the maker.
        is_apart = settings.get("access") == "private" or self._store.inner.whole_engine.exists(
            CONVERSATIONS, channel.id
        )
        id = channel.id_apart(random_suffix()) if is_apart else channel.id
        document = new_capsule(id, name, stamp, type="channel", title_set_by="user", metadata=about)
        try:
            with suppress(NotFound):
                raise ConversationExists(self.get(channel.id, agent=maker).id)
            return self._write_new(maker, document)
        except ConversationExists:
            raise InvalidInput(
                f"there is a channel {name}@{where} already; join it, or choose another name"
            ) from None

    def join(
        self, channel: str, *, agent: str | None = None, source: MembershipSource = "manual"
    ) -> Head:
        """Join a channel, or come back to it.

        Args:
            channel: The channel.
            agent: The agent that joins.
            source: Why it joins. `frontmatter` and `default`: a file of its project, or the
                channel, says so. That brings back nobody who left; and a default nobody who was
                taken out.

        Raises Refused: it is by invitation (the error says who may invite), or the agent stays out
        of it. Cost: copying the file.
        """
        who = self._people.registered_agent(agent)
        id = self.resolve(channel, who)

        def change(head: Document, stamp: str) -> None:
            people = head["metadata"].get("participants")
            was = next((each for each in members_in(people) if each.id == who), None)
            stays_out = (
                was is not None and not was.is_in and (source == "default" or was.opted_out_at)
            )
            if source != "manual" and stays_out:
                raise Refused(
                    f"{who} has left {id}, and can come back only by joining again", id=id, path=""
                )
            # Who was invited and left by itself comes back on that invitation.
            is_back = was is not None and was.is_invited and was.opted_out_at
            why = (
                {}
                if is_back
                else {"invitedBy": "system" if source == "default" else "self", "source": source}
            )
            head["metadata"]["participants"] = with_joined(people, [who], stamp, **why)

        return self._change(id, who, change)

    def leave(self, channel: str, *, agent: str | None = None) -> Head:
        """Leave a channel for good: nothing brings the agent back but itself, and into a private
        one an invitation.

        Args:
            channel: The channel.
            agent: The agent that leaves.

        Raises Refused: the agent may not leave it, as its own notes. Cost: copying the file.
        """
        who = self._store.inner.required_agent(agent)
        return self._change_members(
            channel, who, lambda people, at: with_left(people, [who], at, optedOutAt=at)
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
        """Let agents into a channel, of other projects too. Those that are in it get the rights
        that are given.

        Args:
            channel: The channel.
            agents: The agents, by their ids or names.
            agent: The agent that invites them.
            can_send, can_leave, can_invite, can_manage: What they may do there: write, leave,
                invite others, change the channel and take others out. None: as everybody there;
                what was withheld from one stays so.

        Raises Refused: the agent may not invite (the error says who may), or not give these rights,
        which takes the right to manage; one of them lets the agent not write to it, as
        `agents.discover` says; or one has left an open channel, or one by invitation, for good.
        Into a private channel its maker lets only those who left it. Cost: copying the file.
        """
        who = self._acting_agent(agent)
        added = self._people.directory.resolve_all(agents, who)
        given = {
            "canSend": can_send,
            "canLeave": can_leave,
            "canInvite": can_invite,
            "canManage": can_manage,
        }
        rights = {name: value for name, value in given.items() if value is not None}
        about: Document = {"invitedBy": who or "system", "source": "manual", **rights}
        return self._change_members(
            channel,
            who,
            lambda people, at: with_joined(
                with_permissions(people, added, rights), added, at, **about
            ),
        )

    def remove(self, channel: str, member: str, *, agent: str | None = None) -> Head:
        """Remove an agent from a channel. It may be invited again.

        Args:
            channel: The channel.
            member: The agent that is taken out: its id or name.
            agent: The agent that does it.

        Raises Refused: the agent may not manage the channel. Cost: copying the file.
        """
        who, there = (
            self._acting_agent(agent),
            {each.id for each in self._head(channel, agent).participants},
        )
        whom = (
            member if member in there else self._people.directory.resolve(member, who)
        )  # It may be forgotten by now.
        return self._change_members(channel, who, lambda people, at: with_left(people, [whom], at))

    def _change_members(
        self, channel: str, who: str | None, changed: Callable[[Any, str], Any]
    ) -> Head:
        def change(head: Document, stamp: str) -> None:
            head["metadata"]["participants"] = changed(head["metadata"].get("participants"), stamp)

        return self._change(self.resolve(channel, who), who, change)

    def update(
        self, channel: str, *, agent: str | None = None, **settings: Unpack[ChannelSettings]
    ) -> Head:
        """Change the settings of a channel. Its name and its scope cannot change.

        Args:
            channel: The channel.
            agent: The agent that changes it.
            settings: As `create` takes them; None: as it is; an empty text: none. `archived`:
                whether it is archived.

        Raises InvalidInput, and Refused as `create`, or if the agent may not manage it. Cost:
        copying the file.
        """
        who = self._acting_agent(agent)
        return self._change(
            self.resolve(channel, who), who, lambda head, stamp: _set(head["metadata"], settings)
        )

    def get(self, channel: str, *, agent: str | None = None) -> ChannelListing:
        """Look up a channel.

        Args:
            channel: The channel.
            agent: The agent that asks.

        Raises InvalidInput: several have this name; the error lists them.

        Cost: by its id, reading the beginning of its file, if it changed; by its name, as `list`.
        """
        who, name = self._acting_agent(agent), channel
        if "_" in channel:  # No name has one, and every id.
            if (listed := self._found(channel, who)) is not None:
                return listed
            _, project, name = (*channel.split("_"), "", "")[:3]
            name = f"{name}@{project}"
        found = {each.id: each for each in self.list(agent=who, archived=True)}
        named = self._people.directory.resolve_channels(
            who, name, {id: each.channel for id, each in found.items()}
        )
        if len(named) == 1:
            return found[named[0]]
        if named:
            names = ", ".join(
                f"{found[id].channel.name}@{found[id].channel.scope} ({id})" for id in named
            )
            raise InvalidInput(f"several channels are called {channel}; name one: {names}")
        whom = "" if who is None else f" that {who} finds"
        raise NotFound(f"there is no channel {channel[:80]!r}{whom}", id=channel)

    def resolve(self, channel: str, agent: str | None = None) -> str:
        """Find the id of a channel that `agent` finds. Raises NotFound, InvalidInput. Cost: as
        `list`, or less.
        """
        return self.get(channel, agent=agent).id

    def members(self, channel: str, *, agent: str | None = None) -> list[Member]:
        """List the agents in a channel, with their rights.

        Args:
            channel: The channel.
            agent: The agent that asks.

        Raises Refused: the agent may not read it. Cost: reading the beginning of its file.
        """
        return [member for member in self._head(channel, agent).participants if member.is_in]

    def topics(self, channel: str, *, agent: str | None = None) -> list[FieldValue]:
        """List the topics of a channel, the latest first: each with the number of its messages and
        the last one's time.

        Args:
            channel: The channel.
            agent: The agent that asks.

        Raises NotFound, InvalidInput, and Refused if the agent may not read it. Cost: bringing the
        index up to date.
        """
        id = self._head(channel, agent).id
        return self._store.inner.store_for(self._acting_agent(agent)).queries.values("topic", id)

    def _head(self, channel: str, agent: str | None) -> Head:
        """The head of a channel that an agent may read."""
        who = self._acting_agent(agent)
        return self._store.inner.store_for(who).head(self.resolve(channel, who))

    def _found(self, id: str, who: str | None) -> ChannelListing | None:
        """A channel, if the agent may know that it exists. The head is parsed once, for the next
        write too.
        """
        engine = self._store.inner.whole_engine
        if is_id(id) and engine.exists(CONVERSATIONS, id):
            with (
                suppress(NotFound, InvalidDocument),
                engine.transaction(CONVERSATIONS, id) as transaction,
            ):
                object, description = (
                    PolicyTarget.from_parsed_head(transaction.head),
                    transaction.head.metadata.get("description"),
                )
                return _listed(object, description, who, self._people.directory.state(who, object))
        return None

    def _scope(self, scope: str, who: str | None) -> str:
        """The scope that is meant by `project`, by `global`, or by the id or name of a project."""
        if scope == "project":
            return (
                self._people.directory.profile(who).project if who is not None else ""
            ) or GLOBAL
        return (
            GLOBAL
            if scope == GLOBAL
            else self._store.inner.store_for(who).inner.object_of(Projects).get(scope).id
        )

    def mute(
        self,
        conversation: str,
        on: bool | None = True,
        *,
        notify: str | None = None,
        agent: str | None = None,
    ) -> None:
        """Say what of a conversation an agent is told.

        Args:
            conversation: A channel, or any conversation as `Store.resolve` takes it.
            on: Whether it is muted: nothing in it is unread or wakes the agent, but what mentions
                it. None: as it is.
            notify: What wakes the agent: `all`; `mentions`, as if it were muted; `none`: nothing
                does. None: as it is.
            agent: The agent.

        Raises InvalidInput, and Refused if the agent may not read it. Cost: writing a small file.
        """
        who = self._store.inner.required_agent(agent)
        if notify not in (None, "all", "mentions", "none"):
            raise InvalidInput(f"notify: all, mentions or none, not {notify[:40]!r}")
        with suppress(NotFound):
            conversation = self.resolve(conversation, who)
        acting = self._store.inner.store_for(who)
        id = acting.head(acting.resolve(conversation)).id
        given = {
            name: value for name, value in (("muted", on), ("notify", notify)) if value is not None
        }

        def change(document: Document) -> None:
            reading = document.get("reading") or {}
            document["reading"] = {**reading, id: {**(reading.get(id) or {}), **given}}

        self._people.documents.edit(who, change)

    def join_defaults(self, agent: str, exclude: Iterable[str] = ()) -> None:
        """Have an agent join the open default channels of its scope in which it has never been.

        Args:
            agent: The agent.
            exclude: Names or ids of channels that it stays out of for good; `*`: all.

        Raises Refused, StorageFailed. Cost: as `list`, and as `join` for each. Without channels,
        one scan.
        """
        excluded = {*exclude}
        if not any(
            id.startswith("channel_") for id in self._store.inner.whole_engine.ids(CONVERSATIONS)
        ):
            return  # No index for that.
        for each in self.list(agent=agent):
            if each.channel.is_default and each.channel.access == "open" and not each.is_in:
                with suppress(Refused, NotFound):  # It has left, or the channel changed meanwhile.
                    self.join(each.id, agent=agent, source="default")
                    if excluded & {"*", each.channel.name, each.id}:
                        self.leave(each.id, agent=agent)

    def list(self, *, agent: str | None = None, archived: bool = False) -> list[ChannelListing]:
        """List the channels that an agent finds, in the order of their ids. Notes are no part of
        it.

        Args:
            agent: The agent.
            archived: Whether the archived ones are listed too.

        Raises Refused, StorageFailed. Cost: bringing the index up to date, and some microseconds
        for each channel.
        """
        who = self._acting_agent(agent)
        state = self._people.directory.state(who)
        from capsule.engines.queries import ListRequest

        heads = self._store.inner.whole_engine.queries().conversations(ListRequest()).heads
        channels = (head for head in heads if head.channel and not head.channel.owner)
        listed = (
            _listed(PolicyTarget.from_head(head), head.description, who, state) for head in channels
        )
        return sorted(
            (each for each in listed if each and (archived or not each.archived)),
            key=lambda each: each.id,
        )


def _listed(
    object: PolicyTarget, description: str | None, who: str | None, state: PolicyInputs
) -> ChannelListing | None:
    """A channel in a list, if the agent may know that it exists."""
    channel, there = object.channel, object.present_ids
    if channel is None or not decide(who, "find", object, state).allowed:
        return None
    return ChannelListing(
        object.id, channel, description or "", len(there), who in there, object.archived
    )


def _set(about: Document, settings: ChannelSettings) -> None:
    """Change the settings of a channel in the metadata of its head."""
    if (access := settings.get("access")) not in (None, *ACCESSES):
        raise InvalidInput(f"access: one of {', '.join(ACCESSES)}, not {access!r:.40}")
    for name, value in settings.items():
        if value is not None:
            there = about["channel"] if name in _IN_CHANNEL else about
            there[_IN_CHANNEL.get(name, name)] = None if value == "" else value
