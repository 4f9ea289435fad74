"""Who may write a conversation: the one rule, asked by every door (DESIGN P4, P6).

An instance writes a conversation that nobody has locked, or that it has locked itself; a lock whose owner is gone
stands in nobody's way. What must stay true: the decision is made from the lock as it stands in the capsule and from
whether its instance lives, never from a pid; nothing here touches a file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from capsule import timestamps
from capsule.errors import Locked, LockLost, Remedy

#: The lock is the first object of that name: a quote in a text has a backslash before it.
_IN_DAMAGED = re.compile(rb'[^\\]"lock"\s*:\s*(\{[^{}]*\})')


@dataclass(frozen=True, slots=True)
class Identity:
    """Who writes: one instance.

    Attributes:
        name: The name a person gave it, when it outlives its process; else None.
    """

    instance: str
    user: str
    host: str
    pid: int
    name: str | None = None


@dataclass(frozen=True, slots=True)
class LockState:
    """A lock as it stands in a capsule.

    Attributes:
        state: "held": its instance lives, or was used lately; "orphaned": it is gone; "elsewhere": on another
            host, where it can't be asked, and used within the time to live.
        client: The program that it was taken for, as people know it.
        agent: The agent that it was taken for.
    """

    id: str
    title: str
    instance: str
    user: str
    host: str
    name: str | None
    since: str
    state: str
    client: str | None = None
    agent: str | None = None


def in_damaged(data: bytes) -> dict[str, Any] | None:
    """The active lock in a file that doesn't parse, as far as it can be found there; None: there is none."""
    match = _IN_DAMAGED.search(data)
    try:
        lock = orjson.loads(match[1]) if match else None
    except orjson.JSONDecodeError:
        return None
    return lock if isinstance(lock, dict) and lock.get("active") is True else None


def is_exclusive(type: str) -> bool:
    """Whether a save locks conversations of this type: chats are exclusive, all others have many writers."""
    return type == "chat"


def taken(identity: Identity, stamp: str, client: str | None = None, agent: str | None = None) -> dict[str, Any]:
    """The record of a lock taken by `identity` at `stamp`, in the order of the format.

    Args:
        identity: Who takes it.
        stamp: When.
        client: The program that it is taken for, as people know it.
        agent: The agent that it is taken for.
    """
    lock: dict[str, Any] = {
        "active": True,
        "instanceId": identity.instance,
        "timestamp": stamp,
        "user": identity.user,
        "host": identity.host,
        "pid": identity.pid,
    }
    more = {"name": identity.name, "client": client, "agent": agent}
    return lock | {name: value for name, value in more.items() if value is not None}


def state_of(lock: dict[str, Any], host: str, alive: Callable[[str], bool], ttl_s: float) -> str:
    """Whether an active lock is "held", "orphaned" or "elsewhere".

    Args:
        lock: The lock as it stands in the capsule.
        host: This host's name.
        alive: Says whether an instance of this host lives.
        ttl_s: Seconds after which a lock that can't be asked counts as orphaned.
    """
    here = lock.get("host") == host
    if here and not lock.get("name"):
        return "held" if alive(str(lock.get("instanceId"))) else "orphaned"
    try:
        age_s = timestamps.seconds_between(str(lock.get("timestamp")), timestamps.now())
    except ValueError:
        return "orphaned"
    if age_s > ttl_s:
        return "orphaned"
    return "held" if here else "elsewhere"


def describe(lock: dict[str, Any]) -> str:
    """Who holds a lock, in words: "anna (agent reviewer, in claude-code 2.1) on lab-2 since 2025-01-12 10:30"."""
    name = said_of(lock, str)
    since = str(lock.get("timestamp") or "an unknown time").replace("T", " ")[:16] + " UTC"
    return f"{lock.get('user') or 'somebody'}{name} on {lock.get('host') or 'an unknown host'} since {since}"


def said_of(lock: dict[str, Any], word: Callable[[str], str]) -> str:
    """What a lock says of its holder besides the user, in brackets; empty when that is nothing.

    Args:
        lock: The lock.
        word: Makes a text fit to be shown.
    """
    known = {"": lock.get("name"), "agent ": lock.get("agent"), "in ": lock.get("client")}
    said = ", ".join(what + word(str(value)) for what, value in known.items() if value)
    return f" ({said})" if said else ""


def admit(
    id: str, lock: dict[str, Any] | None, identity: Identity, *, held: bool, state: Callable[[dict[str, Any]], str]
) -> dict[str, Any] | None:
    """Let `identity` write the conversation `id`, or say why not.

    Args:
        id: The conversation.
        lock: Its lock as it stands in the capsule, when active; else None.
        identity: Who wants to write.
        held: Whether that instance took the lock, as far as it knows.
        state: As `state_of`, for this store.

    Returns:
        None, or the orphaned lock that this write takes over.

    Raises:
        Locked: Another instance holds it.
        LockLost: This instance held it, and doesn't any more.
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
    found = state(lock)
    if found == "orphaned":
        return lock
    raise Locked(
        f"conversation {id} is locked by {describe(lock)}",
        remedy=Remedy("unlock", id),
        id=id,
        holder=lock,
    )
