"""Stores in memory, for the tests of sessions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capsule import Store
from capsule.sessions.session import Session
from tests.sessions.hosting import group


@pytest.fixture
def store() -> Iterator[Store]:
    """A store with a person, anna, and an agent whose command was approved, bot."""
    with Store.in_memory() as store:
        store.agents.register("anna")
        group(store, "bot")
        yield store


@pytest.fixture
def session(store: Store) -> Session:
    """A session of bot without a row in the registry."""
    return Session.create(store.engine, "s1", "bot")
