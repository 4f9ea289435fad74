"""What this room adds."""

from __future__ import annotations

from capsule.rooms import Room

ROOM = Room(
    "sessions",
    kinds=("sessions",),
    objects={"sessions": "capsule.sessions.sessions:Sessions"},
    package="capsule_cli.commands.sessions",
    commands={
        "session": "worker list, worker show, worker set, worker wire, worker unwire, worker "
        "allow, worker forbid, "
        "worker webhook, worker why, worker pause, worker resume, worker retry, worker cancel",
        "worker": "worker run",
        "host": "worker host, worker status",
    },
    groups={"worker": "Answer messages with programs, and see what becomes of each message."},
    help=(("Talk to each other", 60, "worker", "Answer messages with programs."),),
    keepers={"sessions": "compact"},
    bind="capsule.sessions.work.toolkit:bind",
    tools={"session": "capsule.sessions.tools:SESSION"},
)
