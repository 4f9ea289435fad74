"""A store that is a repository, one in a folder of a larger one, and two clones of the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.git.repositories import Clone, cloned, new, published


@pytest.fixture
def repo(tmp_path: Path) -> Clone:
    """A repository that is a store, with the drivers set up and one commit."""
    return new(tmp_path / "répo with space")


@pytest.fixture
def monorepo(tmp_path: Path) -> Clone:
    """A repository with a store in one of its folders, whose names need quoting; other files beside it."""
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
