"""Answer the hooks of clients: `capsule agent wake hook CLIENT EVENT [--store DIR] [--as AGENT]`.

A client runs this command at every turn, with data about its session on stdin. The output tells the
client's model how many messages wait.

What must stay true: a hook without a message prints nothing and exits with 0, and imports neither
typer nor pydantic nor mcp. An error is one line on stderr, with an exit code that no client takes
for an answer.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import argument

if TYPE_CHECKING:
    from capsule.messaging.doorbells import HookOutput


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
