"""The trash of a store, for deleted documents, and its quarantine, for damaged or replaced files.

Both are directories in `.capsule/`. The name of a file there says which document it is of, when it
came there, and in the quarantine why: `{kind}~{id}~{time}~{n}.json` or
`{kind}~{id}~{time}~{reason}~{n}.json`. No id contains `~`. The name is also the token by which the
store names an entry of the trash.

What must stay true: no file there is ever overwritten. A file with any other name belongs to
somebody else, and is left alone.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

from capsule import timestamps
from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import (
    link,
    pwrite_all,
    read_regular,
    sync_directory,
    translate_errors,
    unlink_if_exists,
)
from capsule.engines.files.disk.store_paths import StoreDirectory, StorePaths
from capsule.engines.interface import Trashed
from capsule.errors import NotFound, Remedy

TRASH = "trash"
QUARANTINE = "quarantine"
_STEM = r"[a-z]+~[A-Za-z0-9._@-]+~\d{8}T\d+Z"
_ENTRY_OF_EITHER = rf"{_STEM}(~[a-z]+)?~\d+\.json"
_ENTRY_OF_TRASH = rf"{_STEM}~\d+\.json"
#: A temporary file, which remains if its writer dies.
_TEMPORARY = r"\.[A-Za-z0-9._@-]+\.\d+\.tmp"
#: The number of files that one document may get at the same time.
_MAX_NUMBER = 10_000


def _compact_time(timestamp: str) -> str:
    """Return a timestamp without the characters that some file systems refuse."""
    return timestamp.replace("-", "").replace(":", "").replace(".", "")


def _timestamp(compact: str) -> str:
    """Return the timestamp that `_compact_time` made this of."""
    date = f"{compact[:4]}-{compact[4:6]}-{compact[6:8]}"
    return f"{date}{compact[8:11]}:{compact[11:13]}:{compact[13:15]}.{compact[15:]}"


class TrashDirectories:
    """The trash and the quarantine of one store.

    Args:
        sys: The system calls.
        paths: The paths of the store.
        max_bytes: The size of the largest file that is read from them, in bytes.
    """

    def __init__(self, sys: Syscalls, paths: StorePaths, max_bytes: int) -> None:
        self._sys = sys
        self._max_bytes = max_bytes
        self._directories = {name: StoreDirectory(paths, sys, name) for name in (TRASH, QUARANTINE)}

    def _link(
        self, source: str, directory_name: str, parts: tuple[str, ...], deleted_at: str = ""
    ) -> str:
        """Give a file a second name in one of the directories, durably. Returns the new path.

        Args:
            source: The file.
            directory_name: `TRASH` or `QUARANTINE`.
            parts: Kind and id, and in the quarantine the reason.
            deleted_at: The time in the name. Empty: now.
        """
        directory = self._directories[directory_name]
        directory.ensure()
        kind, id, *reason = parts
        stem = "~".join((kind, id, _compact_time(deleted_at or timestamps.now()), *reason))
        for number in range(_MAX_NUMBER):
            path = directory.file(f"{stem}~{number}.json")
            try:
                link(self._sys, source, path)
            except FileExistsError:
                continue
            sync_directory(self._sys, directory.path)
            return path
        raise FileExistsError(stem)

    def move(self, source: str, directory_name: str, *parts: str) -> str:
        """Move a file to the trash or the quarantine, durably. Returns its new path. Arguments: see
        `_link`.
        """
        path = self._link(source, directory_name, parts)
        unlink_if_exists(self._sys, source)
        sync_directory(self._sys, os.path.dirname(source))
        return path

    def store(
        self,
        data: bytes,
        directory_name: str,
        kind: str,
        id: str,
        *reason: str,
        deleted_at: str = "",
    ) -> str:
        """Write bytes into the trash or the quarantine, durably. Returns their path. Arguments: see
        `_link`.
        """
        directory = self._directories[directory_name]
        directory.ensure()
        temporary = directory.file(f".{kind}-{id}.{os.getpid()}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = self._sys.open(temporary, flags, directory.file_mode)
        try:
            pwrite_all(self._sys, fd, data, 0)
            self._sys.fsync(fd)
            path = self._link(temporary, directory_name, (kind, id, *reason), deleted_at)
        finally:
            self._sys.close(fd)
            with suppress(OSError):
                self._sys.unlink(temporary)
        return path

    # -- The trash ---------------------------------------------------------------------------------

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> Trashed:
        """Write bytes into the trash, durably. Returns their entry.

        Args:
            kind, id: The document that they belong to.
            data: The bytes.
            deleted_at: The time of the entry. Empty: now.
        """
        path = self.store(data, TRASH, kind, id, deleted_at=deleted_at)
        return self.entry_of(os.path.basename(path))

    def entries(self, kind: str) -> list[Trashed]:
        """Return the entries of a kind in the trash, newest first. Cost: one scandir."""
        directory = self._directories[TRASH]
        entries = []
        with translate_errors(directory.path, "list"):
            for name in directory.files():
                if name.startswith(f"{kind}~") and re.fullmatch(_ENTRY_OF_TRASH, name):
                    entries.append(self.entry_of(name))
        return sorted(entries, key=lambda entry: (entry.deleted_at, entry.token), reverse=True)

    def entry_of(self, name: str) -> Trashed:
        """Return the entry of the trash with this file name."""
        _, id, compact, _ = name.split("~")
        path = f"{self._directories[TRASH].path}/{name}"
        return Trashed(id=id, deleted_at=_timestamp(compact), token=name, path=path)

    def _path(self, token: str) -> str:
        return self._directories[TRASH].file(os.path.basename(token))

    def read(self, token: str) -> bytes:
        """Return the bytes of an entry of the trash.

        Raises `NotFound`, and `InvalidDocument` if it is too large.
        """
        path = self._path(token)
        with translate_errors(path, "read"):
            try:
                return read_regular(self._sys, path, self._max_bytes)
            except FileNotFoundError:
                raise NotFound(
                    f"{token} is no longer in the trash", remedy=Remedy("trash"), id=token
                ) from None

    def erase(self, token: str) -> None:
        """Delete an entry of the trash for good, if it exists."""
        path = self._path(token)
        with translate_errors(path, "drop"):
            unlink_if_exists(self._sys, path)

    def put_back(self, token: str, path: str) -> None:
        """Move an entry of the trash to `path`, durably. Raises `FileExistsError`."""
        source = self._path(token)
        link(self._sys, source, path)
        sync_directory(self._sys, os.path.dirname(path))
        unlink_if_exists(self._sys, source)
        sync_directory(self._sys, os.path.dirname(source))

    def purge(self, older_than_s: float) -> list[str]:
        """Delete from both directories what came there longer ago, in seconds. Returns the paths."""
        purged_paths: list[str] = []
        now = timestamps.now()
        for directory in self._directories.values():
            with translate_errors(directory.path, "purge"):
                for name in directory.files():
                    path = directory.file(name)
                    age_s = self._age_s(name, path, now)
                    if age_s is not None and age_s >= older_than_s:
                        self._sys.unlink(path)
                        purged_paths.append(path)
        return purged_paths

    def _age_s(self, name: str, path: str, now: str) -> float | None:
        """Return the age of a file in seconds: of an entry by its name, of a temporary file by its
        mtime. None: the file belongs to somebody else.
        """
        if re.fullmatch(_ENTRY_OF_EITHER, name):
            try:
                return timestamps.seconds_between(_timestamp(name.split("~")[2]), now)
            except ValueError:
                return None
        if re.fullmatch(_TEMPORARY, name):
            return time.time() - self._sys.lstat(path).st_mtime
        return None
