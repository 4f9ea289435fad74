"""Stores in PostgreSQL for the tests of every room: a schema for each."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from capsule.engines.interface import WITH_ENTRIES, Document
from capsule.format.json import codec
from tests.postgres.server import shared

if TYPE_CHECKING:
    from capsule.engines.interface import Engine

#: Whether the tests run on stores in PostgreSQL.
IS_POSTGRES = os.environ.get("CAPSULE_ENGINE") == "postgres"
_NUMBERS = count()
#: The settings of the stores of tests: where a busy machine stops the holder of a mutex for a
#: while, the others wait.
TOML = '[storage]\nmutex_timeout = "90s"\n'


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of the server of this run, of its superuser. Skips where there can be none."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    try:
        return shared(Path(folder))
    except OSError as error:
        pytest.skip(f"no PostgreSQL server: {error}")


@pytest.fixture
def database(postgres: str) -> str:
    """The address of a fresh store in a schema of its own."""
    from capsule.engines import opening

    url = f"{postgres}&schema=t{os.getpid()}_{next(_NUMBERS)}"
    opening.make_in_database(url, *([TOML] if IS_POSTGRES else []))
    return url


class Place(str):
    """The address of a store in place of its directory: a test that looks into that is skipped."""

    def __truediv__(self, other: object) -> NoReturn:
        pytest.skip("it looks into the directory of its store")

    def __getattr__(self, name: str) -> Any:
        pytest.skip(f"it asks for the {name} of the directory of its store")


def engine_of(url: str, timeout_s: float = 10.0) -> Engine:
    """The engine of a store, with what is of the machine in memory."""
    from capsule.engines.local_documents import MemoryLocalDocuments
    from capsule.engines.postgres.address import Address
    from capsule.engines.postgres.database import PostgresDatabase
    from capsule.engines.postgres.engine import PostgresEngine

    return PostgresEngine(PostgresDatabase(Address(url)), MemoryLocalDocuments(), timeout_s)


@pytest.fixture
def in_database(postgres: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test makes in memory is in PostgreSQL, with an index in memory."""
    from capsule.engines import opening

    made: list[Engine] = []

    def in_memory(
        documents: Iterable[tuple[str, Document, bytes]] = (), timeout_s: float = 10.0
    ) -> Engine:
        url = f"{postgres}&schema=t{os.getpid()}_{next(_NUMBERS)}"
        opening.make_in_database(url)
        engine = engine_of(url, timeout_s)
        made.append(engine)
        for kind, document, data in documents:
            if kind in WITH_ENTRIES:
                engine.create(kind, document)
            else:
                engine.put(kind, document["id"], data or codec.encode(document), None)
        return engine

    monkeypatch.setattr(opening, "in_memory", in_memory)
    yield
    for engine in made:
        engine.close()
