"""Commits and syncs in the test's own process, which is quicker than the program, and lets a test stand in between."""

from __future__ import annotations

from collections.abc import Callable

from capsule import Store, git
from capsule.git.commits.commit import Committed
from capsule.git.commits.operation import no_progress
from capsule.git.commits.sync import Synced
from tests.git.repositories import Clone

Told = Callable[[str, int, int], None]


def committed(store: Store, message: str | None = None, told: Told = no_progress) -> Committed:
    return git.open(store).commit(message, progress=told)


def synced(store: Store, told: Told = no_progress, *, unrelated: bool = False) -> Synced:
    return git.open(store).sync(unrelated=unrelated, progress=told)


def sync_of(clone: Clone, told: Told = no_progress) -> Synced:
    """A sync by a store that is opened for it, as the program does."""
    with Store.open(clone.root, keep_locks=False) as store:
        return synced(store, told)


def staged(clone: Clone) -> list[str]:
    """The paths that differ between HEAD and the index."""
    return clone.run("diff", "--cached", "--no-renames", "--name-only", "-z").out.split("\0")[:-1]


def status(clone: Clone) -> list[str]:
    """What `git status` says, with the drivers that the clone is set up with."""
    return clone.run("status", "--porcelain", "-z").out.split("\0")[:-1]
