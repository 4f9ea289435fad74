"""Keep leases as rows that expire by the clock of the database unless their holder renews them.

What must stay true: a holder that stalls loses its leases. Its later writes are refused, as their
fencing number is no longer the one in the row. Only the clock of the database counts. A forked
child has no leases.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import orjson

from capsule import timestamps
from capsule.engines.interface import Lease, is_instance
from capsule.engines.postgres.writing import lost
from capsule.errors import CapsuleError, StoreBusy
from capsule.ids import check_id
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase

#: How long a lease lasts, and how often it is renewed, in seconds; how often a name is asked for
#: that another has.
TTL_S, RENEW_S, _ASK_S = 15.0, 4.0, 0.05
#: A holder draws its fencing number when it has the lock of the row: a number that is drawn before
#: could be below the number of a holder that came and went meanwhile.
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
#: The row of a released lease stays, as a lock for those who take it at the same time. Its new
#: number says that nobody holds it.
_RELEASE = """
    UPDATE @leases SET holder = NULL, expires = '-infinity', fence = @in_timeline(nextval('@fences'))
    WHERE name = %s AND holder = %s
"""
#: The name of an instance is never taken by another one.
_FORGET = "DELETE FROM @leases WHERE name = %s AND holder = %s"


class PostgresLeases:
    """The leases of one store, with those of this process. `Leases` describes the methods."""

    boot_id = ""  # The database frees the leases of the dead.

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database
        self._begin()
        call_in_child(self, PostgresLeases._begin)

    def _begin(self) -> None:
        self._holder = uuid4()
        self._guard = threading.Lock()
        self._held: dict[str, Lease] = {}
        self._instances: set[str] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def acquire(
        self, name: str, details: Mapping[str, Any] | None = None, timeout_s: float | None = 0.0
    ) -> Lease:
        """Costs a round trip, and while another has it one each 50 ms."""
        check_id(name)
        mine = is_instance(name)
        values = {
            "name": name,
            "holder": self._holder,
            "ttl": TTL_S,
            "who": f"process {os.getpid()} on {os.uname().nodename}",
            "about": None if details is None else orjson.dumps(dict(details)).decode(),
            "mine": mine,
            "again": False,
        }
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            rows = self._database.write(_TAKE, named=values, what="the lease")
            if rows:
                break
            if deadline is not None and time.monotonic() >= deadline:
                who = self._database.one("SELECT who FROM @leases WHERE name = %s", name)
                holder = who[0] if who else "another process"
                raise StoreBusy(f"{name} is held by {holder}", id=name, holder=holder)
            time.sleep(_ASK_S)
        lease = Lease(self, name, rows[0][0])
        with self._guard:
            if mine:
                self._instances.add(name)
            else:
                self._held[name] = lease
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._renew, name="capsule-leases", daemon=True
                )
                self._thread.start()
        return lease

    def _renew(self) -> None:
        """Renew what is held, also what expired meanwhile, as the row says so if another had it."""
        stop, holder = self._stop, self._holder
        while not stop.wait(RENEW_S):
            with suppress(CapsuleError):
                self._database.write(
                    "UPDATE @leases SET expires = clock_timestamp() + %s * interval '1 second' "
                    "WHERE holder = %s",
                    TTL_S,
                    holder,
                )
                self._announce_again()

    def _announce_again(self) -> None:
        """An instance has its own name for as long as it lives, even after a stall."""
        with self._guard:
            instances = [*self._instances]
        statement = "SELECT name FROM @leases WHERE holder = %s AND expires > clock_timestamp()"
        rows = self._database.read(statement, self._holder)
        for name in {*instances} - {row[0] for row in rows}:
            self.acquire(name)

    def ensure_held(self, lease: Lease) -> None:
        """Raise StoreBusy if a lease was released, or taken over; one that only expired is renewed
        soon.
        """
        statement = "SELECT 1 FROM @leases WHERE name = %s AND fence = %s"
        if self._database.one(statement, lease.name, lease.fence) is None:
            raise lost(lease.name)

    def release(self, name: str) -> None:
        with self._guard:
            known = name in self._instances or name in self._held
            self._instances.discard(name)
            self._held.pop(name, None)
        if known:
            statement = _FORGET if is_instance(name) else _RELEASE
            self._database.write(statement, name, self._holder)

    def live_instances(self) -> dict[str, dict[str, Any]]:
        rows = self._database.read(
            "SELECT name, about FROM @leases WHERE expires > clock_timestamp() ORDER BY fence"
        )
        return {name: orjson.loads(details) for name, details in rows if is_instance(name)}

    def is_live(self, instance: str, host: str | None = None, boot_id: str = "") -> bool | None:
        """Costs a round trip, whatever the host: all of them have their leases here."""
        statement = "SELECT 1 FROM @leases WHERE name = %s AND expires > clock_timestamp()"
        return self._database.one(statement, instance) is not None

    def record_heartbeat(self, session: str) -> None:
        self._database.write(
            "INSERT INTO @beats VALUES (%s, clock_timestamp()) ON CONFLICT (session) DO UPDATE "
            "SET at = excluded.at",
            check_id(session),
        )

    def last_heartbeat(self, session: str) -> str | None:
        """By the clock of this machine, to be compared with it, as the clocks of others may be
        wrong.
        """
        statement = (
            "SELECT (extract(epoch FROM clock_timestamp() - at) * 1000)::bigint FROM "
            "@beats WHERE session = %s"
        )
        row = self._database.one(statement, check_id(session))
        return timestamps.from_ms(time.time_ns() // 1_000_000 - row[0]) if row else None

    def close(self) -> None:
        """Release what this process holds."""
        with self._guard:
            held, thread, self._thread = [*self._held, *self._instances], self._thread, None
            self._stop.set()
            self._stop = threading.Event()
        if thread is not None:
            thread.join()
        for name in held:
            with suppress(CapsuleError):
                self.release(name)
