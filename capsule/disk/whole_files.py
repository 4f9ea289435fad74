"""Whole files: opened safely, read, written beside their place and put into it.

What must stay true: a file is opened only if it is a regular one (a symlink, a FIFO or a directory
is refused, and opening it never blocks); a new version is durable before it gets its name; and no
version is dropped that the caller did not decide upon, not even one that an editor saved an instant
ago.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import NamedTuple

from capsule.disk.syscalls import Syscalls
from capsule.errors import (
    CapsuleError,
    ConcurrentWrite,
    InvalidDocument,
    Problem,
    Refused,
    StorageFailed,
    StoreBusy,
)
from capsule.ids import new_id


class Signature(NamedTuple):
    """What tells one state of a file from another: times in nanoseconds, size in bytes."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


#: A signature that no file has.
NO_SIGNATURE = Signature(0, 0, 0, 0)

_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)
_CHUNK = 8 << 20
_ACL = "system.posix_acl_access"


@contextmanager
def translate_errors(path: str, doing: str) -> Iterator[None]:
    """Turn the system's errors into Capsule's, with the path and what was being done.

    Args:
        path: The file.
        doing: What was being done, as "write".
    """
    try:
        yield
    except OSError as error:
        raise as_capsule_error(error, path, doing) from error


def as_capsule_error(error: OSError, path: str, doing: str) -> CapsuleError:
    """The error of the package for one of the system."""
    reason = error.strerror or str(error)
    if error.errno in _PERMISSION:
        return Refused(
            f"{path}: could not {doing} it: {reason}; check the permissions of the store", path=path
        )
    hint = "; free some space and try again" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return StorageFailed(
        f"{path}: could not {doing} it: {reason}{hint}", path=path, errno=error.errno
    )


def _refused(path: str, reason: str) -> InvalidDocument:
    return InvalidDocument.of([Problem(path, 0, 0, "", f"{reason}; move it out of the way")])


def _irregular(path: str, kind: str) -> InvalidDocument:
    return _refused(path, f"is {kind}, but must be a regular file")


@contextmanager
def open_file(sys: Syscalls, path: str, flags: int, mode: int = 0o777) -> Iterator[int]:
    """The descriptor of a file, open in a `with` block. Raises `OSError`."""
    fd = sys.open(path, flags, mode)
    try:
        yield fd
    finally:
        sys.close(fd)


_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a symlink",
}


def open_regular(sys: Syscalls, path: str, flags: int, most: int) -> tuple[int, os.stat_result]:
    """Open a regular file of at most so many bytes, following no symlink and never blocking.

    Raises:
        FileNotFoundError: There is none.
        InvalidDocument: Something else is in its place, or it is larger.
        OSError: The system refused.
    """
    try:
        fd = sys.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _irregular(path, "a symlink") from error
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise _irregular(
                path, "a directory" if error.errno == errno.EISDIR else "a FIFO or a device"
            ) from error
        raise
    status = sys.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        sys.close(fd)
        raise _other(path, status)
    if status.st_size > most:
        sys.close(fd)
        raise _refused(
            path,
            f"has {status.st_size:,} bytes, more than limits.document_bytes in capsule.toml "
            f"allows ({most:,})",
        )
    return fd, status


def read_regular(sys: Syscalls, path: str, most: int) -> bytes:
    """The bytes of a regular file. Raises what `open_regular` raises."""
    fd, status = open_regular(sys, path, os.O_RDONLY, most)
    try:
        return pread_all(sys, fd, status.st_size)
    finally:
        sys.close(fd)


def read_if_exists(path: str, most: int) -> bytes | None:
    """The bytes of a regular file of at most `most` bytes; None: there is none.

    Raises:
        InvalidDocument: Something else is in its place, or it is larger.
        Refused, StorageFailed: The system refused a read or a write.
    """
    with translate_errors(path, "read"), suppress(FileNotFoundError):
        return read_regular(Syscalls(), path, most)
    return None


def ensure_regular(sys: Syscalls, path: str) -> None:
    """Raise InvalidDocument when something other than a regular file is at `path`;
    FileNotFoundError for nothing.
    """
    status = sys.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise _other(path, status)


def _other(path: str, status: os.stat_result) -> InvalidDocument:
    return _irregular(path, _KINDS.get(stat.S_IFMT(status.st_mode), "a device"))


def status_if_named(sys: Syscalls, path: str, fd: int) -> os.stat_result | None:
    """The status of an open file, when `path` stands for it still; None when that names another
    file, or none.

    A count of links doesn't tell: it stays when the directory of the file is moved away.
    """
    status = sys.fstat(fd)
    try:
        named = sys.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if (named.st_ino, named.st_dev) == (status.st_ino, status.st_dev) else None


