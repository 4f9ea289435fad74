"""Report which files of a directory were touched, at once or to a thread that waits.

- `InotifyTracker` answers at once (Linux, local file systems). Programs that want to know scan
  where it is not available: on another platform, on a file system of another machine, or if the
  kernel has no instance left.
- `DirectoryTracker` wakes a waiting thread, on every platform, with watchfiles. If there is an
  `InotifyTracker` it listens to that, too, and hears sooner; nothing depends on it.
- `TouchedNames` collects names for a thread that waits for a descriptor. Every kind of engine uses
  it.
- `mount_of` says on which kind of file system a directory is, and how that is mounted (Linux only).

What must stay true:

- If a write was acknowledged before `InotifyTracker.changed` is called, it is in the answer: the
  kernel queues the event before the writer's call returns.
- Two kinds of writes cause no event: writes through a memory mapping, and writes through a second
  name of the file elsewhere. The caller has to scan now and then for these.
- An option of a mount whose value can name a machine, a person or a path is not reported.

watchfiles can't replace inotify here. It polls every few milliseconds what the kernel reported, so
hearing of a change soon costs processor time while nothing happens.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import select
import struct
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.disk.import_submodule import import_submodule
from capsule.errors import Refused

if TYPE_CHECKING:
    from watchfiles._rust_notify import RustNotify


class TouchedNames:
    """Collects names, and has a descriptor that can be read while there are some. See `Tracker`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._names: set[str] = set()
        self._is_unsure = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.is_open = True

    def touch(self, names: Iterable[str] | None) -> None:
        """Add names, from any thread; None: any may have been touched. Nothing happens after
        `close`.
        """
        with self._guard:
            self._names.update(names or ())
            self._is_unsure = self._is_unsure or names is None
            if self.is_open and (self._names or self._is_unsure):
                with suppress(BlockingIOError):
                    os.write(self._write, b"x")

    def changed_ids(self) -> set[str] | None:
        """The names since the last call; None: that can't be told, or it is closed."""
        with self._guard:
            if not self.is_open:
                return None
            with suppress(BlockingIOError):
                while os.read(self._read, 4096):
                    pass
            names, is_unsure = self._names, self._is_unsure
            self._names, self._is_unsure = set(), False
            return None if is_unsure else names

    def fileno(self) -> int:
        """The descriptor, readable when `changed` has something to tell."""
        return self._read

    def close(self) -> None:
        """Give back the descriptors."""
        with self._guard:
            if self.is_open:
                self.is_open = False
                os.close(self._read)
                os.close(self._write)


_INFO = "/proc/self/mountinfo"
#: The options whose values are given; of all others with a value, nothing.
_VALUED = frozenset({"cache", "data", "errors", "local_lock", "proto", "vers"})


class Mount(NamedTuple):
    """A file system as it is mounted: its kind, as the kernel names it (empty: it can't be told),
    and its options.
    """

    kind: str = ""
    options: tuple[str, ...] = ()


