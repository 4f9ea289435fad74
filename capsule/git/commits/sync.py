"""Syncing: commit what is here, merge what the remote has, and push, until both have the same.

What must stay true: a remote that can't be reached is no error, and costs nothing but the exchange; a merge is made
whole or not at all, and never waits half done for a person; what somebody else pushed first is merged, and never
overwritten; and the next sync finishes one that was interrupted anywhere.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from capsule.errors import GitFailed
from capsule.git.commits.commit import Committed, commit
from capsule.git.commits.merge import CommitMerge, merge_commits
from capsule.git.commits.operation import Operation
from capsule.git.commits.remote import Offline, Rejected, Remote, branch_of, remote_of
from capsule.git.commits.worktree import Applied, apply
from capsule.git_program import Git

#: How often somebody may push first. Each time there is less left to do.
_TRIES = 10
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0


@dataclass(slots=True)
class Synced:
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

    committed: Committed = field(default_factory=Committed)
    remote: str = ""
    offline: str = ""
    received: int = 0
    merged: str = ""
    applied: list[Applied] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pushed: int = 0
    tries: int = 0

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        plain = {name: getattr(self, name) for name in ("received", "kept", "notes", "pushed", "tries")}
        texts = {name: getattr(self, name) or None for name in ("remote", "offline", "merged")}
        applied = [applied.as_json() for applied in self.applied]
        return {"committed": self.committed.as_json(), **texts, **plain, "applied": applied}


def sync(operation: Operation, message: str | None = None, *, unrelated: bool = False) -> Synced:
    """Commit, merge what the remote has, and push, again if somebody else pushed first."""
    branch = branch_of(operation.git)
    synced = Synced(commit(operation, message))
    remote = remote_of(operation.git, branch)
    if remote is None:
        return synced
    synced.remote = str(remote)
    try:
        while not _exchange(operation, remote, synced, unrelated=unrelated):
            wait_s = min(_FIRST_WAIT_S * 2**synced.tries, _LONGEST_WAIT_S)
            time.sleep(wait_s * random.random())
    except Offline as error:
        synced.offline = str(error)
    return synced


def _exchange(operation: Operation, remote: Remote, synced: Synced, *, unrelated: bool) -> bool:
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
    except Rejected as error:
        if synced.tries < _TRIES:
            return False
        reason = f"others kept pushing to {remote} first, {_TRIES} times; what is here is committed; sync again"
        raise GitFailed(reason, command=["push"], words=str(error.__cause__)) from error
    synced.pushed += ahead
    return True


def _receive(
    operation: Operation, remote: Remote, ours: str | None, theirs: str, synced: Synced, ahead: int, *, unrelated: bool
) -> str:
    """Bring what is there into the worktree, merged with what is here; the commit that HEAD then names."""
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


def _commit_of(operation: Operation, remote: Remote, merge: CommitMerge, ours: str, theirs: str) -> str:
    """The commit of a merge; signed where its person signs commits. It runs no hook, as nobody wrote anything."""
    git = operation.git
    lines = [f"Merge {remote}", ""]
    lines += [f"{path}: both sides changed the same, which is to be settled" for path in merge.disputed]
    lines += [f"{path} was deleted on one side and changed on the other, and is kept" for path in merge.kept]
    signs = git.run("config", "--type=bool", "--get", "commit.gpgSign", fine=(0, 1)).text == "true"
    text = ("\n".join(lines).strip() + "\n").encode("utf-8", "surrogateescape")
    signing = ("-S",) if signs else ()
    return git.run("commit-tree", *signing, "-p", ours, "-p", theirs, merge.tree, input=text).text


def _apart(git: Git, ours: str | None, theirs: str | None) -> tuple[int, int]:
    """How many commits each of two has that the other hasn't."""
    if ours and theirs:
        left, right = git.run("rev-list", "--left-right", "--count", f"{ours}...{theirs}").text.split()
        return int(left), int(right)
    left, right = (git.run("rev-list", "--count", side).text if side else "0" for side in (ours, theirs))
    return int(left), int(right)
