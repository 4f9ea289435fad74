"""Lists of conversations: filtered, sorted, a page at a time.

What must stay true: every door lists by this module, so that all of them show the same. Pages repeat no conversation
and leave none out, whatever is written meanwhile.
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
    """The conditions that a conversation in a list meets, all of them. None: no condition.

    Attributes:
        tags: It has all these tags.
        title: Its title contains this text, in upper or lower case.
        mode, type: Its mode; its type.
        archived: Whether it is archived.
        pinned, locked: Whether it is pinned; whether it is locked.
        since: It changed at this time or later: a text as `moment` takes it (`2025-01-31`, `24h`). Empty: any time.
        summaries_of: It is a summary of this conversation (full id), which may have been deleted.
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
        """The heads that meet all conditions. A damaged file meets no condition but that it is not archived."""
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
    filter = filter or Filter()
    query = f"list {filter} {order}"
    return index.listed(lambda heads: _in_order(filter.of(heads), order), limit, cursor, query, progress)


def _in_order(heads: Iterable[Head], order: Order) -> list[Head]:
    if order == "title":
        ordered = sorted(heads, key=lambda head: (head.title.casefold(), head.id))
    else:
        name = f"{order}_at"
        ordered = sorted(heads, key=lambda head: (sortable(getattr(head, name)), head.id), reverse=True)
    return sorted(ordered, key=lambda head: (bool(head.damaged), not head.pinned))
