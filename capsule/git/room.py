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
    from capsule_cli.commands.git import history

    return history.past_of(store, id, at, announce=announce)


def _clone_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.git import clone

    return {
        "git setup": clone.setup,
        "git teardown": clone.teardown,
        "git status": clone.status,
    }


def _sync_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.git import sync

    return {
        "git commit": sync.commit,
        "git sync": sync.sync,
    }


def _history_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.git import history

    return {
        "git log": history.log,
        "git diff": history.diff,
        "git restore": history.restore,
    }


def _conflict_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.git import conflicts

    return {
        "git resolve": conflicts.resolve,
    }


ROOM = Room(
    "git",
    commands={
        "git setup, git teardown, git status": _clone_commands,
        "git commit, git sync": _sync_commands,
        "git log, git diff, git restore": _history_commands,
        "git resolve": _conflict_commands,
    },
    groups={
        "git": "Keep a store in git: merges by message, diffs that read like a chat, commits "
        "without locks."
    },
    help=(("Work together", 5, "git", "Commit, sync, compare and restore with git."),),
    open_clone=_open_clone,
    past_version=_past_version,
)
