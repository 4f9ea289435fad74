"""Making git look again at a file of which it knows a size that is no longer true.

A lock changes a conversation's file and nothing of what git has of it. Git, though, takes a file of another size than
its index says for changed, and asks no filter, unless that size is 0. It sets it to 0 itself, in the entry of a file
that it can't tell by its times (git's Documentation/technical/racy-git.txt), and whoever compares next reads the file.
Here the same is done to the entries of files that were locked or let go.

What must stay true: of the index nothing changes but what it says of a file's size and times, so nothing is ever
staged or unstaged; it keeps its own time, by which git knows which entries it can't tell by theirs; git's own lock is
held for two calls of the system; and whatever is not as expected is left alone, without a word: the lock on the
conversation matters, and this doesn't. No process is started. Nothing here knows a conversation.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

__all__ = ["forget", "forgotten"]

#: What a store's attributes say once it is set up (`drivers.ATTRIBUTES`, which isn't loaded for this).
_FILTERED = b"filter=capsule"
#: What is left by a process that was killed, after so long.
_LEFT_S = 3600
#: How long to wait for a git that is at work on the index, in all, and before a further try.
_PATIENCE_S = 1.0
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.002, 0.1
#: A git that has the index for so long is waiting for a person, or was killed.
_BUSY_S = 2.0

# The index (gitformat-index(5)): a header, the entries in the order of their names, extensions, a checksum of all that.
_HEADER = 12
#: Offsets in an entry: the nanoseconds of its `ctime`, and what is behind them; its mode, size and object.
_NANOSECONDS, _SECONDS, _MODE, _SIZE, _OBJECT = 4, 8, 24, 36, 40
_NAME_BITS, _EXTENDED = 0x0FFF, 0x4000
_HASHES = {"sha1": 20, "sha256": 32}


def forget(paths: Sequence[str]) -> None:
    """Make git look into these files when it compares them next, as their size says nothing.

    Nothing happens to a file whose store isn't set up for git, that git doesn't have, that waits for a person in a
    merge, or that somebody told git not to look at; nor while another git holds the index for long.

    Args:
        paths: Documents of stores: files in a folder in the store's directory.

    Cost: outside of a store that is set up, opening a file. In one: reading the index, looking through its entries (a
    third of a microsecond each), and writing it durably, once for all files.
    """
    names: dict[str, set[bytes]] = {}
    places: dict[str, tuple[str, bytes] | None] = {}
    for path in paths:
        folder, name = os.path.split(path)
        with suppress(OSError, ValueError):
            if folder not in places:
                places[folder] = None
                places[folder] = _place(folder)
        place = places[folder]
        if place is not None:
            names.setdefault(place[0], set()).add(place[1] + os.fsencode(name))
    for index, these in names.items():
        with suppress(OSError, ValueError):
            _forget_in(index, these)


def _place(folder: str) -> tuple[str, bytes] | None:
    """The index that has the files of a folder, and what their names begin with there; None: there is none."""
    attributes = os.path.join(os.path.dirname(folder), ".gitattributes")
    if not os.path.isfile(attributes):
        return None
    with open(attributes, "rb") as file:
        if _FILTERED not in file.read():
            return None
    folder = top = os.path.realpath(folder)
    while not os.path.lexists(dot := os.path.join(top, ".git")):
        top, before = os.path.dirname(top), top
        if top == before:
            return None
    if os.path.isfile(dot):  # Of a linked worktree or a submodule (gitrepository-layout(5)).
        with open(dot, "rb") as file:
            kind, _, where = file.read().rstrip(b"\r\n").partition(b": ")
        if kind != b"gitdir":
            return None
        dot = os.path.join(top, os.fsdecode(where))
    below = os.fsencode(os.path.relpath(folder, top).replace(os.sep, "/"))
    return os.path.join(dot, "index"), below + b"/"


def _forget_in(index: str, names: set[bytes]) -> None:
    if not stat.S_ISREG(os.lstat(index).st_mode):
        return
    until, wait_s = time.monotonic() + _PATIENCE_S, _FIRST_WAIT_S
    while not _is_kept(f"{index}.lock"):
        if not os.path.lexists(f"{index}.lock"):
            with open(index, "rb") as file:  # And kept open, so that no other index can get its inode.
                after = forgotten(file.read(), names)
                if after is None or _put_in_place(index, after, os.fstat(file.fileno())):
                    return
        if time.monotonic() > until:
            return
        time.sleep(wait_s)
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


def _is_kept(lock: str) -> bool:
    """Whether a lock of git is an old one."""
    try:
        return time.time() - os.lstat(lock).st_ctime > _BUSY_S  # Not the times of what is in it, as ours has.
    except FileNotFoundError:
        return False


def forgotten(data: bytes, names: Iterable[bytes]) -> bytes | None:
    """An index in which the entries of these names have the size 0.

    They have another time, too, and never the one before, so that the index is another one in any case: a `git status`
    that looked at the file before writes what it saw there only if the index is still the one that it read.

    Args:
        data: The index.
        names: Paths as git has them.

    Returns:
        None when there is nothing to change, or the index is none that is understood here.
    """
    hashing = _hashing(data)
    if hashing is None:
        return None
    size = _HASHES[hashing]
    after = bytearray(data)
    try:
        for at in _entries(data, size, set(names)):
            after[at + _SIZE : at + _OBJECT] = bytes(4)
            count = int.from_bytes(data[at + _NANOSECONDS : at + _SECONDS]) + 1
            after[at + _NANOSECONDS : at + _SECONDS] = (count & 0xFFFFFFFF).to_bytes(4)
    except (IndexError, ValueError):
        return None
    if after == data:
        return None
    if any(data[-size:]):  # Else git was told to do without (`index.skipHash`, git 2.40).
        after[-size:] = _digest(hashing, after[:-size])
    return bytes(after)


def _hashing(data: bytes) -> str | None:
    """By which hash the checksum of an index is right; None: by none."""
    for name, size in _HASHES.items():
        if len(data) > _HEADER + size and _digest(name, data[:-size]) == data[-size:]:
            return name
    none = [name for name, size in _HASHES.items() if len(data) > _HEADER + size and not any(data[-size:])]
    return none[-1] if none else None


def _digest(name: str, data: bytes | bytearray) -> bytes:
    import hashlib

    return hashlib.new(name, data, usedforsecurity=False).digest()


def _entries(data: bytes, hash_size: int, names: set[bytes]) -> Iterator[int]:
    """Where the entries of these names begin: those of plain files, with no flag but the length of the name.

    Raises:
        IndexError, ValueError: The index ends too soon.
    """
    version, count = int.from_bytes(data[4:8]), int.from_bytes(data[8:_HEADER])
    if data[:4] != b"DIRC" or version not in (2, 3, 4):
        return
    if version < 4 and not any(name in data for name in names):
        return
    at, fixed, name = _HEADER, _OBJECT + hash_size + 2, b""
    for _ in range(count):
        flags = data[at + fixed - 2] << 8 | data[at + fixed - 1]
        start = at + fixed + (2 if flags & _EXTENDED else 0)
        if version == 4:  # What the name before has more at its end, and what this one has instead.
            drop, start = _varint(data, start)
            end = data.index(b"\0", start)
            name = name[: len(name) - drop] + data[start:end]
            after = end + 1
        else:
            length = flags & _NAME_BITS
            end = start + length if length < _NAME_BITS else data.index(b"\0", start)
            name = data[start:end]
            after = at + ((end - at + 8) & ~7)
        if name in names:
            mode = int.from_bytes(data[at + _MODE : at + _MODE + 4])
            # The flags: told not to look, more flags (skip-worktree, to be added), a side of a merge.
            if not flags & ~_NAME_BITS and stat.S_ISREG(mode):
                yield at
                names = names - {name}
                if not names:
                    return
        at = after


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, most significant bits first, as git's varint.c writes it; and where it ends."""
    byte = data[at]
    value = byte & 127
    while byte & 128:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 127)
    return value, at + 1


