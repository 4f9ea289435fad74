"""The commands of `capsule mcp`: serve the store to AI agents, keep the tokens of clients over HTTP,
and change and check the settings of the programs that use the server.

What must stay true:
- A whole token is printed once, when it is made. It can't be computed from what is stored.
- While `mcp serve` runs, stdout gets nothing but the protocol. The messages of the server go to
  stderr.
- `mcp install` and `mcp uninstall` plan all changes before the first file is written. So a file
  that can't be read prevents every change. The environment variables that tell where settings are,
  are read here.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from capsule import rooms
from capsule.errors import CapsuleError, Refused
from capsule.ids import check_id
from capsule.mcp_server.access import Scope, Toolset
from capsule.mcp_server.extensions import ServerExtension, extensions_for, open_http_client
from capsule_cli.shared.options import (
    DryRun,
    Settings,
    argument,
    flag,
    option,
    parse_duration,
    refuse_if,
    usage_error,
)
from capsule_cli.shared.output import (
    CommandStopped,
    escape_controls,
    global_options,
    print_answer,
    print_json,
    print_json_to_stderr,
    print_list,
    print_notice,
    print_text,
)
from capsule_cli.shared.stores import (
    StderrHandler,
    agent_folder,
    current_folder,
    ensure_person,
    instance_name,
    session_name,
)

if TYPE_CHECKING:
    from capsule.mcp_server.access import Tokens
    from capsule.mcp_server.clients.doctor import ProbeReport
    from capsule.mcp_server.clients.settings import (
        LaunchCommand,
        MachinePaths,
        McpProgram,
        ServerEntry,
        SettingsChange,
        SettingsScope,
    )
    from capsule.store.store import CoreStore


# -- mcp tokens ------------------------------------------------------------------------------------

Name = Annotated[str, argument("NAME", "The agent that the token is for.", ...)]


def tokens_of(root: str) -> Tokens:
    """Return the tokens of the store at `root`. Their file is in the folder of the user's
    configuration, and not in the store.
    """
    import platformdirs

    from capsule.mcp_server.access import Tokens

    return Tokens(platformdirs.user_config_path("capsule", appauthor=False), root)


def _open_tokens() -> Tokens:
    from capsule import locate

    ensure_person("tokens")  # Who may make tokens can act as any agent.
    return tokens_of(locate.find_store(global_options.store))


def tokens_add(
    name: Name,
    allow: Scope = option(
        "--allow",
        "Allow to read (read), also to write (write), also to delete and to take locks from "
        "others (admin).",
        "write",
    ),
    expires: str | None = option(
        "--expires DURATION", "Make it expire after this time, for example 30d."
    ),
) -> None:
    """Make a token for an agent and print it. It is printed only once, because Capsule keeps only
    its hash.
    """
    expires_in_s = None if expires is None else parse_duration(expires, "--expires")
    token = _open_tokens().add(name, scope=allow, expires_in_s=expires_in_s)
    print_answer({"name": name, "token": token, "scope": allow}, token)
    if not global_options.json:
        print_notice(
            f"it is shown only this once; clients send it as: Authorization: Bearer {token[:12]}..."
        )


def tokens_list() -> None:
    """List the agents that have a token, with the scopes of their tokens."""
    names = ("name", "scope", "createdAt", "expiresAt")
    columns = ("name", "scope", "created", "expires")
    rows = [
        (token.name, token.scope, token.created_at, token.expires_at)
        for token in _open_tokens().all()
    ]
    value = [dict(zip(names, row, strict=True)) for row in rows]
    texts = [tuple(text or "" for text in row) for row in rows]
    print_list(
        value,
        columns,
        texts,
        "there is no token; make one with: capsule mcp tokens add NAME",
        last="name",
    )


def tokens_revoke(name: Name) -> None:
    """Revoke an agent's token. A running server refuses it from the next request on."""
    token = _open_tokens().revoke(name)
    print_answer({"name": token.name, "revoked": True}, f"{token.name}: its token is revoked")


# -- mcp serve -------------------------------------------------------------------------------------

#: The help of --tools, here and in `mcp install`.
SETS = (
    "Offer these tools: conversations, messaging, or all of them; session, for what a worker runs."
)
TOOLS: Toolset = option("--tools SET", SETS, "conversations")


def serve(
    http: str | None = option(
        "--http [HOST:]PORT",
        "Serve over HTTP there, instead of stdin and stdout. Without HOST: 127.0.0.1. Port 0: any "
        "free one.",
    ),
    read_only: bool = flag("--read-only", "Refuse all changes by clients."),
    tools: Toolset = TOOLS,
    allow_host: list[str] | None = option(
        "--allow-host NAME",
        "Over HTTP: also accept this Host header, e.g. a proxy's. Repeatable.",
    ),
) -> None:
    """Serve the store to AI agents over the Model Context Protocol, until the client disconnects or
    SIGTERM comes.

    Over stdin and stdout the client is the agent of --as, else of CAPSULE_AGENT, and its messages
    are from this agent. With the tools of messaging, it is else the agent of the current directory,
    and the agent is registered. With the tools of a session, the environment says which session it
    is, as `capsule worker run` gives it to its command.
    """
    # The import of the SDK makes some 100,000 objects, and none is garbage. Collections during it
    # would take a tenth of the start.
    gc.disable()
    if http is None:
        refuse_if(
            allow_host,
            "is for --http: over stdin and stdout the client is the program that started the "
            "server",
            "--allow-host",
        )
        _over_stdio(read_only, tools)
    else:
        refuse_if(
            tools == "session",
            "a session has one agent, which starts its own server: without --http",
            "--tools",
        )
        refuse_if(
            global_options.as_ is not None,
            "is for stdin and stdout: over HTTP the token says who the client is",
            "--as",
        )
        ensure_person("servers over HTTP")
        _over_http(http, read_only, tools, tuple(allow_host or ()))


