"""What a client's hook runs: `capsule agents wake hook CLIENT EVENT [--store DIR] [--as AGENT]`.

A client starts it at every turn, so `capsule_cli.__main__` calls `quick` before typer is loaded. What must stay true: a
hook with nothing to say prints nothing, loads no typer, no pydantic and no mcp, and ends with 0; an error is one line
on stderr, and no exit code that a client takes for an answer.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsule.messaging.doorbells.hooks import Answer

#: The words of the command line before those of the hook.
WORDS = ["agents", "wake", "hook"]


def quick(words: Sequence[str]) -> int | None:
    """Answer the hook that the words of the command line are about; None: they are about no hook, or typer's."""
    asked = parsed(words[3:]) if words[:3] == WORDS else None
    return run(*asked) if asked else None


def parsed(words: Sequence[str]) -> tuple[str, str, str | None, str | None] | None:
    """The client, the event, the store and the agent; None: the words are others, which typer tells about."""
    given: dict[str, str | None] = {"--store": None, "--as": None}
    options = dict(zip(words[2::2], words[3::2], strict=False))
    if len(words) < 2 or len(words) % 2 or not options.keys() <= given.keys() or words[0][:1] + words[1][:1] == "-":
        return None
    given |= options
    return words[0], words[1], given["--store"], given["--as"]


def run(client: str, event: str, store: str | None, agent: str | None) -> int:
    """Answer a hook of a client; the exit code."""
    import orjson

    from capsule.errors import CapsuleError

    data = b"" if sys.stdin.isatty() else sys.stdin.buffer.read()
    try:
        said = orjson.loads(data or b"{}")
        answer = _answer(client, event, store, agent, said if isinstance(said, dict) else {})
    except (CapsuleError, orjson.JSONDecodeError) as error:
        sys.stderr.write(f"capsule: {' '.join(str(error).split())}\n")
        return 1
    sys.stdout.write(answer.out)
    sys.stderr.write(answer.err)
    return answer.code


def _answer(client: str, event: str, root: str | None, agent: str | None, said: dict[str, Any]) -> Answer:
    from capsule import Store
    from capsule.messaging.doorbells import hooks

    if client == "codex":
        from shutil import which

        said = said | {"home": os.environ.get("CODEX_HOME"), "program": which("codex")}
    if event == "Stop" and os.environ.get("CLAUDE_CODE_ENTRYPOINT", "").startswith("sdk"):
        return hooks.Answer()  # `claude -p` would stay until the hook ends; seen with 2.1.197.
    with Store.open(root, keep_locks=False) as store:
        here = os.path.realpath(_project(said))
        named = agent or os.environ.get("CAPSULE_AGENT")
        agent = store.agents.identity(named, here) if named else next(iter(store.agents.at(here)), None)
        if agent is None:
            return hooks.Answer()
        return hooks.run(store, agent, client, event, said, _has_ended())


def _project(said: dict[str, Any]) -> str:
    """The folder of the session: where it began, if the client says so, else where it is."""
    began = os.environ.get("CLAUDE_PROJECT_DIR") or os.environ.get("GEMINI_PROJECT_DIR")
    return began or str(said.get("cwd") or os.getcwd())


def _has_ended() -> Callable[[], bool]:
    """What says whether the client is gone: it has left our standard error, or is our parent no more."""
    parent, poll = os.getppid(), select.poll()
    poll.register(2, 0)
    return lambda: os.getppid() != parent or bool(poll.poll(0))
