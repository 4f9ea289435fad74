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
    }


def _server_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.context import servers

    return {
        "mcp servers list": servers.list_,
        "mcp servers set": servers.set_,
        "mcp servers toggle": servers.toggle,
        "mcp servers remove": servers.remove,
    }


ROOM = Room(
    "context",
    commands={
        (
            "context capture, context check, context show, context diff, context clear"
        ): _context_commands,
        (
            "mcp servers list, mcp servers set, mcp servers toggle, mcp servers remove"
        ): _server_commands,
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
