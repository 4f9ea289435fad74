"""Which files of a directory were touched: the tracker answers at once, the notices wake whoever waits.

What must stay true: a write that was acknowledged before `InotifyTracker.changed` is called is in its answer, as the
kernel queues the event before the writer's call returns; where that can't be had (another platform, a file system of
another machine, no instance left) there is no tracker, and whoever wants to know scans. Two things no event tells of:
writes through a mapping, and through a second name elsewhere; for these a scan now and then is for the caller to do.

`DirectoryNotices` has its notices from watchfiles, on every platform. Where there is a tracker it listens to that too,
and so hears sooner; nothing depends on it.
"""

from __future__ import annotations

import logging
import math
import os
import select
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING

from capsule.disk import inotify
from capsule.disk.inotify import Inotify
from capsule.disk.mounts import mount_of
from capsule.disk.parts import load_part
from capsule.disk.touched import Touched
from capsule.errors import Refused

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify

_log = logging.getLogger("capsule")

_NAMED = inotify.MOVED_FROM | inotify.MOVED_TO | inotify.CREATE | inotify.DELETE
_WANTED = _NAMED | inotify.MODIFY | inotify.ATTRIB | inotify.DELETE_SELF | inotify.MOVE_SELF
#: After these the directory is another one, or none.
_ENDED = inotify.DELETE_SELF | inotify.MOVE_SELF | inotify.UNMOUNT | inotify.IGNORED

#: Where the kernel sees every write: local, and not a view of another file system.
_LOCAL = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "zfs", "bcachefs", "jfs"})
#: How often watchfiles asks whether the kernel had a notice for it, in milliseconds: beside a tracker, and alone.
#: It answers one to two such steps after a write. 50 ms cost 0.2 % of a processor, 16 ms 0.5 %, 10 ms 0.8 %.
_STEP_MS, _STEP_ALONE_MS = 50, 16
#: How often watchfiles looks at all files where the kernel gives no notices, in milliseconds.
_POLL_MS = 500
_SAME_SECOND_S = 1.2


class InotifyTracker(Inotify):
    """Tells which names in one directory were touched.

    Args:
        directory: The directory, which may come later; the one above it must be there.
        suffix: Of the names that are of interest; it is cut off in the answers.

    Raises:
        OSError: The system doesn't let it.
    """

    def __init__(self, directory: str, suffix: str) -> None:
        super().__init__()
        self._suffix = suffix
        self._pid = os.getpid()
        self._directory = directory
        self._name = os.fsencode(os.path.basename(directory))
        # The directory above tells when another one takes the name, and when one goes that somebody has open.
        self._above = self.watch(os.path.dirname(directory), _NAMED)
        self._is_of = _identity(directory)
        if self._is_of is not None:
            self.watch(directory, _WANTED | inotify.DONT_FOLLOW)

    def changed(self) -> set[str] | None:
        """The names touched since the last call, without the suffix; None when that can't be told any more.

        After a None there may be answers again, but not of what happened before.
        """
        if not self.is_open or os.getpid() != self._pid:
            return None
        touched: set[bytes] = set()
        all_flags = 0
        try:
            for number, flags, name in self.events():
                if number != self._above:
                    touched.add(name)
                elif name == self._name:
                    flags |= inotify.MOVE_SELF
                all_flags |= flags
        except OSError:
            all_flags |= inotify.UNMOUNT
        if all_flags & _ENDED:
            self.close()
            return None
        if all_flags & inotify.OVERFLOW:
            return None
        if _identity(self._directory) != self._is_of:
            # Removed while something had it open: then no event tells of it.
            self.close()
            return None
        return _ids(map(os.fsdecode, touched), self._suffix)


def _ids(names: Iterable[str], suffix: str) -> set[str]:
    """Names of files without the suffix; those that are of no interest are left out."""
    ids = set()
    for name in names:
        if name.startswith("."):
            # A file that was made under its temporary name and linked to its own (see `Layout.temporary`) is written
            # under the first, as the kernel tells it, for as long as its maker has it open.
            name = name[1:-4] + suffix if name.endswith(".tmp") else ""
        if name.endswith(suffix):
            ids.add(name[: len(name) - len(suffix)])
    return ids - {""}


def open_tracker(directory: str, suffix: str) -> InotifyTracker | None:
    """A tracker of the directory, where the system can tell; else None."""
    there = directory if os.path.isdir(directory) else os.path.dirname(directory)
    if not sys.platform.startswith("linux") or must_poll(there):
        return None
    try:
        return InotifyTracker(directory, suffix)
    except OSError:
        return None


def must_poll(directory: str) -> bool:
    """Whether the kernel may miss writes in a directory, as another machine can make them. Linux only can tell."""
    return sys.platform.startswith("linux") and mount_of(directory).kind not in _LOCAL


