"""The tools of channels, groups and notes: who takes part where.

What must stay true: whom a call acts for is how the server was started, or the token, and never an
argument. Who may do what is decided by the Store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from mcp.server.mcpserver import Context
from mcp_types import CallToolResult
from pydantic import Field

from capsule.fence import quoted, word
from capsule.mcp_server.stores import store_of
from capsule.mcp_server.tools.answers.results import Answer, Rows, answer, rows
from capsule.messaging import conversations
from capsule.messaging.channels import Channels
from capsule.messaging.notes import Notes
from capsule.messaging.tools.messages import Agents

if TYPE_CHECKING:
    from capsule.messaging.channels import Settings


class Group(Answer):
    """A group and its members."""

    id: str
    name: str
    members: list[str]


class Groups(Answer):
    """The groups of the caller."""

    groups: list[Group]


def manage_group(
    ctx: Context,
    action: Literal["create", "add", "leave", "rename", "list"],
    id: Annotated[str, Field(description="Of the group; not for create and list")] = "",
    name: Annotated[str, Field(description="For create and rename")] = "",
    agents: Agents = [],  # noqa: B006
    history: Annotated[
        Literal["joined", "all"], Field(description="For create: read from when one joined, or all")
    ] = "joined",
) -> Annotated[CallToolResult, Groups]:
    """Make a group, add agents to it, leave or rename it, or list those you are in."""
    groups = store_of(ctx).inner.part(conversations.Groups)
    match action:
        case "create":
            done, heads = "Made", [groups.create(name, with_=agents, history=history)]
        case "add":
            done, heads = "Added", [groups.add(id, agents)]
        case "leave":
            done, heads = "Left", [groups.leave(id)]
        case "rename":
            done, heads = "Renamed", [groups.rename(id, name)]
        case "list":
            done, heads = "Your groups", groups.list()
    mine = [
        Group(
            id=head.id,
            name=head.title[:200],
            members=[each.id for each in head.participants if each.is_in],
        )
        for head in heads
    ]
    lines = [
        f"{group.id} {quoted(group.name)}, members: {', '.join(map(word, group.members))}"
        for group in mine
    ]
    return answer(
        f"{done}: " + "\n".join(lines) if lines else "You are in no group.", Groups(groups=mine)
    )


def manage_channel(
    ctx: Context,
    action: Literal[
        "list", "show", "create", "join", "leave", "invite", "remove", "update", "notify"
    ],
    channel: Annotated[
        str, Field(description="Its name, name@project or id; for create its new name")
    ] = "",
    agents: Agents = [],  # noqa: B006
    scope: Annotated[
        str, Field(description="For create: project (your own) or global")
    ] = "project",
    access: Annotated[
        Literal["open", "members", "private"] | None,
        Field(
            description="Who gets in. open (in create the default): who joins, of its scope; "
            "members: who is invited; "
            "private: nobody but those it was created with"
        ),
    ] = None,
    description: Annotated[str, Field(description="What it is for")] = "",
    topicRequired: bool | None = None,
    defaultTopic: Annotated[str, Field(description="Of messages without one")] = "",
    default: Annotated[
        bool | None, Field(description="New agents of its scope join by themselves")
    ] = None,
    archived: Annotated[bool | None, Field(description="For update")] = None,
    canSend: Annotated[
        bool | None, Field(description="For invite; false lets them only read")
    ] = None,
    canInvite: Annotated[bool | None, Field(description="For invite")] = None,
    canManage: Annotated[bool | None, Field(description="For invite")] = None,
    notify: Annotated[
        Literal["all", "mentions", "none"],
        Field(
            description="For notify. all: each message is unread and wakes you; mentions: only "
            "those that mention you; "
            "none: each is unread, none wakes you"
        ),
    ] = "all",
) -> Annotated[CallToolResult, Rows]:
    """list: channels you may find; show: one, with its members and topics; create, update, join or
    leave one; invite agents (again: to change their rights) or remove them; notify: say what of it
    you hear."""
    channels = store_of(ctx).inner.part(Channels)
    settings: Settings = {
        "access": access,
        "description": description or None,
        "default": default,
        "topic_required": topicRequired,
        "default_topic": defaultTopic or None,
        "archived": archived,
    }
    match action:
        case "list":
            return rows(ctx, "Channels", (each.as_json() for each in channels.list()))
        case "create":
            channels.create(channel, scope=scope, members=agents, **settings)
        case "join":
            channels.join(channel)
        case "leave":
            return rows(ctx, "Left", [{"id": channels.leave(channel).id}])
        case "invite":
            channels.invite(
                channel, agents, can_send=canSend, can_invite=canInvite, can_manage=canManage
            )
        case "remove":
            for agent in agents:
                channels.remove(channel, agent)
        case "update":
            channels.update(channel, **settings)
        case "notify":
            channels.mute(channel, False, notify=notify)
    state = channels.get(channel).as_json()
    if action == "show":
        state["members"] = [member.id for member in channels.members(channel)]
        state["topics"] = [topic.value for topic in channels.topics(channel)]
    return rows(ctx, "Channel", [state])


def notes(
    ctx: Context,
    action: Literal["write", "search", "share", "unshare"],
    text: Annotated[str, Field(description="The note, or words to look for")] = "",
    tags: Annotated[list[str], Field(description="Of the note, or all of them to look for")] = [],  # noqa: B006
    anyTag: Annotated[bool, Field(description="One of the tags is enough")] = False,
    session: Annotated[str, Field(description="Work that the note belongs to")] = "",
    other: Annotated[
        str,
        Field(
            description="search: whose notes, if not yours; share, unshare: who may search yours"
        ),
    ] = "",
) -> Annotated[CallToolResult, Rows]:
    """Keep private notes for yourself. write one; search them by words and tags; share them with
    another agent, which may then search them, or unshare them."""
    notes = store_of(ctx).inner.part(Notes)
    match action:
        case "write":
            return rows(
                ctx, "Written", [notes.write(text, tags=tags, session=session or None).as_json()]
            )
        case "share":
            notes.share(other)
        case "unshare":
            notes.unshare(other)
        case "search":
            matches = notes.search(
                text, of=other or None, tags=tags, any_tag=anyTag, session=session or None
            )
            return rows(ctx, "Notes", (each.as_json() for each in matches))
    return answer(
        f"{'May' if action == 'share' else 'May not'} search your notes: {word(other)}.",
        Rows(found=[]),
    )
