"""What this room adds."""

from __future__ import annotations

from capsule.rooms import Room

ROOM = Room(
    "git",
    package="capsule_cli.commands.git",
    commands={"clone": "git"},
    groups={
        "git": {
            "clone": "setup teardown status",
            "sync": "commit autocommit sync",
            "history": "log diff restore",
            "conflicts": "conflicts resolve",
        }
    },
    clone="capsule.git:open",
    past_of="capsule_cli.commands.git.history:past_of",
    help=(("Work together", 5, "git", "Commit, sync, compare and restore with git."),),
)
