"""A store in its git repository: the set-up, commits and syncs, and the past of its conversations.

What must stay true: each method is one call of the module that does it; no rule stands here.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Sequence
from functools import cached_property

from capsule.git import history, versions
from capsule.git.commits.commit import CommitResult, commit
from capsule.git.commits.operation import Progress, no_progress, operation
from capsule.git.commits.sync import SyncResult, sync
from capsule.git.repository import Repository
from capsule.git.setup import installation, status
from capsule.git.setup.attributes import driver_config
from capsule.git.setup.status import RepositoryStatus
from capsule.store.store import CoreStore

#: How git starts the drivers. `-P`: git does so in a directory whose files must not be imported.
_DRIVERS = (sys.executable, "-P", "-m", "capsule_cli.drivers")


class Clone:
    """A store, and the clone of a repository that it lies in. Make one with `capsule.git.open`.

    Raises Refused where the store keeps no files. Every method raises NotFound when the store lies
    in no repository, Refused when there is no program `git`, and GitFailed when git fails.

    Attributes:
        store: The store.
        program: How git starts the drivers.
    """

    def __init__(self, store: CoreStore, program: Sequence[str] | None = None) -> None:
        store.inner.whole_engine.external_edits("git")  # Refused by name where there are no files.
        self.store = store
        self.program = tuple(program or _DRIVERS)

    @cached_property
    def repository(self) -> Repository:
        """The repository."""
        return Repository.find(self.store.root)

    def _flushed(self) -> CoreStore:
        """The store, with every document whole and on the medium: git reads the files by itself."""
        self.store.flush()
        return self.store

    # -- Set-up ------------------------------------------------------------------------------------

    def setup(self, *, everywhere: bool = False) -> list[installation.SetupStep]:
        """Make git understand the conversations of the store: attributes, ignored files,
        configuration and hook.

        Args:
            everywhere: Put the configuration into the user's own, so that all their clones have it.
                Then a store outside of any repository will do.

        Raises:
            InvalidDocument: Lines of ours were cut apart in one of the files.
            Refused: A file may not be written, or something else lies in its place.
            GitFailed: Git refused; what was done before stays, and a second call goes on from
                there.
        """
        return installation.set_up(self._flushed().root, self.program, everywhere=everywhere)

    def teardown(self, *, everywhere: bool = False) -> list[installation.SetupStep]:
        """Remove what `setup` added, and nothing else; the steps say what was left, and why.

        With `everywhere`, remove it from the user's own configuration, too. Raises InvalidDocument,
        Refused.
        """
        return installation.take_down(self.store.root, everywhere=everywhere)

    def status(self) -> RepositoryStatus:
        """Whether the clone is set up, what changed since the last commit, and what to do.

        Cost: some ten starts of git, of which `git status` looks at every document, and a read of
        those that it names.
        """
        return status.inspect_clone(self.repository, self.program, self._flushed().conflicts.list())

    # -- Commits -----------------------------------------------------------------------------------

    def commit(
        self, message: str | None = None, *, progress: Progress = no_progress, asks: bool = True
    ) -> CommitResult:
        """Commit what changed in the store, and nothing else.

        Args:
            message: The subject; None: it says what changed.
            progress: Called with each step.
            asks: Whether git may ask for a password.

        Raises:
            Refused: Git does not have the attributes of conversations.
            GitFailed: A merge or the like is under way, or git did not commit, as when a hook
                refused it; what is staged then stays so.
            StoreBusy, Refused, StorageFailed: Another `capsule git` works here, or a document could
                not be read.

        Cost: reading what git takes for changed, each file under its mutex.
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
        """Commit, merge what the remote has, and push, again if somebody else pushed first.

        Args:
            message, progress, asks: Arguments of `commit`.
            unrelated: Whether the remote's history may have nothing in common with the one here.

        Raises:
            GitFailed: No branch is checked out; git or the remote refused; or something is left to
                a person, as the message says. What was committed stays committed, and nothing else
                was changed.
            InvalidDocument: A document that both sides changed does not parse here; nothing else
                was changed.
            StoreBusy, Refused, StorageFailed: Another `capsule git` works here, or a document could
                not be read.
        """
        with operation(
            self._flushed(), driver_config(self.program), progress, asks=asks
        ) as running:
            return sync(running, message, unrelated=unrelated)

    # -- The past ----------------------------------------------------------------------------------

    def resolve(self, prefix: str) -> str:
        """Find the id of a conversation by its beginning, also of one that was deleted and is in
        the history.

        Raises:
            NotFound: Neither the store nor the history of this branch has one that is meant.
            InvalidInput: Several are, or it is too short.
        """
        return versions.resolve(self.store, self.repository, prefix)

    def log(
        self, id: str, *, limit: int | None = None
    ) -> Generator[history.TimelineStep, None, None]:
        """What became of a conversation, commit by commit, the latest first; what is not committed
        yet before all.

        The conversation may be gone by now. `limit` is the number of steps at most.

        Raises:
            NotFound: Neither the store nor the history of this branch has, or had, such a
                conversation.

        Cost: one `git log`, and a read and a parse of each version that is listed.
        """
        return history.history(self.store, self.repository, id, limit=limit)

    def version(self, id: str, at: str) -> versions.PastVersion:
        """The version of a conversation that a commit holds.

        Args:
            id: The conversation, which may be gone by now.
            at: A revision (gitrevisions(7)), or a date or time in ISO 8601, UTC where it names no
                zone: the last commit of this branch up to then, by its first parents; of a date, up
                to the end of the day.

        Raises:
            NotFound: There is no such commit, or it does not have the conversation; the first that
                has is named.
            InvalidInput: It is neither a revision nor a date.
            InvalidDocument: What it has there does not parse. Raised when it is read.
        """
        return versions.past_version(self.repository, id, at)

    def diff(self, id: str, before: str, after: str | None = None) -> versions.Diff:
        """What changed between two versions of a conversation. Raises NotFound, InvalidInput,
        InvalidDocument.

        Args:
            before: The earlier version, as `version` takes it.
            after: The later one; None: the conversation as it is in the store.
        """
        return versions.diff(self.store, self.repository, id, before, after)

    def restore(self, id: str, at: str, *, dry_run: bool = False) -> versions.Restoration:
        """Bring an earlier version of a conversation back, as a new write.

        Raises NotFound, InvalidInput, InvalidDocument, and the errors of a write.

        Args:
            at: The version, as `version` takes it.
            dry_run: Change nothing, and say what would change.
        """
        return versions.restore(self.store, self.repository, id, at, dry_run=dry_run)

    def ancestor(self, id: str, ours: bytes, theirs: bytes) -> bytes | None:
        """The committed version that two versions began from, in the clean form; None: the last
        fifty show none.
        """
        return history.ancestor(self.repository, id, ours, theirs)
