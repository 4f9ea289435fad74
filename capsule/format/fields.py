"""The fields of the format, in canonical order: which there are, what each holds, and since which
version.

What must stay true: this table and the models agree (a test says so). It exists beside them because
importing pydantic costs more than listing a hundred conversations. The JSON Schemas are made of it.

The parts of a capsule are named by where they stand: ``""`` is the capsule itself, ``history`` a
message. ``agent``, ``project``, ``registry`` and ``overrides`` are documents of these kinds.
"""

from __future__ import annotations

from functools import partial
from typing import Literal, NamedTuple

FieldKind = (
    Literal["text", "time", "whole", "share", "yes or no", "texts", "object", "objects", "mentions"]
    | Literal["switches", "entries", "part", "parts", "members"]
)

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
        kind: What it holds; ``part`` and ``parts`` are an object and a list of objects with fields
            of their own, ``members`` is such a list whose items may also be texts, ``entries`` an
            object of names, each with an object, which may have fields of its own, and ``switches``
            one whose objects say in ``enabled`` true or false; a ``share`` is a number from 0 to 1,
            and ``mentions`` who is named in a message.
        says: What it says, for the schema.
        choices: The values it may have; empty when any value of its kind will do.
        required: Whether a document of version 2.0 and later must have it.
        null: Whether it may be null.
        since: The version that brought it.
    """

    name: str
    kind: FieldKind
    says: str
    choices: tuple[str, ...] = ()
    required: bool = False
    null: bool = False
    since: str = "2.1"


#: A field of version 2.0; one that came later; and a later one that may be null.
_old, _row, _new = partial(Field, since="2.0"), Field, partial(Field, null=True)

#: What documents without a history share.
_RECORD = (
    _row("id", "text", "Its id, and the stem of its file's name.", required=True),
    _new("name", "text", "What people call it; absent: as its id."),
    _new("description", "text", "What it is for."),
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
        _old("isSummary", "yes or no", "Whether it sums up another conversation."),
        _old("sourceConversationId", "text", "The conversation it was made from.", null=True),
        _old("lock", "part", "The instance lock."),
        _row("type", "text", "Who takes part: one person with an agent, or many.", TYPES),
        _new(
            "currentNode",
            "text",
            "A message of the active branch; absent: the last entry of history.",
        ),
        _new(
            "currentWanted",
            "object",
            "The `message` that one side made active and one deleted; active `instead`.",
        ),
        _new(
            "participants",
            "members",
            "The agents that take part. A text: one that was there from the start.",
        ),
        _new(
            "history",
            "text",
            "What participants read: all, or what was said since they joined.",
            ("joined", "all"),
        ),
        _new("channel", "part", "Of a channel: what makes it one."),
        _new("createdBy", "text", "The agent or user that made the conversation."),
        _new(
            "deletedBy",
            "text",
            "In the trash: the agent that deleted the conversation; absent: a person.",
        ),
        _new("description", "text", "What the conversation is for."),
        _row("archived", "yes or no", "Whether it is archived: lists leave it out."),
        _row("pinned", "yes or no", "Whether it is at the top of lists."),
        _new("forkedFrom", "text", "The conversation this one was split off from."),
        _new(
            "titleSetBy",
            "text",
            "Who gave the title: the first message (auto), or a person (user).",
            TITLE_SETTERS,
        ),
        _new(
            "titleSetAt",
            "time",
            "When the title was given, by a person or as far as a merge could tell.",
        ),
        _new(
            "mcpServers",
            "switches",
            "MCP servers that are on or off, other than by default. A list: these are on.",
        ),
        _row("summaryOf", "part", "Of a summary: how far its source went when it was made."),
        _new(
            "conflicts",
            "objects",
            "What a person settles after a merge: `field`, and `values` with `value` and `at`.",
        ),
    ),
    "metadata.participants": (
        _row("id", "text", "The agent's id.", required=True),
        _new("joinedAt", "time", "When it joined; absent: it was there from the start."),
        _new("leftAt", "time", "When it left; absent: it takes part."),
        _new("optedOutAt", "time", "When it left by itself: no rule lets it in again."),
        _new("invitedBy", "text", "The agent that let it in, or self or system."),
        _new("source", "text", "Why it is there.", ("manual", "frontmatter", "default", "system")),
        _new("canLeave", "yes or no", "Whether it may leave; absent: unless it is private."),
        _new("canSend", "yes or no", "Whether it may write; absent: it may."),
        _new("canInvite", "yes or no", "Whether it may invite; absent: if it is open."),
        _new(
            "canManage",
            "yes or no",
            "Whether it may change the channel, and what others wrote; absent: it may not.",
        ),
    ),
    "metadata.channel": (
        _new("name", "text", "Its name."),
        _new("scope", "text", "global, or the id of the project whose agents find it."),
        _new("access", "text", "Who comes in; absent: nobody (private).", ACCESSES),
        _new("isDefault", "yes or no", "Whether new agents of its scope join it."),
        _new("topicRequired", "yes or no", "Whether a message needs a topic."),
        _new("defaultTopic", "text", "The topic of a message that names none."),
        _new("owner", "text", "The agent whose notes it holds."),
    ),
    "metadata.summaryOf": (
        _new("message", "text", "The id of the last message that was summed up."),
        _row("messages", "whole", "How many messages lead there, that one included."),
        _new("updatedAt", "time", "The `updatedAt` of that conversation then."),
    ),
    "metadata.lock": (
        _old("active", "yes or no", "Whether an instance holds the conversation."),
        _old("instanceId", "text", "The instance that holds it, a UUID.", null=True),
        _old("timestamp", "time", "When the lock was taken or last refreshed.", null=True),
        _old("user", "text", "The user the instance runs for.", null=True),
        _old("host", "text", "The machine the instance runs on.", null=True),
        _new("pid", "whole", "The instance's process, for people to read."),
        _new("boot", "text", "The run of the machine's system, which containers share."),
        _new("name", "text", "The name of the instance, when a person named it."),
        _new("client", "text", "The program that it was taken for, as people know it."),
        _new("agent", "text", "The agent that it was taken for."),
    ),
    "context": (
        _old("fullContext", "text", "The context as text, usually Markdown."),
        _old("metadata", "part", "Where it comes from."),
    ),
    "context.metadata": (
        _old("projectPath", "text", "The project the context was taken from.", null=True),
        _old("filesIncluded", "whole", "How many files it holds."),
        _old("estimatedTokens", "whole", "How many tokens it takes, estimated."),
        _old(
            "contextHash",
            "text",
            "Its digest, after the name of the algorithm: sha256:...",
            null=True,
        ),
        _row("files", "parts", "The files it was made from."),
        _new(
            "selection",
            "object",
            "Which files of the project were chosen, so that new ones can be found.",
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
        _new("topic", "text", "What it is about, in a channel."),
        _new("mentions", "mentions", "Who is named in it."),
        _new("intent", "text", "What it is meant as."),
        _new("priority", "text", "How urgent it is."),
        _new("confidence", "share", "How sure its writer is, 0 to 1."),
        _new("editedAt", "time", "When it was last changed."),
        _new(
            "editedBy", "text", "The agent that changed it last; absent: a person, or nobody did."
        ),
        _new("model", "text", "The model that wrote it."),
        _new("toolCalls", "objects", "The tools it calls."),
        _new("toolCallId", "text", "The call it answers, of role tool."),
        _new("reasoning", "text", "The model's reasoning."),
        _new("attachments", "objects", "What is attached to it."),
        _new("metadata", "object", "Further properties."),
    ),
    "agent": (
        *_RECORD,
        _new("project", "text", "Its project, by id, or global; absent: that of its folder."),
        _new("projectPath", "text", "The folder that it works in."),
        _new("lastSeen", "time", "When it was last at work; ISO 8601, UTC."),
        _new("statusMessage", "text", "What it says it is doing."),
        _row("busy", "yes or no", "Whether it is busy, as it says."),
        _row("notifications", "yes or no", "Whether it is told, while away, that messages wait."),
        _row("discoverable", "text", "Who finds it.", DISCOVERABLE),
        _row("dmPolicy", "text", "Who may write to it directly.", DM_POLICIES),
        _row("dm", "entries", "Whom it allowed or blocked, by id."),
        _row("requests", "entries", "Whom it may not write to yet and asked, and when."),
        _row("reading", "entries", "What it wants to hear of a conversation."),
        _row("concerns", "entries", "When it read a message that concerns it, or did it."),
        _row(
            "cursors",
            "object",
            "How far it has read, by conversation: `message`, `at` (its place), `trail`.",
        ),
    ),
    "agent.dm": (
        _row("permission", "text", "Whether it may.", PERMISSIONS, required=True),
        _new("reason", "text", "Why."),
        _new("at", "time", "When it was said; ISO 8601, UTC."),
    ),
    "project": (
        *_RECORD,
        _new("path", "text", "The folder."),
        _new("lastActive", "time", "When one of its agents was last at work; ISO 8601."),
        _row("metadata", "object", "Further properties."),
        _row("links", "entries", "Its links, by the other project's id."),
    ),
    "project.links": (
        _row(
            "direction",
            "text",
            "Who sees the other's agents: it (out), the other (in), or both.",
            DIRECTIONS,
            True,
        ),
        _row("enabled", "yes or no", "Whether it counts."),
        _new("createdBy", "text", "Who made it."),
        _new("createdAt", "time", "When it was made; ISO 8601, UTC."),
    ),
    "overrides": (
        _row("version", "text", "The version of the format."),
        _row(
            "mcpServers",
            "switches",
            "MCP servers that the next conversation has other than by default, by name.",
        ),
    ),
    "registry": (
        *_RECORD,
        _row("agents", "entries", "The agents that workers answer for, by their ids."),
        _row("places", "entries", "Where messages come from, by channel and place."),
        _row(
            "wirings",
            "entries",
            "Which agent answers where, and when, by channel, place and agent.",
        ),
        _row("sessions", "entries", "The sessions, by their ids."),
        _row("questions", "entries", "Questions of agents to people, by their ids."),
    ),
    "registry.agents": (
        _row("folder", "text", "The folder in which its workers run."),
        _row(
            "command",
            "texts",
            "The words of its workers' command; they count once they are approved on a machine.",
        ),
        _row("provider", "text", "The program behind the command, as people know it."),
        _row("settings", "object", "Its settings: idleS, limitS, maxHops, timeZone."),
        _row(
            "destinations",
            "object",
            "Where it may send by itself, by name: channel, place, thread and title.",
        ),
    ),
    "registry.places": (
        _row("channel", "text", "The adapter that a message comes by.", required=True),
        _row(
            "place",
            "text",
            "Where it comes from there: a conversation, for example.",
            required=True,
        ),
        _row("name", "text", "What people call the place."),
        _row("isGroup", "yes or no", "Whether several people write there."),
        _row("admin", "text", "Who looks after it."),
    ),
    "registry.wirings": (
        _row("channel", "text", "The adapter.", required=True),
        _row("place", "text", "The place.", required=True),
        _row("agent", "text", "The agent that answers there.", required=True),
        _row(
            "engage", "text", "What wakes it: a text that fits the pattern, or a mention.", ENGAGES
        ),
        _row("pattern", "text", "The pattern, a regular expression; `.` fits every message."),
        _row("senders", "text", "Whose messages wake it.", ("all", "known")),
        _row("ignored", "text", "What becomes of messages that do not wake it.", IGNORED),
        _row(
            "session",
            "text",
            "What shares a session: the place, a thread of it, or all places.",
            SESSIONS,
        ),
    ),
    "registry.sessions": (
        _row("agent", "text", "The agent.", required=True),
        _row("channel", "text", "The adapter; empty: it serves all places of the agent."),
        _row("place", "text", "The place."),
        _row("thread", "text", "The thread; empty: it serves the whole place."),
        _row("provider", "text", "The program behind its workers, as people know it."),
        _row("status", "text", "Whether it takes messages.", ("active", "paused", "closed")),
        _row("worker", "text", "What its worker does.", ("idle", "running", "stopped")),
        _row("lastActive", "text", "When it last did something; empty: never."),
    ),
    "registry.questions": (
        _row("session", "text", "The session that asks.", required=True),
        _row("message", "text", "The message that asks.", required=True),
        _row("route", "object", "Where it is asked: channel, place and thread."),
        _row(
            "options",
            "objects",
            "What may be answered, each with a label and a value; none: any text.",
        ),
        _row("expiresAt", "text", "Until when an answer counts; empty: without limit."),
        _row(
            "state", "text", "What has become of it.", ("open", "answered", "cancelled", "expired")
        ),
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
    """The keys of `part` in canonical order."""
    return _NAMES[part]
