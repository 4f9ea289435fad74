"""The head: what a list needs to know of a conversation, without its history.

What must stay true: making one costs a small parse and no validation library, so that a list of
thousands is quick to start and to run; a head that is not as the format says is None here, and the
whole file is asked.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, fields
from typing import Any

from capsule.format.documents.channels import Channel, channel_in
from capsule.format.documents.members import Member, are_members, as_json, members_in
from capsule.format.documents.servers import are_switches, switches_in

#: In the place of the program that a conversation was imported from: it was written here.
WRITTEN_HERE = "here"
_OPTIONAL = (
    "sourceConversationId",
    "titleSetBy",
    "forkedFrom",
    "history",
    "createdBy",
    "description",
)


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one conversation.

    Attributes:
        conflicts: The fields that await a decision, as two merged versions had changed them
            differently.
        mcp_servers: The MCP servers that are on (True) or off there, other than by default.
        participants: The agents that take part, and those that left.
        history: What the participants read: `joined` or `all`; empty: it does not say.
        created_by: Who made it; None: it does not say.
        description: What it is for; None: it does not say.
        channel: What makes it a channel; None: it is none.
        source: The program that it was imported from, by the name of its format; empty: it was
            written here.
        folder: The folder that it is about: where the imported session ran, or that of its context,
            which only lists know; empty: none.
        lock: The lock as it stands in the capsule, when it is active; else None.
        path: The file.
        bytes: Size of the file; 0: an agent asks that reads only a part.
        damaged: What is wrong with the file, as `path:line:column: what`; empty when nothing is.
            The other fields are empty then.
    """

    id: str
    title: str = ""
    version: str = ""
    created_at: str = ""
    updated_at: str = ""
    mode: str = "api"
    type: str = "chat"
    tags: tuple[str, ...] = ()
    pinned: bool = False
    archived: bool = False
    is_summary: bool = False
    source_conversation_id: str | None = None
    title_set_by: str | None = None
    forked_from: str | None = None
    mcp_servers: dict[str, bool] = field(default_factory=dict)
    conflicts: tuple[str, ...] = ()
    participants: tuple[Member, ...] = ()
    history: str = ""
    created_by: str | None = None
    description: str | None = None
    channel: Channel | None = None
    source: str = ""
    folder: str = ""
    lock: dict[str, Any] | None = None
    path: str = ""
    bytes: int = 0
    damaged: str = ""

    @classmethod
    def of(cls, document: dict[str, Any], path: str, size: int) -> Head | None:
        """The head in a capsule or in its beginning; None when a field is not of its type."""
        about = document.get("metadata")
        if not isinstance(about, dict):
            return None
        texts: list[Any] = [
            document.get(name) for name in ("id", "title", "version", "createdAt", "updatedAt")
        ]
        texts.append(about.get("mode", "api"))
        optional = [about.get(name) for name in _OPTIONAL]
        tags, lock, servers = about.get("tags", []), about.get("lock"), about.get("mcpServers")
        members = about.get("participants")
        if (
            set(map(type, texts)) != {str}
            or not texts[2].startswith("2.")
            or not set(map(type, optional)) <= {str, type(None)}
            or type(tags) is not list
            or not all(type(tag) is str for tag in tags)
            or not (lock is None or type(lock) is dict)
            or not (servers is None or are_switches(servers))
            or not (members is None or are_members(members))
        ):
            return None
        flags = (about.get(name) is True for name in ("pinned", "archived", "isSummary"))
        holder = lock if lock and lock.get("active") is True else None
        *named, history, created_by, description = optional
        more: list[Any] = [about.get("type") or "chat", tuple(tags), *flags, *named]
        on = switches_in(servers) if servers else {}
        whose = (
            members_in(members) if members else (),
            history or "",
            created_by,
            description,
            channel_in(about),
        )
        origin = _source_in(about), folder_of(document)
        return cls(
            *(
                *texts,
                *more,
                on,
                _fields_in(about.get("conflicts")),
                *whose,
                *origin,
                holder,
                path,
                size,
            )
        )

    @property
    def named(self) -> bool:
        """Whether a person gave the title, as far as can be told: files of version 2.0 don't say
        who did.
        """
        return bool(self.title) and self.title_set_by != "auto"

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints: the names of the format, where it has them."""
        if self.damaged:
            return {"id": self.id, "path": self.path, "bytes": self.bytes, "damaged": self.damaged}
        shown = {key: getattr(self, name) for name, key in _KEYS.items()}
        shown["mcpServers"] = {name: {"enabled": on} for name, on in self.mcp_servers.items()}
        shown["participants"] = as_json(self.participants)
        shown["channel"] = self.channel and self.channel.as_json()
        imported = {"format": shown.pop("source"), "folder": shown.pop("folder")}
        shown["imported"] = {name: value for name, value in imported.items() if value}
        for name in (
            "conflicts",
            "participants",
            "history",
            "createdBy",
            "description",
            "channel",
            "imported",
        ):
            if not shown[name]:
                del shown[name]
        return shown


class ParsedHead:
    """A head and what every write asks of it, worked out once.

    Attributes:
        tag: The tag of the head in the file.
        document: All of the capsule but context and history; not to be changed in place.
        metadata: Its metadata.
        type: The conversation's type.
        lock: The lock, when it is active.
        untitled: Whether the first user message gives it its title.
        participants: The agents that take part, and those that left.
        joined: When the latest of them joined; empty: all were there from the start.
        channel: What makes it a channel; None: it is none.
        current: The `currentNode`; None: the last message is the end of the active branch.
        object: What the rule of who may do what makes of it; None: it was not asked.
    """

    def __init__(self, tag: str, document: dict[str, Any]) -> None:
        self.tag = tag
        self.document = document
        metadata = document.get("metadata")
        self.metadata: dict[str, Any] = metadata if isinstance(metadata, dict) else {}
        self.type = str(self.metadata.get("type") or "chat")
        lock = self.metadata.get("lock")
        self.lock: dict[str, Any] | None = (
            lock if isinstance(lock, dict) and lock.get("active") is True else None
        )
        self.untitled = not document.get("title") and self.metadata.get("titleSetBy") == "auto"
        self.participants = members_in(self.metadata.get("participants"))
        self.joined = max((member.joined_at for member in self.participants), default="")
        self.channel = channel_in(self.metadata)
        current = self.metadata.get("currentNode")
        self.current: str | None = current if isinstance(current, str) else None
        self.policy_target: Any = None


class HeadCache:
    """The 1,024 latest parsed heads, so that a run of appends parses one once."""

    def __init__(self) -> None:
        self._heads: OrderedDict[str, ParsedHead] = OrderedDict()

    def get(self, id: str, tag: str) -> ParsedHead | None:
        """The head of a conversation, when it is the one with this tag."""
        parsed = self._heads.get(id)
        return parsed if parsed is not None and parsed.tag == tag else None

    def put(self, id: str, tag: str, document: dict[str, Any]) -> ParsedHead:
        """Keep a head."""
        parsed = self._heads[id] = ParsedHead(tag, document)
        self._heads.move_to_end(id)
        if len(self._heads) > 1024:
            self._heads.popitem(last=False)
        return parsed


def json_name(name: str) -> str:
    """A field's name as the format writes it, from that of an attribute."""
    first, *more = name.split("_")
    return first + "".join(map(str.capitalize, more))


