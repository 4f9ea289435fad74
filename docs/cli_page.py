"""The page that documents the command line, made from the program: `make docs`.

What must stay true: nothing in that page is written by hand; the exit codes come from the errors themselves.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

from typer import Context

from capsule import errors
from capsule_cli.app import ALIASES, overview, parts, program
from capsule_cli.boundary import BROKEN_PIPE, INTERRUPTED, TERMINATED
from capsule_cli.framework import choices_of, everywhere, piece_of

__all__ = ["text"]

INTRODUCTION = """\
<!-- Made from the program by `make docs`; a test says when it is stale. -->
# The command line

Name a conversation by its id, by a unique beginning of the id (4 characters or more), or by `@last`, the conversation
that changed last. Where a command takes a message, `@N` is the message at place N of the history, counted from 0, and
`@last` is the last message.

Output on a terminal is for people, and may change. Output for programs is stable: `--json` of every command, and the
lines with tabs between their columns that a command prints when stdout is not a terminal. These are `list` (id, time of
the last change, title, mode, tags, state; with `--summaries-of` the state ends in the state of the source: `current`,
`behind`, `elsewhere`, `gone` or `unknown`), `trash` (id, time of deletion, title), `servers list` (server, on or off),
`locks` (id, state, holder, user@host, time, title), `inbox` (conversation, unread messages, senders, time, title, last
text), `listen` and `history` (time, conversation, sender, message, text), `message status` (agent, state),
`config history` (number, time, actions done, refused), the other commands of `config` (outcome, kind, on, field or
whom, before, after, reason or file), `agents list` (id, state, last seen, project, status) and `group list` (id, time
of the last change, agents, title). A control character in a file is printed as its escape.

Errors and warnings go to stderr, as `capsule: ...`. With `--json` each is one line with a JSON object:
`{"error": {"code": ..., "kind": ..., "message": ..., ...}}` or `{"warning": ...}`.

A command uses the store of `--store`. Without it, it uses the store of `CAPSULE_STORE`, or else the nearest directory
upwards with a `capsule.toml`, or else your own store, which is made at its first use.

An option means the same in every command: `--at` is a version in git, `--since` a time, `--cursor` a place to go on
from, `--context` the project's snapshot, `--branch` which branches to look at, `--which` a message to change, `-m` a
text to write, `-n` the largest number to show, `-F` a file to read.

`send`, `inbox`, `listen`, `history`, `group` and `agents status` act for an agent: that of `--as`, or else of
`CAPSULE_AGENT`, or else the one that is registered for the current folder or the nearest folder above it. Without one,
`group add`, `group rename` and `channels new` act for the owner of the store, who may do everything.

Completion of commands, options, ids, tags and agents: `capsule --install-completion`, once for each shell.
"""


def _exit_codes() -> list[tuple[int, str, str]]:
    """Each exit code: the number, what it means, and the error it belongs to (empty: none)."""
    kinds = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, errors.CapsuleError)]
    told = {kind.exit_code: (kind.meaning, kind.__name__) for kind in kinds if kind is not errors.CapsuleError}
    told |= {
        0: ("done", ""),
        INTERRUPTED: ("interrupted by Ctrl-C", ""),
        BROKEN_PIPE: ("the reader of stdout is gone", ""),
    }
    told |= {TERMINATED: ("ended by SIGTERM, where a command waits", "")}
    return [(code, *told[code]) for code in sorted(told)]


def commands_in(names: str) -> list[str]:
    """The commands that a line of the help is about."""
    return re.sub(r" \(\w+\)", "", names).split(", ")


def text() -> str:
    """The page."""
    return "\n".join(_page())


def _page() -> Iterator[str]:
    yield INTRODUCTION
    yield "## Exit codes\n"
    yield from _table(("code", "meaning", "error"), [(str(code), what, kind) for code, what, kind in _exit_codes()])
    yield "## Options of every command\n\nThey stand before or after the command's name.\n"
    yield from _table(("option", ""), [_option(param) for param in everywhere()])
    group = program()
    context = Context(group, info_name="capsule")
    yield "## The commands\n"
    lines = [
        (", ".join(f"`{name}`" for name in commands_in(names)), says)
        for section in overview().values()
        for names, says in section
    ]
    yield from _table(("command", "what it does"), lines)
    others = ", ".join(f"`{alias}` is `{name}`" for alias, name in ALIASES.items())
    yield f"Other names: {others}. `capsule help COMMAND` prints the help of one.\n"
    groups = {name: part.modules(name) for part in parts() for name in part.groups}
    for title, lines in overview().items():
        yield f"## {title}\n"
        for name in (name for names, _ in lines for name in commands_in(names)):
            command = group.get_command(context, name)
            yield from _command(context, name, command)
            for below in groups.get(name, ()):
                yield from _command(context, f"{name} {below}", command.get_command(context, below))


def _command(parent: Context, name: str, command: Any) -> Iterator[str]:
    own = [param for param in command.params if param not in everywhere()]
    context = Context(command, info_name=name, parent=parent)
    yield f"### capsule {name}\n"
    yield "    " + " ".join(["capsule", name, *command.collect_usage_pieces(context)]) + "\n"
    yield f"{command.help}\n"
    arguments = [param for param in own if param.param_type_name == "argument"]
    options = [param for param in own if param.param_type_name == "option"]
    rows = [_argument(param) for param in arguments] + [_option(param) for param in options]
    if rows:
        yield from _table(("", ""), rows)


def _argument(param: Any) -> tuple[str, str]:
    return f"`{piece_of(param)}`", _help(param)


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
