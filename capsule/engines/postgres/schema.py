"""The schema of a store: creates it, brings it to this version, and checks it when a store is opened.

The table `meta` has the version of the schema, the id of the store, its settings, the secret key of
its cursors, and the generation of the database. If a database was restored from a dump, its
transactions are counted anew, and cursors from before the dump mean nothing. The first program that
opens it recognizes this by its identity, and begins a new generation.

What must stay true: only `migrate` creates or changes tables, under a lock, and all or nothing. A
role without the right to create tables can do everything else.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from capsule import settings
from capsule.engines.postgres import server_abilities
from capsule.errors import CapsuleError, NotFound, Refused, Remedy, StoreBusy

if TYPE_CHECKING:
    import psycopg

    from capsule.engines.postgres.database import PostgresDatabase
    from capsule.engines.postgres.server_abilities import Function

#: The version of the schema that this version of Capsule uses.
VERSION = 1
#: The oldest server that has all functions in use, as PostgreSQL numbers it.
_OLDEST_SERVER = 140000
_LOCK = 0x43_61_70_73_75_6C_65  # "Capsule"


class Meta(NamedTuple):
    """The facts of a store in its table `meta`.

    Attributes:
        store: The id of the store.
        generation: A random id, which changes after each restore of the database from a dump.
        settings: The store's settings, in the syntax of `capsule.toml`.
    """

    store: str
    generation: str
    settings: str


def meta(database: PostgresDatabase) -> Meta:
    """Return the facts of the store, after checking the version of its schema. Cost: a round trip.

    Begins a new generation if the database was restored. Raises NotFound if it has no store, and
    Refused if the schema has another version.
    """
    try:
        rows = database.read("SELECT key, value FROM @meta UNION ALL SELECT 'now', @identity()")
    except NotFound:
        raise NotFound(
            f"{database.address} has no Capsule store",
            remedy=Remedy("init", str(database.address)),
            id="",
        ) from None
    values: dict[str, str] = dict(rows)
    _ensure_version(database, int(values.get("version", 0)))
    database.ensure_version = partial(_ensure_present_version, database)
    if values["identity"] != values["now"]:
        values["generation"] = _new_generation(database, values["now"])
    return Meta(values["store"], values["generation"], values["settings"])


def _ensure_present_version(database: PostgresDatabase) -> None:
    """Raise Refused if the schema has another version by now. Cost: a connection."""
    row: tuple[Any, ...] | None = None
    # Any other error is ignored here, since the caller raises its own.
    with suppress(Exception), closing(database.connect()) as connection:
        row = connection.execute(
            database.with_schema("SELECT value FROM @meta WHERE key = 'version'")
        ).fetchone()
    _ensure_version(database, int(row[0]) if row else VERSION)


def _ensure_version(database: PostgresDatabase, version: int) -> None:
    if version == VERSION:
        return
    is_older = version < VERSION
    advice = "" if is_older else "; install a newer Capsule"
    raise Refused(
        f"{database.address}: its schema has version {version}, and this Capsule works with "
        f"{VERSION}{advice}",
        remedy=Remedy("migrate") if is_older else None,
        path=str(database.address),
    )


def _new_generation(database: PostgresDatabase, identity: str) -> str:
    """Begin a new generation, unless another program did it meanwhile. Returns the present one."""
    statement = (
        "WITH new AS (UPDATE @meta SET value = CASE key WHEN 'identity' THEN %s WHEN 'pruned' "
        "THEN '0' ELSE %s END"
        " WHERE key IN ('identity', 'generation', 'pruned') AND (SELECT value FROM @meta WHERE "
        "key = 'identity') <> %s"
        " RETURNING key), gone AS (DELETE FROM @changes WHERE EXISTS (SELECT FROM new)),"
        " anew AS (UPDATE @indexed SET snapshot = NULL WHERE EXISTS (SELECT FROM new)) SELECT "
        "count(*) FROM new"
    )
    database.write(statement, identity, uuid4().hex, identity)
    row = database.first_row("SELECT value FROM @meta WHERE key = 'generation'")
    return str(row[0]) if row else ""


def key(database: PostgresDatabase) -> bytes:
    """Return the secret key that seals the store's cursors on all machines. Raises the same as
    `PostgresDatabase.read`.
    """
    ((text,),) = database.read("SELECT value FROM @meta WHERE key = 'cursors'")
    return bytes.fromhex(text)


def set_settings(database: PostgresDatabase, toml: str, expected: str) -> None:
    """Replace the settings if they are `expected`. Raises StoreBusy if they are different, and the
    errors of `PostgresDatabase.write`.
    """
    statement = (
        "UPDATE @meta SET value = %s WHERE key = 'settings' AND value IN (%s, %s) RETURNING key"
    )
    if not database.write(statement, toml, toml, expected):
        name = f"{database.address}: {settings.FILE_NAME}"
        raise StoreBusy(
            f"{name} was changed meanwhile; try again", id=name, holder="another program"
        )


def durability(database: PostgresDatabase) -> str:
    """Describe which failures an acknowledged message survives. Raises as `PostgresDatabase.read`."""
    ((fsync, full_pages, commit, names, standbys, tells_timeline),) = database.read(
        "SELECT current_setting('fsync'), current_setting('full_page_writes'), "
        "current_setting('synchronous_commit'), current_setting('synchronous_standby_names'),"
        " (SELECT count(*) FROM pg_stat_replication), @in_timeline(0) > 0"
    )
    risks = []
    if fsync == "off":
        risks.append(
            "fsync is off: a crash of its machine loses acknowledged messages, or the database"
        )
    if full_pages == "off":
        risks.append("full_page_writes is off: a crash of its machine can damage the database")
    if standbys and not tells_timeline:
        risks.append(
            "this server reports no timeline: if a standby takes over that lacks the last changes, "
            "readers that saw them can miss later ones"
        )
    return "; ".join([_survival(commit, names, standbys), *risks])


def _survival(commit: str, names: str, standbys: int) -> str:
    """Describe what an acknowledged message survives if the server writes to its disk.

    Args:
        commit, names: The settings `synchronous_commit` and `synchronous_standby_names`.
        standbys: The number of standbys that are connected.
    """
    if commit == "off":
        return "synchronous_commit is off: a crash of the server loses the last acknowledged writes"
    if names and commit != "local":
        return "a synchronous standby: an acknowledged message survives the loss of the server"
    standby = "standbys that may lack the last writes" if standbys else "no standby"
    return (
        f"{standby}: an acknowledged message survives a crash of the server, but not the loss "
        "of its disk"
    )


def migrate(database: PostgresDatabase, toml: str = settings.TEMPLATE) -> bool:
    """Create the schema, or bring it to this version. Returns whether the version was changed.

    The functions that depend on the abilities of the server are chosen anew each time, as a dump may
    have been restored on another kind of server.

    Args:
        database: The database.
        toml: The settings of a new store.

    Raises Refused if the role lacks the right, or if the server is too old or the database not in
    UTF-8. Raises StorageFailed.
    """
    schema_sql = (Path(os.path.dirname(__file__)) / "schema.sql").read_text(encoding="utf-8")
    database.read("SELECT 1")  # Its errors are clearer than those of `connect`.
    with closing(database.connect()) as connection:
        encoding_row = connection.execute("SELECT current_setting('server_encoding')").fetchone()
        encoding = encoding_row[0] if encoding_row else ""
        if encoding != "UTF8" or connection.info.server_version < _OLDEST_SERVER:
            raise Refused(
                f"{database.address}: a store needs PostgreSQL 14 or newer and a database in "
                "UTF8; this one is "
                f"{connection.info.server_version // 10000} in {encoding}",
                path=str(database.address),
            )
        functions = server_abilities.functions_for(connection)
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                name = database.address.schema
                has_store = connection.execute(
                    "SELECT to_regclass(%s) IS NOT NULL", (f'"{name}".meta',)
                ).fetchone()
                if has_store == (True,):
                    row = connection.execute(
                        database.with_schema("SELECT value FROM @meta WHERE key = 'version'")
                    ).fetchone()
                    # Version 1 is the first one, so no older schema can be migrated.
                    _ensure_version(database, int(row[0]) if row else 0)
                    _replace_functions(database, connection, functions)
                    return False
                namespace = connection.execute(
                    "SELECT FROM pg_namespace WHERE nspname = %s", (name,)
                ).fetchone()
                if namespace is None:
                    connection.execute(f'CREATE SCHEMA "{name}"')
                connection.execute(database.with_schema(schema_sql))
                _replace_functions(database, connection, functions)
                connection.execute(
                    database.with_schema(
                        "INSERT INTO @meta VALUES ('version', %s), ('store', %s), ('generation', "
                        "%s), ('settings', %s),"
                        " ('pruned', '0'), ('cursors', %s), ('identity', @identity())"
                    ),
                    (str(VERSION), uuid4().hex, uuid4().hex, toml, token_hex(32)),
                )
        except CapsuleError:
            raise
        except Exception as error:
            raise database.translated_error(error) from None
    return True


def _replace_functions(
    database: PostgresDatabase, connection: psycopg.Connection[Any], functions: list[Function]
) -> None:
    """Replace the functions that differ from those of this server. Only their owner may do that."""
    for function in functions:
        row = connection.execute(
            "SELECT prosrc, pg_has_role(proowner, 'MEMBER') FROM pg_proc WHERE oid = to_regproc(%s)",
            (f'"{database.address.schema}".{function.name}',),
        ).fetchone()
        body, is_owner = row or ("", True)
        if is_owner and body.strip() != database.with_schema(function.body):
            connection.execute(database.with_schema(function.statement))
