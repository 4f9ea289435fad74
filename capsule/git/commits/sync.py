"""Synchronize a branch with its remote: commit, fetch, merge and push until both have the same.

What must stay true:

- A remote that can't be reached is no error, and nothing but the exchange is left out. A remote
  that refuses us is an error.
- Only what this sync fetched is merged, never what another git fetched meanwhile.
- A merge is made whole or not at all. It never waits half done for a person.
- What somebody else pushed first is merged, and never overwritten.
- The next sync finishes one that was interrupted, at whichever step.
"""

from __future__ import annotations

import os
import random
import re
import time
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from capsule.errors import GitFailed, Refused
from capsule.git.commits.commit import CommitResult, commit
from capsule.git.commits.merge import MergedCommits, merge_commits
from capsule.git.commits.operation import Operation
from capsule.git.commits.worktree import WorktreeUpdate, apply
from capsule.git_program import Git

#: What git, curl and ssh say when nobody answers; not what a remote says that refuses.
_UNREACHABLE = re.compile(
    r"could(?:n't| not) resolve|temporary failure in name resolution|name or service not "
    r"known|unable to look up"
    r"|failed to connect|unable to connect|couldn't connect|connection (?:refused|timed "
    r"out|reset|closed by)"
    r"|operation timed out|timeout was reached|network is (?:unreachable|down)|no route to "
    r"host|host is down",
    re.IGNORECASE,
)
#: Why a remote refuses a push that may pass after its own commits are merged.
_OVERTAKEN = re.compile(
    r"fetch first|non-fast-forward|stale info|needs force|cannot lock ref|failed to update "
    r"ref|reference already exists"
    r"|incorrect old value|remote ref updated since checkout",
    re.IGNORECASE,
)
#: What git runs to reach a remote. Named by a repository alone, it may have come with an archive.
_HELPERS = r"^(core\.(sshcommand|gitproxy|askpass)|credential\.(.*\.)?helper|remote\..*\.(uploadpack|receivepack|vcs))$"


class RemoteUnreachable(Exception):
    """The remote can't be reached; its words say why. It never leaves the package."""


class PushRejected(Exception):
    """Somebody else pushed first. It never leaves the package."""


def branch_of(git: Git) -> str:
    """The branch that is checked out. Raises GitFailed when there is none (a detached HEAD)."""
    answer = git.run("symbolic-ref", "--quiet", "--short", "HEAD", ok_codes=(0, 1))
    if answer.code:
        reason = (
            f"no branch is checked out in {git.directory}; check one out first: git switch BRANCH"
        )
        raise GitFailed(reason, command=["symbolic-ref", "HEAD"], words=answer.words)
    return answer.text


def remote_of(git: Git, branch: str) -> RemoteBranch | None:
    """The remote of a branch: the one it follows, else the only one there is; None when there is
    none.

    Raises:
        Refused: There are several, and it follows none; or the repository names programs of its own
            for them.
    """
    _ensure_own_helpers(git)
    name, merge = (
        git.run("config", "--get", f"branch.{branch}.{key}", ok_codes=(0, 1)).text
        for key in ("remote", "merge")
    )
    if name and merge and name != ".":
        return RemoteBranch(git, name, branch, merge, follows=True)
    there = git.run("remote").text.splitlines()
    if len(there) > 1 and name not in there:
        raise Refused(
            f"branch {branch} follows no branch of a remote, and there are several remotes "
            f"({', '.join(there)}); choose one with: git push -u REMOTE {branch}",
            path=git.directory,
        )
    if not there:
        return None
    return RemoteBranch(
        git, name if name in there else there[0], branch, f"refs/heads/{branch}", follows=False
    )


def _ensure_own_helpers(git: Git) -> None:
    """Raise Refused when the repository's own configuration names what git is to reach a remote
    with.
    """
    fields = git.run(
        "config", "-z", "--show-scope", "--name-only", "--get-regexp", _HELPERS, ok_codes=(0, 1)
    ).fields
    own = [
        name
        for scope, name in zip(fields[::2], fields[1::2], strict=True)
        if scope in ("local", "worktree")
    ]
    if own:
        raise Refused(
            "the repository's own configuration names a program for reaching remotes "
            f"({', '.join(own)}), which a sync does not run; if it is yours, set it in your "
            "own configuration (git config --global), or use git pull and git push",
            path=git.directory,
        )


