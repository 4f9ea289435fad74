"""`mcp install`, `mcp uninstall` and `mcp doctor`: change and check the settings of the programs
that use the MCP server.

What must stay true: all changes are planned before the first file is written. So a file that can't
be read prevents all_programs change. The environment variables that tell where settings are, are read
here.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from capsule.errors import CapsuleError, Refused
from capsule.ids import check_id
from capsule.mcp_server.access import Toolset
from capsule_cli.commands.mcp.server import SETS
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import DryRun, argument, option, refuse_if, usage_error
from capsule_cli.shared.output import (
    CommandStopped,
    escape_controls,
    print_answer,
    print_json,
    print_text,
)

if TYPE_CHECKING:
    from capsule.mcp_server.clients.doctor import ProbeReport
    from capsule.mcp_server.clients.settings import (
        LaunchCommand,
        MachinePaths,
        McpProgram,
        ServerEntry,
        SettingsChange,
        SettingsScope,
    )


SCOPES: tuple[SettingsScope, ...] = ("user", "project")


def _complete_program(incomplete: str) -> list[tuple[str, str]]:
    """Return the names of programs that begin with `incomplete`, with their titles."""
    from capsule.mcp_server.clients.settings import CLIENTS

    return [(client.name, client.title) for client in CLIENTS if client.name.startswith(incomplete)]


_NAMES = (
    "The programs: claude-code, claude-desktop, codex, gemini, cursor, vscode, windsurf, "
    "opencode, zed."
)
Names = Annotated[
    list[str] | None, argument("CLIENT", _NAMES, ..., autocompletion=_complete_program)
]
All = Annotated[
    bool, option("--all", "Choose all programs that have settings on this machine.", ...)
]
_SETTINGS = "Change your own settings, for all projects, or those of the surrounding project."
Settings = Annotated[Literal["user", "project"], option("--settings", _SETTINGS, ...)]
Force = Annotated[
    bool, option("--force", "Do it even if the entry of this name starts another program.", ...)
]


def install(
    names: Names = None,
    all_programs: All = False,
    settings: Settings = "user",
    dry_run: DryRun = False,
    force: Force = False,
    tools: Toolset | None = option("--tools SET", SETS),
) -> None:
    """Connect programs to the MCP server: add the entry `capsule` to their settings, and change
    nothing else.

    If a program has a command for that (claude, codex, gemini, code), Capsule runs the command. A
    settings file in TOML, or with comments, is not changed. Capsule prints the text to paste into
    it, and the exit code is 1.

    With --store, the server always serves that store. Without it, the server serves the store that
    `capsule` would use in the directory where the program starts it. It is printed, with the
    reason. With --as, the program is that agent, and its messages are from it. If no program has
    settings, Capsule prints where it looked and what to paste by hand.

    Repeated, it changes the options that are given, and keeps the others of the entry. `mcp
    uninstall` removes them.
    """
    from capsule.mcp_server.clients.settings import CLIENTS, LaunchCommand, install

    paths = machine_paths()
    executable, *words = launch_words()  # This very `capsule`, by its absolute path.
    words += [
        "mcp",
        *global_option_words(global_options.as_),
        *(["--tools", tools] if tools else []),
    ]
    launch = LaunchCommand(executable, tuple(words))
    if not names and not any(_has_settings(client, settings, paths) for client in CLIENTS):
        raise _no_settings_error(settings, paths, launch)
    clients = _chosen_programs(names, all_programs, settings, paths)
    plans = [install(client, settings, paths, launch, force=force) for client in clients]
    apply_changes(plans, paths, dry_run, is_there=True)


def uninstall(
    names: Names = None,
    all_programs: All = False,
    settings: Settings = "user",
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Remove the entry `capsule` from the settings of programs, and nothing else."""
    from capsule.mcp_server.clients.settings import uninstall

    paths = machine_paths()
    clients = _chosen_programs(names, all_programs, settings, paths)
    plans = [plan for client in clients for plan in uninstall(client, settings, paths, force=force)]
    apply_changes(plans, paths, dry_run, is_there=False)


def doctor(names: Names = None) -> None:
    """Start the server as each program would, and report its answers. The exit code is 0 only if
    all of them work.

    It looks at your own settings and those of the project in the current directory, in which it
    starts the server. With --store, each has to serve it.
    """
    from capsule.mcp_server.clients import settings

    paths = machine_paths()
    chosen = select_programs(settings.CLIENTS, names) if names else settings.CLIENTS
    store = named_store()
    checks = [
        check
        for client in chosen
        for check in _check_entries(client, paths, store, is_named=bool(names))
    ]
    if not checks:
        raise CommandStopped("no program has the entry; add it with: capsule mcp install CLIENT")
    text = escape_controls("\n".join(line for check in checks for line in check.lines()))
    print_answer(
        [check.as_json() for check in checks], text, ok=not any(check.problems for check in checks)
    )


