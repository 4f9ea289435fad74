"""The two eras of the protocol."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import pytest

from capsule import Store

#: How the SDK's client negotiates: the handshake up to 2025-11-25, or the protocol of 2026-07-28.
ERAS = ("legacy", "2026-07-28")


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A fresh store: in memory, or in files for a test that names their directory, `root`."""
    in_files = "root" in request.fixturenames
    with Store.open(request.getfixturevalue("root")) if in_files else Store.in_memory() as store:
        yield store


@pytest.fixture
def agents(store: Store) -> None:
    """Three agents, who may write to each other."""
    for agent in ("anna", "bob", "carl"):
        store.agents.register(agent)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What is marked `both_eras` runs in both, and any other test in one of them,
    always the same.
    """
    if "era" in metafunc.fixturenames:
        both = any(mark.name == "both_eras" for mark in metafunc.definition.iter_markers())
        chosen = ERAS[zlib.crc32(metafunc.function.__name__.encode()) % 2]
        metafunc.parametrize("era", ERAS if both else [chosen])
