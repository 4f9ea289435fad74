"""The agents of a store: who there is, and what is known of each.

What must stay true: registering again changes only what is given, and the folder of a project always gives the same
id. The module does not know conversations.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput
from capsule.format.agents import MAX_AGENT_ID, check_agent_id, new_agent
from capsule.ids import folder_ids
from capsule.messaging import notices
from capsule.messaging.documents import AgentDocuments, Document
from capsule.messaging.presence import Presence

if TYPE_CHECKING:
    from capsule.store.store import Store


@dataclass(frozen=True, slots=True)
class Agent:
    """A person or a program that writes messages and gets them.

    Attributes:
        id: Its id.
        name: Its name, for people.
        project_path: The folder that it works in; None: unknown.
        created_at: The time of its first registration.
        last_seen: The time when it last did something, to a minute.
        status_message: What it says about itself.
        notifications: Whether the files of its project say what waits for it while it is away.
        online: Whether an instance that serves it is alive.
        listening: Whether one of them waits for messages right now.
    """

    id: str
    name: str
    project_path: str | None
    created_at: str
    last_seen: str
    status_message: str
    notifications: bool
    online: bool = False
    listening: bool = False

    def as_json(self) -> dict[str, Any]:
        """The agent as `--json` prints it."""
        return {
            "id": self.id,
            "name": self.name,
            "projectPath": self.project_path,
            "createdAt": self.created_at,
            "lastSeen": self.last_seen,
            "statusMessage": self.status_message,
            "notifications": self.notifications,
            "online": self.online,
            "listening": self.listening,
        }


class Agents:
    """The agents of a store: people and programs that exchange messages."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.documents = AgentDocuments(store.engine)
        self.presence = Presence(store)

    def register(self, id: str | None = None, project: str | None = None, *, name: str | None = None) -> Agent:
        """Register an agent, or change what is known of it. What is not given stays as it is.

        Args:
            id: Its id: lower-case letters, digits and `-`. None: made from the name of the project's folder. The same
                folder always gives the same id; another folder of that name gives one with a suffix.
            project: The folder that it works in.
            name: Its name, for people. None: the id.

        Raises:
            InvalidInput: The id can't be accepted, or neither `id` nor `project` is given.
            Refused, StorageFailed: The system did not permit it.

        Cost: writing a small file if something changes; else reading it.
        """
        path = None if project is None else os.path.abspath(project)
        if id is not None:
            self._register(check_agent_id(self._store._subject(id)), path, name)
            return self.get(id)
        if path is None:
            raise InvalidInput("give the agent an id, or the folder of its project")
        plain, suffixed = folder_ids(path, MAX_AGENT_ID, "agent")
        if self._path_of(suffixed) != path and self._register(plain, path, name, only_of_path=True):
            return self.get(plain)
        self._register(suffixed, path, name)
        return self.get(suffixed)

    def _register(self, id: str, path: str | None, name: str | None, *, only_of_path: bool = False) -> bool:
        """Make or change the document; False: the id is taken by an agent of another path."""
        there: str | None = None

        def change(document: Document) -> None:
            nonlocal there
            there = document.get("projectPath")
            if there == path or not only_of_path:
                document["projectPath"] = path or there
                document["name"] = name or document.get("name") or id

        def make(stamp: str) -> Document:
            nonlocal there
            there = path
            return new_agent(id, stamp, name=name, project_path=path)

        self.documents.edit(id, change, make)
        if path is not None and (there == path or not only_of_path):
            if self.documents.home(id) not in (None, path):
                notices.withdraw(self._store, id)
            self.documents.set_home(id, path)
        return there == path

    def _path_of(self, id: str) -> str | None:
        return self.documents.read(id).get("projectPath") if self.documents.exists(id) else None

    def names(self) -> list[str]:
        """List the ids of the agents, sorted. Raises Refused, StorageFailed. Cost: one scan of a directory."""
        return self.documents.ids()

    def get(self, id: str) -> Agent:
        """Look up an agent.

        Args:
            id: Its id.

        Raises:
            NotFound: There is no such agent.
            InvalidDocument: Its file does not parse.

        Cost: reading a small file, and a look at each instance that is alive.
        """
        return _agent_of(self.documents.read(id), self.presence.online())

    def set_status(self, agent: str | None, text: str) -> Agent:
        """Say in a few words what an agent does.

        Args:
            agent: The agent; None: the one that the store acts for.
            text: The words; empty: nothing.

        Raises NotFound, InvalidInput, Refused. Cost: writing a small file.
        """
        return self._set(agent, statusMessage=text or None)

    def set_notifications(self, agent: str | None, on: bool) -> Agent:
        """Switch on or off that the files of an agent's project say what waits for it while it is away.

        Args:
            agent: The agent; None: the one that the store acts for.
            on: Whether they do.

        Raises NotFound, Refused. Cost: writing a small file.
        """
        return self._set(agent, notifications=on)

    def _set(self, agent: str | None, **fields: Any) -> Agent:
        id = self._store._subject(agent)
        self.documents.known(id)
        self.documents.edit(id, lambda document: document.update(fields))
        return self.get(id)

    def forget(self, id: str) -> None:
        """Move the document of an agent to the trash, and take the notices out of its project. Its conversations stay.

        Args:
            id: The agent.

        Raises NotFound, Refused. Cost: moving a small file.
        """
        notices.withdraw(self._store, self.documents.known(self._store._subject(id)))
        self.documents.delete(id)

    def serve(self, agent: str | None = None) -> None:
        """Announce that this instance serves an agent: it is online until the store is closed or the process ends.

        Args:
            agent: The agent; None: the one that the store acts for.

        Raises NotFound, Refused, StorageFailed. Cost: making a small file, the first time.
        """
        id = self.documents.known(self._store._subject(agent))
        self._store._acting(id).agents.presence.announce(id)

    def at(self, folder: str) -> Sequence[str]:
        """Look up the agents of a folder: those whose project it is, or the nearest one above it that is one's.

        Args:
            folder: The folder, without links in its path.

        Raises InvalidDocument. Cost: reading a small file for each agent.
        """
        by_project: dict[str, list[str]] = {}
        for id in self.names():
            by_project.setdefault(self.documents.read(id).get("projectPath") or "", []).append(id)
        above = accumulate(os.path.abspath(folder).split("/"), "{}/{}".format)
        return next((by_project[each] for each in reversed(list(above)) if each and each in by_project), [])

    def list(self) -> list[Agent]:
        """List the agents, in the order of their ids. Raises InvalidDocument. Cost: reading a small file for each."""
        presence = self.presence.online()
        return [_agent_of(self.documents.read(id), presence) for id in self.names()]


def _agent_of(document: Document, presence: dict[str, bool]) -> Agent:
    id = document["id"]
    return Agent(
        id=id,
        name=document.get("name") or id,
        project_path=document.get("projectPath"),
        created_at=document.get("createdAt") or "",
        last_seen=document.get("lastSeen") or "",
        status_message=document.get("statusMessage") or "",
        notifications=document.get("notifications") is not False,
        online=id in presence,
        listening=presence.get(id, False),
    )
