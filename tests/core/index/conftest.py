"""A store that keeps no locks, so that others may write what it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from capsule import Store


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with Store.open(root, keep_locks=False) as store:
        yield store
