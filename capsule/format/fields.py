"""The fields of the format, in canonical order: which there are, what each holds, and since which version.

What must stay true: this table and the models agree (a test says so). It exists beside them because importing
pydantic costs more than listing a hundred conversations.

The parts of a capsule are named by where they stand: ``""`` is the capsule itself, ``history`` a message. ``agent`` is
the document of an agent, ``project`` that of a project.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = (
    Literal["text", "time", "whole", "share", "yes or no", "texts", "object", "objects", "mentions"]
    | Literal["switches", "entries", "part", "parts", "members"]
)

ROLES = ("user", "assistant", "system", "tool")
MODES = ("api", "toolbox")
TYPES = ("chat", "direct", "group", "channel")
TITLE_SETTERS = ("auto", "user")
HISTORIES = ("joined", "all")
ACCESSES = ("open", "members", "private")
SOURCES = ("manual", "frontmatter", "default", "system")
DM_POLICIES = ("open", "restricted", "closed")
DISCOVERABLE = ("public", "project", "private")
PERMISSIONS = ("allow", "block")
DIRECTIONS = ("both", "out", "in")
ENGAGES = ("pattern", "mention", "mention-sticky")
SENDERS = ("all", "known")
IGNORED = ("drop", "accumulate")
SESSIONS = ("shared", "per-thread", "agent-shared")
STATUSES = ("active", "paused", "closed")
WORKERS = ("idle", "running", "stopped")
QUESTIONS = ("open", "answered", "cancelled", "expired")


class Field(NamedTuple):
    """One field of a part.

    Attributes:
        name: Its key in the file.
        kind: What it holds; ``part`` and ``parts`` are an object and a list of objects with fields of their own,
            ``members`` is such a list whose items may also be texts, ``entries`` an object of names, each with an
            object, which may have fields of its own, and ``switches`` one whose objects say in ``enabled`` true or
            false; a ``share`` is a number from 0 to 1, and ``mentions`` who is named in a message.
        required: Whether a capsule of version 2.0 and later must have it.
        null: Whether it may be null.
        choices: The values it may have; empty when any value of its kind will do.
        since: The version that brought it.
        says: What it says, for the schema of a part that has no model of its own.
    """

    name: str
    kind: Kind
    required: bool = False
    null: bool = False
    choices: tuple[str, ...] = ()
    since: str = "2.0"
    says: str = ""


def _row(name: str, kind: Kind, says: str, choices: tuple[str, ...] = (), *, required: bool = False) -> Field:
    return Field(name, kind, required, choices=choices, since="2.1", says=says)


def _new(name: str, kind: Kind, *, null: bool = True, choices: tuple[str, ...] = ()) -> Field:
    return Field(name, kind, null=null, choices=choices, since="2.1")


#: What documents without a history share.
_RECORD = (
    Field("id", "text", required=True, since="2.1"),
    _new("name", "text"),
    _new("description", "text"),
    _new("version", "text", null=False),
    _new("createdAt", "time"),
    _new("updatedAt", "time"),
)
PARTS: dict[str, tuple[Field, ...]] = {
    "": (
        Field("id", "text", required=True),
        Field("title", "text", required=True),
        Field("version", "text", required=True),
        Field("createdAt", "time", required=True),
        Field("updatedAt", "time", required=True),
        Field("metadata", "part"),
        Field("context", "part"),
        Field("history", "parts", required=True),
    ),
    "metadata": (
        Field("mode", "text", choices=MODES),
        Field("tags", "texts"),
        Field("isSummary", "yes or no"),
        Field("sourceConversationId", "text", null=True),
        Field("lock", "part"),
        _new("type", "text", null=False, choices=TYPES),
        _new("currentNode", "text"),
        _new("currentWanted", "object"),
        _new("participants", "members"),
        _new("history", "text", choices=HISTORIES),
        _new("channel", "part"),
        _new("createdBy", "text"),
        _new("description", "text"),
        _new("archived", "yes or no", null=False),
        _new("pinned", "yes or no", null=False),
        _new("forkedFrom", "text"),
        _new("titleSetBy", "text", choices=TITLE_SETTERS),
        _new("titleSetAt", "time"),
        _new("mcpServers", "switches"),
        Field("summaryOf", "part", since="2.1"),
        _new("conflicts", "objects"),
    ),
    "metadata.participants": (
        Field("id", "text", required=True, since="2.1"),
        _new("joinedAt", "time"),
        _new("leftAt", "time"),
        _new("optedOutAt", "time"),
        _new("invitedBy", "text"),
        _new("source", "text", choices=SOURCES),
        _new("canLeave", "yes or no"),
        _new("canSend", "yes or no"),
        _new("canInvite", "yes or no"),
        _new("canManage", "yes or no"),
    ),
    "metadata.channel": (
        _new("name", "text"),
        _new("scope", "text"),
        _new("access", "text", choices=ACCESSES),
        _new("isDefault", "yes or no"),
        _new("topicRequired", "yes or no"),
        _new("defaultTopic", "text"),
        _new("owner", "text"),
    ),
    "metadata.summaryOf": (
        _new("message", "text"),
        _new("messages", "whole", null=False),
        _new("updatedAt", "time"),
    ),
    "metadata.lock": (
        Field("active", "yes or no"),
        Field("instanceId", "text", null=True),
        Field("timestamp", "time", null=True),
        Field("user", "text", null=True),
        Field("host", "text", null=True),
        _new("pid", "whole"),
        _new("name", "text"),
        _new("client", "text"),
        _new("agent", "text"),
    ),
    "context": (
        Field("fullContext", "text"),
        Field("metadata", "part"),
    ),
    "context.metadata": (
        Field("projectPath", "text", null=True),
        Field("filesIncluded", "whole"),
        Field("estimatedTokens", "whole"),
        Field("contextHash", "text", null=True),
        Field("files", "parts", since="2.1"),
        _new("selection", "object"),
        _new("capturedAt", "time"),
        _new("otherHashes", "texts"),
    ),
    "context.metadata.files": (
        _new("path", "text", null=False),
        _new("sha256", "text"),
        _new("bytes", "whole"),
        _new("tokens", "whole"),
    ),
    "history": (
        Field("role", "text", required=True, choices=ROLES),
        Field("content", "text", required=True),
        Field("timestamp", "time", null=True),
        _new("id", "text"),
        _new("parent", "text"),
        _new("from", "text"),
        _new("replyTo", "text"),
        _new("thread", "text"),
        _new("topic", "text"),
        _new("mentions", "mentions"),
        _new("intent", "text"),
        _new("priority", "text"),
        _new("confidence", "share"),
        _new("editedAt", "time"),
        _new("model", "text"),
        _new("toolCalls", "objects"),
        _new("toolCallId", "text"),
        _new("reasoning", "text"),
        _new("attachments", "objects"),
        _new("metadata", "object"),
    ),
    "agent": (
        *_RECORD,
        _new("project", "text"),
        _new("projectPath", "text"),
        _new("lastSeen", "time"),
        _new("statusMessage", "text"),
        _new("busy", "yes or no", null=False),
        _new("notifications", "yes or no", null=False),
        _new("discoverable", "text", null=False, choices=DISCOVERABLE),
        _new("dmPolicy", "text", null=False, choices=DM_POLICIES),
        _new("dm", "entries", null=False),
        _new("requests", "entries", null=False),
        _new("reading", "entries", null=False),
        _new("concerns", "entries", null=False),
        _new("cursors", "object", null=False),
    ),
    "agent.dm": (
        Field("permission", "text", required=True, choices=PERMISSIONS, since="2.1"),
        _new("reason", "text"),
        _new("at", "time"),
    ),
    "project": (
        *_RECORD,
        _new("path", "text"),
        _new("lastActive", "time"),
        _new("metadata", "object", null=False),
        _new("links", "entries", null=False),
    ),
    "project.links": (
        Field("direction", "text", required=True, choices=DIRECTIONS, since="2.1"),
        _new("enabled", "yes or no", null=False),
        _new("createdBy", "text"),
        _new("createdAt", "time"),
    ),
    "registry": (
        *_RECORD,
        _row("agents", "entries", "The agents that workers answer for, by their ids."),
        _row("places", "entries", "Where messages come from, by channel and place."),
        _row("wirings", "entries", "Which agent answers where, and when, by channel, place and agent."),
        _row("sessions", "entries", "The sessions, by their ids."),
        _row("questions", "entries", "Questions of agents to people, by their ids."),
    ),
    "registry.agents": (
        _row("folder", "text", "The folder in which its workers run."),
        _row("command", "texts", "The words of its workers' command; they count once they are approved on a machine."),
        _row("provider", "text", "The program behind the command, as people know it."),
        _row("settings", "object", "Its settings: idleS, limitS, maxHops, timeZone."),
        _row("destinations", "object", "Where it may send by itself, by name: channel, place, thread and title."),
    ),
    "registry.places": (
        _row("channel", "text", "The adapter that a message comes by.", required=True),
        _row("place", "text", "Where it comes from there: a conversation, for example.", required=True),
        _row("name", "text", "What people call the place."),
        _row("isGroup", "yes or no", "Whether several people write there."),
        _row("admin", "text", "Who looks after it."),
    ),
    "registry.wirings": (
        _row("channel", "text", "The adapter.", required=True),
        _row("place", "text", "The place.", required=True),
        _row("agent", "text", "The agent that answers there.", required=True),
        _row("engage", "text", "What wakes it: a text that fits the pattern, or a mention.", ENGAGES),
        _row("pattern", "text", "The pattern, a regular expression; `.` fits every message."),
        _row("senders", "text", "Whose messages wake it.", SENDERS),
        _row("ignored", "text", "What becomes of messages that do not wake it.", IGNORED),
        _row("session", "text", "What shares a session: the place, a thread of it, or all places.", SESSIONS),
        _row("priority", "whole", "The wiring with the highest one comes first."),
    ),
    "registry.sessions": (
        _row("agent", "text", "The agent.", required=True),
        _row("channel", "text", "The adapter; empty: it serves all places of the agent."),
        _row("place", "text", "The place."),
        _row("thread", "text", "The thread; empty: it serves the whole place."),
        _row("provider", "text", "The program behind its workers, as people know it."),
        _row("status", "text", "Whether it takes messages.", STATUSES),
        _row("worker", "text", "What its worker does.", WORKERS),
        _row("lastActive", "text", "When it last did something; empty: never."),
    ),
    "registry.questions": (
        _row("session", "text", "The session that asks.", required=True),
        _row("message", "text", "The message that asks.", required=True),
        _row("route", "object", "Where it is asked: channel, place and thread."),
        _row("options", "objects", "What may be answered, each with a label and a value; none: any text."),
        _row("expiresAt", "text", "Until when an answer counts; empty: without limit."),
        _row("state", "text", "What has become of it.", QUESTIONS),
        _row("closedAt", "text", "When it was answered, cancelled or expired."),
        _row("answers", "objects", "The answers, the first one first: value, from, at."),
    ),
}


def names(part: str) -> tuple[str, ...]:
    """The keys of `part` in canonical order."""
    return tuple(field.name for field in PARTS[part])
