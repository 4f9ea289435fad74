"""Leases in a database: rows that expire by its clock unless their holder renews them.

A lease is a name that one process holds, for example the name of an instance of the program. Its row
has the holder (a random id of the process), the time at which it expires, and a fencing number,
which a new holder increases. A thread of each process with leases renews all of them every few
seconds.

What must stay true: a holder that stalls loses its leases. Its later writes are refused, because
they carry a fencing number that is no longer in the row. Only the clock of the database decides. A
forked child holds no lease.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from capsule import timestamps
from capsule.engines.interface import Lease, is_instance
from capsule.engines.postgres.writing import lease_lost
from capsule.errors import CapsuleError, StoreBusy
from capsule.ids import check_id
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase

#: How long a lease lasts, in seconds, and how often it is renewed.
TTL_S = 15.0
RENEW_S = 4.0
#: Renews the leases of some holders.
RENEW = (
    "UPDATE @leases SET expires = clock_timestamp() + %s * interval '1 second' "
    "WHERE holder = ANY (%s::uuid[]) RETURNING holder::text, name"
)
#: The pause between two tries to take a lease that another process holds, in seconds.
_RETRY_S = 0.05
#: Takes a lease, or renews it. A new fencing number is drawn when the row is locked: a number that
#: was drawn earlier could be below the number of another process that held the lease meanwhile.
#: `mine`: the name is one of an instance, which its process keeps with the same number. `again`: the
#: statement is repeated because an answer was lost.
_TAKE = """
    INSERT INTO @leases AS l (name, holder, fence, expires, who, about)
    VALUES (
        %(name)s,
        %(holder)s,
        @in_timeline(nextval('@fences')),
        clock_timestamp() + %(ttl)s * interval '1 second',
        %(who)s,
        coalesce(%(about)s, '{}')
    )
    ON CONFLICT (name) DO UPDATE SET
        holder = excluded.holder,
        who = excluded.who,
        expires = clock_timestamp() + %(ttl)s * interval '1 second',
        fence = CASE
            WHEN %(mine)s AND l.holder = excluded.holder THEN l.fence
            ELSE @in_timeline(nextval('@fences'))
        END,
        about = coalesce(
            %(about)s, CASE WHEN l.holder = excluded.holder THEN l.about ELSE '{}' END
        )
    WHERE l.expires < clock_timestamp()
        OR (l.holder = excluded.holder AND (%(mine)s OR %(again)s))
    RETURNING fence
"""
#: The row of a released lease stays: processes that take the lease at the same time lock it. With
#: the new fencing number, writes of the former holder are refused.
_RELEASE = """
    UPDATE @leases SET holder = NULL, expires = '-infinity', fence = @in_timeline(nextval('@fences'))
    WHERE name = %s AND holder = %s