def _over_stdio(read_only: bool, tools: Toolset) -> None:
    """Serve one client over stdin and stdout. Never returns."""
    from capsule import __version__
    from capsule.ids import check_id
    from capsule.mcp_server.transport.process import claim_stdio

    agent = global_options.as_ or os.environ.get("CAPSULE_AGENT") or None
    if agent is not None:
        check_id(agent)
    if sys.stdin is not None and sys.stdin.isatty():
        print_notice(
            "this server is for a program, which uses its stdin and stdout; Ctrl-D ends it"
        )
    stdin, stdout = claim_stdio()
    session = session_name()
    if tools == "session" and not (session and agent):
        raise usage_error(
            "CAPSULE_SESSION and CAPSULE_AGENT name it, as for the command of `capsule worker run`",
            "--tools",
        )
    _log_to_stderr()
    extensions = extensions_for(tools)
    store = _open_client_store(extensions, agent, session)
    # Imported only now, because the SDK takes long.
    from capsule.mcp_server.access import Access
    from capsule.mcp_server.server import build
    from capsule.mcp_server.stores import ClientStores
    from capsule.mcp_server.transport import stdio

    room_state: dict[str, object] = {}
    for extension in extensions:
        if extension.client_state is not None:
            room_state |= extension.client_state(store, os.environ, current_folder())
    access = Access(store.agent, "read" if read_only else "admin")
    server = build(
        ClientStores(store, access, room_state),
        version=__version__,
        tools=tools,
        room_names=store.settings.rooms,
    )
    _tune_garbage_collector()
    stdio.serve(server, store, stdin, stdout)


def _open_client_store(
    extensions: Sequence[ServerExtension], agent: str | None, session: str | None
) -> CoreStore:
    """Open the store for the client of a server over stdio, and prepare it for the extensions.

    Outside of a session an extension may register the agent, by its name or by the current folder.
    """
    from capsule.store.store import CoreStore

    folder = agent_folder()
    for extension in extensions:
        if extension.register_agent is None or session:
            continue
        with CoreStore.open(global_options.store, keep_locks=False) as owner_store:
            # Desktop programs start servers in one of these two folders. Neither may become a
            # project, because it would contain all other folders.
            is_project = folder not in ("/", os.path.realpath(os.path.expanduser("~")))
            agent = extension.register_agent(owner_store, agent, folder, is_project)
            folder = None  # The agent is named by its id now, which needs no folder.
    store = CoreStore.open(
        global_options.store,
        keep_locks=False,
        instance=instance_name(),
        agent=agent,
        folder=folder,
    )
    if session:
        rooms.bind(store, session)
    for extension in extensions:
        if extension.on_open is not None:
            extension.on_open(store)
    return store


def _over_http(address: str, read_only: bool, tools: Toolset, hosts: tuple[str, ...]) -> None:
    """Serve many clients over HTTP at an address. Never returns."""
    if global_options.instance is not None:
        raise usage_error(
            "over HTTP each client is an instance of its own, named by its token", "--instance"
        )
    from capsule import __version__, locate
    from capsule.errors import Refused

    root = locate.find_store(global_options.store)
    tokens = tokens_of(root)
    if not tokens.all():
        raise Refused(
            f"{address}: the server needs a token, and there is none; make one for each client "
            "with: capsule mcp tokens add NAME",
            path=address,
        )
    _log_to_stderr()
    from capsule.mcp_server.server import build
    from capsule.mcp_server.stores import HttpClientStores
    from capsule.mcp_server.transport import http, process

    listener = process.listen(*process.parse_address(address))

    def ready() -> None:
        url = listener.url + http.PATH
        if global_options.json:
            print_json_to_stderr({"serving": root, "url": url})
        else:
            print_notice(f"serving {root} at {url}")

    stores = HttpClientStores(
        root,
        max_scope="read" if read_only else "admin",
        on_open=partial(open_http_client, extensions_for(tools)),
    )
    room_names = stores.server_store().settings.rooms
    server = build(
        stores,
        version=__version__,
        tools=tools,
        room_names=room_names,
        **http.token_options(tokens),
    )
    _tune_garbage_collector()
    http.serve(server, stores, listener, tokens=tokens, hosts=hosts, ready=ready)


def _tune_garbage_collector() -> None:
    """Start garbage collection, and exclude the objects that exist now."""
    gc.freeze()
    gc.enable()


def _log_to_stderr() -> None:
    """Log warnings to stderr. Called before the SDK, which would set up a log of every request."""
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[StderrHandler()], force=True
    )


# -- mcp install, mcp uninstall, mcp doctor --------------------------------------------------------

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
    import json

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
    import shutil

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
    import shutil
    import sysconfig

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
    import typer

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
    import shlex

    store, reason = _served_store(launch)
    if launch.store or not store:
        return f"\n  store: {store and f'{store} '}({reason})"
    always = f"to serve this store wherever it is started, add --store {shlex.quote(store)}"
    return f"\n  store, when started here: {store} ({reason}); {always}"


def _change_text(plan: SettingsChange, backup: str | None, dry_run: bool, is_there: bool) -> str:
    """Return the outcome of a plan in words. The arguments are as for `apply_changes`."""
    import shlex

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
