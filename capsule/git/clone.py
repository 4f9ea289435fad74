"""A store in its git repository: the set-up, commits and syncs, and past versions of conversations.

What must stay true: each method is one call of the module that implements it. Before git reads
files itself, the store is flushed, so that every document is complete in its file.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from functools import cached_property

from capsule.git import clone_setup, history
from capsule.git.attributes import driver_config
from capsule.git.clone_setup import RepositoryStatus
from capsule.git.commit import CommitResult, Progress, commit, no_progress, operation
from capsule.git.plumbing import Repository
from capsule.git.sync import SyncResult, sync
from capsule.store.store import CoreStore

#: The program with which git starts the drivers. `-P`: files of the directory where git starts
#: them must not be imported.
_DRIVERS = (sys.executable, "-P", "-m", "capsule_cli.drivers")


class Clone:
    """A store, and the clone of a repository that contains it. Make one with `capsule.git.open`.

    Raises Refused if the store is not in files. Every method raises NotFound if the store is in no
    repository, Refused if the program `git` is not installed, and GitFailed if git fails.

    Attributes:
        store: The store.
        program: The program with which git starts the drivers, and its first arguments.
    """

    def __init__(self, store: CoreStore, program: Sequence[str] | None = None) -> None:
        store.inner.whole_engine.external_edits("git")  # Raises Refused if the store has no files.
        self.store = store
        self.program = tuple(program or _DRIVERS)

    @cached_property
    def repository(self) -> Repository:
        """The repository."""
        return Repository.find(self.store.root)

    def _flushed(self) -> CoreStore:
        """Return the store, with every document complete in its file, because git reads the files
        itself.
        """
        self.store.flush()
        return self.store

    # -- Set-up ------------------------------------------------------------------------------------

    def setup(self, *, everywhere: bool = False) -> list[clone_setup.SetupStep]:
        """Make git understand the conversations of the store: attributes, ignored files,
        configuration and hook.

        Args:
            everywhere: Write the settings to the user's configuration, so that all the user's
                clones have them. The store may then be outside of any repository.

        Raises:
            InvalidDocument: Capsule's lines in one of the files have no end.
            Refused: A file may not be written, or is no regular file.
            GitFailed: Git refused. Finished steps stay, and a second call continues from there.
        """
        return clone_setup.set_up(self._flushed().root, self.program, everywhere=everywhere)

    def teardown(self, *, everywhere: bool = False) -> list[clone_setup.SetupStep]:
        """Remove what `setup` added, and nothing else. The steps name what was kept, and why.

        With `everywhere`, also remove it from the user's configuration. Raises InvalidDocument,
        Refused.
        """
        return clone_setup.take_down(self.store.root, everywhere=everywhere)

    def status(self) -> RepositoryStatus:
        """Return whether the clone is set up, what changed since the last commit, and what to do.

        Cost: about ten starts of git. `git status` inspects every document, and the changed ones
        are read.
        """
        return clone_setup.inspect_clone(
            self.repository, self.program, self._flushed().conflicts.list()
        )

    # -- Commits -----------------------------------------------------------------------------------

    def commit(
        self, message: str | None = None, *, progress: Progress = no_progress, asks: bool = True
    ) -> CommitResult:
        """Commit what changed in the store, and nothing else.

        Args:
            message: The subject. None: it describes the changes.
            progress: Called with each step.
            asks: Whether git may ask for a password.

        Raises:
            Refused: Git does not have the attributes of conversations.
            GitFailed: A person has not finished a merge or the like, or git did not commit, for
                example because of a hook. Staged changes then stay staged.
            StoreBusy, Refused, StorageFailed: Another `capsule git` is running here, or a document
                could not be read.

        Cost: reading the files that git lists as changed, each under its mutex.
        """
        with operation(
            self._flushed(), driver_config(self.program), progress, asks=asks
        ) as running:
            return commit(running, message)

    def sync(
        self,
        message: str | None = None,
        *,
        unrelated: bool = False,
        progress: Progress = no_progress,
        asks: bool = True,
    ) -> SyncResult:
        """Commit, merge the commits of the remote, and push. Merge and push again if somebody else
        pushed first.

        Args:
            message, progress, asks: As `commit` takes them.
            unrelated: Whether the remote's history may have no common ancestor with the local one.

        Raises:
            GitFailed: No branch is checked out, git or the remote refused, or a person has to
                decide, as the message says. The local changes are committed, and nothing else was
                changed.
            InvalidDocument: A document that both sides changed does not parse here. The local
                changes are committed, and nothing else was changed.
            StoreBusy, Refused, StorageFailed: Another `capsule git` is running here, or a document
                could not be read.
        """
        with operation(
            self._flushed(), driver_config(self.program), progress, asks=asks
        ) as running:
            return sync(running, message, unrelated=unrelated)

    # -- Past versions -----------------------------------------------------------------------------

    def resolve(self, prefix: str) -> str:
        """Find the id of a conversation by its beginning. The conversation may be deleted, and only
        in the history.

        Raises:
            NotFound: Neither the store nor the history of this branch has such a conversation.
            InvalidInput: The prefix fits several conversations, or is too short.
        """
        return history.resolve(self.store, self.repository, prefix)

    def log(
        self, id: str, *, limit: int | None = None
    ) -> Generator[history.TimelineStep, None, None]:
        """Yield what happened to a conversation, commit by commit, the latest first. The
        uncommitted changes come before all commits.

        Args:
            id: The conversation, which may be deleted by now.
            limit: The largest number of steps. None: no limit.

        Raises:
            NotFound: Neither the store nor the history of this branch has the conversation.

        Cost: one `git log`, and reading and parsing each version.
        """
        return history.history(self.store, self.repository, id, limit=limit)

    def version(self, id: str, at: str) -> history.PastVersion:
        """Return the version of a conversation in a commit.

        Args:
            id: The conversation, which may be deleted by now.
            at: A revision (gitrevisions(7)), or a date or time in ISO 8601 (UTC, unless it has a
                zone). A time means the last commit of this branch up to then, by its first parents.
                A date means the end of the day.

        Raises:
            NotFound: The commit does not exist, or does not have the conversation. The message
                names the first commit that has it.
            InvalidInput: `at` is neither a revision nor a date.
            InvalidDocument: The version does not parse. Raised when it is read.
        """
        return history.past_version(self.repository, id, at)

    def diff(self, id: str, before: str, after: str | None = None) -> history.Diff:
        """Compare two versions of a conversation. Raises NotFound, InvalidInput, InvalidDocument.

        Args:
            id: The conversation.
            before: The earlier version, as `version` takes it.
            after: The later one. None: the present version in the store.
        """
        return history.diff(self.store, self.repository, id, before, after)

    def restore(self, id: str, at: str, *, dry_run: bool = False) -> history.Restoration:
        """Restore an earlier version of a conversation, as a new write.

        Raises NotFound, InvalidInput, InvalidDocument, and the errors of a write.

        Args:
            id: The conversation.
            at: The version, as `version` takes it.
            dry_run: Change nothing, and return what would change.
        """
        return history.restore(self.store, self.repository, id, at, dry_run=dry_run)

    def ancestor(self, id: str, ours: bytes, theirs: bytes) -> bytes | None:
        """Return the committed version from which two versions began, in the clean form. None: none
        of the last fifty versions is certain to be it.
        """
        return history.ancestor(self.repository, id, ours, theirs)
