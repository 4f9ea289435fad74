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
    from capsule_cli.commands.reading import show

    return {
        "show": show.show,
    }


def _search_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.reading import search

    return {
        "search": search.search,
        "store stats": search.stats,
        "store reindex": search.reindex,
    }


def _watch_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.reading import watch

    return {
        "watch": watch.watch,
    }


def _summary_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.reading import summaries

    return {
        "summarize": summaries.summarize,
    }


def _edit_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import edit

    return {
        "edit": edit.edit,
    }


def _lock_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import locks

    return {
        "lock list": locks.list_,
        "lock take": locks.take,
        "lock release": locks.release,
    }


def _trash_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import trash

    return {
        "delete": trash.delete,
        "restore": trash.restore,
        "trash list": trash.list_,
        "trash purge": trash.purge,
    }


def _branch_commands() -> Mapping[str, Command]:
    from capsule_cli.commands import branches

    return {
        "branch list": branches.list_,
        "branch switch": branches.switch,
        "branch regenerate": branches.regenerate,
        "branch fork": branches.fork,
        "branch trim": branches.trim,
    }


def _server_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.mcp import server

    return {
        "mcp serve": server.serve,
    }


def _client_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.mcp import clients

    return {
        "mcp install": clients.install,
        "mcp uninstall": clients.uninstall,
        "mcp doctor": clients.doctor,
    }


def _token_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.mcp import tokens

    return {
        "mcp tokens list": tokens.list_,
        "mcp tokens add": tokens.add,
        "mcp tokens revoke": tokens.revoke,
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
        "watch": _watch_commands,
        "summarize": _summary_commands,
        "edit": _edit_commands,
        "lock list, lock take, lock release": _lock_commands,
        "delete, restore, trash list, trash purge": _trash_commands,
        (
            "branch list, branch switch, branch regenerate, branch fork, branch trim"
        ): _branch_commands,
        "mcp serve": _server_commands,
        "mcp install, mcp uninstall, mcp doctor": _client_commands,
        "mcp tokens list, mcp tokens add, mcp tokens revoke": _token_commands,
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
