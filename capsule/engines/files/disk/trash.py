"""Trash and quarantine: what was deleted, and what was damaged, kept until it is purged.

What must stay true: nothing in either directory is ever overwritten, and a name there says which
document it was, when it came, and why: `{kind}~{id}~{time}~{n}.json` and
`{kind}~{id}~{time}~{reason}~{n}.json`; no id holds `~`. A file of any other name was put there by
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
from capsule.engines.files.disk.layout import StoreDirectory, StorePaths
from capsule.engines.interface import Trashed
from capsule.errors import NotFound, Remedy

TRASH, QUARANTINE = "trash", "quarantine"
_STEM = r"[a-z]+~[A-Za-z0-9._@-]+~\d{8}T\d+Z"
_KEPT = rf"{_STEM}(~[a-z]+)?~\d+\.json"
_TRASHED = rf"{_STEM}~\d+\.json"
#: What a writer that died left of a copy that it was making.
_HALF = r"\.[A-Za-z0-9._@-]+\.\d+\.tmp"


def _compact(stamp: str) -> str:
    """A timestamp without the characters that file systems mind."""
    return stamp.replace("-", "").replace(":", "").replace(".", "")


def _spread(compact: str) -> str:
    c = compact
    return f"{c[:4]}-{c[4:6]}-{c[6:11]}:{c[11:13]}:{c[13:15]}.{c[15:]}"


class TrashDirectories:
    """The two directories of one store; what is larger than `most` bytes is not read out
    of them.
    """

    def __init__(self, sys: Syscalls, layout: StorePaths, most: int) -> None:
        self._sys = sys
        self._most = most
        self._directories = {
            name: StoreDirectory(layout, sys, name) for name in (TRASH, QUARANTINE)
        }

    def _link(self, source: str, directory: str, parts: tuple[str, ...], at: str = "") -> str:
        """Give `source` a free name in `directory` as well, and make it durable; the name. `at`:
        when it came there.
        """
        to = self._directories[directory]
        to.ensure()
        base = "~".join((*parts[:2], _compact(at or timestamps.now()), *parts[2:]))
        for n in range(10_000):
            path = to.file(f"{base}~{n}.json")
            try:
                link(self._sys, source, path)
            except FileExistsError:
                continue
            sync_directory(self._sys, to.path)
            return path
        raise FileExistsError(base)

    def move(self, source: str, directory: str, *parts: str) -> str:
        """Move a file to the trash or the quarantine; its new path. Durable on return."""
        path = self._link(source, directory, parts)
        unlink_if_exists(self._sys, source)
        sync_directory(self._sys, os.path.dirname(source))
        return path

    def store(
        self, data: bytes, directory: str, kind: str, id: str, *reason: str, at: str = ""
    ) -> str:
        """Keep bytes in the trash or the quarantine, as they came there at a time; their path.
        Durable on return.
        """
        to = self._directories[directory]
        to.ensure()
        temporary = to.file(f".{kind}-{id}.{os.getpid()}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = self._sys.open(temporary, flags, to.file_mode)
        try:
            pwrite_all(self._sys, fd, data, 0)
            self._sys.fsync(fd)
            path = self._link(temporary, directory, (kind, id, *reason), at)
        finally:
            self._sys.close(fd)
            with suppress(OSError):
                self._sys.unlink(temporary)
        return path

    def trashed(self, kind: str) -> list[Trashed]:
        """What lies in the trash, newest first."""
        directory = self._directories[TRASH]
        with translate_errors(directory.path, "list"):
            names = [
                name
                for name in directory.files()
                if name.startswith(f"{kind}~") and re.fullmatch(_TRASHED, name)
            ]
        entries = map(self.trashed_as, names)
        return sorted(
            entries, key=lambda trashed: (trashed.deleted_at, trashed.token), reverse=True
        )

    def trashed_as(self, name: str) -> Trashed:
        """What lies in the trash under a name that `move` gave."""
        _, id, compact, _ = name.split("~")
        return Trashed(id, _spread(compact), name, f"{self._directories[TRASH].path}/{name}")

    def _in_trash(self, token: str) -> str:
        return self._directories[TRASH].file(os.path.basename(token))

    def read(self, token: str) -> bytes:
        """The bytes of a file in the trash. Raises `NotFound`, and `InvalidDocument` for one that
        is too large.
        """
        path = self._in_trash(token)
        with translate_errors(path, "read"):
            try:
                return read_regular(self._sys, path, self._most)
            except FileNotFoundError:
                raise NotFound(
                    f"{token} is no longer in the trash", remedy=Remedy("trash"), id=token
                ) from None

    def erase(self, token: str) -> None:
        """Erase a file in the trash, if it is still there."""
        path = self._in_trash(token)
        with translate_errors(path, "drop"):
            unlink_if_exists(self._sys, path)

    def put_back(self, token: str, path: str) -> None:
        """Move a file out of the trash to `path`. Raises FileExistsError when that is taken."""
        source = self._in_trash(token)
        link(self._sys, source, path)
        sync_directory(self._sys, os.path.dirname(path))
        unlink_if_exists(self._sys, source)
        sync_directory(self._sys, os.path.dirname(source))

    def purge(self, older_than_s: float) -> list[str]:
        """Unlink what came longer ago than that (seconds, by the file's name); the paths."""
        gone: list[str] = []
        now = timestamps.now()
        for directory in self._directories.values():
            with translate_errors(directory.path, "purge"):
                for path, name in [(directory.file(name), name) for name in directory.files()]:
                    if re.fullmatch(_KEPT, name):
                        try:
                            age_s = timestamps.seconds_between(_spread(name.split("~")[2]), now)
                        except ValueError:
                            continue
                    elif re.fullmatch(_HALF, name):
                        age_s = time.time() - self._sys.lstat(path).st_mtime
                    else:
                        continue
                    if age_s >= older_than_s:
                        self._sys.unlink(path)
                        gone.append(path)
        return gone
