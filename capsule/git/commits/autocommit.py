"""Committing by itself, once nobody has written for a while.

What must stay true: a store in which somebody writes without a pause is committed too, later; what can't be committed
just now, as a person's git holds the index for example, is tried again and said once; and nothing runs while there is
nothing to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from capsule.errors import CapsuleError

if TYPE_CHECKING:
    from capsule.engines.changes import Change

#: Changes without a pause are committed after so many times the pause.
_AT_MOST = 20
#: What failed is tried again after the pause, and after this many seconds at least.
_AGAIN_S = 5.0
#: What changes no version: git knows no locks.
_NO_CHANGE = frozenset({"locked", "unlocked"})


class _Due(NamedTuple):
    """When the first and the last change that is to be committed was noticed, by the clock."""

    first: float
    last: float


class Autocommit:
    """When to commit.

    Args:
        after_s: How long nobody must have written, in seconds.
        act: Commits; what it raises of Capsule's own errors goes to `failed`, and it is called again later.
        failed: Called with what went wrong, when it is something else than the last time.
        every_s: Acts after this many seconds in any case, as there may be something to fetch; None: only when
            something changed.
        clock: The clock, in seconds.
    """

    def __init__(
        self,
        after_s: float,
        act: Callable[[], None],
        failed: Callable[[CapsuleError], None],
        *,
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._after_s, self._every_s = after_s, every_s
        self._act, self._failed, self._clock = act, failed, clock
        self._acted = clock()
        self._error = ""
        # What changed before the start is committed at once.
        self._due: _Due | None = _Due(self._acted - after_s, self._acted - after_s)

    def heard(self, changes: Iterable[Change]) -> None:
        """Something changed."""
        if any(change.kind not in _NO_CHANGE for change in changes):
            now = self._clock()
            self._due = _Due(self._due.first if self._due else now, now)

    def due_in_s(self) -> float | None:
        """Seconds until there is something to do; None: until something changes."""
        times = []
        if self._due is not None:
            times.append(min(self._due.last + self._after_s, self._due.first + self._after_s * _AT_MOST))
        if self._every_s is not None:
            times.append(self._acted + self._every_s)
        return max(min(times) - self._clock(), 0.0) if times else None

    def act_if_due(self) -> None:
        """Commit, when it is time to."""
        if self.due_in_s() == 0:
            self.act()

    def act(self) -> None:
        """Commit now."""
        due, self._due = self._due, None
        try:
            self._act()
            self._error = ""
        except CapsuleError as error:
            if error.message != self._error:
                self._error = error.message
                self._failed(error)
            again = self._clock() + max(_AGAIN_S - self._after_s, 0.0)
            self._due = _Due(again, again)
        except BaseException:
            self._due = due
            raise
        finally:
            self._acted = self._clock()
