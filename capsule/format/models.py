"""What a capsule of version 2.1 is, as pydantic models; one of 2.0 only lacks optional fields.

What must stay true: the models accept what `validation.check` accepts as far as types go (a test holds them and
`fields` together), and keep unknown fields. They are lenient about the values of enumerations, and take times as
the texts they are, because loading must be fast; `validation` looks closer.

Attributes are snake_case, the keys in files camelCase; both names populate. A message's `from` is `from_`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.alias_generators import to_camel

from capsule.format import fields
from capsule.format.agents import AGENT_ID, MAX_AGENT_ID
from capsule.format.new import CURRENT
from capsule.format.projects import MAX_PROJECT_ID, PROJECT_ID

#: ISO 8601 in any form when read; written in UTC with milliseconds, 24 characters.
Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
Source = Annotated[str, Field(json_schema_extra={"enum": list(fields.SOURCES)})]
Access = Annotated[str, Field(json_schema_extra={"enum": list(fields.ACCESSES)})]
Discoverable = Annotated[str, Field(json_schema_extra={"enum": list(fields.DISCOVERABLE)})]
DmPolicy = Annotated[str, Field(json_schema_extra={"enum": list(fields.DM_POLICIES)})]
Direction = Annotated[str, Field(json_schema_extra={"enum": list(fields.DIRECTIONS)})]
#: Objects by the id of what they are about.
Entries = dict[str, dict[str, Any]]


class _Part(BaseModel):
    """What all parts share: unknown fields are kept, nothing is converted."""

    model_config = ConfigDict(
        extra="allow", strict=True, alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )


class Lock(_Part):
    """The instance lock: who may write the conversation just now."""

    active: bool = Field(default=False, description="Whether an instance holds the conversation.")
    instance_id: str | None = Field(default=None, description="The instance that holds it, a UUID.")
    timestamp: Time | None = Field(default=None, description="When the lock was taken or last refreshed.")
    user: str | None = Field(default=None, description="The user the instance runs for.")
    host: str | None = Field(default=None, description="The machine the instance runs on.")
    pid: int | None = Field(default=None, description="The instance's process, for people to read.")
    name: str | None = Field(default=None, description="The name of the instance, when a person named it.")
    client: str | None = Field(default=None, description="The program that it was taken for, as people know it.")
    agent: str | None = Field(default=None, description="The agent that it was taken for.")


class McpServer(_Part):
    """How a conversation differs from the default for one MCP server."""

    enabled: bool = Field(description="Whether the conversation has it.")


class NextOverrides(_Part):
    """The switches that the next new conversation begins with: `overrides/next.json` of a store."""

    version: str = Field(default="2.1", description="The version of the format.", pattern=r"^2\.[0-9]+$")
    mcp_servers: dict[str, McpServer] | list[str] = Field(
        default_factory=dict,
        description="MCP servers that are switched on or off for it, by name; absent: the default. A list of names: "
        "these are on.",
    )


class Member(_Part):
    """An agent that takes part in a conversation, or did."""

    id: str = Field(description="The agent's id.")
    joined_at: Time | None = Field(default=None, description="When it joined; absent: it was there from the start.")
    left_at: Time | None = Field(default=None, description="When it left; absent: it takes part.")
    opted_out_at: Time | None = Field(default=None, description="When it left by itself: no rule lets it in again.")
    invited_by: str | None = Field(default=None, description="The agent that let it in, or self or system.")
    source: Source | None = Field(default=None, description="Why it is there.")
    can_leave: bool | None = Field(default=None, description="Whether it may leave; absent: unless it is private.")
    can_send: bool | None = Field(default=None, description="Whether it may write; absent: it may.")
    can_invite: bool | None = Field(default=None, description="Whether it may invite; absent: if it is open.")
    can_manage: bool | None = Field(
        default=None, description="Whether it may change the channel, and what others wrote; absent: it may not."
    )


class Channel(_Part):
    """What makes a conversation a channel."""

    name: str | None = Field(default=None, description="Its name.")
    scope: str | None = Field(default=None, description="global, or the id of the project whose agents find it.")
    access: Access | None = Field(default=None, description="Who comes in; absent: nobody (private).")
    is_default: bool | None = Field(default=None, description="Whether new agents of its scope join it.")
    topic_required: bool | None = Field(default=None, description="Whether a message needs a topic.")
    default_topic: str | None = Field(default=None, description="The topic of a message that names none.")
    owner: str | None = Field(default=None, description="The agent whose notes it holds.")


class SummaryOf(_Part):
    """How far the source of a summary had got."""

    message: str | None = Field(default=None, description="The id of the last message that was summed up.")
    messages: int = Field(default=0, description="How many messages lead there, that one included.")
    updated_at: Time | None = Field(default=None, description="The `updatedAt` of that conversation then.")


class Metadata(_Part):
    """The properties of a conversation, besides its messages."""

    mode: str = Field(
        default="api", description="The mode of the conversation.", json_schema_extra={"enum": list(fields.MODES)}
    )
    tags: list[str] = Field(default_factory=list, description="The user's tags.")
    is_summary: bool = Field(default=False, description="Whether it sums up another conversation.")
    source_conversation_id: str | None = Field(default=None, description="The conversation it was made from.")
    lock: Lock = Field(default_factory=Lock, description="The instance lock.")
    type: str = Field(
        default="chat",
        description="Who takes part: one person with an agent, or many.",
        json_schema_extra={"enum": list(fields.TYPES)},
    )
    current_node: str | None = Field(
        default=None, description="A message of the active branch; absent: the last entry of history."
    )
    current_wanted: dict[str, Any] | None = Field(
        default=None,
        description="A note of a merge: the `message` that one version made active and the other one deleted, and what "
        "`currentNode` is `instead`.",
    )
    participants: list[str | Member] | None = Field(
        default=None, description="The agents that take part. A text is the id of one that was there from the start."
    )
    history: str | None = Field(
        default=None,
        description="What participants read: what was said since they joined (joined, the default), or all.",
        json_schema_extra={"enum": [*fields.HISTORIES, None]},
    )
    channel: Channel | None = Field(default=None, description="Of a channel: what makes it one.")
    created_by: str | None = Field(default=None, description="The agent or user that made the conversation.")
    description: str | None = Field(default=None, description="What the conversation is for.")
    archived: bool = Field(default=False, description="Whether it is archived: lists leave it out.")
    pinned: bool = Field(default=False, description="Whether it is at the top of lists.")
    forked_from: str | None = Field(default=None, description="The conversation this one was split off from.")
    title_set_by: str | None = Field(
        default=None,
        description="Who gave the title: the first message (auto), or a person (user).",
        json_schema_extra={"enum": [*fields.TITLE_SETTERS, None]},
    )
    title_set_at: Time | None = Field(
        default=None, description="When the title was given, by a person or as far as a merge could tell."
    )
    mcp_servers: dict[str, McpServer] | list[str] | None = Field(
        default=None,
        description="MCP servers that are switched on or off, by name; absent: the default. A list of names (drafts of "
        "2.1): these are on.",
    )
    summary_of: SummaryOf = Field(
        default_factory=SummaryOf, description="Of a summary: how far its source went when it was made."
    )
    conflicts: list[dict[str, Any]] | None = Field(
        default=None,
        description="The fields that two merged versions changed differently and that a person has to settle: "
        "`field`, and `values`, each with `value` and perhaps `at`.",
    )


class ContextFile(_Part):
    """One file of the context, so that a changed file can be named."""

    path: str = Field(default="", description="The file, below the project's path.")
    sha256: str | None = Field(default=None, description="The digest of its content, in hexadecimal.")
    bytes: int | None = Field(default=None, description="Its size.")
    tokens: int | None = Field(default=None, description="Its estimated tokens.")


class ContextMetadata(_Part):
    """Where the context comes from."""

    project_path: str | None = Field(default=None, description="The project the context was taken from.")
    files_included: int = Field(default=0, description="How many files it holds.")
    estimated_tokens: int = Field(default=0, description="How many tokens it takes, estimated.")
    context_hash: str | None = Field(
        default=None, description="Its digest, after the name of the algorithm: sha256:..."
    )
    files: list[ContextFile] = Field(default_factory=list, description="The files it was made from.")
    selection: dict[str, Any] | None = Field(
        default=None, description="Which files of the project were chosen, so that new ones can be found."
    )
    captured_at: Time | None = Field(default=None, description="When it was captured.")
    other_hashes: list[str] | None = Field(
        default=None, description="The digests of captures that this one replaced in a merge."
    )


class Context(_Part):
    """The project context of a conversation."""

    full_context: str = Field(default="", description="The context as text, usually Markdown.")
    metadata: ContextMetadata = Field(default_factory=ContextMetadata, description="Where it comes from.")


class Mentions(_Part):
    """Who is named in a message."""

    valid: list[str] = Field(default_factory=list, description="The members that are named, by id; @all: all of them.")
    invalid: list[str] = Field(default_factory=list, description="The names of agents that are no members.")
    unknown: list[str] = Field(default_factory=list, description="The names of nobody.")
    kinds: dict[str, str] = Field(
        default_factory=dict, description="What is asked of a member, by its id: review, action or fyi."
    )


class Message(_Part):
    """One entry of the history."""

    # A slot, and no private attribute of pydantic's: those cost a Python call for every message loaded.
    __slots__ = ("_at",)

    role: str = Field(description="The role of its writer.", json_schema_extra={"enum": list(fields.ROLES)})
    content: str = Field(description="The text, usually Markdown.")
    timestamp: Time | None = Field(default=None, description="When it was written; ISO 8601, UTC.")
    id: str | None = Field(default=None, description="A UUIDv7; a message without one gets one at the next write.")
    # Absent (`"parent" not in message.model_fields_set`) and None say different things.
    parent: str | None = Field(
        default=None, description="The id of the message it answers; absent: the entry before it; null: a root."
    )
    # Not `alias`: type checkers would take that for the argument's name, and `from` can't be one.
    from_: str | None = Field(
        default=None, validation_alias="from", serialization_alias="from", description="The agent that wrote it, by id."
    )
    reply_to: str | None = Field(
        default=None, description="The id of the message it is a reply to. It makes no branch, as `parent` does."
    )
    thread: str | None = Field(default=None, description="The id of the message that began its thread.")
    topic: str | None = Field(default=None, description="What it is about, in a channel.")
    mentions: Mentions | None = Field(default=None, description="Who is named in it.")
    intent: str | None = Field(default=None, description="What it is meant as.")
    priority: str | None = Field(default=None, description="How urgent it is.")
    confidence: float | None = Field(default=None, description="How sure its writer is, 0 to 1.", ge=0, le=1)
    edited_at: Time | None = Field(default=None, description="When it was last changed.")
    model: str | None = Field(default=None, description="The model that wrote it.")
    tool_calls: list[dict[str, Any]] | None = Field(default=None, description="The tools it calls.")
    tool_call_id: str | None = Field(default=None, description="The call it answers, of role tool.")
    reasoning: str | None = Field(default=None, description="The model's reasoning.")
    attachments: list[dict[str, Any]] | None = Field(default=None, description="What is attached to it.")
    metadata: dict[str, Any] | None = Field(default=None, description="Further properties.")

    @property
    def at(self) -> int | None:
        """The message's place in `history`, from 0; None when it did not come out of a store."""
        try:
            return int(_at.__get__(self))
        except AttributeError:
            return None

    def placed(self, at: int) -> Message:
        """The same message, which now knows its place in the history."""
        _at.__set__(self, at)
        return self


