"""Leases: the right to a name, such as that of an instance, of the host or of a worker, which one
holder has at a time.

What must stay true: a lease ends when its holder releases it or dies, however it dies. The fencing
number of a lease is higher than those of all earlier holders, and a write that names a lease is
done only while its holder has it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, Self

_INSTANCE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The kind under which `Reads` names the lease that a decision needs.
LEASES = "leases"


def is_instance(name: str) -> bool:
    """Whether a name is that of an instance."""
    return _INSTANCE.fullmatch(name) is not None


class Lease(NamedTuple):
    """A lease that was taken; it is released at the end of a `with` block. `fence` is its fencing
    number.
    """

    leases: Leases
    name: str
    fence: int

    @property
    def reads(self) -> dict[tuple[str, str], Lease]:
        """The entry for `Reads` that makes a write depend on this lease."""
        return {(LEASES, self.name): self}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leases.release(self.name)


class Leases(Protocol):
    """The leases of one store. An instance has the lease of its own id, and says there what others
    may know of it.

    Attributes:
        boot: What tells the run of the system that frees the leases of the dead from all others;
            empty: nothing does. Containers of one machine have the same.
    """

    @property
    def boot(self) -> str: ...

    def take(
        self, name: str, about: Mapping[str, Any] | None = None, timeout_s: float | None = 0.0
    ) -> Lease:
        """Take a lease, until it is released or this process ends.

        Args:
            name: The name. An instance, a UUID, takes its own again to say something else; no other
                is taken twice.
            about: What an instance says about itself, as small JSON; None: what it said before.
            timeout_s: How long to wait for another holder, in seconds; None: for ever.

        Raises StoreBusy, which names the holder if that is known; Refused, StorageFailed.
        """

    def ensure_held(self, lease: Lease) -> None:
        """Raise StoreBusy if a lease was released or lost."""

    def release(self, name: str) -> None:
        """Release a lease, if this process has it."""

    def live(self) -> dict[str, dict[str, Any]]:
        """What each live instance says about itself. Cost: a look at each instance."""

    def is_live(self, instance: str, host: str | None = None, boot: str = "") -> bool | None:
        """Whether an instance lives, True also if that can't be found out; None: the engine knows
        none of that host.

        Args:
            instance: The instance.
            host: The name of the machine that it runs on; None: one that the engine knows.
            boot: The `boot` of its leases; empty: not known.
        """

    def beat(self, session: str) -> None:
        """Note that the worker of a session is at work now, not durably. Any process may."""

    def beaten(self, session: str) -> str | None:
        """The time of the last `beat`, by the clock of the store; None: there was none."""
