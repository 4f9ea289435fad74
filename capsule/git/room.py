"""The room of git: its commands, and the functions with which the core reads past versions.

A room is a part of Capsule that can be left out (see `capsule.rooms`). The keys of `commands` name
the commands of each group before the functions are called, so both must be the same. Every function
imports what it names, so that listing a room loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from capsule.rooms import Command, Room

if TYPE_CHECKING:
    from capsule.git.clone import Clone
    from capsule.git.history import PastVersion
    from capsule.store.store import CoreStore


def _open_clone(store: CoreStore) -> Clone:
    from capsule import git

    return git.open(store)


def _past_version(store: CoreStore, id: str, at: str, *, announce: bool) -> PastVersion:
    from capsule_cli.commands.git import git

    return git.past_of(store, id, at, announce=announce)


def _git_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.git import git

    return {
        "git setup": git.setup,
        "git teardown": git.teardown,
        "git status": git.status,
        "git commit": git.commit,
        "git sync": git.sync,
        "git log": git.log,
        "git diff": git.diff,
        "git restore": git.restore,
        "git resolve": git.resolve,
    }


ROOM = Room(
    "git",
    commands={
        (
            "git setup, git teardown, git status, git commit, git sync, git log, git diff, "
            "git restore, git resolve"
        ): _git_commands,
    },
    groups={
        "git": "Keep a store in git: merges by message, diffs that read like a chat, commits "
        "without locks."
    },
    help=(("Work together", 5, "git", "Commit, sync, compare and restore with git."),),
    open_clone=_open_clone,
    past_version=_past_version,
)
