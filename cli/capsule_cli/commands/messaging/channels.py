"""`channels`, and `join`, `leave`, `invite`, `members`, `topics`, `mute`: conversations with a name."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from capsule_cli.commands.messaging.completion import complete_channel
from capsule_cli.shared.opening import acting, acting_or_owner, agent_named, store_as
from capsule_cli.shared.options import Agent, Agents, With, argument, flag, names_in, option
from capsule_cli.shared.output import answer, details, listing, one_line

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()

_CHANNEL = "The channel: its name, NAME@PROJECT, or its id."
Channel = Annotated[str, argument("CHANNEL", _CHANNEL, ..., autocompletion=complete_channel)]
Access = Literal["open", "members", "private"]
_ACCESS = "Let in who will (open), who is invited (members), or nobody later (private)."
Description = Annotated[str | None, option("--description TEXT", "Say what it is for.", ...)]
Topic = Annotated[str | None, option("--default-topic TOPIC", "Give messages without a topic this.", ...)]


@group.callback()
def _channels() -> None:
    """Make channels, and see which there are: conversations that agents find by a name, join and leave."""


@commands.command("new")
def new(
    name: str = argument("NAME", "Its name: small letters, digits and -.", ...),
    scope: str = option(
        "--scope SCOPE",
        "For whom it is: project (the agent's; the owner's is global), global, or a project.",
        "project",
    ),
    access: Access = option("--access", _ACCESS, "open"),
    description: Description = None,
    default: bool = flag("--default", "Let the agents of its scope join it when they are registered."),
    topic_required: bool = flag("--topic-required", "Refuse messages without a topic."),
    default_topic: Topic = None,
    with_: With = None,
) -> None:
    """Make a channel, with the agent in it if there is one, and print its id."""
    with acting_or_owner() as (store, agent):
        head = store.channels.create(
            name,
            agent=agent,
            scope=scope,
            access=access,
            description=description or "",
            default=default,
            topic_required=topic_required,
            default_topic=default_topic,
            members=names_in(with_),
        )
    answer(head.as_json(), head.id)


@commands.command("list")
def list_(archived: bool = flag("--archived", "List the archived ones too.")) -> None:
    """List the channels that the agent finds. Without an agent: all."""
    with store_as(agent_named()) as store:
        found = store.channels.list(archived=archived)
    rows = [
        (about.name, about.scope, about.access, str(each.members), "in" * each.is_in, each.description)
        for each in found
        for about in (each.channel,)
    ]
    columns = ("name", "scope", "access", "members", "you", "description")
    listing([each.as_json() for each in found], columns, rows, "there is no channel", last="description")


@commands.command("show")
def show(channel: Channel) -> None:
    """Print what is known of a channel."""
    with store_as(agent_named()) as store:
        details(store.channels.get(channel).as_json())


@commands.command("update")
def update(
    channel: Channel,
    access: Access | None = option("--access", _ACCESS),
    description: Description = None,
    default: bool | None = option("--default/--no-default", "Let the agents of its scope join it."),
    topic_required: bool | None = option("--topic-required/--no-topic-required", "Require a topic."),
    default_topic: Topic = None,
) -> None:
    """Change what a channel is. Its name and its scope stay for ever."""
    about = {"access": access, "description": description, "default": default}
    _update(channel, "changed", **about, topic_required=topic_required, default_topic=default_topic)


@commands.command("archive")
def archive(channel: Channel, undo: bool = flag("--undo", "Bring it back.")) -> None:
    """Take a channel out of the lists."""
    _update(channel, "brought back" if undo else "archived", archived=not undo)


def _update(channel: str, what: str, **fields: Any) -> None:
    with store_as(agent_named()) as store:
        head = store.channels.update(channel, **fields)
    answer(head.as_json(), f"{head.id}: {what}")


@commands.command("remove-member")
def remove_member(channel: Channel, agent: Agent) -> None:
    """Take an agent out of a channel. It may be invited again."""
    with store_as(agent_named()) as store:
        head = store.channels.remove(channel, agent)
    answer(head.as_json(), f"{head.id}: removed {one_line(agent)}")


@commands.command("join")
def join(channel: Channel) -> None:
    """Join a channel, or come back to it."""
    with acting() as (store, agent):
        head = store.channels.join(channel, agent=agent)
    answer(head.as_json(), f"{head.id}: {agent} joined")


@commands.command("leave")
def leave(channel: Channel) -> None:
    """Leave a channel for good: nothing brings the agent back but itself."""
    with acting() as (store, agent):
        head = store.channels.leave(channel, agent=agent)
    answer(head.as_json(), f"{head.id}: {agent} left")


@commands.command("invite")
def invite(
    agents: Agents,
    to: str = option("--to CHANNEL", _CHANNEL, ..., autocompletion=complete_channel),
    can_send: bool | None = option("--can-send/--read-only", "Let them write, or only read."),
    can_invite: bool | None = option("--can-invite/--no-invite", "Let them invite others, or not."),
    can_manage: bool | None = option(
        "--can-manage/--no-manage", "Let them change the channel and take others out, or not."
    ),
) -> None:
    """Let agents into a channel, of other projects too, or change what its members may do."""
    with store_as(agent_named()) as store:
        head = store.channels.invite(
            to,
            agents,
            can_send=can_send,
            can_invite=can_invite,
            can_manage=can_manage,
        )
    answer(head.as_json(), f"{head.id}: invited {one_line(', '.join(agents))}")


@commands.command("members")
def members(channel: Channel) -> None:
    """List the agents in a channel."""
    from capsule.format.documents.members import as_json

    with store_as(agent_named()) as store:
        found = store.channels.members(channel)
    rows = [(each.id, each.joined_at, each.invited_by, each.source) for each in found]
    listing(as_json(found), ("id", "joined", "invited by", "source"), rows, "nobody is in it")


@commands.command("topics")
def topics(channel: Channel) -> None:
    """List the topics of a channel, the latest first."""
    with store_as(agent_named()) as store:
        found = store.channels.topics(channel)
    columns = ("topic", "messages", "last")
    rows = [tuple(map(str, each)) for each in found]
    listing([dict(zip(columns, each, strict=True)) for each in found], columns, rows, "it has no topic yet")


@commands.command("mute")
def mute(
    conversation: str = argument("CHANNEL", "A channel, or the id of any conversation.", ...),
    undo: bool = flag("--undo", "Unmute it."),
    notify: Literal["all", "mentions", "none"] | None = option(
        "--notify", "Don't mute it: let all wake the agent, what mentions it (as if it were muted), or nothing."
    ),
) -> None:
    """Mute a conversation: only what mentions the agent is unread and wakes it."""
    on, level = notify is None and not undo, notify or "all"
    with acting() as (store, agent):
        store.channels.mute(conversation, on, notify=level, agent=agent)
    value = {"agent": agent, "conversation": conversation, "muted": on, "notify": level}
    answer(value, f"{one_line(conversation)}: {'muted' if on else f'notify {level}'}")