def _identity(directory: str) -> tuple[int, int] | None:
    """What tells a directory from another that has its name later; None when there is none."""
    try:
        status = os.stat(directory, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class DirectoryNotices:
    """Tells which names in one directory are touched, and wakes whoever waits for its descriptor. See `Tracker`.

    Its thread runs until `close`, which waits for it, up to 50 ms. It is also closed when the program ends, and when
    nothing refers to it any more. A touched name may be reported twice.

    Args:
        directory: The directory, which may come later; the one above it must be there.
        suffix: Of the names that are of interest; it is cut off in the answers.

    Raises:
        OSError: The directory above is not there, or the system doesn't let it.
        Refused: As `Watcher`, where there is no tracker.
    """

    #: Gives what hears sooner than watchfiles, or None; nothing depends on it.
    sooner = staticmethod(open_tracker)

    def __init__(self, directory: str, suffix: str) -> None:
        self._directory = directory
        self._is_of = _identity(directory)
        self._touched = Touched()
        self._fd = self._touched.fileno()
        self._held = ExitStack()
        # A thread that comes back from a library after the interpreter has ended would end the process.
        self._close = weakref.finalize(self, self._held.close)
        self._held.callback(self._touched.close)
        self._tracker = self.sooner(directory, suffix)
        if self._tracker is not None:
            self._held.callback(self._tracker.close)
            both = self._held.enter_context(select.epoll())
            self._fd = both.fileno()
            both.register(self._tracker, select.EPOLLIN)
            both.register(self._touched, select.EPOLLIN)
        self._start(os.path.realpath(directory), suffix)

    def _start(self, directory: str, suffix: str) -> None:
        above = os.path.dirname(directory)  # It tells when the directory comes or goes.
        try:
            watcher = Watcher([path for path in (directory, above) if os.path.isdir(path)] or [directory])
        except Refused:
            if self._tracker is None:
                raise
            return
        step_ms = _STEP_ALONE_MS if self._tracker is None else _STEP_MS
        stopped = threading.Event()
        follow = partial(_follow, watcher, directory, suffix, step_ms, stopped, self._touched)
        thread = threading.Thread(target=follow, name="capsule-notices", daemon=True)
        thread.start()
        self._held.callback(_end, thread, stopped)

    def changed(self) -> set[str] | None:
        """The names touched since the last call, without the suffix; None when that can't be told: look at all."""
        names = self._touched.changed()
        if self._tracker is not None and names is not None:
            sooner = self._tracker.changed()
            names = None if sooner is None else names | sooner
        is_over = self._tracker is not None and not self._tracker.is_open
        if is_over or _identity(self._directory) != self._is_of:
            self.close()  # Another directory has the name, or will have it.
            return None
        return names

    def fileno(self) -> int:
        """The descriptor that can be read when there is an answer to be had, for `select.poll`."""
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether there will be answers."""
        return self._touched.is_open

    def close(self) -> None:
        """End its thread, and give back the descriptors."""
        self._close()


class Watcher:
    """watchfiles for directories, but not for those in them. On file systems of other machines it compares files.

    Args:
        directories: The directories.

    Attributes:
        polls: Whether it compares files.

    Raises:
        FileNotFoundError: One of them is not there.
        Refused: A path is not UTF-8, which watchfiles needs.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        self._library = load_part("watchfiles._rust_notify")
        self._directories = directories
        #: Paths that are reported again, and when: of a file that is compared, two changes in one second look as one.
        self._again: dict[str, float] = {}
        self.polls = any(map(must_poll, directories))
        try:
            if not self.polls:
                try:
                    self._notify = self._opened()
                    return
                except FileNotFoundError:
                    raise
                except (OSError, self._library.WatchfilesRustInternalError) as error:
                    _log.debug("the system has no more notices to give: %s", error)
            _log.warning("the system gives no notices of changes; files are compared every %d ms instead", _POLL_MS)
            self.polls = True
            self._notify = self._opened()
            self._again = dict.fromkeys(directories, time.monotonic() + _SAME_SECOND_S)
        except UnicodeEncodeError as error:
            path = str(error.object)
            raise Refused(f"{path}: changes can be watched only below a path in UTF-8", path=path) from error

    def _opened(self) -> RustNotify:
        opened: RustNotify = self._library.RustNotify(
            self._directories, False, self.polls, _POLL_MS, recursive=False, ignore_permission_denied=True
        )
        return opened

    def wait(self, step_ms: int, stopped: threading.Event | None = None) -> set[str] | None:
        """The paths that were touched, which it waits for; empty: it was stopped; None: any may have been.

        Of a directory that is reported itself, any file may have been touched.

        Args:
            step_ms: How often it looks for a notice, in milliseconds. It answers one to two such steps after a write.
            stopped: Ends the wait when it is set.

        Raises KeyboardInterrupt, in the main thread.
        """
        left_s = min(self._again.values(), default=0.0) - time.monotonic()
        timeout_ms = max(1, math.ceil(left_s * 1000)) if self._again else 0
        try:
            reported = self._notify.watch(step_ms, step_ms, timeout_ms, stopped)
        except self._library.WatchfilesRustInternalError as error:  # As for a name that is not UTF-8.
            _log.debug("watchfiles: %s", error)
            with suppress(OSError, self._library.WatchfilesRustInternalError):  # It would give the error for ever.
                self._notify = self._opened()
            return None
        if reported == "signal":
            raise KeyboardInterrupt
        paths, now = set() if isinstance(reported, str) else {path for _, path in reported}, time.monotonic()
        due = {path for path, at in self._again.items() if at <= now}
        if self.polls:
            self._again = {path: at for path, at in self._again.items() if at > now}
            self._again |= dict.fromkeys(paths, now + _SAME_SECOND_S)
        return paths | due


def _follow(
    watcher: Watcher, directory: str, suffix: str, step_ms: int, stopped: threading.Event, touched: Touched
) -> None:
    """The thread of notices: hands on what watchfiles reports, until it is stopped."""
    while not stopped.is_set():
        paths = watcher.wait(step_ms, stopped)
        if paths is None or directory in paths:
            touched.touch(None)
        else:
            parts = map(os.path.split, paths)
            touched.touch(_ids((name for folder, name in parts if folder == directory), suffix))


def _end(thread: threading.Thread, stopped: threading.Event) -> None:
    stopped.set()
    if thread is not threading.current_thread():  # Which the collector of garbage may run in.
        thread.join()