_at: Any = Message.__dict__["_at"]


class Capsule(_Part):
    """A conversation."""

    id: str = Field(
        description="The conversation's id, and the stem of its file's name.",
        json_schema_extra={"pattern": "^[A-Za-z0-9][A-Za-z0-9._@-]*$", "maxLength": 128},
    )
    title: str = Field(description="The user's title, or one made from the first message.")
    version: str = Field(description="The version of the format.", json_schema_extra={"pattern": r"^2\.[0-9]+$"})
    created_at: Time = Field(description="When the conversation was made; ISO 8601, UTC.")
    updated_at: Time = Field(description="When it was last changed; ISO 8601, UTC.")
    metadata: Metadata = Field(default_factory=Metadata, description="Its properties.")
    context: Context = Field(default_factory=Context, description="Its project context.")
    history: list[Message] = Field(description="The messages, oldest first.")


class Permission(_Part):
    """What an agent said of another that wants to write to it."""

    permission: str = Field(description="Whether it may.", json_schema_extra={"enum": list(fields.PERMISSIONS)})
    reason: str | None = Field(default=None, description="Why.")
    at: Time | None = Field(default=None, description="When it was said; ISO 8601, UTC.")


class _Record(_Part):
    """What documents without a history share."""

    id: str
    name: str | None = Field(default=None, description="What people call it; absent: as its id.")
    description: str | None = Field(default=None, description="What it is for.")
    version: str = Field(
        default=CURRENT, description="The version of the format.", json_schema_extra={"pattern": r"^2\.[0-9]+$"}
    )
    created_at: Time | None = Field(default=None, description="When it was registered; ISO 8601, UTC.")
    updated_at: Time | None = Field(default=None, description="When this document was last changed; ISO 8601, UTC.")


