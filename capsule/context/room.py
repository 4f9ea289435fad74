"""What this room adds."""

from __future__ import annotations

from capsule.rooms import Room

ROOM = Room(
    "context",
    package="capsule_cli.commands.context",
    commands={
        "context": "context capture, context check, context show, context diff, context clear",
        "servers": "mcp servers list, mcp servers set, mcp servers toggle, mcp servers remove",
    },
    groups={
        "context": "Attach a snapshot of a project to a conversation, and check whether the "
        "project has changed since.",
        "mcp servers": """Switch MCP servers on or off for one conversation.

        A server that is not named keeps its default. @next stands for the next new conversation. It takes over what
        was set for it, once.
        """,
    },
    help=(
        ("Branch and carry on", 20, "context", "Attach a project as context, and see its drift."),
    ),
)
