"""An empty store in memory for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capsule import Store


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.in_memory(keep_locks=False) as store:
        yield store