def _put_in_place(index: str, data: bytes, before: os.stat_result) -> bool:
    """Give git another index, unless it has another one than `before` by now, or is writing one.

    All that takes time is done before git's lock is taken. That is taken under the name it will have for git by a link
    to what is ready, so that who is killed between the two calls leaves what a git leaves that is killed.
    """
    import threading

    folder = os.path.join(os.path.dirname(index), "capsule")
    os.makedirs(folder, exist_ok=True)
    _tidy(folder)
    ready = os.path.join(folder, f"index-{os.getpid()}-{threading.get_ident()}")
    lock = f"{index}.lock"
    try:
        with suppress(FileNotFoundError):
            os.unlink(ready)
        fd = os.open(ready, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        os.chmod(ready, stat.S_IMODE(before.st_mode))
        # A later time would tell git that its entries are older than they are.
        os.utime(ready, ns=(before.st_atime_ns, before.st_mtime_ns))
        ours = os.lstat(ready)
        try:
            os.link(ready, lock)
            if os.path.samestat(os.lstat(index), before):
                os.replace(lock, index)
                return True
        except FileExistsError:
            pass
        finally:
            # Whose it is by now, and not by what was done: an exception may come between a call and its result.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(lock), ours):
                    os.unlink(lock)
        return False
    finally:
        with suppress(OSError):
            os.unlink(ready)


def _tidy(folder: str) -> None:
    """Take away what processes left that were killed here."""
    for name in os.listdir(folder):
        if name.startswith("index-"):
            path = os.path.join(folder, name)
            with suppress(OSError):
                if time.time() - os.lstat(path).st_ctime > _LEFT_S:
                    os.unlink(path)
