"""Searching a store, and counting what is in it.

What must stay true: every answer is that of the files as they are when it is asked for: the index is brought up to
date first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from capsule import timestamps
from capsule.format.moments import moment
from capsule.store.reading import Reading

if TYPE_CHECKING:
    from capsule.engines.index.hits import Found
    from capsule.engines.index.stats import Stats

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Searching(Reading):
    """What an open store finds, and counts. A base of `Store`."""

    def search(
        self,
        query: str,
        *,
        roles: Iterable[str] = (),
        senders: Iterable[str] = (),
        ids: Iterable[str] = (),
        tags: Iterable[str] = (),
        mode: str | None = None,
        since: str | None = None,
        until: str | None = None,
        title_only: bool = False,
        branch: str = "all",
        in_tools: bool = False,
        profile: str = "balanced",
        limit: int = 20,
        cursor: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Found:
        """Find the messages, and the conversations by their titles and tags, that fit a query, best first.

        Args:
            query: Words, "phrases", prefix*, AND, OR, NOT; any text is a query (docs/search.md). If nothing has all
                words, it finds what has the most of them, and `Found.having` says so. An empty one finds every message.
            roles: Only messages of these roles; empty: of all. With it, or `senders`, titles are not searched.
            senders: Only messages from these agents.
            ids: Only these conversations, by their full ids.
            tags: Only conversations with all of these tags.
            mode: Only conversations of this mode.
            since: Only what was said at this time or later; a text as `moment` takes it (`2025-01-31`, `24h`).
            until: Only what was said before this time, or up to the end of this day.
            title_only: Look at titles and tags only.
            branch: `all`: messages of every branch; `active`: of the active one.
            in_tools: Look at tool calls and reasoning too.
            profile: How age counts: `recent`, `balanced` or `exact`.
            limit: The most hits of a page.
            cursor: `Found.cursor` of the page before, with the same query and options.
            progress: Called with the bytes that are indexed so far, and all bytes, if the index must be built first.

        Raises:
            InvalidInput: An option can't be accepted, or the cursor belongs to another search.
            StorageFailed, StoreBusy: The index can't be built.

        Cost: as `heads`, and about a microsecond for each match that is ranked.
        """
        from capsule.engines.index.search import Asked, check

        asked = Asked(
            query=query,
            roles=_sorted(roles),
            senders=_sorted(senders),
            ids=_sorted(ids),
            tags=_sorted(tags),
            mode=mode,
            since_ms=_ms(since, until=False),
            until_ms=_ms(until, until=True),
            title_only=title_only,
            branch=branch,
            in_tools=in_tools,
            profile=profile,
            limit=limit,
            cursor=cursor,
        )
        check(asked)
        return self.index.search(asked, time.time_ns() // 1_000_000, progress)

    def stats(self, progress: Callable[[int, int], None] | None = None) -> Stats:
        """Count what is in the store. Raises as `heads`. Costs a pass over the messages in the index.

        Args:
            progress: As in `search`.
        """
        return self.index.stats(progress)


def _sorted(texts: Iterable[str]) -> tuple[str, ...]:
    """In one order, so that the cursor of a search is that of the same one."""
    return tuple(sorted(set(texts)))


def _ms(text: str | None, *, until: bool) -> int | None:
    if text is None:
        return None
    return (timestamps.parse(moment(text, until=until)) - _EPOCH) // timedelta(milliseconds=1)
