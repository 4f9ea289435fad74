"""A store of its own for each test, and other processes that open it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from capsule import Store


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a fresh store."""
    root = tmp_path / "store"
    Store.init(root)
    return root


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with Store.open(root) as store:
        yield store
