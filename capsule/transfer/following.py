"""Importing on and on, while another program writes.

What must stay true: a change is imported within a second, and waiting costs no processor time where the kernel gives
notices (inotify); elsewhere the folders are looked at once a second. A file whose last line is not complete yet is no
damage: the next look has it.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from capsule.engines.files.disk import inotify
from capsule.errors import NotFound
from capsule.transfer.registry import format_named, format_of
from capsule.transfer.sources import Damage, Problems, on_disk, opened
from capsule.transfer.values import END_MISSING

if TYPE_CHECKING:
    from capsule.store.store import Store
    from capsule.transfer.report import Report, Taken

#: What is written within this time, in seconds, is imported at once.
_TOGETHER_S = 0.2
_LOOK_S = 1.0
_WRITTEN = inotify.MODIFY | inotify.MOVED_TO | inotify.CREATE
#: Beside a database, what is not in it yet.
_LOGS = ("-wal", "-journal", "-shm")


def follow(
    store: Store,
    paths: list[str],
    tell: Callable[[Taken | Damage], object],
    *,
    format: str | None = None,
    on_conflict: str = "skip",
    is_trusted: bool = False,
) -> NoReturn:
    """Import files and folders, and again whenever they change, until something is raised.

    Args:
        store: The store.
        paths: The files and folders; a folder with all folders in it, those that come later too.
        tell: Takes each conversation as soon as it is imported, and each note and damage.
        format, on_conflict, is_trusted: As `store.import_` takes them.

    Raises the errors of `store.import_`. Cost: reading each file that changed, whole.
    """
    paths = [os.path.abspath(path) for path in paths]
    watch = FolderWatch(paths)

    def take(*some: str) -> None:
        told = 0

        def progress(done: int, total: int, report: Report) -> None:
            nonlocal told
            for taken in report.conversations[told:]:
                tell(taken)
            told = len(report.conversations)

        how: Any = {"format": format, "on_conflict": on_conflict, "is_trusted": is_trusted}
        report = store.import_(*some, progress=progress, **how)
        for damage in report.remarks:
            if damage.what != END_MISSING:
                tell(damage)

    take(*paths)
    while True:
        some = {_whole(path, paths, format) for path in watch.changed()}
        for path in sorted(path for path in some if path is not None):
            with suppress(NotFound):  # It is gone again.
                take(path)


def _whole(path: str, paths: list[str], format: str | None) -> str | None:
    """What to import when a file changed: it alone, or all of which it is a part; None: nothing."""
    for end in _LOGS:
        path = path.removesuffix(end)
    if not os.path.isfile(path):
        return None
    only = format_named(format) if format else None
    if any(format_of(part, only) is not None for part in opened(on_disk(Path(path), Problems()))):
        return path
    return next((top for top in paths if Path(path).is_relative_to(top)), None)


class FolderWatch:
    """Tells which files in folders were written.

    Args:
        paths: The files and folders, absolute, with all folders in them.
    """

    def __init__(self, paths: list[str]) -> None:
        self._files = {path for path in paths if not os.path.isdir(path)}
        self._tops = [path for path in paths if os.path.isdir(path)]
        self._folders: dict[int, str] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._inotify: inotify.Inotify | None = None
        try:
            self._inotify = inotify.Inotify()
            for folder in {os.path.dirname(file) for file in self._files}:
                self._folders[self._inotify.watch(folder, _WRITTEN)] = folder
            for folder in self._tops:
                self._add(folder)
        except OSError:
            self._inotify = None
            self._look()

    def _add(self, folder: str) -> None:
        """Watch a folder and those in it, but those that are gone again. Raises OSError."""
        assert self._inotify is not None
        for top, _ in _walked(folder):
            with suppress(FileNotFoundError):
                self._folders[self._inotify.watch(top, _WRITTEN)] = top

    def changed(self) -> set[str]:
        """The files written since the last call. It waits until there are some, a second if the kernel can't tell."""
        if self._inotify is None:
            time.sleep(_LOOK_S)
            return self._look()
        select.select([self._inotify], [], [])
        time.sleep(_TOGETHER_S)
        found = set()
        for path in self._written():
            if not os.path.isdir(path):
                found.add(path)
            elif not os.path.basename(path).startswith("."):
                try:
                    self._add(path)
                except OSError:  # The system watches no more folders.
                    self._inotify = None
                    return self._look()
                found |= _files_in(path)
        return {path for path in found if self._is_wanted(path)}

    def _is_wanted(self, path: str) -> bool:
        return path.removesuffix("-wal") in self._files or any(path.startswith(f"{top}/") for top in self._tops)

    def _written(self) -> Iterator[str]:
        assert self._inotify is not None
        for number, flags, name in self._inotify.events():
            if flags & inotify.OVERFLOW:
                yield from self._look()
            elif name and number in self._folders:
                yield os.path.join(self._folders[number], os.fsdecode(name))

    def _look(self) -> set[str]:
        """The files that are not as they were at the last look."""
        now = {}
        for path in self._files.union(*map(_files_in, self._tops)):
            with suppress(OSError):
                found = os.stat(path)
                now[path] = (found.st_mtime_ns, found.st_size)
        before, self._seen = self._seen, now
        return {path for path, signature in now.items() if before.get(path) != signature}


def _walked(folder: str) -> Iterator[tuple[str, list[str]]]:
    """A folder and those in it, without hidden ones, and the names of the files in each."""
    for top, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield top, names


def _files_in(folder: str) -> set[str]:
    return {os.path.join(top, name) for top, names in _walked(folder) for name in names}