"""
#: Deletes the row of an instance: no other process ever takes this name.
_DELETE = "DELETE FROM @leases WHERE name = %s AND holder = %s"


class PostgresLeases:
    """The leases of one store. See `Leases`, which describes the methods.

    The object also remembers the leases that this process holds.

    Args:
        database: The database.
        renew_by_hub: Has another process of this machine renew all leases of a holder, and returns
            their names. None: this process must do it.
    """

    boot_id = ""  # Leases of processes that ended expire, so nobody compares boots.

    def __init__(
        self,
        database: PostgresDatabase,
        renew_by_hub: Callable[[str], set[str] | None] = lambda _: None,
    ) -> None:
        self._database = database
        self._renew_by_hub = renew_by_hub
        self._reset_after_fork()
        call_in_child(self, PostgresLeases._reset_after_fork)

    def _reset_after_fork(self) -> None:
        self._holder = uuid4()
        self._thread_lock = threading.Lock()
        self._leases: dict[str, Lease] = {}
        self._instances: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(
        self, name: str, details: Mapping[str, Any] | None = None, timeout_s: float | None = 0.0
    ) -> Lease:
        """Cost: a round trip, and one more every 50 ms while another process holds the lease."""
        check_id(name)
        names_instance = is_instance(name)
        values = {
            "name": name,
            "holder": self._holder,
            "ttl": TTL_S,
            "who": f"process {os.getpid()} on {os.uname().nodename}",
            "about": None if details is None else orjson.dumps(dict(details)).decode(),
            "mine": names_instance,
            "again": False,
        }
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            rows = self._database.write(_TAKE, named=values, write_name="the lease")
            if rows:
                break
            if deadline is not None and time.monotonic() >= deadline:
                row = self._database.first_row("SELECT who FROM @leases WHERE name = %s", name)
                holder = row[0] if row else "another process"
                raise StoreBusy(f"{name} is held by {holder}", id=name, holder=holder)
            time.sleep(_RETRY_S)
        lease = Lease(self, name, rows[0][0])
        with self._thread_lock:
            if names_instance:
                self._instances.add(name)
            else:
                self._leases[name] = lease
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew, name="capsule-leases", daemon=True
                )
                self._thread.start()
        return lease

    def _renew(self) -> None:
        """Renew all leases of this process until `close`.

        An expired lease is renewed too: if another process took it over, its row has another holder.
        """
        stop = self._stop
        holder = self._holder
        while not stop.wait(RENEW_S):
            with self._thread_lock:
                instances = {*self._instances}
            with suppress(CapsuleError):
                renewed = self._renew_by_hub(str(holder))
                if renewed is None:
                    rows = self._database.write(RENEW, TTL_S, [str(holder)])
                    renewed = {name for _, name in rows}
                # Their leases expired during a stall.
                for name in instances - renewed:
                    self._acquire_again(name)

    def _acquire_again(self, name: str) -> None:
        with self._thread_lock:
            is_wanted = name in self._instances
        if is_wanted:
            self.acquire(name)

    def ensure_held(self, lease: Lease) -> None:
        """Raise StoreBusy if a lease was released or taken over.

        A lease that only expired passes, since the thread renews it soon.
        """
        statement = "SELECT 1 FROM @leases WHERE name = %s AND fence = %s"
        if self._database.first_row(statement, lease.name, lease.fence) is None:
            raise lease_lost(lease.name)

    def release(self, name: str) -> None:
        with self._thread_lock:
            was_held = name in self._instances or name in self._leases
            self._instances.discard(name)
            self._leases.pop(name, None)
        if was_held:
            statement = _DELETE if is_instance(name) else _RELEASE
            self._database.write(statement, name, self._holder)

    def live_instances(self) -> dict[str, dict[str, Any]]:
        rows = self._database.read(
            "SELECT name, about FROM @leases WHERE expires > clock_timestamp() ORDER BY fence"
        )
        return {name: orjson.loads(details) for name, details in rows if is_instance(name)}

    def is_live(self, instance: str, host: str | None = None, boot_id: str = "") -> bool | None:
        """Cost: a round trip. The host does not matter: all hosts have their leases in the database."""
        statement = "SELECT 1 FROM @leases WHERE name = %s AND expires > clock_timestamp()"
        return self._database.first_row(statement, instance) is not None

    def record_heartbeat(self, session: str) -> None:
        self._database.write(
            "INSERT INTO @beats VALUES (%s, clock_timestamp()) ON CONFLICT (session) DO UPDATE "
            "SET at = excluded.at",
            check_id(session),
        )

    def last_heartbeat(self, session: str) -> str | None:
        """Return the time by the clock of this machine, since callers compare it with this clock."""
        statement = (
            "SELECT (extract(epoch FROM clock_timestamp() - at) * 1000)::bigint FROM "
            "@beats WHERE session = %s"
        )
        row = self._database.first_row(statement, check_id(session))
        return timestamps.from_ms(time.time_ns() // 1_000_000 - row[0]) if row else None

    def close(self) -> None:
        """Release all leases of this process."""
        with self._thread_lock:
            names = [*self._leases, *self._instances]
            thread = self._thread
            self._thread = None
            self._stop.set()
            self._stop = threading.Event()
        if thread is not None:
            thread.join()
        for name in names:
            with suppress(CapsuleError):
                self.release(name)
