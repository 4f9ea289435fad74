"""Kernel locks of open files, taken as portalocker does: the only place that takes one.

What must stay true: a lock goes with its process, however that dies (flock, not lockf: it belongs to the open file, so
closing another descriptor of the same file does not release it).
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from capsule.disk.parts import load_part

if TYPE_CHECKING:
    from portalocker import constants as _constants
    from portalocker import portalocker as _portalocker
else:
    _portalocker = load_part("portalocker.portalocker")
    _constants = _portalocker.constants

#: Without the checks around it, which cost more than the system call.
_flock, _FLAGS = _portalocker.FlockLocker().locker, _constants.LockFlags
_UNLOCK = int(_FLAGS.UNBLOCK)
#: By whether the lock is shared, and whether to wait for it.
_WAYS = {
    (shared, wait): int(_FLAGS.SHARED if shared else _FLAGS.EXCLUSIVE) | int(0 if wait else _FLAGS.NON_BLOCKING)
    for shared in (False, True)
    for wait in (False, True)
}


def lock(fd: int, shared: bool = False, wait: bool = False) -> bool:
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
        _flock(fd, _WAYS[shared, wait])
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise
        return False
    return True


def unlock(fd: int) -> None:
    """Give back the lock of an open file. Raises OSError."""
    _flock(fd, _UNLOCK)
