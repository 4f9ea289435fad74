"""The files of a store: documents, the files beside them, the trash, and what belongs to this machine.

What must stay true: this module knows kinds, ids and the canonical layout, but no conversations.
Every write of a document happens under its mutex, and reading takes none. A file beside documents
gets its name once it is durable, and its content never changes. No directory on the way to a file
is a symlink. A lock goes with its process, however that dies.
"""

from __future__ import annotations

import logging
import os
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from capsule.disk import whole_files
from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import NO_SIGNATURE, Signature
from capsule.engines.files.disk.derived import DerivedFiles
from capsule.engines.files.disk.format_record import FormatRecord
from capsule.engines.files.disk.layout import KINDS, LOCAL, NESTED, StoreDirectory, StorePaths
from capsule.engines.files.disk.leases import FileLeases
from capsule.engines.files.disk.log import BackgroundFlusher, Log
from capsule.engines.files.disk.mutex import Mutexes
from capsule.engines.files.disk.trash import QUARANTINE, TRASH, TrashDirectories
from capsule.engines.files.document import HeldDocument
from capsule.engines.files.external_edits import committed_version, purge_log_texts
from capsule.engines.files.state import HEADER_BYTES, MARKED, StateHeader, decode_header
from capsule.engines.interface import WITH_ENTRIES, Leftover, ScannedFile, Tracker, Trashed, retry
from capsule.engines.local_documents import LocalDocuments
from capsule.errors import CapsuleError, ConcurrentWrite, InvalidDocument, NotFound, Refused
from capsule.format.json.layout import last_entries
from capsule.ids import check_file_name, check_id, is_id, new_id
from capsule.process_forks import call_in_child

_SUFFIX = ".json"
_MARKING = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FIRST_READ = 4096
_TAIL_CHUNK = 64 * 1024
_CONTEXT_LINE = b'\n  "context": '


