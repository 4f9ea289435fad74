"""Decide whether an instance may write to a conversation that may be locked: one rule for every door.

An instance is a running program that has opened a store. It may write if nobody has locked the
conversation, or if it has locked it itself. The lock of an instance that has ended is orphaned, and
the next write takes it over.

What must stay true: the decision depends on the lock in the capsule and on whether its instance is
alive, never on a process id. The state of a lock is given by the caller. Nothing here touches a
file. Who may do what with a conversation is another rule (`capsule.rules.policy`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import orjson

from capsule import timestamps
from capsule.errors import Locked, LockLost, Remedy

LockState = Literal["held", "orphaned", "elsewhere"]

#: The type of conversations that a save locks. Others have many writers.
EXCLUSIVE = "chat"
#: The lock is the first object of that name: inside a text, a quote has a backslash before it.
_LOCK_IN_DAMAGED = rb'[^\\]"lock"\s*:\s*(\{[^{}]*\})'


class InstanceIdentity(NamedTuple):
    """One instance.

    Attributes:
        instance: Its id, a UUID.
        user: The user that it runs for.
        host: The machine that it runs on.
        pid: Its process, for people to read.
        name: The name of an instance that outlives its process; else None.
    """

    instance: str
    user: str
    host: str
    pid: int
    name: str | None = None


def lock_in_damaged_file(data: bytes) -> dict[str, Any] | None:
    """Return the active lock in a file that does not parse. None: none can be found."""
    match = re.search(_LOCK_IN_DAMAGED, data)
    if match is None:
        return None
    try:
        lock = orjson.loads(match[1])
    except orjson.JSONDecodeError:
        return None
    return lock if isinstance(lock, dict) and lock.get("active") is True else None


def new_lock(
    identity: InstanceIdentity,
    taken_at: str,
    client: str | None = None,
    agent: str | None = None,
    *,
    boot: str = "",
) -> dict[str, Any]:
    """Return the lock that an instance takes, with its fields in the order of the format.

    Args:
        identity: The instance.
        taken_at: The time.
        client: The program that it is taken for, by its product name.
        agent: The agent that it is taken for.
        boot: The `boot` of the leases by which others know whether the instance lives.
    """
    lock: dict[str, Any] = {
        "active": True,
        "instanceId": identity.instance,
        "timestamp": taken_at,
        "user": identity.user,
        "host": identity.host,
        "pid": identity.pid,
    }
    optional = {"boot": boot, "name": identity.name, "client": client, "agent": agent}
    return lock | {name: value for name, value in optional.items() if value}


def lock_state(lock: dict[str, Any], host: str, live: bool | None, ttl_s: float) -> LockState:
    """Return the state of an active lock.

    The first row that applies counts:

    | the instance | the lock | state |
    | --- | --- | --- |
    | lives | | held |
    | has ended | | orphaned |
    | unknown | not used for `ttl_s` | orphaned |
    | unknown | of this host | held |
    | unknown | of another host | elsewhere |

    Args:
        lock: The lock.
        host: This host's name.
        live: Whether its instance lives. None: unknown, as for a named instance or another host.
        ttl_s: Seconds without use after which such a lock counts as orphaned.
    """
    if live is not None:
        return "held" if live else "orphaned"
    if age_s(lock) > ttl_s:
        return "orphaned"
    return "held" if lock.get("host") == host else "elsewhere"


def age_s(lock: dict[str, Any]) -> float:
    """Return the seconds since a lock was last used. Infinity: its time can't be read."""
    try:
        return timestamps.seconds_between(str(lock.get("timestamp")), timestamps.now())
    except ValueError:
        return math.inf


def describe(lock: dict[str, Any]) -> str:
    """Return the holder of a lock in words.

    For example "anna (agent reviewer, in claude-code 2.1) on lab-2 since 2025-01-12 10:30 UTC".
    """
    user = lock.get("user") or "somebody"
    host = lock.get("host") or "an unknown host"
    since = str(lock.get("timestamp") or "an unknown time").replace("T", " ")[:16] + " UTC"
    return f"{user}{holder_details(lock, str)} on {host} since {since}"


def holder_details(lock: dict[str, Any], escape: Callable[[str], str]) -> str:
    """Return name, agent and client of a lock's holder, in brackets. Empty: it names none of them.

    `escape` makes a text fit for display.
    """
    labels = {"": lock.get("name"), "agent ": lock.get("agent"), "in ": lock.get("client")}
    details = [label + escape(str(value)) for label, value in labels.items() if value]
    return f" ({', '.join(details)})" if details else ""


def check_writable(
    id: str,
    lock: dict[str, Any] | None,
    identity: InstanceIdentity,
    *,
    remembers_lock: bool,
    state: Callable[[dict[str, Any]], str],
) -> dict[str, Any] | None:
    """Check that an instance may write to a conversation.

    Args:
        id: The conversation.
        lock: Its active lock in the capsule, or None.
        identity: The instance that wants to write.
        remembers_lock: Whether that instance remembers taking the lock.
        state: Returns the `lock_state` of a lock in this store.

    Returns:
        None, or the orphaned lock that this write takes over.

    Raises:
        Locked: Another instance holds the lock.
        LockLost: This instance has lost the lock.
    """
    if lock is not None and lock.get("instanceId") == identity.instance:
        return None
    if remembers_lock:
        present = "it is not locked now"
        if lock:
            present = f"it is now locked by {describe(lock)}"
        raise LockLost(
            f"the lock on conversation {id} was taken away: {present}; nothing was written",
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
