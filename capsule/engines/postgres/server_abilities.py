"""What a store needs of a server that some servers lack, and the plain way to do without it.

Managed databases speak PostgreSQL's protocol, and refuse some of its functions. The schema has a
function for each such need, and `migrate` chooses its body by asking the server.

- `in_timeline` puts the numbers of transactions and versions in order over the promotion of a
  standby that lacks the last ones. It needs the position of the server's log. Aurora refuses that
  unless it replicates logically. Its standbys share the disk of the primary and lack nothing, so the
  plain way is to leave the numbers as they are.
- `identity` recognizes a database that was restored from a dump. It needs the identifier of the
  server. The plain way only has the numbers of the database and of a table.

What must stay true: a question to the server changes nothing, and a server that refuses it counts as
one that lacks the ability.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import psycopg


class Ability(NamedTuple):
    """A function of the schema with two bodies.

    Attributes:
        function: The name of the function.
        head: Its arguments, its result and its volatility.
        question: Returns true on a server that can run `body`.
        body: The body that uses the ability.
        plain: The body that does without it.
    """

    function: str
    head: str
    question: str
    body: str
    plain: str


_DATABASE = (
    "'@meta'::regclass::oid || '.' || (SELECT oid FROM pg_database WHERE datname = "
    "current_database())"
)
_TIMELINE = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint"
#: The abilities that are asked for.
ABILITIES = (
    Ability(
        "in_timeline",
        "(number bigint) RETURNS bigint LANGUAGE sql",
        # Aurora answers while it replicates logically, and no longer does when that is turned off.
        f"SELECT to_regproc('aurora_version') IS NULL AND {_TIMELINE} > 0",
        f"SELECT {_TIMELINE} << 40 | number",
        "SELECT number",
    ),
    Ability(
        "identity",
        "() RETURNS text LANGUAGE sql STABLE",
        "SELECT system_identifier <> 0 FROM pg_control_system()",
        f"SELECT (SELECT system_identifier FROM pg_control_system())::text || '.' || {_DATABASE}",
        f"SELECT '.' || {_DATABASE}",
    ),
)


class Function(NamedTuple):
    """A function of the schema, with the body that fits a server."""

    name: str
    head: str
    body: str

    @property
    def statement(self) -> str:
        """The statement that replaces the function."""
        return f"CREATE OR REPLACE FUNCTION @{self.name}{self.head} AS $$ {self.body} $$"


def functions_for(connection: psycopg.Connection[Any]) -> list[Function]:
    """Return the functions that fit this server.

    Args:
        connection: A connection that is in no transaction.

    Raises psycopg.OperationalError. Cost: a round trip for each ability.
    """
    functions = []
    for ability in ABILITIES:
        body = ability.body if _has(connection, ability.question) else ability.plain
        functions.append(Function(ability.function, ability.head, body))
    return functions


def _has(connection: psycopg.Connection[Any], question: str) -> bool:
    """Return whether the server answers a question with true."""
    import psycopg

    try:
        return connection.execute(question).fetchone() == (True,)
    except psycopg.DatabaseError:
        if connection.closed:
            raise
        return False
