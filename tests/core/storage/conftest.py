"""Every implementation of the storage interface, and documents for it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule.disk.syscalls import Syscalls
from capsule.engines.files.storage import FileStorage
from capsule.format.documents import creation
from capsule.format.json import codec, layout

STAMP = "2025-01-12T10:30:00.000Z"


class NoExchange(Syscalls):
    """A system that can't swap two names, like most."""

    def exchange(self, one: str, other: str) -> bool:
        return False


class NoLinks(NoExchange):
    """A file system without hard links too, as on many USB sticks."""

    @staticmethod
    def link(source: str, target: str) -> None:  # type: ignore[override]
        raise PermissionError(1, "Operation not permitted", source)


MAKERS: dict[str, Callable[[str], FileStorage]] = {
    "exchange": lambda root: FileStorage(root),
    "no exchange": lambda root: FileStorage(root, sys=NoExchange()),
    "no links": lambda root: FileStorage(root, sys=NoLinks()),
    "replacing": lambda root: FileStorage(root, append="replace"),
}


def document(id: str, texts: list[str], title: str = "Plan") -> bytes:
    """A canonical capsule."""
    messages = [
        {"role": "user", "content": text, "timestamp": STAMP, "id": f"m-{text}"} for text in texts
    ]
    return codec.encode(creation.new_capsule(id, title, STAMP, messages=messages))


def entry(text: str) -> bytes:
    return codec.encode_entry(
        {"role": "user", "content": text, "timestamp": STAMP, "id": f"m-{text}"}
    )


def head(id: str, title: str, stamp: str = STAMP) -> bytes:
    """A head in the form that `rehead` takes."""
    whole = creation.new_capsule(id, title, stamp)
    return layout.head_prefix(
        codec.encode({key: whole[key] for key in whole if key not in ("context", "history")})
    )


def texts_of(data: bytes) -> list[str]:
    return [message["content"] for message in codec.decode(data, "test")["history"]]


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Callable[[str], FileStorage]:
    return MAKERS[request.param]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    (root / "conversations").mkdir(parents=True)
    return root


@pytest.fixture
def storage(root: Path, make: Callable[[str], FileStorage]) -> Iterator[FileStorage]:
    storage = make(str(root))
    yield storage
    storage.close()


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory, where the machine has one."""
    shm = Path("/dev/shm")
    if not (shm.is_dir() and os.access(shm, os.W_OK)):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shm) as directory:
        yield Path(directory)
