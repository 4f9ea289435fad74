"""A store of its own for each test, and other processes that open it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule import Store
from tests.processes import Child


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of a fresh store."""
    root = tmp_path / "store"
    Store.init(root)
    return root


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with Store.open(root) as store:
        yield store


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts programs in processes of their own, with the arguments as texts."""
    children: list[Child] = []

    def start(body: str, *args: object) -> Child:
        children.append(Child(body, *map(str, args)))
        return children[-1]

    yield start
    for one in children:
        one.close()
