"""What this room adds."""

from __future__ import annotations

from capsule.rooms import Room

ROOM = Room(
    "sessions",
    kinds=("sessions",),
    objects={"sessions": "capsule.sessions.sessions:Sessions"},
    package="capsule_cli.commands.sessions",
    commands={"session": "session", "host": "host", "worker": "worker"},
    groups={
        "host": {"host": "status"},
        "session": {"session": "list show why pause resume retry cancel agent wire unwire allow forbid webhook"},
    },
    help=(("Talk to each other", 60, "session, host, worker", "Let messages wake programs that answer them."),),
    keepers={"sessions": "compact"},
    bind="capsule.sessions.work.toolkit:bind",
    tools={"session": "capsule.sessions.tools:SESSION"},
)
