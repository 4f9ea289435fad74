"""What the core has of commands, as a room says it. What must stay true: nothing is imported for it."""

from __future__ import annotations

from capsule import rooms

#: The help of the core's commands by topic: the commands, and what they do.
HELP: dict[str, tuple[tuple[str, str], ...]] = {
    "Write and read": (
        ("new", "Start a conversation and print its id."),
        ("append", "Add a message and print its id."),
        ("show (cat)", "Print a conversation."),
        ("list (ls)", "List the conversations, the latest first."),
        ("search", "Find messages and titles by their words."),
        ("tail, watch, events", "Follow a conversation, or all that changes."),
        ("edit", "Change a conversation or message in your editor."),
    ),
    "Order and remove": (
        ("rename, tag, pin, archive, set", "Change the title, tags or the place in lists."),
        ("delete (rm)", "Move conversations or messages to the trash."),
        ("trash, restore, purge", "List the trash, bring back from it, or empty it."),
        ("lock, unlock, locks", "Hold a conversation for yourself, or let it go."),
    ),
    "Branch and carry on": (
        ("switch, regenerate", "Choose a branch, or put another answer beside."),
        ("fork, trim", "Copy a branch out, or remove all but one."),
        ("summarize, transcript", "Keep a summary, or print what a model can read."),
    ),
    "Talk to each other": (),
    "Work together": (("mcp, tokens", "Serve the store to AI agents, and admit them."),),
    "Look after the store": (
        ("init, demo", "Make a store, or one that shows the main job."),
        ("doctor", "Examine every file, and mend what can be mended."),
        ("validate, migrate, schema", "Check files, update them, or print the format."),
        ("stats, reindex", "Count what is there, or build the index anew."),
    ),
}

#: What the core has, as a room says it.
CORE = rooms.Room(
    "core",
    package="capsule_cli.commands",
    commands={
        "conversations": "new list",
        "append": "append",
        "reading.show": "show",
        "reading.search": "search stats reindex",
        "reading.watch": "tail watch events",
        "reading.summaries": "summarize transcript",
        "edit": "edit",
        "heads": "rename tag pin archive set lock unlock locks",
        "trash": "delete trash restore purge",
        "branches": "switch regenerate fork trim",
        "mcp.server": "mcp",
        "mcp.tokens": "tokens",
        "maintenance": "init doctor validate migrate schema",
        "demo.demo": "demo",
        "help": "help",
    },
    groups={"mcp": {"mcp.clients": "install uninstall doctor"}, "tokens": {"mcp.tokens": "add list revoke"}},
    help=tuple((topic, 10 * n, *line) for topic, lines in HELP.items() for n, line in enumerate(lines, 1)),
)

#: Names that hands know from elsewhere.
ALIASES = {"ls": "list", "cat": "show", "rm": "delete"}
