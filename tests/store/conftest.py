"""A store in memory for what is not about files, and one of files for a test that has its directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capsule import Store


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A fresh store, open: in memory, or of files where the test also takes their directory, `root`."""
    of_files = "root" in request.fixturenames
    with Store.open(request.getfixturevalue("root")) if of_files else Store.in_memory() as store:
        yield store
