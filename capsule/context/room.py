"""What this room adds."""

from __future__ import annotations

from capsule.rooms import Room

ROOM = Room(
    "context",
    package="capsule_cli.commands.context",
    commands={"context": "context", "servers": "servers"},
    groups={"context": {"context": "capture check show diff clear"}, "servers": {"servers": "list set toggle remove"}},
    help=(("Branch and carry on", 40, "context, servers", "Attach a project as context; switch servers."),),
)
