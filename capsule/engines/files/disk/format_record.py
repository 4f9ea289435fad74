"""The record of a store's derived format: `.capsule/format.json`.

The derived files of a store (logs, state headers, the index) have one format number in common. It
is raised with every change of one of them.

What must stay true: a program that does not know the number changes nothing in the store. A record
that is missing or damaged is written anew, since all derived files can be rebuilt.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

import orjson

import capsule
from capsule.disk import whole_files
from capsule.disk.syscalls import Syscalls
from capsule.engines.files.disk.store_paths import StoreDirectory, StorePaths
from capsule.errors import CapsuleError, Refused, Remedy
from capsule.ids import new_id

#: The format of the derived files that this program reads and writes.
FORMAT = 2
NAME = "format.json"
_MAX_BYTES = 4096


class WrittenBy(NamedTuple):
    """The program that last wrote the derived files of a store.

    Attributes:
        format: The format of the derived files.
        version: The version of Capsule.
    """

    format: int
    version: str


class FormatRecord:
    """The record of one store. Several threads and processes may use it.

    Args:
        paths: The paths of the store.
        sys: The system calls.

    Raises:
        Refused: A newer version of Capsule wrote the store, in a format that this one does not
            know.
    """

    def __init__(self, paths: StorePaths, sys: Syscalls) -> None:
        self._paths = paths
        self._sys = sys
        self._directory = StoreDirectory(paths, sys)
        written_by = self.read()
        self._is_current = written_by == WrittenBy(FORMAT, capsule.__version__)
        if written_by is not None and written_by.format > FORMAT:
            raise self._unknown_format(written_by)

    def read(self) -> WrittenBy | None:
        """Return the record. None: it is missing or damaged. Cost: reading a small file."""
        try:
            data = whole_files.read_regular(self._sys, self._directory.file(NAME), _MAX_BYTES)
            fields = orjson.loads(data)
            return WrittenBy(int(fields["format"]), str(fields["version"]))
        except (OSError, CapsuleError, ValueError, TypeError, LookupError):
            return None

    def update(self) -> None:
        """Record that this version of Capsule writes the store. Cost: nothing after the first call.

        It is no error if `.capsule/` can't be written: the write that follows raises it.
        """
        if self._is_current:
            return
        self._is_current = True
        fields = {"format": FORMAT, "version": capsule.__version__}
        data = orjson.dumps(fields) + b"\n"
        with suppress(OSError, Refused):
            self._directory.ensure()
            temporary = self._directory.file(f".{NAME}.{new_id()}.tmp")
            fd = whole_files.write_new(
                self._sys,
                temporary,
                self._directory.file_mode,
                lambda fd: whole_files.pwrite_all(self._sys, fd, data, 0),
            )
            self._sys.close(fd)
            self._sys.rename(temporary, self._directory.file(NAME))
            whole_files.sync_directory(self._sys, self._directory.path)

    def _unknown_format(self, written_by: WrittenBy) -> Refused:
        root = self._paths.root
        derived = " ".join(
            self._paths.derived(name) for name in ("mutex", "logs", "index.sqlite3*", NAME)
        )
        return Refused(
            f"{root} was written by Capsule {written_by.version}; this is Capsule "
            f"{capsule.__version__}, which does not know format {written_by.format} of the "
            f"derived files, {derived}",
            remedy=Remedy("update"),
            path=os.path.join(self._directory.path, NAME),
            format=written_by.format,
            version=written_by.version,
        )
