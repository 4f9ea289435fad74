"""The stores that tests of agents run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from capsule import Store


@pytest.fixture(params=["memory", "files"])
def each_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """The owner's store, of files and in memory."""
    Store.init(tmp_path)
    with Store.in_memory() if request.param == "memory" else Store.open(tmp_path) as store:
        yield store
