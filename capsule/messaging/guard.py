"""What messaging has to say before an agent reads or writes: as whom it acts, and what decisions about it depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capsule.messaging.people.agents import Agents
from capsule.messaging.people.directory import Directory

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


class Guard(Directory):
    """The directory of a store, which its core asks. See `capsule.store.inner.Guard`."""

    def identity_for(self, store: CoreStore, text: str, folder: str | None) -> str:
        """The id of the agent that a store is opened for; the owner makes it if need be."""
        return self.identity(text, folder) or store.inner.part(Agents).identity(text, folder)
