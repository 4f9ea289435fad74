"""Whole files: open them safely, read them, and replace them by new versions.

A new version is written under a temporary name in the same directory and flushed (`write_new`).
Then it exchanges names with the old version (`put_in_place`), which is compared with the expected
signature after the exchange, and only then deleted.

What must stay true: only a regular file is opened. A symlink, a FIFO or a directory is refused, and
opening one never blocks. A new version is durable before it gets its name. No version is deleted
that the caller did not expect, not even one that an editor saved an instant ago.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
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
    """The values that distinguish one state of a file from another: times in nanoseconds, size in
    bytes.
    """

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int


class FileContent(NamedTuple):
    """The bytes of a file, and the signature that it had when they were read."""

    data: bytes
    signature: Signature


#: A signature that no file has.
NO_SIGNATURE = Signature(0, 0, 0, 0)

_PERMISSION_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL_DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT)
_UNSUPPORTED_ERRORS = (errno.ENOTSUP, errno.EOPNOTSUPP)
#: Copies and flushes are done in pieces of this size, in bytes.
_CHUNK = 8 << 20
#: The extended attribute of an access control list.
_ACL = "system.posix_acl_access"


@contextmanager
def translate_errors(path: str, operation: str) -> Iterator[None]:
    """Turn an `OSError` in the block into `Refused` or `StorageFailed`.

    Args:
        path: The file that the error names.
        operation: The operation that the error names, a verb such as "write".
    """
    try:
        yield
    except OSError as error:
        raise as_capsule_error(error, path, operation) from error


def as_capsule_error(error: OSError, path: str, operation: str) -> CapsuleError:
    """Return the error of Capsule for one of the system. Arguments: see `translate_errors`."""
    reason = error.strerror or str(error)
    if error.errno in _PERMISSION_ERRORS:
        return Refused(
            f"{path}: could not {operation} it: {reason}; check the permissions of the store",
            path=path,
        )
    is_full = error.errno in _FULL_DISK_ERRORS
    hint = "; free some space and try again" if is_full else ""
    return StorageFailed(
        f"{path}: could not {operation} it: {reason}{hint}", path=path, errno=error.errno
    )


def _refused(path: str, reason: str) -> InvalidDocument:
    return InvalidDocument.of([Problem(path, 0, 0, "", f"{reason}; move it out of the way")])


def _irregular(path: str, kind: str) -> InvalidDocument:
    return _refused(path, f"is {kind}, but must be a regular file")


@contextmanager
def open_file(sys: Syscalls, path: str, flags: int, mode: int = 0o777) -> Iterator[int]:
    """Open a file in a `with` block, which gets the descriptor. Raises `OSError`."""
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


def open_regular(
    sys: Syscalls, path: str, flags: int, max_bytes: int
) -> tuple[int, os.stat_result]:
    """Open a regular file of at most `max_bytes`, and return its descriptor and status.

    It follows no symlink and never blocks.

    Raises:
        FileNotFoundError: The path does not exist.
        InvalidDocument: The path is not a regular file, or the file is larger.
        OSError: The system refused.
    """
    try:
        fd = sys.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _irregular(path, "a symlink") from error
        if error.errno == errno.EISDIR:
            raise _irregular(path, "a directory") from error
        if error.errno == errno.ENXIO:
            raise _irregular(path, "a FIFO or a device") from error
        raise
    status = sys.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        sys.close(fd)
        raise _irregular_by_status(path, status)
    if status.st_size > max_bytes:
        sys.close(fd)
        raise _refused(
            path,
            f"has {status.st_size:,} bytes, more than limits.document_bytes in capsule.toml "
            f"allows ({max_bytes:,})",
        )
    return fd, status


def read_regular(sys: Syscalls, path: str, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`. Raises what `open_regular` raises."""
    fd, status = open_regular(sys, path, os.O_RDONLY, max_bytes)
    try:
        return pread_all(sys, fd, status.st_size)
    finally:
        sys.close(fd)


def read_if_exists(path: str, max_bytes: int) -> bytes | None:
    """Read a regular file of at most `max_bytes`. Returns None if the path does not exist.

    Raises:
        InvalidDocument: The path is not a regular file, or the file is larger.
        Refused, StorageFailed: The system refused a read or a write.
    """
    with translate_errors(path, "read"), suppress(FileNotFoundError):
        return read_regular(Syscalls(), path, max_bytes)
    return None


def ensure_regular(sys: Syscalls, path: str) -> None:
    """Raise `InvalidDocument` if the path is not a regular file, and `FileNotFoundError` if it does
    not exist.
    """
    status = sys.lstat(path)
    if not stat.S_ISREG(status.st_mode):
        raise _irregular_by_status(path, status)


def _irregular_by_status(path: str, status: os.stat_result) -> InvalidDocument:
    return _irregular(path, _KINDS.get(stat.S_IFMT(status.st_mode), "a device"))


