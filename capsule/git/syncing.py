"""Syncing: what is here committed, what is there merged, what is here pushed, until both have the same.

What must stay true: a remote that can't be reached is no error, and costs nothing but the exchange; a merge is there
whole or not at all, and never waits half done for a person; one who pushed first is merged, and never overwritten; and
a sync that was interrupted anywhere is finished by the next one.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import Any

from capsule.errors import GitFailed
from capsule.git.applying import Applied, apply
from capsule.git.committing import Committed, commit, head_of
from capsule.git.joining import Joined, join
from capsule.git.remotes import Offline, Rejected, Remote, branch_of, remote_of
from capsule.git.turns import Turn

__all__ = ["Synced", "sync"]

#: How often somebody may push first. Each time there is less left to do, so that it takes many to lose to.
_TRIES = 10
_FIRST_WAIT_S = 0.05
_LONGEST_WAIT_S = 2.0


@dataclass(slots=True)
class Synced:
    """What a sync came to.

    Attributes:
        committed: The commit of what was here.
        remote: The branch it was exchanged with, as `origin/main`; empty: there is none.
        offline: Why the remote could not be reached; empty: it was.
        received: How many commits came.
        merged: The merge's name, where both sides had gone on.
        applied: What came into the worktree, one for each time that something came.
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
        return {
            "committed": self.committed.as_json(),
            "remote": self.remote or None,
            "offline": self.offline or None,
            "received": self.received,
            "merged": self.merged or None,
            "applied": [applied.as_json() for applied in self.applied],
            "kept": self.kept,
            "notes": self.notes,
            "pushed": self.pushed,
            "tries": self.tries,
        }


def sync(turn: Turn, message: str | None = None, *, unrelated: bool = False) -> Synced:
    """Commit, merge what the remote has, and push, again if somebody else pushed first.

    Args:
        turn: The turn.
        message: As `commit` takes it.
        unrelated: Whether the remote's history may have nothing in common with the one here.

    Raises:
        GitFailed: No branch is checked out; git or the remote refused; or something is left to a person, as the message
            says. What was committed stays committed, and nothing else was changed.
        InvalidDocument, Refused, StoreBusy, StorageFailed: As `commit` and `apply`.
    """
    branch = branch_of(turn.git)
    synced = Synced(commit(turn, message))
    remote = remote_of(turn.git, branch)
    if remote is None:
        return synced
    synced.remote = str(remote)
    try:
        while not _exchanged(turn, remote, synced, unrelated=unrelated):
            wait_s = min(_FIRST_WAIT_S * 2**synced.tries, _LONGEST_WAIT_S)
            time.sleep(wait_s * random.random())
    except Offline as error:
        synced.offline = str(error)
    return synced


def _exchanged(turn: Turn, remote: Remote, synced: Synced, *, unrelated: bool) -> bool:
    """Take what is there and give what is here; False when somebody else pushed meanwhile."""
    git = turn.git
    synced.tries += 1
    turn.told("fetch", 0, 0)
    theirs, ours = remote.tip(), head_of(turn)
    if theirs is not None and not (ours and _is_in(turn, theirs, ours)):
        ours = _taken(turn, remote, ours, theirs, synced, unrelated=unrelated)
    if ours is None or ours == theirs:
        return True
    turn.told("push", 0, 0)
    beyond = [ours] if theirs is None else [f"{theirs}..{ours}"]
    try:
        remote.push()
    except Rejected as error:
        if synced.tries < _TRIES:
            return False
        what = f"others kept pushing to {remote} first, {_TRIES} times; what is here is committed; sync again"
        raise GitFailed(what, command=["push"], words=str(error.__cause__)) from error
    synced.pushed += int(git.run("rev-list", "--count", *beyond).text)
    return True


def _taken(turn: Turn, remote: Remote, ours: str | None, theirs: str, synced: Synced, *, unrelated: bool) -> str:
    """Bring what is there into the worktree, merged with what is here; the commit that HEAD then names."""
    git = turn.git
    new, why = theirs, f"capsule sync: {remote}"
    received = int(git.run("rev-list", "--count", theirs, *([f"^{ours}"] if ours else [])).text)
    joined = None
    if ours is not None and not _is_in(turn, ours, theirs):
        turn.told("merge", 0, 0)
        there = remote.ref.removeprefix("refs/heads/")
        by_hand = f"git -C {turn.repository.top} pull --no-rebase {remote.name} {there}"
        joined = join(turn, ours, theirs, by_hand, unrelated=unrelated)
        new = _commit_of(turn, remote, joined, ours, theirs)
    applied = apply(turn, ours, new, why)
    synced.received += received
    synced.applied.append(applied)
    if joined is not None:
        synced.merged = new
        synced.kept += joined.kept
        synced.notes += joined.notes
    return new


def _commit_of(turn: Turn, remote: Remote, joined: Joined, ours: str, theirs: str) -> str:
    """The commit of a merge; signed where its person signs commits. It runs no hook, as nobody wrote anything."""
    git = turn.git
    said = [f"Merge {remote}", ""]
    said += [f"{path}: both sides changed the same, see: capsule git conflicts" for path in joined.disputed]
    said += [f"{path} was deleted on one side and changed on the other, and is kept" for path in joined.kept]
    signs = git.run("config", "--type=bool", "--get", "commit.gpgSign", fine=(0, 1)).text == "true"
    text = ("\n".join(said).strip() + "\n").encode("utf-8", "surrogateescape")
    signing = ("-S",) if signs else ()
    return git.run("commit-tree", *signing, "-p", ours, "-p", theirs, joined.tree, input=text).text


def _is_in(turn: Turn, commit: str, other: str) -> bool:
    """Whether a commit is another one, or an ancestor of it."""
    return turn.git.run("merge-base", "--is-ancestor", commit, other, fine=(0, 1)).code == 0
