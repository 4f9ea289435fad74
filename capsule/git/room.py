"""What this room adds."""

from __future__ import annotations

from capsule.rooms import Room

ROOM = Room(
    "git",
    package="capsule_cli.commands.git",
    commands={
        "clone": "git setup, git teardown, git status",
        "sync": "git commit, git sync",
        "history": "git log, git diff, git restore",
        "conflicts": "git resolve",
    },
    groups={
        "git": "Keep a store in git: merges by message, diffs that read like a chat, commits "
        "without locks."
    },
    clone="capsule.git:open",
    past_of="capsule_cli.commands.git.history:past_of",
    help=(("Work together", 5, "git", "Commit, sync, compare and restore with git."),),
)
