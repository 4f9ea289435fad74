"""Importing on and on, while another program writes.

What must stay true: a change is imported within a second. A file whose last line is not complete
yet is no damage: the next look has it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

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
    opened,
    walked,
)
from capsule.transfer.registry import format_named, format_of

if TYPE_CHECKING:
    from capsule.store.store import CoreStore
    from capsule.transfer.drafts.report import ImportResult, Report


#: What is written within this time, in milliseconds, is imported at once.
_TOGETHER_MS = 200
#: So many bytes of files that grow are kept, and so many of each are compared at two places.
_MOST_KEPT, _COMPARED = 1 << 27, 4096
#: Beside a database, what is not in it yet.
_LOGS = ("-wal", "-journal", "-shm")


def follow(
    store: CoreStore,
    paths: list[str],
    tell: Callable[[ImportResult | Damage], object],
    *,
    format: str | None = None,
    on_conflict: str = "skip",
    is_trusted: bool = False,
) -> NoReturn:
    """Import files and folders, and again whenever they change, until something is raised.

    Args:
        paths: The files and folders; a folder with all folders in it, those that come later too.
        tell: Takes each conversation as soon as it is imported, and each note and damage.
        format, on_conflict, is_trusted: Arguments of `store.import_`.

    Raises the errors of `store.import_`. Cost: reading what was appended to a file of lines, and
    others whole.
    """
    paths = [os.path.abspath(path) for path in paths]
    watch, growing = FolderWatch(paths), GrowingFiles()

    def take(*some: str) -> None:
        count = 0

        def progress(done: int, total: int, report: Report) -> None:
            nonlocal count
            for taken in report.conversations[count:]:
                tell(taken)
            count = len(report.conversations)

        how: Any = {"format": format, "on_conflict": on_conflict, "is_trusted": is_trusted}
        report = store.inner.object_of(Import)(*some, progress=progress, open_file=growing, **how)
        for damage in report.remarks:
            if END_MISSING not in damage.reason:
                tell(damage)

    take(*paths)
    while True:
        some = {_whole(path, paths, format, growing) for path in watch.changed()}
        for path in sorted(path for path in some if path is not None):
            with suppress(NotFound):  # It is gone again.
                take(path)


def _whole(path: str, paths: list[str], format: str | None, open_file: OpenFile) -> str | None:
    """The path to import when a file changed: the file, or the given folder of which it is a part;
    None: nothing.
    """
    for end in _LOGS:
        path = path.removesuffix(end)
    if not os.path.isfile(path):
        return None
    only = format_named(format) if format else None
    if any(
        format_of(part, only) is not None
        for part in opened(on_disk(Path(path), Problems(), open_file))
    ):
        return path
    return next((top for top in paths if Path(path).is_relative_to(top)), None)


class GrowingFiles:
    """Opens files; of one of lines that was read before and has only grown, just what is new is
    read from the disk.

    What was read of such files is kept in memory, 128 MiB of all of them: those that were read
    last.
    """

    def __init__(self) -> None:
        #: By the path: the inode, the size and the time of the file as it was read, and its
        #: content.
        self._kept: dict[Path, tuple[tuple[int, int, int], bytes]] = {}

    def __call__(self, path: Path) -> IO[bytes]:
        """A file, opened for reading. Raises OSError."""
        with from_disk(path) as file:
            about = os.fstat(file.fileno())
            now = (about.st_ino, about.st_size, about.st_mtime_ns)
            before, data = self._kept.pop(path, (now, b""))
            if before != now or not data:
                has_grown = before[0] == now[0] and before[1] < now[1] and _begins_with(file, data)
                file.seek(0)
                data = data if has_grown else file.read(HEAD_BYTES)
                if now[1] > _MOST_KEPT or shape_of(data[:HEAD_BYTES]) != "lines":
                    return from_disk(path)
                file.seek(len(data))
                data += file.read()
                now = (now[0], len(data), now[2])
        self._kept[path] = now, data
        while sum(len(kept) for _, kept in self._kept.values()) > _MOST_KEPT:
            del self._kept[next(iter(self._kept))]
        return BytesIO(data)


def _begins_with(file: IO[bytes], data: bytes) -> bool:
    """Whether a file still begins with what was read of it, of which the beginning and the end are
    compared.
    """
    ends = ((at, data[at : at + _COMPARED]) for at in (0, max(len(data) - _COMPARED, 0)))
    return all(file.seek(at) == at and file.read(len(piece)) == piece for at, piece in ends)


class FolderWatch:
    """Tells which files in folders were written, as watchfiles does.

    Args:
        paths: The files and folders, absolute, with all folders in them.
    """

    def __init__(self, paths: list[str]) -> None:
        self._files = {path for path in paths if not os.path.isdir(path)}
        self._tops = [path for path in paths if os.path.isdir(path)]
        self._seen: dict[str, tuple[int, int]] = {}
        self._begin()

    def _begin(self) -> set[str]:
        """Watch the folders that there are now. Returns what `_look` does."""
        folders: set[str] | None = None
        while folders != (folders := self._there()):  # One that came in between is watched too.
            try:
                self._watcher = WatchfilesWatcher(sorted(folders))
            except FileNotFoundError:  # One of them is gone again.
                folders = None
        #: Each by the path by which it is reported.
        self._folders = {os.path.realpath(folder): folder for folder in folders}
        return self._look()

    def _there(self) -> set[str]:
        folders = {path for top in self._tops for path, _ in walked(top, top)}
        return set(filter(os.path.isdir, folders.union(map(os.path.dirname, self._files))))

    def _look(self) -> set[str]:
        """The files that are not as they were at the last look."""
        now = {}
        walks = (walk for top in self._tops for walk in walked(top, top))
        for path in self._files.union(
            os.path.join(folder, name) for folder, names in walks for name in names
        ):
            with suppress(OSError):
                about = os.stat(path)
                now[path] = (about.st_mtime_ns, about.st_size)
        before, self._seen = self._seen, now
        return {path for path, signature in now.items() if before.get(path) != signature}

    def changed(self) -> set[str]:
        """The files written since the last call; it waits until there are some. Raises
        KeyboardInterrupt.
        """
        reported = self._watcher.wait(_TOGETHER_MS)
        if reported is None:
            return self._begin()
        parts = map(os.path.split, reported)
        paths = {os.path.join(self._folders.get(folder, folder), name) for folder, name in parts}
        if any(os.path.isdir(path) and self._is_new(path) for path in paths):
            paths |= self._begin()
        elif not reported.isdisjoint(self._folders):
            # The kernel reports a watched folder when another one has its name.
            paths |= self._look() if self._watcher.polls else self._begin()
        return {path for path in paths if self._is_wanted(path) and not os.path.isdir(path)}

    def _is_wanted(self, path: str) -> bool:
        top = self._top_of(path)
        return path.removesuffix("-wal") in self._files or (
            top != "" and is_entered(os.path.dirname(path), top)
        )

    def _is_new(self, folder: str) -> bool:
        """Whether files may be wanted in a folder that is not watched yet."""
        top = self._top_of(folder)
        return (
            top != ""
            and is_entered(folder, top, on_the_way=True)
            and folder not in self._folders.values()
        )

    def _top_of(self, path: str) -> str:
        """The folder that was given in which a path lies; empty: none."""
        return next((top for top in self._tops if f"{path}/".startswith(f"{top}/")), "")
