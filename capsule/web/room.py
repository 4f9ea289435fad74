"""What this room adds."""

from __future__ import annotations

from capsule.rooms import Room

ROOM = Room(
    "web",
    package="capsule_cli.commands.web",
    commands={"web": "web"},
    help=(("Write and read", 45, "web", "Open the store in a browser."),),
)
