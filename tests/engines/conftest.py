"""The engines under test; a line in `ENGINES` adds another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule import Store
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.engines.interface import Engine
from capsule.engines.memory import MemoryEngine
from capsule.settings import Settings

ENGINES: dict[str, Callable[[str], Engine]] = {
    "files": lambda root: FilesEngine(FileStorage(root, mutex_timeout_s=2)),
    "memory": lambda root: MemoryEngine(timeout_s=2),
}


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An engine without a document."""
    Store.init(tmp_path / "store")
    engine = ENGINES[request.param](str(tmp_path / "store"))
    yield engine
    engine.close()


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    """A store on that engine."""
    store = Store("", Settings(), engine, keep_locks=False)
    yield store
    store.close()
