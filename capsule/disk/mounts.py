"""On which kind of file system a directory lies, and how that is mounted.

What must stay true: an option whose value can name a machine, a person or a path is not given. Linux only can tell.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

_INFO = "/proc/self/mountinfo"
#: The options whose values are given; of all others with a value, nothing.
_VALUED = frozenset({"cache", "data", "errors", "local_lock", "proto", "vers"})


class Mount(NamedTuple):
    """A file system as it is mounted: its kind, as the kernel names it (empty: it can't be told), and its options."""

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
    return [fields for fields in (line.split(b" ") for line in lines) if len(fields) > 6 and b"-" in fields]


def _mount(fields: list[bytes]) -> Mount:
    kind, _, *more = fields[fields.index(b"-") + 1 :]
    options = b",".join([fields[5], *more]).decode("ascii", "replace").split(",")
    safe = (option for option in options if "=" not in option or option.partition("=")[0] in _VALUED)
    return Mount(kind.decode("ascii", "replace"), tuple(dict.fromkeys(safe)))
