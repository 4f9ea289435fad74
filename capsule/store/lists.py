"""Lists of conversations, and the counts for the menus beside them.

What must stay true: what the agent may not read is in no list and counts nowhere. The names of
agents and the folders of projects become ids here, as an engine knows of neither.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.engines.interface import Engine
    from capsule.engines.queries import Facets, Filter, Listed, Order, Queries
    from capsule.store.inner import Inner


class Lists:
    """The lists of an open store."""

    inner: Inner[Any]
    engine: Engine
    agent: str | None

    @property
    def questions(self) -> Queries:
        """What the engine answers about all conversations to whom this store acts for."""
        return self.engine.questions()

    def list(
        self,
        filter: Filter | None = None,
        order: Order = "updated",
        *,
        limit: int | None = None,
        cursor: str = "",
        progress: Callable[[int, int], None] | None = None,
    ) -> Listed:
        """List a page of the conversations: pinned ones first, damaged files last.

        A conversation that fits the filter throughout is on exactly one of the pages, and no
        conversation is on two, whatever is written, renamed, pinned, deleted or restored between
        the pages.

        Args:
            filter: Which conversations. None: all that are not archived, and the damaged files.
            order: `updated` or `created`: the latest first; or `title`.
            limit: The largest number of conversations in a page. None: no limit.
            cursor: `Listed.cursor` of the page before, with the same filter and order. Empty: the
                first page.
            progress: Called with the bytes indexed so far, and all bytes, if the index must be
                built first.

        Raises:
            InvalidInput: The cursor is of another list, store or index, or no cursor;
                `Filter.since` is no time; or several agents have the name `Filter.agent`.
            StorageFailed, StoreBusy: The index can't be built.

        Cost: as `heads`, and a tenth of a microsecond for each conversation in the store and each
            condition. The first list in an order sorts them all; later ones do not, whatever
            changed.
        """
        from capsule.engines.queries import ListRequest

        asked = ListRequest(self._meant(filter), order, limit=limit, cursor=cursor)
        return self.questions.conversations(asked, progress)

    def facets(
        self, filter: Filter | None = None, progress: Callable[[int, int], None] | None = None
    ) -> Facets:
        """Count the conversations of a list by what else they can be filtered by, as for the menus
        beside it.

        Args:
            filter: As in `list`.
            progress: As in `list`.

        Raises InvalidInput, StorageFailed, StoreBusy, as `list`. Cost: as `heads`, and about two
        microseconds for each conversation that fits.
        """
        return self.questions.facets(
            self._meant(filter), self.inner.guard.folders(self.agent), progress
        )

    def _meant(self, filter: Filter | None) -> Filter:
        """A filter by the ids of agents."""
        from capsule.engines.queries import Filter, is_within

        chosen = filter or Filter()
        if chosen.agent is not None:  # The guard is asked only where it has to be: it loads a room.
            chosen = replace(chosen, agent=self.inner.guard.agent(self.agent, chosen.agent))
        if (project := chosen.project) is not None:
            folders = self.inner.guard.folders(self.agent).items()
            chosen = replace(
                chosen, members=frozenset(id for id, path in folders if is_within(path, project))
            )
        return chosen