@dataclass(frozen=True, slots=True)
class RemoteBranch:
    """The branch `ref` (`refs/heads/...`) of the remote `name`, and the `branch` here, which may
    follow it already.
    """

    git: Git
    name: str
    branch: str
    ref: str
    follows: bool

    def __str__(self) -> str:
        return f"{self.name}/{self.ref.removeprefix('refs/heads/')}"

    def tip(self) -> str | None:
        """The commit of the branch there, which git then has too; None: no such branch. Raises
        Offline, GitFailed.
        """
        lines = self._ask("ls-remote", "--quiet", self.name, self.ref).splitlines()
        tip = next((line.split("\t")[0] for line in lines if line.endswith(f"\t{self.ref}")), None)
        if tip is not None and not self._has(tip):
            self._ask("fetch", "--quiet", self.name, self.ref)
            if not self._has(tip):  # It was removed there in between.
                return self.tip()
        return tip

    def push(self) -> None:
        """Push, and follow the branch from then on. Raises Rejected, Offline, GitFailed."""
        follow = () if self.follows else ("--set-upstream",)
        try:
            self._ask(
                "push",
                "--quiet",
                "--porcelain",
                *follow,
                self.name,
                f"refs/heads/{self.branch}:{self.ref}",
            )
        except GitFailed as error:
            if _OVERTAKEN.search(error.words):
                raise PushRejected from error
            raise

    def _has(self, commit: str) -> bool:
        return (
            self.git.run("cat-file", "-e", f"{commit}^{{commit}}", ok_codes=(0, 1, 128)).code == 0
        )

    def _ask(self, *command: str) -> str:
        answer = self.git.run(*command, ok_codes=range(256))
        if answer.code == 0:
            return answer.text
        # `push --porcelain` says on standard output which branch was refused, and why; and then
        # that it is done.
        out = answer.out.strip().removesuffix(b"\nDone")
        words = (
            b"\n".join(part.strip() for part in (out, answer.err))
            .decode("utf-8", "replace")
            .strip()
        )
        if _UNREACHABLE.search(words) or self._is_unmounted():
            raise RemoteUnreachable(words)
        reason = f"git {command[0]} failed with {self.name}: {words or f'exit code {answer.code}'}"
        raise GitFailed(reason, command=list(command), words=words)

    def _is_unmounted(self) -> bool:
        """Whether the remote is a directory that isn't there now, as on a disk that was removed."""
        url = self.git.run("remote", "get-url", self.name, ok_codes=(0, 1, 2, 128)).text
        if url.startswith("file://"):
            url = unquote(urlsplit(url).path)
        elif "://" in url or re.match(r"[^/]+:", url):
            return False
        return bool(url) and not os.path.exists(os.path.join(self.git.directory, url))


#: How often somebody may push first. Each time there is less left to do.
_TRIES = 10
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0


