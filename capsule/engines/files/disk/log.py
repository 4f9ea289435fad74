"""The log of one document: what the store is about to write, one line a write, in a file of its own.

A line is a checksum and the write's records. The checksum goes on from the line before, so that bytes which an earlier
line left behind the end never count. The file is made of zeros that were flushed, and grows so: a line needs neither
space nor metadata when it is flushed. What must stay true: a line is whole or it is none; a line whose write failed is
taken out again; and the log holds at least the newest 256 KiB of messages, whatever else was written. The module knows
of a record only whether it is about a head.
"""

from __future__ import annotations

import os
import stat
import zlib
from contextlib import suppress
from typing import NamedTuple

from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import pread_all, pwrite_all, sync_directory, write_new

#: A record that begins so is about a head: many of them never push a message out of the log.
_HEAD_RECORDS = (b'{"k":"head"', b'{"k":"lock"')
#: What stays at least, in bytes, when the log is written anew.
MESSAGE_BYTES, HEAD_BYTES = 256 << 10, 64 << 10
_SMALLEST, _LARGEST = 4 << 10, 512 << 10
_CHUNK = 1 << 20

Records = list[bytes]


class Position(NamedTuple):
    """Where a log ends: its inode, its preallocated bytes, and the end and the checksum of its last line."""

    inode: int
    size: int
    end: int
    crc: int


def _line(records: Records, crc: int) -> tuple[bytes, int]:
    body = b"\t".join(records)
    crc = zlib.crc32(body, crc)
    return b"%08x %b\n" % (crc, body), crc


