"""Keep the connections to a database, and run one statement at a time on them.

A statement is a transaction of its own, so nothing is locked while Python works. When a connection
is lost, the statement is run again: reading changes nothing, and each function that writes gets an
id by which it recognizes a write that was already done. An error says whether the write was done.

What must stay true: nothing depends on a session, so that a pooler in transaction mode can be in
between. Behind a pooler, no statements are prepared.

The module has few connections without a thread, and does not use psycopg_pool: a command gets its
result or the database's error after one connection, and a forked child starts again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
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
#: Connections of one process; further threads wait.
_MOST = 16
#: For so long a statement is tried again, in seconds; and the pauses in between.
_PATIENCE_S, _FIRST_S, _LONGEST_S = 20.0, 0.02, 1.0
#: Of the connection, where the address says nothing else: a database that is gone without a word is
#: noticed.
_DEFAULTS = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "20000",
    "application_name": "capsule",
}
#: What may be otherwise the next time: a server that starts or stops, one that became a standby, a
#: deadlock.
_PASSING = ("08", "57P", "25006", "40001", "40P01", "53300")
#: A wait for a standby was cancelled: the server says "done" all the same.
_NOT_KNOWN = "01000"
#: A table, the schema, a function or a column is not there.
_MISSING = ("42P01", "3F000", "42883", "42703")
#: After so many times a statement is prepared; and the errors where another session has, or had,
#: the prepared one.
_PREPARED, _UNPREPARED = 5, ("26000", "42P05")


class PostgresDatabase:
    """The database of one store. Several threads may use it.

    Args:
        address: The address.

    Attributes:
        address: The address.
        ensure_version: Raises Refused if the schema has another version. See `schema.meta`.
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
        self.address = address
        self.ensure_version: Callable[[], None] = lambda: None
        self._prefix = f'"{address.schema}".'
        self._texts: dict[str, str] = {}
        self._begin()
        call_in_child(self, PostgresDatabase._begin)

    def _begin(self) -> None:
        """Begin without connections: those of a parent process are its own."""
        _parents.append(getattr(self, "_idle", []))
        self._idle: list[psycopg.Connection[Any]] = []
        self._free = threading.BoundedSemaphore(_MOST)
        #: Whether there ever was a connection: until then the first error is the answer.
        self._was_there = False
        self._prepares = True
        self._patience_s = _PATIENCE_S

    def text(self, statement: str) -> str:
        """A statement in which `@` stands for the schema."""
        text = self._texts.get(statement)
        if text is None:
            text = self._texts[statement] = statement.replace("@", self._prefix)
        return text

    # -- Connections -------------------------------------------------------------------------------

    def connect(self) -> psycopg.Connection[Any]:
        """A new connection, which nobody else uses. Raises psycopg.OperationalError."""
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        try:
            given = conninfo_to_dict(self.address.conninfo)
        except self._psycopg.ProgrammingError as error:
            reason = self.address.without_password(str(error)).strip()
            raise InvalidInput(
                f"{self.address} is not an address of a database: {reason}"
            ) from None
        info = make_conninfo(
            self.address.conninfo, **{key: v for key, v in _DEFAULTS.items() if key not in given}
        )
        connection = self._psycopg.connect(info, autocommit=True, prepare_threshold=None)
        # Behind a pooler, which says another number, a session may have another client's statement
        # of the same name.
        own = (connection.info.backend_pid,)
        if self._prepares and connection.execute("SELECT pg_backend_pid()").fetchone() == own:
            connection.prepare_threshold = _PREPARED
        connection.add_notice_handler(lambda notice: _noticed.append(notice.sqlstate or ""))
        return connection

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        with self._free:
            connection = self._idle.pop() if self._idle else self.connect()
            try:
                yield connection
            except self._psycopg.Error as error:
                if connection.closed or connection.broken or _is_passing(error):
                    connection.close()
                    self.close()  # The others are of the same server.
                else:
                    self._idle.append(connection)
                raise
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)

    @contextmanager
    def hurried(self) -> Iterator[None]:
        """Try each statement once while the body runs."""
        self._patience_s = 0.0
        try:
            yield
        finally:
            self._patience_s = _PATIENCE_S

    def close(self) -> None:
        """Close the connections. Whoever uses the database later opens them anew."""
        while self._idle:
            with suppress(self._psycopg.Error, IndexError):
                self._idle.pop().close()

    @contextmanager
    def transaction(self, begin: str) -> Iterator[psycopg.Connection[Any]]:
        """A connection in a transaction, which is committed at the end of the body, or rolled back
        at an error.

        Args:
            begin: What begins it.
        """
        with self._connection() as connection:
            connection.execute(begin)
            try:
                yield connection
            except BaseException:
                if not connection.broken:
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def trying(self, act: Callable[[], T]) -> T:
        """What `act` gives, which is done again where a connection is lost. Raises StorageFailed,
        Refused, NotFound.
        """
        deadline, pause_s = time.monotonic() + self._patience_s, _FIRST_S
        while True:
            try:
                return act()
            except UnicodeEncodeError as error:
                raise self.error(error) from None
            except self._psycopg.Error as error:
                if error.sqlstate in _UNPREPARED and self._prepares:
                    self._prepares = False
                    self.close()
                    continue
                if not _is_passing(error):
                    raise self.error(error) from None
                if time.monotonic() > deadline:
                    raise self.failed(error) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)

    # -- Statements --------------------------------------------------------------------------------

    def read(self, statement: str, *values: Any) -> Rows:
        """The rows of a query. Raises StorageFailed, Refused. Cost: one round trip."""
        return self._run(statement, values, "")

    def one(self, statement: str, *values: Any) -> tuple[Any, ...] | None:
        """The first row of a query; None: there is none."""
        return next(iter(self.read(statement, *values)), None)

    def write(
        self,
        statement: str,
        *values: Any,
        named: dict[str, Any] | None = None,
        what: str = "the write",
    ) -> Rows:
        """The rows that a statement gives which may be done twice.

        Args:
            statement: It knows by an id that it was done before, or changes nothing the second
                time.
            values: Its values.
            named: Its values by name, in place of `values`; `again` among them says that it was
                tried before.
            what: What it is in an error.

        Raises StorageFailed, which says whether it is there; Refused.
        """
        return self._run(statement, values if named is None else named, what)

    def _run(self, statement: str, values: Any, what: str) -> Rows:
        text, deadline, pause_s = (
            self.text(statement),
            time.monotonic() + self._patience_s,
            _FIRST_S,
        )
        is_sent = False
        while True:
            try:
                with self._connection() as connection:
                    is_sent = self._was_there = True
                    _noticed.clear()
                    cursor = connection.execute(text, values or None, binary=True)
                    rows = (
                        [] if cursor.rownumber is None else cursor.fetchall()
                    )  # `description` makes objects.
                if what and _NOT_KNOWN in _noticed:
                    raise self.failed(
                        None, f"the wait for the standby was cancelled; {_whether(what, True)}"
                    )
                return rows
            except UnicodeEncodeError as error:
                raise self.error(error) from None
            except self._psycopg.Error as error:
                if error.sqlstate in _UNPREPARED and self._prepares:  # It was not done.
                    self._prepares = False
                    self.close()
                    continue
                if not _is_passing(error):
                    raise self.error(error) from None
                is_starting = "the database system is" in str(error)
                if time.monotonic() > deadline or not (self._was_there or is_starting):
                    raise self.failed(error, _whether(what, is_sent)) from None
            if is_sent and isinstance(values, dict) and "again" in values:
                values = values | {"again": True}
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_S)

    def failed(self, error: Exception | None, more: str = "") -> StorageFailed:
        """The error that the database can't be reached or did not do it."""
        reason = (
            "" if error is None else self.address.without_password(" ".join(str(error).split()))
        )
        words = "; ".join(each for each in (reason, more) if each)
        return StorageFailed(f"{self.address}: {words}", path=str(self.address), errno=None)

    def error(self, error: Exception) -> CapsuleError:
        """The error for what the database will not do however often it is asked."""
        state = getattr(error, "sqlstate", None) or ""
        if not state and isinstance(error, (self._psycopg.DataError, UnicodeEncodeError)):
            return InvalidInput("a NUL, or half a character (a lone surrogate), cannot be stored")
        reason = self.address.without_password(" ".join(str(error).split()))
        if state == "42501" or state.startswith("28"):
            return Refused(f"{self.address}: {reason}", path=str(self.address))
        if state == "55P03":
            who = "another process"
            return StoreBusy(
                f"{self.address}: {who} takes too long to bring the index up to date",
                id="",
                holder=who,
            )
        if state in _MISSING:
            self.ensure_version()  # Another process may have brought it to another one.
            words = "there is no store, or one of another version"
            remedy = Remedy("init", str(self.address))
            return NotFound(
                f"{self.address}: {words} ({reason})", remedy=remedy, id=str(self.address)
            )
        return StorageFailed(f"{self.address}: {reason}", path=str(self.address), errno=None)


#: The notices of the statement that this thread runs.
class _ThreadNotices(threading.local):
    def __init__(self) -> None:
        self._states: list[str] = []

    def append(self, state: str) -> None:
        self._states.append(state)

    def clear(self) -> None:
        self._states.clear()

    def __contains__(self, state: str) -> bool:
        return state in self._states


_noticed = _ThreadNotices()
#: Connections of a parent process: closing them would end its sessions.
_parents: list[list[Any]] = []


def _is_passing(error: psycopg.Error) -> bool:
    import psycopg

    if error.sqlstate:
        return error.sqlstate.startswith(_PASSING)
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


def _whether(what: str, is_sent: bool) -> str:
    """Whether a write is there, after which nothing was heard; empty: it was none."""
    if not what:
        return ""
    return (
        f"it is unknown whether {what} is stored: check before you repeat it"
        if is_sent
        else f"{what} is not stored"
    )
