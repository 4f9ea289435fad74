"""The locks of one instance: taking, refreshing and releasing them.

What must stay true: the lock in the capsule is the truth; the memory here only serves to notice
that another instance took it. An instance's file is locked before the first record names it. A
forked child holds no locks. Only its holder refreshes a lock, for other hosts, which can't see
whether it is alive.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from capsule import timestamps
from capsule.errors import CapsuleError, InvalidDocument, Locked, LockLost, Refused, Remedy
from capsule.format.documents.creation import inactive_lock
from capsule.ids import named_instance_id, new_id
from capsule.process_forks import call_in_child
from capsule.rules import locking
from capsule.rules.locking import InstanceIdentity

if TYPE_CHECKING:
    from capsule.engines.interface import Engine, HeldFile, Trashed
    from capsule.settings import Settings
    from capsule.store.change.conversation import Conversation


T = TypeVar("T")
_log = logging.getLogger("capsule")


class _RunChange(Protocol):
    """Runs an action on a conversation, settled and under its mutex."""

    def __call__(self, id: str, action: Callable[[Conversation], T]) -> T: ...


class HeldLock:
    """The lock on one conversation, released at the end of a `with` block.

    Attributes:
        id: The conversation.
    """

    id: str

    def __init__(self, holder: InstanceLocks, id: str) -> None:
        self._instance_locks = holder
        self.id = id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        try:
            self._instance_locks.leave(self.id)
        except CapsuleError:
            if error is None:
                raise
            _log.warning("the lock on %s could not be released", self.id)


class InstanceLocks:
    """The locks of one open store.

    Args:
        engine: The engine; it knows which instances are alive.
        settings: The store's settings.
        write: Runs an action on a conversation.
        keep_locks: Whether the lock that a save of an exclusive conversation takes is kept.
        name: The name of an instance that outlives its process; else None.
        user: The user that the locks name; None: the user of this process.

    Attributes:
        identity: This instance.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        write: _RunChange,
        *,
        keep_locks: bool,
        name: str | None,
        user: str | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._run_change = write
        self._keep_locks = keep_locks
        self._name = name
        self._user = user or _user()
        self._begin()
        call_in_child(self, InstanceLocks._begin)

    def _begin(self) -> None:
        """Begin without locks: a forked child is a new instance."""
        user, host = self._user, os.uname().nodename
        instance = new_id() if self._name is None else named_instance_id(user, host, self._name)
        self.identity = InstanceIdentity(instance, user, host, os.getpid(), self._name)
        self._nesting_by_id: dict[str, int] = {}
        self._is_closed = False
        self._thread_lock = threading.Lock()
        self._close_lock = threading.RLock()
        self._stop = threading.Event()
        self._refresher: threading.Thread | None = None

    def admit(self, conversation: Conversation) -> dict[str, Any] | None:
        """Check that this instance may write; the lock to record with the write, if any. Raises
        Locked, LockLost.
        """
        head = conversation.transaction.head
        lock = head.lock
        orphan = self._admit_or_take_over(conversation.id, lock)
        if orphan is None and lock is not None:
            is_stale = (
                self._name is not None and locking.age_s(lock) > self._settings.lock_ttl_s / 10
            )
            return conversation.refreshed_lock() if is_stale else None
        return self.lock_for_new(head.type) or (inactive_lock() if orphan else None)

    def admit_once(self, conversation: Conversation) -> dict[str, Any] | None:
        """As `check_writable`, for a write that takes no lock."""
        return (
            inactive_lock()
            if self._admit_or_take_over(conversation.id, conversation.head.lock)
            else None
        )

    def _admit_or_take_over(self, id: str, lock: dict[str, Any] | None) -> dict[str, Any] | None:
        """As `locking.check_writable`, for this store; a takeover is logged."""
        try:
            orphan = locking.check_writable(
                id,
                lock,
                self.identity,
                remembers_lock=id in self._nesting_by_id,
                state=self.state_of,
            )
        except LockLost:
            self._forget(id)
            raise
        if orphan:
            _log.warning(
                "conversation %s: took over the orphaned lock of %s", id, locking.describe(orphan)
            )
        return orphan

    def lock_for_new(self, type: str) -> dict[str, Any] | None:
        """The lock that a save of a conversation of this type takes."""
        return self._take() if self._keep_locks and type == locking.EXCLUSIVE else None

    def _take(self, client: str | None = None, agent: str | None = None) -> dict[str, Any] | None:
        """The record of a lock for this instance; None after `close`."""
        me = self.identity
        # Under the guard: an instance that was closed meanwhile must not be announced as alive.
        with self._thread_lock:
            if self._is_closed:
                return None
            if me.name is None:
                self._engine.leases.acquire(me.instance)
        return locking.new_lock(
            me, timestamps.now(), client, agent, boot=self._engine.leases.boot_id
        )

    def state_of(self, lock: dict[str, Any]) -> str:
        """As `locking.lock_state`, for this store."""
        return locking.lock_state(
            lock, self.identity.host, self._is_live(lock), self._settings.lock_ttl_s
        )

    def _is_live(self, lock: dict[str, Any]) -> bool | None:
        """Whether the instance that took a lock lives, as the engine says; None:
        it does not know.
        """
        if lock.get("name"):
            return None
        instance = str(lock.get("instanceId"))
        return self._engine.leases.is_live(
            instance, str(lock.get("host")), str(lock.get("boot") or "")
        )

    def remember(self, id: str, lock: dict[str, Any]) -> None:
        """Remember a lock that a save recorded."""
        if not lock["active"]:
            return
        with self._thread_lock:
            self._nesting_by_id.setdefault(id, 0)
        self._keep_refreshed()

    def lock(self, id: str, client: str | None = None, agent: str | None = None) -> HeldLock:
        """See `Store.locks.take`. Locks of one instance nest: the outermost `with` releases the
        lock.
        """

        def act(conversation: Conversation) -> None:
            conversation.ensure_permitted("append")
            conversation.ensure_permitted("lock")
            orphan = self._admit_or_take_over(conversation.id, conversation.head.lock)
            if conversation.head.lock is not None and orphan is None:
                conversation.set_lock(conversation.refreshed_lock())
                return
            record = self._take(client, agent)
            if record is None:
                raise Refused(
                    f"conversation {id} was not locked: this instance is being closed", path=""
                )
            conversation.set_lock(record)

        self._run_change(id, act)
        with self._thread_lock:
            self._nesting_by_id[id] = self._nesting_by_id.get(id, 0) + 1
        self._keep_refreshed()
        return HeldLock(self, id)

    def leave(self, id: str) -> None:
        """Leave a `with` block; the outermost one unlocks."""
        with self._thread_lock:
            left = self._nesting_by_id.get(id, 0) - 1
            if left > 0:
                self._nesting_by_id[id] = left
                return
        try:
            self.unlock(id)
        except Locked as error:
            _log.warning("the lock on %s was taken by another meanwhile: %s", id, error)

    def unlock(self, id: str, *, force: bool = False) -> bool:
        """See `Store.locks.release`."""

        def act(conversation: Conversation) -> bool:
            lock = conversation.head.lock
            is_own = lock is not None and lock.get("instanceId") == self.identity.instance
            if not is_own:
                conversation.ensure_permitted("append")
            if lock is None:
                return False
            if not is_own and not force and self.state_of(lock) != "orphaned":
                raise Locked(
                    f"conversation {id} is locked by {locking.describe(lock)}, not by this "
                    "instance",
                    remedy=Remedy("unlock", id),
                    id=id,
                    holder=lock,
                )
            conversation.set_lock(None)
            return True

        try:
            return self._run_change(id, act)
        finally:
            self._forget(id)

    def _forget(self, id: str) -> None:
        with self._thread_lock:
            self._nesting_by_id.pop(id, None)

    def delete(self, conversation: Conversation) -> Trashed:
        """Delete a conversation, if this instance may write it."""
        self._admit_or_take_over(conversation.id, conversation.head.lock)
        conversation.record_deletion()
        trashed = conversation.transaction.delete()
        self._forget(conversation.id)
        return trashed

    def delete_damaged(self, held: HeldFile) -> Trashed:
        """Delete a document that doesn't parse, unless its bytes contain the lock of another
        instance.
        """
        try:
            got = held.read()
        except InvalidDocument:  # It is too large to read, or no file.
            got = None
        self._admit_or_take_over(held.id, locking.lock_in_damaged_file(got[0]) if got else None)
        trashed = held.delete()
        self._forget(held.id)
        return trashed

    def _keep_refreshed(self) -> None:
        """Refresh the lock of every held conversation from now on, in a thread that does not keep
        the process alive.
        """
        if self._refresher is None:
            self._refresher = threading.Thread(
                target=self._refresh_regularly,
                args=(self._stop,),
                name="capsule-locks",
                daemon=True,
            )
            self._refresher.start()

    def _refresh_regularly(self, stop: threading.Event) -> None:
        while not stop.wait(self._settings.lock_ttl_s / 6):
            for id in list(self._nesting_by_id):
                try:
                    self._refresh(id)
                except CapsuleError as error:  # The next interval tries again.
                    _log.debug("the lock on %s was not refreshed: %s", id, error)

    def _refresh(self, id: str) -> None:
        def act(conversation: Conversation) -> None:
            lock = conversation.head.lock
            if lock is not None and lock.get("instanceId") == self.identity.instance:
                conversation.set_lock(conversation.refreshed_lock())

        self._run_change(id, act)

    def is_dead(self, lock: dict[str, Any]) -> bool:
        """Whether the program that took a lock has ended, according to the engine."""
        return self._is_live(lock) is False

    def close(self) -> None:
        """Release the locks of this instance, and keep none from now on. A named instance keeps its
        locks.
        """
        with self._thread_lock:
            self._is_closed = True
        with (
            self._close_lock
        ):  # A second caller waits for the first, because it may end the process next.
            with self._thread_lock:
                held = [] if self._name is not None else list(self._nesting_by_id)
            for id in held:
                try:
                    self.unlock(id)
                except CapsuleError as error:
                    _log.warning("the lock on %s could not be released: %s", id, error)
        self._stop.set()
        if self._refresher is not None and self._refresher is not threading.current_thread():
            self._refresher.join()


def _user() -> str:
    try:
        import getpass

        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"
