"""A system in which one call fails, or all from one on; and the operations that the tests run on
it.

What must stay true: a fault is injected by wrapping the seam, and nothing else; a `close` that
fails has closed, as on Linux; any other call that fails has done nothing.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.state import decode_header
from capsule.engines.files.storage import FileStorage
from capsule.locate import load_settings

CALLS = (
    "open", "close", "pread", "pwrite", "fstat", "lstat", "ftruncate", "rename", "link", "unlink", "mkdir", "fchmod",
    "fchown", "attributes", "set_attribute", "remove_attribute",
    "fsync", "fdatasync", "copy", "exchange", "dup", "try_lock", "unlock", "names",
)  # fmt: skip
#: The calls that a full disk refuses.
GROWING = frozenset({"pwrite", "mkdir", "link", "copy", "open"})


class Faulty(Syscalls):
    """The system with a fault at the `at`-th call from now, counted from 1.

    Attributes:
        error: The number of the error; 0: no call fails, but a write is short.
        lasting: Whether all later calls that a full disk refuses fail too.
        seen: The calls counted so far.
        hit: The name of the call that failed first.
    """

    def __init__(self) -> None:
        self.at = 0
        self.error = 0
        self.lasting = False
        self.seen = 0
        self.hit = ""
        for name in CALLS:
            if hasattr(Syscalls, name):
                setattr(self, name, self._wrapped(name, getattr(super(), name)))

    def arm(self, at: int, error: int, *, lasting: bool = False) -> None:
        self.at, self.error, self.lasting, self.seen, self.hit = at, error, lasting, 0, ""

    def disarm(self) -> None:
        self.at = 0

    def _wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any) -> Any:
            if not self.at or (self.lasting and not self._grows(name, args)):
                return call(*args)
            self.seen += 1
            if self.seen < self.at or (self.seen > self.at and not self.lasting):
                return call(*args)
            self.hit = self.hit or name
            if self.error:
                if name == "close":
                    call(*args)
                raise OSError(self.error, os.strerror(self.error))
            if name == "pwrite":
                fd, data, offset = args
                return call(fd, memoryview(data)[: max(1, len(data) // 2)], offset)
            if name == "copy":
                source, target, offset, size, to = args
                return call(source, target, offset, max(1, size // 2), to)
            return call(*args)

        return wrapped

    @staticmethod
    def _grows(name: str, args: tuple[Any, ...]) -> bool:
        return name in GROWING and (name != "open" or bool(args[1] & os.O_CREAT))


class Flushes(Syscalls):
    """Records what is flushed, by the name of its folder: "logs", or "conversations" for a
    document.

    Attributes:
        flushed: The names, in order.
        failing: What fails when it is flushed.
        gate: What a flush of the log waits for, once `reached` is set.
    """

    def __init__(self) -> None:
        self.flushed: list[str] = []
        self.failing = ""
        self.gate: threading.Event | None = None
        self.reached = threading.Event()

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        name = os.path.basename(os.path.dirname(os.readlink(f"/proc/self/fd/{fd}")))
        if name == "logs" and self.gate is not None:
            self.reached.set()
            self.gate.wait()
        if name == self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fsync(fd)
        self.flushed.append(name)

    fsync = fdatasync  # type: ignore[assignment]


def is_checkpoint(root: Path) -> bool:
    """Whether the note says that the document is on the medium."""
    header = decode_header((root / ".capsule" / "mutex" / "conversations-plan").read_bytes())
    return header is not None and header[1] is not None and header[1].is_durable


def texts(store: Store) -> list[str]:
    return [message.content for message in store.load("plan").history]


def inodes(root: Path) -> tuple[int, int]:
    """Those of the document and its log."""
    places = (
        root / "conversations" / "plan.json",
        root / ".capsule" / "logs" / "conversations-plan",
    )
    return places[0].stat().st_ino, places[1].stat().st_ino


def store_on(root: Path, sys: Syscalls, **options: Any) -> Store:
    settings = load_settings(str(root))
    return Store(
        str(root),
        settings,
        FilesEngine(FileStorage(str(root), sys=sys, append=settings.append)),
        **options,
    )


class _BeforeTheCut(Syscalls):
    """The run of the machine that ended with the power cut."""

    def boot(self) -> str:
        return "before the power cut"


def cut_power(root: Path, id: str, text: str) -> None:
    """Append a message, whose acknowledgement a power cut follows before the file is on
    the disk.
    """
    path = root / "conversations" / f"{id}.json"
    before = path.read_bytes()
    with store_on(root, _BeforeTheCut(), keep_locks=False) as store:
        engine: Any = store.engine
        engine.storage.flusher.add = lambda kind, id, make_durable: None
        store.append(id, content=text)
    path.write_bytes(before)


def stale_save(root: Path, id: str) -> None:
    """Save as an editor does that read the file before its last message."""
    path = root / "conversations" / f"{id}.json"
    document = orjson.loads(path.read_bytes())
    document["updatedAt"] = document["createdAt"]
    document["history"].pop()
    copy = root / "copy"
    copy.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
    copy.rename(path)


def tear(root: Path, id: str) -> None:
    """Write the file that a crash during a splice leaves."""
    path = root / "conversations" / f"{id}.json"
    path.write_bytes(
        path.read_bytes()[:-7] + b',\n    {\n      "role": "user",\n      "content": "to'
    )
    os.utime(path, (1, 1))


def lay_out(root: Path, id: str) -> None:
    path = root / "conversations" / f"{id}.json"
    path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes())))


def nothing(root: Path, id: str) -> None:
    pass


def lock_by_name(root: Path, id: str) -> None:
    with Store.open(root, instance="desk") as store:
        store.locks.take(id)


def switch_back(store: Store, id: str) -> None:
    first = str(store.load(id).history[0].id)
    store.append(id, content="new", parent=None)
    store.branches.switch(id, first)


#: The preparation of the files, the operation on the store, and the texts after it if it succeeds.
OPERATIONS: dict[str, tuple[Callable[[Path, str], None], Callable[[Store, str], object], list[str]]] = {
    "append": (nothing, lambda store, id: store.append(id, content="new"), ["one", "two", "new"]),
    "append many": (
        nothing,
        lambda store, id: store.append_many(id, [{"role": "user", "content": text * 3000} for text in "ab"]),
        ["one", "two", "a" * 3000, "b" * 3000],
    ),
    "append after a hand edit": (lay_out, lambda store, id: store.append(id, content="new"), ["one", "two", "new"]),
    "append after a stale save": (stale_save, lambda store, id: store.append(id, content="new"), ["one", "two", "new"]),
    "append to a torn file": (tear, lambda store, id: store.append(id, content="new"), ["one", "two", "new"]),
    "switch": (nothing, switch_back, ["one", "two", "new"]),
    "rename": (nothing, lambda store, id: store.rename(id, "Renamed"), ["one", "two"]),
    "set a context": (nothing, lambda store, id: store.context.set(id, {"fullContext": "x" * 6000}), ["one", "two"]),
    "edit": (nothing, lambda store, id: store.edits.message(id, "@0", "edited"), ["edited", "two"]),
    "lock": (nothing, lambda store, id: store.locks.take(id), ["one", "two"]),
    "lock and unlock": (nothing, lambda store, id: (store.locks.take(id), store.locks.release(id)), ["one", "two"]),
    "refresh a lock": (lock_by_name, lambda store, id: store.locks.take(id), ["one", "two"]),
    "delete and restore": (nothing, lambda store, id: (store.delete(id), store.trash.restore(id)), ["one", "two"]),
    "create": (nothing, lambda store, id: store.create(id="second", messages=[{"role": "user", "content": "x"}]),
               ["one", "two"]),
    "migrate": (lay_out, lambda store, id: store.edits.migrate(id), ["one", "two"]),
    "load": (nothing, lambda store, id: store.load(id), ["one", "two"]),
    "load a stale save": (stale_save, lambda store, id: store.load(id), ["one", "two"]),
    "tail": (nothing, lambda store, id: store.tail(id, 1), ["one", "two"]),
    "head": (nothing, lambda store, id: store.head(id), ["one", "two"]),
    "list": (lay_out, lambda store, id: list(store.heads()), ["one", "two"]),
    "purge": (nothing, lambda store, id: store.trash.purge(), ["one", "two"]),
}  # fmt: skip

ERRORS = (errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EINTR)