class Agent(_Record):
    """Who can write and be written to: a person or a program. `agents/{id}.json` of a store."""

    id: str = Field(
        description="The agent's id, and the stem of its file's name.",
        json_schema_extra={"pattern": f"^{AGENT_ID}$", "maxLength": MAX_AGENT_ID},
    )
    project: str | None = Field(default=None, description="Its project, by id, or global; absent: that of its folder.")
    project_path: str | None = Field(default=None, description="The folder that it works in.")
    last_seen: Time | None = Field(default=None, description="When it was last at work; ISO 8601, UTC.")
    status_message: str | None = Field(default=None, description="What it says it is doing.")
    busy: bool = Field(default=False, description="Whether it is busy, as it says.")
    notifications: bool = Field(default=True, description="Whether it is told, while away, that messages wait.")
    discoverable: Discoverable = Field(default="public", description="Who finds it.")
    dm_policy: DmPolicy = Field(default="open", description="Who may write to it directly.")
    dm: dict[str, Permission] = Field(default_factory=dict, description="Whom it allowed or blocked, by id.")
    requests: Entries = Field(default_factory=dict, description="Whom it may not write to yet and asked, and when.")
    reading: Entries = Field(default_factory=dict, description="What it wants to hear of a conversation.")
    concerns: Entries = Field(default_factory=dict, description="When it read a message that concerns it, or did it.")
    cursors: dict[str, Any] = Field(
        default_factory=dict,
        description="How far it has read, by conversation: the `message`, `at` which place in the history (from 0), "
        "and a `trail` of messages before it, by place.",
    )


