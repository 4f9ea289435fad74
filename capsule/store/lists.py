"""Lists of conversations: which of them, in which order, a page at a time.

What must stay true: every door lists by this module, so that all of them show the same; and pages repeat no
conversation and leave none out, whatever is written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from capsule.format.moments import moment
from capsule.store.reading import Reading
from capsule.timestamps import sortable

if TYPE_CHECKING:
    from capsule.engines.index.pages import Listed
    from capsule.format.head import Head

Order = Literal["updated", "created", "title"]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which conversations a list has: those that fit in every respect. None: whichever.

    Attributes:
        tags: They have all these tags.
        title: Their title contains this text, in capitals or not.
        mode, type: They are of this mode; of this type.
        archived: They are archived (True), or not (False).
        pinned, locked: They are pinned, or locked, or not.
        since: They changed at this time or later: a text as `moment` takes it (`2025-01-31`, `24h`). Empty: ever.
        summaries_of: They sum up this conversation, which may be gone; its full id.
    """

    tags: tuple[str, ...] = ()
    title: str = ""
    mode: str | None = None
    type: str | None = None
    archived: bool | None = False
    pinned: bool | None = None
    locked: bool | None = None
    since: str = ""
    summaries_of: str | None = None

    def of(self, heads: Iterable[Head]) -> list[Head]:
        """Those of these heads that fit.

        A damaged file can't say whether it fits; it does where nothing is asked of it but whether it is archived.
        """
        narrows = replace(self, archived=None) != Filter(archived=None) or self.archived
        title, since = self.title.casefold(), moment(self.since) if self.since else ""
        return [
            head
            for head in heads
            if (self.archived is None or head.archived == self.archived)
            and (not narrows or not head.damaged)
            and (self.mode is None or head.mode == self.mode)
            and (self.type is None or head.type == self.type)
            and (self.pinned is None or head.pinned == self.pinned)
            and (self.locked is None or (head.lock is not None) == self.locked)
            and (self.summaries_of is None or (head.is_summary and head.source_conversation_id == self.summaries_of))
            and all(tag in head.tags for tag in self.tags)
            and title in head.title.casefold()
            and (not since or sortable(head.updated_at) >= since)
        ]


class Listing(Reading):
    """What an open store lists. A base of `Store`."""

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

        A conversation that fits from the first page to the last is on exactly one of the pages, and none is on two,
        whatever is written, renamed, pinned, deleted or brought back between them.

        Args:
            filter: Which conversations. None: those that are not archived, and the damaged files.
            order: `updated` or `created`: the latest first; or `title`.
            limit: The most conversations of a page. None: all of them.
            cursor: `Listed.cursor` of the page before, with the same filter and order. Empty: the first page.
            progress: Called with the bytes that are indexed so far, and all bytes, if the index must be built first.

        Raises:
            InvalidInput: The cursor is none, or of another list, store or index; or the filter's `since` is no time.
            StorageFailed, StoreBusy: The index can't be built.

        Cost: as `heads`, and some microseconds for each conversation in the store.
        """
        chosen = filter or Filter()
        asked = f"list {chosen} {order}"
        return self.index.listed(lambda heads: _in_order(chosen.of(heads), order), limit, cursor, asked, progress)


def _in_order(heads: Iterable[Head], order: Order) -> list[Head]:
    if order == "title":
        found = sorted(heads, key=lambda head: (head.title.casefold(), head.id))
    else:
        name = f"{order}_at"
        found = sorted(heads, key=lambda head: (sortable(getattr(head, name)), head.id), reverse=True)
    return sorted(found, key=lambda head: (bool(head.damaged), not head.pinned))
