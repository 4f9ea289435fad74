"""Agents, contacts and permissions, as `Store.agents` returns them.

What must stay true: only the agent itself and the store's owner see its allow and block list. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from capsule.format.documents.head import json_name
from capsule.rules.consent import AgentProfile


@dataclass(frozen=True, slots=True)
class Agent:
    """A person or a program that writes messages and gets them.

    Attributes:
        id: Its id.
        name: Its name, for people. Agents of several projects may have one name.
        project: The id of its project, or `global`.
        project_path: The folder that it works in. None: unknown.
        description: Its task.
        created_at: The time of its first registration.
        last_seen: The time when it last did something, to a minute.
        status_message: Its own text about what it does.
        notifications: Whether files of its project show its unread messages while it is away.
        dm_policy: Which agents may write to it directly: `open` (all), `restricted` (those that it
            allowed) or `closed` (none).
        discoverable: Which agents may find it: `public` (all), `project` (those of its project, and
            of projects that see it) or `private` (those with which it has a direct).
        dm: Its entries about other agents, by their ids: `permission` (`allow` or `block`),
            `reason` and `at`. None: the reader may not see them.
        online: Whether an instance that serves it is alive.
        listening: Whether one of them waits for messages right now.
        busy: Whether it has set that it is busy.
    """

    id: str
    name: str
    project: str
    project_path: str | None
    description: str
    created_at: str
    last_seen: str
    status_message: str
    notifications: bool
    dm_policy: str
    discoverable: str
    dm: Mapping[str, Mapping[str, Any]] | None = None
    online: bool = False
    listening: bool = False
    busy: bool = False

    @classmethod
    def of(
        cls, document: Mapping[str, Any], presence: Mapping[str, bool], *, shows_entries: bool
    ) -> Agent:
        """Return the agent of a document.

        Args:
            document: The document.
            presence: The agents that are online, as `StoreAgents.online` returns them.
            shows_entries: Whether the reader may see its entries about other agents.
        """
        profile = AgentProfile.from_document(document)
        entries = None
        if shows_entries:
            entries = document.get("dm") or {}
        return cls(
            id=profile.id,
            name=profile.name,
            project=profile.project,
            project_path=document.get("projectPath"),
            description=document.get("description") or "",
            created_at=document.get("createdAt") or "",
            last_seen=document.get("lastSeen") or "",
            status_message=document.get("statusMessage") or "",
            notifications=document.get("notifications") is not False,
            dm_policy=profile.dm,
            discoverable=profile.discoverable,
            dm=entries,
            online=profile.id in presence,
            listening=presence.get(profile.id, False),
            busy=document.get("busy") is True,
        )

    @property
    def status(self) -> str:
        """`online`, `busy` or `offline`."""
        if not self.online:
            return "offline"
        if self.busy:
            return "busy"
        return "online"

    def as_json(self) -> dict[str, Any]:
        """The agent as `--json` prints it."""
        fields = {json_name(name): value for name, value in asdict(self).items()}
        del fields["busy"]  # `status` says it.
        if self.dm is None:
            del fields["dm"]
        return fields | {"status": self.status}


@dataclass(frozen=True, slots=True)
class Contact:
    """An agent in the list of another one.

    Attributes:
        agent: The agent.
        availability: Whether the two may write to each other: `available`, `requires permission`,
            `blocked` or `unavailable`.
        asked_at: When it first tried to write to the other and was not allowed. Empty: it did not.
    """

    agent: Agent
    availability: str
    asked_at: str = ""

    def as_json(self) -> dict[str, Any]:
        """The contact as `--json` prints it."""
        return self.agent.as_json() | {
            "availability": self.availability,
            "askedAt": self.asked_at or None,
        }


@dataclass(frozen=True, slots=True)
class Permission:
    """Whether an agent may do something.

    Attributes:
        allowed: Whether it may.
        reason: Why not. Empty: it may.
        hint: What could be done instead. Empty: nothing.
    """

    allowed: bool
    reason: str = ""
    hint: str = ""
