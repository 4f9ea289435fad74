"""Who can be rung, when they were, and when they are again: kept for each agent beside the index,
never committed.

What must stay true: at most one ring is outstanding for a target, whoever rings, and whichever
process waits there; it is repeated after 1, 5 and 30 minutes, then never, until the agent has read
something. It is recorded before it is made, so that two writers never ring twice and a bell that
fails delays few writes. A target whose process is known to have ended is not rung. A bell that
fails is a warning in the log, and no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import CapsuleError
from capsule.messaging.doorbells.clients import CLIENTS
from capsule.messaging.doorbells.interface import Doorbell, Target, bell_text
from capsule.messaging.people.documents import KIND_OF_BELLS

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: The group of the entry points of other packages.
GROUP = "capsule.doorbells"
#: Seconds from the first ring to the second, from the second to the third, and from the third to
#: the last.
_GAPS_S = (60.0, 300.0, 1800.0)
#: As many targets of an agent are kept: the last ones.
_MOST = 16
#: As many rings of a target are kept.
_RINGS = 8
#: In the place of a pointer, when nothing is unread and a test rings.
TEST = "nothing is unread, this is a test of the bell"

_log = logging.getLogger("capsule")


@dataclass(frozen=True, slots=True)
class Bell:
    """A target and its rings.

    Attributes:
        rung: When it was rung, the oldest first.
        failed: Why the last ring failed; empty: it did not.
        asked: Whether a test asked the process that waits there to ring.
    """

    target: Target
    rung: tuple[str, ...] = ()
    failed: str = ""
    asked: bool = False

    @property
    def watches(self) -> bool:
        """Whether the process that waits at the target rings by itself."""
        client = doorbell(self.target.client)
        return client is not None and client.watches

    def outstanding(self, read: str) -> list[str]:
        """The rings after which the agent has read nothing; `read`: when it read something for the
        last time.
        """
        return [time for time in self.rung if time > read]

    def due(self, read: str, now: str) -> bool:
        """Whether to ring at this time, given that something is unread."""
        rings = self.outstanding(read)
        if not rings:
            return True
        return (
            len(rings) <= len(_GAPS_S)
            and timestamps.seconds_between(rings[-1], now) >= _GAPS_S[len(rings) - 1]
        )

    def ringing(self, now: str) -> Bell:
        """The bell, rung at this time."""
        return replace(self, rung=(*self.rung, now)[-_RINGS:], failed="", asked=False)

    def as_json(self) -> dict[str, Any]:
        """The bell as JSON."""
        return {
            **self.target.as_json(),
            "rung": list(self.rung),
            "failed": self.failed,
            "asked": self.asked,
        }


@dataclass(frozen=True, slots=True)
class Bells:
    """The targets of an agent, the longest registered first.

    Attributes:
        read: When the agent read something for the last time, as far as that is known.
    """

    bells: tuple[Bell, ...] = ()
    read: str = ""

    def at(self, target: Target) -> Bell | None:
        """The bell at the place of a target."""
        return next((bell for bell in self.bells if bell.target.place == target.place), None)

    def without(self, *targets: Target) -> Bells:
        """The bells at other places than these targets."""
        places = [target.place for target in targets]
        return replace(
            self, bells=tuple(bell for bell in self.bells if bell.target.place not in places)
        )

    def plus(self, *changed: Bell) -> Bells:
        """With bells in the place of those at the same targets; the last `_MOST` are kept."""
        others = self.without(*(bell.target for bell in changed))
        return replace(self, bells=(*others.bells, *changed)[-_MOST:])


@cache
def doorbell(client: str) -> Doorbell | None:
    """The doorbell of this name: Capsule's own, or one that an installed package offers; None:
    there is none.
    """
    if client in CLIENTS:
        return CLIENTS[client]
    from importlib.metadata import entry_points

    for entry in entry_points(group=GROUP, name=client):
        offered: Doorbell = entry.load()
        return offered
    return None


def bells(store: CoreStore, agent: str) -> Bells:
    """The targets of an agent. Cost: a look, and reading one small file if there is one."""
    return _decoded(store.engine.machine.read(KIND_OF_BELLS, agent))


def is_there(store: CoreStore, bell: Bell) -> bool:
    """Whether a target is there, as far as that can be known. Cost: a try at a lock."""
    return not bell.target.instance or store.engine.leases.is_live(bell.target.instance) is True


def register(store: CoreStore, agent: str, target: Target) -> None:
    """Ring a target from now on. It takes the place of those of its client that no process keeps
    alive.

    Raises Refused, StorageFailed. Cost: reading a small file, and writing it unless it is
    registered.
    """

    def change(stored: Bells) -> Bells:
        kept = (
            bell
            for bell in stored.bells
            if bell.target.client != target.client or bell.target.instance
        )
        return replace(stored, bells=tuple(kept)).plus(Bell(target))

    if bells(store, agent).at(target) is None:
        _edit(store, agent, change)


def forget(store: CoreStore, agent: str, target: Target) -> None:
    """Ring a target no more. Raises Refused, StorageFailed. Cost: a small durable write, when it
    was registered.
    """
    _edit(store, agent, lambda stored: stored.without(target))


def claim(store: CoreStore, agent: str, target: Target) -> Target | None:
    """Register a target that this instance keeps alive, unless another living one keeps it.

    Returns:
        The target with this instance; None: another has it.

    Raises Refused, StorageFailed. Cost: a small durable write.
    """
    mine = replace(target, instance=store.instance_id)

    def change(stored: Bells) -> Bells:
        bell = stored.at(target)
        if bell is not None and is_there(store, bell):
            return stored
        store.engine.leases.take(mine.instance, {"agent": agent, "listening": False})
        return stored.plus(replace(bell or Bell(mine), target=mine, asked=False))

    bell = _edit(store, agent, change).at(mine)
    return mine if bell is not None and bell.target == mine else None


def take(store: CoreStore, agent: str, target: Target) -> bool:
    """Whether a target that watches the store is to ring now, given that something is unread; if
    so, it is recorded.

    Raises Refused, StorageFailed. Cost: reading a small file, and writing it when it is.
    """
    now, taken = timestamps.now(), False

    def change(stored: Bells) -> Bells:
        nonlocal taken
        bell = stored.at(target)
        taken = bell is not None and (bell.asked or bell.due(stored.read, now))
        return stored.plus(bell.ringing(now)) if taken and bell is not None else stored

    _edit(store, agent, change)
    return taken


def ring(store: CoreStore, agent: str, pointer: Callable[[], str]) -> bool:
    """Ring every target of an agent where a ring is due.

    Args:
        store: The store.
        agent: The agent, who has something unread.
        pointer: Says how many messages wait, and from whom; asked only where a ring is due.

    Returns:
        Whether a ring is outstanding that its program took, or is made by the process that waits
        there.

    Raises nothing. Cost: reading a small file; where a ring is due a durable write, and what the
    bell costs.
    """
    now, chosen = timestamps.now(), list[Bell]()

    def change(stored: Bells) -> Bells:
        chosen[:] = [
            bell.ringing(now)
            for bell in stored.bells
            if not bell.watches and bell.due(stored.read, now)
        ]
        return stored.plus(*chosen)

    try:
        stored = bells(store, agent)
        # If no ring is due, or the agent has read everything meanwhile, none is made.
        if change(stored) != stored and (waiting := pointer()):
            stored = _edit(store, agent, change)
            failed = [
                (bell, why)
                for bell in chosen
                if (why := attempt(bell.target, bell_text(agent, waiting)))
            ]
            for bell, why in failed:
                _log.warning("the doorbell %s of %s: %s", bell.target.client, agent, why)
            if failed:
                after = [replace(bell, failed=why) for bell, why in failed]
                stored = _edit(store, agent, lambda stored: stored.plus(*after))
        return any(
            is_there(store, bell)
            if bell.watches
            else not bell.failed and bell.outstanding(stored.read)
            for bell in stored.bells
        )
    except CapsuleError as error:
        _log.warning("no bell was rung for %s: %s", agent, error)
        return False


def emptied(store: CoreStore, agent: str) -> None:
    """Note that an agent has read something, so that the next message rings at once.

    Raises Refused, StorageFailed. Cost: reading a small file, and writing it when a ring was
    outstanding.
    """

    def change(stored: Bells) -> Bells:
        last = max((time for bell in stored.bells for time in bell.rung), default="")
        return replace(stored, read=timestamps.later_than(last))

    stored = bells(store, agent)
    if any(bell.outstanding(stored.read) for bell in stored.bells):
        _edit(store, agent, change)


def was_rung(store: CoreStore, agent: str, since: str) -> bool:
    """Whether a program took a ring for an agent at this time or later. Cost:
    reading a small file.
    """
    return any(
        not bell.failed and bell.rung and bell.rung[-1] >= since
        for bell in bells(store, agent).bells
    )


def ask(store: CoreStore, agent: str) -> None:
    """Ask the processes that wait at targets to ring, for a test; they do so within some seconds.

    Raises Refused, StorageFailed. Cost: a small durable write.
    """
    _edit(
        store,
        agent,
        lambda stored: stored.plus(*(replace(it, asked=True) for it in stored.bells if it.watches)),
    )


def attempt(target: Target, text: str) -> str:
    """Ring a target, whether it is due or not; why that failed, or an empty text."""
    bell = doorbell(target.client)
    if bell is None:
        return "there is no such doorbell"
    try:
        return "" if bell.ring(target, text) else "the program did not take it"
    except (
        Exception
    ) as error:  # A bell of another package may raise anything, and the message is sent already.
        return str(error) or type(error).__name__


def _edit(store: CoreStore, agent: str, change: Callable[[Bells], Bells]) -> Bells:
    """Change the targets of an agent, exclusively; as they are afterwards."""
    after = Bells()

    def edit(value: dict[str, Any] | None) -> dict[str, Any] | None:
        nonlocal after
        before = _decoded(value)
        after = change(before)
        return (
            None
            if after == before
            else {"read": after.read, "bells": [bell.as_json() for bell in after.bells]}
        )

    store.engine.machine.edit(KIND_OF_BELLS, agent, edit)
    return after


def _decoded(value: dict[str, Any] | None) -> Bells:
    """What a file says; nothing when it says something else: clients register again with their next
    session.
    """
    if value is None:
        return Bells()
    try:
        known = (
            Bell(
                Target(it["client"], it["address"], it["instance"]),
                tuple(it["rung"]),
                it["failed"],
                it["asked"],
            )
            for it in value["bells"]
        )
        return Bells(tuple(known), value["read"])
    except (LookupError, TypeError):
        return Bells()