def status_if_named(sys: Syscalls, path: str, fd: int) -> os.stat_result | None:
    """Return the status of an open file if the path still names it, otherwise None.

    The number of links does not show it: it stays if the directory of the file is moved away.
    """
    status = sys.fstat(fd)
    try:
        named_status = sys.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    is_named = (named_status.st_ino, named_status.st_dev) == (status.st_ino, status.st_dev)
    return status if is_named else None


#: The values of a signature as a plain tuple, which is compared with one at the least cost.
stat_key = attrgetter("st_ino", "st_size", "st_mtime_ns", "st_ctime_ns")


def signature_of(status: os.stat_result) -> Signature:
    """Return the signature of a file with this status."""
    return Signature(*stat_key(status))


def pread_all(sys: Syscalls, fd: int, size: int, offset: int = 0) -> bytes:
    """Read `size` bytes from `offset`, or all bytes from there if the file is shorter."""
    data = sys.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    pieces = [data]
    byte_count = len(data)
    while byte_count < size:
        data = sys.pread(fd, min(size - byte_count, _CHUNK), offset + byte_count)
        if not data:
            break
        pieces.append(data)
        byte_count += len(data)
    return b"".join(pieces)


def pwrite_all(sys: Syscalls, fd: int, data: bytes, offset: int) -> None:
    """Write all of `data` at `offset`, with as many calls as necessary."""
    byte_count = sys.pwrite(fd, data, offset)
    while byte_count < len(data):
        piece = memoryview(data)[byte_count : byte_count + _CHUNK]
        piece_bytes = sys.pwrite(fd, piece, offset + byte_count)
        if piece_bytes == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        byte_count += piece_bytes


def write_pieces(sys: Syscalls, fd: int, pieces: Iterable[bytes], offset: int) -> int:
    """Write pieces one after the other from `offset`. Returns the offset after them.

    The system begins to flush them while the next pieces are made, so that the flush at the end has
    little left to do.
    """
    flush_start = offset
    for piece in pieces:
        pwrite_all(sys, fd, piece, offset)
        offset += len(piece)
        if offset - flush_start >= _CHUNK:
            sys.begin_flush(fd, flush_start, offset - flush_start)
            flush_start = offset
    return offset


def copy_range(
    sys: Syscalls, source: int, target: int, start: int, end: int, target_offset: int
) -> int:
    """Copy the bytes between two offsets of a file to an offset of another one.

    Returns the offset after them in the target. The system begins to flush them meanwhile.

    Raises:
        ConcurrentWrite: The source has become shorter.
        OSError: The system refused.
    """
    flush_start = target_offset
    while start < end:
        copied_bytes = sys.copy(source, target, start, min(end - start, _CHUNK), target_offset)
        if not copied_bytes:
            raise ConcurrentWrite
        start += copied_bytes
        target_offset += copied_bytes
        if target_offset - flush_start >= _CHUNK:
            sys.begin_flush(target, flush_start, target_offset - flush_start)
            flush_start = target_offset
    return target_offset


class FlushFailed(OSError):
    """A flush failed. The bytes may be lost, even if a later flush of the same file succeeds."""


