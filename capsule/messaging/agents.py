"""The agents of a store: who there is, and who is there right now.

What must stay true: registering again changes only what is given. Whether an agent is online is asked of the kernel
each time, so that nobody stays online after a crash. A document of an agent is changed under its mutex. The module
does not know conversations.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.files.engine import again
from capsule.errors import InvalidInput, NotFound
from capsule.format import codec
from capsule.format.agents import MAX_AGENT_ID, agent_in, check_agent_id, is_agent_id, new_agent
from capsule.format.canonical import order_agent

if TYPE_CHECKING:
    from capsule.store.store import Store

KIND_OF_AGENTS = "agents"
_TRIES = 50
#: `lastSeen` is written at most this often, in seconds: it is no reason for a write at every message.
_SEEN_S = 60.0
#: The length of the suffix in the id of an agent, with its `-`.
_SUFFIX = 7
_LETTERS = str.maketrans({"ß": "ss", "æ": "ae", "œ": "oe", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i"})

Document = dict[str, Any]


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
        self._guard = threading.Lock()
        self._waits = 0
        #: When this store last looked at `lastSeen`, by agent, in seconds.
        self._noted: dict[str, float] = {}

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
            self._register(check_agent_id(id), path, name)
            return self.get(id)
        if path is None:
            raise InvalidInput("give the agent an id, or the folder of its project")
        plain, suffixed = ids_for(path)
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

        self._edit(id, change, make=lambda stamp: new_agent(id, stamp, name=name, project_path=path))
        return there == path

    def _path_of(self, id: str) -> str | None:
        return self.document(id).get("projectPath") if self.exists(id) else None

    def names(self) -> list[str]:
        """List the ids of the agents, sorted. Raises Refused, StorageFailed. Cost: one scan of a directory."""
        return self._store.engine.ids(KIND_OF_AGENTS)

    def get(self, id: str) -> Agent:
        """Look up an agent.

        Args:
            id: Its id.

        Raises:
            NotFound: There is no such agent.
            InvalidDocument: Its file does not parse.

        Cost: reading a small file, and a look at each instance that is alive.
        """
        return _agent_of(self.document(id), self.presence())

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
        self.edit(id, lambda document: document.update(fields))
        return self.get(id)

    def forget(self, id: str) -> None:
        """Move the document of an agent to the trash. Its conversations stay.

        Args:
            id: The agent.

        Raises NotFound, Refused. Cost: moving a small file.
        """
        self._store.engine.delete(KIND_OF_AGENTS, self.known(id))

    def serve(self, agent: str | None = None) -> None:
        """Announce that this instance serves an agent: it is online until the store is closed or the process ends.

        Args:
            agent: The agent; None: the one that the store acts for.

        Raises NotFound, Refused, StorageFailed. Cost: making a small file, the first time.
        """
        id = self.known(self._store._subject(agent))
        self._store._acting(id).agents._announce(id, 0)

    @contextmanager
    def listening(self, agent: str) -> Iterator[None]:
        """Announce, while the body runs, that an agent waits for messages."""
        acting = self._store._acting(agent).agents
        acting._announce(agent, +1)
        try:
            yield
        finally:
            acting._announce(agent, -1)

    def _announce(self, agent: str, change: int) -> None:
        with self._guard:
            self._waits += change
            about = {"agent": agent, "listening": self._waits > 0}
            self._store.engine.announce(self._store.instance_id, about)

    def presence(self) -> dict[str, bool]:
        """The agents that are online, each with whether it listens. Cost: a look at each instance that is alive."""
        found: dict[str, bool] = {}
        for about in self._store.engine.instances().values():
            agent = about.get("agent")
            if isinstance(agent, str):
                found[agent] = found.get(agent, False) or about.get("listening") is True
        return found

    # -- The documents ---------------------------------------------------------------------------------------------

    def exists(self, id: str) -> bool:
        """Whether there is such an agent. Cost: an lstat."""
        return is_agent_id(id) and self._store.engine.exists(KIND_OF_AGENTS, id)

    def known(self, id: str) -> str:
        """`id`, if there is such an agent. Raises NotFound, which lists those there are. Cost: an lstat."""
        if not self.exists(id):
            there = ", ".join(self.names()) or "none yet"
            raise NotFound(f"there is no agent {id[:80]!r}; the agents are: {there}", id=id)
        return id

    def document(self, id: str) -> Document:
        """The document of an agent. Raises NotFound, InvalidDocument. Cost: reading a small file."""
        engine = self._store.engine
        return agent_in(engine.read(KIND_OF_AGENTS, self.known(id)), engine.name(KIND_OF_AGENTS, id))

    def cursors(self, id: str) -> Document:
        """How far an agent has read, by conversation; empty for one that was forgotten. Raises InvalidDocument."""
        return dict(self.document(id).get("cursors") or {}) if self.exists(id) else {}

    def edit(self, id: str, change: Callable[[Document], object]) -> None:
        """Change the document of an agent in place, and note that it was seen. Raises NotFound, InvalidDocument."""
        self.known(id)
        self._edit(id, change)

    def seen(self, id: str) -> None:
        """Note that an agent did something, unless that was noted within the last minute."""
        now = time.monotonic()
        if now - self._noted.get(id, -_SEEN_S) >= _SEEN_S:
            self.edit(id, lambda document: None)
            self._noted[id] = now

    def _edit(
        self, id: str, change: Callable[[Document], object], make: Callable[[str], Document] | None = None
    ) -> None:
        engine = self._store.engine
        path = engine.name(KIND_OF_AGENTS, id)

        def edit(data: bytes | None) -> bytes | None:
            now = timestamps.now()
            if data is None:
                if make is None:
                    raise NotFound(f"there is no agent {id!r}", id=id)
                change(made := make(now))
                return codec.encode(made)
            before = agent_in(data, path)
            after = before | {"cursors": dict(before.get("cursors") or {})}
            change(after)
            if after == before and not is_stale(before):
                return None
            return codec.encode(order_agent(after | {"updatedAt": now, "lastSeen": now}))

        again(lambda: engine.edit(KIND_OF_AGENTS, id, edit), path, id, _TRIES)

    def list(self) -> list[Agent]:
        """List the agents, in the order of their ids. Raises InvalidDocument. Cost: reading a small file for each."""
        presence = self.presence()
        return [_agent_of(self.document(id), presence) for id in self.names()]


def is_stale(document: Document) -> bool:
    """Whether it is more than a minute ago that the agent was seen."""
    try:
        return timestamps.seconds_between(str(document.get("lastSeen")), timestamps.now()) > _SEEN_S
    except ValueError:
        return True


def ids_for(path: str) -> tuple[str, str]:
    """The id for an agent that works in a folder, and the one for when another folder has taken the first."""
    suffix = hashlib.sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:6]
    plain = slug(os.path.basename(path))[: MAX_AGENT_ID - _SUFFIX].strip("-") or "agent"
    return plain, f"{plain}-{suffix}"


def slug(text: str) -> str:
    """A text as an id: letters without their accents, everything else as `-`; empty if nothing is left."""
    plain = unicodedata.normalize("NFKD", text.lower().translate(_LETTERS))
    plain = "".join(character for character in plain if not unicodedata.combining(character))
    return re.sub("[^a-z0-9]+", "-", plain).strip("-")


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