class Link(_Part):
    """What a project lets agents of another one see, and what its own see there."""

    direction: Direction = Field(description="Whether its agents see the other's (out), the other's its (in), or both.")
    enabled: bool = Field(default=True, description="Whether it counts.")
    created_by: str | None = Field(default=None, description="Who made it.")
    created_at: Time | None = Field(default=None, description="When it was made; ISO 8601, UTC.")


class Project(_Record):
    """A folder that agents work in. `projects/{id}.json` of a store."""

    id: str = Field(
        description="The project's id, made of its folder, and the stem of its file's name.",
        json_schema_extra={"pattern": f"^{PROJECT_ID}$", "maxLength": MAX_PROJECT_ID},
    )
    path: str | None = Field(default=None, description="The folder.")
    last_active: Time | None = Field(default=None, description="When one of its agents was last at work; ISO 8601.")
    metadata: dict[str, Any] = Field(default_factory=dict, description="Further properties.")
    links: dict[str, Link] = Field(default_factory=dict, description="Its links, by the other project's id.")


_TYPES: dict[str, Any] = {
    "text": str,
    "whole": int,
    "yes or no": bool,
    "texts": list[str],
    "object": dict[str, Any],
    "objects": list[dict[str, Any]],
}


def made_of(part: str, name: str, doc: str, base: type[_Part] = _Part) -> type[BaseModel]:
    """The model of a part whose fields are told by the table of fields alone.

    Args:
        part: The part.
        name: The model's name.
        doc: What it is, for the schema.
        base: A model with its first fields.
    """
    made: dict[str, Any] = {}
    for row in fields.PARTS[part]:
        if row.name in {info.alias for info in base.model_fields.values()}:
            continue
        inside = f"{part}.{row.name}"
        kind = dict[str, made_of(inside, row.name.capitalize(), "")] if row.kind == "entries" else _TYPES[row.kind]  # type: ignore[misc]
        more: dict[str, Any] = {"json_schema_extra": {"enum": list(row.choices)}} if row.choices else {}
        more |= {} if row.required else {"default_factory": lambda: None}
        made[row.name] = kind, Field(alias=row.name, description=row.says, **more)
    return create_model(name, __base__=base, __doc__=doc or None, **made)


Registry = made_of(
    "registry", "Registry", "The agents, places, wirings, sessions and questions of `sessions/registry.json`.", _Record
)
_MESSAGES = TypeAdapter(list[Message])


def messages_in(data: bytes) -> list[Message]:
    """The messages in a JSON array of them. Raises `pydantic.ValidationError` when one is none."""
    return _MESSAGES.validate_json(data)