#: What a signature is made of, to compare a status with one at the least cost.
stat_key = attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


def signature_of(status: os.stat_result) -> Signature:
    """The signature in the status of a file."""
    return Signature(*stat_key(status))


def pread_all(sys: Syscalls, fd: int, size: int, offset: int = 0) -> bytes:
    """Read `size` bytes from `offset`, or as many as there are."""
    data = sys.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    got = len(data)
    while got < size and (data := sys.pread(fd, min(size - got, _CHUNK), offset + got)):
        parts.append(data)
        got += len(data)
    return b"".join(parts)


def pwrite_all(sys: Syscalls, fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`; a short write goes on behind what it wrote."""
    done = sys.pwrite(fd, data, offset)
    while done < len(data):
        written = sys.pwrite(fd, memoryview(data)[done : done + _CHUNK], offset + done)
        if written == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done += written


def write_pieces(sys: Syscalls, fd: int, pieces: Iterable[bytes], offset: int) -> int:
    """Write pieces one behind the other from `offset`; the offset behind them.

    The system begins to flush what was written while the next pieces are made, so that the flush at
    the end, which vouches for all of it, has little left to do.
    """
    begun = offset
    for piece in pieces:
        pwrite_all(sys, fd, piece, offset)
        offset += len(piece)
        if offset - begun >= _CHUNK:
            sys.begin_flush(fd, begun, offset - begun)
            begun = offset
    return offset


def copy_range(sys: Syscalls, source: int, target: int, start: int, end: int, to: int) -> int:
    """Copy the bytes between two offsets of a file to an offset of another; the offset behind them
    there.

    Raises:
        Interfered: The source has become shorter.
        OSError: The system refused.
    """
    begun = to
    while start < end:
        copied = sys.copy(source, target, start, min(end - start, _CHUNK), to)
        if not copied:
            raise ConcurrentWrite
        start, to = start + copied, to + copied
        if to - begun >= _CHUNK:
            sys.begin_flush(target, begun, to - begun)
            begun = to
    return to


class FlushFailed(OSError):
    """A flush failed. What it was to make durable may be lost, even if a later flush of the same
    file succeeds.
    """


def flush(fsync: Callable[[int], None], fd: int) -> None:
    """Flush a file by one of the calls of the system. Raises `FlushFailed`."""
    try:
        fsync(fd)
    except OSError as error:
        raise FlushFailed(error.errno, error.strerror) from error


def sync_directory(sys: Syscalls, path: str) -> None:
    """Make the names in a directory durable. Raises `FlushFailed`, OSError."""
    with open_file(sys, path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as fd:
        flush(sys.fsync, fd)


def write_new(
    sys: Syscalls, path: str, mode: int, write: Callable[[int], None], *, like: str | None = None
) -> int:
    """Make the file `path`, which must be free, let `write` fill it, and make it durable.

    Args:
        sys: The seam to the system.
        path: The new file.
        mode: Its permission bits, out of which the umask takes its own.
        write: Writes to the descriptor it is given.
        like: The file whose place it is to take: whom that belongs to and who may read it, it is to
            be so as well.

    Returns:
        Its descriptor, open for reading and writing. When anything fails the file is gone.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = sys.open(path, flags, mode if like is None else 0o600)
    try:
        if like is not None:
            with suppress(
                FileNotFoundError
            ):  # Then there is nothing to take the place of: the caller finds out.
                _copy_ownership(sys, fd, like)
        write(fd)
        sys.fsync(fd)
    except BaseException:
        with suppress(OSError):
            sys.close(fd)
        with suppress(OSError):
            sys.unlink(path)
        raise
    return fd


def _copy_ownership(sys: Syscalls, fd: int, path: str) -> None:
    """Give a file the owner, the group, the permissions and the extended attributes (ACLs are such)
    of another.

    A user may give away what is theirs only in part: where the group can't be had, the one that the
    file has instead may do no more than everybody.
    """
    theirs, ours = sys.lstat(path), sys.fstat(fd)
    mode, acl = theirs.st_mode & 0o777, True
    if (theirs.st_uid, theirs.st_gid) != (ours.st_uid, ours.st_gid):
        try:
            sys.fchown(fd, theirs.st_uid, theirs.st_gid)
        except OSError:
            try:
                sys.fchown(fd, -1, theirs.st_gid)
            except OSError:
                mode, acl = mode & 0o707 | (mode & 0o007) << 3, False
    sys.fchmod(fd, mode)
    wanted = {name: value for name, value in sys.attributes(path).items() if acl or name != _ACL}
    there = sys.attributes(fd)
    if wanted == there:
        return
    if _ACL in there and _ACL not in wanted:  # From the directory's defaults.
        sys.remove_attribute(fd, _ACL)
    for name, value in wanted.items():
        if there.get(name) != value:
            try:
                sys.set_attribute(fd, name, value)
            except OSError as error:
                if error.errno not in (*_PERMISSION, errno.ENOTSUP, errno.EOPNOTSUPP):
                    raise


def link(sys: Syscalls, source: str, path: str) -> None:
    """Give a file a second, free name; where the file system knows no hard links, move it there.

    Raises:
        FileExistsError: The name is taken.
    """
    try:
        sys.link(source, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK):
            raise
        try:
            sys.lstat(path)
        except FileNotFoundError:
            sys.rename(source, path)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None


def unlink_if_exists(sys: Syscalls, path: str) -> None:
    """Unlink a name, when it is there."""
    with suppress(FileNotFoundError):
        sys.unlink(path)


def put_in_place(sys: Syscalls, new: str, path: str, expected: Signature | None) -> None:
    """Give a durable new file its name, and make the name durable.

    Args:
        new: The new file, in the directory of `path`.
        path: The name it is to have.
        expected: The version it takes the place of; None: there must be none.

    Raises:
        Interfered: Another version was in that place; it still is, and `new` is gone.
        OSError: The system refused. What lies at `path` is then the old version or the new one.
    """
    ours = -1
    try:
        if expected is None:
            link(sys, new, path)
            exchanged = False
        else:
            ours = sys.lstat(new).st_ino
            # Looked at first, as an exchange that is taken back shows `new` for an instant, without
            # what an editor saved, and that editor may be the one to read it.
            if (
                signature_of(sys.lstat(path))[:3] != expected[:3]
            ):  # A rename touches ctime, and nothing else.
                raise FileNotFoundError
            exchanged = sys.exchange(new, path)
            if not exchanged:
                # The next best: a window of microseconds is left, in which an editor's version
                # would be dropped.
                sys.rename(new, path)
    except (FileExistsError, FileNotFoundError):
        unlink_if_exists(sys, new)
        raise ConcurrentWrite from None
    except OSError:
        with suppress(OSError):
            sys.unlink(new)
        raise
    # From here on `new` may be somebody's version: on an error it stays, and is found as a
    # leftover.
    if exchanged and expected is not None and signature_of(sys.lstat(new))[:3] != expected[:3]:
        sys.exchange(new, path)
        if sys.lstat(new).st_ino != ours:
            sys.exchange(new, path)  # Saved once more, in between: that version is the one to stay.
        unlink_if_exists(sys, new)
        raise ConcurrentWrite
    unlink_if_exists(sys, new)
    sync_directory(sys, os.path.dirname(path))


def replace_file(
    path: str, before: bytes | None, after: bytes | None, *, mode: int = 0o600
) -> None:
    """Replace what a file holds, or remove it, durably. The new file has the old one's permissions.

    Args:
        path: The file; no symlink.
        before: What it holds; None: there is none, and perhaps no directory.
        after: What it is to hold; None: it is removed.
        mode: The permission bits of a new file, out of which the umask takes its own.

    Raises:
        StoreBusy: Another program wrote the file meanwhile; it stays as that program left it.
        Refused, StorageFailed: The system refused a read or a write; the file is as it was.
    """
    sys, (directory, name) = Syscalls(), os.path.split(path)
    new = os.path.join(directory, f".{name}.{new_id()}.tmp")
    with translate_errors(path, "write" if after is not None else "remove"):
        try:
            if after is None:
                sys.rename(path, new)  # Aside: whatever is there from now on is another's.
                with open(new, "rb") as file:
                    is_ours = file.read() == before
                if not is_ours:
                    link(sys, new, path)
                unlink_if_exists(sys, new)
                sync_directory(sys, directory)
                if is_ours:
                    return
                raise ConcurrentWrite
            expected = None if before is None else signature_of(sys.lstat(path))
            if before is None:
                os.makedirs(directory, exist_ok=True)
            else:
                with open(path, "rb") as file:
                    if file.read() != before:
                        raise ConcurrentWrite
            like = None if before is None else path
            os.close(write_new(sys, new, mode, lambda fd: pwrite_all(sys, fd, after, 0), like=like))
            put_in_place(sys, new, path, expected)
        except (ConcurrentWrite, FileNotFoundError):
            reason = f"{path} was changed by another program meanwhile; try again"
            raise StoreBusy(reason, id=path, holder="another program") from None