def mount_of(directory: str) -> Mount:
    """How the file system is mounted that a directory lies on."""
    try:
        device = os.stat(directory).st_dev
        with open(_INFO, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return Mount()
    wanted = b"%d:%d" % (os.major(device), os.minor(device))
    for fields in _mounts(lines):
        if fields[2] == wanted:
            return _mount(fields)
    return of_longest(os.path.realpath(directory), lines)


def of_longest(path: str, lines: Sequence[bytes]) -> Mount:
    """By the mount point above, as btrfs gives each subvolume a device of its own."""
    best, mount = -1, Mount()
    for fields in _mounts(lines):
        point = os.fsdecode(fields[4].replace(b"\\040", b" "))
        if (path == point or path.startswith(point.rstrip("/") + "/")) and len(point) >= best:
            best, mount = len(point), _mount(fields)
    return mount


def _mounts(lines: Sequence[bytes]) -> list[list[bytes]]:
    return [
        fields
        for fields in (line.split(b" ") for line in lines)
        if len(fields) > 6 and b"-" in fields
    ]


def _mount(fields: list[bytes]) -> Mount:
    kind, _, *more = fields[fields.index(b"-") + 1 :]
    options = b",".join([fields[5], *more]).decode("ascii", "replace").split(",")
    safe = (
        option for option in options if "=" not in option or option.partition("=")[0] in _VALUED
    )
    return Mount(kind.decode("ascii", "replace"), tuple(dict.fromkeys(safe)))


MODIFY, ATTRIB = 0x2, 0x4
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF, UNMOUNT, OVERFLOW, IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
DONT_FOLLOW = 0x02000000
_ONLYDIR = 0x01000000
_EVENT = struct.Struct("iIII")
_READ = 64 * 1024


class Inotify:
    """Watched directories. Raises OSError: the system has no such thing, or no more to give."""

    def __init__(self) -> None:
        self._fd: int = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _failure()

    def watch(self, directory: str, wanted: int) -> int:
        """Watch a directory; the number that its events have. Raises OSError.

        Args:
            directory: The directory, and none that is in it.
            wanted: The events, as flags.
        """
        number: int = _libc().inotify_add_watch(self._fd, os.fsencode(directory), wanted | _ONLYDIR)
        if number < 0:
            raise _failure()
        return number

    def events(self) -> Iterator[tuple[int, int, bytes]]:
        """What happened since the last call: the number of the directory, flags, and the name,
        empty for the directory.

        An event with `OVERFLOW` says that some are missing; its number is of none. Raises OSError.
        """
        while True:
            try:
                data = os.read(self._fd, _READ)
            except BlockingIOError:
                return
            at = 0
            while at < len(data):
                number, flags, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                yield number, flags, data[at - length : at].rstrip(b"\0")

    def fileno(self) -> int:
        """The descriptor, which is readable when there are events; below 0: it is closed."""
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether there will be events."""
        return self._fd >= 0

    def close(self) -> None:
        """Give back the descriptor; in a forked child too, where the parent keeps its own."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError):
            self.close()


@cache
def _libc() -> Any:
    """The C library, which has inotify. Raises OSError where it has not."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return libc


def _failure() -> OSError:
    """The error of the last call of the C library."""
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


_log = logging.getLogger("capsule")

_NAMED = MOVED_FROM | MOVED_TO | CREATE | DELETE
_WANTED = _NAMED | MODIFY | ATTRIB | DELETE_SELF | MOVE_SELF
#: After these the directory is another one, or none.
_ENDED = DELETE_SELF | MOVE_SELF | UNMOUNT | IGNORED

#: Where the kernel sees every write: local, and not a view of another file system.
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "zfs", "bcachefs", "jfs"}
)
#: How often watchfiles asks whether the kernel had a notice for it, in milliseconds: beside a
#: tracker, and alone. It answers one to two such steps after a write. 50 ms cost 0.2 % of a
#: processor, 16 ms 0.5 %, 10 ms 0.8 %.
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
        # The directory above tells when another one takes the name, and when one goes that somebody
        # has open.
        self._above = self.watch(os.path.dirname(directory), _NAMED)
        self._is_of = _identity(directory)
        if self._is_of is not None:
            self.watch(directory, _WANTED | DONT_FOLLOW)

    def changed_ids(self) -> set[str] | None:
        """The names touched since the last call, without the suffix; None when that can't be told
        any more.

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
                    flags |= MOVE_SELF
                all_flags |= flags
        except OSError:
            all_flags |= UNMOUNT
        if all_flags & _ENDED:
            self.close()
            return None
        if all_flags & OVERFLOW:
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
            # A file that was made under its temporary name and linked to its own (see
            # `StorePaths.temporary`) is written under the first, as the kernel tells it, for as long as
            # its maker has it open.
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
    """Whether the kernel may miss writes in a directory, as another machine can make them. Linux
    only can tell.
    """
    return sys.platform.startswith("linux") and mount_of(directory).kind not in _LOCAL


def _identity(directory: str) -> tuple[int, int] | None:
    """What tells a directory from another that has its name later; None when there is none."""
    try:
        status = os.stat(directory, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class DirectoryTracker:
    """Tells which names in one directory are touched, and wakes whoever waits for its descriptor.
    See `Tracker`.

    Its thread runs until `close`, which waits for it, up to 50 ms. It is also closed when the
    program ends, and when nothing refers to it any more. A touched name may be reported twice.

    Args:
        directory: The directory, which may come later; the one above it must be there.
        suffix: Of the names that are of interest; it is cut off in the answers.

    Raises:
        OSError: The directory above is not there, or the system doesn't let it.
        Refused: As `WatchfilesWatcher`, where there is no tracker.
    """

    #: Gives what hears sooner than watchfiles, or None; nothing depends on it.
    sooner = staticmethod(open_tracker)

    def __init__(self, directory: str, suffix: str) -> None:
        self._directory = directory
        self._is_of = _identity(directory)
        self._touched = TouchedNames()
        self._fd = self._touched.fileno()
        self._held = ExitStack()
        # A thread that comes back from a library after the interpreter has ended would end the
        # process.
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
            watcher = WatchfilesWatcher(
                [path for path in (directory, above) if os.path.isdir(path)] or [directory]
            )
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

    def changed_ids(self) -> set[str] | None:
        """The names touched since the last call, without the suffix; None when that can't be told:
        look at all.
        """
        names = self._touched.changed_ids()
        if self._tracker is not None and names is not None:
            sooner = self._tracker.changed_ids()
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


class WatchfilesWatcher:
    """watchfiles for directories, but not for those in them. On file systems of other machines it
    compares files.

    Args:
        directories: The directories.

    Attributes:
        polls: Whether it compares files.

    Raises:
        FileNotFoundError: One of them is not there.
        Refused: A path is not UTF-8, which watchfiles needs.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        self._library = import_submodule("watchfiles._rust_notify")
        self._directories = directories
        #: Paths that are reported again, and when: of a file that is compared, two changes in one
        #: second look as one.
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
                    _log.debug("the system can give no more change notices: %s", error)
            _log.warning(
                "the system gives no change notices; files are compared every %d ms instead",
                _POLL_MS,
            )
            self.polls = True
            self._notify = self._opened()
            self._again = dict.fromkeys(directories, time.monotonic() + _SAME_SECOND_S)
        except UnicodeEncodeError as error:
            path = str(error.object)
            raise Refused(
                f"{path}: changes can be watched only below a path in UTF-8", path=path
            ) from error

    def _opened(self) -> RustNotify:
        opened: RustNotify = self._library.RustNotify(
            self._directories,
            False,
            self.polls,
            _POLL_MS,
            recursive=False,
            ignore_permission_denied=True,
        )
        return opened

    def wait(self, step_ms: int, stopped: threading.Event | None = None) -> set[str] | None:
        """The paths that were touched, which it waits for; empty: it was stopped; None: any may
        have been.

        Of a directory that is reported itself, any file may have been touched.

        Args:
            step_ms: How often it looks for a notice, in milliseconds. It answers one to two such
                steps after a write.
            stopped: Ends the wait when it is set.

        Raises KeyboardInterrupt, in the main thread.
        """
        left_s = min(self._again.values(), default=0.0) - time.monotonic()
        timeout_ms = max(1, math.ceil(left_s * 1000)) if self._again else 0
        try:
            reported = self._notify.watch(step_ms, step_ms, timeout_ms, stopped)
        except (
            self._library.WatchfilesRustInternalError
        ) as error:  # As for a name that is not UTF-8.
            _log.debug("watchfiles: %s", error)
            with suppress(
                OSError, self._library.WatchfilesRustInternalError
            ):  # It would give the error for ever.
                self._notify = self._opened()
            return None
        if reported == "signal":
            raise KeyboardInterrupt
        paths, now = (
            set() if isinstance(reported, str) else {path for _, path in reported},
            time.monotonic(),
        )
        due = {path for path, at in self._again.items() if at <= now}
        if self.polls:
            self._again = {path: at for path, at in self._again.items() if at > now}
            self._again |= dict.fromkeys(paths, now + _SAME_SECOND_S)
        return paths | due


def _follow(
    watcher: WatchfilesWatcher,
    directory: str,
    suffix: str,
    step_ms: int,
    stopped: threading.Event,
    touched: TouchedNames,
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
