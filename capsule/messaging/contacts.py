"""The values that questions about agents return.

What must stay true: an agent's own allow and block list is shown to itself and to the store's owner
alone. Pure.
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
        project_path: The folder that it works in; None: unknown.
        description: What it is there for.
        created_at: The time of its first registration.
        last_seen: The time when it last did something, to a minute.
        status_message: What it says about itself.
        notifications: Whether the files of its project say what waits for it while it is away.
        dm_policy: Who may write to it directly: `open`, `restricted` (whom it allowed) or `closed`.
        discoverable: Who finds it: `public`, `project` (the agents of its project, and of those
            that see it) or `private` (who has a direct with it).
        dm: What it says of other agents, by their ids: `permission` (`allow` or `block`), `reason`
            and `at`. None: only the agent itself and the store's owner learn it.
        online: Whether an instance that serves it is alive.
        listening: Whether one of them waits for messages right now.
        busy: Whether it says that it is busy.
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
        cls, document: Mapping[str, Any], presence: Mapping[str, bool], *, is_known: bool
    ) -> Agent:
        """The agent of a document.

        Args:
            document: The document.
            presence: Those who are online, as `People.online` tells it.
            is_known: Whether it is told what the agent says of others.
        """
        about = AgentProfile.of(document)
        return cls(
            id=about.id,
            name=about.name,
            project=about.project,
            project_path=document.get("projectPath"),
            description=document.get("description") or "",
            created_at=document.get("createdAt") or "",
            last_seen=document.get("lastSeen") or "",
            status_message=document.get("statusMessage") or "",
            notifications=document.get("notifications") is not False,
            dm_policy=about.dm,
            discoverable=about.discoverable,
            dm=document.get("dm") or {} if is_known else None,
            online=about.id in presence,
            listening=presence.get(about.id, False),
            busy=document.get("busy") is True,
        )

    @property
    def status(self) -> str:
        """`online`, `busy` or `offline`."""
        return "offline" if not self.online else "busy" if self.busy else "online"

    def as_json(self) -> dict[str, Any]:
        """The agent as `--json` prints it."""
        shown = {json_name(name): value for name, value in asdict(self).items()} | {
            "status": self.status
        }
        left_out = {"busy", *(["dm"] if self.dm is None else [])}
        return {name: value for name, value in shown.items() if name not in left_out}


@dataclass(frozen=True, slots=True)
class Contact:
    """An agent, as another one finds it.

    Attributes:
        agent: The agent.
        availability: Whether the two may write to each other: `available`, `requires permission`,
            `blocked` or `unavailable`.
        asked_at: The time when it first tried to write to the other and was not allowed; empty: it
            did not.
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
    """Whether an agent may do something, as the rule of who may do what says.

    Attributes:
        allowed: Whether it may.
        reason: Why not; empty: it may.
        hint: What could be done instead; empty: nothing.
    """

    allowed: bool
    reason: str = ""
    hint: str = ""
