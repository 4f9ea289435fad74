"""Runs statements on a database: keeps the connections, tries again, and translates the errors.

Each statement takes an idle connection, or opens one, and gives it back. If the connection is lost,
or the server is busy or starting, the statement is repeated for up to 20 s, with growing pauses. The
first connection of a process is retried only if the server is starting, so that a command reports
the reason of the database at once.

psycopg_pool is not used: it connects in threads, so a failed command would have to wait for its
timeout, and a forked child could not start over.

What must stay true:
- Each statement is a transaction of its own, so no lock is held while Python code runs.
- Repeating is safe: a query changes nothing, and a function that writes recognizes by an id what it
  wrote before. The error of a write tells whether the write is stored.
- No state of a session is used, so the server can be behind a pooler in transaction mode. Behind a
  pooler, no statements are prepared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.engines.postgres.address import Address
from capsule.errors import (
    CapsuleError,
    InvalidInput,
    NotFound,
    Refused,
    Remedy,
    StorageFailed,
    StoreBusy,
)
from capsule.process_forks import call_in_child

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
#: The number of connections of one process. Further threads wait.
_MAX_CONNECTIONS = 16
#: How long a statement is repeated, in seconds.
_PATIENCE_S = 20.0
#: The first pause between two tries, and the longest, in seconds. A pause is twice the one before.
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 1.0
#: Parameters of a connection that the address does not set. With them, a connection to a server that
#: vanished is closed after some seconds.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "capsule",
}
#: Beginnings of the codes of errors that leave unknown whether the statement was done: a lost
#: connection, a server that starts or stops.
_NO_ANSWER = ("08", "57P")
#: Beginnings of the codes of transient errors: those, and a server that became a standby, a session
#: that did nothing for too long in a transaction, a deadlock, too many connections.
_TRANSIENT = (*_NO_ANSWER, "25006", "25P03", "40001", "40P01", "53300")
#: Codes of what a standby refuses: to write, and to tell the position of its log or give a number to
#: a transaction.
_REFUSED_BY_STANDBY = ("25006", "55000")
#: Parts of what libpq says before a session begins, if a server starts, or if each is a standby and
#: the address asks for a primary.
_NOT_READY = ("the database system is", "session is read-only", "server is in hot standby mode")
#: The code of the notice that the wait for a standby was cancelled. The statement succeeds all the
#: same, but a failover can lose it.
_STANDBY_WAIT_CANCELLED = "01000"
#: Codes for a missing table, schema, function or column.
_MISSING = ("42P01", "3F000", "42883", "42703")
#: A statement is prepared when it has run this often on a connection.
_PREPARE_THRESHOLD = 5
#: Codes for a prepared statement that the session lacks, or has already: a pooler has given the
#: connection to another session.
_PREPARED_ELSEWHERE = ("26000", "42P05")


class PostgresDatabase:
    """The database of one store. Several threads may use it.

    Args:
        address: Its address.

    Attributes:
        address: Its address.
        Error: The base class of the driver's errors.
        ensure_version: Called if a table is missing. Raises Refused if the schema has another
            version by now. `schema.meta` sets it.
    """

    def __init__(self, address: Address) -> None:
        try:
            import psycopg
        except ImportError:
            raise Refused(
                "a store in PostgreSQL needs psycopg: pip install "
                "'capsule-conversations[postgres]'",
                path="",
            ) from None
        self._psycopg = psycopg
        self.Error = psycopg.Error
        self.address = address
        self.ensure_version: Callable[[], None] = lambda: None
        self._prefix = f'"{address.schema}".'
        self._statements: dict[str, str] = {}
        self._reset_after_fork()
        call_in_child(self, PostgresDatabase._reset_after_fork)

    def _reset_after_fork(self) -> None:
        """Begin without connections: those of a parent process belong to it."""
        _connections_of_parents.append(getattr(self, "_idle", []))
        #: Connections that are not in use, and since when. The last one is taken first.
        self._idle: list[tuple[psycopg.Connection[Any], float]] = []
        self._free = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        #: Whether there ever was a connection. Before the first one, errors are not retried.
        self._has_connected = False
        self._prepares = True
        self._patience_s = _PATIENCE_S

    def with_schema(self, statement: str) -> str:
        """Return a statement with the name of the schema for each `@`."""
        text = self._statements.get(statement)
        if text is None:
            text = statement.replace("@", self._prefix)
            self._statements[statement] = text
        return text

    # -- Connections -------------------------------------------------------------------------------

    def connect(self) -> psycopg.Connection[Any]:
        """Return a new connection for the caller alone. Raises psycopg.OperationalError."""
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        try:
            parameters = conninfo_to_dict(self.address.conninfo)
        except self._psycopg.ProgrammingError as error:
            reason = self.address.without_password(str(error)).strip()
            raise InvalidInput(
                f"{self.address} is not an address of a database: {reason}"
            ) from None
        defaults = {key: value for key, value in _DEFAULTS.items() if key not in parameters}
        info = make_conninfo(self.address.conninfo, **defaults)
        connection = self._psycopg.connect(info, autocommit=True, prepare_threshold=None)
        # A pooler reports a process id of its own. Behind one, a session may have a prepared
        # statement of the same name from another client.
        reported_pid = (connection.info.backend_pid,)
        if (
            self._prepares
            and connection.execute("SELECT pg_backend_pid()").fetchone() == reported_pid
        ):
            connection.prepare_threshold = _PREPARE_THRESHOLD
        connection.add_notice_handler(lambda notice: _notices.append(notice.sqlstate or ""))
        return connection

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """Lend an idle or a new connection. After a lost one, close all idle ones."""
        with self._free:
            connection = self._take_idle() or self.connect()
            try:
                yield connection
            except self._psycopg.Error as error:
                is_elsewhere = _is_transient(error) or error.sqlstate in _REFUSED_BY_STANDBY
                if connection.closed or connection.broken or is_elsewhere:
                    connection.close()
                    self.close()  # The others go to the same server.
                else:
                    self._idle.append((connection, time.monotonic()))
                raise
            except BaseException:
                connection.close()
                raise
            self._idle.append((connection, time.monotonic()))

    def _take_idle(self) -> psycopg.Connection[Any] | None:
        with suppress(IndexError):
            connection, _ = self._idle.pop()
            return connection
        return None

    @contextmanager
    def without_retries(self) -> Iterator[None]:
        """Try each statement once while the body runs."""
        self._patience_s = 0.0
        try:
            yield
        finally:
            self._patience_s = _PATIENCE_S

    def close(self) -> None:
        """Close the idle connections. A later use of the database opens new ones."""
        while (connection := self._take_idle()) is not None:
            with suppress(self._psycopg.Error):
                connection.close()

    def close_idle(self, duration_s: float) -> bool:
        """Close the connections that were not in use for so long, in seconds.

        Returns whether there are others that are not in use.
        """
        last_s = time.monotonic() - duration_s
        with suppress(self._psycopg.Error, IndexError):
            while self._idle[0][1] < last_s:
                # Another thread may take a connection at the same time, but the last one first.
                connection, _ = self._idle.pop(0)
                connection.close()
        return bool(self._idle)

    @contextmanager
    def transaction(self, begin: str, write_name: str = "") -> Iterator[psycopg.Connection[Any]]:
        """Lend a connection in a transaction. It is committed after the body, or rolled back at an
        error.

        Args:
            begin: The statements that begin the transaction.
            write_name: The name of the write in an error. Empty: nobody depends on the commit.

        Raises psycopg.Error, and StorageFailed if the wait for a standby was cancelled.
        """
        with self._connection() as connection:
            connection.execute(begin)
            try:
                yield connection
            except BaseException:
                with suppress(self._psycopg.Error):  # A lost connection has rolled it back.
                    connection.execute("ROLLBACK")
                raise
            _notices.clear()
            connection.execute("COMMIT")
        if write_name:
            self._ensure_standby_has_it(write_name)

    def _ensure_standby_has_it(self, write_name: str) -> None:
        """Raise StorageFailed if the statement that this thread ran did not wait for a standby."""
        if _STANDBY_WAIT_CANCELLED in _notices:
            outcome = _write_outcome(write_name, is_unknown=True)
            raise self.unreachable(None, f"the wait for the standby was cancelled; {outcome}")

    def is_transient(self, error: Exception) -> bool:
        """Return whether an error may pass: a lost connection, a busy server, a deadlock."""
        return isinstance(error, self._psycopg.Error) and _is_transient(error)

    def retry(self, operation: Callable[[], T], write_name: str = "") -> T:
        """Return the result of `operation`, which is repeated if a connection is lost.

        Args:
            operation: The operation.
            write_name: The name of a write in errors, if the operation finds out whether that write
                is stored.

        Raises StorageFailed, Refused, NotFound.
        """
        deadline = time.monotonic() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return operation()
            except UnicodeEncodeError as error:
                raise self.translated_error(error) from None
            except self._psycopg.Error as error:
                if error.sqlstate in _PREPARED_ELSEWHERE and self._prepares:
                    self._prepares = False
                    self.close()
                    continue
                is_standby = self._is_of_standby(error)
                if not is_standby and not _is_transient(error):
                    raise self.translated_error(error) from None
                if time.monotonic() > deadline:
                    outcome = _write_outcome(write_name, is_unknown=True)
                    raise self.unreachable(error, outcome, is_standby=is_standby) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    # -- Statements --------------------------------------------------------------------------------

    def read(self, statement: str, *values: Any, named: Mapping[str, Any] | None = None) -> Rows:
        """Return the rows of a query. `named` are its values by name, instead of `values`.

        Raises StorageFailed, Refused. Cost: one round trip.
        """
        return self._run(statement, values if named is None else named, "")

    def first_row(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        """Return the first row of a query, or None."""
        return next(iter(self.read(statement, *values)), None)

    def write(
        self,
        statement: str,
        *values: Any,
        named: dict[str, Any] | None = None,
        write_name: str = "the write",
    ) -> Rows:
        """Run a statement that writes, and return its rows.

        Args:
            statement: The statement, which may be run twice: it recognizes by an id that it was run
                before, or changes nothing the second time.
            values: Its values.
            named: Its values by name, instead of `values`. If they have `again`, it becomes true
                when the statement is repeated.
            write_name: The name of the write in an error.

        Raises StorageFailed, whose message tells whether the write is stored, and Refused.
        """
        return self._run(statement, values if named is None else named, write_name)

    def _run(self, statement: str, values: Any, write_name: str) -> Rows:
        """Run a statement, and repeat it while it fails for a reason that may pass.

        `write_name` is the name of the write in errors, and empty for a query.
        """
        text = self.with_schema(statement)
        deadline = time.monotonic() + self._patience_s
        pause_s = _FIRST_PAUSE_S
        is_unknown = False
        while True:
            is_sent = False
            try:
                with self._connection() as connection:
                    is_sent = True
                    self._has_connected = True
                    _notices.clear()
                    cursor = connection.execute(text, values or None, binary=True)
                    # `rownumber` is None without a result. `description` would create objects.
                    rows = [] if cursor.rownumber is None else cursor.fetchall()
                if write_name:
                    self._ensure_standby_has_it(write_name)
                return rows
            except UnicodeEncodeError as error:
                raise self.translated_error(error) from None
            except self._psycopg.Error as error:
                # In this case the server has not run the statement.
                if error.sqlstate in _PREPARED_ELSEWHERE and self._prepares:
                    self._prepares = False
                    self.close()
                    continue
                is_standby = self._is_of_standby(error)
                if not is_standby and not _is_transient(error):
                    raise self.translated_error(error) from None
                has_answer = error.sqlstate and not error.sqlstate.startswith(_NO_ANSWER)
                is_unknown = is_unknown or (is_sent and not has_answer)
                is_retried = self._has_connected or any(text in str(error) for text in _NOT_READY)
                if time.monotonic() > deadline or not is_retried:
                    outcome = _write_outcome(write_name, is_unknown=is_unknown)
                    raise self.unreachable(error, outcome, is_standby=is_standby) from None
            if is_unknown and isinstance(values, dict) and "again" in values:
                values = values | {"again": True}
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _is_of_standby(self, error: psycopg.Error) -> bool:
        """Return whether a statement failed because the server is a standby.

        Cost: a connection, for an error that a standby can cause.
        """
        if error.sqlstate not in _REFUSED_BY_STANDBY:
            return False
        with suppress(self._psycopg.Error), closing(self.connect()) as connection:
            return connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
        return False

    def unreachable(
        self, error: Exception | None, outcome: str = "", *, is_standby: bool = False
    ) -> StorageFailed:
        """Return the error for a database that can't be reached, or did not run a statement."""
        reason = ""
        if is_standby:
            reason = (
                "this is a standby, which can't be written; give the hosts of all servers, and "
                "target_session_attrs=read-write"
            )
        elif error is not None:
            reason = self.address.without_password(" ".join(str(error).split()))
        explanation = "; ".join(text for text in (reason, outcome) if text)
        return StorageFailed(f"{self.address}: {explanation}", path=str(self.address), errno=None)

    def translated_error(self, error: Exception) -> CapsuleError:
        """Return the error for a statement that fails each time it is run."""
        state = getattr(error, "sqlstate", None) or ""
        if not state and isinstance(error, (self._psycopg.DataError, UnicodeEncodeError)):
            return InvalidInput("a NUL, or half a character (a lone surrogate), cannot be stored")
        reason = self.address.without_password(" ".join(str(error).split()))
        if state == "42501" or state.startswith("28"):
            return Refused(f"{self.address}: {reason}", path=str(self.address))
        if state == "55P03":
            holder = "another process"
            return StoreBusy(
                f"{self.address}: {holder} takes too long to bring the index up to date",
                id="",
                holder=holder,
            )
        if state in _MISSING:
            self.ensure_version()  # Another process may have migrated the schema.
            explanation = "there is no store, or one of another version"
            remedy = Remedy("init", str(self.address))
            return NotFound(
                f"{self.address}: {explanation} ({reason})", remedy=remedy, id=str(self.address)
            )
        return StorageFailed(f"{self.address}: {reason}", path=str(self.address), errno=None)


class _ThreadNotices(threading.local):
    """The codes of the notices of the statement that this thread runs."""

    def __init__(self) -> None:
        self._states: list[str] = []

    def append(self, state: str) -> None:
        self._states.append(state)

    def clear(self) -> None:
        self._states.clear()

    def __contains__(self, state: str) -> bool:
        return state in self._states


_notices = _ThreadNotices()
#: Connections of a parent process. They are kept here, as their finalizers would end its sessions.
_connections_of_parents: list[list[Any]] = []


def _is_transient(error: psycopg.Error) -> bool:
    import psycopg

    if error.sqlstate:
        return error.sqlstate.startswith(_TRANSIENT)
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


def _write_outcome(write_name: str, *, is_unknown: bool) -> str:
    """Describe whether a write that failed is stored. Empty for a query."""
    if not write_name:
        return ""
    if is_unknown:
        return f"it is unknown whether {write_name} is stored: check before you repeat it"
    return f"{write_name} is not stored"
