"""Commits the writes of several threads of a process together.

A thread that writes while no other does sends its write alone, and a plain append by the function
that costs least (`append` in `schema.sql`). While two threads wait for the database, the others put
their writes into a queue. The next thread that is done hands the queue to the first one in it, which
sends them all: one round trip and one flush of the log for all.

What must stay true:
- A write is acknowledged after the commit that has it.
- A write of a group that is refused does not change the others. If the group fails as a whole, each
  thread sends its own write again. The database recognizes it by its id.
- A group waits for no lock, as one document would hold up the writes of all others: a write whose
  locks are taken is sent again by its thread, alone. All locks are taken before the transaction gets
  its number (see `schema.sql`).
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import orjson

from capsule.errors import CapsuleError, StorageFailed
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase
    from capsule.engines.postgres.layout import RowState

_APPEND = (
    "SELECT * FROM @append(%(again)s, %(kind)s, %(id)s, %(write)s::uuid, %(tag)s, %(version)s,"
    " %(exact)s, %(active)s, %(message)s::bytea, %(body)s, %(time)s, %(stamp)s, %(ends_active)s,"
    " %(event)s, %(told)s)"
)
SAVE = "SELECT @save(%(write)s, %(again)s, %(data)s, %(trash)s)"
_SAVE_EACH = "SELECT @save_each(%(writes)s, %(locks)s, %(again)s)"
#: The number of threads that write at once. Two, so that a write that waits for the lock of its
#: document does not hold up the groups.
_MAX_WRITING = 2
#: The number of writes in a group, and the size of a write that can be in one, in characters.
_MAX_WRITES = 32
_MAX_SIZE = 1 << 16


class PendingWrite:
    """A write that `GroupCommit.save` sends.

    Args:
        fields: The write, as `DocumentWrite` and the type `writing` in `schema.sql` describe it.
        base: The state that a plain append follows. None: it is no plain append.

    Attributes:
        result: The answer of the function `save`. None: not yet, or not by the thread that wrote the
            group.
        error: The error if it is unknown whether the group is stored.
        was_sent: Whether it may be stored already.
        group: The writes that the thread of this one has to send, if it is its turn.
    """

    def __init__(self, fields: dict[str, Any], base: RowState | None) -> None:
        self.fields = fields
        self.base = base
        self.result: list[Any] | None = None
        self.error: CapsuleError | None = None
        self.was_sent = False
        self.group: list[PendingWrite] = []
        self._answer = threading.Lock()
        self._answer.acquire()

    @property
    def can_be_grouped(self) -> bool:
        """Whether the write is small, so that it does not hold up others."""
        texts = (*self.fields.get("bodies", ()), self.fields.get("rest") or "")
        return sum(map(len, texts)) <= _MAX_SIZE

    @property
    def locks(self) -> list[tuple[str, str, bool]]:
        """The kind and id of each document to lock, and whether others may share the lock."""
        fields = self.fields
        shared = zip(fields.get("kinds", ()), fields.get("ids", ()), strict=True)
        return [(fields["kind"], fields["id"], False), *((kind, id, True) for kind, id in shared)]

    def wait(self) -> None:
        """Wait until another thread has sent the write, or it is the turn of this thread."""
        self._answer.acquire()

    def wake(self) -> None:
        """End the wait."""
        self._answer.release()


class GroupCommit:
    """Sends the writes of all threads of this process.

    Args:
        database: The database.
    """

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._reset_after_fork()
        call_in_child(self, GroupCommit._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._thread_lock = threading.Lock()
        self._writing = 0
        self._queue: list[PendingWrite] = []

    def save(self, write: PendingWrite) -> list[Any]:
        """Send a write, alone or with those of other threads, and return the answer of `save`.

        Raises StorageFailed, whose message tells whether the write is stored; Refused, InvalidInput.
        """
        if not write.can_be_grouped:
            return self._save_alone(write)
        with self._thread_lock:
            is_first = self._writing == 0
            if self._writing < _MAX_WRITING:
                self._writing += 1
                write.group = [write]
            else:
                self._queue.append(write)
        if not write.group:
            write.wait()
        if write.group:
            try:
                if is_first:
                    write.result = self._save_alone(write)
                else:
                    self._save_group(write.group)
            finally:
                self._pass_turn_on()
        if write.error is not None:
            raise write.error
        return write.result or self._save_alone(write)

    def _pass_turn_on(self) -> None:
        """Let the first thread in the queue write all that are in it."""
        with self._thread_lock:
            group = self._queue[:_MAX_WRITES]
            del self._queue[:_MAX_WRITES]
            if not group:
                self._writing -= 1
                return
        group[0].group = group
        group[0].wake()

    def _save_group(self, group: list[PendingWrite]) -> None:
        """Send the writes of a group, and wake their threads. The first one is this thread's own."""
        locks = []
        for number, write in enumerate(group):
            locks += [(number, *lock) for lock in write.locks]
        values = {
            "writes": orjson.dumps([write.fields for write in group]).decode(),
            "locks": orjson.dumps(locks).decode(),
            "again": False,
        }
        rows: list[tuple[Any, ...]] = []
        error: CapsuleError | None = None
        try:
            rows = self._database.write(_SAVE_EACH, named=values)
        except StorageFailed as failure:
            error = failure
        except CapsuleError:
            pass  # Because of one of them: each thread finds out whether it is its own.
        finally:
            for number, write in enumerate(group):
                write.error = error
                write.was_sent = True
                if rows:
                    _set_result(write, orjson.loads(rows[number][0]))
            for write in group[1:]:
                write.wake()

    def _save_alone(self, write: PendingWrite) -> list[Any]:
        """Send one write, which may wait for the locks that it needs."""
        if write.base is not None and not write.was_sent:
            appended = self._append(write, write.base)
            if appended is not None:
                return appended
        values = {
            "write": orjson.dumps(write.fields).decode(),
            "again": write.was_sent,
            "data": None,
            "trash": None,
        }
        ((row,),) = self._database.write(SAVE, named=values)
        result: list[Any] = orjson.loads(row)
        return result

    def _append(self, write: PendingWrite, base: RowState) -> list[Any] | None:
        """Send a plain append. None: it takes more than that, so nothing was written."""
        fields = write.fields
        values = {
            "again": False,
            "kind": fields["kind"],
            "id": fields["id"],
            "write": fields["write"],
            "tag": fields["tag"],
            "version": fields["version"],
            "exact": fields["exact"],
            "active": fields["active"],
            "message": fields["messages"][0],
            "body": fields["bodies"][0],
            "time": fields["time"],
            "stamp": fields["stamp"],
            "ends_active": fields["ends_active"],
            "event": fields["events"][0],
            "told": fields["told"][0],
        }
        ((was_sent, version, entries, size),) = self._database.write(_APPEND, named=values)
        if version is None:
            write.was_sent = was_sent
            return None
        newest = max(base.newest, fields["stamp"])
        time = max(base.time, fields["time"])
        columns = (version, base.tag, base.era, entries, size, fields["stamp"], newest, time)
        return ["ok", *columns, fields["ends_active"], None]


def _set_result(write: PendingWrite, result: list[Any]) -> None:
    """Keep the answer to a write of a group, unless its locks were taken: then it was not sent."""
    if result[0] == "busy":
        write.was_sent = result[1]
    else:
        write.result = result
