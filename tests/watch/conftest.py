"""A store of its own for each test, and somebody who follows it from before the test begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from capsule import Store
from capsule.engines.changes import Change

#: How long a test waits for what must come, in seconds. Nothing is measured by it.
PATIENCE_S = 60


class Follower:
    """Hears of what changes in a store, from the moment it is made, by long polls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.cursor = store.changes().cursor
        self.heard: list[Change] = []

    def until(self, enough: Callable[[list[Change]], bool]) -> list[Change]:
        """What was heard since the last call, as soon as that is enough."""
        deadline = time.monotonic() + PATIENCE_S
        news: list[Change] = []
        while not enough(news):
            left_s = deadline - time.monotonic()
            assert left_s > 0, f"not heard in time; what was: {news}"
            found = self._store.wait_for_changes(self.cursor, timeout_s=left_s)
            self.cursor = found.cursor
            news += found.changes
        self.heard += news
        return news

    def next(self, kind: str) -> Change:
        """The next change of a kind; others of it are passed over."""
        return next(change for change in self.until(has(kind)) if change.kind == kind)


def has(*kinds: str) -> Callable[[list[Change]], bool]:
    """Whether all these kinds are there."""
    return lambda changes: {change.kind for change in changes} >= set(kinds)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A fresh store: in memory, or of files where the test also takes their directory, `root`."""
    of_files = "root" in request.fixturenames
    with (
        Store.open(request.getfixturevalue("root"), keep_locks=False)
        if of_files
        else Store.in_memory(keep_locks=False) as store
    ):
        yield store


@pytest.fixture
def other(request: pytest.FixtureRequest, store: Store) -> Iterator[Store]:
    """Another instance, which the first one hears of as of any other: of files, as of any other process."""
    of_files = "root" in request.fixturenames
    with Store.open(store.root, keep_locks=False) if of_files else store.beside(keep_locks=False) as other:
        yield other


@pytest.fixture
def follower(store: Store) -> Follower:
    return Follower(store)