@dataclass(frozen=True, slots=True)
class _EntryCheck:
    """The result of `doctor` for one entry, or for a file that can't be read.

    Attributes:
        client: The program.
        scope: The scope of its settings.
        path: The settings file.
        problems: What is wrong.
        report: The answers of the server. None: it was not started.
        entry: The entry, or None.
    """

    client: McpProgram
    scope: SettingsScope
    path: str
    problems: tuple[str, ...]
    report: ProbeReport | None = None
    entry: ServerEntry | None = None

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"client": self.client.name, "scope": self.scope, "path": self.path}
        if self.entry is not None and (launch := self.entry.launch) is not None:
            value |= {
                "command": [launch.command, *launch.args],
                "switchedOff": self.entry.is_disabled,
            }
        if self.report is not None:
            value |= {
                name: getattr(self.report, name)
                for name in ("server", "protocol", "tools", "tokens", "store")
            }
            value |= {"storeReason": self.report.reason, "readyMs": self.report.ready_ms}
        return {**value, "ok": not self.problems, "problems": list(self.problems)}

    def lines(self) -> Iterable[str]:
        yield f"{self.client.title} ({self.scope}): {self.path}"
        report = self.report
        if report is not None and report.server:
            yield f"  {report.server}, protocol {report.protocol}, ready after {report.ready_ms} ms"
            yield f"  {report.tools} tools, whose list costs about {report.tokens} tokens"
        if report is not None and report.store:
            yield f"  store: {report.store} ({report.reason})"
        if self.entry is not None and self.entry.is_disabled:
            yield "  the entry is switched off there"
        yield from (f"  wrong: {problem}" for problem in self.problems)


def _check_entries(
    client: McpProgram, paths: MachinePaths, store: str | None, *, is_named: bool
) -> list[_EntryCheck]:
    """Return the checks of a program's entries in both scopes. `is_named`: the user named the
    program, so that a missing entry is a problem.
    """
    from capsule.mcp_server.clients import doctor, settings

    checks = []
    for scope in SCOPES:
        try:
            entries = list(settings.entries(client, scope, paths))
        except CapsuleError as error:
            checks.append(_EntryCheck(client, scope, getattr(error, "path", ""), (error.message,)))
            continue
        for entry in entries:
            if entry.launch is None or not entry.starts_capsule:
                problem = (
                    "the entry starts another program; replace it with: capsule mcp install --force"
                )
                checks.append(_EntryCheck(client, scope, entry.path, (problem,), entry=entry))
                continue
            report = doctor.probe(entry.launch, cwd=paths.project, store=store)
            checks.append(
                _EntryCheck(client, scope, entry.path, tuple(report.problems), report, entry)
            )
    if is_named and not checks:
        problem = f"it has no entry; add it with: capsule mcp install {client.name}"
        checks.append(_EntryCheck(client, "user", client.files("user", paths)[0], (problem,)))
    return checks


def _chosen_programs(
    names: Sequence[str] | None, all_programs: bool, scope: SettingsScope, paths: MachinePaths
) -> list[McpProgram]:
    """Return the named programs, or all that have settings on this machine."""
    from capsule.mcp_server.clients import settings

    refuse_if(all_programs and names, "means all programs, so name none", "--all")
    if all_programs:
        present = [client for client in settings.CLIENTS if _has_settings(client, scope, paths)]
        if not present:
            raise CommandStopped("no settings of a program were found; name the programs")
        return present
    if not names:
        raise usage_error(
            "name programs, or give --all: "
            f"{', '.join(client.name for client in settings.CLIENTS)}",
            "CLIENT",
        )
    return select_programs(settings.CLIENTS, names)


def select_programs(
    clients: Iterable[McpProgram], names: Sequence[str], *others: str
) -> list[McpProgram]:
    """Return the programs of these names, each once. Names in `others` are accepted and left out.

    Raises typer.BadParameter: a name is neither.
    """
    programs = {client.name: client for client in clients}
    accepted = [*programs, *others]
    for name in names:
        refuse_if(name not in accepted, f"{name!r} is not one of {', '.join(accepted)}", "CLIENT")
    return [client for name, client in programs.items() if name in names]


def _no_settings_error(
    scope: SettingsScope, places: MachinePaths, launch: LaunchCommand
) -> Refused:
    """Return the error that no program has settings on this machine: where they were looked for,
    and what a person can do.
    """
    from capsule.mcp_server.clients.settings import CLIENTS, NAME

    looked = {
        client.name: list(client.files(scope, places))
        for client in CLIENTS
        if client.files(scope, places)
    }
    value: Any = CLIENTS[0].entry(launch)
    for key in (NAME, *reversed(CLIENTS[0].servers)):
        value = {key: value}
    paste = json.dumps(value, ensure_ascii=False)
    lines = [
        "no settings of a program were found, and nothing was changed. These were checked:",
        *(f"  {name:<16}{path}" for name, paths in looked.items() for path in paths[:1]),
        "name a program to make its settings, for example: capsule mcp install claude-code",
        "or paste this into the settings of another program, most of which read it so:",
        paste,
    ]
    return Refused("\n".join(lines), path=places.home, looked=looked, paste=paste)


