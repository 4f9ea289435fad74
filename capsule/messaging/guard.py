"""What messaging has to say before an agent reads or writes: as whom it acts, and what decisions about it depend on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capsule.messaging.people.directory import Directory
from capsule.store import inner

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


class Guard(Directory, inner.Guard):
    """The directory of a store, which the core asks."""

    def identity_for(self, store: CoreStore, text: str, folder: str | None) -> str:
        """See `capsule.store.inner.Guard`."""
        if id := self.identity(text, folder):
            return id
        from capsule.messaging.people.agents import Agents  # Needed once for an agent.

        return store.inner.part(Agents).identity(text, folder)
