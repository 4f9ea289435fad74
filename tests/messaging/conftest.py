"""The stores that tests of agents run on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from capsule import Store


@pytest.fixture(params=["memory", "files"])
def each_store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The owner's store, of files and in memory."""
    with (
        Store.in_memory()
        if request.param == "memory"
        else Store.open(request.getfixturevalue("root")) as store
    ):
        yield store


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """The owner's store: in memory, with the agents of the module's `AGENTS` and their projects;
    else of files.
    """
    agents: dict[str, str | None] | None = getattr(request.module, "AGENTS", None)
    with (
        Store.in_memory()
        if agents is not None
        else Store.open(request.getfixturevalue("root")) as store
    ):
        for agent, project in (agents or {}).items():
            store.agents.register(agent, project)
        yield store
