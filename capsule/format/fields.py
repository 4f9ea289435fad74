"""The table of the fields of the format, in canonical order, each with its kind and its version.

`PARTS` lists the fields of each part. A part is an object of the format, named by its path: ``""``
is a capsule, ``metadata`` the object in it, ``history`` a message. ``agent``, ``project``,
``registry`` and ``overrides`` are documents of these kinds.

What must stay true: the table and `capsule.format.models` agree, which a test checks. It exists
beside the models because importing pydantic costs more than listing a hundred conversations. The
JSON Schemas are made from it.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

FieldKind = (
    Literal["text", "time", "whole", "share", "yes or no", "texts", "object", "objects", "mentions"]
    | Literal["switches", "entries", "part", "parts", "members"]
)

#: The choices of fields.
ROLES = ("user", "assistant", "system", "tool")
MODES = ("api", "toolbox")
TYPES = ("chat", "direct", "group", "channel")
TITLE_SETTERS = ("auto", "user")
ACCESSES = ("open", "members", "private")
DM_POLICIES = ("open", "restricted", "closed")
DISCOVERABLE = ("public", "project", "private")
PERMISSIONS = ("allow", "block")
DIRECTIONS = ("both", "out", "in")
ENGAGES = ("pattern", "mention", "mention-sticky")
IGNORED = ("drop", "accumulate")
SESSIONS = ("shared", "per-thread", "agent-shared")


class Field(NamedTuple):
    """One field of a part.

    Attributes:
        name: Its key in the file.
        kind: The kind of its value. ``part`` is an object with fields of its own, ``parts`` a list
            of these, and ``members`` a list of these and of texts. ``entries`` is an object whose
            values are objects, which may have fields of their own. ``switches`` is one whose values
            have ``enabled``, true or false. ``share`` is a number from 0 to 1. ``mentions`` is an
            object with the lists of the agents that a message names.
        description: The description in the schema.
        choices: The values that it may have. Empty: any of its kind.
        required: Whether a document of version 2.0 and later must have it.
        null: Whether it may be null.
        since_version: The first version that has it.
    """

    name: str
    kind: FieldKind
    description: str
    choices: tuple[str, ...] = ()
    required: bool = False
    null: bool = False
    since_version: str = "2.1"


#: A field of version 2.0.
_old = partial(Field, since_version="2.0")
#: A later field.
_row = Field
#: A later field that may be null.
_new = partial(Field, null=True)

#: The fields that all documents without a history have.
_RECORD = (
    _row("id", "text", "Its id, and the stem of its file's name.", required=True),
    _new("name", "text", "Its name for people; absent: its id."),
    _new("description", "text", "Its purpose."),
    _row("version", "text", "The version of the format."),
    _new("createdAt", "time", "When it was registered; ISO 8601, UTC."),
    _new("updatedAt", "time", "When this document was last changed; ISO 8601, UTC."),
)
PARTS: dict[str, tuple[Field, ...]] = {
    "": (
        _old(
            "id", "text", "The conversation's id, and the stem of its file's name.", required=True
        ),
        _old(
            "title", "text", "The user's title, or one made from the first message.", required=True
        ),
        _old("version", "text", "The version of the format.", required=True),
        _old("createdAt", "time", "When the conversation was made; ISO 8601, UTC.", required=True),
        _old("updatedAt", "time", "When it was last changed; ISO 8601, UTC.", required=True),
        _old("metadata", "part", "Its properties."),
        _old("context", "part", "Its project context."),
        _old("history", "parts", "The messages, oldest first.", required=True),
    ),
    "metadata": (
        _old("mode", "text", "The mode of the conversation.", MODES),
        _old("tags", "texts", "The user's tags."),
        _old("isSummary", "yes or no", "Whether it is a summary of another conversation."),
        _old("sourceConversationId", "text", "The conversation it was made from.", null=True),
        _old("lock", "part", "The instance lock."),
        _row(
            "type",
            "text",
            "Its type: a chat has one writer at a time, the others have many.",
            TYPES,
        ),
        _new(
            "currentNode",
            "text",
            "A message of the active branch; absent: the last entry of history.",
        ),
        _new(
            "currentWanted",
            "object",
            "The `message` that one side made active and one deleted; the active one `instead`.",
        ),
        _new(
            "participants",
            "members",
            "The agents that take part. A text is the id of one that was there from the start.",
        ),
        _new(
            "history",
            "text",
            "What participants read: all messages, or those since they joined.",
            ("joined", "all"),
        ),
        _new("channel", "part", "The fields of a channel; absent: it is no channel."),
        _new("createdBy", "text", "The agent or user that made the conversation."),
        _new(
            "deletedBy",
            "text",
            "In the trash: the agent that deleted the conversation; absent: a person.",
        ),
        _new("description", "text", "The purpose of the conversation."),
        _row("archived", "yes or no", "Whether it is archived: lists leave it out."),
        _row("pinned", "yes or no", "Whether it is at the top of lists."),
        _new("forkedFrom", "text", "The conversation that this one was forked from."),
        _new(
            "titleSetBy",
            "text",
            "The origin of the title: the first message (auto), or a person (user).",
            TITLE_SETTERS,
        ),
        _new(
            "titleSetAt",
            "time",
            "When a person gave the title, or a merge took it.",
        ),
        _new(
            "mcpServers",
            "switches",
            "MCP servers that are switched on or off, by name. In a list, all are on.",
        ),
        _row("summaryOf", "part", "In a summary: how far its source had got when it was read."),
        _new(
            "conflicts",
            "objects",
            "The conflicts of a merge: `field`, and `values` with `value` and `at`.",
        ),
    ),
    "metadata.participants": (
        _row("id", "text", "The agent's id.", required=True),
        _new("joinedAt", "time", "When it joined; absent: it was there from the start."),
        _new("leftAt", "time", "When it left; absent: it takes part."),
        _new("optedOutAt", "time", "When it left by itself; no rule adds it again."),
        _new("invitedBy", "text", "The agent that invited it, or self or system."),
        _new(
            "source",
            "text",
            "The reason of its membership.",
            ("manual", "frontmatter", "default", "system"),
        ),
        _new(
            "canLeave", "yes or no", "Whether it may leave; absent: unless the channel is private."
        ),
        _new("canSend", "yes or no", "Whether it may write; absent: it may."),
        _new("canInvite", "yes or no", "Whether it may invite; absent: if the channel is open."),
        _new(
            "canManage",
            "yes or no",
            "Whether it may change the channel and remove others; absent: it may not.",
        ),
    ),
    "metadata.channel": (
        _new("name", "text", "Its name."),
        _new("scope", "text", "global, or the id of the project whose agents find it."),
        _new("access", "text", "Who may join; absent: nobody (private).", ACCESSES),
        _new("isDefault", "yes or no", "Whether new agents of its scope join it."),
        _new("topicRequired", "yes or no", "Whether a message needs a topic."),
        _new("defaultTopic", "text", "The topic of a message that names none."),
        _new("owner", "text", "The agent whose notes it holds."),
    ),
    "metadata.summaryOf": (
        _new("message", "text", "The id of the last message that the summary covers."),
        _row("messages", "whole", "How many messages lead to it, including itself."),
        _new("updatedAt", "time", "The `updatedAt` of the source at that time."),
    ),
    "metadata.lock": (
        _old("active", "yes or no", "Whether an instance holds the conversation."),
        _old("instanceId", "text", "The instance that holds it, a UUID.", null=True),
        _old("timestamp", "time", "When the lock was taken or last refreshed.", null=True),
        _old("user", "text", "The user of the instance.", null=True),
        _old("host", "text", "The machine of the instance.", null=True),
        _new("pid", "whole", "The instance's process, for people to read."),
        _new("boot", "text", "The boot id of the machine, which its containers share."),
        _new("name", "text", "The name of the instance, if a person gave one."),
        _new("client", "text", "The program for which it was taken, for people to read."),
        _new("agent", "text", "The agent for which it was taken."),
    ),
    "context": (
        _old("fullContext", "text", "The context as text, usually Markdown."),
        _old("metadata", "part", "Its origin."),
    ),
    "context.metadata": (
        _old("projectPath", "text", "The directory of the captured project.", null=True),
        _old("filesIncluded", "whole", "The number of its files."),
        _old("estimatedTokens", "whole", "The estimated number of its tokens."),
        _old(
            "contextHash",
            "text",
            "Its digest, after the name of the algorithm: sha256:...",
            null=True,
        ),
        _row("files", "parts", "The captured files."),
        _new(
            "selection",
            "object",
            "Which files of the project were selected, so that new ones can be found.",
        ),
        _new("capturedAt", "time", "When it was captured."),
        _new("otherHashes", "texts", "The digests of captures that this one replaced in a merge."),
    ),
    "context.metadata.files": (
        _row("path", "text", "The file, below the project's path."),
        _new("sha256", "text", "The digest of its content, in hexadecimal."),
        _new("bytes", "whole", "Its size."),
        _new("tokens", "whole", "Its estimated tokens."),
    ),
    "history": (
        _old("role", "text", "The role of its writer.", ROLES, required=True),
        _old("content", "text", "The text, usually Markdown.", required=True),
        _old("timestamp", "time", "When it was written; ISO 8601, UTC.", null=True),
        _new("id", "text", "A UUIDv7; a message without one gets one at the next write."),
        _new(
            "parent",
            "text",
            "The id of the message it answers; absent: the entry before it; null: a root.",
        ),
        _new("from", "text", "The agent that wrote it, by id."),
        _new(
            "replyTo",
            "text",
            "The id of the message it is a reply to. It makes no branch, as `parent` does.",
        ),
        _new("thread", "text", "The id of the message that began its thread."),
        _new("topic", "text", "Its topic, in a channel."),
        _new("mentions", "mentions", "The agents that it mentions."),
        _new("intent", "text", "Its intent, such as a question."),
        _new("priority", "text", "Its urgency."),
        _new("confidence", "share", "The confidence of its writer, 0 to 1."),
        _new("editedAt", "time", "When it was last changed."),
        _new(
            "editedBy", "text", "The agent that changed it last; absent: a person, or nobody did."
        ),
        _new("model", "text", "The model that wrote it."),
        _new("toolCalls", "objects", "The tools it calls."),
        _new("toolCallId", "text", "The call it answers, of role tool."),
        _new("reasoning", "text", "The model's reasoning."),
        _new("attachments", "objects", "Its attachments."),
        _new("metadata", "object", "Further properties."),
    ),
    "agent": (
        *_RECORD,
        _new("project", "text", "Its project, by id, or global; absent: that of its folder."),
        _new("projectPath", "text", "Its working folder."),
        _new("lastSeen", "time", "When it was last active; ISO 8601, UTC."),
        _new("statusMessage", "text", "Its present work, in its own words."),
        _row("busy", "yes or no", "Whether it says that it is busy."),
        _row(
            "notifications",
            "yes or no",
            "Whether CLAUDE.md announces waiting messages while it is away.",
        ),
        _row("discoverable", "text", "Which agents find it.", DISCOVERABLE),
        _row("dmPolicy", "text", "Which agents may write to it directly.", DM_POLICIES),
        _row("dm", "entries", "The agents that it allows or blocks, by id."),
        _row(
            "requests", "entries", "The agents that it asked for permission to write to, and when."
        ),
        _row("reading", "entries", "Its settings for a conversation, by the conversation's id."),
        _row(
            "concerns",
            "entries",
            "The messages that mention it, by id: when it read and completed them.",
        ),
        _row(
            "cursors",
            "object",
            "How far it has read, by conversation: `message`, `at` (its position), `trail`.",
        ),
    ),
    "agent.dm": (
        _row("permission", "text", "Whether it may write.", PERMISSIONS, required=True),
        _new("reason", "text", "The reason, for people."),
        _new("at", "time", "When this was decided; ISO 8601, UTC."),
    ),
    "project": (
        *_RECORD,
        _new("path", "text", "The folder."),
        _new("lastActive", "time", "When one of its agents was last active; ISO 8601."),
        _row("metadata", "object", "Further properties."),
        _row("links", "entries", "Its links, by the other project's id."),
    ),
    "project.links": (
        _row(
            "direction",
            "text",
            "Which project sees the other's agents: this (out), the other (in), or both.",
            DIRECTIONS,
            True,
        ),
        _row("enabled", "yes or no", "Whether the link is in force."),
        _new("createdBy", "text", "The agent that made it."),
        _new("createdAt", "time", "When it was made; ISO 8601, UTC."),
    ),
    "overrides": (
        _row("version", "text", "The version of the format."),
        _row(
            "mcpServers",
            "switches",
            "MCP servers that are on or off in the next conversation, by name.",
        ),
    ),
    "registry": (
        *_RECORD,
        _row("agents", "entries", "The agents that workers answer for, by their ids."),
        _row("places", "entries", "The places that messages come from, by channel and place."),
        _row(
            "wirings",
            "entries",
            "The rules that wake agents, by channel, place and agent.",
        ),
        _row("sessions", "entries", "The sessions, by their ids."),
        _row("questions", "entries", "Questions of agents to people, by their ids."),
    ),
    "registry.agents": (
        _row("folder", "text", "The folder where its workers run."),
        _row(
            "command",
            "texts",
            "The words of its workers' command, which must be approved on each machine.",
        ),
        _row("provider", "text", "The program behind the command, for people to read."),
        _row("settings", "object", "Its settings: idleS, limitS, maxHops, timeZone."),
        _row(
            "destinations",
            "object",
            "Its destinations, by name: channel, place, thread and title.",
        ),
    ),
    "registry.places": (
        _row("channel", "text", "The adapter of its messages.", required=True),
        _row(
            "place",
            "text",
            "The place within the adapter, for example a conversation.",
            required=True,
        ),
        _row("name", "text", "The name of the place for people."),
        _row("isGroup", "yes or no", "Whether several people write there."),
        _row("admin", "text", "The person who is responsible for it."),
    ),
    "registry.wirings": (
        _row("channel", "text", "The adapter.", required=True),
        _row("place", "text", "The place.", required=True),
        _row("agent", "text", "The agent that answers there.", required=True),
        _row(
            "engage", "text", "What wakes it: a text that fits the pattern, or a mention.", ENGAGES
        ),
        _row("pattern", "text", "The pattern, a regular expression; `.` fits every message."),
        _row("senders", "text", "The senders whose messages wake it.", ("all", "known")),
        _row("ignored", "text", "Whether other messages are dropped or kept.", IGNORED),
        _row(
            "session",
            "text",
            "The scope of a session: the place, a thread of it, or all places.",
            SESSIONS,
        ),
    ),
    "registry.sessions": (
        _row("agent", "text", "The agent.", required=True),
        _row("channel", "text", "The adapter; empty: it serves all places of the agent."),
        _row("place", "text", "The place."),
        _row("thread", "text", "The thread; empty: it serves the whole place."),
        _row("provider", "text", "The program behind its workers, for people to read."),
        _row("status", "text", "Whether it takes messages.", ("active", "paused", "closed")),
        _row("worker", "text", "The state of its worker.", ("idle", "running", "stopped")),
        _row("lastActive", "text", "When it was last active; empty: never."),
    ),
    "registry.questions": (
        _row("session", "text", "The session that asks.", required=True),
        _row("message", "text", "The message that asks.", required=True),
        _row("route", "object", "Where it is asked: channel, place and thread."),
        _row(
            "options",
            "objects",
            "The possible answers, each with a label and a value; none: any text.",
        ),
        _row("expiresAt", "text", "The time after which no answer counts; empty: no limit."),
        _row("state", "text", "Its state.", ("open", "answered", "cancelled", "expired")),
        _row("closedAt", "text", "When it was answered, cancelled or expired."),
        _row(
            "answers",
            "objects",
            "The answers, the one that counts first: value, from, at, message.",
        ),
    ),
}


_NAMES = {part: tuple(field.name for field in fields) for part, fields in PARTS.items()}


def field_names(part: str) -> tuple[str, ...]:
    """Return the keys of a part in canonical order."""
    return _NAMES[part]