def flush(fsync: Callable[[int], None], fd: int) -> None:
    """Flush a file with `fsync` or `fdatasync` of `Syscalls`. Raises `FlushFailed`."""
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
    """Make a new file, fill it and flush it.

    Args:
        sys: The system calls.
        path: The new file, which must not exist.
        mode: Its permission bits, less those of the umask. Not used with `like`.
        write: Writes the content to a descriptor.
        like: Copy owner and permissions from this file, which the new one will replace.

    Returns its descriptor, open for reading and writing. If anything fails, the file is deleted.
    Raises `OSError`, and what `write` raises.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = sys.open(path, flags, mode if like is None else 0o600)
    try:
        if like is not None:
            with suppress(FileNotFoundError):  # The caller finds out when it replaces the file.
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
    """Copy owner, group, permissions and extended attributes, such as ACLs, of a file to an open
    one.

    The user may not be allowed to set the owner or the group. If the group can't be copied, the
    file's own group gets no more permissions than everybody, and no ACL.
    """
    source_status = sys.lstat(path)
    target_status = sys.fstat(fd)
    mode = source_status.st_mode & 0o777
    copies_acl = True
    source_owner = (source_status.st_uid, source_status.st_gid)
    if source_owner != (target_status.st_uid, target_status.st_gid):
        try:
            sys.fchown(fd, *source_owner)
        except OSError:
            try:
                sys.fchown(fd, -1, source_status.st_gid)
            except OSError:
                permissions_of_others = mode & 0o007
                mode = mode & 0o707 | permissions_of_others << 3
                copies_acl = False
    sys.fchmod(fd, mode)
    attributes = sys.attributes(path)
    if not copies_acl:
        attributes.pop(_ACL, None)
    current_attributes = sys.attributes(fd)
    if attributes == current_attributes:
        return
    if _ACL in current_attributes and _ACL not in attributes:  # A default of the directory.
        sys.remove_attribute(fd, _ACL)
    for name, value in attributes.items():
        if current_attributes.get(name) != value:
            try:
                sys.set_attribute(fd, name, value)
            except OSError as error:
                if error.errno not in (*_PERMISSION_ERRORS, *_UNSUPPORTED_ERRORS):
                    raise


def link(sys: Syscalls, source: str, path: str) -> None:
    """Give a file a second name. If the file system has no hard links, move the file there.

    Raises FileExistsError, OSError.
    """
    try:
        sys.link(source, path)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EMLINK, *_UNSUPPORTED_ERRORS):
            raise
        try:
            sys.lstat(path)
        except FileNotFoundError:
            sys.rename(source, path)
        else:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None


def unlink_if_exists(sys: Syscalls, path: str) -> None:
    """Delete a name, if it exists."""
    with suppress(FileNotFoundError):
        sys.unlink(path)


def put_in_place(sys: Syscalls, new: str, path: str, expected: Signature | None) -> None:
    """Give a durable new file its final name, durably.

    Args:
        sys: The system calls.
        new: The new file, in the directory of `path`.
        path: Its final name.
        expected: The signature of the version that it replaces. None: there must be none.

    Raises:
        ConcurrentWrite: Another version has the name. It still has it, and `new` is deleted.
        OSError: The system refused. The name belongs to the old version or the new one.
    """
    new_inode = -1
    try:
        if expected is None:
            link(sys, new, path)
            exchanged = False
        else:
            new_inode = sys.lstat(new).st_ino
            # Compared before the exchange too: an exchange that is reversed would show `new` for an
            # instant, without the edit of another program, which might read it.
            if not _has_content_of(sys, path, expected):
                raise FileNotFoundError
            exchanged = sys.exchange(new, path)
            if not exchanged:
                # A rename would delete a version that an editor saves in these microseconds.
                sys.rename(new, path)
    except (FileExistsError, FileNotFoundError):
        unlink_if_exists(sys, new)
        raise ConcurrentWrite from None
    except OSError:
        with suppress(OSError):
            sys.unlink(new)
        raise
    # The name `new` may now belong to an editor's version. So after an error it stays, and is found
    # as a leftover.
    if exchanged and expected is not None and not _has_content_of(sys, new, expected):
        sys.exchange(new, path)
        if sys.lstat(new).st_ino != new_inode:
            # Somebody saved in between: that version must keep the name.
            sys.exchange(new, path)
        unlink_if_exists(sys, new)
        raise ConcurrentWrite
    unlink_if_exists(sys, new)
    sync_directory(sys, os.path.dirname(path))


def _has_content_of(sys: Syscalls, path: str, expected: Signature) -> bool:
    """Compare a signature without its ctime, which a rename changes."""
    return signature_of(sys.lstat(path))[:3] == expected[:3]


def replace_file(
    path: str, expected: bytes | None, new: bytes | None, *, mode: int = 0o600
) -> None:
    """Replace the content of a file, or delete the file, durably.

    Owner and permissions of an existing file stay.

    Args:
        path: The file. It is no symlink.
        expected: Its content. None: there must be no file. Its directory is made if necessary.
        new: The new content. None: delete the file.
        mode: The permission bits of a new file, less those of the umask.

    Raises:
        StoreBusy: Another program wrote the file meanwhile. It stays as that program left it.
        Refused, StorageFailed: The system refused. The file is unchanged.
    """
    sys = Syscalls()
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{new_id()}.tmp")
    operation = "write" if new is not None else "remove"
    with translate_errors(path, operation):
        try:
            if new is None:
                _delete_file(sys, path, temporary, expected)
                return
            signature = None if expected is None else signature_of(sys.lstat(path))
            if expected is None:
                os.makedirs(directory, exist_ok=True)
            else:
                with open(path, "rb") as file:
                    if file.read() != expected:
                        raise ConcurrentWrite
            like = None if expected is None else path
            write = partial(pwrite_all, sys, data=new, offset=0)
            os.close(write_new(sys, temporary, mode, write, like=like))
            put_in_place(sys, temporary, path, signature)
        except (ConcurrentWrite, FileNotFoundError):
            reason = f"{path} was changed by another program meanwhile; try again"
            raise StoreBusy(reason, id=path, holder="another program") from None


def _delete_file(sys: Syscalls, path: str, temporary: str, expected: bytes | None) -> None:
    """Delete a file durably, if it has the expected content.

    Raises `ConcurrentWrite`, `OSError`.
    """
    # Renamed first, so that a version that another program saves from now on stays.
    sys.rename(path, temporary)
    with open(temporary, "rb") as file:
        is_expected = file.read() == expected
    if not is_expected:
        link(sys, temporary, path)
    unlink_if_exists(sys, temporary)
    sync_directory(sys, os.path.dirname(path))
    if not is_expected:
        raise ConcurrentWrite
