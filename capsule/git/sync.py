"""Synchronize a branch with its remote: commit, fetch, merge and push, until both have the same
commit.

If somebody else pushes between the fetch and the push, the remote rejects the push, and the sync
fetches and merges again. A merged commit is brought into the worktree while people and programs
continue to write in it (`apply`):

1. Everything that could be refused is tried first, on a copy of the index.
2. The store merges each document three ways: the old commit's version is the base, the present file
   is ours, the new commit's version is theirs.
3. The index gets the new entries of the documents, so that git does not touch their files.
4. Git's own two-way merge updates all other files (git-read-tree(1), "Two Tree Merge").
5. HEAD moves to the new commit.

After an interruption before step 5, the changes that were already made count as local changes. The
next sync commits them, and merges them with the same commit again.

What must stay true:

- A remote that can't be reached is no error. The sync then only commits. A remote that refuses the
  exchange is an error.
- The commit that this sync fetched is merged, never one that another git fetched meanwhile.
- A merge is made completely or not at all. It is never left half done for a person.
- Commits that somebody else pushed first are merged, and never overwritten.
- A document afterwards has everything that was written to it since the old commit, and its lock. No
  uncommitted change of a person is overwritten.
- At any interruption, no file is half written, HEAD is the old or the new commit, and the next sync
  has the same result.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from capsule.errors import GitFailed, InvalidDocument, Refused
from capsule.format.merge.clean_form import clean
from capsule.git.commit import CommitResult, Operation, commit, retried
from capsule.git.merge import MergedCommits, merge_commits
from capsule.git.plumbing import (
    REGULAR,
    BlobReader,
    IndexEntry,
    RawDifference,
    changes,
    document_in,
    empty_tree,
    refresh,
    set_entries,
)
from capsule.git_program import Git
from capsule.store.objects.merges import IncomingResult
from capsule.store.store import CoreStore

# -- The worktree ----------------------------------------------------------------------------------


@dataclass(slots=True)
class WorktreeUpdate:
    """An update of the worktree.

    Attributes:
        documents: What happened to each document, by its path.
        files: The number of other files that changed.
    """

    documents: dict[str, IncomingResult] = field(default_factory=dict)
    files: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        documents = []
        for path, result in self.documents.items():
            fields: dict[str, Any] = {"path": path, "what": result.what}
            if result.why:
                fields["why"] = result.why
            if result.notes:
                fields["notes"] = list(result.notes)
            documents.append(fields)
        return {"documents": documents, "files": self.files}


def apply(operation: Operation, old: str | None, new: str, reason: str) -> WorktreeUpdate:
    """Bring the worktree, the index and HEAD to another commit.

    Args:
        operation: The operation.
        old: The commit of HEAD. None: the branch has no commit yet.
        new: The other commit.
        reason: The text for the reflog.

    Raises:
        GitFailed: A file that a person changed is in the way. Nothing was changed.
        InvalidDocument: A document that has to be merged does not parse, in the worktree or in the
            new commit. Nothing was changed.
        StoreBusy, Refused, StorageFailed: A file can't be written. Earlier files are written, and
            the next sync continues from there.
    """
    git = operation.git
    progress = operation.progress
    base = old or empty_tree(git)
    differences = changes(git, "diff-tree", "-r", base, new)
    with ExitStack() as opened_stores, BlobReader(git) as blobs:
        documents = _changed_documents(operation, differences, blobs, opened_stores)
        entries = [document.raw.entry for document in documents]
        for number, document in enumerate(documents):
            progress("check", number, len(documents))
            document.check_mergeable()
        # The old tree with the new documents: it differs from `new` in all other files, which git
        # updates itself.
        tree_without_documents = operation.tree_with(base, entries)
        progress("rehearse", 0, 0)
        _check_worktree_clean(operation, tree_without_documents, new, entries)
        update = WorktreeUpdate(files=len(differences) - len(documents))
        for number, document in enumerate(documents):
            progress("write", number, len(documents))
            update.documents[document.raw.path] = document.merge_into_store()
    progress("index", 0, 0)
    retried(lambda: set_entries(git, entries))
    progress("files", 0, 0)
    retried(lambda: git.run("read-tree", "-m", "-u", tree_without_documents, new))
    progress("head", 0, 0)
    retried(lambda: git.run("update-ref", "-m", reason, "HEAD", new, old or "0" * len(new)))
    progress("refresh", 0, 0)
    retried(lambda: refresh(git))
    return update


def _changed_documents(
    operation: Operation,
    differences: Sequence[RawDifference],
    blobs: BlobReader,
    opened_stores: ExitStack,
) -> list[_ChangedDocument]:
    """Return the documents among the differences, of this store and of others in the repository.
    Those other stores are opened, and closed with `opened_stores`.
    """
    top = operation.repository.top
    stores: dict[str, CoreStore | None] = {operation.repository.prefix: operation.store}
    documents = []
    for raw in differences:
        location = document_in(raw.path)
        if location is None:
            continue
        folder, kind, id = location
        if folder not in stores:
            stores[folder] = None
            if _is_store(top, folder):
                store = CoreStore.open(os.path.join(top, folder), keep_locks=False)
                stores[folder] = opened_stores.enter_context(store)
        owner = stores[folder]
        if owner is not None:
            documents.append(_ChangedDocument(owner, kind, id, raw, blobs))
    return documents


def _is_store(top: str, folder: str) -> bool:
    """Return whether a folder of the repository is a store. A path from a fetched commit must not
    lead through a symlink or into another repository.
    """
    path = top
    for part in folder.split("/")[:-1]:
        path = os.path.join(path, part)
        if os.path.islink(path) or os.path.lexists(os.path.join(path, ".git")):
            return False
    return os.path.isfile(os.path.join(path, "capsule.toml"))


@dataclass(frozen=True, slots=True)
class _ChangedDocument:
    """A document of a store that differs between the two commits.

    Attributes:
        store: The store.
        kind: The kind of the document.
        id: Its id.
        raw: The difference.
        blobs: Reads its versions from git.
    """

    store: CoreStore
    kind: str
    id: str
    raw: RawDifference
    blobs: BlobReader

    def check_mergeable(self) -> None:
        """Check that the new version and the present file are valid documents. Raises GitFailed,
        InvalidDocument.
        """
        raw = self.raw
        if not raw.new_mode:
            return
        if raw.new_mode not in REGULAR:
            raise GitFailed(
                f"{raw.path} is not a regular file in the fetched commits; nothing was "
                "changed; remove it there with git",
                command=["diff-tree"],
                words="",
            )
        reason = (
            "the fetched commits have a damaged document, so nothing was changed; repair it there"
        )
        try:
            clean(self.blobs.read(raw.new) or b"", raw.path, self.kind)
            reason = (
                "a document that was changed there can't be merged, so nothing was changed; "
                "repair it, then sync again"
            )
            self.store.incoming.version(self.kind, self.id)
        except InvalidDocument as error:
            raise InvalidDocument(
                f"{reason}:\n{error.message}", path=error.path, problems=error.problems
            ) from None

    def merge_into_store(self) -> IncomingResult:
        """Merge the new version into the present file."""
        raw = self.raw
        base = self._clean_version(raw.old) if raw.old_mode else None
        theirs = self._clean_version(raw.new) if raw.new_mode else None
        return self.store.incoming.bring_in(self.kind, self.id, base, theirs)

    def _clean_version(self, name: str) -> bytes | None:
        """Return a version from git in the clean form. None: it is no document, and got into git
        without a check.
        """
        with suppress(InvalidDocument):
            return clean(self.blobs.read(name) or b"", self.raw.path, self.kind)
        return None


def _check_worktree_clean(
    operation: Operation, base: str, new: str, entries: Sequence[IndexEntry]
) -> None:
    """Check that git would update every file that is no document. Raises GitFailed if a person has
    uncommitted changes in such a file.
    """
    with operation.other_index() as git:
        refresh(git)
        set_entries(git, entries)
        try:
            git.run("read-tree", "-m", "-u", "-n", base, new)
        except GitFailed as error:
            reason = (
                "uncommitted local changes are in the way of the fetched commits, so nothing "
                "was changed; commit them, or put them aside with git stash, then sync again: "
                f"{error.words}"
            )
            raise GitFailed(reason, command=error.command, words=error.words) from None


# -- The sync --------------------------------------------------------------------------------------

#: Messages of git, curl and ssh if no server answers. A server that refuses has other messages.
_UNREACHABLE = re.compile(
    r"could(?:n't| not) resolve|temporary failure in name resolution|name or service not "
    r"known|unable to look up"
    r"|failed to connect|unable to connect|couldn't connect|connection (?:refused|timed "
    r"out|reset|closed by)"
    r"|operation timed out|timeout was reached|network is (?:unreachable|down)|no route to "
    r"host|host is down",
    re.IGNORECASE,
)
#: Messages of a remote that rejects a push because it has newer commits.
_HAS_NEWER_COMMITS = re.compile(
    r"fetch first|non-fast-forward|stale info|needs force|cannot lock ref|failed to update "
    r"ref|reference already exists"
    r"|incorrect old value|remote ref updated since checkout",
    re.IGNORECASE,
)
#: The settings with programs that git runs to reach a remote.
_HELPERS = r"^(core\.(sshcommand|gitproxy|askpass)|credential\.(.*\.)?helper|remote\..*\.(uploadpack|receivepack|vcs))$"


class RemoteUnreachable(Exception):
    """The remote can't be reached. The message is git's. It never leaves the package."""


class PushRejected(Exception):
    """Somebody else pushed first. It never leaves the package."""


def branch_of(git: Git) -> str:
    """Return the branch that is checked out. Raises GitFailed if none is (a detached HEAD)."""
    output = git.run("symbolic-ref", "--quiet", "--short", "HEAD", ok_codes=(0, 1))
    if output.code:
        reason = (
            f"no branch is checked out in {git.directory}; check one out first: git switch BRANCH"
        )
        raise GitFailed(reason, command=["symbolic-ref", "HEAD"], words=output.words)
    return output.text


def remote_of(git: Git, branch: str) -> RemoteBranch | None:
    """Return the remote branch that a branch follows, or else the branch of the same name in the
    only remote. None: the repository has no remote.

    Raises:
        Refused: The branch follows none of several remotes. Or the repository's own configuration
            names programs for reaching remotes.
    """
    _ensure_no_repository_helpers(git)
    name = git.run("config", "--get", f"branch.{branch}.remote", ok_codes=(0, 1)).text
    merge = git.run("config", "--get", f"branch.{branch}.merge", ok_codes=(0, 1)).text
    if name and merge and name != ".":
        return RemoteBranch(git, name, branch, merge, follows=True)
    remotes = git.run("remote").text.splitlines()
    if not remotes:
        return None
    if name not in remotes:
        if len(remotes) > 1:
            raise Refused(
                f"branch {branch} follows no branch of a remote, and there are several remotes "
                f"({', '.join(remotes)}); choose one with: git "
                f"push -u REMOTE {branch}",
                path=git.directory,
            )
        name = remotes[0]
    return RemoteBranch(git, name, branch, f"refs/heads/{branch}", follows=False)


def _ensure_no_repository_helpers(git: Git) -> None:
    """Check that the repository's own configuration names no program for reaching remotes. It may
    have come with an archive. Raises Refused.
    """
    fields = git.run(
        "config", "-z", "--show-scope", "--name-only", "--get-regexp", _HELPERS, ok_codes=(0, 1)
    ).fields
    helpers = []
    for scope, name in zip(fields[::2], fields[1::2], strict=True):
        if scope in ("local", "worktree"):
            helpers.append(name)
    if helpers:
        raise Refused(
            "the repository's own configuration names a program for reaching remotes "
            f"({', '.join(helpers)}), which "
            "a sync does not run; if it is yours, set it in your own configuration (git config "
            "--global), or use git pull and git push",
            path=git.directory,
        )


@dataclass(frozen=True, slots=True)
class RemoteBranch:
    """A branch of a remote, and the local branch that is exchanged with it.

    Attributes:
        git: Git.
        name: The remote.
        branch: The local branch.
        ref: The branch in the remote, as `refs/heads/...`.
        follows: Whether the local branch is configured to follow it.
    """

    git: Git
    name: str
    branch: str
    ref: str
    follows: bool

    def __str__(self) -> str:
        return f"{self.name}/{self.ref.removeprefix('refs/heads/')}"

    def tip(self) -> str | None:
        """Return the commit of the branch in the remote, and fetch it. None: the remote has no such
        branch. Raises RemoteUnreachable, GitFailed.
        """
        lines = self._exchange("ls-remote", "--quiet", self.name, self.ref).splitlines()
        commits = (line.split("\t")[0] for line in lines if line.endswith(f"\t{self.ref}"))
        tip = next(commits, None)
        if tip is not None and not self._has(tip):
            self._exchange("fetch", "--quiet", self.name, self.ref)
            if not self._has(tip):  # It was removed from the remote in between.
                return self.tip()
        return tip

    def push(self) -> None:
        """Push, and follow the branch from then on. Raises PushRejected, RemoteUnreachable,
        GitFailed.
        """
        follow = () if self.follows else ("--set-upstream",)
        try:
            self._exchange(
                "push",
                "--quiet",
                "--porcelain",
                *follow,
                self.name,
                f"refs/heads/{self.branch}:{self.ref}",
            )
        except GitFailed as error:
            if _HAS_NEWER_COMMITS.search(error.words):
                raise PushRejected from error
            raise

    def _has(self, commit: str) -> bool:
        """Return whether the local repository has a commit."""
        output = self.git.run("cat-file", "-e", f"{commit}^{{commit}}", ok_codes=(0, 1, 128))
        return output.code == 0

    def _exchange(self, *command: str) -> str:
        """Run a command that reaches the remote, and return its output."""
        output = self.git.run(*command, ok_codes=range(256))
        if output.code == 0:
            return output.text
        # `push --porcelain` writes to standard output which branch was refused and why, and at last
        # "Done".
        out = output.out.strip().removesuffix(b"\nDone")
        words = b"\n".join([out.strip(), output.err.strip()]).decode("utf-8", "replace").strip()
        if _UNREACHABLE.search(words) or self._is_unmounted():
            raise RemoteUnreachable(words)
        reason = f"git {command[0]} failed with {self.name}: {words or f'exit code {output.code}'}"
        raise GitFailed(reason, command=list(command), words=words)

    def _is_unmounted(self) -> bool:
        """Return whether the remote is a directory that does not exist now, because its disk was
        removed.
        """
        url = self.git.run("remote", "get-url", self.name, ok_codes=(0, 1, 2, 128)).text
        if url.startswith("file://"):
            path = unquote(urlsplit(url).path)
        elif "://" in url or re.match(r"[^/]+:", url):
            return False
        else:
            path = url
        return bool(path) and not os.path.exists(os.path.join(self.git.directory, path))


#: How many times somebody else may push first. Each time fewer commits are left to merge.
_TRIES = 10
#: The seconds between two tries: they double up to the maximum, and a random part of them is used.
_MIN_RETRY_S = 0.05
_MAX_RETRY_S = 2.0


@dataclass(slots=True)
class SyncResult:
    """The result of a sync.

    Attributes:
        committed: The commit of the local changes.
        remote: The remote branch, as `origin/main`. Empty: the repository has no remote.
        offline: Why the remote could not be reached. Empty: it was reached.
        received: The number of commits that were fetched.
        merged: The merge commit, if both sides had new commits.
        applied: The updates of the worktree, one for each fetch with new commits.
        kept: The paths of documents that one side deleted and the other changed. They are kept.
        notes: Other decisions of merges, in words.
        pushed: The number of commits that were pushed.
        tries: The number of fetches.
    """

    committed: CommitResult = field(default_factory=CommitResult)
    remote: str = ""
    offline: str = ""
    received: int = 0
    merged: str = ""
    applied: list[WorktreeUpdate] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pushed: int = 0
    tries: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "committed": self.committed.as_json(),
            "remote": self.remote or None,
            "offline": self.offline or None,
            "merged": self.merged or None,
            "received": self.received,
            "kept": self.kept,
            "notes": self.notes,
            "pushed": self.pushed,
            "tries": self.tries,
            "applied": [update.as_json() for update in self.applied],
        }


def sync(
    operation: Operation, message: str | None = None, *, unrelated: bool = False
) -> SyncResult:
    """Commit, merge the commits of the remote, and push. Fetch and push again if somebody else
    pushed first.

    Args:
        operation: The operation.
        message: The subject of the commit. None: it describes the changes.
        unrelated: Whether the remote may have a history without a common ancestor.
    """
    branch = branch_of(operation.git)
    result = SyncResult(commit(operation, message))
    remote = remote_of(operation.git, branch)
    if remote is None:
        return result
    result.remote = str(remote)
    try:
        while not _sync_once(operation, remote, result, unrelated=unrelated):
            wait_s = min(_MIN_RETRY_S * 2**result.tries, _MAX_RETRY_S)
            time.sleep(wait_s * random.random())
    except RemoteUnreachable as error:
        result.offline = str(error)
    return result


def _sync_once(
    operation: Operation, remote: RemoteBranch, result: SyncResult, *, unrelated: bool
) -> bool:
    """Fetch, merge and push once. Return False if somebody else pushed in between."""
    git = operation.git
    result.tries += 1
    operation.progress("fetch", 0, 0)
    theirs = remote.tip()
    ours = git.head()
    ahead, behind = _ahead_behind(git, ours, theirs)
    if theirs is not None and behind:
        ours = _merge_fetched(operation, remote, ours, theirs, result, ahead, unrelated=unrelated)
        result.received += behind
        ahead, _ = _ahead_behind(git, ours, theirs)
    if not ahead:
        return True
    operation.progress("push", 0, 0)
    try:
        remote.push()
    except PushRejected as error:
        if result.tries < _TRIES:
            return False
        reason = (
            f"others pushed to {remote} first, {_TRIES} times in a row; the local changes are "
            "committed; sync again"
        )
        raise GitFailed(reason, command=["push"], words=str(error.__cause__)) from error
    result.pushed += ahead
    return True


def _merge_fetched(
    operation: Operation,
    remote: RemoteBranch,
    ours: str | None,
    theirs: str,
    result: SyncResult,
    ahead: int,
    *,
    unrelated: bool,
) -> str:
    """Bring the worktree to the fetched commit, or to its merge with the local commits. Return the
    new commit of HEAD.

    Args:
        operation, remote, unrelated: As in `sync`.
        ours: The commit of HEAD. None: the branch has no commit yet.
        theirs: The fetched commit.
        result: The result, to which this is added.
        ahead: The number of commits that the remote does not have.
    """
    if ours is None or not ahead:
        result.applied.append(apply(operation, ours, theirs, f"capsule sync: {remote}"))
        return theirs
    operation.progress("merge", 0, 0)
    remote_branch = remote.ref.removeprefix("refs/heads/")
    manual_command = (
        f"git -C {operation.repository.top} pull --no-rebase {remote.name} {remote_branch}"
    )
    merge = merge_commits(operation, ours, theirs, manual_command, unrelated=unrelated)
    new = _make_merge_commit(operation, remote, merge, ours, theirs)
    result.applied.append(apply(operation, ours, new, f"capsule sync: {remote}"))
    result.merged = new
    result.kept += merge.kept
    result.notes += merge.notes
    return new


def _make_merge_commit(
    operation: Operation, remote: RemoteBranch, merge: MergedCommits, ours: str, theirs: str
) -> str:
    """Make the commit of a merge, and return it. It is signed if the person signs commits. It runs
    no hook, because nobody wrote anything in it.
    """
    git = operation.git
    lines = [f"Merge {remote}", ""]
    for path in merge.disputed:
        lines.append(f"{path}: both sides changed the same, and a person must resolve the conflict")
    for path in merge.kept:
        lines.append(f"{path} was deleted on one side and changed on the other; it is kept")
    text = ("\n".join(lines).strip() + "\n").encode("utf-8", "surrogateescape")
    setting = git.run("config", "--type=bool", "--get", "commit.gpgSign", ok_codes=(0, 1)).text
    signing = ("-S",) if setting == "true" else ()
    return git.run("commit-tree", *signing, "-p", ours, "-p", theirs, merge.tree, input=text).text


def _ahead_behind(git: Git, ours: str | None, theirs: str | None) -> tuple[int, int]:
    """Return how many commits `ours` has that `theirs` lacks, and the other way round. None: no
    commits.
    """
    if ours and theirs:
        command = ("rev-list", "--left-right", "--count", f"{ours}...{theirs}")
        ahead, behind = git.run(*command).text.split()
        return int(ahead), int(behind)
    ahead = git.run("rev-list", "--count", ours).text if ours else "0"
    behind = git.run("rev-list", "--count", theirs).text if theirs else "0"
    return int(ahead), int(behind)
