"""The documents of agents, `agents/{id}.json`: read, made and changed.

What must stay true: a document is changed under its mutex, and what a change does not name stays. `lastSeen` alone is
no reason for a write more often than once a minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.files.engine import again
from capsule.errors import NotFound
from capsule.format import codec
from capsule.format.agents import agent_in, is_agent_id
from capsule.format.canonical import order_agent

if TYPE_CHECKING:
    from capsule.engines.interface import Engine

KIND_OF_AGENTS = "agents"
#: The local kind of document that holds the folder in which an agent works on this machine.
KIND_OF_HOMES = "homes"
_TRIES = 50
_SEEN_S = 60.0

Document = dict[str, Any]


class AgentDocuments:
    """The documents of the agents of a store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: The files as they were last read, and what they say: an agent may have thousands of cursors.
        self._last: dict[str, tuple[bytes, Document]] = {}
        #: When this process last looked at `lastSeen`, by agent, in seconds.
        self._noted: dict[str, float] = {}

    def ids(self) -> list[str]:
        """The ids of all agents, sorted. Cost: one scan of a directory."""
        return self._engine.ids(KIND_OF_AGENTS)

    def exists(self, id: str) -> bool:
        """Whether there is such an agent. Cost: an lstat."""
        return is_agent_id(id) and self._engine.exists(KIND_OF_AGENTS, id)

    def known(self, id: str) -> str:
        """`id`, if there is such an agent. Raises NotFound, which lists those there are. Cost: an lstat."""
        if not self.exists(id):
            there = ", ".join(self.ids()) or "none yet"
            raise NotFound(f"there is no agent {id[:80]!r}; the agents are: {there}", id=id)
        return id

    def read(self, id: str) -> Document:
        """The document of an agent, not to be changed in place. Raises NotFound, InvalidDocument.

        Cost: reading a small file, and parsing it if it changed.
        """
        data = self._engine.read(KIND_OF_AGENTS, self.known(id))
        last = self._last.get(id)
        if last is None or last[0] != data:
            last = self._last[id] = data, agent_in(data, self._engine.name(KIND_OF_AGENTS, id))
        return last[1]

    def cursors(self, id: str) -> Document:
        """How far an agent has read, by conversation; empty for one that was forgotten. Raises InvalidDocument."""
        return self.read(id).get("cursors") or {} if self.exists(id) else {}

    def edit(
        self, id: str, change: Callable[[Document], object], make: Callable[[str], Document] | None = None
    ) -> None:
        """Change a document in place, and note that the agent was seen.

        Args:
            id: The agent.
            change: Changes the document; it runs again if another program wrote it meanwhile.
            make: Makes the document if there is none, at the time given; None: that is an error.

        Raises NotFound, InvalidDocument. Cost: writing a small file, unless nothing changes.
        """
        path = self._engine.name(KIND_OF_AGENTS, id)

        def edit(data: bytes | None) -> bytes | None:
            now = timestamps.now()
            if data is None:
                if make is None:
                    raise NotFound(f"there is no agent {id!r}", id=id)
                return codec.encode(make(now))
            before = agent_in(data, path)
            after = before | {"cursors": dict(before.get("cursors") or {})}
            change(after)
            if after == before and not _is_stale(before, now):
                return None
            return codec.encode(order_agent(after | {"updatedAt": now, "lastSeen": now}))

        again(lambda: self._engine.edit(KIND_OF_AGENTS, id, edit), path, id, _TRIES)

    def seen(self, id: str) -> None:
        """Note that an agent did something, unless that was noted within the last minute."""
        now = time.monotonic()
        if now - self._noted.get(id, -_SEEN_S) >= _SEEN_S:
            self.edit(id, lambda document: None)
            self._noted[id] = now

    def home(self, id: str) -> str | None:
        """The folder that an agent was registered with here; a document that came from elsewhere may name any.

        Cost: reading a small file.
        """
        try:
            path = self._engine.name(KIND_OF_HOMES, id)
            return str(codec.decode(self._engine.read(KIND_OF_HOMES, id), path).get("project"))
        except NotFound:
            return None

    def set_home(self, id: str, path: str) -> None:
        """Note the folder in which an agent works on this machine. Cost: as `home`, and a small file if it is new."""
        if self.home(id) != path:
            data = codec.encode({"project": path})
            again(lambda: self._engine.edit(KIND_OF_HOMES, id, lambda _: data), path, id, _TRIES)

    def delete(self, id: str) -> None:
        """Move a document to the trash. Raises NotFound. Cost: moving a small file."""
        self._engine.delete(KIND_OF_AGENTS, self.known(id))


def _is_stale(document: Document, now: str) -> bool:
    """Whether it is more than a minute ago that the agent was seen."""
    try:
        return timestamps.seconds_between(str(document.get("lastSeen")), now) > _SEEN_S
    except ValueError:
        return True
