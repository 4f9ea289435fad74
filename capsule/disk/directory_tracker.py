"""Report which files of a directory were touched, at once or to a thread that waits.

- `InotifyTracker` answers at once (Linux, local file systems). Where it is not available, the
  caller has to scan: on another platform, on a file system of another machine, or if the kernel has
  no inotify instance left.
- `DirectoryTracker` wakes a waiting thread, on every platform, with a thread of watchfiles. Where
  an `InotifyTracker` is available it uses that too, and wakes sooner.
- `TouchedNames` collects names for a thread that waits for a descriptor. Every kind of engine uses
  it.
- `mount_of` returns on which kind of file system a directory is, and how that is mounted (Linux).

What must stay true:

- If a write was acknowledged before `InotifyTracker.changed_ids` is called, it is in the answer:
  the kernel queues the event before the writer's call returns.
- Two kinds of writes cause no event: writes through a memory mapping, and writes through a second
  name of the file elsewhere. The caller has to scan now and then for these.
- An option of a mount whose value can name a machine, a person or a path is not reported.

watchfiles can't replace inotify here. It polls every few milliseconds what the kernel reported, so
short delays cost processor time while nothing happens.
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
    """Names of touched files, and a descriptor that can be read while there are some.

    It implements `Tracker`. Several threads may use it.
    """

    def __init__(self) -> None:
        self._thread_lock = threading.Lock()
        self._names: set[str] = set()
        self._is_unsure = False
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self.is_open = True

    def touch(self, names: Iterable[str] | None) -> None:
        """Add names. None: any file may have been touched. After `close` nothing happens."""
        with self._thread_lock:
            self._names.update(names or ())
            self._is_unsure = self._is_unsure or names is None
            if self.is_open and (self._names or self._is_unsure):
                with suppress(BlockingIOError):
                    os.write(self._write, b"x")

    def changed_ids(self) -> set[str] | None:
        """Return the names since the last call. None: any may have been touched, or it is closed."""
        with self._thread_lock:
            if not self.is_open:
                return None
            with suppress(BlockingIOError):
                while os.read(self._read, 4096):
                    pass
            names = None if self._is_unsure else self._names
            self._names = set()
            self._is_unsure = False
            return names

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are names."""
        return self._read

    def close(self) -> None:
        """Give back the descriptors."""
        with self._thread_lock:
            if self.is_open:
                self.is_open = False
                os.close(self._read)
                os.close(self._write)


_INFO = "/proc/self/mountinfo"
#: The options that are reported with their values. Others with a value are left out.
_VALUED = frozenset({"cache", "data", "errors", "local_lock", "proto", "vers"})


class Mount(NamedTuple):
    """A mounted file system.

    Attributes:
        kind: Its kind, as the kernel names it. Empty: not known.
        options: The options that are safe to report.
    """

    kind: str = ""
    options: tuple[str, ...] = ()


def mount_of(directory: str) -> Mount:
    """Return the mount of the file system on which a directory is."""
    try:
        device = os.stat(directory).st_dev
        with open(_INFO, "rb") as file:
            lines = file.read().split(b"\n")
    except OSError:
        return Mount()
    device_number = b"%d:%d" % (os.major(device), os.minor(device))
    for fields in _mounts(lines):
        if fields[2] == device_number:
            return _mount(fields)
    return mount_by_longest_point(os.path.realpath(directory), lines)


def mount_by_longest_point(path: str, lines: Sequence[bytes]) -> Mount:
    """Return the mount with the longest mount point above a path.

    For btrfs, which gives each subvolume another device number than mountinfo has.
    """
    longest = -1
    mount = Mount()
    for fields in _mounts(lines):
        mount_point = os.fsdecode(fields[4].replace(b"\\040", b" "))
        if (path == mount_point or path.startswith(mount_point.rstrip("/") + "/")) and len(
            mount_point
        ) >= longest:
            longest = len(mount_point)
            mount = _mount(fields)
    return mount


def _mounts(lines: Sequence[bytes]) -> list[list[bytes]]:
    """Return the fields of each line of mountinfo. See proc(5) for their meaning."""
    mounts = []
    for line in lines:
        fields = line.split(b" ")
        if len(fields) > 6 and b"-" in fields:
            mounts.append(fields)
    return mounts


