"""Locks one document for a whole decision, so that no other writer comes first.

A write is usually decided on a version that it has read, and done if nobody else has written
meanwhile. If others append all the time, such a write may be refused again and again. So after some
tries the writer takes the lock of the document first, and decides under it. This is the lock that
every write takes (`lock` in `schema.sql`), held in a transaction of a connection of its own.

What must stay true: the first write commits the transaction, and so releases the lock. Until then
nothing is written. If the answer to the commit is lost, the rows of the feed tell whether it
happened. The server ends the session of a process that stops while it holds the lock.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from capsule.errors import ConcurrentWrite, StoreBusy

if TYPE_CHECKING:
    import psycopg

    from capsule.engines.postgres.database import PostgresDatabase, Rows

#: How long a process may do nothing while it holds a lock, in seconds.
_MAX_IDLE_S = 30
_BEGIN = (
    "BEGIN; SET LOCAL lock_timeout = '{:.0f}ms';"
    f" SET LOCAL idle_in_transaction_session_timeout = '{_MAX_IDLE_S}s'"
)
_LOCK = "SELECT pg_advisory_xact_lock(@key(%s, %s))"
#: The code of a lock that was not released in time.
_LOCK_TIMEOUT = "55P03"
#: A row that this transaction has added to the feed. The number of a transaction alone is used again
#: after the promotion of a standby that lacks it.
_OWN_CHANGE = "SELECT xid::text, place FROM @changes WHERE xid = pg_current_xact_id() LIMIT 1"
_IS_STORED = "SELECT EXISTS (SELECT FROM @changes WHERE xid = %s::text::xid8 AND place = %s)"


class DocumentLock:
    """The lock of one document, which `lock_document` returns.

    Attributes:
        is_held: Whether nothing was written yet. The first write releases the lock.
    """

    def __init__(
        self, database: PostgresDatabase, kind: str, id: str, stack: ExitStack, connection: Any
    ) -> None:
        self.is_held = True
        self._database = database
        self._key = kind, id
        self._stack = stack
        self._connection: psycopg.Connection[Any] = connection

    def write(self, statement: str, named: dict[str, Any], write_name: str) -> Rows:
        """Run a statement that writes, commit, and release the lock.

        Args:
            statement: The statement, with `@` before names of the schema. It is run once.
            named: Its values by name.
            write_name: The name of the write in an error.

        Returns its rows.

        Raises:
            ConcurrentWrite: Nothing was written, because the connection was lost: decide again.
            StorageFailed: It is unknown whether the write is stored.
        """
        self.is_held = False
        own_change: Rows = []
        is_committing = False
        try:
            with self._stack:
                rows = self._run(statement, named)
                own_change = self._run(_OWN_CHANGE)
                is_committing = True
        except Exception as error:
            if not self._database.is_transient(error):
                raise
            if not is_committing or not self._is_stored(own_change, write_name):
                raise ConcurrentWrite from None
        return rows

    def _run(self, statement: str, named: dict[str, Any] | None = None) -> Rows:
        """Run a statement in the transaction. Raises ConcurrentWrite if the transaction was lost."""
        database = self._database
        try:
            text = database.with_schema(statement)
            # Not prepared: a pooler may give each transaction to another session.
            return self._connection.execute(text, named, prepare=False, binary=True).fetchall()
        except Exception as error:
            if database.is_transient(error):
                raise ConcurrentWrite from None
            raise database.translated_error(error) from None

    def _is_stored(self, own_change: Rows, write_name: str) -> bool:
        """Return whether the transaction was committed, although the answer was lost.

        The session of that transaction may still be committing. It has the lock until then.
        """
        database = self._database
        if not own_change:  # It has written nothing.
            return True

        def is_stored() -> bool:
            with database.transaction("BEGIN") as connection:
                connection.execute(database.with_schema(_LOCK), self._key)
                row = connection.execute(database.with_schema(_IS_STORED), own_change[0]).fetchone()
                return row == (True,)

        return database.retry(is_stored, write_name)


@contextmanager
def lock_document(
    database: PostgresDatabase, kind: str, id: str, timeout_s: float
) -> Iterator[DocumentLock]:
    """Lock a document while the body runs, or until its first write.

    Args:
        database: The database.
        kind, id: The document, which need not exist.
        timeout_s: How long to wait for other writers, in seconds.

    Raises StoreBusy, StorageFailed, Refused, and ConcurrentWrite if the lock was lost. Cost: three
    round trips.
    """
    begin = _BEGIN.format(timeout_s * 1000)

    def lock() -> tuple[ExitStack, psycopg.Connection[Any]]:
        with ExitStack() as stack:
            connection = stack.enter_context(database.transaction(begin, "the write"))
            try:
                connection.execute(database.with_schema(_LOCK), (kind, id))
            except Exception as error:
                if getattr(error, "sqlstate", None) == _LOCK_TIMEOUT:
                    raise _busy(kind, id, timeout_s) from None
                raise
            return stack.pop_all(), connection

    stack, connection = database.retry(lock)
    try:
        with stack:
            yield DocumentLock(database, kind, id, stack, connection)
    except Exception as error:
        if not database.is_transient(error):
            raise
        raise ConcurrentWrite from None  # The lock was lost before anything was written.


def _busy(kind: str, id: str, timeout_s: float) -> StoreBusy:
    holder = "another process"
    reason = f"{kind}/{id}.json has been held by {holder} for more than {timeout_s:g} s"
    return StoreBusy(reason, id=id, holder=holder)
