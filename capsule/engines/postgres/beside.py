"""The trash of a store in a database, and the files that it has beside its documents.

What must stay true: after a purge, no row of the store has the purged content. The write-ahead log
and the backups of the database are outside of this promise.
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

#: A purge vacuums these tables, so that their dead rows are gone too.
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
    """The trash of a store. See `Trash`, which describes the methods.

    Args:
        database: The database.
        restore_document: Writes a document, given its kind, its id and its bytes. Raises Refused if
            one of this id exists.
        refresh_index: Brings the index up to date, so that it has no deleted messages.
    """

    def __init__(
        self,
        database: PostgresDatabase,
        restore_document: Callable[[str, str, bytes], None],
        refresh_index: Callable[[], None],
    ) -> None:
        self._database = database
        self._restore_document = restore_document
        self._refresh_index = refresh_index

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> Trashed:
        token = new_token(kind, check_id(id))
        ((time,),) = self._database.write(
            "INSERT INTO @trash (token, kind, id, data, at)"
            " VALUES (%s, %s, %s, %s, coalesce(nullif(%s, '')::timestamptz, clock_timestamp()))"
            " ON CONFLICT (token) DO UPDATE SET kind = excluded.kind RETURNING @stamp(at)",
            *(token, kind, id, data, deleted_at),
        )
        return Trashed(id, time, token, "")

    def entries(self, kind: str) -> list[Trashed]:
        order = "date_trunc('milliseconds', at) DESC, num DESC"
        rows = self._database.read(
            f"SELECT id, @stamp(at), token FROM @trash WHERE kind = %s ORDER BY {order}", kind
        )
        return [Trashed(id, at, token, "") for id, at, token in rows]

    def read(self, token: str) -> bytes:
        row = self._database.first_row("SELECT data FROM @trash WHERE token = %s", token)
        if row is None:
            raise not_in_trash(token)
        return bytes(row[0])

    def erase(self, token: str) -> None:
        self._database.write("DELETE FROM @trash WHERE token = %s", token)

    def restore(self, kind: str, id: str, token: str) -> None:
        self._restore_document(kind, id, self.read(token))
        self.erase(token)

    def purge(self, older_than_s: float) -> list[str]:
        """Cost: a vacuum of all tables, if the role may do that."""
        rows = self._database.write(
            "DELETE FROM @trash WHERE at <= clock_timestamp() - %s * interval '1 second' "
            "RETURNING token",
            older_than_s,
            write_name="the purge",
        )
        self._refresh_index()
        for table in _TABLES:
            with suppress(CapsuleError):  # Otherwise the autovacuum does it later.
                self._database.write(f"VACUUM @{table}")
        return [token for (token,) in rows]


class PostgresFiles:
    """Files beside documents, in a table. See `SideFiles`, which describes the methods."""

    def __init__(self, database: PostgresDatabase) -> None:
        self._database = database

    def write(self, kind: str, id: str, name: str, data: bytes) -> str:
        folder, file_name = _checked_key(kind, id, name)
        self._database.write(
            "INSERT INTO @files VALUES (%s, %s, %s) ON CONFLICT DO NOTHING", folder, file_name, data
        )
        if self.read(kind, id, name) != data:
            raise Refused(
                f"{kind}/{id}/{name} is there already, with another content; choose another name",
                path="",
            )
        return f"{kind}/{id}/{name}"

    def read(self, kind: str, id: str, name: str) -> bytes:
        row = self._database.first_row(
            "SELECT data FROM @files WHERE folder = %s AND name = %s", *_checked_key(kind, id, name)
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
            "DELETE FROM @files WHERE folder = %s AND name = %s", *_checked_key(kind, id, name)
        )


def _checked_key(kind: str, id: str, name: str) -> tuple[str, str]:
    """Return folder and name of a file. Raises InvalidInput if the id or the name is not allowed."""
    return SIDE_FILE_FOLDERS[kind].format(check_id(id)), check_file_name(name)