@dataclass(slots=True)
class SyncResult:
    """What a sync did.

    Attributes:
        committed: The commit of what was here.
        remote: The branch it was exchanged with, as `origin/main`; empty: there is none.
        offline: Why the remote could not be reached; empty: it was.
        received: How many commits came.
        merged: The merge's name, where both sides had gone on.
        applied: What came into the worktree, each time that something came.
        kept: Documents that one side deleted and the other changed, by their paths; they are kept.
        notes: What merging decided besides, in words.
        pushed: How many commits went.
        tries: How often it took.
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
        """What `--json` prints."""
        plain = {
            name: getattr(self, name) for name in ("received", "kept", "notes", "pushed", "tries")
        }
        texts = {name: getattr(self, name) or None for name in ("remote", "offline", "merged")}
        applied = [applied.as_json() for applied in self.applied]
        return {"committed": self.committed.as_json(), **texts, **plain, "applied": applied}


def sync(
    operation: Operation, message: str | None = None, *, unrelated: bool = False
) -> SyncResult:
    """Commit, merge what the remote has, and push, again if somebody else pushed first."""
    branch = branch_of(operation.git)
    synced = SyncResult(commit(operation, message))
    remote = remote_of(operation.git, branch)
    if remote is None:
        return synced
    synced.remote = str(remote)
    try:
        while not _exchange(operation, remote, synced, unrelated=unrelated):
            wait_s = min(_FIRST_WAIT_S * 2**synced.tries, _LONGEST_WAIT_S)
            time.sleep(wait_s * random.random())
    except RemoteUnreachable as error:
        synced.offline = str(error)
    return synced


def _exchange(
    operation: Operation, remote: RemoteBranch, synced: SyncResult, *, unrelated: bool
) -> bool:
    """Take what is there and give what is here; False when somebody else pushed meanwhile."""
    git = operation.git
    synced.tries += 1
    operation.progress("fetch", 0, 0)
    theirs, ours = remote.tip(), git.head()
    ahead, behind = _apart(git, ours, theirs)
    if theirs is not None and behind:
        ours = _receive(operation, remote, ours, theirs, synced, ahead, unrelated=unrelated)
        synced.received += behind
        ahead, _ = _apart(git, ours, theirs)
    if not ahead:
        return True
    operation.progress("push", 0, 0)
    try:
        remote.push()
    except PushRejected as error:
        if synced.tries < _TRIES:
            return False
        reason = (
            f"others pushed to {remote} first, {_TRIES} times in a row; the local changes are "
            "committed; sync again"
        )
        raise GitFailed(reason, command=["push"], words=str(error.__cause__)) from error
    synced.pushed += ahead
    return True


def _receive(
    operation: Operation,
    remote: RemoteBranch,
    ours: str | None,
    theirs: str,
    synced: SyncResult,
    ahead: int,
    *,
    unrelated: bool,
) -> str:
    """Bring what is there into the worktree, merged with what is here; the commit that HEAD then
    names.
    """
    new, merge = theirs, None
    if ours is not None and ahead:
        operation.progress("merge", 0, 0)
        there = remote.ref.removeprefix("refs/heads/")
        by_hand = f"git -C {operation.repository.top} pull --no-rebase {remote.name} {there}"
        merge = merge_commits(operation, ours, theirs, by_hand, unrelated=unrelated)
        new = _commit_of(operation, remote, merge, ours, theirs)
    synced.applied.append(apply(operation, ours, new, f"capsule sync: {remote}"))
    if merge is not None:
        synced.merged = new
        synced.kept += merge.kept
        synced.notes += merge.notes
    return new


def _commit_of(
    operation: Operation, remote: RemoteBranch, merge: MergedCommits, ours: str, theirs: str
) -> str:
    """The commit of a merge; signed where its person signs commits. It runs no hook, as nobody
    wrote anything.
    """
    git = operation.git
    lines = [f"Merge {remote}", ""]
    lines += [
        f"{path}: both sides changed the same, and a person must resolve the conflict"
        for path in merge.disputed
    ]
    lines += [
        f"{path} was deleted on one side and changed on the other; it is kept"
        for path in merge.kept
    ]
    signs = (
        git.run("config", "--type=bool", "--get", "commit.gpgSign", ok_codes=(0, 1)).text == "true"
    )
    text = ("\n".join(lines).strip() + "\n").encode("utf-8", "surrogateescape")
    signing = ("-S",) if signs else ()
    return git.run("commit-tree", *signing, "-p", ours, "-p", theirs, merge.tree, input=text).text


def _apart(git: Git, ours: str | None, theirs: str | None) -> tuple[int, int]:
    """How many commits each of two has that the other hasn't."""
    if ours and theirs:
        left, right = git.run(
            "rev-list", "--left-right", "--count", f"{ours}...{theirs}"
        ).text.split()
        return int(left), int(right)
    left, right = (
        git.run("rev-list", "--count", side).text if side else "0" for side in (ours, theirs)
    )
    return int(left), int(right)
