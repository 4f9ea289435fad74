"""What one agent sees of the trash: what it could read before it was deleted."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.engines.interface import CONVERSATIONS
from capsule.engines.trashed import deleted_last, document_in
from capsule.errors import CapsuleError, NotFound, Refused
from capsule.rules import policy
from capsule.store.change.conversation import REMOVED

if TYPE_CHECKING:
    from capsule.engines.interface import Trash
    from capsule.engines.values import Trashed
    from capsule.store.view import AgentView


class TrashView:
    """The trash as an agent sees it. See `Trash`, which describes the methods."""

    def __init__(self, view: AgentView, trash: Trash) -> None:
        self._view = view
        self._trash = trash

    def entries(self, kind: str) -> list[Trashed]:
        """The entries that the agent could read before they were deleted. Cost: reading each entry."""
        return [trashed for trashed in self._trash.entries(kind) if self._is_seen(kind, trashed)]

    def _is_seen(self, kind: str, trashed: Trashed) -> bool:
        with suppress(CapsuleError):
            if kind == REMOVED:  # They may be of any time.
                return not self._view.seen_from(trashed.id)
            return self._view.since(document_in(self._trash, trashed.token)) is not None
        return False

    def saw(self, id: str) -> bool:
        """Whether a conversation is in it that the agent could read, as it was deleted last."""
        with suppress(CapsuleError):
            return any(self._view.since(document) is not None for document in deleted_last(self._trash, {id}).values())
        return False

    def read(self, token: str) -> bytes:
        if not any(token == trashed.token for kind in (CONVERSATIONS, REMOVED) for trashed in self.entries(kind)):
            raise NotFound(f"{token} is not in the trash", id=token)
        return self._trash.read(token)

    def restore(self, kind: str, id: str, token: str) -> None:
        """Raises Refused if the agent could not have deleted it."""
        self.read(token)
        policy.ensure(self._view.may("delete", policy.Object.of(document_in(self._trash, token))), id)
        self._trash.restore(kind, id, token)

    def drop(self, token: str) -> None:
        """Erase an entry, unasked: its messages came back by a change that this agent was allowed to make."""
        self._trash.drop(token)

    def purge(self, older_than_s: float) -> list[str]:
        """Raises Refused: what is erased is not the agent's alone."""
        raise Refused(f"the trash was not emptied: agent {self._view.agent} may not, only a person", path="")
