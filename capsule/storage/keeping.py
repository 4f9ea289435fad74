"""Trash and quarantine: what was deleted, and what was damaged, kept until it is purged.

What must stay true: nothing in either directory is ever overwritten, and a name there says which document it
was, when it came, and why: `{kind}~{id}~{time}~{n}.json` and `{kind}~{id}~{time}~{reason}~{n}.json`; no id holds `~`.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from capsule import timestamps
from capsule.storage.files import drop_name, name_also, open_document, pread_all, pwrite_all, sync_directory
from capsule.storage.interface import Trashed
from capsule.storage.layout import Layout
from capsule.storage.syscalls import Syscalls

__all__ = ["Keeping"]

TRASH, QUARANTINE = "trash", "quarantine"


def _compact(stamp: str) -> str:
    """A timestamp without the characters that file systems mind."""
    return stamp.replace("-", "").replace(":", "").replace(".", "")


def _spread(compact: str) -> str:
    c = compact
    return f"{c[:4]}-{c[4:6]}-{c[6:11]}:{c[11:13]}:{c[13:15]}.{c[15:]}"


class Keeping:
    """The two directories of one store."""

    def __init__(self, sys: Syscalls, layout: Layout) -> None:
        self._sys = sys
        self._layout = layout

    def _link(self, source: str, directory: str, parts: tuple[str, ...]) -> str:
        """Give `source` a free name in `directory` as well, and make it durable; the name."""
        self._layout.ensure_derived(self._sys, directory)
        base = "~".join((*parts[:2], _compact(timestamps.now()), *parts[2:]))
        for n in range(10_000):
            path = self._layout.derived(directory, f"{base}~{n}.json")
            try:
                name_also(self._sys, source, path)
            except FileExistsError:
                continue
            sync_directory(self._sys, self._layout.derived(directory))
            return path
        raise FileExistsError(base)

    def move(self, source: str, directory: str, *parts: str) -> str:
        """Move a file to the trash or the quarantine; its new path. Durable on return."""
        path = self._link(source, directory, parts)
        drop_name(self._sys, source)
        sync_directory(self._sys, os.path.dirname(source))
        return path

    def quarantine(self, data: bytes, kind: str, id: str, reason: str) -> str:
        """Keep bytes in the quarantine; their path. Durable on return."""
        self._layout.ensure_derived(self._sys, QUARANTINE)
        temporary = self._layout.derived(QUARANTINE, f".{id}.{os.getpid()}.tmp")
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = self._sys.open(temporary, flags, self._layout.file_mode)
        try:
            pwrite_all(self._sys, fd, data, 0)
            self._sys.fsync(fd)
            path = self._link(temporary, QUARANTINE, (kind, id, reason))
        finally:
            self._sys.close(fd)
            with suppress(OSError):
                self._sys.unlink(temporary)
        return path

    def trashed(self, kind: str) -> list[Trashed]:
        """What lies in the trash, newest first."""
        found = [
            self.trashed_as(name) for name in self._names(TRASH) if name.count("~") == 3 and name.startswith(f"{kind}~")
        ]
        return sorted(found, key=lambda trashed: (trashed.deleted_at, trashed.token), reverse=True)

    def trashed_as(self, name: str) -> Trashed:
        """What lies in the trash under a name that `move` gave."""
        _, id, compact, _ = name.split("~")
        return Trashed(id, _spread(compact), name, self._layout.derived(TRASH, name))

    def _names(self, directory: str) -> list[str]:
        try:
            return [name for name, _ in self._sys.names(self._layout.derived(directory))]
        except FileNotFoundError:
            return []

    def read(self, token: str) -> bytes:
        fd, found = open_document(self._sys, self._layout.derived(TRASH, os.path.basename(token)), os.O_RDONLY)
        try:
            return pread_all(self._sys, fd, found.st_size)
        finally:
            self._sys.close(fd)

    def put_back(self, token: str, path: str) -> None:
        """Move a file out of the trash to `path`. Raises FileExistsError when that is taken."""
        source = self._layout.derived(TRASH, os.path.basename(token))
        name_also(self._sys, source, path)
        sync_directory(self._sys, os.path.dirname(path))
        drop_name(self._sys, source)
        sync_directory(self._sys, self._layout.derived(TRASH))

    def purge(self, older_than_s: float) -> list[str]:
        """Unlink what came longer ago than that (seconds, by the file's name); the paths."""
        gone = []
        now = timestamps.now()
        for directory in (TRASH, QUARANTINE):
            for name in self._names(directory):
                parts = name.split("~")
                path = self._layout.derived(directory, name)
                try:
                    age_s = timestamps.seconds_between(_spread(parts[2]), now)
                except (IndexError, ValueError):
                    age_s = time.time() - self._sys.lstat(path).st_mtime
                if age_s >= older_than_s:
                    self._sys.unlink(path)
                    gone.append(path)
        return gone
