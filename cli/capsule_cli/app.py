"""The program `capsule`: its commands by name, its help, and the one boundary between their errors and the terminal.

What must stay true: the help of the whole program fits one screen, and costs the import of no command.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import typer

from capsule.errors import CapsuleError, NotFound
from capsule_cli.boundary import BROKEN_PIPE, ensure_streams, is_nowhere, report, report_error
from capsule_cli.framework import CapsuleGroup, Commands, program_of
from capsule_cli.shared import options  # It gives every command the options that all have, too.
from capsule_cli.shared.asked import asked
from capsule_cli.shared.output import Stopped, answer, quiet_stdout

#: The help: topics, and beneath them commands with their module and what they do.
HELP: dict[str, tuple[tuple[str, str, str], ...]] = {
    "Write and read": (
        ("conversations", "new", "Start a conversation and print its id."),
        ("append", "append", "Add a message and print its id."),
        ("reading.show", "show (cat)", "Print a conversation."),
        ("conversations", "list (ls)", "List the conversations, the latest first."),
        ("reading.search", "search", "Find messages and titles by their words."),
        ("reading.watch", "tail, watch, events", "Follow a conversation, or all that changes."),
        ("edit", "edit", "Change a conversation or message in your editor."),
    ),
    "Order and remove": (
        ("heads", "rename, tag, pin, archive, set", "Change the title, tags or the place in lists."),
        ("trash", "delete (rm)", "Move conversations or messages to the trash."),
        ("trash", "trash, restore, purge", "List the trash, bring back from it, or empty it."),
        ("heads", "lock, unlock, locks", "Hold a conversation for yourself, or let it go."),
    ),
    "Branch and carry on": (
        ("branches", "switch, regenerate", "Choose a branch, or put another answer beside."),
        ("branches", "fork, trim", "Copy a branch out, or remove all but one."),
        ("reading.summaries", "summarize, transcript", "Keep a summary, or print what a model can read."),
        ("context.context", "context, servers", "Attach a project as context; switch servers."),
    ),
    "Talk to each other": (
        ("messaging.messages", "send, inbox, listen, history", "Send messages, and read or await your own."),
        ("messaging.mentions", "mentions, message, notes", "See what others ask of you, and keep notes."),
        ("messaging.agents", "agents, projects, group", "See who is there, and meet in groups."),
        ("messaging.channels", "channels, members, topics", "Make channels, and see what is in them."),
        ("messaging.channels", "join, leave, invite, mute", "Come into channels, and let others in."),
        ("sessions.session", "session, host, worker", "Let messages wake programs that answer them."),
        ("messaging.notifications", "notifications", "Say in CLAUDE.md what waits for an agent."),
    ),
    "Work together": (
        ("git.clone", "git", "Commit, sync, compare and restore with git."),
        ("mcp.server", "mcp, tokens", "Serve the store to AI agents, and admit them."),
    ),
    "Look after the store": (
        ("transfer.transfer", "import, export", "Bring in what other programs keep, or out."),
        ("maintenance", "init, demo", "Make a store, or one that shows the main job."),
        ("messaging.config", "config", "Apply what files say of channels and agents."),
        ("maintenance", "doctor", "Examine every file, and mend what can be mended."),
        ("maintenance", "validate, migrate, schema", "Check files, update them, or print the format."),
        ("reading.search", "stats, reindex", "Count what is there, or build the index anew."),
    ),
}


def commands_in(names: str) -> list[str]:
    """The commands that a line of the help is about."""
    return re.sub(r" \(\w+\)", "", names).split(", ")


#: The modules of the commands.
MODULES: dict[str, str] = {
    **{name: module for lines in HELP.values() for module, names, _ in lines for name in commands_in(names)},
    "group": "messaging.groups",
    "host": "sessions.host",
    "worker": "sessions.worker",
    "projects": "messaging.projects",
    "message": "messaging.messages",
    "tokens": "mcp.tokens",
    "notes": "messaging.notes",
    "servers": "servers",
    "demo": "demo.demo",
    "help": "help",
}

#: The commands of those that have some.
GROUPS: dict[str, dict[str, str]] = {
    "agents": dict.fromkeys(("list", "register", "show", "set", "status", "forget"), "messaging.agents")
    | dict.fromkeys(("discover", "policy", "allow", "block", "unblock", "requests"), "messaging.agents")
    | {"wake": "messaging.wake"},
    "agents wake": dict.fromkeys(("install", "uninstall", "test", "hook"), "messaging.wake"),
    "channels": dict.fromkeys(("new", "list", "show", "update", "archive", "remove-member"), "messaging.channels"),
    "config": dict.fromkeys(("plan", "apply", "history", "rollback"), "messaging.config"),
    "context": dict.fromkeys(("capture", "check", "show", "diff", "clear"), "context.context"),
    "git": dict.fromkeys(("setup", "teardown", "status"), "git.clone")
    | dict.fromkeys(("commit", "autocommit", "sync"), "git.sync")
    | dict.fromkeys(("log", "diff", "restore"), "git.history")
    | dict.fromkeys(("conflicts", "resolve"), "git.conflicts"),
    "group": dict.fromkeys(("new", "add", "leave", "rename", "list"), "messaging.groups"),
    "message": dict.fromkeys(("status",), "messaging.messages"),
    "mentions": dict.fromkeys(("list", "done"), "messaging.mentions"),
    "mcp": dict.fromkeys(("install", "uninstall", "doctor"), "mcp.clients"),
    "notes": dict.fromkeys(("write", "search", "list", "allow", "end"), "messaging.notes"),
    "notifications": dict.fromkeys(("on", "off", "status", "clean"), "messaging.notifications"),
    "projects": dict.fromkeys(("list", "show", "link", "unlink"), "messaging.projects"),
    "host": {"status": "sessions.host"},
    "servers": dict.fromkeys(("list", "set", "toggle", "remove"), "servers"),
    "session": dict.fromkeys(("list", "show", "why", "pause", "resume", "retry", "cancel"), "sessions.session")
    | dict.fromkeys(("agent", "wire", "unwire", "allow", "forbid", "webhook"), "sessions.session"),
    "tokens": dict.fromkeys(("add", "list", "revoke"), "mcp.tokens"),
}

#: Names that hands know from elsewhere.
ALIASES = {"ls": "list", "cat": "show", "rm": "delete"}


class _Program(CapsuleGroup):
    """Finds the command, runs it, and turns an error into words on stderr and an exit code."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands(MODULES, GROUPS, ALIASES)  # type: ignore[assignment]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            from capsule_cli.commands.help import FIRST_STEPS

            sys.stderr.write(FIRST_STEPS)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        from capsule_cli.commands.help import overview

        formatter.write(overview(HELP))

    def make_context(self, info_name: Any, args: list[str], parent: Any = None, **extra: Any) -> Any:
        asked.forget()
        # Read off the words: an option that can't be parsed may stand before --json, and its error is JSON too.
        self._as_json = "--json" in (args[: args.index("--")] if "--" in args else args)
        try:
            return super().make_context(info_name, args, parent, **extra)
        except typer.TyperException as error:
            self._report_usage(error)
            raise

    def _report_usage(self, error: typer.TyperException) -> None:
        """Where JSON was asked for, tell a usage error so and end; else it is left to typer."""
        if self._as_json:
            asked.json = True
            report(error.format_message(), error.exit_code, "Usage")
            sys.exit(error.exit_code)

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result
        except (CapsuleError, Stopped) as error:
            raise typer.Exit(report_error(error)) from error
        except typer.TyperException as error:
            self._report_usage(error)
            raise
        except FileNotFoundError as error:
            if not is_nowhere():
                raise
            what = "the working directory was deleted; go to another one with cd, and try again"
            raise typer.Exit(report_error(NotFound(what, id=""))) from error
        except BrokenPipeError:
            quiet_stdout()
            raise typer.Exit(BROKEN_PIPE) from None


app = typer.Typer(
    name="capsule", cls=_Program, rich_markup_mode=None, context_settings={"help_option_names": ["--help", "-h"]}
)


def _version(ctx: typer.Context, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from capsule import __version__

    answer({"version": __version__}, f"capsule {__version__}", line=True)
    raise typer.Exit()


@app.callback()
def _capsule(
    version: bool = options.flag("--version -V", "Print the version.", callback=_version, expose_value=False),
) -> None:
    """Conversations as files: written by many, lost by none."""


def program() -> Any:
    """The program as a typer group."""
    return program_of(app)


def main() -> None:
    """Run `capsule` with the words of the command line; never returns."""
    ensure_streams()
    for at, word in enumerate(sys.argv[1:], 1):
        try:
            word.encode()
        except UnicodeEncodeError:
            asked.json = "--json" in sys.argv
            report(f"argument {at} is no UTF-8 text: {word!a}", 2, "Usage")
            sys.exit(2)
    program().main(prog_name="capsule")
