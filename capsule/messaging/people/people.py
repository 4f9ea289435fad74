"""The agents as the agent of one open store knows them, for all that messaging offers there.

What must stay true: an error about an agent names only those that the store's agent finds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capsule.messaging.people.directory import Directory
from capsule.messaging.people.presence import Presence

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


class People:
    """The agents of an open store. Each store has one: `store.inner.part(People)`.

    Attributes:
        directory: Who there is; the same for all stores that were opened beside one another.
        documents: The documents of the agents, with errors that name only those that the store's agent finds.
        presence: Who is there right now.
    """

    def __init__(self, store: CoreStore) -> None:
        guard = store.inner.guard
        assert isinstance(guard, Directory)  # `capsule.messaging.guard` is this room's.
        self.directory = guard
        self.documents = guard.agents.known_as(lambda: guard.known_to(store.agent))
        self.presence = Presence(store)
        self._subject = store.inner.subject

    def known(self, agent: str | None) -> str:
        """The agent that a call is about. Raises NotFound if it is not registered, and as `Inner.subject`."""
        return self.documents.known(self._subject(agent))
