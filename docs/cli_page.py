"""Make the pages that document the command line, from the program itself: `make docs`.

What must stay true: nothing in these pages is written by hand. The exit codes come from the
errors themselves.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from typer import Context

from capsule import errors
from capsule_cli.app import choices_of, global_parameters, help_by_topic, program, usage_of
from capsule_cli.command_names import SHORT
from capsule_cli.exits import BROKEN_PIPE, INTERRUPTED, TERMINATED

__all__ = ["OPTIONS", "PAGES", "pages"]

_MADE = "<!-- Made from the program by `make docs`; a test fails if it is stale. -->\n"
INTRODUCTION = (
    _MADE
    + """\
# The command line

Daily commands are one word: `capsule append`. All others are a noun and a verb: `capsule lock
take`. The noun alone with `--help` lists its verbs.

Name a conversation by its id, by a unique beginning of the id (4 characters or more), or by
`@last`, the conversation that changed last. For a message, give its id, `@N` (its position in
the history, counted from 0) or `@last`.

Output on a terminal is for people, and may change. Output for programs is stable: `--json` of every
command, and the lines with tabs between their columns that a command prints when stdout is not a
terminal. These are `list` (id, time of the last change, title, mode, tags, state; with
`--summaries-of` the state ends in the state of the source: `current`, `behind`, `elsewhere`, `gone`
or `unknown`), `trash list` (id, time of deletion, title), `mcp servers list` (server, on or off),
`lock list` (id, state, holder, user@host, time, title), `inbox` (conversation, unread messages,
senders, time, title, last text), `listen` and `history` (time, conversation, sender, message,
text), `message status` (agent, state), `config history` (number, time, actions done, refused), the
other commands of `config` (outcome, kind, on, field or whom, before, after, reason or file), `agent
list` (id, state, last seen, project, status) and `group list` (id, time of the last change, agents,
title). A control character in a file is printed as its escape.

Errors and warnings go to stderr, as `capsule: ...`. With `--json` each is one line with a JSON
object: `{"error": {"code": ..., "kind": ..., "message": ..., ...}}` or `{"warning": ...}`.

A command uses the store of `--store`. Without it, it uses the store of `CAPSULE_STORE`, or else the
nearest directory upwards with a `capsule.toml`, or else your own store, which is made at its first
use. `capsule store show` prints the store and why it was chosen.

`send`, `inbox`, `listen`, `history`, `group` and `agent status` act for an agent: the agent of
`--as`, or else of `CAPSULE_AGENT`, or else the agent that is registered for the current folder or
the nearest folder above it. Without an agent, `group new`, `list`, `add` and `set`, and
`channel new` act for the owner of the store, who may do everything.

Completion of commands, options, ids, tags and agents: `capsule --install-completion`, once
for each shell.

