"""Contexts of projects as a room: its commands.

Every function imports what it names, so that listing a room loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from capsule.rooms import Command, Room


def _context_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.context import context

    return {
        "context capture": context.capture,
        "context check": context.check,
        "context show": context.show,
        "context diff": context.diff,
        "context clear": context.clear,
        "mcp servers list": context.servers_list,
        "mcp servers set": context.servers_set,
        "mcp servers toggle": context.servers_toggle,
        "mcp servers remove": context.servers_remove,
    }


ROOM = Room(
    "context",
    commands={
        (
            "context capture, context check, context show, context diff, context clear, "
            "mcp servers list, mcp servers set, mcp servers toggle, mcp servers remove"
        ): _context_commands,
    },
    groups={
        "context": "Attach a snapshot of a project to a conversation, and check whether the "
        "project has changed since.",
        "mcp servers": """Switch MCP servers on or off for one conversation.

        A server that is not named keeps its default. @next means the next new conversation, which
        takes over these settings once.
        """,
    },
    help=(
        ("Branch and carry on", 20, "context", "Attach a project as context, and show its drift."),
    ),
)
