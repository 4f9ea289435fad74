"""Kernel locks of open files, taken by portalocker: the only place that takes one.

What must stay true: a lock goes with its process, however that dies (flock, not lockf: it belongs
to the open file, so closing another descriptor of the same file does not release it). Cost beside
the system calls: 1.4 us for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capsule.disk.import_submodule import import_submodule

if TYPE_CHECKING:
    from portalocker import constants as _constants
    from portalocker import exceptions as _exceptions
    from portalocker import portalocker as _portalocker
else:
    _portalocker = import_submodule("portalocker.portalocker")
    _constants, _exceptions = _portalocker.constants, _portalocker.exceptions

_LOCKER, _FLAGS = _portalocker.FlockLocker(), _constants.LockFlags


class _LockMode(int):
    """Flags of a lock. Not as the enum they come from: what portalocker asks of that takes longer
    than the lock.
    """


#: By whether the lock is shared, and whether to wait for it.
_WAYS = {
    (shared, wait): _LockMode(
        (_FLAGS.SHARED if shared else _FLAGS.EXCLUSIVE)
        | (_FLAGS(0) if wait else _FLAGS.NON_BLOCKING)
    )
    for shared in (False, True)
    for wait in (False, True)
}


def lock(fd: int, shared: bool = False, wait: bool = False) -> bool:
    """Take the lock of an open file.

    Args:
        fd: The file's descriptor.
        shared: Whether others may share it; else it excludes every other descriptor of the file.
        wait: Whether to wait in the kernel until it can be had, for ever; else this returns at
            once.

    Returns:
        False: another descriptor's lock stands in the way.

    Raises:
        OSError: As the system does.
    """
    try:
        _LOCKER.lock(fd, _WAYS[shared, wait])  # type: ignore[arg-type]
    except _exceptions.AlreadyLocked:
        return False
    except _exceptions.LockException as error:
        raise error.args[0] from None
    return True


def unlock(fd: int) -> None:
    """Give back the lock of an open file. Raises OSError."""
    try:
        _LOCKER.unlock(fd)
    except _exceptions.LockException as error:
        raise error.args[0] from None