class Log:
    """One log, open.

    Attributes:
        fd: Its file.
        device: The device that it lies on.
        position: Where it ends.
    """

    __slots__ = ("_is_landing", "_is_sure", "_next", "_path", "_sys", "device", "fd", "position")

    def __init__(self, sys: Syscalls, path: str, fd: int, position: Position | None, *, is_sure: bool = True) -> None:
        status = sys.fstat(fd)
        self._sys, self._path, self.fd, self.device = sys, path, fd, status.st_dev
        self._next: tuple[int, int] | None = None
        self._is_sure = is_sure
        self._is_landing = False
        if position is not None and position.inode == status.st_ino and position.size <= status.st_size:
            self.position = position
        else:
            self.position = Position(status.st_ino, status.st_size, 0, 0)
            self.read()

    @classmethod
    def open(cls, sys: Syscalls, path: str, position: Position | None, *, is_sure: bool = True) -> Log | None:
        """The log of this path; None when there is none. Costs a look at the whole of it, unless its end is known.

        Args:
            sys: The seam to the system.
            path: Its path.
            position: Where it ended, when that is known.
            is_sure: Whether all of it is on the medium; else it is written anew before anything is added.
        """
        try:
            fd = sys.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            if not stat.S_ISREG(sys.fstat(fd).st_mode):
                raise FileExistsError(17, "it is no regular file", path)
            return cls(sys, path, fd, position, is_sure=is_sure)
        except BaseException:
            sys.close(fd)
            raise

    @classmethod
    def make(cls, sys: Syscalls, path: str, mode: int, writes: list[Records], room: int | None = 0) -> Log:
        """A new log with these writes, durable; it takes the place of the one there is.

        Args:
            sys: The seam to the system.
            path: Its path.
            mode: The permission bits of its file.
            writes: The records of each write, oldest first.
            room: How many bytes it is to have space for besides; None: none at all, as there is little.
        """
        data, crc = b"", 0
        for records in writes:
            line, crc = _line(records, crc)
            data += line
        size = _SMALLEST
        while room is not None and size < (len(data) + room) * 3 // 2:  # So that the next one is some way off.
            size *= 2
        size = max(size, len(data))
        directory, name = os.path.split(path)
        temporary = f"{directory}/.{name}.tmp"

        def write(fd: int) -> None:
            pwrite_all(sys, fd, data.ljust(size, b"\0"), 0)

        try:
            fd = write_new(sys, temporary, mode, write)
        except FileExistsError:  # Of a writer that is dead.
            sys.unlink(temporary)
            fd = write_new(sys, temporary, mode, write)
        try:
            sys.rename(temporary, path)
            sync_directory(sys, directory)
            return cls(sys, path, fd, Position(sys.fstat(fd).st_ino, size, len(data), crc))
        except BaseException:
            sys.close(fd)
            with suppress(OSError):
                sys.unlink(temporary)
            raise

    def read(self) -> list[Records]:
        """The records of each write, oldest first. The end of the last whole line is the end from here on."""
        data = b""
        while piece := pread_all(self._sys, self.fd, _CHUNK, len(data)):
            data += piece
            if b"\0" in piece:
                break
        writes: list[Records] = []
        at, crc = 0, 0
        while (stop := data.find(b"\n", at)) > 0:
            seeded = zlib.crc32(data[at + 9 : stop], crc)
            if data[at : at + 9] != b"%08x " % seeded:
                break
            writes.append(data[at + 9 : stop].split(b"\t"))
            at, crc = stop + 1, seeded
        self.position = self.position._replace(end=at, crc=crc)
        return writes

    def make_room(self, records: Records, mode: int) -> Log:
        """This log, with space for one more write; or a new one in its place, from which what is old has gone."""
        inode, had, end, crc = self.position
        wanted = end + sum(map(len, records)) + len(records) + 9
        if wanted <= had and self._is_sure:
            return self
        if wanted > max(_LARGEST, had) or not self._is_sure:
            kept = _newest([*self.read(), records])[:-1]
            made = Log.make(self._sys, self._path, mode, kept, wanted - end)
            self.close()
            return made
        size = max(had, _SMALLEST)
        while size < wanted:
            size *= 2
        try:
            pwrite_all(self._sys, self.fd, bytes(size - had), had)
            self._sys.fsync(self.fd)
        except OSError:
            with suppress(OSError):
                self._sys.ftruncate(self.fd, had)
            raise
        self.position = Position(inode, size, end, crc)
        return self

    def put(self, records: Records, device: int) -> bool:
        """Write a line behind the end, which is there once `take` is called.

        Args:
            records: Of one write.
            device: When the log lies there too, and the system can do it, the first flush of a file there after `land`
                makes the line durable; else it is durable on return.

        Returns:
            False when there is no room for it (`make_room`); nothing was written then.
        """
        _, had, at, crc = self.position
        line, crc = _line(records, crc)
        end = at + len(line)
        if end > had or not self._is_sure:
            return False
        self._next = end, crc
        pwrite_all(self._sys, self.fd, line, at)
        self._is_landing = device == self.device and self._sys.begin_write_out(self.fd, device, end)
        if not self._is_landing:
            self._sys.fdatasync(self.fd)
        return True

    def land(self) -> None:
        """Wait until the drive has the line that was put; called before the flush that makes it durable."""
        if self._is_landing and self._next is not None:
            self._is_landing = False
            self._sys.write_out(self.fd, self._next[0])

    def note(self, records: Records) -> None:
        """Write a line behind the end, durable with the next one that is `put`."""
        line, crc = _line(records, self.position.crc)
        pwrite_all(self._sys, self.fd, line, self.position.end)
        self._next = self.position.end + len(line), crc
        self.take()

    def take(self) -> None:
        """Take the line that was put for written: the document has it."""
        if self._next is not None:
            self.position = Position(self.position.inode, self.position.size, *self._next)
            self._next = None

    def withdraw(self) -> None:
        """Take the line that was put out again, durably: the document does not have it."""
        if self.blot():
            self._sys.fdatasync(self.fd)

    def blot(self) -> bool:
        """As `withdraw`, but not durably; whether there was such a line."""
        if self._next is None:
            return False
        self._next = None
        self._sys.pwrite(self.fd, b"\0", self.position.end)
        return True

    def is_at(self, position: Position | None) -> bool:
        """Whether this is still the file that its name stands for, as the header of the note has it."""
        status = self._sys.fstat(self.fd)
        if position is None or position.inode != status.st_ino or status.st_size < position.size or not status.st_nlink:
            return False
        self.position = position
        return True

    def close(self) -> None:
        self._sys.close(self.fd)


def _newest(writes: list[Records]) -> list[Records]:
    """The newest of these writes, and of their records: those about heads have a budget of their own."""
    heads = messages = 0
    kept: list[Records] = []
    for records in reversed(writes):
        chosen = []
        for record in reversed(records):
            if record.startswith(_HEAD_RECORDS):
                if heads < HEAD_BYTES:
                    chosen.append(record)
                heads += len(record)
            else:
                if messages < MESSAGE_BYTES:
                    chosen.append(record)
                messages += len(record)
        kept.append(chosen[::-1])
    return [records for records in reversed(kept) if records]


def deleted_record(token: str) -> bytes:
    """The record of a deletion: without it behind all others, the log is not of the document that is brought back."""
    return b'{"k":"deleted","token":"%b"}' % token.encode()
