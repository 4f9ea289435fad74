"""Import files again whenever another program changes them: `import --follow`.

`follow` imports everything once, and then each file that `FolderWatch` reports. `GrowingFiles`
reads only the appended part of a file of lines from the disk, though the importer still gets the
whole file. A change is usually imported within a second: the system reports it, or the files are
compared every half second. But changes wait while an import runs.

What must stay true: damage of one file is reported and ends that file only. A file whose last line
is not complete yet is not damaged, since the next import reads the rest. A file that is deleted
before its import is skipped. Any other error of an import ends `follow`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn

from capsule.disk.directory_tracker import WatchfilesWatcher
from capsule.errors import NotFound
from capsule.transfer.importing import Import
from capsule.transfer.reading.files import HEAD_BYTES, Damage, Problems
from capsule.transfer.reading.json_stream import END_MISSING, shape_of
from capsule.transfer.reading.sources import (
    OpenFile,
    from_disk,
    is_entered,
    on_disk,
    unpacked,
    walk,
)
from capsule.transfer.registry import format_named, format_of

if TYPE_CHECKING:
    from capsule.store.store import CoreStore
    from capsule.transfer.drafts.import_records import ImportResult, Report


#: Changes within this time, in milliseconds, are imported together.
_BATCH_MS = 200
#: The contents of growing files that are kept in memory, in bytes.
_MAX_KEPT_BYTES = 1 << 27
#: The bytes that are compared at the beginning and at the end of a growing file.
_COMPARED_BYTES = 4096
#: The ends of the names of a database's logs, which have its latest changes.
_LOG_ENDINGS = ("-wal", "-journal", "-shm")


def follow(
    store: CoreStore,
    paths: list[str],
    report_item: Callable[[ImportResult | Damage], object],
    *,
    format: str | None = None,
    on_conflict: str = "skip",
    is_trusted: bool = False,
) -> NoReturn:
    """Import files and folders, and again whenever they change, until an error is raised.

    Args:
        store: The store.
        paths: The files and folders. A folder has all folders in it, also new ones.
        report_item: Gets each conversation as soon as it is imported, and each note and damage.
        format, on_conflict, is_trusted: Arguments of `store.import_`.

    Raises the errors of `store.import_`.

    Cost: reading the appended part of a file of lines, and other files whole.
    """
    tops = [os.path.abspath(path) for path in paths]
    watch = FolderWatch(tops)
    growing_files = GrowingFiles()

    def import_paths(*some_paths: str) -> None:
        reported = 0

        def progress(bytes_done: int, total_bytes: int, report: Report) -> None:
            nonlocal reported
            for result in report.conversations[reported:]:
                report_item(result)
            reported = len(report.conversations)

        options: Any = {"format": format, "on_conflict": on_conflict, "is_trusted": is_trusted}
        report = store.inner.object_of(Import)(
            *some_paths, progress=progress, open_file=growing_files, **options
        )
        for damage in report.remarks:
            if END_MISSING not in damage.reason:
                report_item(damage)

    import_paths(*tops)
    while True:
        changed = {_path_to_import(path, tops, format, growing_files) for path in watch.changed()}
        for path in sorted(path for path in changed if path is not None):
            with suppress(NotFound):  # It is deleted meanwhile.
                import_paths(path)


def _path_to_import(
    path: str, tops: list[str], format: str | None, open_file: OpenFile
) -> str | None:
    """Return the path to import when a file changed. None: no path.

    It is the file itself, or its database if it is the log of one. If no format reads the file
    alone, it may be a part of another file: then it is the folder of `tops` that has it, whole.
    """
    database_or_file = path
    for ending in _LOG_ENDINGS:
        database_or_file = database_or_file.removesuffix(ending)
    if not os.path.isfile(database_or_file):
        return None
    only_format = format_named(format) if format else None
    for part in unpacked(on_disk(Path(database_or_file), Problems(), open_file)):
        if format_of(part, only_format) is not None:
            return database_or_file
    return next((top for top in tops if Path(database_or_file).is_relative_to(top)), None)


class _FileState(NamedTuple):
    """The state of a file when it was read.

    Attributes:
        inode: Its inode.
        size: Its size in bytes.
        time_ns: The time of its last change.
    """

    inode: int
    size: int
    time_ns: int


class GrowingFiles:
    """Opens files. Of a file of lines that only grew, just the new part is read from the disk.

    The contents of such files are kept in memory, 128 MiB together: those that were read last. A
    file that has the same inode, is larger and has the same ends of the kept content counts as
    grown.
    """

    def __init__(self) -> None:
        #: By path, the state in which a file was read, and its content.
        self._contents: dict[Path, tuple[_FileState, bytes]] = {}

    def __call__(self, path: Path) -> IO[bytes]:
        """Open a file for reading. Raises OSError."""
        with from_disk(path) as file:
            stat = os.fstat(file.fileno())
            state = _FileState(inode=stat.st_ino, size=stat.st_size, time_ns=stat.st_mtime_ns)
            # Without content, so that a file that is not kept is read below.
            old_state, data = self._contents.pop(path, (state, b""))
            if old_state != state or not data:
                has_grown = old_state.inode == state.inode and old_state.size < state.size
                is_appended = has_grown and _has_kept_content(file, data)
                file.seek(0)
                if not is_appended:
                    data = file.read(HEAD_BYTES)
                if state.size > _MAX_KEPT_BYTES or shape_of(data[:HEAD_BYTES]) != "lines":
                    return from_disk(path)  # Opened as any other file, and not kept.
                file.seek(len(data))
                data += file.read()
                # Another program may have appended since the size was read.
                state = state._replace(size=len(data))
        self._contents[path] = (state, data)  # The last one, so that it is forgotten last.
        while sum(len(content) for _, content in self._contents.values()) > _MAX_KEPT_BYTES:
            del self._contents[next(iter(self._contents))]
        return BytesIO(data)


def _has_kept_content(file: IO[bytes], data: bytes) -> bool:
    """Return whether a file still begins with its kept content.

    Only the beginning and the end of this content are compared.
    """
    for offset in (0, max(len(data) - _COMPARED_BYTES, 0)):
        piece = data[offset : offset + _COMPARED_BYTES]
        file.seek(offset)
        if file.read(len(piece)) != piece:
            return False
    return True


class FolderWatch:
    """Reports which of the given files, and of the files in the given folders, were written.

    watchfiles watches each folder. A new folder, and a failure of watchfiles, start another
    watcher. Files that were written meanwhile are found by their times and sizes.

    Args:
        paths: The files and folders, absolute. A folder has all folders in it.
    """

    def __init__(self, paths: list[str]) -> None:
        self._files = {path for path in paths if not os.path.isdir(path)}
        self._tops = [path for path in paths if os.path.isdir(path)]
        #: For each file the time of its change and its size at the last look.
        self._signatures: dict[str, tuple[int, int]] = {}
        # The caller imports the files that exist now.
        self._restart_watcher_and_compare()

    def _restart_watcher_and_compare(self) -> set[str]:
        """Watch the folders that exist now. Return the files that changed since the last look."""
        watched: set[str] | None = None
        folders = self._folders_to_watch()
        while watched != folders:  # A folder that was created meanwhile is watched too.
            try:
                self._watcher = WatchfilesWatcher(sorted(folders))
                watched = folders
            except FileNotFoundError:  # One of them was deleted meanwhile.
                watched = None
            folders = self._folders_to_watch()
        #: The folders by the real paths that watchfiles reports.
        self._folders = {os.path.realpath(folder): folder for folder in folders}
        return self._changed_files()

    def _folders_to_watch(self) -> set[str]:
        """Return the existing folders in which a file to import may be or appear."""
        folders = {os.path.dirname(path) for path in self._files}
        for top in self._tops:
            folders.update(path for path, _ in walk(top, top))
        return {folder for folder in folders if os.path.isdir(folder)}

    def _changed_files(self) -> set[str]:
        """Return the files that are new or changed since the last look."""
        paths = set(self._files)
        for top in self._tops:
            for folder, names in walk(top, top):
                paths.update(os.path.join(folder, name) for name in names)
        signatures = {}
        for path in paths:
            with suppress(OSError):
                stat = os.stat(path)
                signatures[path] = (stat.st_mtime_ns, stat.st_size)
        old_signatures = self._signatures
        self._signatures = signatures
        return {
            path for path, signature in signatures.items() if old_signatures.get(path) != signature
        }

    def changed(self) -> set[str]:
        """Wait for changes, and return the files written since the last call.

        Raises KeyboardInterrupt.
        """
        reported = self._watcher.wait(_BATCH_MS)
        if reported is None:  # The watcher failed, so any file may have changed.
            return self._restart_watcher_and_compare()
        paths = set()
        for path in reported:
            folder, name = os.path.split(path)
            paths.add(os.path.join(self._folders.get(folder, folder), name))
        if any(os.path.isdir(path) and self._is_new(path) for path in paths):
            paths |= self._restart_watcher_and_compare()
        elif not reported.isdisjoint(self._folders):
            # A watched folder itself is reported. A watcher that compares files does so if any
            # file in it may have changed. The kernel does so if another folder has its name now.
            if self._watcher.polls:
                paths |= self._changed_files()
            else:
                paths |= self._restart_watcher_and_compare()
        return {path for path in paths if self._is_to_import(path) and not os.path.isdir(path)}

    def _is_to_import(self, path: str) -> bool:
        """Return whether a file is one of the given files or in one of the given folders."""
        # SQLite may write only the `-wal` log. It writes the database itself with any other log.
        if path.removesuffix("-wal") in self._files:
            return True
        top = self._top_of(path)
        return top != "" and is_entered(os.path.dirname(path), top)

    def _is_new(self, folder: str) -> bool:
        """Return whether a folder is not watched yet, and may have files to import."""
        top = self._top_of(folder)
        if top == "" or folder in self._folders.values():
            return False
        return is_entered(folder, top, on_the_way=True)

    def _top_of(self, path: str) -> str:
        """Return the given folder where a path is, or that it is. Empty: it is in none."""
        return next((top for top in self._tops if f"{path}/".startswith(f"{top}/")), "")
