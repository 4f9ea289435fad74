"""The locks of one instance: take, refresh and release them.

A lock is a field in the head of a conversation. It names the instance, and a leased file shows
whether the instance is alive. This object remembers which conversations its instance has locked,
and how deep `with` blocks are nested. A thread refreshes their times regularly, because another
host can't see the leased file.

What must stay true: the lock in the conversation decides. The memory here only serves to notice
that another instance took it. An instance's file is locked before the first record names it. A
forked child holds no locks. Only its holder refreshes a lock.
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
    """Runs an action on a reconciled conversation under its mutex."""

    def __call__(self, id: str, action: Callable[[Conversation], T]) -> T: ...


class HeldLock:
    """The lock on one conversation, released at the end of a `with` block.

    Attributes:
        id: The conversation.
    """

    id: str

    def __init__(self, instance_locks: InstanceLocks, id: str) -> None:
        self._instance_locks = instance_locks
        self.id = id

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
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
        engine: The engine, which knows the instances that are alive.
        settings: The store's settings.
        run_change: Runs an action on a conversation.
        keep_locks: Whether a write to an exclusive conversation takes a lock that lasts.
        name: The name of an instance that outlives its process. None: the instance has no name.
        user: The user that the locks name. None: the user of this process.

    Attributes:
        identity: This instance.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        run_change: _RunChange,
        *,
        keep_locks: bool,
        name: str | None,
        user: str | None = None,
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._run_change = run_change
        self._keep_locks = keep_locks
        self._name = name
        self._user = user or _user()
        self._begin()
        call_in_child(self, InstanceLocks._begin)

    def _begin(self) -> None:
        """Start without locks. A forked child is a new instance, and calls this again."""
        user = self._user
        host = os.uname().nodename
        instance = new_id() if self._name is None else named_instance_id(user, host, self._name)
        self.identity = InstanceIdentity(instance, user, host, os.getpid(), self._name)
        #: The depth of nested `with` blocks, by the id of each locked conversation. 0: a write took
        #: the lock, and no block.
        self._nesting_by_id: dict[str, int] = {}
        self._is_closed = False
        self._thread_lock = threading.Lock()
        self._close_lock = threading.RLock()
        self._stop = threading.Event()
        self._refresher: threading.Thread | None = None

    def admit(self, conversation: Conversation) -> dict[str, Any] | None:
        """Check that this instance may write.

        Returns the lock to record with the write. None: the lock stays as it is.
        Raises Locked, LockLost.
        """
        head = conversation.transaction.head
        lock = head.lock
        orphan = self._admit_or_take_over(conversation.id, lock)
        if orphan is None and lock is not None:
            # It is this instance's own. A named instance is often a command that ends before its
            # thread refreshes the lock, so its writes refresh it. Not each of them, since that
            # costs a write of the head: a tenth of the lifetime is often enough.
            is_old = self._name is not None and (
                locking.age_s(lock) > self._settings.lock_ttl_s / 10
            )
            return conversation.refreshed_lock() if is_old else None
        new_lock = self.lock_for_new(head.type)
        if new_lock is None and orphan is not None:
            return inactive_lock()  # It takes the place of the orphan.
        return new_lock

    def admit_once(self, conversation: Conversation) -> dict[str, Any] | None:
        """Check as `admit`, for a write that takes no lock."""
        orphan = self._admit_or_take_over(conversation.id, conversation.head.lock)
        return inactive_lock() if orphan else None

    def _admit_or_take_over(self, id: str, lock: dict[str, Any] | None) -> dict[str, Any] | None:
        """Apply the rule `locking.check_writable` to a lock, and log a takeover.

        Returns the orphaned lock of a dead instance, which the write replaces, or None.
        Raises Locked, LockLost.
        """
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
        """Return the lock that a write to a conversation of this type takes, if any."""
        if self._keep_locks and type == locking.EXCLUSIVE:
            return self._take()
        return None

    def _take(self, client: str | None = None, agent: str | None = None) -> dict[str, Any] | None:
        """Return the record of a new lock for this instance. None: after `close`."""
        identity = self.identity
        # Under `_thread_lock`, because an instance that was closed meanwhile must not appear alive.
        with self._thread_lock:
            if self._is_closed:
                return None
            if identity.name is None:
                self._engine.leases.acquire(identity.instance)
        return locking.new_lock(
            identity, timestamps.now(), client, agent, boot=self._engine.leases.boot_id
        )

    def state_of(self, lock: dict[str, Any]) -> str:
        """Return the state of a lock: "held", "orphaned" or "elsewhere". See `LockState`."""
        return locking.lock_state(
            lock, self.identity.host, self._is_live(lock), self._settings.lock_ttl_s
        )

    def _is_live(self, lock: dict[str, Any]) -> bool | None:
        """Ask the engine if the instance that took a lock is alive. None: it does not know."""
        if lock.get("name"):
            return None
        instance = str(lock.get("instanceId"))
        return self._engine.leases.is_live(
            instance, str(lock.get("host")), str(lock.get("boot") or "")
        )

    def remember(self, id: str, lock: dict[str, Any]) -> None:
        """Remember a lock that a write recorded."""
        if not lock["active"]:
            return
        with self._thread_lock:
            self._nesting_by_id.setdefault(id, 0)
        self._keep_refreshed()

    def lock(self, id: str, client: str | None = None, agent: str | None = None) -> HeldLock:
        """See `Store.locks.take`. If `with` blocks are nested, the outermost one releases the
        lock.
        """

        def take_lock(conversation: Conversation) -> None:
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

        self._run_change(id, take_lock)
        with self._thread_lock:
            self._nesting_by_id[id] = self._nesting_by_id.get(id, 0) + 1
        self._keep_refreshed()
        return HeldLock(self, id)

    def leave(self, id: str) -> None:
        """End a `with` block. The outermost one releases the lock."""
        with self._thread_lock:
            depth = self._nesting_by_id.get(id, 0) - 1
            if depth > 0:
                self._nesting_by_id[id] = depth
                return
        try:
            self.unlock(id)
        except Locked as error:
            _log.warning("the lock on %s was taken by another meanwhile: %s", id, error)

    def unlock(self, id: str, *, force: bool = False) -> bool:
        """See `Store.locks.release`."""

        def release_lock(conversation: Conversation) -> bool:
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
            return self._run_change(id, release_lock)
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

    def delete_damaged(self, held_file: HeldFile) -> Trashed:
        """Delete a document that does not parse.

        Raises Locked if its bytes contain the active lock of another instance.
        """
        try:
            content = held_file.read()
        except InvalidDocument:  # It is too large to read, or not a regular file.
            content = None
        lock = locking.lock_in_damaged_file(content.data) if content else None
        self._admit_or_take_over(held_file.id, lock)
        trashed = held_file.delete()
        self._forget(held_file.id)
        return trashed

    def _keep_refreshed(self) -> None:
        """Start the thread that refreshes the locks. It does not keep the process alive."""
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
        def refresh_lock(conversation: Conversation) -> None:
            lock = conversation.head.lock
            if lock is not None and lock.get("instanceId") == self.identity.instance:
                conversation.set_lock(conversation.refreshed_lock())

        self._run_change(id, refresh_lock)

    def is_dead(self, lock: dict[str, Any]) -> bool:
        """Whether the program that took a lock has ended, according to the engine."""
        return self._is_live(lock) is False

    def close(self) -> None:
        """Release the locks of this instance, and take none from now on. A named instance keeps its
        locks.
        """
        with self._thread_lock:
            self._is_closed = True
        with (
            self._close_lock
        ):  # A second caller waits for the first, because it may end the process next.
            with self._thread_lock:
                ids = [] if self._name is not None else list(self._nesting_by_id)
            for id in ids:
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
