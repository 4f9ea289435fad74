"""A model of what a power cut can leave of a directory tree, fed by the calls of the storage seam.

`Recorder` replaces `Syscalls`: it makes every call, and records the ones that change something.
`Disk` replays the record and gives, after any number of calls, the trees that may be found when the
power comes back.

The model assumes this of the system, and nothing else:

- A sector of 512 bytes is written as a whole or not at all (drives promise this). After writes
  since the last flush of a file, every sector may hold any of its versions, independently of the
  other sectors.
- Bytes that were not written do not change; SQLite calls this powersafe overwrite. The gaps between
  the written parts of a file that grew are NULs, never stale garbage of another file.
- The size of a file is any that it had since the last flush, or any between two of them,
  independently of its bytes.
- `fsync` and `fdatasync` make the bytes and the size of a file durable, not its name. The times
  prove nothing.
- `fsync` of a directory makes its entries durable. Each later change may be there or not,
  independently of the earlier ones; but one change is atomic: a rename leaves the old name or the
  new one, an exchange both new names or none.
- A new directory is there if its parent was flushed; otherwise its content is lost with it.
- After the power cut the system has another boot id (`Rebooted`). A disk that was taken out, or one
  that was put back to a snapshot, comes back within the same boot as another device (`Remounted`).
- A flush of one file makes nothing of another one durable.
- After a flush that failed, a later one makes only those sectors durable that were written in
  between: the kernel counts the others for clean. The same holds for the changes of a directory.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsule.disk.syscalls import Syscalls

__all__ = [
    "SECTOR",
    "Disk",
    "Rebooted",
    "Recorder",
    "Remounted",
    "contents_after_cut",
    "materialise",
]

SECTOR = 512
PAGE = 4096
Tree = dict[str, bytes | None]


class Rebooted(Syscalls):
    """The system after the power came back."""

    def boot(self) -> str:
        return "after the power cut"


class Remounted(Syscalls):
    """The same run of the system, with the disk as another device."""

    def device(self, path: str) -> int:
        return super().device(path) + 1


class Recorder(Syscalls):
    """Makes every call, and records those that change something in `events`.

    Args:
        root: Paths are recorded relative to this directory.

    Attributes:
        events: The calls; and what a test adds, as `("acknowledged", text)`.
        before_flush: Called once, before the next flush of a log.
        fail: Raises `OSError` for a call that is to fail, of this name, on this path. Called before
            each call that changes something.
    """

    def __init__(self, root: Path) -> None:
        self._root = str(root)
        self.events: list[tuple[Any, ...]] = []
        self.before_flush: Callable[[], object] | None = None
        self.fail: Callable[[str, str], object] = lambda call, path: None

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._root)

    def open(self, path: str, flags: int, mode: int = 0o777) -> int:
        new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        if new:
            self.fail("create", path)
        fd = os.open(path, flags, mode)
        inode = os.fstat(fd).st_ino
        if new:
            self.events.append(("create", self._name(path), inode))
        elif flags & os.O_TRUNC:
            self.events.append(("truncate", inode, 0))
        return fd

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
        self.fail("write", _path(fd))
        done = os.pwrite(fd, data, offset)
        self.events.append(("write", os.fstat(fd).st_ino, bytes(data[:done]), offset))
        return done

    def ftruncate(self, fd: int, size: int) -> None:
        self.fail("truncate", _path(fd))
        os.ftruncate(fd, size)
        self.events.append(("truncate", os.fstat(fd).st_ino, size))

    def copy(self, source: int, target: int, offset: int, size: int, target_offset: int) -> int:
        data = os.pread(source, size, offset)
        return self.pwrite(target, data, target_offset) if data else 0

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        path = _path(fd)
        act, self.before_flush = (
            (self.before_flush, None) if "/log" in path else (None, self.before_flush)
        )
        if act is not None:
            act()
        event = (
            ("sync directory", self._name(path))
            if os.path.isdir(path)
            else ("sync", os.fstat(fd).st_ino)
        )
        try:
            self.fail("sync", path)
        except OSError:
            self.events.append((f"failed {event[0]}", event[1]))
            raise
        self.events.append(event)

    fdatasync = fsync  # type: ignore[assignment]

    def rename(self, source: str, target: str) -> None:  # type: ignore[override]
        self.fail("rename", target)
        os.rename(source, target)
        self.events.append(("rename", self._name(source), self._name(target)))

    def link(self, source: str, target: str) -> None:  # type: ignore[override]
        self.fail("link", target)
        os.link(source, target)
        self.events.append(("link", self._name(source), self._name(target)))

    def unlink(self, path: str) -> None:  # type: ignore[override]
        self.fail("unlink", path)
        os.unlink(path)
        self.events.append(("unlink", self._name(path)))

    def mkdir(self, path: str, mode: int = 0o777) -> None:  # type: ignore[override]
        self.fail("mkdir", path)
        os.mkdir(path, mode)
        self.events.append(("mkdir", self._name(path)))

    def exchange(self, one: str, other: str) -> bool:
        self.fail("exchange", other)
        done = super().exchange(one, other)
        if done:
            self.events.append(("exchange", self._name(one), self._name(other)))
        return done


def _path(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


@dataclass
class File:
    """One file: every version since its last flush, the flushed one first."""

    versions: list[bytes] = field(default_factory=lambda: [b""])

    #: The versions of which a failed flush may have kept any sector; None: every flush succeeded.
    failed: list[bytes] | None = None
    #: The sectors that were written since that flush.
    rewritten: set[int] = field(default_factory=set)

    @property
    def now(self) -> bytes:
        return self.versions[-1]

    def write(self, data: bytes, offset: int) -> None:
        now = self.now.ljust(offset, b"\0")
        self.versions.append(now[:offset] + data + now[offset + len(data) :])
        self.rewritten |= {*range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1)}

    def sync(self) -> None:
        if self.failed is None:
            self.versions = [self.now]
            return
        self.failed = [self._less_what_was_lost(version) for version in self.failed]
        self.versions = list(dict.fromkeys([*self.failed, self.now]))

    def fail_to_sync(self) -> None:
        self.failed = list(dict.fromkeys([*(self.failed or ()), *self.versions]))
        self.rewritten = set()

    def with_first_sector_of(self, write: int) -> bytes:
        """The oldest version, with the first sector of a later one."""
        version = self.versions[min(write, len(self.versions) - 1)]
        return version[:SECTOR] + self.versions[0][SECTOR:]

    def _less_what_was_lost(self, version: bytes) -> bytes:
        now = bytearray(version.ljust(len(self.now), b"\0")[: len(self.now)])
        for sector in self.rewritten:
            place = slice(sector * SECTOR, (sector + 1) * SECTOR)
            now[place] = self.now[place]
        return bytes(now)


@dataclass
class Change:
    """A change of a directory that is not durable yet.

    Attributes:
        directory: Its path; empty for the root.
        names: What the names stand for from then on; 0: nothing.
        is_lost: Whether a flush of the directory failed since, so that no later one makes it
            durable.
    """

    directory: str
    names: dict[str, int | None]
    is_lost: bool = False


class Disk:
    """The tree below a directory, as the drive may have it.

    Args:
        root: A directory whose whole content counts as durable.
    """

    def __init__(self, root: Path) -> None:
        self._files: dict[int, File] = {}
        self._by_inode: dict[int, int] = {}
        self._now: dict[str, int | None] = {}
        self._durable: dict[str, int | None] = {}
        self._pending: list[Change] = []
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            self._now[name] = (
                None if path.is_dir() else self._file(path.stat().st_ino, path.read_bytes())
            )
        self._durable = dict(self._now)

    def _file(self, inode: int, data: bytes = b"") -> int:
        number = len(self._files) + 1
        self._files[number] = File([data])
        self._by_inode[inode] = number
        return number

    def play(self, event: tuple[Any, ...]) -> None:
        """Replay a recorded call."""
        call, *arguments = event
        getattr(self, "_" + call.replace(" ", "_"))(*arguments)

    def _change(self, directory: str, change: dict[str, int | None]) -> None:
        for name, number in change.items():
            if number == 0:
                self._now.pop(name, None)
            else:
                self._now[name] = number
        self._pending.append(Change(directory, change))

    def _create(self, name: str, inode: int) -> None:
        self._change(os.path.dirname(name), {name: self._file(inode)})

    def _mkdir(self, name: str) -> None:
        self._change(os.path.dirname(name), {name: None})

    def _link(self, source: str, target: str) -> None:
        self._change(os.path.dirname(target), {target: self._now[source]})

    def _unlink(self, name: str) -> None:
        self._change(os.path.dirname(name), {name: 0})

    def _rename(self, source: str, target: str) -> None:
        self._change(os.path.dirname(target), {target: self._now[source], source: 0})

    def _exchange(self, one: str, other: str) -> None:
        self._change(os.path.dirname(one), {one: self._now[other], other: self._now[one]})

    def _write(self, inode: int, data: bytes, offset: int) -> None:
        self._files[self._by_inode[inode]].write(data, offset)

    def _truncate(self, inode: int, size: int) -> None:
        file = self._files[self._by_inode[inode]]
        file.versions.append(file.now[:size].ljust(size, b"\0"))

    def _sync(self, inode: int) -> None:
        self._files[self._by_inode[inode]].sync()

    def _failed_sync(self, inode: int) -> None:
        self._files[self._by_inode[inode]].fail_to_sync()

    def _acknowledged(self, text: str) -> None:
        pass

    def _sync_directory(self, name: str) -> None:
        directory = "" if name == "." else name
        rest: list[Change] = []
        for change in self._pending:
            if change.directory != directory or change.is_lost:
                rest.append(change)
                continue
            _apply(self._durable, change.names)
            rest = [other for other in rest if not other.names.keys() <= change.names.keys()]
        self._pending = rest

    def _failed_sync_directory(self, name: str) -> None:
        directory = "" if name == "." else name
        for change in self._pending:
            change.is_lost = change.is_lost or change.directory == directory

    def trees(self, rng: random.Random, *, long: bool) -> Iterator[Tree]:
        """Every tree that a power cut can leave now: names, and the bytes of files (None: a
        directory).

        Args:
            rng: Chooses among the trees when there are too many.
            long: Whether to give all of them.
        """
        for chosen in itertools.product((False, True), repeat=len(self._pending)):
            names = dict(self._durable)
            for take, change in zip(chosen, self._pending, strict=True):
                if take:
                    _apply(names, change.names)
            names = {name: number for name, number in names.items() if _is_reachable(name, names)}
            numbers = sorted({number for number in names.values() if number})
            loose = [number for number in numbers if len(self._files[number].versions) > 1]
            for contents in self._contents(loose, names, rng, long):
                yield {
                    name: None if number is None else contents.get(number, self._files[number].now)
                    for name, number in names.items()
                }

    def extreme_trees(self) -> Iterator[Tree]:
        """Few trees, and among them those that look most like what they are not: of each file that
        isn't flushed, nothing was kept, or all, or all but its first sector, or nothing but the
        first sector, as one write left it."""
        for pending in dict.fromkeys([(), tuple(range(len(self._pending)))]):
            names = dict(self._durable)
            for place in pending:
                _apply(names, self._pending[place].names)
            names = {name: number for name, number in names.items() if _is_reachable(name, names)}
            files = {number: self._files[number] for number in names.values() if number}
            most = max(len(file.versions) for file in files.values())
            contents = [{number: file.now for number, file in files.items()}]
            contents += [
                {n: file.versions[0][:SECTOR] + file.now[SECTOR:] for n, file in files.items()}
            ]
            for write in range(most):
                contents.append(
                    {number: file.with_first_sector_of(write) for number, file in files.items()}
                )
            for chosen in contents:
                yield {
                    name: None if number is None else chosen[number]
                    for name, number in names.items()
                }

    def _contents(
        self, loose: list[int], names: dict[str, int | None], rng: random.Random, long: bool
    ) -> Iterator[dict[int, bytes]]:
        """The contents of the files not flushed: every content of one file, with random ones of the
        others.
        """
        found = {}
        for number in loose:
            derived = all(
                name.startswith(".capsule") for name, other in names.items() if other == number
            )
            states = list(
                dict.fromkeys(
                    contents_after_cut(self._files[number].versions, rng, long=long and not derived)
                )
            )
            found[number] = states[:: max(1, len(states) // 3)] if derived and not long else states
        if not loose:
            yield {}
        for number in loose:
            for state in found[number]:
                yield {other: rng.choice(found[other]) for other in loose} | {number: state}


def _apply(names: dict[str, int | None], change: dict[str, int | None]) -> None:
    for name, number in change.items():
        if number == 0:
            names.pop(name, None)
        else:
            names[name] = number


def _is_reachable(name: str, names: dict[str, int | None]) -> bool:
    above = os.path.dirname(name)
    return not above or (above in names and names[above] is None and _is_reachable(above, names))


def materialise(tree: Tree, root: Path) -> None:
    """Make a directory, in place of another one, that has a tree."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, data in sorted(tree.items()):
        path = root / name
        if data is None:
            path.mkdir()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            os.utime(path, (1_700_000_000, 1_700_000_000))


