"""A store for each test, and a follower that reads its changes from before the test begins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from capsule import Store
from capsule.disk.directory_tracker import DirectoryTracker
from capsule.engines.changes import Change
from tests.processes import PATIENCE_S


class Follower:
    """Collects the changes of a store from its own creation on, by long polls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.cursor = store.changes().cursor
        self.heard: list[Change] = []

    def until(self, enough: Callable[[list[Change]], bool]) -> list[Change]:
        """The changes since the last call, as soon as they are enough."""
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
        """The next change of a kind; changes of other kinds are skipped."""
        return next(change for change in self.until(has(kind)) if change.kind == kind)


def has(*kinds: str) -> Callable[[list[Change]], bool]:
    """A condition: changes of all these kinds are there."""
    return lambda changes: {change.kind for change in changes} >= set(kinds)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each test on files runs a second time with notices from watchfiles alone."""
    if "root" in metafunc.fixturenames:
        metafunc.parametrize("way", ["sooner", "watchfiles"], indirect=True)


@pytest.fixture(autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request, "param", "") == "watchfiles":
        monkeypatch.setattr(
            DirectoryTracker, "open_fast_tracker", staticmethod(lambda directory, suffix: None)
        )


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A fresh store: of files where the test also takes their directory, `root`, else in memory."""
    of_files = "root" in request.fixturenames
    with (
        Store.open(request.getfixturevalue("root"), keep_locks=False)
        if of_files
        else Store.in_memory(keep_locks=False) as store
    ):
        yield store


@pytest.fixture
def other(request: pytest.FixtureRequest, store: Store) -> Iterator[Store]:
    """Another instance on the same documents; of files, the first one sees it as
    another process.
    """
    of_files = "root" in request.fixturenames
    with (
        Store.open(store.root, keep_locks=False)
        if of_files
        else store.beside(keep_locks=False) as other
    ):
        yield other


@pytest.fixture
def follower(store: Store) -> Follower:
    return Follower(store)