#: The fields of a sound head, with the names that `--json` gives them.
_KEYS = {field.name: json_name(field.name) for field in fields(Head) if field.name != "damaged"}


def _fields_in(conflicts: Any) -> tuple[str, ...]:
    entries = conflicts if type(conflicts) is list else ()
    return tuple(
        entry["field"]
        for entry in entries
        if type(entry) is dict and type(entry.get("field")) is str
    )


#: The names under which programs keep the folder of a session.
_FOLDERS = ("cwd", "directory", "workspaceRoot")


def _source_in(about: dict[str, Any]) -> str:
    format = _object(about.get("imported")).get("format")
    return format if type(format) is str else ""


def folder_of(document: dict[str, Any]) -> str:
    """Return the folder of a conversation. Empty: it has none.

    It is the one that a program kept in `metadata.source`, or in the first of its lines there; or
    that of a context.
    """
    source = _object(_object(document.get("metadata")).get("source"))
    lines = source.get("lines")
    payload = _object(_object(lines[0]).get("payload")) if type(lines) is list and lines else {}
    found = [place.get(name) for place in (source, payload) for name in _FOLDERS]
    found.append(_object(_object(document.get("context")).get("metadata")).get("projectPath"))
    return next((path for path in found if type(path) is str and path), "")


def _object(value: Any) -> dict[str, Any]:
    return value if type(value) is dict else {}
