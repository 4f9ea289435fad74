"""What a client's hook runs: `capsule agent wake hook CLIENT EVENT [--store DIR] [--as AGENT]`.

A client starts it at every turn. What must stay true: a hook with nothing to say prints nothing,
loads no typer, no pydantic and no mcp, and ends with 0; an error is one line on stderr, and no exit
code that a client takes for an answer.
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
    from capsule.messaging.client_hooks import HookOutput


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
        said = orjson.loads(data or b"{}")
        answer = _answer(
            client,
            event,
            global_options.store,
            global_options.as_,
            said if isinstance(said, dict) else {},
        )
    except (CapsuleError, orjson.JSONDecodeError) as error:
        sys.stderr.write(f"capsule: {' '.join(str(error).split())}\n")
        sys.exit(1)
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    sys.exit(answer.code)


def _answer(
    client: str, event: str, root: str | None, agent: str | None, said: dict[str, Any]
) -> HookOutput:
    from capsule import Store
    from capsule.messaging import client_hooks

    if client == "codex":
        from shutil import which

        said = said | {"home": os.environ.get("CODEX_HOME"), "program": which("codex")}
    if event == "Stop" and os.environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk"):
        return (
            client_hooks.HookOutput()
        )  # `claude -p` would stay until the hook ends; seen with 2.1.197.
    with Store.open(root, keep_locks=False) as store:
        here = os.path.realpath(_project(said))
        named = agent or os.environ.get("CAPSULE_AGENT")
        agent = (
            store.agents.identity(named, here) if named else next(iter(store.agents.at(here)), None)
        )
        if agent is None:
            return client_hooks.HookOutput()
        return client_hooks.run_hook(store, agent, client, event, said, _has_ended())


def _project(said: dict[str, Any]) -> str:
    """The folder of the session: where it began, if the client says so, else where it is."""
    began = os.environ.get("CLAUDE_PROJECT_DIR") or os.environ.get("GEMINI_PROJECT_DIR")
    return began or str(said.get("cwd") or os.getcwd())


def _has_ended() -> Callable[[], bool]:
    """What says whether the client is gone: it has left our standard error, or is our parent no
    more.
    """
    parent, poll = os.getppid(), select.poll()
    poll.register(2, 0)
    return lambda: os.getppid() != parent or bool(poll.poll(0))
