"""What a store of files keeps beside its documents: the trash, files of messages, what is of this
machine, and more.

What must stay true: a file gets its name once it is durable, and never another content; no
directory on the way to it is a symlink; and a lock goes with its process, however that dies.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from capsule.disk import whole_files
from capsule.disk.whole_files import Signature
from capsule.engines.files.disk.layout import KINDS, Directory
from capsule.engines.files.disk.trash import TRASH
from capsule.engines.files.external_edits import forget_texts
from capsule.engines.files.storage import FileStorage
from capsule.engines.interface import WITH_ENTRIES
from capsule.engines.machine import Machine
from capsule.engines.retrying import again
from capsule.engines.values import Trashed
from capsule.errors import InvalidDocument, NotFound, Refused
from capsule.ids import check_file_name, check_id, new_id

_log = logging.getLogger("capsule")

_TRIES = 50


class AttachedFiles:
    """The files beside the documents of a `FileStorage`. See `Files`, which describes
    the methods.
    """

    def __init__(self, storage: FileStorage) -> None:
        self._storage = storage
        self._sys = storage.sys
        self._layout = storage.layout

    def keep(self, kind: str, id: str, name: str, data: bytes) -> str:
        """Costs writing and flushing it; or reading it, if it is there."""
        layout, sys = self._layout, self._sys
        folder, path = self._place(kind, id, name)
        with whole_files.naming(path, "write"):
            there = self._content(folder, path)
            if there is None:
                layout.ensure(sys, folder)
                # Among the halves of copies that are purged, as nobody looks for one here.
                halves = Directory(layout, sys, TRASH)
                halves.ensure()
                half = halves.file(f".{kind}-{new_id()}.{os.getpid()}.tmp")
                write = partial(whole_files.pwrite_all, sys, data=data, offset=0)
                sys.close(whole_files.write_new(sys, half, layout.file_mode, write))
                try:
                    whole_files.name_also(sys, half, path)
                except FileExistsError:
                    there = self._content(folder, path)
                finally:
                    whole_files.drop_name(sys, half)
            if there not in (None, data):
                raise Refused(
                    f"{path} is there already, with another content; choose another name", path=path
                )
            whole_files.sync_directory(sys, folder)
        return path

    def read(self, kind: str, id: str, name: str) -> bytes:
        folder, path = self._place(kind, id, name)
        with whole_files.naming(path, "read"):
            data = self._content(folder, path)
        if data is None:
            raise NotFound(f"there is no {path}", id=name)
        return data

    def names(self, kind: str, id: str) -> list[str]:
        """Costs one scandir, and an lstat a file."""
        folder = self._layout.folder(kind, id)
        with whole_files.naming(folder, "list"), suppress(FileNotFoundError):
            self._layout.check(self._sys, folder)
            names = (
                (name, status)
                for name, status in self._sys.names(folder)
                if not name.startswith(".")
            )
            return sorted(name for name, status in names if stat.S_ISREG(status.st_mode))
        return []

    def drop(self, kind: str, id: str, name: str) -> None:
        folder, path = self._place(kind, id, name)
        with whole_files.naming(path, "erase"):
            self._layout.check(self._sys, folder)
            whole_files.drop_name(self._sys, path)

    def _place(self, kind: str, id: str, name: str) -> tuple[str, str]:
        folder = self._layout.folder(kind, id)
        return folder, f"{folder}/{check_file_name(name)}"

    def _content(self, folder: str, path: str) -> bytes | None:
        self._layout.check(self._sys, folder)
        with suppress(FileNotFoundError):
            return self._storage.read_file(path)
        return None


class FileTrash:
    """The trash of a `FileStorage`. See `Trash`, which describes the methods.

    Args:
        storage: The files.
        drop_index: Drops what the index has, to be built anew.
    """

    def __init__(self, storage: FileStorage, drop_index: Callable[[], None]) -> None:
        self._storage = storage
        self._drop_index = drop_index
        self.entries = storage.keeping.trashed
        self.read = storage.keeping.read
        self.drop = storage.keeping.drop

    def keep(self, kind: str, id: str, data: bytes, at: str = "") -> Trashed:
        keeping = self._storage.keeping
        with whole_files.naming(self._storage.layout.derived(TRASH), "write in"):
            return keeping.trashed_as(
                os.path.basename(keeping.store(data, TRASH, kind, check_id(id), at=at))
            )

    def restore(self, kind: str, id: str, token: str) -> None:
        with self._storage.hold(kind, id) as held:
            held.restore(token)

    def purge(self, older_than_s: float) -> list[str]:
        """Costs reading every conversation that was written here; the index is built anew."""
        storage = self._storage
        for kind in KINDS:
            for leftover in storage.leftovers(kind):
                if leftover.kind == "temporary":
                    storage.sweep(kind, leftover)
        gone = storage.keeping.purge(older_than_s)
        for name in ((kind, id) for kind in WITH_ENTRIES for id in storage.remembered(kind)):
            try:
                again(partial(forget_texts, storage, *name))
            except InvalidDocument as error:
                _log.warning("%s; what the store remembers of it was not purged", error.message)
        self._drop_index()
        return gone


class FileMachine(Machine):
    """The documents of this machine as files in `.capsule/`."""

    def __init__(self, storage: FileStorage) -> None:
        self._storage = storage

    def _ids(self, kind: str) -> list[str]:
        return self._storage.ids(kind)

    def _read(self, kind: str, id: str) -> bytes | None:
        got = self._storage.read(kind, id)
        if got is None or self._is_ours(kind, id, got[1]):
            return got and got[0]
        with self._storage.hold(kind, id) as held:  # Perhaps a write was under way.
            got = held.read()
            return got[0] if got and self._is_ours(kind, id, got[1]) else None

    def _edit(self, kind: str, id: str, change: Callable[[bytes | None], bytes | None]) -> None:
        def edit() -> None:
            with self._storage.hold(kind, id) as held:
                got = held.read()
                after = change(got[0] if got and self._is_ours(kind, id, got[1]) else None)
                if after is not None:
                    held.replace(got[1] if got else None, after, None, [])

        again(edit, self._storage.path(kind, id), id, _TRIES)

    def _delete(self, kind: str, id: str) -> None:
        with self._storage.hold(kind, id) as held:
            if self._storage.exists(kind, id):
                held.delete()

    def _is_ours(self, kind: str, id: str, signature: Signature) -> bool:
        """Whether this user wrote the file here, as a clone can carry any other.

        The note knows the inode and the times of what was written, which nobody can foretell of a
        clone.
        """
        noted = self._storage.noted(kind, id)
        if noted is None or noted.signature != signature:
            return False
        with suppress(OSError):
            return self._storage.sys.lstat(self._storage.path(kind, id)).st_uid == os.geteuid()
        return False
