"""The locks of an open store, as its users take, release and list them.

A lock is a field of a conversation's head that names the instance (an open store of a process) that
alone may write there. `InstanceLocks` takes and releases locks. `rules.locking.lock_state` decides
the state of a lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from capsule.ids import check_id

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.locks.instance_locks import HeldLock, InstanceLocks


@dataclass(frozen=True, slots=True)
class LockState:
    """A lock in a conversation.

    Attributes:
        id, title: The conversation.
        instance: The id of the instance that holds it.
        user, host: The user and the host of the instance.
        name: The name of an instance that outlives its process. None: it has no name.
        since: When its instance last used the lock.
        state: "held": its instance is alive. "orphaned": its instance has ended. If it is not known
            whether the instance is alive: "orphaned" if the lock was not used for the time to live
            (lock.ttl), otherwise "held" on this host and "elsewhere" on another one.
        client: The product name of the program that it was taken for.
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


class Locks:
    """The locks on the conversations of a store."""

    def __init__(
        self, instance_locks: InstanceLocks, list_heads: Callable[[], Iterable[Head]]
    ) -> None:
        self._instance_locks = instance_locks
        self._list_heads = list_heads

    def take(self, id: str, *, client: str | None = None, agent: str | None = None) -> HeldLock:
        """Lock a conversation for this instance. The lock ends with the outermost `with` block,
        `release` or the store's `close`. `release` also ends it inside nested blocks.

        Args:
            id: The conversation.
            client, agent: The program and the agent that the lock names.

        Raises the errors of `append`, and Refused if the store is being closed. Cost: copying the
        file, in the kernel.
        """
        return self._instance_locks.lock(check_id(id), client, agent)

    def release(self, id: str, *, force: bool = False) -> bool:
        """Release a conversation's lock. Nothing else changes: `updatedAt` stays as it is.

        Args:
            id: The conversation.
            force: Release it also if another instance holds it. An orphaned lock of another
                instance is released without it.

        Returns:
            False if there was no lock.

        Raises:
            Locked: Another instance holds it, it is not orphaned, and `force` is not given.
            NotFound, InvalidDocument: There is no such conversation, or its file does not parse.
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused: The agent may not write here.
            Refused, StorageFailed: The system refused a read or a write.

        Cost: copying the file.
        """
        return self._instance_locks.unlock(check_id(id), force=force)

    def state(self, head: Head) -> LockState | None:
        """Say whether the holder of the lock in a head is alive. None: the head has no active lock.

        Args:
            head: A head, as `head` or `heads` gives it.

        Raises nothing. Cost: one test of a kernel lock.
        """
        if not head.lock:
            return None
        lock = head.lock
        return LockState(
            id=head.id,
            title=head.title,
            instance=str(lock.get("instanceId") or ""),
            user=str(lock.get("user") or ""),
            host=str(lock.get("host") or ""),
            name=lock.get("name"),
            since=str(lock.get("timestamp") or ""),
            state=self._instance_locks.state_of(lock),
            client=lock.get("client"),
            agent=lock.get("agent"),
        )

    def list(self) -> Iterator[LockState]:
        """List the active locks, with the state of each holder. Raises StorageFailed, StoreBusy.
        Cost: as `heads`.
        """
        return (state for state in map(self.state, self._list_heads()) if state is not None)