def _mount(fields: list[bytes]) -> Mount:
    kind, _, *source_and_options = fields[fields.index(b"-") + 1 :]
    options = b",".join([fields[5], *source_and_options]).decode("ascii", "replace").split(",")
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
    """An inotify instance with its watched directories.

    Raises OSError if the system has no inotify, or no instance left.
    """

    def __init__(self) -> None:
        self._fd: int = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _failure()

    def watch(self, directory: str, mask: int) -> int:
        """Watch a directory, but not those in it. Returns the number of the watch. Raises OSError.

        Args:
            directory: The directory.
            mask: The events to report, as flags.
        """
        number: int = _libc().inotify_add_watch(self._fd, os.fsencode(directory), mask | _ONLYDIR)
        if number < 0:
            raise _failure()
        return number

    def events(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield number of the watch, flags and name of each event since the last call.

        The name is empty for the directory itself. An event with `OVERFLOW` belongs to no watch:
        some events were lost. Raises OSError.
        """
        while True:
            try:
                data = os.read(self._fd, _READ)
            except BlockingIOError:
                return
            offset = 0
            while offset < len(data):
                number, flags, _, length = _EVENT.unpack_from(data, offset)
                offset += _EVENT.size + length
                yield number, flags, data[offset - length : offset].rstrip(b"\0")

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are events. Negative: closed."""
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether it can still report events."""
        return self._fd >= 0

    def close(self) -> None:
        """Close the descriptor. In a forked child, the parent's own stays open."""
        fd = self._fd
        self._fd = -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)

    def __del__(self) -> None:
        with suppress(AttributeError):
            self.close()


