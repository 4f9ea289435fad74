"""Lists of conversations: which of them, in which order, a page at a time.

What must stay true: every door lists by this module, so that all of them show the same; and pages repeat no
conversation and leave none out, whatever is written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from capsule.format.moments import moment
from capsule.timestamps import sortable

if TYPE_CHECKING:
    from capsule.engines.index.index import Index
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


def listed(
    index: Index,
    filter: Filter | None,
    order: Order,
    limit: int | None,
    cursor: str,
    progress: Callable[[int, int], None] | None,
) -> Listed:
    """The page that `Store.list` gives."""
    chosen = filter or Filter()
    asked = f"list {chosen} {order}"
    return index.listed(lambda heads: _in_order(chosen.of(heads), order), limit, cursor, asked, progress)


def _in_order(heads: Iterable[Head], order: Order) -> list[Head]:
    if order == "title":
        found = sorted(heads, key=lambda head: (head.title.casefold(), head.id))
    else:
        name = f"{order}_at"
        found = sorted(heads, key=lambda head: (sortable(getattr(head, name)), head.id), reverse=True)
    return sorted(found, key=lambda head: (bool(head.damaged), not head.pinned))
