"""`channel`: conversations with a name."""

from __future__ import annotations

from typing import Annotated, Literal

from capsule.format.documents.members import as_json
from capsule_cli.commands.messaging.completion import complete_channel
from capsule_cli.public import acting, acting_or_owner, named
from capsule_cli.shared.options import CONVERSATION, Agent, Agents, With, argument, option
from capsule_cli.shared.output import answer, one_line
from capsule_cli.shared.passing import Rows, passing

does = passing(named)

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

new = does("Make a channel, with the agent in it if there is one, and print its id.")(
    lambda store, description, **more: store.channels.create(description=description or "", **more),
    "{0.id}",
    opens=acting_or_owner,
    name=Annotated[str, argument("NAME", "Its name: small letters, digits and -.", ...)],
    scope=(Annotated[str, option("--scope SCOPE", _SCOPE, ...)], "project"),
    access=(Annotated[Access, option("--access", _ACCESS, ...)], "open"),
    description=Description,
    default=Annotated[bool, option("--default", _DEFAULT, ...)],
    topic_required=Annotated[
        bool, option("--topic-required", "Refuse messages without a topic.", ...)
    ],
    default_topic=Topic,
    members=With,
)
list_ = does("List the channels that the agent finds. Without an agent: all.")(
    "channels.list",
    Rows(
        {
            "name": "channel.name",
            "scope": "channel.scope",
            "access": "channel.access",
            "members": "members",
        }
        | {"you": lambda listed: "in" * listed.is_in, "description": "description"},
        "there is no channel",
    ),
    archived=Annotated[bool, option("--archived", "List the archived ones too.", ...)],
)
show = does("Print the data of a channel.")(
    "channels.get", {"isDefault": "default", "in": "you are in it"}, channel=Channel
)
set_ = does("Change the settings of a channel. Its name and its scope cannot change.")(
    "channels.update",
    "{0.id}: changed",
    channel=Channel,
    access=Annotated[Access | None, option("--access", _ACCESS, ...)],
    description=Description,
    default=Annotated[bool | None, option("--default/--no-default", _DEFAULT, ...)],
    topic_required=Annotated[
        bool | None, option("--topic-required/--no-topic-required", "Require a topic.", ...)
    ],
    default_topic=Topic,
    archived=Annotated[
        bool | None,
        option("--archive/--no-archive", "Hide it from the lists, or show it again.", ...),
    ],
)
remove = does("Remove an agent from a channel. It may be invited again.")(
    "channels.remove", "{0.id}: removed {member}", channel=Channel, member=Agent
)
join = does("Join a channel, or come back to it.")(
    "channels.join", "{0.id}: {agent} joined", opens=acting, channel=Channel
)
leave = does(
    "Leave a channel. The agent returns only by joining again, or to a private channel "
    "by invitation."
)("channels.leave", "{0.id}: {agent} left", opens=acting, channel=Channel)
invite = does(
    "Invite agents to a channel, of other projects too, or change what its members may do."
)(
    "channels.invite",
    "{0.id}: invited {agents}",
    agents=Agents,
    channel=Annotated[
        str, option("--channel CHANNEL", _CHANNEL, ..., autocompletion=complete_channel)
    ],
    can_send=Annotated[
        bool | None, option("--can-send/--no-send", "Permit or forbid them to write.", ...)
    ],
    can_invite=Annotated[
        bool | None, option("--can-invite/--no-invite", "Permit or forbid invitations.", ...)
    ],
    can_manage=Annotated[bool | None, option("--can-manage/--no-manage", _MANAGE, ...)],
)
members = does("List the agents in a channel.")(
    "channels.members",
    Rows(
        {"id": "id", "joined": "joined_at", "invited by": "invited_by", "source": "source"},
        "nobody is in it",
    ),
    value=lambda members, channel: as_json(members),
    channel=Channel,
)
topics = does("List the topics of a channel, the latest first.")(
    "channels.topics",
    Rows({"topic": "value", "messages": "messages", "last": "last"}, "it has no topic yet"),
    value=lambda topics, channel: [
        dict(zip(("topic", "messages", "last"), topic, strict=True)) for topic in topics
    ],
    channel=Channel,
)


Muted = Annotated[str, argument("CHANNEL", f"A channel, or any conversation: {CONVERSATION}", ...)]


def mute(
    conversation: Muted,
    notify: Literal["all", "mentions", "none"] | None = option(
        "--notify",
        "Choose what wakes the agent instead: all messages, those that mention it, or none.",
    ),
) -> None:
    """Mute a conversation: only messages that mention the agent are unread and wake it."""
    _mute(conversation, notify is None, notify or "all")


def unmute(conversation: Muted) -> None:
    """Unmute a conversation: all its new messages are unread and wake the agent."""
    _mute(conversation, False, "all")


def _mute(conversation: str, on: bool, level: str) -> None:
    with acting() as (store, agent):
        store.channels.mute(conversation, on, notify=level, agent=agent)
    value = {"agent": agent, "conversation": conversation, "muted": on, "notify": level}
    answer(value, f"{one_line(conversation)}: {'muted' if on else f'notify {level}'}")
