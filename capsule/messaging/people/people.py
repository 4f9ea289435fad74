"""The agents as one open store knows them, for all of messaging: who there is, and who is there
right now.

What must stay true: an error about an agent names only those that the store's agent finds. An agent
is online while an instance that serves it is alive, which the kernel knows, so that nobody stays
online after a crash; and it stays online when a wait ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from capsule import timestamps
from capsule.errors import CapsuleError, Refused
from capsule.messaging.people.directory import Directory
from capsule.messaging.people.documents import Document

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: Seconds. So soon after a look nobody looks again: a listener may as well die right behind it.
_INSTANT_S = 0.05


class People:
    """The agents of an open store. Each store has one: `store.inner.part(People)`.

    Attributes:
        directory: Who there is; the same for all stores that were opened beside one another.
        documents: The documents of the agents, with errors that name only those that the store's
            agent finds.
    """

    def __init__(self, store: CoreStore) -> None:
        guard = store.inner.guard
        assert isinstance(guard, Directory)  # It is this room's.
        self.directory = guard
        self.documents = guard.agents.known_as(lambda: guard.known_to(store.agent))
        self._store = store
        self._guard = threading.Lock()
        self._waits = 0
        self._listening: set[str] = set()
        self._asked = 0.0

    def known(self, agent: str | None) -> str:
        """The agent that a call is about. Raises NotFound if it is not registered, and as
        `Inner.subject`.
        """
        return self.documents.known(self._store.inner.subject(agent))

    def asked(self, agent: str) -> Document:
        """The requests of an agent: by the ids of others, when it asked for their permission. Cost:
        as `profile`.
        """
        with suppress(CapsuleError):
            return self.documents.read(agent).get("requests") or {}
        return {}

    @contextmanager
    def asking(self, agent: str | None) -> Iterator[None]:
        """Note, if the body is refused for want of permission, whom an agent asks for it: see
        `Agents.requests`.

        Args:
            agent: The agent; None: the store's owner, who needs no permission.

        Raises Refused, StorageFailed. Cost: nothing; the first time that it is refused, writing a
        small file.
        """
        try:
            yield
        except Refused as error:
            for other in error.fields.get("asks", ()):
                if agent is not None and other not in self.asked(agent):
                    self.documents.edit(agent, partial(_request, other))
            raise

    def announce(self, agent: str, waits: int = 0) -> None:
        """Announce that this instance serves an agent, until the store is closed.

        Args:
            agent: The agent.
            waits: How many more of its calls wait for messages than before.

        Raises Refused, StorageFailed. Cost: making a small file, the first time; then overwriting
        it.
        """
        with self._guard:
            self._waits += waits
            about = {"agent": agent, "listening": self._waits > 0}
            self._store.engine.leases.take(self._store.instance_id, about)

    @contextmanager
    def listening(self, agent: str) -> Iterator[None]:
        """Announce, while the body runs, that an agent waits for messages."""
        self.announce(agent, +1)
        try:
            yield
        finally:
            self.announce(agent, -1)

    def online(self) -> dict[str, bool]:
        """The agents that are online, each with whether it listens. Cost: a look at each instance
        that is alive.
        """
        online: dict[str, bool] = {}
        self._asked = time.monotonic()
        for about in self._store.engine.leases.live().values():
            agent = about.get("agent")
            if isinstance(agent, str):
                online[agent] = online.get(agent, False) or about.get("listening") is True
        self._listening = {agent for agent, listens in online.items() if listens}
        return online

    def listened(self, agent: str) -> bool:
        """Whether an agent listened when this was last asked, an instant ago."""
        return agent in self._listening and time.monotonic() - self._asked < _INSTANT_S


def _request(other: str, document: Document) -> None:
    document["requests"] = (document.get("requests") or {}) | {other: {"at": timestamps.now()}}