@cache
def _libc() -> Any:
    """Return the C library. Raises OSError if it has no inotify."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return libc


def _failure() -> OSError:
    """Return the error of the last call of the C library."""
    import ctypes

    number = ctypes.get_errno()
    return OSError(number, os.strerror(number))


_log = logging.getLogger("capsule")

_NAME_EVENTS = MOVED_FROM | MOVED_TO | CREATE | DELETE
_FILE_EVENTS = _NAME_EVENTS | MODIFY | ATTRIB | DELETE_SELF | MOVE_SELF
#: After one of these, the name belongs to another directory or to none.
_END_EVENTS = DELETE_SELF | MOVE_SELF | UNMOUNT | IGNORED

#: The file systems on which the kernel sees every write: local ones that are no view of another.
_LOCAL = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "ramfs", "zfs", "bcachefs", "jfs"}
)
#: How often watchfiles asks the kernel for events, in milliseconds: beside an inotify tracker, and
#: alone. It answers one to two such steps after a write. 50 ms cost 0.2 % of a processor, 16 ms
#: 0.5 %, 10 ms 0.8 %.
_STEP_MS = 50
_STEP_ALONE_MS = 16
#: How often watchfiles looks at all files if the kernel has no events, in milliseconds.
_POLL_MS = 500
_SAME_SECOND_S = 1.2


class InotifyTracker(Inotify):
    """Reports at once which files in one directory were touched.

    Args:
        directory: The directory. It may be made later, but its parent must exist.
        suffix: Report only names with this suffix, without it.

    Raises:
        OSError: The system refused.
    """

    def __init__(self, directory: str, suffix: str) -> None:
        super().__init__()
        self._suffix = suffix
        self._pid = os.getpid()
        self._directory = directory
        self._name = os.fsencode(os.path.basename(directory))
        # The events of the parent show that another directory gets the name, and that the directory
        # is removed while somebody has it open.
        self._parent_number = self.watch(os.path.dirname(directory), _NAME_EVENTS)
        self._directory_id = _directory_id_of(directory)
        if self._directory_id is not None:
            self.watch(directory, _FILE_EVENTS | DONT_FOLLOW)

    def changed_ids(self) -> set[str] | None:
        """Return the names touched since the last call, without the suffix. None: not known.

        After a None there may be answers again, but not about earlier events.
        """
        if not self.is_open or os.getpid() != self._pid:
            return None
        touched: set[bytes] = set()
        all_flags = 0
        try:
            for number, flags, name in self.events():
                if number != self._parent_number:
                    touched.add(name)
                elif name == self._name:
                    flags |= MOVE_SELF
                all_flags |= flags
        except OSError:
            all_flags |= UNMOUNT
        if all_flags & _END_EVENTS:
            self.close()
            return None
        if all_flags & OVERFLOW:
            return None
        if _directory_id_of(self._directory) != self._directory_id:
            # It was removed while somebody had it open, which causes no event.
            self.close()
            return None
        return _ids(map(os.fsdecode, touched), self._suffix)


def _ids(names: Iterable[str], suffix: str) -> set[str]:
    """Remove the suffix from names of files. Names without it are left out."""
    ids = set()
    for name in names:
        if name.startswith("."):
            # A new document is written under its temporary name and then linked to its own (see
            # `StorePaths.temporary`). The kernel reports writes under the temporary name as long as
            # its maker has it open.
            name = name[1:-4] + suffix if name.endswith(".tmp") else ""
        if name.endswith(suffix):
            ids.add(name[: len(name) - len(suffix)])
    return ids - {""}


def open_tracker(directory: str, suffix: str) -> InotifyTracker | None:
    """Return an `InotifyTracker` of the directory. None: it is not available there."""
    checked_directory = directory if os.path.isdir(directory) else os.path.dirname(directory)
    if not sys.platform.startswith("linux") or must_poll(checked_directory):
        return None
    try:
        return InotifyTracker(directory, suffix)
    except OSError:
        return None


def must_poll(directory: str) -> bool:
    """Check if the kernel may miss writes in a directory, because another machine can make them.

    Only Linux knows. On other platforms the result is False.
    """
    return sys.platform.startswith("linux") and mount_of(directory).kind not in _LOCAL


def _directory_id_of(directory: str) -> tuple[int, int] | None:
    """Return device and inode of a directory, which distinguish it from one that gets its name
    later. None: it does not exist.
    """
    try:
        status = os.stat(directory, follow_symlinks=False)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class DirectoryTracker:
    """Reports which files in one directory were touched, and wakes a thread that waits for its
    descriptor. It implements `Tracker`.

    Its thread runs until `close`, which waits for it, up to 50 ms. It is also closed when the
    program ends, and when nothing refers to it any more. A touched name may be reported twice.

    Args:
        directory: The directory. It may be made later, but its parent must exist.
        suffix: Report only names with this suffix, without it.

    Raises:
        OSError: The parent does not exist, or the system refused.
        Refused: As `WatchfilesWatcher`, if there is no inotify either.
    """

    #: Opens a tracker that reports sooner than watchfiles, or returns None. Nothing depends on it.
    open_fast_tracker = staticmethod(open_tracker)

    def __init__(self, directory: str, suffix: str) -> None:
        self._directory = directory
        self._directory_id = _directory_id_of(directory)
        self._touched_names = TouchedNames()
        self._fd = self._touched_names.fileno()
        self._resources = ExitStack()
        # Closed before the interpreter ends: a thread that returns from a library later would kill
        # the process.
        self._close = weakref.finalize(self, self._resources.close)
        self._resources.callback(self._touched_names.close)
        self._fast_tracker = self.open_fast_tracker(directory, suffix)
        if self._fast_tracker is not None:
            self._resources.callback(self._fast_tracker.close)
            epoll = self._resources.enter_context(select.epoll())
            self._fd = epoll.fileno()
            epoll.register(self._fast_tracker, select.EPOLLIN)
            epoll.register(self._touched_names, select.EPOLLIN)
        self._start(os.path.realpath(directory), suffix)

    def _start(self, directory: str, suffix: str) -> None:
        parent = os.path.dirname(
            directory
        )  # Its events show that the directory is made or removed.
        try:
            watcher = WatchfilesWatcher(
                [path for path in (directory, parent) if os.path.isdir(path)] or [directory]
            )
        except Refused:
            if self._fast_tracker is None:
                raise
            return
        step_ms = _STEP_ALONE_MS if self._fast_tracker is None else _STEP_MS
        stopped = threading.Event()
        follow = partial(_follow, watcher, directory, suffix, step_ms, stopped, self._touched_names)
        thread = threading.Thread(target=follow, name="capsule-notices", daemon=True)
        thread.start()
        self._resources.callback(_stop_thread, thread, stopped)

    def changed_ids(self) -> set[str] | None:
        """Return the names touched since the last call, without the suffix. None: any may have
        been.
        """
        names = self._touched_names.changed_ids()
        if self._fast_tracker is not None and names is not None:
            reported_ids = self._fast_tracker.changed_ids()
            names = None if reported_ids is None else names | reported_ids
        is_over = self._fast_tracker is not None and not self._fast_tracker.is_open
        if is_over or _directory_id_of(self._directory) != self._directory_id:
            self.close()  # Another directory has the name, or will get it.
            return None
        return names

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are names, for `select.poll`."""
        return self._fd

    @property
    def is_open(self) -> bool:
        """Whether it can still report names."""
        return self._touched_names.is_open

    def close(self) -> None:
        """End its thread, and close the descriptors."""
        self._close()


