"""Create the schema of a store, upgrade it, and check it at opening.

What must stay true: only `migrate` changes the schema, under a lock, all or nothing. A role without
the right to create tables can do everything else. A database that was restored from a dump gets a
new generation, as its transactions are numbered from the beginning: cursors of the old one are
invalid.
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
from capsule.errors import CapsuleError, NotFound, Refused, Remedy, StoreBusy

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase

#: Of the schema that this version of Capsule has, and the oldest server that has what it uses.
VERSION, _OLDEST_SERVER = 1, 140000
_LOCK = 0x43_61_70_73_75_6C_65  # "Capsule"
#: What tells this database from one that was restored from its dump.
_IDENTITY = (
    "SELECT (SELECT system_identifier FROM pg_control_system())::text || '.' || "
    "'@meta'::regclass::oid || '.' ||"
    " (SELECT oid FROM pg_database WHERE datname = current_database())"
)


class Meta(NamedTuple):
    """The row of a database that describes its store.

    Attributes:
        store: The id of the store.
        generation: Another one after each restore.
        settings: The store's settings, as in `capsule.toml`.
    """

    store: str
    generation: str
    settings: str


def meta(database: PostgresDatabase) -> Meta:
    """What the database says of itself. Cost: a round trip.

    Raises NotFound: there is no store; Refused: it is of another version.
    """
    try:
        rows = database.read(f"SELECT key, value FROM @meta UNION ALL SELECT 'now', ({_IDENTITY})")
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
    found: tuple[Any, ...] | None = None
    with (
        suppress(Exception),
        closing(database.connect()) as connection,
    ):  # Whatever is wrong, the caller says it.
        found = connection.execute(
            database.text("SELECT value FROM @meta WHERE key = 'version'")
        ).fetchone()
    _ensure_version(database, int(found[0]) if found else VERSION)


def _ensure_version(database: PostgresDatabase, version: int) -> None:
    if version == VERSION:
        return
    is_older = version < VERSION
    todo = "" if is_older else "; install a newer Capsule"
    raise Refused(
        f"{database.address}: its schema has version {version}, and this Capsule works with "
        f"{VERSION}{todo}",
        remedy=Remedy("migrate") if is_older else None,
        path=str(database.address),
    )


def _new_generation(database: PostgresDatabase, identity: str) -> str:
    """Begin a new generation, as the database was restored; which one there is then."""
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
    row = database.one("SELECT value FROM @meta WHERE key = 'generation'")
    return str(row[0]) if row else ""


def key(database: PostgresDatabase) -> bytes:
    """The secret key of the store's cursors, which every machine that opens it has. Raises as
    `PostgresDatabase.read`.
    """
    ((text,),) = database.read("SELECT value FROM @meta WHERE key = 'cursors'")
    return bytes.fromhex(text)


def set_settings(database: PostgresDatabase, toml: str, before: str) -> None:
    """Replace the settings, which are `before`. Raises StoreBusy: they are others; and as
    `PostgresDatabase.write`.
    """
    statement = (
        "UPDATE @meta SET value = %s WHERE key = 'settings' AND value IN (%s, %s) RETURNING key"
    )
    if not database.write(statement, toml, toml, before):
        name = f"{database.address}: {settings.FILE_NAME}"
        raise StoreBusy(
            f"{name} was changed meanwhile; try again", id=name, holder="another program"
        )


def durability(database: PostgresDatabase) -> str:
    """What a message survives that was acknowledged, in words. Raises as `PostgresDatabase.read`."""
    ((commit, names, standbys),) = database.read(
        "SELECT current_setting('synchronous_commit'), "
        "current_setting('synchronous_standby_names'),"
        " (SELECT count(*) FROM pg_stat_replication)"
    )
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
    """Make the schema, or bring it to this version; whether there was anything to do.

    Args:
        database: The database.
        toml: The settings of a new store.

    Raises Refused: The role may not, or the database is not one to keep a store in; StorageFailed.
    """
    text = (Path(os.path.dirname(__file__)) / "schema.sql").read_text(encoding="utf-8")
    database.read("SELECT 1")  # Its errors are the clear ones.
    with closing(database.connect()) as connection:
        said = connection.execute("SELECT current_setting('server_encoding')").fetchone() or ("",)
        if said[0] != "UTF8" or connection.info.server_version < _OLDEST_SERVER:
            raise Refused(
                f"{database.address}: a store needs PostgreSQL 14 or newer and a database in "
                "UTF8; this one is "
                f"{connection.info.server_version // 10000} in {said[0]}",
                path=str(database.address),
            )
        try:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
                name = database.address.schema
                there = connection.execute(
                    "SELECT to_regclass(%s) IS NOT NULL", (f'"{name}".meta',)
                ).fetchone()
                if there == (True,):
                    row = connection.execute(
                        database.text("SELECT value FROM @meta WHERE key = 'version'")
                    ).fetchone()
                    _ensure_version(
                        database, int(row[0]) if row else 0
                    )  # There is no older version to come from.
                    return False
                if (
                    connection.execute(
                        "SELECT FROM pg_namespace WHERE nspname = %s", (name,)
                    ).fetchone()
                    is None
                ):
                    connection.execute(f'CREATE SCHEMA "{name}"')
                connection.execute(database.text(text))
                connection.execute(
                    database.text(
                        "INSERT INTO @meta VALUES ('version', %s), ('store', %s), ('generation', "
                        "%s), ('settings', %s),"
                        " ('pruned', '0'), ('cursors', %s),"
                        f" ('identity', ({_IDENTITY}))"
                    ),
                    (str(VERSION), uuid4().hex, uuid4().hex, toml, token_hex(32)),
                )
        except CapsuleError:
            raise
        except Exception as error:
            raise database.error(error) from None
    return True
