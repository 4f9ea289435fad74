"""The pydantic models of a capsule of version 2.1. One of version 2.0 only lacks optional fields.

Attributes are in snake_case, and the keys in files in camelCase. Both names are accepted. A
message's `from` is `from_`. `capsule.format.fields` describes each field.

What must stay true: the models accept the types that `validation.check` accepts (a test compares
them with `fields`), and keep unknown fields. They do not check choices, and keep times as texts,
because loading must be fast. `validation` checks these.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel


class _Part(BaseModel):
    """The base of all parts: unknown fields are kept, and nothing is converted."""

    model_config = ConfigDict(
        extra="allow",
        strict=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
    )


class Lock(_Part):
    """The instance lock: the instance that alone may write to the conversation."""

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
    """An override of one MCP server in a conversation.

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
    """The fields of a channel."""

    name: str | None = None
    scope: str | None = None
    access: str | None = None
    is_default: bool | None = None
    topic_required: bool | None = None
    default_topic: str | None = None
    owner: str | None = None


class SummaryOf(_Part):
    """How far the source of a summary had got when it was read."""

    message: str | None = None
    messages: int = 0
    updated_at: str | None = None


class Metadata(_Part):
    """The properties of a conversation."""

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
    """The origin of the context."""

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
    """The agents that a message names.

    Attributes:
        valid: The ids of members, or `@all`.
        invalid: The names of agents that are no members.
        unknown: Names that no agent has.
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
    # None is a root. Absent (`"parent" not in message.model_fields_set`) is the message before.
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
        """The message's index in `history`, from 0. None: it was not loaded from a store."""
        try:
            return int(_at.__get__(self))
        except AttributeError:
            return None

    def placed(self, at: int) -> Message:
        """Set the message's index in the history. Return the message."""
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
        """Set the indexes of the messages, of which the first is `first`. Return the conversation."""
        for index, message in enumerate(self.history, first):
            _at.__set__(message, index)
        return self


_MESSAGE_LIST = TypeAdapter(list[Message])


def parse_messages(data: bytes) -> list[Message]:
    """Return the messages in a JSON array. Raises `pydantic.ValidationError` if one is invalid."""
    return _MESSAGE_LIST.validate_json(data)
