"""The environment of every test: without the caller's settings, with an empty home and fixed
randomness.

What must stay true: a test uses only the Python and the tools of the machine, and leaves no files
there. The time limit of a test and `filterwarnings = error` are in `pyproject.toml`.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import cast

import pytest
from hypothesis import HealthCheck, Phase, settings

from capsule import Store
from tests.postgres.stores import IS_POSTGRES, TOML, Place, database, in_database, postgres
from tests.processes import Child

__all__ = ["database", "in_database", "postgres"]  # Fixtures.

ROOT = Path(__file__).resolve().parents[1]

#: The caller's variables that a test keeps; all others are removed.
_KEPT = frozenset(
    {
        "PATH",
        "TMPDIR",
        "VIRTUAL_ENV",
        "SYSTEMROOT",
        "LD_LIBRARY_PATH",
        "DYLD_LIBRARY_PATH",
        "CAPSULE_TORTURE",
        "CAPSULE_ENGINE",
    }
)
_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]

# In CI each run tries the same examples, so that only a change of the code can make it fail.
settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=60,
    print_blob=True,
    database=None,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "dev", deadline=None, max_examples=15, print_blob=True, suppress_health_check=_SLOW
)
settings.register_profile(
    "torture",
    deadline=None,
    max_examples=5000,
    print_blob=True,
    suppress_health_check=_SLOW,
    phases=(Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink),
)
_PROFILE = os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "dev")
settings.load_profile(_PROFILE)

#: Numbers the homes: pytest would read the whole directory of all tests before it numbers one.
_HOMES = count()

#: The seed of every test with random choices (the `rng` fixture); CAPSULE_SEED repeats a run.
SEED = int(
    os.environ.get("CAPSULE_SEED")
    or (20250112 if _PROFILE == "ci" else random.SystemRandom().getrandbits(32))
)
os.environ["CAPSULE_SEED"] = str(
    SEED
)  # The workers of pytest-xdist inherit it, so that all share one seed.


def pytest_report_header() -> str:
    return f"capsule: seed {SEED} (CAPSULE_SEED={SEED} repeats it), hypothesis profile {_PROFILE}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
    if exitstatus:
        terminalreporter.write_line(
            f"to repeat the random parts: CAPSULE_SEED={SEED} HYPOTHESIS_PROFILE={_PROFILE}"
        )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if IS_POSTGRES and item.get_closest_marker("files") is not None:
            item.add_marker(pytest.mark.skip(reason="it needs a store of files"))


@pytest.fixture(autouse=True)
def _scrubbed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new environment, a new home, and a working directory that is no store."""
    home = tmp_path_factory.mktemp(f"home-{next(_HOMES)}", numbered=False)
    for name in list(os.environ):
        if name not in _KEPT and not name.startswith("PYTEST_"):
            monkeypatch.delenv(name)
    for name, value in {
        "HOME": str(home),
        "USER": "tester",
        "LOGNAME": "tester",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "TERM": "dumb",
        "COLUMNS": "100",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONWARNINGS": "error",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "tester",
        "GIT_AUTHOR_EMAIL": "tester@example.org",
        "GIT_COMMITTER_NAME": "tester",
        "GIT_COMMITTER_EMAIL": "tester@example.org",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(home)


@pytest.fixture(autouse=IS_POSTGRES)
def _engine(request: pytest.FixtureRequest) -> None:
    """With CAPSULE_ENGINE=postgres, stores in memory are in PostgreSQL: the same tests on it."""
    request.getfixturevalue("in_database")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """The random numbers of this test: the same in any order of tests, for the seed in the header
    of the report.
    """
    return random.Random(f"{SEED} {request.node.nodeid}")


@pytest.fixture
def samples() -> Path:
    """Capsules of version 2.0 that no program of this project wrote; read only."""
    return ROOT / "tests" / "data" / "capsules"


@pytest.fixture
def repository() -> Path:
    """The root of this repository, a store itself; read only."""
    return ROOT


@pytest.fixture(scope="session")
def initialised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that nobody opens. It is copied for each test, as making one waits for the disk."""
    root = tmp_path_factory.mktemp("initialised")
    Store.init(root)
    (root / "capsule.toml").write_text(TOML, encoding="utf-8")
    return root


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path, initialised: Path) -> Path:
    """The directory of a fresh store; with CAPSULE_ENGINE=postgres its address, for tests that look
    at no files.
    """
    if IS_POSTGRES:
        return cast(Path, Place(request.getfixturevalue("database")))
    return Path(shutil.copytree(initialised, tmp_path / "store"))


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """A fresh store, open."""
    with Store.open(root) as store:
        yield store


@pytest.fixture
def child() -> Iterator[Callable[..., Child]]:
    """Starts Python programs in separate processes, with their arguments as texts."""
    children: list[Child] = []

    def start(body: str, *args: object) -> Child:
        children.append(Child(body, *map(str, args)))
        return children[-1]

    yield start
    for one in children:
        one.close()
