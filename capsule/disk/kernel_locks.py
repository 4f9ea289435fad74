"""Kernel locks of open files. This is the only module that takes one, with portalocker.

What must stay true: a lock ends with its process, however that dies. So these are locks by flock
and not by lockf. A lock belongs to the open file, and closing another descriptor of the same file
does not release it. Cost besides the system calls: 1.4 us for both.
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

_LOCKER = _portalocker.FlockLocker()
_FLAGS = _constants.LockFlags


class _LockMode(int):
    """The flags of a lock as a plain number. portalocker's own enum takes longer than the lock."""


#: The flags by whether the lock is shared, and whether to wait for it.
_MODES = {
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
        shared: Whether others may share it. Otherwise it excludes every other descriptor.
        wait: Whether to wait in the kernel, without a limit. Otherwise this returns at once.

    Returns False if another descriptor has a lock that excludes this one. Raises OSError.
    """
    try:
        _LOCKER.lock(fd, _MODES[shared, wait])  # type: ignore[arg-type]
    except _exceptions.AlreadyLocked:
        return False
    except _exceptions.LockException as error:
        raise error.args[0] from None
    return True


def unlock(fd: int) -> None:
    """Release the lock of an open file. Raises OSError."""
    try:
        _LOCKER.unlock(fd)
    except _exceptions.LockException as error:
        raise error.args[0] from None
