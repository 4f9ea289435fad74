"""Commits and syncs by Capsule: one at a time in a worktree, on a repository in which no merge is
under way.

What must stay true: an operation ends with its process, however that dies; what a person has begun
(a merge, a rebase) is theirs to end; and while a person's git writes the index, Capsule waits.
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

#: Called before each step, and during a long one: its name, how much of it is done, and of how
#: much. What it raises ends the work between two steps.
Progress = Callable[[str, int, int], None]

#: Keeps git from starting our filter, a Python each time, where no document is concerned.
_NO_FILTER = {
    "filter.capsule.process": "",
    "filter.capsule.clean": "",
    "filter.capsule.required": "false",
}
_FOLDER = "capsule"
_OPERATION_S = 60.0
_PATIENCE_S = 10.0
_FIRST_WAIT_S = 0.02
_LONGEST_WAIT_S = 0.5


def no_progress(step: str, done: int, total: int) -> None:
    """A `Progress` that shows nothing."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One commit or sync under way. It has the settings of the drivers, so that they work before a
    setup too.
    """

    store: CoreStore
    repository: Repository
    drivers: Mapping[str, str]
    progress: Progress
    asks: bool = True

    @property
    def git(self) -> Git:
        """Git as its person runs it, with hooks, but for our filter."""
        return Git(
            self.repository.top,
            _NO_FILTER,
            {} if self.asks else {"GIT_TERMINAL_PROMPT": "0"},
            trusting=True,
        )

    @contextmanager
    def other_index(self, *, copied: bool = True) -> Iterator[Git]:
        """Within the block, git on an index that is a copy of the worktree's, or empty."""
        path, index = self.file("index"), os.path.join(self.repository.directory, "index")
        if copied and os.path.exists(index):
            copyfile(index, path)
        try:
            yield replace(self.git, variables={**self.git.variables, "GIT_INDEX_FILE": path})
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def tree_with(self, tree: str, entries: Sequence[IndexEntry]) -> str:
        """The name of a tree, as a commit has it, but with these entries."""
        with self.other_index(copied=False) as git:
            git.run("read-tree", tree)
            set_entries(git, entries)
            return git.run("write-tree").text

    def file(self, name: str) -> str:
        """A file for this operation, in a folder of ours in git's directory; what an earlier one
        left there is gone.
        """
        path = os.path.join(self.repository.directory, _FOLDER, name)
        for left in (path, f"{path}.lock"):
            if os.path.lexists(left):
                os.unlink(left)
        return path


@contextmanager
def operation(
    store: CoreStore,
    drivers: Mapping[str, str],
    progress: Progress = no_progress,
    *,
    asks: bool = True,
    timeout_s: float = _OPERATION_S,
) -> Iterator[Operation]:
    """While the body runs, no other commit or sync by Capsule is under way in this worktree.

    Raises:
        NotFound: The store lies in no repository.
        StoreBusy: Another operation takes longer than `timeout_s` seconds.
        GitFailed: A merge or the like by a person is under way; the message says how to end it.
    """
    repository = Repository.find(store.root)
    with ExitStack() as held:
        try:
            held.enter_context(lock_of(repository.directory, _FOLDER, "turn", timeout_s))
        except StoreBusy as error:
            reason = (
                f"another Capsule process is working with git in {repository.top} "
                f"({error.holder}); wait for it, and try again"
            )
            raise StoreBusy(reason, id=repository.top, holder=error.holder) from None
        _ensure_at_rest(repository)
        yield Operation(store, repository, drivers, progress, asks)


def _ensure_at_rest(repository: Repository) -> None:
    if under_way := repository.under_way():
        begun, way_out = under_way
        raise GitFailed(
            f"{repository.top} is in the middle of {begun}; end it first: {way_out}",
            command=[],
            words="",
        )
    if unmerged := repository.git.run("ls-files", "-z", "--unmerged").fields:
        path = unmerged[0].partition("\t")[2]
        reason = (
            f"{repository.top} has unresolved conflicts, for example in {path}; resolve them "
            "and git add them"
        )
        raise GitFailed(reason, command=["ls-files", "--unmerged"], words="")


def retried(run: Callable[[], T]) -> T:
    """Run a git command that writes the index or a ref, again while another git locks it. Raises
    GitFailed.
    """
    until = time.monotonic() + _PATIENCE_S
    wait_s = _FIRST_WAIT_S
    while True:
        try:
            return run()
        except GitFailed as error:
            if ".lock': File exists" not in error.words or time.monotonic() > until:
                raise
        time.sleep(wait_s * random.uniform(0.5, 1.5))
        wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