"""
)

#: The pages of the commands: the title, and the top-level names of their commands.
PAGES = {
    "conversations": (
        "Conversations",
        "new append list show search watch edit set delete restore trash lock",
    ),
    "branches": ("Branches, summaries and context", "branch summarize context"),
    "messages": ("Messages between agents", "send inbox listen history message mention note"),
    "agents": ("Agents and projects", "agent project config"),
    "channels": ("Channels and groups", "channel group"),
    "workers": ("Workers", "worker"),
    "git": ("Git", "git"),
    "mcp": ("The MCP server", "mcp"),
    "web": ("The page in a browser", "web"),
    "transfer": ("Import and export", "import export"),
    "store": ("The store", "init copy store help"),
}

#: The meaning of an option in every command that has it: its value (empty: none), and the text.
OPTIONS = {
    "--access": ("open|members|private", "which agents may join a channel"),
    "--after": (
        "CURSOR",
        "continue a list after this position, which an earlier page or line named",
    ),
    "--agent": ("AGENT", "the agent concerned"),
    "--allow-host": ("NAME", "another host name that clients use for a server"),
    "--all": ("", "everything, instead of the named or usual part"),
    "--archive": ("", "hide it from the lists but keep it readable; `--no-archive` undoes this"),
    "--archived": ("", "include the archived ones"),
    "--at": ("REV", "a version in git: a commit, or the last one up to a time"),
    "--before": ("CURSOR", "the part of a list before this position"),
    "--budget": ("N", "the largest number of tokens, by an estimate"),
    "--channel": ("CHANNEL", "the channel: its name, `NAME@PROJECT`, or its id"),
    "--context": ("", "include the beginning of the project's context"),
    "--conversation": ("ID", "the conversation concerned"),
    "--default": ("", "whether agents join the channel when they are registered"),
    "--default-topic": ("TOPIC", "the topic of messages without one"),
    "--description": ("TEXT", "its purpose, for people and models"),
    "--dry-run": ("", "print the planned changes, and change nothing"),
    "--exec": ("CMD", "a command that the shell runs for each line"),
    "--file": ("FILE", "the file with the text"),
    "--follow": ("", "continue with new entries until Ctrl-C"),
    "--for": ("DURATION", "how long something may run"),
    "--force": ("", "act even if a lock, an entry or a file is in the way"),
    "--format": ("FORMAT", "the format of another program"),
    "--from": ("AGENT", "the agent that wrote the message"),
    "--global": ("", "your own configuration of git, for all clones"),
    "--idle": ("DURATION", "after this time without activity"),
    "--limit": ("N", "the largest number of entries"),
    "--message": ("TEXT", "a text to write"),
    "--mode": ("api|toolbox", "the mode of a conversation"),
    "--model": ("MODEL", "the model that wrote it"),
    "--name": ("NAME", "the new name"),
    "--of": ("AGENT", "the agent that it belongs to"),
    "--project": ("DIR", "the folder of a project"),
    "--prune": ("", "undo changes that no file declares any more"),
    "--reason": ("TEXT", "a reason, which is stored for people"),
    "--role": ("user|assistant|system|tool", "the role of a message"),
    "--series": ("ID", "one series of scheduled messages"),
    "--session": ("ID", "a session of an agent"),
    "--settings": ("user|project", "the settings to change: your own, or the project's"),
    "--since": ("WHEN", "only entries from this time or later"),
    "--tag": ("TAG", "a tag"),
    "--thread": ("MESSAGE", "the thread of this first message"),
    "--timeout": ("DURATION", "how long to wait: seconds, or `5m`"),
    "--title": ("TITLE", "the new title"),
    "--to": ("AGENT", "the recipient"),
    "--tools": ("conversations|messaging|all|session", "which tools an MCP server offers"),
    "--topic": ("TOPIC", "the topic of a message"),
    "--topic-required": ("", "whether messages without a topic are refused"),
    "--until": ("WHEN", "only entries before this time"),
    "--up-to": ("MESSAGE", "the last message to include"),
    "--which": ("MESSAGE", "the message to change"),
    "--with": ("AGENTS", "agents to add, separated by commas"),
    "--yes": ("", "do not ask for confirmation"),
}


def _exit_codes() -> list[tuple[int, str, str]]:
    """Return each exit code: the number, its meaning, and its error (empty: none)."""
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.CapsuleError)
    ]
    told = {
        kind.exit_code: (kind.meaning, kind.__name__)
        for kind in kinds
        if kind is not errors.CapsuleError
    }
    told |= {
        0: ("done", ""),
        INTERRUPTED: ("interrupted by Ctrl-C", ""),
        BROKEN_PIPE: ("the reader of stdout has closed it", ""),
    }
    told |= {TERMINATED: ("ended by SIGTERM while the command waited", "")}
    return [(code, *told[code]) for code in sorted(told)]


def commands_in(names: str) -> list[str]:
    """Return the commands in the names of a line of the help."""
    return re.sub(r" \(\w+\)", "", names).split(", ")


def pages() -> Iterator[tuple[str, str]]:
    """Yield the pages: the name of each file in this folder, and its text."""
    yield "cli.md", "\n".join(_overview())
    for name, (title, names) in PAGES.items():
        yield f"cli/{name}.md", "\n".join(_page(title, names.split()))


def _overview() -> Iterator[str]:
    yield INTRODUCTION
    yield "## The commands\n"
    page_of = {name: page for page, (_, names) in PAGES.items() for name in names.split()}
    for title, lines in help_by_topic().items():
        yield f"### {title}\n"
        rows = []
        for names, says in lines:
            links = [
                f"[{name}](cli/{page_of[name]}.md#capsule-{name})" for name in commands_in(names)
            ]
            rows.append((", ".join(links), says))
        yield from _table(("command", "what it does"), rows)
    others = ", ".join(f"`{short}` is `{name}`" for short, name in SHORT.items())
    yield f"Short names: {others}. `capsule help COMMAND` prints the help of one.\n"
    yield "## Options of every command\n\nThey may be given before or after the command's name.\n"
    yield from _table(("option", ""), [_option(param) for param in global_parameters()])
    yield "## Options that mean the same everywhere\n"
    rows = [
        (f"`{name}`", value.replace("|", "\\|"), means) for name, (value, means) in OPTIONS.items()
    ]
    yield from _table(("option", "value", "meaning"), rows)
    yield "## Exit codes\n"
    yield from _table(
        ("code", "meaning", "error"),
        [(str(code), what, kind) for code, what, kind in _exit_codes()],
    )


def _page(title: str, names: list[str]) -> Iterator[str]:
    yield f"{_MADE}# {title}\n"
    yield "[The command line](../cli.md) describes what all commands have in common.\n"
    group = program()
    context = Context(group, info_name="capsule")
    for name in names:
        yield from _commands(context, f"capsule {name}", group.commands[name])


def _commands(parent: Context, words: str, command: Any) -> Iterator[str]:
    """Yield a command, and then the commands of its group."""
    context = Context(command, info_name=words.rpartition(" ")[2], parent=parent)
    own = [param for param in command.params if param not in global_parameters()]
    yield f"{'##' if words.count(' ') == 1 else '###'} {words}\n"
    yield "    " + " ".join([words, *command.collect_usage_pieces(context)]) + "\n"
    yield f"{inspect.cleandoc(command.help)}\n"
    rows = [_argument(param) for param in own if param.param_type_name == "argument"]
    rows += [_option(param) for param in own if param.param_type_name == "option"]
    if rows:
        yield from _table(("", ""), rows)
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(context, f"{words} {name}", below)


def _argument(param: Any) -> tuple[str, str]:
    return f"`{usage_of(param)}`", _help(param)


def _option(param: Any) -> tuple[str, str]:
    names = ", ".join(f"`{name}`" for name in (*param.opts, *param.secondary_opts))
    if param.is_flag:
        return names, _help(param)
    choices = choices_of(param)
    value = "\\|".join(choices) if choices else param.metavar or param.name.upper()
    return f"{names} {value}", _help(param)


def _help(param: Any) -> str:
    told = (param.help or "").replace("|", "\\|")
    plain = param.param_type_name == "option" and not param.is_flag and not param.multiple
    return f"{told} Default: `{param.default}`." if plain and param.default is not None else told


def _table(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield "| " + " | ".join(columns) + " |"
    yield "| " + " | ".join("---" for _ in columns) + " |"
    yield from ("| " + " | ".join(row) + " |" for row in rows)
    yield ""
