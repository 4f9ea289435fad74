"""The process that waits in a client's session, and rings there by ending.

What must stay true: one waits for each session, whatever the client starts; it ends with its session, and holds nothing
that outlives it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from capsule.messaging.doorbells import registry
from capsule.messaging.doorbells.interface import Target
from capsule.messaging.mail.unread import Unread
from capsule.messaging.people.people import People

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: Seconds after which it looks whether its session is there still, and whether a ring is due again.
LOOK_S = 5.0


def wait(store: CoreStore, agent: str, target: Target, has_ended: Callable[[], bool], timeout_s: float) -> str:
    """Wait until a target is to be rung.

    Args:
        store: The store, open for this alone.
        agent: The agent.
        target: Where the ring is to be made, by who calls this.
        has_ended: Whether the session has ended.
        timeout_s: How long to wait, in seconds.

    Returns:
        How many messages wait, and from whom; empty: the session has ended, another process waits for it, or the
        time is over.

    Raises Refused, StorageFailed. Cost: while it waits, a look at the inbox with every change and every five seconds.
    """
    mine = registry.claim(store, agent, target)
    until, cursor = time.monotonic() + timeout_s, store.changes().cursor
    while mine is not None and not has_ended() and (left := until - time.monotonic()) > 0:
        bell = registry.bells(store, agent).at(mine)
        if bell is None or bell.target != mine:
            return ""
        pointer = store.inner.acting(None).inner.part(Unread).pointer(agent)
        if bell.asked:
            pointer = pointer or registry.TEST
        elif pointer and store.inner.part(People).online().get(agent):
            pointer = ""
        if pointer and registry.take(store, agent, mine):
            return pointer
        cursor = store.wait_for_changes(cursor, timeout_s=min(LOOK_S, left)).cursor
    return ""
