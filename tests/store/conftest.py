"""A store in memory, or one of files for the tests that use its directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capsule import Store


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A fresh store, open: of files where the test also takes their directory, `root`, else in memory."""
    of_files = "root" in request.fixturenames
    with Store.open(request.getfixturevalue("root")) if of_files else Store.in_memory() as store:
        yield store
