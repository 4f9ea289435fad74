"""Importing on and on, while another program writes.

What must stay true: a change is imported within a second, and waiting costs no processor time where the kernel gives
notices (inotify); elsewhere the folders are looked at once a second. A file whose last line is not complete yet is no
damage: the next look has it.
"""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from capsule.engines.files.disk.notices import failure, libc
from capsule.errors import NotFound
from capsule.transfer.reading import format_of
from capsule.transfer.registry import format_named
from capsule.transfer.sources import Problems, on_disk, opened
from capsule.transfer.values import END_MISSING

if TYPE_CHECKING:
    from capsule.store.store import Store
    from capsule.transfer.importing import Report

#: What is written within this time, in seconds, is imported at once.
_TOGETHER_S = 0.2
_LOOK_S = 1.0
_MODIFY, _MOVED_TO, _CREATE, _ONLYDIR = 0x2, 0x80, 0x100, 0x01000000
_EVENT = struct.Struct("iIII")
#: Beside a database, what is not in it yet.
_LOGS = ("-wal", "-journal", "-shm")


def follow(
    store: Store, paths: list[str], *, format: str | None = None, on_conflict: str = "skip", stop: Callable[[], bool]
) -> Iterator[Report]:
    """Import files and folders, and again whenever they change.

    Args:
        store: The store.
        paths: The files and folders; a folder with all folders in it, those that come later too.
        format, on_conflict: As `store.import_` takes them.
        stop: Asked once a second whether it ends.

    Yields a report for each round; the first has everything. Raises the errors of `store.import_`.
    Cost: reading each file that changed, whole.
    """
    watch = FolderWatch(paths)

    def taken(*some: str) -> Report:
        report = store.import_(*some, format=format, on_conflict=on_conflict)  # type: ignore[arg-type]  # It checks it.
        kept = [problem for problem in report.problems.found if problem.what != END_MISSING]
        report.problems.count -= len(report.problems.found) - len(kept)
        report.problems.found = kept
        return report

    yield taken(*paths)
    while not stop():
        changed = watch.changed()
        some = {_whole(path, paths, format) for path in changed}
        for path in sorted(path for path in some if path is not None):
            with suppress(NotFound):  # It is gone again.
                yield taken(path)


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
        paths: The files and folders, with all folders in them.
    """

    def __init__(self, paths: list[str]) -> None:
        self._folders: dict[int, str] = {}
        self._files = {os.path.abspath(path) for path in paths if not os.path.isdir(path)}
        self._tops = [os.path.abspath(path) for path in paths if os.path.isdir(path)]
        self._fd = -1
        self._seen: dict[str, tuple[int, int]] = {}
        try:
            self._fd = libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            for folder in [*self._tops, *{os.path.dirname(file) for file in self._files}]:
                self._add(folder, deep=folder in self._tops)
        except (OSError, AttributeError):
            self.close()
            self._look()

    def _add(self, folder: str, *, deep: bool) -> None:
        watch = libc().inotify_add_watch(self._fd, os.fsencode(folder), _MODIFY | _MOVED_TO | _CREATE | _ONLYDIR)
        if watch < 0:
            raise failure()
        self._folders[watch] = folder
        if deep:
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    self._add(entry.path, deep=True)

    def changed(self) -> set[str]:
        """The files written since the last call; returns after a second at the latest, or a moment after a write."""
        if self._fd < 0:
            time.sleep(_LOOK_S)
            return self._look()
        if not select.select([self._fd], [], [], _LOOK_S)[0]:
            return set()
        time.sleep(_TOGETHER_S)
        found = set()
        for path in self._events():
            if os.path.isdir(path):
                with suppress(OSError):
                    self._add(path, deep=True)
                found |= {os.path.join(top, name) for top, _, names in os.walk(path) for name in names}
            else:
                found.add(path)
        return {path for path in found if self._is_wanted(path)}

    def _is_wanted(self, path: str) -> bool:
        return path.removesuffix("-wal") in self._files or any(path.startswith(f"{top}/") for top in self._tops)

    def _events(self) -> Iterator[str]:
        with suppress(BlockingIOError):
            while True:
                data, at = os.read(self._fd, 1 << 16), 0
                while at < len(data):
                    watch, _, _, length = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + length
                    name = os.fsdecode(data[at - length : at].rstrip(b"\0"))
                    if name and watch in self._folders:
                        yield os.path.join(self._folders[watch], name)
                    elif watch == -1:  # Events were lost.
                        yield from self._look()

    def _look(self) -> set[str]:
        """The files that are not as they were at the last look."""
        now = {}
        inside = (
            os.path.join(top, name) for folder in self._tops for top, _, names in os.walk(folder) for name in names
        )
        for path in (*self._files, *inside):
            with suppress(OSError):
                found = os.stat(path)
                now[path] = (found.st_mtime_ns, found.st_size)
        before, self._seen = self._seen, now
        return {path for path, signature in now.items() if before.get(path) != signature}

    def close(self) -> None:
        """Give the descriptor back."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
