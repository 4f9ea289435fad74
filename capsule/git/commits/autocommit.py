"""When to commit: once nobody has written for a while.

What must stay true: a store in which somebody writes without a pause is committed too, later; what can't be committed
now, as when a person's git holds the index, is tried again and reported once; and nothing runs while there is nothing
to do.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from capsule.errors import CapsuleError

if TYPE_CHECKING:
    from capsule.engines.changes import Change

#: Changes without a pause are committed after so many times the pause.
_AT_MOST = 20
#: What failed is tried again after the pause, and after this many seconds at least.
_AGAIN_S = 5.0
#: What changes no version: git knows no locks.
_NO_CHANGE = frozenset({"locked", "unlocked"})


class Autocommit:
    """When to commit.

    Args:
        after_s: How long nobody must have written, in seconds.
        act: Commits; a `CapsuleError` that it raises goes to `failed`, and it is called again later.
        failed: Called with an error, when it is another than the last time.
        every_s: Act after this many seconds in any case; None: only when something changed.
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
        self._due: tuple[float, float] | None = (self._acted - after_s,) * 2  # The first and the last change.

    def heard(self, changes: Iterable[Change]) -> None:
        """Something changed."""
        if any(change.kind not in _NO_CHANGE for change in changes):
            now = self._clock()
            self._due = (self._due[0] if self._due else now, now)

    def due_in_s(self) -> float | None:
        """Seconds until there is something to do; None: until something changes."""
        times = []
        if self._due is not None:
            first, last = self._due
            times.append(min(last + self._after_s, first + self._after_s * _AT_MOST))
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
            self._due = (again, again)
        except BaseException:
            self._due = due
            raise
        finally:
            self._acted = self._clock()
