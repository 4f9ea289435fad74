"""The commands of the core, described like those of a room (`capsule.rooms.Room`).

What must stay true: this module imports no command. Each function imports the commands that it
returns.
"""

from __future__ import annotations

from collections.abc import Mapping

from capsule import rooms
from capsule.rooms import Command

#: The help of the core's commands by topic: the commands, and what they do.
HELP: dict[str, tuple[tuple[str, str], ...]] = {
    "Write and read": (
        ("new, append", "Start a conversation, or add a message."),
        ("list (ls), show (cat)", "List the conversations, or print one."),
        ("search", "Find messages and titles by their words."),
        ("watch", "Report changes as they happen."),
        ("edit, set", "Change a text, or the title, tags and flags."),
        ("delete (rm), restore", "Move to the trash, or restore from it."),
        ("trash, lock", "List or empty the trash; lock a conversation."),
    ),
    "Branch and carry on": (
        ("branch", "Switch, regenerate, fork and trim branches."),
        ("summarize", "Keep a summary of a conversation."),
    ),
    "Talk to each other": (),
    "Work together": (("mcp", "Serve the store to AI agents."),),
    "Look after the store": (
        ("init, copy", "Make a store, or copy one into another."),
        ("store (doctor)", "Examine, repair, count, validate and migrate."),
    ),
}


def _conversation_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import conversations

    return {
        "new": conversations.new,
        "list": conversations.list_,
        "set": conversations.set_,
    }


def _append_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import append

    return {
        "append": append.append,
    }


def _show_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import reading

    return {
        "show": reading.show,
    }


def _search_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import search

    return {
        "search": search.search,
        "store stats": search.stats,
        "store reindex": search.reindex,
    }


def _watch_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import reading

    return {
        "watch": reading.watch,
        "summarize": reading.summarize,
    }


def _change_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import changes

    return {
        "edit": changes.edit,
        "lock list": changes.lock_list,
        "lock take": changes.lock_take,
        "lock release": changes.lock_release,
        "delete": changes.delete,
        "restore": changes.restore,
        "trash list": changes.trash_list,
        "trash purge": changes.trash_purge,
        "branch list": changes.branch_list,
        "branch switch": changes.branch_switch,
        "branch regenerate": changes.branch_regenerate,
        "branch fork": changes.branch_fork,
        "branch trim": changes.branch_trim,
    }


def _mcp_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import mcp

    return {
        "mcp serve": mcp.serve,
        "mcp install": mcp.install,
        "mcp uninstall": mcp.uninstall,
        "mcp doctor": mcp.doctor,
        "mcp tokens list": mcp.tokens_list,
        "mcp tokens add": mcp.tokens_add,
        "mcp tokens revoke": mcp.tokens_revoke,
    }


def _store_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import store

    return {
        "copy": store.copy,
        "init": store.init,
        "store show": store.show,
        "store settings": store.settings,
        "store doctor": store.doctor,
        "store validate": store.validate,
        "store migrate": store.migrate,
        "store schema": store.schema,
    }


def _demo_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.demo import demo

    return {
        "store demo": demo.demo,
    }


def _help_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import help

    return {
        "help": help.help_,
    }


#: The core, described like a room.
CORE = rooms.Room(
    "core",
    commands={
        "new, list, set": _conversation_commands,
        "append": _append_commands,
        "show": _show_commands,
        "search, store stats, store reindex": _search_commands,
        "watch, summarize": _watch_commands,
        (
            "edit, lock list, lock take, lock release, delete, restore, trash list, trash purge, "
            "branch list, branch switch, branch regenerate, branch fork, branch trim"
        ): _change_commands,
        (
            "mcp serve, mcp install, mcp uninstall, mcp doctor, mcp tokens list, mcp tokens add, "
            "mcp tokens revoke"
        ): _mcp_commands,
        (
            "copy, init, store show, store settings, store doctor, store validate, "
            "store migrate, store schema"
        ): _store_commands,
        "store demo": _demo_commands,
        "help": _help_commands,
    },
    groups={
        "lock": "Lock a conversation, release it, and list the locks.",
        "trash": "List deleted conversations and messages, and remove them permanently.",
        "branch": "Switch, add, copy and remove branches of a conversation.",
        "mcp": "Serve the store to AI agents over the Model Context Protocol, and connect "
        "programs to it.",
        "mcp tokens": "Make, list and revoke the tokens of the MCP server over HTTP.",
        "store": "Show which store is used, examine it, and maintain it.",
    },
    help=tuple(
        (topic, 10 * number, *line)
        for topic, lines in HELP.items()
        for number, line in enumerate(lines, 1)
    ),
)


def room_of(command: str) -> rooms.Room | None:
    """Return the core or the built-in room that has a command or a group. None: neither has.

    Raises Refused: the room is not installed.
    """
    for name in CORE.command_names():
        if f"{name} ".startswith(f"{command} "):
            return CORE
    return rooms.of_command(command)
