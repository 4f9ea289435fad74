"""A store in memory, or one of files for the tests that use its directory; and a group with two
messages.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capsule import Store, timestamps


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A fresh store, open: of files where the test also takes their directory, `root`, else in
    memory.

    In a module with `KEEPS_LOCKS = False` it keeps no locks.
    """
    keep_locks = getattr(request.module, "KEEPS_LOCKS", True)
    if "root" in request.fixturenames:
        store = Store.open(request.getfixturevalue("root"), keep_locks=keep_locks)
    else:
        store = Store.in_memory(keep_locks=keep_locks)
    with store:
        yield store


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances a millisecond at every reading: the times of writes decide which an
    editor has read.
    """
    at = [1_800_000_000_000]

    def now(not_before: str = "") -> str:
        at[0] += 1
        return max(timestamps.from_ms(at[0]), not_before)

    monkeypatch.setattr(timestamps, "now", now)


@pytest.fixture
def group(store: Store, clock: None) -> str:
    """A group conversation with two messages."""
    id = store.create(id="plan", title="Plan", type="group", tags=["old"]).id
    for text in ("one", "two"):
        store.append(id, content=text)
    return id
