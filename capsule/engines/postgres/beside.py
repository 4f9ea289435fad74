"""Store the trash and the side files of a store in PostgreSQL.

What must stay true: purged documents are in no row of the store. The database's own log and backups
are the administrator's responsibility.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.engines.entries import SIDE_FILE_FOLDERS
from capsule.engines.interface import Trashed
from capsule.engines.postgres.writing import new_token, not_in_trash
from capsule.errors import CapsuleError, NotFound, Refused
from capsule.ids import check_file_name, check_id

if TYPE_CHECKING:
    from capsule.engines.postgres.database import PostgresDatabase

#: What a purge leaves no dead rows of.
_TABLES = (
    "documents",
    "entries",
    "trash",
    "files",
    "changes",
    "capsules",
    "messages",
    "facts",
    "words",
    "names",
)


class PostgresTrash:
    """The trash of a store. `Trash` describes the methods.

    Args:
        database: The database.
        put_back: Writes a document of a kind and an id from its bytes. Raises Refused if there is
            one.
        index: Updates the index, so that it has no deleted texts.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        put_back: Callable[[str, str, bytes], None],
        index: Callable[[], None],
    ) -> None:
        self._database, self._put_back, self._index = database, put_back, index

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> Trashed:
        token = new_token(kind, check_id(id))
        ((kept,),) = self._database.write(
            "INSERT INTO @trash (token, kind, id, data, at)"
            " VALUES (%s, %s, %s, %s, coalesce(nullif(%s, '')::timestamptz, clock_timestamp()))"
            " ON CONFLICT (token) DO UPDATE SET kind = excluded.kind RETURNING @stamp(at)",
            *(token, kind, id, data, deleted_at),
        )
        return Trashed(id, kept, token, "")

    def entries(self, kind: str) -> list[Trashed]:
        order = "date_trunc('milliseconds', at) DESC, num DESC"
        rows = self._database.read(
            f"SELECT id, @stamp(at), token FROM @trash WHERE kind = %s ORDER BY {order}", kind
        )
        return [Trashed(id, at, token, "") for id, at, token in rows]

    def read(self, token: str) -> bytes:
        row = self._database.one("SELECT data FROM @trash WHERE token = %s", token)
        if row is None:
            raise not_in_trash(token)
        return bytes(row[0])

    def erase(self, token: str) -> None:
        self._database.write("DELETE FROM @trash WHERE token = %s", token)

    def restore(self, kind: str, id: str, token: str) -> None:
        self._put_back(kind, id, self.read(token))
        self.erase(token)

    def purge(self, older_than_s: float) -> list[str]:
        """Costs a vacuum, where the role may do that."""
        rows = self._database.write(
            "DELETE FROM @trash WHERE at <= clock_timestamp() - %s * interval '1 second' "
            "RETURNING token",
            older_than_s,
            what="the purge",
        )
        self._index()
        for table in _TABLES:
            with suppress(CapsuleError):  # The owner's autovacuum does it else.
                self._database.write(f"VACUUM @{table}")
        return [token for (token,) in rows]


class PostgresFiles:
    """Side files in a database. `SideFiles` describes the methods."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def write(self, kind: str, id: str, name: str, data: bytes) -> str:
        place = _place(kind, id, name)
        self._database.write(
            "INSERT INTO @files VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", *place, data
        )
        if self.read(kind, id, name) != data:
            raise Refused(
                f"{kind}/{id}/{name} is there already, with another content; choose another name",
                path="",
            )
        return f"{kind}/{id}/{name}"

    def read(self, kind: str, id: str, name: str) -> bytes:
        row = self._database.one(
            "SELECT data FROM @files WHERE folder = %s AND name = %s", *_place(kind, id, name)
        )
        if row is None:
            raise NotFound(f"there is no {kind}/{id}/{name}", id=name)
        return bytes(row[0])

    def names(self, kind: str, id: str) -> list[str]:
        folder = SIDE_FILE_FOLDERS[kind].format(check_id(id))
        rows = self._database.read(
            "SELECT name FROM @files WHERE folder = %s ORDER BY name", folder
        )
        return [name for (name,) in rows]

    def erase(self, kind: str, id: str, name: str) -> None:
        self._database.write(
            "DELETE FROM @files WHERE folder = %s AND name = %s", *_place(kind, id, name)
        )


def _place(kind: str, id: str, name: str) -> tuple[str, str]:
    return SIDE_FILE_FOLDERS[kind].format(check_id(id)), check_file_name(name)
