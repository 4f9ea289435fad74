"""Who may write a conversation: one rule for every door (DESIGN P4, P6).

An instance may write a conversation that is not locked, or that it has locked itself. The lock of
an instance that has ended does not count. What must stay true: the decision depends on the lock in
the capsule and on whether its instance is alive, never on a pid; and nothing here touches a file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import orjson

from capsule import timestamps
from capsule.errors import Locked, LockLost, Remedy

#: The type of conversations that a save locks; others have many writers.
EXCLUSIVE = "chat"
#: The lock is the first object with that name: inside a text, a quote has a backslash before it.
_IN_DAMAGED = rb'[^\\]"lock"\s*:\s*(\{[^{}]*\})'


class InstanceIdentity(NamedTuple):
    """One instance.

    Attributes:
        name: The name of an instance that outlives its process; else None.
    """

    instance: str
    user: str
    host: str
    pid: int
    name: str | None = None


def lock_in_damaged_file(data: bytes) -> dict[str, Any] | None:
    """The active lock in a file that doesn't parse; None: none can be found."""
    match = re.search(_IN_DAMAGED, data)
    try:
        lock = orjson.loads(match[1]) if match else None
    except orjson.JSONDecodeError:
        return None
    return lock if isinstance(lock, dict) and lock.get("active") is True else None


def new_lock(
    identity: InstanceIdentity,
    stamp: str,
    client: str | None = None,
    agent: str | None = None,
    *,
    boot: str = "",
) -> dict[str, Any]:
    """The record of a lock that `identity` takes at the time `stamp`, in the order of the format.

    Args:
        identity: The instance.
        stamp: The time.
        client: The program that it is taken for, by its product name.
        agent: The agent that it is taken for.
        boot: The `boot` of the leases by which others know whether the instance lives.
    """
    lock: dict[str, Any] = {
        "active": True,
        "instanceId": identity.instance,
        "timestamp": stamp,
        "user": identity.user,
        "host": identity.host,
        "pid": identity.pid,
    }
    more = {"boot": boot, "name": identity.name, "client": client, "agent": agent}
    return lock | {name: value for name, value in more.items() if value}


def lock_state(lock: dict[str, Any], host: str, live: bool | None, ttl_s: float) -> str:
    """Whether an active lock is "held", "orphaned" or "elsewhere".

    Args:
        lock: The lock as it stands in the capsule.
        host: This host's name.
        live: Whether its instance lives; None: that isn't known.
        ttl_s: Seconds without use after which a lock of a named instance or another host counts as
            orphaned.
    """
    if live is not None:
        return "held" if live else "orphaned"
    if age_s(lock) > ttl_s:
        return "orphaned"
    return "held" if lock.get("host") == host else "elsewhere"


def age_s(lock: dict[str, Any]) -> float:
    """Seconds since a lock was last used; without end for a time that can't be read."""
    try:
        return timestamps.seconds_between(str(lock.get("timestamp")), timestamps.now())
    except ValueError:
        return math.inf


def describe(lock: dict[str, Any]) -> str:
    """The holder of a lock in words: "anna (agent reviewer, in claude-code 2.1) on lab-2 since
    2025-01-12 10:30".
    """
    details = holder_details(lock, str)
    since = str(lock.get("timestamp") or "an unknown time").replace("T", " ")[:16] + " UTC"
    return (
        f"{lock.get('user') or 'somebody'}{details} on {lock.get('host') or 'an unknown host'} "
        f"since {since}"
    )


def holder_details(lock: dict[str, Any], word: Callable[[str], str]) -> str:
    """The name, the agent and the client of a lock's holder, in brackets; empty if the lock names
    none of them.

    Args:
        lock: The lock.
        word: Escapes a text for display.
    """
    known = {"": lock.get("name"), "agent ": lock.get("agent"), "in ": lock.get("client")}
    words = ", ".join(prefix + word(str(value)) for prefix, value in known.items() if value)
    return f" ({words})" if words else ""


def check_writable(
    id: str,
    lock: dict[str, Any] | None,
    identity: InstanceIdentity,
    *,
    held: bool,
    state: Callable[[dict[str, Any]], str],
) -> dict[str, Any] | None:
    """Check that `identity` may write the conversation `id`.

    Args:
        id: The conversation.
        lock: Its active lock in the capsule; else None.
        identity: The instance that wants to write.
        held: Whether that instance remembers taking the lock.
        state: As `lock_state`, for this store.

    Returns:
        None, or the orphaned lock that this write takes over.

    Raises:
        Locked: Another instance holds the lock.
        LockLost: This instance has lost the lock.
    """
    if lock is not None and lock.get("instanceId") == identity.instance:
        return None
    if held:
        now = f"it is now locked by {describe(lock)}" if lock else "it is not locked now"
        raise LockLost(
            f"the lock on conversation {id} was taken away: {now}; nothing was written",
            remedy=Remedy("show", id),
            id=id,
            holder=lock,
        )
    if lock is None:
        return None
    if state(lock) == "orphaned":
        return lock
    raise Locked(
        f"conversation {id} is locked by {describe(lock)}",
        remedy=Remedy("unlock", id),
        id=id,
        holder=lock,
    )
