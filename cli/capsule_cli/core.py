"""What the core has of commands, as a room says it. What must stay true: nothing is imported for
it.
"""

from __future__ import annotations

from capsule import rooms

#: The help of the core's commands by topic: the commands, and what they do.
HELP: dict[str, tuple[tuple[str, str], ...]] = {
    "Write and read": (
        ("new, append", "Start a conversation, or add a message."),
        ("list (ls), show (cat)", "List the conversations, or print one."),
        ("search", "Find messages and titles by their words."),
        ("watch", "Report changes as they happen."),
        ("edit, set", "Change a text, or the title, tags and place."),
        ("delete (rm), restore", "Move to the trash, or bring back from it."),
        ("trash, lock", "List or empty the trash; hold a conversation."),
    ),
    "Branch and carry on": (
        ("branch", "Switch, regenerate, fork and trim branches."),
        ("summarize", "Keep a summary of a conversation."),
    ),
    "Talk to each other": (),
    "Work together": (("mcp", "Serve the store to AI agents."),),
    "Look after the store": (
        ("init, copy", "Make a store, or copy one into another."),
        ("store (doctor)", "Examine, mend, count, validate and migrate."),
    ),
}

#: What the core has, as a room says it.
CORE = rooms.Room(
    "core",
    package="capsule_cli.commands",
    commands={
        "conversations": "new, list",
        "append": "append",
        "reading.show": "show",
        "reading.search": "search, store stats, store reindex",
        "reading.watch": "watch",
        "reading.summaries": "summarize",
        "edit": "edit",
        "heads": "set",
        "locks": "lock list, lock take, lock release",
        "trash": "delete, restore, trash list, trash purge",
        "branches": "branch list, branch switch, branch regenerate, branch fork, branch trim",
        "mcp.server": "mcp serve",
        "mcp.clients": "mcp install, mcp uninstall, mcp doctor",
        "mcp.tokens": "mcp tokens list, mcp tokens add, mcp tokens revoke",
        "copying": "copy",
        "maintenance": "init, store show, store settings, store doctor",
        "files": "store validate, store migrate, store schema",
        "demo.demo": "store demo",
        "help": "help",
    },
    groups={
        "lock": "Hold a conversation for yourself, and see who holds which.",
        "trash": "See what was deleted, and remove it for good.",
        "branch": "Choose among the branches of a conversation, put one beside another, or copy "
        "one out.",
        "mcp": "Serve the store to AI agents by the Model Context Protocol, and connect programs "
        "to it.",
        "mcp tokens": "Decide who may use the MCP server over HTTP.",
        "store": "See which store is used, examine it, and keep it well.",
    },
    help=tuple(
        (topic, 10 * n, *line) for topic, lines in HELP.items() for n, line in enumerate(lines, 1)
    ),
)


def room_of(command: str) -> rooms.Room | None:
    """The room that comes with Capsule, or the core, that has a command or a group; None: none has.

    Raises Refused: the room is not installed.
    """
    in_core = any(f"{name} ".startswith(f"{command} ") for name in CORE.modules())
    return CORE if in_core else rooms.of_command(command)
