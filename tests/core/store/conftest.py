"""A store in memory, or one of files for the tests that use its directory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capsule import Store


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A fresh store, open: of files where the test also takes their directory, `root`, else in memory.

    In a module with `KEEPS_LOCKS = False` it keeps no locks.
    """
    keep_locks = getattr(request.module, "KEEPS_LOCKS", True)
    if "root" in request.fixturenames:
        store = Store.open(request.getfixturevalue("root"), keep_locks=keep_locks)
    else:
        store = Store.in_memory(keep_locks=keep_locks)
    with store:
        yield store
