"""An operation is one commit or sync by Capsule. `operation` begins it, and `Operation` has what its
steps share: git, the drivers, a copy of the index, and files in git's directory.

What must stay true: one operation runs at a time in a worktree. Its lock ends with its process,
however the process ends. An operation does not begin during a merge or a rebase by a person. While
a person's git writes the index, Capsule waits.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from shutil import copyfile
from typing import TypeVar

from capsule.engines.opening import lock_of
from capsule.errors import GitFailed, StoreBusy
from capsule.git.objects import IndexEntry, set_entries
from capsule.git.repository import Repository
from capsule.git_program import Git
from capsule.store.store import CoreStore

T = TypeVar("T")

#: Called before each step, and during a long one: its name, the number of finished parts, and the
#: number of all. An exception from it ends the operation between two steps.
Progress = Callable[[str, int, int], None]

#: Keeps git from starting Capsule's filter, a Python process, for commands without documents.
_NO_FILTER = {
    "filter.capsule.process": "",
    "filter.capsule.clean": "",
    "filter.capsule.required": "false",
}
#: Capsule's folder in git's directory.
_FOLDER = "capsule"
#: How long an operation waits for another one, in seconds.
_OPERATION_WAIT_S = 60.0
#: How long a command waits for a lock of another git, in seconds, and between two tries.
_LOCK_WAIT_S = 10.0
_MIN_RETRY_S = 0.02
_MAX_RETRY_S = 0.5


def no_progress(step: str, count: int, total: int) -> None:
    """Show nothing. A `Progress`."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One commit or sync.

    Attributes:
        store: The store.
        repository: Its repository.
        drivers: The settings of Capsule's filter and merge driver, so that they also work without
            `capsule git setup`.
        progress: Shows the progress.
        asks: Whether git may ask for passwords.
    """

    store: CoreStore
    repository: Repository
    drivers: Mapping[str, str]
    progress: Progress
    asks: bool = True

    @property
    def git(self) -> Git:
        """Git as a person runs it, with hooks, but without Capsule's filter."""
        variables = {} if self.asks else {"GIT_TERMINAL_PROMPT": "0"}
        return Git(self.repository.top, _NO_FILTER, variables, trusting=True)

    @contextmanager
    def other_index(self, *, copied: bool = True) -> Iterator[Git]:
        """Yield git with another index: a copy of the worktree's, or an empty one. It is deleted at
        the end of the block.
        """
        path = self.file("index")
        index = os.path.join(self.repository.directory, "index")
        if copied and os.path.exists(index):
            copyfile(index, path)
        try:
            yield replace(self.git, variables={**self.git.variables, "GIT_INDEX_FILE": path})
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def tree_with(self, tree: str, entries: Sequence[IndexEntry]) -> str:
        """Write the tree of a commit with these entries set in it, and return its name."""
        with self.other_index(copied=False) as git:
            git.run("read-tree", tree)
            set_entries(git, entries)
            return git.run("write-tree").text

    def file(self, name: str) -> str:
        """Return the path of a file for this operation, in Capsule's folder in git's directory. A
        file that an earlier operation left is deleted.
        """
        path = os.path.join(self.repository.directory, _FOLDER, name)
        for leftover in (path, f"{path}.lock"):
            if os.path.lexists(leftover):
                os.unlink(leftover)
        return path


@contextmanager
def operation(
    store: CoreStore,
    drivers: Mapping[str, str],
    progress: Progress = no_progress,
    *,
    asks: bool = True,
    timeout_s: float = _OPERATION_WAIT_S,
) -> Iterator[Operation]:
    """Begin an operation, and end it with the block. No other one runs in this worktree meanwhile.

    Raises:
        NotFound: The store is in no repository.
        StoreBusy: Another operation takes longer than `timeout_s` seconds.
        GitFailed: A person has not finished a merge, a rebase or the like. The message says how to.
    """
    repository = Repository.find(store.root)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_of(repository.directory, _FOLDER, "turn", timeout_s))
        except StoreBusy as error:
            reason = (
                f"another Capsule process is working with git in {repository.top} "
                f"({error.holder}); wait for it, and try again"
            )
            raise StoreBusy(reason, id=repository.top, holder=error.holder) from None
        _ensure_nothing_unfinished(repository)
        yield Operation(store, repository, drivers, progress, asks)


def _ensure_nothing_unfinished(repository: Repository) -> None:
    """Raise GitFailed if a person has begun a merge or the like, or has to resolve conflicts."""
    unfinished = repository.unfinished_operation()
    if unfinished is not None:
        name, way_out = unfinished
        raise GitFailed(
            f"{repository.top} is in the middle of {name}; end it first: {way_out}",
            command=[],
            words="",
        )
    unmerged = repository.git.run("ls-files", "-z", "--unmerged").fields
    if unmerged:
        path = unmerged[0].partition("\t")[2]
        reason = (
            f"{repository.top} has unresolved conflicts, for example in {path}; resolve them "
            "and git add them"
        )
        raise GitFailed(reason, command=["ls-files", "--unmerged"], words="")


def retried(run: Callable[[], T]) -> T:
    """Run a git command that writes the index or a ref. It runs again as long as another git holds
    a lock on it. Raises GitFailed.
    """
    deadline = time.monotonic() + _LOCK_WAIT_S
    wait_s = _MIN_RETRY_S
    while True:
        try:
            return run()
        except GitFailed as error:
            if ".lock': File exists" not in error.words or time.monotonic() > deadline:
                raise
        time.sleep(wait_s * random.uniform(0.5, 1.5))
        wait_s = min(wait_s * 2, _MAX_RETRY_S)