def contents_after_cut(versions: list[bytes], rng: random.Random, *, long: bool) -> Iterator[bytes]:
    """The possible contents of a file after a power cut; `versions` are those since the
    last flush.
    """
    most = max(map(len, versions))
    padded = [version.ljust(most, b"\0") for version in versions]
    sectors = range(0, most, SECTOR)
    choices = [
        list(dict.fromkeys(version[start : start + SECTOR] for version in padded))
        for start in sectors
    ]
    for chosen in _choices(choices, rng, long):
        whole = b"".join(chosen)
        for size in _sizes(versions, long):
            yield whole[:size]


def _choices(
    choices: list[list[bytes]], rng: random.Random, long: bool
) -> Iterable[tuple[bytes, ...]]:
    """Every choice of a version for each sector, or, if there are too many, the likely choices and
    some random ones.
    """
    count = 1
    for versions in choices:
        count *= len(versions)
    if count <= (4096 if long else 64):
        return itertools.product(*choices)
    loose = [place for place, versions in enumerate(choices) if len(versions) > 1]
    first, last = [versions[0] for versions in choices], [versions[-1] for versions in choices]
    found = [tuple(first), tuple(last)]
    per_page = PAGE // SECTOR
    pages = sorted({place // per_page for place in loose})
    for number, place in enumerate(loose):
        found.append(
            tuple(last[i] if i in loose[:number] else first[i] for i in range(len(choices)))
        )
        found.append(
            tuple(first[i] if i in loose[:number] else last[i] for i in range(len(choices)))
        )
        found.append(tuple(last[i] if i == place else first[i] for i in range(len(choices))))
        found.append(tuple(first[i] if i == place else last[i] for i in range(len(choices))))
    for _ in range(64 if long else 8):
        lucky = {page for page in pages if rng.random() < 0.5}
        found.append(
            tuple((last if i // per_page in lucky else first)[i] for i in range(len(choices)))
        )
        found.append(tuple(rng.choice(versions) for versions in choices))
    return dict.fromkeys(found)


def _sizes(versions: list[bytes], long: bool) -> list[int]:
    had = sorted({len(version) for version in versions})
    between = range(had[0], had[-1] + 1)
    if long and len(between) <= 2048:
        return list(between)
    step = max(1, len(between) // (64 if long else 8))
    borders = [size for size in between if size % SECTOR == 0]
    return sorted(
        {
            *had,
            *between[::step],
            *borders[:: max(1, len(borders) // 16)],
            *(had[0] + n for n in range(3)),
        }
        & {*between}
    )
