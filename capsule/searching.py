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
from capsule.errors import InvalidInput
from capsule.reading import Reading

if TYPE_CHECKING:
    from capsule.index.hits import Found
    from capsule.index.stats import Stats

__all__ = ["Searching"]

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
        branch: str = "active",
        in_tools: bool = False,
        profile: str = "balanced",
        limit: int = 20,
        cursor: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Found:
        """The messages, and the conversations by their titles and tags, that fit a query, best first.

        Args:
            query: Words, "phrases", prefix*, AND, OR, NOT; any text is a query (docs/search.md).
            roles: Only messages of these roles; empty: of all. With it, or `senders`, titles are not looked at.
            senders: Only messages from these agents.
            ids: Only these conversations, by their full ids.
            tags: Only conversations with all of these tags.
            mode: Only conversations of this mode.
            since: Only what was said at this time or later (ISO 8601).
            until: Only what was said before this time.
            title_only: Look at titles and tags only.
            branch: `active`: messages of the active branch; `all`: of every branch.
            in_tools: Look at tool calls and reasoning too.
            profile: How age counts: `recent`, `balanced` or `exact`.
            limit: The most hits of a page.
            cursor: `Found.cursor` of the page before, with the same query and options.
            progress: Told how many bytes are done, and of how many, when there is much to index first.

        Raises:
            InvalidInput: An option can't be accepted, or the cursor belongs to another search.
        """
        from capsule.index.search import Asked, check, search

        asked = Asked(
            query=query,
            roles=_sorted(roles),
            senders=_sorted(senders),
            ids=_sorted(ids),
            tags=_sorted(tags),
            mode=mode,
            since_ms=_ms(since, "since"),
            until_ms=_ms(until, "until"),
            title_only=title_only,
            branch=branch,
            in_tools=in_tools,
            profile=profile,
            limit=limit,
            cursor=cursor,
        )
        check(asked)
        return self.index.query(lambda db: search(db, asked, time.time_ns() // 1_000_000), progress)

    def stats(self, progress: Callable[[int, int], None] | None = None) -> Stats:
        """What is in the store, counted. Costs a pass over the messages in the index.

        Args:
            progress: As in `search`.
        """
        from capsule.index.stats import count

        return self.index.query(count, progress)


def _sorted(texts: Iterable[str]) -> tuple[str, ...]:
    """In one order, so that the cursor of a search is that of the same one."""
    return tuple(sorted(set(texts)))


def _ms(text: str | None, name: str) -> int | None:
    if text is None:
        return None
    try:
        return (timestamps.parse(text) - _EPOCH) // timedelta(milliseconds=1)
    except ValueError:
        raise InvalidInput(f"{name}: {text!r} is no ISO 8601 time") from None
