"""A store whose flushes are recorded, and which flushes nothing behind by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from capsule import Store
from capsule.engines.files.disk import log
from tests.core.storage.faults import Flushes, store_on


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The thread flushes nothing by itself."""
    log._thread.stop()
    monkeypatch.setattr(log, "_DELAY_S", 3600)
    monkeypatch.setattr(log, "_thread", log._FlushThread())
    yield
    log._thread.stop()


@pytest.fixture
def system() -> Flushes:
    return Flushes()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a fresh store."""
    Store.init(tmp_path)
    return tmp_path


@pytest.fixture
def store(root: Path, system: Flushes) -> Iterator[Store]:
    """A store with a conversation, whose log and document are flushed."""
    with store_on(root, system, keep_locks=False) as store:
        store.create(id="plan", type="group")
        store.append("plan", content="one")
        store.flush()
        system.flushed.clear()
        yield store