class WatchfilesWatcher:
    """A watcher of directories, but not of those in them, by the library watchfiles.

    On file systems of other machines, and if the kernel has no more watches, it compares files.

    Args:
        directories: The directories.

    Attributes:
        polls: Whether it compares files.

    Raises:
        FileNotFoundError: One of the directories does not exist.
        Refused: A path is not UTF-8, which watchfiles needs.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        self._library = import_submodule("watchfiles._rust_notify")
        self._directories = directories
        #: Paths that are reported once more, and when. If files are compared, two changes within
        #: one second look like one.
        self._repeat_at: dict[str, float] = {}
        self.polls = any(map(must_poll, directories))
        try:
            if not self.polls:
                try:
                    self._notify = self._open_notifier()
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
            self._notify = self._open_notifier()
            self._repeat_at = dict.fromkeys(directories, time.monotonic() + _SAME_SECOND_S)
        except UnicodeEncodeError as error:
            path = str(error.object)
            raise Refused(
                f"{path}: changes can be watched only below a path in UTF-8", path=path
            ) from error

    def _open_notifier(self) -> RustNotify:
        notifier: RustNotify = self._library.RustNotify(
            self._directories,
            False,
            self.polls,
            _POLL_MS,
            recursive=False,
            ignore_permission_denied=True,
        )
        return notifier

    def wait(self, step_ms: int, stopped: threading.Event | None = None) -> set[str] | None:
        """Wait for touched paths, and return them. Empty: it was stopped. None: any may have been
        touched.

        If a directory itself is among them, any file in it may have been touched.

        Args:
            step_ms: How often to ask the kernel for events, in milliseconds. It answers one to two
                such steps after a write.
            stopped: Ends the wait when it is set.

        Raises KeyboardInterrupt in the main thread.
        """
        remaining_s = min(self._repeat_at.values(), default=0.0) - time.monotonic()
        timeout_ms = max(1, math.ceil(remaining_s * 1000)) if self._repeat_at else 0
        try:
            reported = self._notify.watch(step_ms, step_ms, timeout_ms, stopped)
        except (
            self._library.WatchfilesRustInternalError
        ) as error:  # As for a name that is not UTF-8.
            _log.debug("watchfiles: %s", error)
            with suppress(
                OSError, self._library.WatchfilesRustInternalError
            ):  # It would give the error for ever.
                self._notify = self._open_notifier()
            return None
        if reported == "signal":
            raise KeyboardInterrupt
        paths, now = (
            set() if isinstance(reported, str) else {path for _, path in reported},
            time.monotonic(),
        )
        due = {path for path, at in self._repeat_at.items() if at <= now}
        if self.polls:
            self._repeat_at = {path: at for path, at in self._repeat_at.items() if at > now}
            self._repeat_at |= dict.fromkeys(paths, now + _SAME_SECOND_S)
        return paths | due


def _follow(
    watcher: WatchfilesWatcher,
    directory: str,
    suffix: str,
    step_ms: int,
    stopped: threading.Event,
    touched_names: TouchedNames,
) -> None:
    """Add what watchfiles reports to the touched names until it is stopped. Runs in a thread."""
    while not stopped.is_set():
        paths = watcher.wait(step_ms, stopped)
        if paths is None or directory in paths:
            touched_names.touch(None)
        else:
            parts = map(os.path.split, paths)
            touched_names.touch(
                _ids((name for folder, name in parts if folder == directory), suffix)
            )


def _stop_thread(thread: threading.Thread, stopped: threading.Event) -> None:
    stopped.set()
    if thread is not threading.current_thread():  # Garbage collection may run in any thread.
        thread.join()
