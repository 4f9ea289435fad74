"""Kernel locks of open files, taken by portalocker: the only place that takes one.

What must stay true: a lock goes with its process, however that dies (flock, not lockf: it belongs to the open file, so
closing another descriptor of the same file does not release it). Cost beside the system call: 2 us for lock and unlock.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from portalocker.constants import LockFlags
    from portalocker.portalocker import FlockLocker


def _loaded() -> tuple[FlockLocker, type[LockFlags], type[Exception], type[Exception]]:
    """portalocker's modules for locks of open files, without its package.

    Importing the package reads its version from the installed metadata and makes its classes for semaphores and Redis,
    which costs as much as starting Python. Another import of the package finds these modules and adds the rest.
    """
    spec = find_spec("portalocker")
    if "portalocker" not in sys.modules and spec is not None:
        package = ModuleType("portalocker")
        package.__path__ = spec.submodule_search_locations or []
        sys.modules["portalocker"] = package
        try:
            import_module("portalocker.portalocker")
        finally:
            del sys.modules["portalocker"]
    locks, flags = sys.modules["portalocker.portalocker"], sys.modules["portalocker.constants"]
    errors = sys.modules["portalocker.exceptions"]
    return locks.FlockLocker(), flags.LockFlags, errors.AlreadyLocked, errors.LockException


_LOCKER, _FLAGS, _AlreadyLocked, _LockException = _loaded()
#: By whether the lock is shared, and whether to wait for it.
_WAYS = {
    (shared, wait): (_FLAGS.SHARED if shared else _FLAGS.EXCLUSIVE) | (_FLAGS(0) if wait else _FLAGS.NON_BLOCKING)
    for shared in (False, True)
    for wait in (False, True)
}


def lock(fd: int, *, shared: bool = False, wait: bool = False) -> bool:
    """Take the lock of an open file.

    Args:
        fd: The file's descriptor.
        shared: Whether others may share it; else it excludes every other descriptor of the file.
        wait: Whether to wait in the kernel until it can be had, for ever; else this returns at once.

    Returns:
        False: another descriptor's lock stands in the way.

    Raises:
        OSError: As the system does.
    """
    try:
        _LOCKER.lock(fd, _WAYS[shared, wait])
    except _AlreadyLocked:
        return False
    except _LockException as error:
        raise error.args[0] from None
    return True


def unlock(fd: int) -> None:
    """Give back the lock of an open file. Raises OSError."""
    try:
        _LOCKER.unlock(fd)
    except _LockException as error:
        raise error.args[0] from None
