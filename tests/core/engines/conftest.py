"""The engines under test; a line in `ENGINES` adds another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from capsule import Store
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.engines.interface import Engine
from capsule.engines.memory.engine import MemoryEngine
from capsule.settings import Settings
from tests.postgres.stores import engine_of
from tests.processes import PATIENCE_S

ENGINES: dict[str, Callable[[str, float], Engine]] = {
    "files": lambda root, timeout_s: FilesEngine(FileStorage(root, mutex_timeout_s=timeout_s)),
    "memory": lambda root, timeout_s: MemoryEngine(timeout_s=timeout_s),
    "postgres": engine_of,
}


@pytest.fixture
def timeout_s() -> float:
    """For how long a transaction waits for another one of its document."""
    return PATIENCE_S


@pytest.fixture(params=list(ENGINES))
def engine(request: pytest.FixtureRequest, timeout_s: float) -> Iterator[Engine]:
    """An engine without a document."""
    needs = {"files": "root", "memory": "", "postgres": "database"}[request.param]
    root = request.getfixturevalue(needs) if needs else ""
    engine = ENGINES[request.param](str(root), timeout_s)
    yield engine
    engine.close()


@pytest.fixture
def store(engine: Engine) -> Iterator[Store]:
    """A store on that engine."""
    store = Store("", Settings(), engine, keep_locks=False)
    yield store
    store.close()
