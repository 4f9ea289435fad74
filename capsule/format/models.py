"""What a capsule of version 2.1 is, as pydantic models; one of 2.0 only lacks optional fields.

What must stay true: the models accept what `validation.check` accepts as far as types go (a test
holds them and `fields` together), and keep unknown fields. They are lenient about the values of
enumerations, and take times as the texts they are, because loading must be fast; `validation` looks
closer.

Attributes are snake_case, the keys in files camelCase; both names populate. A message's `from` is
`from_`. `fields` says what each means.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel


class _Part(BaseModel):
    """What all parts share: unknown fields are kept, nothing is converted."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )


class Lock(_Part):
    """The instance lock: who may write the conversation just now."""

    active: bool = False
    instance_id: str | None = None
    timestamp: str | None = None
    user: str | None = None
    host: str | None = None
    pid: int | None = None
    boot: str | None = None
    name: str | None = None
    client: str | None = None
    agent: str | None = None


class McpServer(_Part):
    """How a conversation differs from the default for one MCP server.

    Attributes:
        enabled: Whether the server is on.
    """

    enabled: bool


class MemberModel(_Part):
    """An agent that takes part in a conversation, or did."""

    id: str
    joined_at: str | None = None
    left_at: str | None = None
    opted_out_at: str | None = None
    invited_by: str | None = None
    source: str | None = None
    can_leave: bool | None = None
    can_send: bool | None = None
    can_invite: bool | None = None
    can_manage: bool | None = None


class ChannelModel(_Part):
    """What makes a conversation a channel."""

    name: str | None = None
    scope: str | None = None
    access: str | None = None
    is_default: bool | None = None
    topic_required: bool | None = None
    default_topic: str | None = None
    owner: str | None = None


class SummaryOf(_Part):
    """How far the source of a summary had got."""

    message: str | None = None
    messages: int = 0
    updated_at: str | None = None


class Metadata(_Part):
    """The properties of a conversation, besides its messages."""

    mode: str = "api"
    tags: list[str] = []
    is_summary: bool = False
    source_conversation_id: str | None = None
    lock: Lock = Field(default_factory=Lock)
    type: str = "chat"
    current_node: str | None = None
    current_wanted: dict[str, Any] | None = None
    participants: list[str | MemberModel] | None = None
    history: str | None = None
    channel: ChannelModel | None = None
    created_by: str | None = None
    deleted_by: str | None = None
    description: str | None = None
    archived: bool = False
    pinned: bool = False
    forked_from: str | None = None
    title_set_by: str | None = None
    title_set_at: str | None = None
    mcp_servers: dict[str, McpServer] | list[str] | None = None
    summary_of: SummaryOf = Field(default_factory=SummaryOf)
    conflicts: list[dict[str, Any]] | None = None


class ContextFile(_Part):
    """One file of the context, so that a changed file can be named."""

    path: str = ""
    sha256: str | None = None
    bytes: int | None = None
    tokens: int | None = None


class ContextMetadata(_Part):
    """Where the context comes from."""

    project_path: str | None = None
    files_included: int = 0
    estimated_tokens: int = 0
    context_hash: str | None = None
    files: list[ContextFile] = []
    selection: dict[str, Any] | None = None
    captured_at: str | None = None
    other_hashes: list[str] | None = None


class Context(_Part):
    """The project context of a conversation."""

    full_context: str = ""
    metadata: ContextMetadata = Field(default_factory=ContextMetadata)


class Mentions(_Part):
    """Who is named in a message.

    Attributes:
        valid: The ids of members, or `@all`.
        invalid: The names of agents that are no members.
        unknown: The names of nobody.
        kinds: How each is mentioned, by id: `mention`, `review`, `action` or `fyi`.
    """

    valid: list[str] = []
    invalid: list[str] = []
    unknown: list[str] = []
    kinds: dict[str, str] = {}


class Message(_Part):
    """One entry of the history."""

    # A slot, and no private attribute of pydantic's: those cost a Python call for every message
    # loaded.
    __slots__ = ("_at",)

    role: str
    content: str
    timestamp: str | None = None
    id: str | None = None
    # Absent (`"parent" not in message.model_fields_set`) and None say different things.
    parent: str | None = None
    # Not `alias`: type checkers would take that for the argument's name, and `from` can't be one.
    from_: str | None = Field(default=None, validation_alias="from", serialization_alias="from")
    reply_to: str | None = None
    thread: str | None = None
    topic: str | None = None
    mentions: Mentions | None = None
    intent: str | None = None
    priority: str | None = None
    confidence: float | None = Field(default=None, ge=0, le=1)
    edited_at: str | None = None
    edited_by: str | None = None
    model: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    attachments: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None

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

    id: str
    title: str
    version: str
    created_at: str
    updated_at: str
    metadata: Metadata = Field(default_factory=Metadata)
    context: Context = Field(default_factory=Context)
    history: list[Message]

    def placed(self, first: int) -> Capsule:
        """The same conversation, whose messages now know their places; the first one stands at
        `first`.
        """
        for at, message in enumerate(self.history, first):
            _at.__set__(message, at)
        return self


_MESSAGES = TypeAdapter(list[Message])


def parse_messages(data: bytes) -> list[Message]:
    """The messages in a JSON array of them. Raises `pydantic.ValidationError` when one is none."""
    return _MESSAGES.validate_json(data)
