"""`agent wake`: install and test the hooks and addresses that wake an idle agent, and answer a hook.

A client runs `capsule agent wake hook CLIENT EVENT [--store DIR] [--as AGENT]` at every turn, with
data about its session on stdin. The output tells the client's model how many messages wait.

What must stay true:
- All other settings of a program stay, as with `mcp install`. The changes for all programs are
  planned before the first file is written.
- A hook without a message prints nothing and exits with 0, and imports neither typer nor pydantic
  nor mcp. An error is one line on stderr, with an exit code that no client takes for an answer.
"""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

from capsule.errors import InvalidDocument
from capsule_cli.public import open_agent_store
from capsule_cli.shared.options import DryRun, Settings, argument, option, refuse_if
from capsule_cli.shared.output import (
    CommandStopped,
    escape_controls,
    global_options,
    print_answer,
    print_notice,
)

if TYPE_CHECKING:
    from capsule.mcp_server.clients.settings import MachinePaths, McpProgram
    from capsule.messaging.doorbells import DoorbellTarget, HookOutput

# -- Installing and testing ------------------------------------------------------------------------

#: The programs that are woken by an address instead of hooks, with the field for the address.
ADDRESSED = {"opencode": "url", "webhook": "url", "command": "command"}
_NAMES = "claude-code, codex, gemini; or, with --address, opencode, webhook or command."
Names = Annotated[list[str], argument("CLIENT", _NAMES, ...)]
_AT = (
    "Where to ring: a session of OpenCode (http://HOST:PORT/session/ID), a URL that takes JSON, "
    "or a command."
)
At = Annotated[str | None, option("--address ADDRESS", _AT, ...)]


def install(
    names: Names, address: At = None, settings: Settings = "user", dry_run: DryRun = False
) -> None:
    """Put hooks into the settings of programs, or note an address, so that a message wakes the
    agent there.

    All other settings stay. A file with comments is not changed. Capsule prints the text to paste
    into it, and the exit code is 1. With --as, the session is that agent; without it, the agent of
    CAPSULE_AGENT, or of the project in which the session begins. If the MCP server of a program
    does not offer the tools of messaging, Capsule says how to add them.

    A message rings at once; if it is not read, again after 1, 5 and 30 minutes. The doorbell says
    how many messages wait and from whom, but not their text.
    """
    from capsule.messaging import doorbells
    from capsule.messaging.tools import hook_settings
    from capsule_cli.commands import mcp

    hooked_programs, target = _chosen_programs(names, address)
    scope, paths = settings, mcp.machine_paths()
    program, options = mcp.launch_words(), mcp.global_option_words(global_options.as_)
    plans = [
        hook_settings.install(client, scope, paths, program, options) for client in hooked_programs
    ]
    if target is not None:
        with open_agent_store() as (store, agent):
            if not dry_run:
                doorbells.register(store, agent, target)
        print_answer(target.as_json(), f"{agent} is rung at {' '.join(target.address.values())}")
    if plans:
        for client in hooked_programs:
            if not _offers_messaging(client, paths):
                fix = f"capsule mcp install {client.name} --tools all"
                print_notice(
                    f"{client.title} has no MCP server with the tool `listen`, which the "
                    f"doorbell names; run: {fix}"
                )
        mcp.apply_changes(plans, paths, dry_run, is_there=True)


def _offers_messaging(client: McpProgram, paths: MachinePaths) -> bool:
    """Return whether the settings of a program start Capsule's MCP server with the tools of
    messaging.
    """
    from capsule.mcp_server.clients import settings
    from capsule_cli.commands import mcp

    (program,) = mcp.select_programs(settings.CLIENTS, [client.name])
    for scope in mcp.SCOPES:
        with suppress(InvalidDocument):
            for entry in settings.entries(program, scope, paths):
                words = " ".join(entry.launch.args) if entry.starts_capsule and entry.launch else ""
                if re.search(r"--tools[ =](messaging|all)\b", words):
                    return True
    return False


def uninstall(names: Names, settings: Settings = "user", dry_run: DryRun = False) -> None:
    """Remove Capsule's hooks from the settings of programs, or the addresses of the agent, and
    nothing else.
    """
    from capsule.messaging import doorbells
    from capsule.messaging.tools import hook_settings
    from capsule_cli.commands import mcp

    hooked_programs, _ = _chosen_programs(names, "")
    scope, paths = settings, mcp.machine_paths()
    plans = [hook_settings.uninstall(client, scope, paths) for client in hooked_programs]
    if plans:
        mcp.apply_changes(plans, paths, dry_run, is_there=False)
    if set(names) & set(ADDRESSED):
        with open_agent_store() as (store, agent):
            targets = []
            for doorbell in doorbells.load_targets(store, agent).targets:
                if doorbell.target.client in names:
                    targets.append(doorbell.target)
            if not dry_run:
                for target in targets:
                    doorbells.forget(store, agent, target)
        print_answer(
            [target.as_json() for target in targets], f"{agent}: {len(targets)} addresses forgotten"
        )