class FileStorage:
    """A store's documents as files below one directory, for the index (`Source`) and for
    `OutsideEdits`.

    Args:
        root: The store's directory.
        shared: See `StorePaths`.
        append: "splice", or "replace" for a store where even the microseconds of a splice matter.
        mutex_timeout_s: How long to wait for a mutex, in seconds, when the caller doesn't say.
        document_bytes: The largest document that is opened; one that is larger is a damaged one, so
            that it is not read into memory.
        sys: The seam to the system.

    Raises:
        Refused: A newer version of Capsule wrote the store.
    """

    def __init__(
        self,
        root: str,
        *,
        shared: bool = False,
        append: str = "splice",
        mutex_timeout_s: float = 10.0,
        document_bytes: int = 500_000_000,
        sys: Syscalls | None = None,
    ) -> None:
        self.sys = sys or Syscalls()
        self.layout = StorePaths(root, shared)
        self.replaces_on_append = append == "replace"
        self.document_flags = os.O_RDONLY if self.replaces_on_append else os.O_RDWR
        self.trash_directories = TrashDirectories(self.sys, self.layout, document_bytes)
        self.derived = DerivedFiles(self.layout, self.sys)
        self.boot_id = f"{self.sys.boot() or 'unknown'} {self.sys.device(root):x}"
        self._timeout_s = mutex_timeout_s
        self._document_bytes = document_bytes
        self.mutex_files = StoreDirectory(self.layout, self.sys, "mutex")
        self.logs = StoreDirectory(self.layout, self.sys, "logs")
        self._format_record = FormatRecord(self.layout, self.sys)
        self.mutexes = Mutexes(self.sys, self.mutex_files)
        self.sys.close_idle = weakref.WeakMethod(
            self.mutexes.close_idle
        )  # Weak, as a cycle would keep them open.
        self.leases = FileLeases(self.sys, self.layout, self.mutexes)
        self.flusher = BackgroundFlusher()
        #: The directories that are no symlinks, by kind, or for a nested kind by their path.
        self._checked_directories: dict[str, str] = {}
        call_in_child(self, FileStorage.forget_parent)

    def hold(self, kind: str, id: str, timeout_s: float | None = None) -> HeldDocument:
        """One document, whose mutex is held in a `with` block. Raises `StoreBusy`, `Refused`."""
        if kind not in self._checked_directories:
            self._directory(kind, id)
        held = HeldDocument(self, kind, id, self._timeout_s if timeout_s is None else timeout_s)
        self._format_record.update()
        return held

    def _directory(self, kind: str, id: str = "") -> str:
        """The directory of a document, or of all of a kind. Raises Refused, at its first use, when
        it or one around it is a symlink; for a local kind at each use.

        Behind it may lie another store's documents, which have another mutex there.
        """
        directory = self.layout.directory(kind, id) if id else self.layout.documents(kind)
        checked = directory if kind in NESTED else kind
        if checked not in self._checked_directories:
            with whole_files.translate_errors(directory, "look at"):
                self.layout.check(self.sys, directory)
            if kind not in LOCAL:
                self._checked_directories[checked] = directory
        return directory

    def path(self, kind: str, id: str) -> str:
        """Where the document lies."""
        return self.layout.document(kind, id)

    def exists(self, kind: str, id: str) -> bool:
        """Whether a file of that name is there."""
        return self.find(kind, check_id(id)) is not None

    def recorded_header(self, kind: str, id: str) -> StateHeader | None:
        """How the store left a document, whatever became of the file and the machine since; None
        without a note.
        """
        decoded_header = decode_header(self.raw_header(kind, id))
        return decoded_header and decoded_header[0]

    def raw_header(self, kind: str, id: str) -> bytes:
        """The bytes of a document's note, and the mark behind it if there is one; a note that is
        being written may look torn. Empty: there is none."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = self.sys.open(self.mutex_files.file(f"{kind}-{id}"), flags)
            try:
                return self.sys.pread(fd, HEADER_BYTES + len(MARKED), 0)
            finally:
                self.sys.close(fd)
        except OSError:
            return b""

    def mark_unflushed(self, kind: str, id: str) -> None:
        """Have everybody know that a flush of a document or its log failed: the next holder of its
        mutex writes all anew, and whoever flushed the log meanwhile does not acknowledge by it.
        Takes no mutex."""
        with (
            suppress(OSError),
            whole_files.open_file(self.sys, self.mutex_files.file(f"{kind}-{id}"), _MARKING) as fd,
        ):
            if (
                self.sys.fstat(fd).st_size >= HEADER_BYTES
            ):  # Else there is nothing to go by without a look at all.
                self.sys.pwrite(fd, MARKED, HEADER_BYTES)

    def may_be_incomplete(self, kind: str, id: str) -> bool:
        """Whether a power cut may have taken some of what was appended to a document, which its log
        has then.

        Costs reading the log. Takes no mutex.
        """
        with suppress(OSError):
            log = Log.open(self.sys, f"{self.logs.path}/{kind}-{id}", None)
            if log is not None:
                log.close()
                return not log.position.is_durable
        return False

    def current_header(self, kind: str, id: str) -> StateHeader | None:
        """A document as the store left it; None when the file has changed, or a writer is at work.
        Takes no mutex.
        """
        path = self.layout.document(kind, id)
        header = self.recorded_header(kind, id)
        if header is None or header.boot_id != self.boot_id:
            return None
        try:
            status = self.sys.lstat(path)
        except OSError:
            return None
        return header if whole_files.signature_of(status) == header.signature else None

    def is_unchanged(self, kind: str, id: str) -> bool:
        return self.current_header(kind, id) is not None

    def open(self, path: str, flags: int = os.O_RDONLY) -> tuple[int, os.stat_result]:
        """Open a document. Raises FileNotFoundError, `InvalidDocument`, OSError."""
        return whole_files.open_regular(self.sys, path, flags, self._document_bytes)

    def read_file(self, path: str) -> bytes:
        """The bytes of a file as large as a document at most. Raises FileNotFoundError,
        `InvalidDocument`, OSError.
        """
        return whole_files.read_regular(self.sys, path, self._document_bytes)

    @contextmanager
    def _opened(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        """A document open for reading. Raises `NotFound`, and as `open`."""
        try:
            fd, status = whole_files.open_regular(self.sys, path, os.O_RDONLY, self._document_bytes)
            try:
                yield fd, status
            finally:
                self.sys.close(fd)
        except FileNotFoundError:
            raise NotFound(
                f"{path} is gone", id=os.path.basename(path).removesuffix(_SUFFIX)
            ) from None
        except OSError as error:
            raise whole_files.as_capsule_error(error, path, "read") from error

    def read(self, kind: str, id: str, offset: int = 0) -> tuple[bytes, Signature] | None:
        """A file from a byte on and its signature, without the mutex; None when there is none.

        A file that changed while it was read has a signature that no file has. Costs reading what
        is behind the byte.
        """
        with suppress(NotFound), self._opened(self.layout.document(kind, id)) as (fd, status):
            if kind not in self._checked_directories:
                self._directory(kind, id)
            size = max(status.st_size - offset, 0)
            data, signature = (
                whole_files.pread_all(self.sys, fd, size, offset),
                whole_files.signature_of(status),
            )
            unchanged = whole_files.signature_of(self.sys.fstat(fd)) == signature
            return data, signature if unchanged else NO_SIGNATURE
        return None

    def read_head_and_end(self, path: str) -> tuple[bytes, bytes]:
        """The first bytes of a file, up to and with the line of `context`, and its last 8. Raises
        `NotFound`.

        Costs an open and two reads, when the head is of a usual size.
        """
        with self._opened(path) as (fd, status):
            data = self.sys.pread(fd, _FIRST_READ, 0)
            wanted = _FIRST_READ
            while _CONTEXT_LINE not in data and len(data) == wanted:
                wanted *= 8
                data = whole_files.pread_all(self.sys, fd, wanted)
            if len(data) == status.st_size:
                return data, data[-8:]
            return data, self.sys.pread(fd, 8, max(status.st_size - 8, 0))

    def ids_ever_written(self, kind: str) -> list[str]:
        """The ids of the documents that were ever written here, whatever became of them. Costs one
        scandir.
        """
        with whole_files.translate_errors(self.mutex_files.path, "list"):
            names = (
                name.removeprefix(f"{kind}-")
                for name in self.mutex_files.files()
                if name.startswith(f"{kind}-")
            )
            return [id for id in names if is_id(id)]

    def tail(self, kind: str, id: str, header: StateHeader, n: int) -> bytes | None:
        """The last `n` entries as a JSON array; None when the file changed meanwhile.

        Costs reading the entries asked for.
        """
        anatomy = header.anatomy
        if anatomy is None:
            return None
        with suppress(NotFound), self._opened(self.layout.document(kind, id)) as (fd, status):
            chunk = _TAIL_CHUNK
            while whole_files.signature_of(status) == header.signature:
                start = max(anatomy.history, anatomy.tail - chunk)
                entries, count = last_entries(
                    whole_files.pread_all(self.sys, fd, anatomy.tail - start, start), n
                )
                if count >= n or start == anatomy.history:
                    return entries
                chunk *= 4
        return None

    def ids(self, kind: str) -> list[str]:
        """The ids of all documents of a kind, sorted. Costs listing a directory; of a nested kind
        as `scan`.
        """
        if kind in NESTED:
            return sorted(scanned.id for scanned in self.scan(kind))
        directory = self.layout.documents(kind)
        try:
            names = self.sys.listdir(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise whole_files.as_capsule_error(error, directory, "list") from error
        self._directory(kind)
        return sorted(
            name[: -len(_SUFFIX)] for name in names if name.endswith(_SUFFIX) and name[0] != "."
        )

    def scan(self, kind: str) -> Iterator[ScannedFile]:
        """Every document of a kind, in no order. Costs one scandir, and an lstat a file."""
        with whole_files.translate_errors(self._directory(kind), "list"):
            try:
                for name, path, status in self._names(kind):
                    if name.endswith(_SUFFIX) and not name.startswith("."):
                        regular = stat.S_ISREG(status.st_mode)
                        yield ScannedFile(
                            name[: -len(_SUFFIX)],
                            path,
                            whole_files.signature_of(status),
                            regular,
                            status.st_nlink,
                        )
            except FileNotFoundError:
                return

    def _names(self, kind: str) -> Iterator[tuple[str, str, os.stat_result]]:
        """What lies among the documents of a kind: its name, which for a nested kind is the one
        that it would have if all had one directory; its path; and its lstat."""
        directory = self.layout.documents(kind)
        for name, status in self.sys.names(directory):
            if kind not in NESTED:
                yield name, f"{directory}/{name}", status
            elif is_id(name) and stat.S_ISDIR(status.st_mode):
                paths = {
                    f"{name}{_SUFFIX}": self.layout.document(kind, name),
                    f".{name}.tmp": self.layout.temporary(kind, name),
                }
                for flat, path in paths.items():
                    with suppress(FileNotFoundError):
                        status = self.sys.lstat(path)
                        yield flat, path, status

    def find(self, kind: str, id: str) -> ScannedFile | None:
        """One document as a scan meets it; None when there is none of that name. Any text may be
        the id.
        """
        if "/" in id or "\0" in id or id.startswith("."):
            return None
        directory = self._checked_directories.get(kind) or self._directory(kind, id)
        path = f"{directory}/{kind if kind in NESTED else id}{_SUFFIX}"
        try:
            status = self.sys.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise whole_files.as_capsule_error(error, path, "look for") from error
        return ScannedFile(
            id,
            path,
            whole_files.signature_of(status),
            stat.S_ISREG(status.st_mode),
            status.st_nlink,
        )

    def tracker(self, kind: str) -> Tracker | None:
        """What tells which documents of a kind are touched from now on; None where the system
        can't.
        """
        from capsule.disk.directory_tracker import open_tracker

        return open_tracker(self.layout.documents(kind), _SUFFIX)

    def wakeup_tracker(self, kind: str | None) -> Tracker:
        """What wakes those who wait for documents of a kind, or for any mutex file (None). Raises
        `StorageFailed`, `Refused`."""
        from capsule.disk.directory_tracker import (
            DirectoryTracker,
        )  # Seldom needed, and ctypes with it.

        directory = self.mutex_files.path if kind is None else self.layout.documents(kind)
        with whole_files.translate_errors(directory, "watch"):
            if kind is None:
                self.mutex_files.ensure()
            return DirectoryTracker(directory, _SUFFIX if kind else "")

    committed_version = staticmethod(committed_version)

    def clear_temporary(self, kind: str, id: str) -> str:
        """Put away a temporary that a dead writer left; the caller holds the mutex. In words what
        was done.
        """
        temporary = self.layout.temporary(kind, id)
        with suppress(FileNotFoundError):
            if (
                self.sys.lstat(temporary).st_ino
                == self.sys.lstat(self.layout.document(kind, id)).st_ino
            ):
                self.sys.unlink(temporary)
                return f"{temporary}: unlinked, it was a second name of the document"
        # It may be a version that an editor saved in the instant of a crash: kept, never unlinked.
        kept = self.trash_directories.move(temporary, QUARANTINE, kind, id, "leftover")
        return f"{temporary}: moved to {kept}"

    def read_stray(self, kind: str, name: str) -> bytes | None:
        scanned = self.find(kind, name)
        if scanned is None or not scanned.is_regular:
            return None
        with whole_files.translate_errors(scanned.path, "read"), suppress(FileNotFoundError):
            return self.read_file(scanned.path)
        return None

    def quarantine_file(self, kind: str, name: str, id: str, reason: str) -> str:
        scanned = self.find(kind, name)
        if scanned is None:
            raise NotFound(f"there is no longer a file {name[:200]!r}", id=id)
        with whole_files.translate_errors(scanned.path, "put away"):
            whole_files.ensure_regular(self.sys, scanned.path)
            return self.trash_directories.move(scanned.path, QUARANTINE, kind, check_id(id), reason)

    def leftovers(self, kind: str) -> list[Leftover]:
        """Takes the mutex of each document that seems to have one."""
        with whole_files.translate_errors(self.layout.root, "list"):
            dead = [(id, self.layout.derived("instances", id)) for id in self.leases.dead()]
            leftovers = [
                Leftover("instance", id, path, "left by a process that is dead")
                for id, path in dead
            ]
            present, temporaries = set(), []
            with suppress(FileNotFoundError):
                for name, *_ in self._names(kind):
                    if name.startswith(".") and name.endswith(".tmp"):
                        temporaries.append(name[1:-4])
                    present.add(name)
            for id in temporaries:
                with suppress(CapsuleError), self.hold(kind, id):
                    path = self.layout.temporary(kind, id)
                    with suppress(FileNotFoundError):
                        self.sys.lstat(path)
                        leftovers.append(
                            Leftover("temporary", id, path, "left by a writer that is dead")
                        )
            for name in self.mutex_files.files():
                id = name.removeprefix(f"{kind}-")
                if (
                    id != name
                    and is_id(id)
                    and f"{id}{_SUFFIX}" not in present
                    and self.recorded_header(kind, id)
                ):
                    reason = "was written by the store and then removed by something else"
                    leftovers.append(
                        Leftover("vanished", id, self.layout.document(kind, id), reason)
                    )
        return leftovers

    def sweep(self, kind: str, leftover: Leftover) -> str:
        with whole_files.translate_errors(leftover.path, "put away"):
            if leftover.kind == "instance":
                self.leases.sweep(leftover.id)
                return f"{leftover.path}: unlinked"
            with self.hold(kind, leftover.id) as held:
                if leftover.kind == "temporary":
                    return self.clear_temporary(kind, leftover.id)
                if held.read() is None:
                    held.drop_header_and_log()
                return f"{leftover.path}: forgotten"

    def make_durable(self, kind: str, id: str, timeout_s: float) -> None:
        """Make a document durable, if it is there; its mutex is waited for so many seconds. Raises
        `StoreBusy`.
        """
        if self.exists(kind, id):
            with suppress(ConcurrentWrite), self.hold(kind, id, timeout_s) as held:
                # Whoever takes in what another program has just written does the rest.
                held.make_durable()

    def close(self) -> None:
        """Flush what was appended; give back every descriptor and the instance file."""
        self.flusher.flush()
        self.leases.close()
        self.mutexes.close()

    def forget_parent(self) -> None:
        """In a forked child: share nothing with the parent."""
        self.flusher = BackgroundFlusher()
        self.mutexes.forget()
        self.leases.forget()


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

    def write(self, kind: str, id: str, name: str, data: bytes) -> str:
        """Costs writing and flushing it; or reading it, if it is there."""
        layout, sys = self._layout, self._sys
        folder, path = self._place(kind, id, name)
        with whole_files.translate_errors(path, "write"):
            there = self._content(folder, path)
            if there is None:
                layout.ensure(sys, folder)
                # Among the halves of copies that are purged, as nobody looks for one here.
                halves = StoreDirectory(layout, sys, TRASH)
                halves.ensure()
                half = halves.file(f".{kind}-{new_id()}.{os.getpid()}.tmp")
                write = partial(whole_files.pwrite_all, sys, data=data, offset=0)
                sys.close(whole_files.write_new(sys, half, layout.file_mode, write))
                try:
                    whole_files.link(sys, half, path)
                except FileExistsError:
                    there = self._content(folder, path)
                finally:
                    whole_files.unlink_if_exists(sys, half)
            if there not in (None, data):
                raise Refused(
                    f"{path} is there already, with another content; choose another name", path=path
                )
            whole_files.sync_directory(sys, folder)
        return path

    def read(self, kind: str, id: str, name: str) -> bytes:
        folder, path = self._place(kind, id, name)
        with whole_files.translate_errors(path, "read"):
            data = self._content(folder, path)
        if data is None:
            raise NotFound(f"there is no {path}", id=name)
        return data

    def names(self, kind: str, id: str) -> list[str]:
        """Costs one scandir, and an lstat a file."""
        folder = self._layout.folder(kind, id)
        with whole_files.translate_errors(folder, "list"), suppress(FileNotFoundError):
            self._layout.check(self._sys, folder)
            names = (
                (name, status)
                for name, status in self._sys.names(folder)
                if not name.startswith(".")
            )
            return sorted(name for name, status in names if stat.S_ISREG(status.st_mode))
        return []

    def erase(self, kind: str, id: str, name: str) -> None:
        folder, path = self._place(kind, id, name)
        with whole_files.translate_errors(path, "erase"):
            self._layout.check(self._sys, folder)
            whole_files.unlink_if_exists(self._sys, path)

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
        self.entries = storage.trash_directories.trashed
        self.read = storage.trash_directories.read
        self.erase = storage.trash_directories.erase

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> Trashed:
        keeping = self._storage.trash_directories
        with whole_files.translate_errors(self._storage.layout.derived(TRASH), "write in"):
            return keeping.trashed_as(
                os.path.basename(keeping.store(data, TRASH, kind, check_id(id), at=deleted_at))
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
        gone = storage.trash_directories.purge(older_than_s)
        for name in ((kind, id) for kind in WITH_ENTRIES for id in storage.ids_ever_written(kind)):
            try:
                retry(partial(purge_log_texts, storage, *name))
            except InvalidDocument as error:
                _log.warning("%s; the log of it was not purged", error.message)
        self._drop_index()
        return gone


class LocalFiles(LocalDocuments):
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

        retry(edit, self._storage.path(kind, id), id, _TRIES)

    def _delete(self, kind: str, id: str) -> None:
        with self._storage.hold(kind, id) as held:
            if self._storage.exists(kind, id):
                held.delete()

    def _is_ours(self, kind: str, id: str, signature: Signature) -> bool:
        """Whether this user wrote the file here, as a clone can carry any other.

        The note knows the inode and the times of what was written, which nobody can foretell of a
        clone.
        """
        noted = self._storage.recorded_header(kind, id)
        if noted is None or noted.signature != signature:
            return False
        with suppress(OSError):
            return self._storage.sys.lstat(self._storage.path(kind, id)).st_uid == os.geteuid()
        return False
