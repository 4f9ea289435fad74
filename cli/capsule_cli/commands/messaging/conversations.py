"""`channel`, `group` and `note`: the conversations of several agents, and the notes that an agent
keeps for itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from capsule.format.documents.members import as_json as members_as_json
from capsule_cli.public import (
    complete_channel,
    open_agent_or_owner_store,
    open_agent_store,
    open_named_agent_store,
)
from capsule_cli.shared.inputs import message_text
from capsule_cli.shared.options import (
    CONVERSATION,
    Agent,
    Agents,
    File,
    Id,
    With,
    argument,
    complete_agent,
    flag,
    option,
    split_names,
)
from capsule_cli.shared.output import as_json, one_line, print_answer, print_fields, print_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capsule.messaging.notes import Note


# -- channel, group --------------------------------------------------------------------------------

_CHANNEL = "The channel: its name, NAME@PROJECT, or its id."
Channel = Annotated[str, argument("CHANNEL", _CHANNEL, ..., autocompletion=complete_channel)]
Access = Literal["open", "members", "private"]
_ACCESS = (
    "Admit everybody who asks (open), those who are invited (members), or nobody later (private)."
)
_SCOPE = (
    "Choose whose agents find it: project (that of the agent; without an agent: global), "
    "global, or a project."
)
_MANAGE = "Permit or forbid them to change the channel and remove others."
_DEFAULT = "Add the agents of its scope when they are registered."
Description = Annotated[str | None, option("--description TEXT", "Describe its purpose.", ...)]
Topic = Annotated[
    str | None, option("--default-topic TOPIC", "Give messages without a topic this one.", ...)
]


def channel_new(
    name: str = argument("NAME", "Its name: small letters, digits and -.", ...),
    scope: str = option("--scope SCOPE", _SCOPE, "project"),
    access: Access = option("--access", _ACCESS, "open"),
    description: Description = None,
    default: bool = flag("--default", _DEFAULT),
    topic_required: bool = flag("--topic-required", "Refuse messages without a topic."),
    default_topic: Topic = None,
    members: With = None,
) -> None:
    """Make a channel, with the agent in it if there is one, and print its id."""
    with open_agent_or_owner_store() as (store, _):
        head = store.channels.create(
            name,
            scope=scope,
            access=access,
            description=description or "",
            default=default,
            topic_required=topic_required,
            default_topic=default_topic,
            members=split_names(members),
        )
    print_answer(head.as_json(), head.id)


def channel_list(archived: bool = flag("--archived", "List the archived ones too.")) -> None:
    """List the channels that the agent finds. Without an agent: all."""
    with open_named_agent_store() as store:
        listings = store.channels.list(archived=archived)
    rows = [
        (
            listed.channel.name,
            listed.channel.scope,
            listed.channel.access,
            str(listed.members),
            "in" if listed.is_in else "",
            listed.description,
        )
        for listed in listings
    ]
    columns = ("name", "scope", "access", "members", "you", "description")
    print_list(as_json(listings), columns, rows, "there is no channel", last="description")


def channel_show(channel: Channel) -> None:
    """Print the data of a channel."""
    with open_named_agent_store() as store:
        listed = store.channels.get(channel)
    print_fields(listed.as_json(), {"isDefault": "default", "in": "you are in it"})


def channel_set(
    channel: Channel,
    access: Access | None = option("--access", _ACCESS),
    description: Description = None,
    default: bool | None = option("--default/--no-default", _DEFAULT),
    topic_required: bool | None = option(
        "--topic-required/--no-topic-required", "Require a topic."
    ),
    default_topic: Topic = None,
    archived: bool | None = option(
        "--archive/--no-archive", "Hide it from the lists, or show it again."
    ),
) -> None:
    """Change the settings of a channel. Its name and its scope cannot change."""
    with open_named_agent_store() as store:
        head = store.channels.update(
            channel,
            access=access,
            description=description,
            default=default,
            topic_required=topic_required,
            default_topic=default_topic,
            archived=archived,
        )
    print_answer(head.as_json(), f"{head.id}: changed")


def channel_remove(channel: Channel, member: Agent) -> None:
    """Remove an agent from a channel. It may be invited again."""
    with open_named_agent_store() as store:
        head = store.channels.remove(channel, member)
    print_answer(head.as_json(), f"{head.id}: removed {one_line(member)}")


def channel_join(channel: Channel) -> None:
    """Join a channel, or come back to it."""
    with open_agent_store() as (store, agent):
        head = store.channels.join(channel)
    print_answer(head.as_json(), f"{head.id}: {agent} joined")


def channel_leave(channel: Channel) -> None:
    """Leave a channel. The agent returns only by joining again, or to a private channel by
    invitation.
    """
    with open_agent_store() as (store, agent):
        head = store.channels.leave(channel)
    print_answer(head.as_json(), f"{head.id}: {agent} left")


def channel_invite(
    agents: Agents,
    channel: str = option("--channel CHANNEL", _CHANNEL, ..., autocompletion=complete_channel),
    can_send: bool | None = option("--can-send/--no-send", "Permit or forbid them to write."),
    can_invite: bool | None = option("--can-invite/--no-invite", "Permit or forbid invitations."),
    can_manage: bool | None = option("--can-manage/--no-manage", _MANAGE),
) -> None:
    """Invite agents to a channel, of other projects too, or change what its members may do."""
    with open_named_agent_store() as store:
        head = store.channels.invite(
            channel, agents, can_send=can_send, can_invite=can_invite, can_manage=can_manage
        )
    print_answer(head.as_json(), f"{head.id}: invited {one_line(', '.join(agents))}")


def channel_members(channel: Channel) -> None:
    """List the agents in a channel."""
    with open_named_agent_store() as store:
        members = store.channels.members(channel)
    rows = [
        (member.id, member.joined_at or "", member.invited_by or "", member.source or "")
        for member in members
    ]
    columns = ("id", "joined", "invited by", "source")
    print_list(members_as_json(members), columns, rows, "nobody is in it", last="source")


def channel_topics(channel: Channel) -> None:
    """List the topics of a channel, the latest first."""
    with open_named_agent_store() as store:
        topics = store.channels.topics(channel)
    value = [
        {"topic": topic.value, "messages": topic.messages, "last": topic.last} for topic in topics
    ]
    rows = [(str(topic.value), str(topic.messages), topic.last) for topic in topics]
    print_list(value, ("topic", "messages", "last"), rows, "it has no topic yet", last="last")


Muted = Annotated[str, argument("CHANNEL", f"A channel, or any conversation: {CONVERSATION}", ...)]


def channel_mute(
    conversation: Muted,
    notify: Literal["all", "mentions", "none"] | None = option(
        "--notify",
        "Choose what wakes the agent instead: all messages, those that mention it, or none.",
    ),
) -> None:
    """Mute a conversation: only messages that mention the agent are unread and wake it."""
    _set_muted(conversation, notify is None, notify or "all")


def channel_unmute(conversation: Muted) -> None:
    """Unmute a conversation: all its new messages are unread and wake the agent."""
    _set_muted(conversation, False, "all")


def _set_muted(conversation: str, is_muted: bool, notify: str) -> None:
    with open_agent_store() as (store, agent):
        store.channels.mute(conversation, is_muted, notify=notify, agent=agent)
    value = {"agent": agent, "conversation": conversation, "muted": is_muted, "notify": notify}
    print_answer(value, f"{one_line(conversation)}: {'muted' if is_muted else f'notify {notify}'}")


# -- group -----------------------------------------------------------------------------------------

_HISTORY = "Show participants the messages since they joined, or all messages."


def group_new(
    name: str = argument("NAME", "The name of the group.", ...),
    with_: With = None,
    history: Literal["joined", "all"] = option("--history", _HISTORY, "joined"),
) -> None:
    """Make a group, with the agent in it if there is one, and print its id."""
    with open_agent_or_owner_store() as (store, _):
        head = store.groups.create(name, with_=split_names(with_), history=history)
    print_answer(head.as_json(), head.id)


def group_add(id: Id, agents: Agents) -> None:
    """Add agents to a group, or bring back agents that left. They read the messages from now on."""
    with open_agent_or_owner_store() as (store, _):
        head = store.groups.add(store.resolve(id), agents)
    print_answer(head.as_json(), f"{head.id}: added {one_line(', '.join(agents))}")


def group_leave(id: Id) -> None:
    """Leave a group. When the last one leaves, the group is archived."""
    with open_agent_store() as (store, agent):
        head = store.groups.leave(store.resolve(id))
    print_answer(head.as_json(), f"{head.id}: {agent} left")


def group_set(id: Id, name: str = option("--name NAME", "Give it this name.", ...)) -> None:
    """Change the name of a group."""
    with open_agent_or_owner_store() as (store, _):
        head = store.groups.rename(store.resolve(id), name)
    print_answer(head.as_json(), f"{head.id}: renamed to {one_line(head.title)!r}")


def group_list() -> None:
    """List the groups that the agent is in, the latest first. Without an agent: all."""
    with open_agent_or_owner_store() as (store, _):
        heads = store.groups.list()
    rows = []
    for head in heads:
        agents = [member.id for member in head.participants if member.is_in]
        rows.append((head.id, head.updated_at, ",".join(agents), head.title))
    columns = ("id", "updated", "agents", "title")
    print_list(as_json(heads), columns, rows, "there is no group", last="title")


# -- note ------------------------------------------------------------------------------------------

Tags = Annotated[list[str] | None, option("--tag TAG", "Name a tag. Repeatable.", ...)]
Session = Annotated[str | None, option("--session ID", "The session in which it is written.", ...)]
Of = Annotated[
    str | None,
    option("--of AGENT", "Look at the notes of this agent.", ..., autocompletion=complete_agent),
]
Limit = Annotated[int, option("--limit -n N", "Print at most N notes.", ..., min=1)]
_ANY = "Find notes with one of the tags; else with all of them."


def note_write(
    text: str | None = argument(
        "TEXT", "The text. Without it: the text of --file, or of standard input."
    ),
    tag: Tags = None,
    session: Session = None,
    file: File = None,
) -> None:
    """Write a note and print its id."""
    content = message_text(text, file)
    with open_agent_store() as (store, agent):
        note = store.notes.write(content, agent=agent, tags=tag or (), session=session)
    print_answer(note.as_json(), note.id)


def note_search(
    text: str = argument("WORDS", "Words; without them, every note is found.", ""),
    tags: Tags = None,
    any_tag: bool = flag("--any", _ANY),
    session: Session = None,
    author: Of = None,
    limit: Limit = 20,
) -> None:
    """Search notes by words, tags and session, the best first."""
    with open_named_agent_store() as store:
        notes = store.notes.search(
            text, tags=tags or (), any_tag=any_tag, session=session, of=author, limit=limit
        )
    _print_notes(notes)


def note_list(author: Of = None, limit: Limit = 20) -> None:
    """List notes, the latest first."""
    with open_named_agent_store() as store:
        notes = store.notes.search(of=author, limit=limit)
    _print_notes(notes)


def note_share(reader: Agent) -> None:
    """Permit another agent to read the notes. The permission is recorded."""
    with open_agent_store() as (store, _):
        head = store.notes.share(reader)
    print_answer(head.as_json(), f"{head.id}: {one_line(reader)} may read them")


def note_unshare(reader: Agent) -> None:
    """Stop sharing the notes with another agent."""
    with open_agent_store() as (store, _):
        head = store.notes.unshare(reader)
    print_answer(head.as_json(), f"{head.id}: {one_line(reader)} can no longer read them")


def _print_notes(notes: Sequence[Note]) -> None:
    rows = [
        (note.id, note.written_at, ",".join(note.tags), note.session or "", note.text)
        for note in notes
    ]
    columns = ("id", "written", "tags", "session", "text")
    print_list(as_json(notes), columns, rows, "no notes", last="text")
