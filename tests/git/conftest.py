"""A store that is a repository, one in a folder of a larger one, and two clones of the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.git.repositories import Clone, cloned, environment, new, published

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def repo(tmp_path: Path) -> Clone:
    """A repository that is a store, with the drivers set up and one commit."""
    return new(tmp_path / "répo with space")


@pytest.fixture
def plain(tmp_path: Path) -> Clone:
    """A repository that is a store, and is not set up."""
    return new(tmp_path / "plain", drivers=False)


@pytest.fixture
def monorepo(tmp_path: Path) -> Clone:
    """A repository with a store in one of its folders, whose names need quoting; other files beside
    it.
    """
    clone = new(tmp_path / "mono", "pro [j]/tälk s", commit=False)
    (clone.top / "README.md").write_text("a project\n", encoding="utf-8")
    clone.commit("a project with a store")
    return clone


@pytest.fixture
def clones(tmp_path: Path) -> tuple[Clone, Clone]:
    """Two clones of one bare remote, both on `main`, which both follow."""
    anna = new(tmp_path / "anna")
    remote = published(anna, tmp_path / "remote.git")
    return anna, cloned(remote, tmp_path / "ben")


@pytest.fixture
def monorepos(monorepo: Clone, tmp_path: Path) -> tuple[Clone, Clone]:
    """Two clones of a repository with a store in a folder of it."""
    remote = published(monorepo, tmp_path / "remote.git")
    return monorepo, cloned(remote, tmp_path / "other clone", monorepo.folder)


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `capsule` on a clone's store."""
    processes: list[subprocess.Popen[str]] = []

    def begin(clone: Clone, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "capsule_cli", "--store", str(clone.root), *words]
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        processes.append(
            subprocess.Popen(command, cwd=clone.top, env=environment(), text=True, **pipes)
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()
