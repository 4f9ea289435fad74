"""The files of a store: documents, side files, the trash, and the documents of this machine.

`FileStorage` finds, reads and lists the documents below the directory of a store. It opens one
under its mutex (`hold`), and finds what other programs and dead processes left. `AttachedFiles`,
`FileTrash` and `LocalFiles` implement three interfaces of an engine on top of it.

A document of a *kind* is the file `{directory of the kind}/{id}.json`. A *nested* kind has a
directory for each document instead. A *local* kind belongs to this machine, in `.capsule/`. Each
document also has a mutex file with its *state header*: the signature, layout and tag of the version
that the store wrote or accepted last. The *failure mark* is a byte after the header: a flush of the
document or its log failed.

A reader takes no mutex. It compares the signature of the file with the header, before and after it
reads. A write is the work of the `HeldDocument` that `hold` returns.

What must stay true:

- This module knows kinds, ids and the canonical layout, but no conversations.
- Every write of a document happens under its mutex. A read takes the mutex only if a writer may be
  at work or dead: in `LocalFiles`, for a file that its header does not describe, and in
  `leftovers`, for a document with a temporary file.
- A side file is durable before it gets its name, and its content never changes.
- A directory that is a symlink is refused when it is first used, and a directory of a local kind or
  of side files at each use. Methods that take a path, `tail` and the trackers do not check it.
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
from capsule.disk.whole_files import (
    NO_SIGNATURE,
    FileContent,
    Signature,
    as_capsule_error,
    open_file,
    signature_of,
    translate_errors,
)
from capsule.engines.files.disk.derived import DerivedFiles
from capsule.engines.files.disk.format_record import FormatRecord
from capsule.engines.files.disk.leases import FileLeases
from capsule.engines.files.disk.log import BackgroundFlusher, Log
from capsule.engines.files.disk.mutex import Mutexes
from capsule.engines.files.disk.store_paths import KINDS, LOCAL, NESTED, StoreDirectory, StorePaths
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

_log = logging.getLogger("capsule")
_SUFFIX = ".json"
_WRITE_FLAGS = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: The bytes that are read first of a head and of a tail, and the factors by which that grows.
_FIRST_HEAD_BYTES = 4096
_HEAD_GROWTH = 8
_FIRST_TAIL_BYTES = 64 * 1024
_TAIL_GROWTH = 4
#: More bytes than a canonical file has after its last entry.
_END_BYTES = 8
_CONTEXT_LINE = b'\n  "context": '
#: How often an edit of a local document is tried if others write it meanwhile.
_EDIT_TRIES = 50


class FileStorage:
    """A store's documents as files below one directory. It implements `ExternalEdits`, which
    describes the methods without a docstring.

    Args:
        root: The directory of the store.
        shared: See `StorePaths`.
        append: "splice", or "replace" for a store in which an append writes a new file.
        mutex_timeout_s: How long to wait for a mutex, in seconds, if the caller does not say it.
        document_bytes: The size of the largest document that is read, in bytes. A larger one counts
            as damaged.
        sys: The system calls. None: those of the system.

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
        self.paths = StorePaths(root, shared)
        self.replaces_on_append = append == "replace"
        self.document_flags = os.O_RDONLY if self.replaces_on_append else os.O_RDWR
        self.trash_directories = TrashDirectories(self.sys, self.paths, document_bytes)
        self.derived = DerivedFiles(self.paths, self.sys)
        #: The run of the machine, and the disk. A state header of another one proves nothing.
        self.boot_id = f"{self.sys.boot() or 'unknown'} {self.sys.device(root):x}"
        self._timeout_s = mutex_timeout_s
        self._document_bytes = document_bytes
        self.mutex_files = StoreDirectory(self.paths, self.sys, "mutex")
        self.logs = StoreDirectory(self.paths, self.sys, "logs")
        self._format_record = FormatRecord(self.paths, self.sys)
        self.mutexes = Mutexes(self.sys, self.mutex_files)
        # Weak, because a reference cycle would keep the descriptors open.
        self.sys.close_idle = weakref.WeakMethod(self.mutexes.close_idle)
        self.leases = FileLeases(self.sys, self.paths, self.mutexes)
        self.flusher = BackgroundFlusher()
        #: The directories that are known not to be symlinks, by kind, or for a nested kind by path.
        self._checked_directories: dict[str, str] = {}
        call_in_child(self, FileStorage.forget_parent)

    def hold(self, kind: str, id: str, timeout_s: float | None = None) -> HeldDocument:
        """Return a document whose mutex is held in a `with` block. Raises `StoreBusy`, `Refused`.

        Args:
            kind, id: The document.
            timeout_s: How long to wait for the mutex, in seconds. None: as the store is set.
        """
        if kind not in self._checked_directories:
            self._directory(kind, id)
        if timeout_s is None:
            timeout_s = self._timeout_s
        held_document = HeldDocument(self, kind, id, timeout_s)
        self._format_record.update()
        return held_document

    def _directory(self, kind: str, id: str = "") -> str:
        """Return the directory of a document, or of all documents of a kind.

        Raises `Refused` if it or a directory above it is a symlink. Another store's documents could
        be behind it, which have other mutexes there. Checked at the first use, and for a local kind
        at every use.
        """
        directory = self.paths.directory(kind, id) if id else self.paths.documents(kind)
        key = directory if kind in NESTED else kind
        if key not in self._checked_directories:
            with translate_errors(directory, "look at"):
                self.paths.check(self.sys, directory)
            if kind not in LOCAL:
                self._checked_directories[key] = directory
        return directory

    def path(self, kind: str, id: str) -> str:
        """Return the path of a document."""
        return self.paths.document(kind, id)

    def exists(self, kind: str, id: str) -> bool:
        """Check that a file of this name exists."""
        return self.find(kind, check_id(id)) is not None

    # -- State headers -----------------------------------------------------------------------------

    def recorded_header(self, kind: str, id: str) -> StateHeader | None:
        """Return the state header of a document, even if it no longer describes the file.

        Returns None if there is no valid header.
        """
        decoded = decode_header(self.raw_header(kind, id))
        return decoded[0] if decoded is not None else None

    def current_header(self, kind: str, id: str) -> StateHeader | None:
        """Return the state header of a document if it describes the file. Takes no mutex.

        Returns None if the file changed, while a writer is at work, or if the header is of an
        earlier run of the machine.
        """
        path = self.paths.document(kind, id)
        header = self.recorded_header(kind, id)
        if header is None or header.boot_id != self.boot_id:
            return None
        try:
            status = self.sys.lstat(path)
        except OSError:
            return None
        return header if signature_of(status) == header.signature else None

    def is_unchanged(self, kind: str, id: str) -> bool:
        return self.current_header(kind, id) is not None

    def raw_header(self, kind: str, id: str) -> bytes:
        """Return the bytes of a state header, and of the failure mark if it is set.

        A header that is being written may look torn. Empty: there is none.
        """
        try:
            fd = self.sys.open(self.mutex_files.file(f"{kind}-{id}"), _READ_FLAGS)
            try:
                return self.sys.pread(fd, HEADER_BYTES + len(MARKED), 0)
            finally:
                self.sys.close(fd)
        except OSError:
            return b""

    def mark_unflushed(self, kind: str, id: str) -> None:
        """Set the failure mark: a flush of a document or its log failed. Takes no mutex.

        The next holder of the mutex writes everything anew. Whoever flushed the log meanwhile does
        not acknowledge its write.
        """
        with suppress(OSError):
            path = self.mutex_files.file(f"{kind}-{id}")
            with open_file(self.sys, path, _WRITE_FLAGS) as fd:
                # Without a header the next holder reads everything anyway.
                if self.sys.fstat(fd).st_size >= HEADER_BYTES:
                    self.sys.pwrite(fd, MARKED, HEADER_BYTES)

    def may_be_incomplete(self, kind: str, id: str) -> bool:
        """Check if a power cut may have taken appended messages from a document that its log has.

        Cost: reading the log. Takes no mutex.
        """
        with suppress(OSError):
            # The position of its end is not known without the mutex, so the whole log is read.
            log = Log.open(self.sys, f"{self.logs.path}/{kind}-{id}", position=None)
            if log is not None:
                log.close()
                return not log.position.is_durable
        return False

    def ids_ever_written(self, kind: str) -> list[str]:
        """Return the ids of all documents that were ever written here. Cost: one scandir."""
        prefix = f"{kind}-"
        with translate_errors(self.mutex_files.path, "list"):
            ids = []
            for name in self.mutex_files.files():
                id = name.removeprefix(prefix)
                if name.startswith(prefix) and is_id(id):
                    ids.append(id)
            return ids

    # -- Reading -----------------------------------------------------------------------------------

    def open(self, path: str, flags: int = os.O_RDONLY) -> tuple[int, os.stat_result]:
        """Open a document, and return its descriptor and status.

        Raises FileNotFoundError, `InvalidDocument`, OSError.
        """
        return whole_files.open_regular(self.sys, path, flags, self._document_bytes)

    def read_file(self, path: str) -> bytes:
        """Read a file that is at most as large as a document may be.

        Raises FileNotFoundError, `InvalidDocument`, OSError.
        """
        return whole_files.read_regular(self.sys, path, self._document_bytes)

    @contextmanager
    def _open_for_reading(self, path: str) -> Iterator[tuple[int, os.stat_result]]:
        """Open a document in a `with` block. Raises `NotFound`, `InvalidDocument`, `StorageFailed`."""
        try:
            fd, status = whole_files.open_regular(self.sys, path, os.O_RDONLY, self._document_bytes)
            try:
                yield fd, status
            finally:
                self.sys.close(fd)
        except FileNotFoundError:
            id = os.path.basename(path).removesuffix(_SUFFIX)
            raise NotFound(f"{path} is gone", id=id) from None
        except OSError as error:
            raise as_capsule_error(error, path, "read") from error

    def read(self, kind: str, id: str, offset: int = 0) -> FileContent | None:
        """Read a document from byte `offset` on, without its mutex. None: there is no file.

        The signature is `NO_SIGNATURE` if the file changed meanwhile. Cost: reading these bytes.
        """
        path = self.paths.document(kind, id)
        with suppress(NotFound), self._open_for_reading(path) as (fd, status):
            # After the open, so that a missing file costs no check. Nothing was returned yet.
            if kind not in self._checked_directories:
                self._directory(kind, id)
            size = max(status.st_size - offset, 0)
            data = whole_files.pread_all(self.sys, fd, size, offset)
            signature = signature_of(status)
            if signature_of(self.sys.fstat(fd)) != signature:
                signature = NO_SIGNATURE
            return FileContent(data, signature)
        return None

    def read_head_and_end(self, path: str) -> tuple[bytes, bytes]:
        """Read the first bytes of a file, at least to the beginning of its context, and its last 8.

        Raises `NotFound`. Cost: an open and two reads, if the head is of a usual size.
        """
        with self._open_for_reading(path) as (fd, status):
            size = _FIRST_HEAD_BYTES
            data = self.sys.pread(fd, size, 0)
            while _CONTEXT_LINE not in data and len(data) == size:
                size *= _HEAD_GROWTH
                data = whole_files.pread_all(self.sys, fd, size)
            if len(data) == status.st_size:
                return data, data[-_END_BYTES:]
            end_offset = max(status.st_size - _END_BYTES, 0)
            return data, self.sys.pread(fd, _END_BYTES, end_offset)

    def tail(self, kind: str, id: str, header: StateHeader, n: int) -> bytes | None:
        """Return the last `n` entries as a JSON array.

        Returns None if the file is not the one that the header describes, or the header has no
        layout. Cost: reading these entries.
        """
        file_layout = header.file_layout
        if file_layout is None:
            return None
        path = self.paths.document(kind, id)
        with suppress(NotFound), self._open_for_reading(path) as (fd, status):
            if signature_of(status) != header.signature:
                return None
            size = _FIRST_TAIL_BYTES
            while True:
                start = max(file_layout.history, file_layout.tail - size)
                data = whole_files.pread_all(self.sys, fd, file_layout.tail - start, start)
                entries, count = last_entries(data, n)
                if count >= n or start == file_layout.history:
                    return entries
                size *= _TAIL_GROWTH
        return None

    # -- Lists -------------------------------------------------------------------------------------

    def ids(self, kind: str) -> list[str]:
        """Return the ids of all documents of a kind, sorted.

        Cost: listing a directory. For a nested kind: as `scan`.
        """
        if kind in NESTED:
            return sorted(scanned.id for scanned in self.scan(kind))
        directory = self.paths.documents(kind)
        try:
            names = self.sys.listdir(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise as_capsule_error(error, directory, "list") from error
        self._directory(kind)
        return sorted(name[: -len(_SUFFIX)] for name in names if _is_document(name))

    def scan(self, kind: str) -> Iterator[ScannedFile]:
        """Yield every document of a kind, in no order. Cost: one scandir, and an lstat a file."""
        with translate_errors(self._directory(kind), "list"):
            try:
                for name, path, status in self._names(kind):
                    if _is_document(name):
                        yield _scanned(name[: -len(_SUFFIX)], path, status)
            except FileNotFoundError:
                return

    def _names(self, kind: str) -> Iterator[tuple[str, str, os.stat_result]]:
        """Yield name, path and lstat of each file of a kind.

        If each document has its own directory, the name is built from the id: `ID.json`, `.ID.tmp`.
        """
        directory = self.paths.documents(kind)
        for name, status in self.sys.names(directory):
            if kind not in NESTED:
                yield name, f"{directory}/{name}", status
            elif is_id(name) and stat.S_ISDIR(status.st_mode):
                paths_by_name = {
                    f"{name}{_SUFFIX}": self.paths.document(kind, name),
                    f".{name}.tmp": self.paths.temporary(kind, name),
                }
                for built_name, path in paths_by_name.items():
                    with suppress(FileNotFoundError):
                        yield built_name, path, self.sys.lstat(path)

    def find(self, kind: str, id: str) -> ScannedFile | None:
        """Return one document as `scan` yields it. None: there is no file of this name.

        The id may be any text.
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
            raise as_capsule_error(error, path, "look for") from error
        return _scanned(id, path, status)

    def tracker(self, kind: str) -> Tracker | None:
        """Return a tracker of the documents of a kind, which answers at once. None: the system has
        none.
        """
        from capsule.disk.directory_tracker import open_tracker

        return open_tracker(self.paths.documents(kind), _SUFFIX)

    def wakeup_tracker(self, kind: str | None) -> Tracker:
        """Return a tracker that wakes a waiting thread.

        Args:
            kind: Track the documents of this kind. None: the mutex files, since every write of any
                document changes one.

        Raises `StorageFailed`, `Refused`.
        """
        # Seldom needed, and it imports ctypes.
        from capsule.disk.directory_tracker import DirectoryTracker

        if kind is None:
            with translate_errors(self.mutex_files.path, "watch"):
                self.mutex_files.ensure()
                return DirectoryTracker(self.mutex_files.path, suffix="")
        directory = self.paths.documents(kind)
        with translate_errors(directory, "watch"):
            return DirectoryTracker(directory, _SUFFIX)

    # -- What other programs and dead processes left -----------------------------------------------

    # A part of `ExternalEdits`.
    committed_version = staticmethod(committed_version)

    def clear_temporary(self, kind: str, id: str) -> str:
        """Remove a temporary file that a dead writer left. Return a description of the removal.

        The caller holds the document's mutex. Raises `OSError`.
        """
        temporary = self.paths.temporary(kind, id)
        with suppress(FileNotFoundError):  # There is no document.
            temporary_status = self.sys.lstat(temporary)
            if temporary_status.st_ino == self.sys.lstat(self.paths.document(kind, id)).st_ino:
                self.sys.unlink(temporary)
                return f"{temporary}: unlinked, it was a second name of the document"
        # It may be a version that an editor saved in the instant of a crash, so it is not deleted.
        quarantine_path = self.trash_directories.move(temporary, QUARANTINE, kind, id, "leftover")
        return f"{temporary}: moved to {quarantine_path}"

    def write_temporary(
        self, kind: str, id: str, write: Callable[[int], None], replaced_path: str | None
    ) -> int:
        """Write and flush a new version of a document under its temporary name.

        The caller holds the document's mutex.

        Args:
            kind, id: The document.
            write: Writes the version to a descriptor.
            replaced_path: The file whose owner and permissions the new file gets. None: it is a new
                document.

        Returns the descriptor of the new file. Raises `OSError`.
        """
        paths = self.paths
        temporary = paths.temporary(kind, id)
        write_new = partial(
            whole_files.write_new, self.sys, temporary, paths.file_mode, write, like=replaced_path
        )
        try:
            return write_new()
        except FileExistsError:
            self.clear_temporary(kind, id)
        except FileNotFoundError:
            paths.ensure(self.sys, paths.directory(kind, id))
        return write_new()

    def read_stray(self, kind: str, name: str) -> bytes | None:
        scanned = self.find(kind, name)
        if scanned is None or not scanned.is_regular:
            return None
        with translate_errors(scanned.path, "read"), suppress(FileNotFoundError):
            return self.read_file(scanned.path)
        return None

    def quarantine_file(self, kind: str, name: str, id: str, reason: str) -> str:
        scanned = self.find(kind, name)
        if scanned is None:
            raise NotFound(f"there is no longer a file {name[:200]!r}", id=id)
        with translate_errors(scanned.path, "put away"):
            whole_files.ensure_regular(self.sys, scanned.path)
            return self.trash_directories.move(scanned.path, QUARANTINE, kind, check_id(id), reason)

    def leftovers(self, kind: str) -> list[Leftover]:
        """Takes the mutex of each document that has a temporary file.

        There are three kinds of leftovers: "instance", the file of a process that is dead.
        "temporary", a new version that a dead writer did not put in place. "vanished", a document
        with a state header and without a file.
        """
        with translate_errors(self.paths.root, "list"):
            leftovers = []
            for instance in self.leases.dead():
                path = self.paths.derived("instances", instance)
                description = "left by a process that is dead"
                leftovers.append(Leftover("instance", instance, path, description))
            names: list[str] = []
            with suppress(FileNotFoundError):
                for name, *_ in self._names(kind):
                    names.append(name)
            for name in names:
                if name.startswith(".") and name.endswith(".tmp"):
                    leftovers += self._find_temporary(kind, name[1:-4])
            present_names = set(names)
            for name in self.mutex_files.files():
                id = name.removeprefix(f"{kind}-")
                is_of_kind = id != name and is_id(id)
                is_missing = f"{id}{_SUFFIX}" not in present_names
                if is_of_kind and is_missing and self.recorded_header(kind, id):
                    path = self.paths.document(kind, id)
                    description = "was written by the store and then removed by something else"
                    leftovers.append(Leftover("vanished", id, path, description))
        return leftovers

    def _find_temporary(self, kind: str, id: str) -> list[Leftover]:
        """Return the temporary file of a dead writer.

        Empty if its writer was alive: it has finished by the time that this has the mutex. Empty
        also if the mutex can't be had.
        """
        with suppress(CapsuleError), self.hold(kind, id):
            path = self.paths.temporary(kind, id)
            with suppress(FileNotFoundError):
                self.sys.lstat(path)
                return [Leftover("temporary", id, path, "left by a writer that is dead")]
        return []

    def sweep(self, kind: str, leftover: Leftover) -> str:
        with translate_errors(leftover.path, "put away"):
            if leftover.kind == "instance":
                self.leases.sweep(leftover.id)
                return f"{leftover.path}: unlinked"
            with self.hold(kind, leftover.id) as held_document:
                if leftover.kind == "temporary":
                    return self.clear_temporary(kind, leftover.id)
                if held_document.read() is None:
                    held_document.drop_header_and_log()
                # If the file is back, nothing has to be done.
                return f"{leftover.path}: forgotten"

    # -- The end -----------------------------------------------------------------------------------

    def make_durable(self, kind: str, id: str, timeout_s: float) -> None:
        """Flush a document, if it exists.

        Args:
            kind, id: The document.
            timeout_s: How long to wait for its mutex, in seconds.

        Raises `StoreBusy`, `StorageFailed`.
        """
        if self.exists(kind, id):
            # After another program's write, the next reconciliation does the rest.
            with suppress(ConcurrentWrite), self.hold(kind, id, timeout_s) as held_document:
                held_document.make_durable()

    def close(self) -> None:
        """Flush what was appended, and give back all descriptors and instance files."""
        self.flusher.flush()
        self.leases.close()
        self.mutexes.close()

    def forget_parent(self) -> None:
        """In a forked child: share nothing with the parent."""
        self.flusher = BackgroundFlusher()
        self.mutexes.forget_parent()
        self.leases.forget_parent()


def _is_document(name: str) -> bool:
    return name.endswith(_SUFFIX) and not name.startswith(".")


def _scanned(id: str, path: str, status: os.stat_result) -> ScannedFile:
    return ScannedFile(
        id, path, signature_of(status), stat.S_ISREG(status.st_mode), status.st_nlink
    )


class AttachedFiles:
    """The side files of a `FileStorage`. See `SideFiles`, which describes the methods."""

    def __init__(self, storage: FileStorage) -> None:
        self._storage = storage
        self._sys = storage.sys
        self._paths = storage.paths

    def write(self, kind: str, id: str, name: str, data: bytes) -> str:
        """Cost: writing and flushing the file, or reading it if it exists."""
        folder, path = self._folder_and_path(kind, id, name)
        with translate_errors(path, "write"):
            existing = self._read_if_exists(folder, path)
            if existing is None:
                self._paths.ensure(self._sys, folder)
                temporary = self._write_temporary(kind, data)
                # Unlike a rename, a link never replaces a file.
                try:
                    whole_files.link(self._sys, temporary, path)
                except FileExistsError:
                    existing = self._read_if_exists(folder, path)
                finally:
                    whole_files.unlink_if_exists(self._sys, temporary)
            if existing not in (None, data):
                raise Refused(
                    f"{path} is there already, with another content; choose another name", path=path
                )
            whole_files.sync_directory(self._sys, folder)
        return path

    def _write_temporary(self, kind: str, data: bytes) -> str:
        """Write a durable file without a final name, and return its path.

        It is in the trash, since a purge removes it from there if this process dies.
        """
        directory = StoreDirectory(self._paths, self._sys, TRASH)
        directory.ensure()
        path = directory.file(f".{kind}-{new_id()}.{os.getpid()}.tmp")
        write = partial(whole_files.pwrite_all, self._sys, data=data, offset=0)
        self._sys.close(whole_files.write_new(self._sys, path, self._paths.file_mode, write))
        return path

    def read(self, kind: str, id: str, name: str) -> bytes:
        folder, path = self._folder_and_path(kind, id, name)
        with translate_errors(path, "read"):
            data = self._read_if_exists(folder, path)
        if data is None:
            raise NotFound(f"there is no {path}", id=name)
        return data

    def names(self, kind: str, id: str) -> list[str]:
        """Cost: one scandir, and an lstat a file."""
        folder = self._paths.folder(kind, id)
        with translate_errors(folder, "list"), suppress(FileNotFoundError):
            self._paths.check(self._sys, folder)
            names = []
            for name, status in self._sys.names(folder):
                if not name.startswith(".") and stat.S_ISREG(status.st_mode):
                    names.append(name)
            return sorted(names)
        return []

    def erase(self, kind: str, id: str, name: str) -> None:
        folder, path = self._folder_and_path(kind, id, name)
        with translate_errors(path, "erase"):
            self._paths.check(self._sys, folder)
            whole_files.unlink_if_exists(self._sys, path)

    def _folder_and_path(self, kind: str, id: str, name: str) -> tuple[str, str]:
        folder = self._paths.folder(kind, id)
        return folder, f"{folder}/{check_file_name(name)}"

    def _read_if_exists(self, folder: str, path: str) -> bytes | None:
        self._paths.check(self._sys, folder)
        with suppress(FileNotFoundError):
            return self._storage.read_file(path)
        return None


class FileTrash:
    """The trash of a `FileStorage`. See `Trash`, which describes the methods.

    Args:
        storage: The files.
        drop_index: Empties the index, so that it is built anew.
    """

    def __init__(self, storage: FileStorage, drop_index: Callable[[], None]) -> None:
        self._storage = storage
        self._drop_index = drop_index
        self.entries = storage.trash_directories.entries
        self.read = storage.trash_directories.read
        self.erase = storage.trash_directories.erase

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> Trashed:
        trash = self._storage.trash_directories
        with translate_errors(self._storage.paths.derived(TRASH), "write in"):
            return trash.add(kind, check_id(id), data, deleted_at)

    def restore(self, kind: str, id: str, token: str) -> None:
        with self._storage.hold(kind, id) as held_document:
            held_document.restore(token)

    def purge(self, older_than_s: float) -> list[str]:
        """Sweep temporary files, erase old entries, and remove their texts from the logs.

        Cost: reading every conversation that was written here. The index is built anew.
        """
        storage = self._storage
        for kind in KINDS:
            for leftover in storage.leftovers(kind):
                if leftover.kind == "temporary":
                    storage.sweep(kind, leftover)
        purged_paths = storage.trash_directories.purge(older_than_s)
        for kind in WITH_ENTRIES:
            for id in storage.ids_ever_written(kind):
                try:
                    retry(partial(purge_log_texts, storage, kind, id))
                except InvalidDocument as error:
                    _log.warning("%s; the log of it was not purged", error.message)
        self._drop_index()
        return purged_paths


class LocalFiles(LocalDocuments):
    """The documents of this machine as files in `.capsule/`.

    A file that this user did not write here counts as missing. A repository can contain one, and
    the content of some kinds is run.
    """

    def __init__(self, storage: FileStorage) -> None:
        self._storage = storage

    def _ids(self, kind: str) -> list[str]:
        return self._storage.ids(kind)

    def _read(self, kind: str, id: str) -> bytes | None:
        content = self._storage.read(kind, id)
        if content is None:
            return None
        if self._is_own(kind, id, content.signature):
            return content.data
        # The header may not describe the file yet: its writer may be at work.
        with self._storage.hold(kind, id) as held_document:
            content = held_document.read()
            return self._own_data(kind, id, content)

    def _edit(self, kind: str, id: str, change: Callable[[bytes | None], bytes | None]) -> None:
        def edit() -> None:
            with self._storage.hold(kind, id) as held_document:
                content = held_document.read()
                new_data = change(self._own_data(kind, id, content))
                if new_data is not None:
                    # Also of a file that is not this user's, which is then replaced.
                    expected = content.signature if content is not None else None
                    held_document.replace(expected, new_data, None, [])

        retry(edit, self._storage.path(kind, id), id, _EDIT_TRIES)

    def _delete(self, kind: str, id: str) -> None:
        with self._storage.hold(kind, id) as held_document:
            if self._storage.exists(kind, id):
                held_document.delete()

    def _own_data(self, kind: str, id: str, content: FileContent | None) -> bytes | None:
        """Return the bytes of a file that this user wrote here. Any other file counts as missing."""
        if content is None or not self._is_own(kind, id, content.signature):
            return None
        return content.data

    def _is_own(self, kind: str, id: str, signature: Signature) -> bool:
        """Check that this user wrote the file here. A clone can contain any other file.

        The state header has the inode and the times of what was written, which nobody can foretell
        for a clone.
        """
        header = self._storage.recorded_header(kind, id)
        if header is None or header.signature != signature:
            return False
        with suppress(OSError):
            return self._storage.sys.lstat(self._storage.path(kind, id)).st_uid == os.geteuid()
        return False