def test() -> None:
    """Ring every doorbell of the agent, and print the results. The exit code is 0 only if a program
    accepted it.
    """
    from capsule.messaging import doorbells
    from capsule.messaging.doorbells import ring_text

    rings: list[dict[str, Any]] = []
    with open_agent_store() as (store, agent):
        text = ring_text(agent, store.messages.pointer(agent) or doorbells.TEST_POINTER)
        for doorbell in doorbells.load_targets(store, agent).targets:
            # Empty if the doorbell was rung.
            failure = "its session is not idle, or has ended"
            if doorbells.is_reachable(store, doorbell):
                failure = doorbells.ring_now(doorbell.target, text)
            rings.append(
                {
                    **doorbell.target.as_json(),
                    "ok": not failure,
                    "said": failure or _success_text(doorbell.target.client),
                }
            )
        doorbells.request_test_ring(store, agent)
    if not rings:
        reason = "a session registers itself when it begins, once its program has the hooks"
        raise CommandStopped(
            f"{agent} has no doorbell: {reason}; add one with: capsule agent wake install"
        )
    lines = (
        f"{ring['client']} {' '.join(ring['address'].values())}: {ring['said']}" for ring in rings
    )
    print_answer(rings, escape_controls("\n".join(lines)), ok=any(ring["ok"] for ring in rings))


def _success_text(client: str) -> str:
    if client == "claude-code":
        return "its hook waits, and rings within seconds"
    return "stored; it is delivered when the session is open" if client == "codex" else "rung"


def _chosen_programs(
    names: Sequence[str], address: str | None
) -> tuple[list[McpProgram], DoorbellTarget | None]:
    """Return the named programs with hooks, and the target of the address, if one was given."""
    from capsule.messaging.doorbells import DoorbellTarget
    from capsule.messaging.tools.hook_settings import HOOKED
    from capsule_cli.commands import mcp

    hooked_programs = mcp.select_programs(HOOKED, names, *ADDRESSED)
    with_address = [name for name in names if name in ADDRESSED]
    refuse_if(
        with_address and address is None,
        f"give the address of {' and '.join(with_address)}",
        "--address",
    )
    refuse_if(
        address and len(with_address) != 1, f"is for one of {', '.join(ADDRESSED)}", "--address"
    )
    target = (
        DoorbellTarget(with_address[0], {ADDRESSED[with_address[0]]: address}) if address else None
    )
    return hooked_programs, target


# -- The hooks of clients --------------------------------------------------------------------------


def hook(
    client: str = argument("CLIENT", "claude-code, codex or gemini.", ...),
    event: str = argument("EVENT", "The client's name of the event.", ...),
) -> None:
    """Answer a hook of a client, whose data is read from stdin. Clients run this command, not
    people.
    """
    import orjson

    from capsule.errors import CapsuleError

    data = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    try:
        hook_input = orjson.loads(data or b"{}")
        answer = _answer(
            client,
            event,
            global_options.store,
            global_options.as_,
            hook_input if isinstance(hook_input, dict) else {},
        )
    except (CapsuleError, orjson.JSONDecodeError) as error:
        sys.stderr.write(f"capsule: {' '.join(str(error).split())}\n")
        sys.exit(1)
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    sys.exit(answer.code)


def _answer(
    client: str, event: str, root: str | None, agent: str | None, hook_input: dict[str, Any]
) -> HookOutput:
    from capsule import Store
    from capsule.messaging import doorbells

    if client == "codex":
        from shutil import which

        hook_input = hook_input | {"home": os.environ.get("CODEX_HOME"), "program": which("codex")}
    if event == "Stop" and os.environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk"):
        return (
            doorbells.HookOutput()
        )  # `claude -p` would stay until the hook ends; seen with 2.1.197.
    with Store.open(root, keep_locks=False) as store:
        folder = os.path.realpath(_session_folder(hook_input))
        name = agent or os.environ.get("CAPSULE_AGENT")
        agent = (
            store.agents.identity(name, folder)
            if name
            else next(iter(store.agents.at(folder)), None)
        )
        if agent is None:
            return doorbells.HookOutput()
        return doorbells.run_hook(store, agent, client, event, hook_input, _client_end_check())


def _session_folder(hook_input: dict[str, Any]) -> str:
    """Return the folder where the session began, if the client names it, else the session's
    folder.
    """
    start_folder = os.environ.get("CLAUDE_PROJECT_DIR") or os.environ.get("GEMINI_PROJECT_DIR")
    return start_folder or str(hook_input.get("cwd") or os.getcwd())


def _client_end_check() -> Callable[[], bool]:
    """Return a function that tells whether the client has ended: it closed our standard error, or
    is no longer our parent.
    """
    parent = os.getppid()
    poll = select.poll()
    poll.register(2, 0)
    return lambda: os.getppid() != parent or bool(poll.poll(0))
