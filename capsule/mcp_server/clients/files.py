"""Settings files on disk: read as they are, and replaced in one step.

What must stay true: whoever reads a file sees the old or the new one, never a part; it keeps its permissions; where
its name is a symlink, as with dotfiles, the file that it leads to is replaced and the link stays; and before a file
is changed, what it held is durable in a copy that nobody but its owner may read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from capsule.errors import InvalidDocument, Problem, Refused, StorageFailed

__all__ = ["Changed", "File", "backups", "read", "replace"]

BOM = b"\xef\xbb\xbf"


class Changed(Refused):
    """Another program changed the file since it was read; nothing was written. Fields: ``path`` (str)."""


@dataclass(frozen=True, slots=True)
class File:
    """A settings file as it was read.

    Attributes:
        path: Its name, as the program knows it.
        target: The file itself, behind all symlinks.
        data: Its bytes; None when there is no file.
    """

    path: str
    target: str
    data: bytes | None

    @property
    def text(self) -> str:
        """What it says, without a byte order mark.

        Raises:
            InvalidDocument: It is no UTF-8.
        """
        data = (self.data or b"").removeprefix(BOM)
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            column = len(data[data.rfind(b"\n", 0, error.start) + 1 : error.start].decode()) + 1
            raise InvalidDocument.of([Problem(self.path, line, column, "", "is no UTF-8 text")]) from error

    def with_text(self, text: str) -> bytes:
        """The bytes of the file when it says `text`; a byte order mark stays."""
        return (BOM if (self.data or b"").startswith(BOM) else b"") + text.encode()


@contextlib.contextmanager
def _naming(path: str, doing: str) -> Iterator[None]:
    """Turn the system's errors into Capsule's, with the path and what was being done."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise Refused(f"{path}: may not {doing} it: {reason}; check its permissions", path=path) from error
        raise StorageFailed(f"{path}: could not {doing} it: {reason}", path=path, errno=error.errno) from error


def read(path: str) -> File:
    """Read a settings file, which need not be there.

    Raises:
        InvalidDocument: It is no regular file.
        Refused, StorageFailed: The system did not let it.
    """
    target = os.path.realpath(path)
    with _naming(path, "read"):
        try:
            if not stat.S_ISREG(os.stat(target).st_mode):
                raise InvalidDocument.of([Problem(path, 0, 0, "", "is no regular file; move it out of the way")])
            with open(target, "rb") as file:
                return File(path, target, file.read())
        except FileNotFoundError:
            return File(path, target, None)


def replace(file: File, data: bytes, backup_folder: str) -> str | None:
    """Put `data` in the place of a file, in one step, after having kept a copy of what it held.

    Args:
        file: The file as it was read.
        data: Its new bytes.
        backup_folder: The directory of the copies; made when it isn't there.

    Returns:
        The path of the copy; None when there was nothing to copy.

    Raises:
        Changed: The file is not any more what was read.
        Refused, StorageFailed: The system did not let it.
    """
    kept = None
    if file.data is not None:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        kept = os.path.join(backup_folder, f"{_prefix(file)}{stamp}.bak")
        with _naming(kept, "write"):
            os.makedirs(backup_folder, mode=0o700, exist_ok=True)
            _write_new(kept, file.data, 0o600)
            _sync_directory(backup_folder)
    folder = os.path.dirname(file.target)
    with _naming(file.path, "write"):
        os.makedirs(folder, exist_ok=True)
        temporary = os.path.join(folder, f".{os.path.basename(file.target)}.{secrets.token_hex(6)}.tmp")
        mode = stat.S_IMODE(os.stat(file.target).st_mode) if file.data is not None else None
        try:
            # What is new may come to hold secrets of other servers: for its owner only.
            _write_new(temporary, data, 0o600 if mode is None else mode)
            if read(file.path) != file:
                raise Changed(f"{file.path} was changed by another program in this moment; try again", path=file.path)
            os.replace(temporary, file.target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        _sync_directory(folder)
    return kept


def backups(file: File, backup_folder: str) -> list[bytes]:
    """What the copies of a file hold, the latest first."""
    found = []
    with contextlib.suppress(OSError):
        names = sorted((name for name in os.listdir(backup_folder) if name.startswith(_prefix(file))), reverse=True)
        for name in names[:20]:
            with open(os.path.join(backup_folder, name), "rb") as copy:
                found.append(copy.read())
    return found


def _prefix(file: File) -> str:
    """How the names of a file's copies begin: its own name, and what tells it from others of that name."""
    digest = hashlib.sha256(os.fsencode(file.target)).hexdigest()[:8]
    return f"{os.path.basename(file.target).lstrip('.')}-{digest}-"


def _write_new(path: str, data: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    with open(fd, "wb") as file:
        if hasattr(os, "fchmod"):
            os.fchmod(fd, mode)
        file.write(data)
        file.flush()
        os.fsync(fd)


def _sync_directory(folder: str) -> None:
    with contextlib.suppress(OSError):  # Windows has no such thing, and some file systems neither
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
