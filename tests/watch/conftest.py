"""A store of its own for each test, and somebody who follows it from before the test begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule import Store
from capsule.changes import Change

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
def store(root: Path) -> Iterator[Store]:
    with Store.open(root, keep_locks=False) as store:
        yield store


@pytest.fixture
def other(root: Path) -> Iterator[Store]:
    """Another instance, which the first one hears of as of any other process."""
    with Store.open(root, keep_locks=False) as store:
        yield store


@pytest.fixture
def follower(store: Store) -> Follower:
    return Follower(store)
