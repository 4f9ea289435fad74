"""Who is there right now: which agents are online, and which of them listen.

What must stay true: an agent is online while an instance that serves it is alive, which the kernel knows, so that
nobody stays online after a crash; and it stays online when a wait ends.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: Seconds. So soon after a look nobody looks again: a listener may as well die right behind it.
_INSTANT_S = 0.05


class Presence:
    """What one open store says of the agent that it serves, and what all of them say.

    Args:
        store: The store that acts for the agent; `online` asks any store.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._guard = threading.Lock()
        self._waits = 0
        self._listening: set[str] = set()
        self._asked = 0.0

    def announce(self, agent: str, waits: int = 0) -> None:
        """Announce that this instance serves an agent, until the store is closed.

        Args:
            agent: The agent.
            waits: How many more of its calls wait for messages than before.

        Raises Refused, StorageFailed. Cost: making a small file, the first time; then overwriting it.
        """
        with self._guard:
            self._waits += waits
            about = {"agent": agent, "listening": self._waits > 0}
            self._store.engine.announce(self._store.instance_id, about)

    @contextmanager
    def listening(self, agent: str) -> Iterator[None]:
        """Announce, while the body runs, that an agent waits for messages."""
        self.announce(agent, +1)
        try:
            yield
        finally:
            self.announce(agent, -1)

    def online(self) -> dict[str, bool]:
        """The agents that are online, each with whether it listens. Cost: a look at each instance that is alive."""
        found: dict[str, bool] = {}
        self._asked = time.monotonic()
        for about in self._store.engine.instances().values():
            agent = about.get("agent")
            if isinstance(agent, str):
                found[agent] = found.get(agent, False) or about.get("listening") is True
        self._listening = {agent for agent, listens in found.items() if listens}
        return found

    def listened(self, agent: str) -> bool:
        """Whether an agent listened when this was last asked, an instant ago."""
        return agent in self._listening and time.monotonic() - self._asked < _INSTANT_S