def _has_settings(client: McpProgram, scope: SettingsScope, paths: MachinePaths) -> bool:
    """Return whether a program has settings on this machine: one of its files, or a folder of its
    own.
    """
    files = client.files(scope, paths)
    own = {os.path.dirname(path) for path in files} - {paths.home, paths.project}
    return any(map(os.path.isfile, files)) or any(map(os.path.isdir, own))


def machine_paths() -> MachinePaths:
    """Return the folders, environment variables and commands of this machine that decide where
    settings are.
    """
    from capsule.mcp_server.clients.settings import PROGRAMS, VARIABLES, MachinePaths

    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    programs = {name: path for name in PROGRAMS if (path := shutil.which(name))}
    return MachinePaths(
        sys.platform, os.path.abspath(os.path.expanduser("~")), os.getcwd(), environment, programs
    )


def named_store() -> str | None:
    """Return the store of the option, as an absolute path. None: none was given."""
    if global_options.store is None:
        return None
    from capsule.locate import find_store

    return find_store(global_options.store)


def global_option_words(name: str | None) -> list[str]:
    """Return the options that let a program use the store, the instance and the agent of this
    command.
    """
    words = []
    store = named_store()
    if store:
        words += ["--store", store]
    if global_options.instance:
        words += ["--instance", global_options.instance]
    if name is not None:
        words += ["--as", check_id(name)]
    return words


def launch_words() -> list[str]:
    """Return the words that start `capsule`, the first of them absolute. A symlink to the program is
    not resolved, because it remains after an upgrade.
    """
    program = sys.argv[0]
    scripts_folder = sysconfig.get_path("scripts")
    candidates = (
        program if os.path.dirname(program) else None,
        shutil.which("capsule", path=scripts_folder),
        shutil.which("capsule"),
    )
    for path in candidates:
        name = os.path.basename(path or "").lower().removesuffix(".exe")
        if path and name == "capsule" and os.access(path, os.X_OK) and os.path.isfile(path):
            return [os.path.abspath(path)]
    return [sys.executable, "-m", "capsule_cli"]


def apply_changes(
    plans: Sequence[SettingsChange], places: MachinePaths, dry_run: bool, *, is_there: bool
) -> None:
    """Apply planned changes, or only print them.

    Args:
        plans: The changes.
        places: The paths of this machine.
        dry_run: Whether to change nothing.
        is_there: Whether the entry is in the settings afterwards.

    Raises typer.Exit: a person has to change a file by hand.
    """
    import platformdirs

    from capsule.mcp_server.clients import settings

    # Not in a project, which may be public.
    state_folder = platformdirs.user_state_dir("capsule", appauthor=False)
    backup_folder = os.path.join(state_folder, "settings-backups")
    results = []
    for plan in plans:
        is_changed = plan.has_effect and not dry_run
        backup = settings.apply(plan, places, backup_folder) if is_changed else None
        if not global_options.json:
            text = _change_text(plan, backup, dry_run, is_there)
            if plan.launch:
                text += _served_store_text(plan.launch)
            print_text(escape_controls(text))
        result = {
            "client": plan.client.name,
            "scope": plan.scope,
            "path": plan.path,
            "changed": is_changed,
            "commands": [list(command) for command in plan.commands],
            "backup": backup,
        }
        if plan.paste:
            result["paste"] = plan.paste
        if plan.launch:
            result["store"], result["storeReason"] = _served_store(plan.launch)
        if dry_run:
            result["diff"] = plan.diff()
        results.append(result)
    if global_options.json:
        print_json(results)
    if any(plan.paste for plan in plans):
        raise typer.Exit(1)


def _served_store(launch: LaunchCommand) -> tuple[str, str]:
    """Return the store that a server serves if it is started in the current folder, and the reason.
    Without a store return an empty text and the reason.
    """
    from capsule.locate import locate_store

    try:
        location = locate_store(launch.store)
    except CapsuleError as error:
        return "", error.message
    return location.root, location.explanation


def _served_store_text(launch: LaunchCommand) -> str:
    store, reason = _served_store(launch)
    if launch.store or not store:
        return f"\n  store: {store and f'{store} '}({reason})"
    always = f"to serve this store wherever it is started, add --store {shlex.quote(store)}"
    return f"\n  store, when started here: {store} ({reason}); {always}"


def _change_text(plan: SettingsChange, backup: str | None, dry_run: bool, is_there: bool) -> str:
    """Return the outcome of a plan in words. The arguments are as for `apply_changes`."""
    title = plan.client.title
    subject = f"{title}: {plan.path}"
    if plan.paste:
        action = "add this to it yourself" if is_there else "change it yourself"
        return (
            f"{subject} is TOML, or has comments that would be lost; "
            f"{action}:\n{plan.paste.rstrip()}"
        )
    if not plan.has_effect:
        return f"{subject} has {'the entry already' if is_there else 'no entry'}; nothing to change"
    if dry_run:
        return "\n".join(map(shlex.join, plan.commands)) or plan.diff().removesuffix("\n")
    if is_there:
        text = f"{subject} now has the entry; {plan.client.then.format(title=title)}"
    else:
        text = (
            f"{subject} no longer has the entry; servers that {title} has started run until they "
            "end"
        )
    if backup:
        text += f"\n  a copy of the former file: {backup}"
    return text
