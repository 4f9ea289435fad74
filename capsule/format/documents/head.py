"""Read the head of a conversation: everything that a list needs, without the history.

`Head` is a value for lists and callers. `ParsedHead` is what every write needs of a head, computed
once and kept in the `HeadCache`.

What must stay true: to make a head costs a small parse and no validation library, so a list of
thousands starts and runs quickly. `Head.of` returns None for a head that is not as the format says,
and the caller then reads, upgrades and checks the whole file. Pure.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, fields
from typing import Any

from capsule.format.documents.channels import Channel, channel_in
from capsule.format.documents.members import Member, are_members, as_json, members_in
from capsule.format.documents.servers import are_switches, switches_in

#: The name for an empty `Head.source`, where lists and statistics name the source.
WRITTEN_HERE = "here"
#: Fields of the head that must be texts.
_TEXTS = ("id", "title", "version", "createdAt", "updatedAt")
#: Fields of the metadata that must be texts or null.
_OPTIONAL_TEXTS = (
    "sourceConversationId",
    "titleSetBy",
    "forkedFrom",
    "history",
    "createdBy",
    "description",
)
#: The fields in which programs store the folder of a session.
_FOLDER_FIELDS = ("cwd", "directory", "workspaceRoot")
_MAX_CACHED = 1024


@dataclass(frozen=True, slots=True)
class Head:
    """The head of one conversation.

    Attributes:
        conflicts: The fields that two merged versions changed differently, and that wait for a
            decision.
        mcp_servers: The MCP servers that are on (True) or off there, other than by default.
        participants: The agents that take part, and those that left.
        history: Which messages a participant reads: `joined` (those since it joined) or `all`;
            empty: it does not say.
        created_by: The agent or user that created it; None: it does not say.
        description: Its purpose; None: it does not say.
        channel: The fields of a channel; None: it is no channel.
        source: The program that it was imported from, by the name of its format; empty: it was
            written here.
        folder: The folder where the imported session ran, or else that of the project in the
            context; empty: none. A head that was made without the context lacks the latter.
        lock: The active lock in the capsule; None: it has none.
        path: The file.
        bytes: Size of the file; 0 for an agent that may read only a part.
        damaged: What is wrong with the file, as `path:line:column: what`; empty: nothing. The other
            fields are empty then.
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
        """Return the head of a capsule or of its beginning. None: a field is not of its type."""
        metadata = document.get("metadata")
        if not isinstance(metadata, dict) or not _is_valid(document, metadata):
            return None
        lock = metadata.get("lock")
        servers = metadata.get("mcpServers")
        members = metadata.get("participants")
        return cls(
            id=document["id"],
            title=document["title"],
            version=document["version"],
            created_at=document["createdAt"],
            updated_at=document["updatedAt"],
            mode=metadata.get("mode", "api"),
            type=metadata.get("type") or "chat",
            tags=tuple(metadata.get("tags", ())),
            pinned=metadata.get("pinned") is True,
            archived=metadata.get("archived") is True,
            is_summary=metadata.get("isSummary") is True,
            source_conversation_id=metadata.get("sourceConversationId"),
            title_set_by=metadata.get("titleSetBy"),
            forked_from=metadata.get("forkedFrom"),
            mcp_servers=switches_in(servers) if servers else {},
            conflicts=_conflicting_fields(metadata.get("conflicts")),
            participants=members_in(members) if members else (),
            history=metadata.get("history") or "",
            created_by=metadata.get("createdBy"),
            description=metadata.get("description"),
            channel=channel_in(metadata),
            source=_import_format(metadata),
            folder=folder_of(document),
            lock=lock if lock and lock.get("active") is True else None,
            path=path,
            bytes=size,
        )

    @property
    def named(self) -> bool:
        """Whether a person gave the title. A title of unknown origin counts as a person's."""
        return bool(self.title) and self.title_set_by != "auto"

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints, by the names of the format, without some empty fields."""
        if self.damaged:
            return {"id": self.id, "path": self.path, "bytes": self.bytes, "damaged": self.damaged}
        result = {key: getattr(self, name) for name, key in _JSON_NAMES.items()}
        result["mcpServers"] = {name: {"enabled": on} for name, on in self.mcp_servers.items()}
        result["participants"] = as_json(self.participants)
        result["channel"] = self.channel and self.channel.as_json()
        imported = {"format": result.pop("source"), "folder": result.pop("folder")}
        result["imported"] = {name: value for name, value in imported.items() if value}
        for name in _OMITTED_IF_EMPTY:
            if not result[name]:
                del result[name]
        return result


_OMITTED_IF_EMPTY = (
    "conflicts",
    "participants",
    "history",
    "createdBy",
    "description",
    "channel",
    "imported",
)


def _is_valid(document: dict[str, Any], metadata: dict[str, Any]) -> bool:
    """Return whether the fields of a head are of their types."""
    texts: list[Any] = [document.get(name) for name in _TEXTS]
    texts.append(metadata.get("mode", "api"))
    if set(map(type, texts)) != {str} or not document["version"].startswith("2."):
        return False
    optional_types = {type(metadata.get(name)) for name in _OPTIONAL_TEXTS}
    if not optional_types <= {str, type(None)}:
        return False
    tags = metadata.get("tags", [])
    if type(tags) is not list or not all(type(tag) is str for tag in tags):
        return False
    lock = metadata.get("lock")
    if lock is not None and type(lock) is not dict:
        return False
    servers = metadata.get("mcpServers")
    if servers is not None and not are_switches(servers):
        return False
    members = metadata.get("participants")
    return members is None or are_members(members)


class ParsedHead:
    """A head and the values in it that every write needs, computed once.

    Attributes:
        tag: A value that every write but an append changes. So two heads with one tag differ only in
            `updatedAt`.
        document: All of the capsule but context and history; not to be changed in place.
        metadata: Its metadata.
        type: The conversation's type.
        lock: The active lock, or None.
        awaits_title: Whether the first user message gives it its title.
        participants: The agents that take part, and those that left.
        last_joined: When the latest of them joined; empty: all were there from the start.
        channel: The fields of the channel; None: it is no channel.
        current: The `currentNode`; None: the last message ends the active branch.
        policy_target: The `PolicyTarget` that the rules made of it; None: not yet.
    """

    def __init__(self, tag: str, document: dict[str, Any]) -> None:
        self.tag = tag
        self.document = document
        self.metadata = _dict_or_empty(document.get("metadata"))
        self.type = str(self.metadata.get("type") or "chat")
        lock = self.metadata.get("lock")
        self.lock: dict[str, Any] | None = None
        if isinstance(lock, dict) and lock.get("active") is True:
            self.lock = lock
        has_title = bool(document.get("title"))
        self.awaits_title = not has_title and self.metadata.get("titleSetBy") == "auto"
        self.participants = members_in(self.metadata.get("participants"))
        self.last_joined = max((member.joined_at for member in self.participants), default="")
        self.channel = channel_in(self.metadata)
        current = self.metadata.get("currentNode")
        self.current: str | None = current if isinstance(current, str) else None
        self.policy_target: Any = None


class HeadCache:
    """The 1,024 parsed heads that were added last. A series of appends parses a head once."""

    def __init__(self) -> None:
        self._heads: OrderedDict[str, ParsedHead] = OrderedDict()

    def get(self, id: str, tag: str) -> ParsedHead | None:
        """Return the head of a conversation if it has this tag. None: it is not in the cache."""
        parsed = self._heads.get(id)
        if parsed is None or parsed.tag != tag:
            return None
        return parsed

    def put(self, id: str, tag: str, document: dict[str, Any]) -> ParsedHead:
        """Add a head, and return it parsed."""
        parsed = self._heads[id] = ParsedHead(tag, document)
        self._heads.move_to_end(id)
        if len(self._heads) > _MAX_CACHED:
            self._heads.popitem(last=False)
        return parsed


def json_name(name: str) -> str:
    """Return the name in the format of an attribute: `createdAt` for `created_at`."""
    first, *words = name.split("_")
    return first + "".join(map(str.capitalize, words))


#: The names of the attributes of a valid head in `--json`.
_JSON_NAMES = {
    field.name: json_name(field.name) for field in fields(Head) if field.name != "damaged"
}


def _conflicting_fields(conflicts: Any) -> tuple[str, ...]:
    """Return the names of the fields in `metadata.conflicts`."""
    names = []
    for entry in conflicts if type(conflicts) is list else ():
        if type(entry) is dict and type(entry.get("field")) is str:
            names.append(entry["field"])
    return tuple(names)


def _import_format(metadata: dict[str, Any]) -> str:
    name = _dict_or_empty(metadata.get("imported")).get("format")
    return name if type(name) is str else ""


def folder_of(document: dict[str, Any]) -> str:
    """Return the folder of a conversation. Empty: it has none.

    It is the one that a program stored in `metadata.source`, or in the `payload` of the first of
    the `lines` there, or else that of the context.
    """
    source = _dict_or_empty(_dict_or_empty(document.get("metadata")).get("source"))
    lines = source.get("lines")
    payload: dict[str, Any] = {}
    if type(lines) is list and lines:
        payload = _dict_or_empty(_dict_or_empty(lines[0]).get("payload"))
    candidates = [source.get(name) for name in _FOLDER_FIELDS]
    candidates += [payload.get(name) for name in _FOLDER_FIELDS]
    context = _dict_or_empty(document.get("context"))
    candidates.append(_dict_or_empty(context.get("metadata")).get("projectPath"))
    for path in candidates:
        if type(path) is str and path:
            return path
    return ""


def _dict_or_empty(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
