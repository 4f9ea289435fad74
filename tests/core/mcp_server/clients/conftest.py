"""A home, a project and a store for the settings of programs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from capsule.mcp_server.clients import settings
from capsule.mcp_server.clients.settings import MachinePaths
from tests.core.cli.conftest import Program


@pytest.fixture
def places(tmp_path: Path) -> MachinePaths:
    """A Linux machine, in a directory whose name has a space and a letter beyond ASCII."""
    home, project = tmp_path / "höme dir", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    return MachinePaths("linux", str(home), str(project))


@pytest.fixture
def capsule(
    tmp_path: Path, places: MachinePaths, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Program]:
    """The program, in that home and project, and a store."""
    monkeypatch.setenv("HOME", places.home)
    monkeypatch.chdir(places.project)
    # Those of this machine are no part of a test.
    monkeypatch.setattr(settings, "PROGRAMS", ())
    program = Program(tmp_path / "my störe")
    program("init", str(program.root))
    yield program
    program.close()
