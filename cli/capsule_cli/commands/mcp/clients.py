"""`mcp install`, `mcp uninstall`, `mcp doctor`: the settings of the programs that use the MCP
server.

What must stay true: everything that is to be changed is worked out before the first file is
written, so that a file that can't be read changes nothing in any other; and what the environment
says of where those files are is read here.
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
    from capsule.mcp_server.clients.programs import LaunchCommand, MachinePaths, McpProgram, Scope
    from capsule.mcp_server.clients.settings import ServerEntry, SettingsChange


SCOPES: tuple[Scope, ...] = ("user", "project")


def _complete(incomplete: str) -> list[tuple[str, str]]:
    """The names of programs that begin with `incomplete`."""
    from capsule.mcp_server.clients.programs import CLIENTS

    return [(client.name, client.title) for client in CLIENTS if client.name.startswith(incomplete)]


_NAMES = (
    "The programs: claude-code, claude-desktop, codex, gemini, cursor, vscode, windsurf, "
    "opencode, zed."
)
Names = Annotated[list[str] | None, argument("CLIENT", _NAMES, ..., autocompletion=_complete)]
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
    every: All = False,
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
    from capsule.mcp_server.clients.programs import CLIENTS, LaunchCommand
    from capsule.mcp_server.clients.settings import install

    places = machine_paths()
    executable, *words = launch_words()  # This very `capsule`, by its absolute path.
    words += [
        "mcp",
        *global_option_words(global_options.as_),
        *(["--tools", tools] if tools else []),
    ]
    launch = LaunchCommand(executable, tuple(words))
    if not names and not any(_has_settings(client, settings, places) for client in CLIENTS):
        raise _no_settings_error(settings, places, launch)
    clients = _chosen_programs(names, every, settings, places)
    plans = [install(client, settings, places, launch, force=force) for client in clients]
    apply_changes(plans, places, dry_run, is_there=True)


def uninstall(
    names: Names = None,
    every: All = False,
    settings: Settings = "user",
    dry_run: DryRun = False,
    force: Force = False,
) -> None:
    """Remove the entry `capsule` from the settings of programs, and nothing else."""
    from capsule.mcp_server.clients.settings import uninstall

    places = machine_paths()
    clients = _chosen_programs(names, every, settings, places)
    plans = [
        plan for client in clients for plan in uninstall(client, settings, places, force=force)
    ]
    apply_changes(plans, places, dry_run, is_there=False)


def doctor(names: Names = None) -> None:
    """Start the server as each program would, and report its answers. The exit code is 0 only if
    all of them work.

    It looks at your own settings and those of the project in the current directory, in which it
    starts the server. With --store, each has to serve it.
    """
    from capsule.mcp_server.clients import programs

    places = machine_paths()
    wanted = select_programs(programs.CLIENTS, names) if names else programs.CLIENTS
    store = named_store()
    visits = [
        visit
        for client in wanted
        for visit in _check_entries(client, places, store, named=bool(names))
    ]
    if not visits:
        raise CommandStopped("no program has the entry; add it with: capsule mcp install CLIENT")
    text = escape_controls("\n".join(line for visit in visits for line in visit.lines()))
    print_answer(
        [visit.as_json() for visit in visits], text, ok=not any(visit.problems for visit in visits)
    )


@dataclass(frozen=True, slots=True)
class _EntryCheck:
    """What `doctor` saw of one entry, or of a file that it could not read."""

    client: McpProgram
    scope: Scope
    path: str
    problems: tuple[str, ...]
    seen: ProbeReport | None = None
    entry: ServerEntry | None = None

    def as_json(self) -> dict[str, Any]:
        value: dict[str, Any] = {"client": self.client.name, "scope": self.scope, "path": self.path}
        if self.entry is not None and (launch := self.entry.launch) is not None:
            value |= {"command": [launch.command, *launch.args], "switchedOff": self.entry.off}
        if self.seen is not None:
            value |= {
                name: getattr(self.seen, name)
                for name in ("server", "protocol", "tools", "tokens", "store")
            }
            value |= {"storeReason": self.seen.reason, "readyMs": self.seen.ready_ms}
        return {**value, "ok": not self.problems, "problems": list(self.problems)}

    def lines(self) -> Iterable[str]:
        yield f"{self.client.title} ({self.scope}): {self.path}"
        seen = self.seen
        if seen is not None and seen.server:
            yield f"  {seen.server}, protocol {seen.protocol}, ready after {seen.ready_ms} ms"
            yield f"  {seen.tools} tools, whose list costs about {seen.tokens} tokens"
        if seen is not None and seen.store:
            yield f"  store: {seen.store} ({seen.reason})"
        if self.entry is not None and self.entry.off:
            yield "  the entry is switched off there"
        yield from (f"  wrong: {problem}" for problem in self.problems)


def _check_entries(
    client: McpProgram, places: MachinePaths, store: str | None, *, named: bool
) -> list[_EntryCheck]:
    """What there is to see of a program, in both scopes."""
    from capsule.mcp_server.clients import doctor, settings

    visits = []
    for scope in SCOPES:
        try:
            entries = list(settings.entries(client, scope, places))
        except CapsuleError as error:
            visits.append(_EntryCheck(client, scope, getattr(error, "path", ""), (error.message,)))
            continue
        for entry in entries:
            if entry.launch is None or not entry.ours:
                problem = (
                    "the entry starts something else; replace it with: capsule mcp install --force"
                )
                visits.append(_EntryCheck(client, scope, entry.path, (problem,), entry=entry))
                continue
            seen = doctor.probe(entry.launch, cwd=places.project, store=store)
            visits.append(_EntryCheck(client, scope, entry.path, tuple(seen.problems), seen, entry))
    if named and not visits:
        problem = f"it has no entry; put it in with: capsule mcp install {client.name}"
        visits.append(_EntryCheck(client, "user", client.files("user", places)[0], (problem,)))
    return visits


def _chosen_programs(
    names: Sequence[str] | None, every: bool, scope: Scope, places: MachinePaths
) -> list[McpProgram]:
    """The programs that were named, or all whose settings are here."""
    from capsule.mcp_server.clients import programs

    refuse_if(every and names, "stands for all programs, so none can be named", "--all")
    if every:
        here = [client for client in programs.CLIENTS if _has_settings(client, scope, places)]
        if not here:
            raise CommandStopped("no program's settings are here; name the ones you mean")
        return here
    if not names:
        raise usage_error(
            f"name programs, or say --all: {', '.join(client.name for client in programs.CLIENTS)}",
            "CLIENT",
        )
    return select_programs(programs.CLIENTS, names)


def select_programs(
    clients: Iterable[McpProgram], names: Sequence[str], *others: str
) -> list[McpProgram]:
    """The programs of these names, each once; names in `others` are of no program, and may be given
    too.
    """
    programs = {client.name: client for client in clients}
    for name in names:
        known = [*programs, *others]
        refuse_if(name not in known, f"{name!r} is not one of {', '.join(known)}", "CLIENT")
    return [client for name, client in programs.items() if name in names]


def _no_settings_error(scope: Scope, places: MachinePaths, launch: LaunchCommand) -> Refused:
    """The error that no program's settings are here: where they were looked for, and what a person
    can do.
    """
    from capsule.mcp_server.clients.programs import CLIENTS, NAME

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
        "no program's settings are here, and nothing was changed. These were looked for:",
        *(f"  {name:<16}{path}" for name, paths in looked.items() for path in paths[:1]),
        "name a program to have its settings made, as: capsule mcp install claude-code",
        "or paste this into the settings of another program, most of which read it so:",
        paste,
    ]
    return Refused("\n".join(lines), path=places.home, looked=looked, paste=paste)


def _has_settings(client: McpProgram, scope: Scope, places: MachinePaths) -> bool:
    """Whether a program has settings here: one of its files, or a directory of its own for them."""
    files = client.files(scope, places)
    own = {os.path.dirname(path) for path in files} - {places.home, places.project}
    return any(map(os.path.isfile, files)) or any(map(os.path.isdir, own))


def machine_paths() -> MachinePaths:
    """Where things are on this machine."""
    from capsule.mcp_server.clients.programs import PROGRAMS, VARIABLES, MachinePaths

    environment = {name: os.environ[name] for name in VARIABLES if name in os.environ}
    programs = {name: path for name in PROGRAMS if (path := shutil.which(name))}
    return MachinePaths(
        sys.platform, os.path.abspath(os.path.expanduser("~")), os.getcwd(), environment, programs
    )


def named_store() -> str | None:
    """The store that was named, absolute."""
    if global_options.store is None:
        return None
    from capsule.locate import find_store

    return find_store(global_options.store)


def global_option_words(name: str | None) -> list[str]:
    """The options that have a program work on the store and as the agent that were named here."""
    store, instance = named_store(), global_options.instance
    words = ["--store", store] if store else []
    words += ["--instance", instance] if instance else []
    return words + (["--as", check_id(name)] if name is not None else [])


def launch_words() -> list[str]:
    """The words that start `capsule`, the first of them absolute; a symlink to it is kept: it
    outlives an upgrade.
    """
    own, beside = sys.argv[0], sysconfig.get_path("scripts")
    for path in (
        own if os.path.dirname(own) else None,
        shutil.which("capsule", path=beside),
        shutil.which("capsule"),
    ):
        name = os.path.basename(path or "").lower().removesuffix(".exe")
        if path and name == "capsule" and os.access(path, os.X_OK) and os.path.isfile(path):
            return [os.path.abspath(path)]
    return [sys.executable, "-m", "capsule_cli"]


def apply_changes(
    plans: Sequence[SettingsChange], places: MachinePaths, dry_run: bool, *, is_there: bool
) -> None:
    """Do what plans say, or show it; the entry `is_there` afterwards. Raises typer.Exit: a person
    has work to do.
    """
    import platformdirs

    from capsule.mcp_server.clients import settings

    # Outside of any project, which may be public.
    copies = os.path.join(
        platformdirs.user_state_dir("capsule", appauthor=False), "settings-backups"
    )
    results = []
    for plan in plans:
        is_changed = plan.changes and not dry_run
        copy = settings.apply(plan, places, copies) if is_changed else None
        if not global_options.json:
            print_text(
                escape_controls(
                    _change_text(plan, copy, dry_run, is_there)
                    + (_served_store_text(plan.launch) if plan.launch else "")
                )
            )
        commands = [list(command) for command in plan.commands]
        result = {
            "client": plan.client.name,
            "scope": plan.scope,
            "path": plan.path,
            "changed": is_changed,
        }
        result |= {"commands": commands, "backup": copy} | (
            {"paste": plan.paste} if plan.paste else {}
        )
        if plan.launch:
            result |= dict(zip(("store", "storeReason"), _served_store(plan.launch), strict=True))
        results.append(result | ({"diff": plan.diff()} if dry_run else {}))
    if global_options.json:
        print_json(results)
    if any(plan.paste for plan in plans):
        raise typer.Exit(1)


def _served_store(launch: LaunchCommand) -> tuple[str, str]:
    """The store that a server started in the current folder serves, and why; or nothing, and why
    there is none.
    """
    from capsule.locate import locate_store

    try:
        location = locate_store(launch.store)
    except CapsuleError as error:
        return "", error.message
    return location.root, location.words


def _served_store_text(launch: LaunchCommand) -> str:
    store, reason = _served_store(launch)
    if launch.store or not store:
        return f"\n  store: {store and f'{store} '}({reason})"
    always = f"to serve it wherever it is started, add --store {shlex.quote(store)}"
    return f"\n  store, when started here: {store} ({reason}); {always}"


def _change_text(plan: SettingsChange, copy: str | None, dry_run: bool, is_there: bool) -> str:
    title, path = plan.client.title, plan.path
    if plan.paste:
        how = "put this into it yourself" if is_there else "change it yourself"
        return (
            f"{title}: {path} is TOML, or has comments that would be lost; "
            f"{how}:\n{plan.paste.rstrip()}"
        )
    if not plan.changes:
        return (
            f"{title}: {path} has {'the entry already' if is_there else 'no entry'}; nothing "
            "to change"
        )
    if dry_run:
        return "\n".join(map(shlex.join, plan.commands)) or plan.diff().removesuffix("\n")
    before = f"\n  what it held before: {copy}" if copy else ""
    if not is_there:
        return (
            f"{title}: {path} has no entry any more; what {title} has started already goes on "
            f"until it ends{before}"
        )
    return f"{title}: {path} has the entry now; {plan.client.then.format(title=title)}{before}"
