"""Run a worker: `capsule worker run --agent NAME [--session ID] [-- COMMAND]`.

A host starts a worker for a waiting message. It also starts one ahead of any message, with
`--agent -`. That one opens the store, and reads two lines when it gets its work: the agent, and the
session.

What must stay true:
- The worker imports no typer, no pydantic and no mcp, and nothing at all once a message came.
- It ends, together with its command, when SIGTERM comes or its host ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


def run(*, store: str | None = None, agent: str, command: Sequence[str], **options: Any) -> None:
    """Run a worker until it ends. Raises CapsuleError.

    Args:
        store: The store's directory. None: it is located.
        agent: The agent, or `-` to read the agent and the session from stdin.
        command: The command. Empty: the command of the registry.
        options: Other arguments of `worker_of`.
    """
    from capsule import Store
    from capsule.sessions.worker.worker import worker_of

    signal.signal(signal.SIGTERM, _end)
    with Store.open(store, keep_locks=False) as opened_store:
        agent_id = agent
        worker_options = dict(options)
        if agent == "-":
            # What this imports is there when a message comes.
            opened_store.engine.tracker().close()
            agent_id = sys.stdin.readline().strip()
            worker_options["session"] = sys.stdin.readline().strip()
            if not agent_id:  # The host has ended.
                return
            threading.Thread(target=_end_with_host, daemon=True).start()
        worker_of(opened_store, agent_id, command, os.environ, log=_log, **worker_options).run()


def _end_with_host() -> None:
    """Wait for the end of stdin, which only the host holds open, and end this process. If the host
    is killed, the kernel closes it.
    """
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _end(*_: object) -> None:
    # A second signal would interrupt the worker while it gives its messages back.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def main(options: Mapping[str, Any]) -> int:
    """Run a worker, write an error as a line of the log, and return the exit code.

    Args:
        options: The arguments of `run`.
    """
    from capsule.errors import CapsuleError

    try:
        run(**options)
    except CapsuleError as error:
        _log("failed", error=error.message)
        return error.exit_code
    except Exception as error:
        import traceback

        _log("failed", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def write_line(line: dict[str, Any]) -> None:
    """Write a line of the log in one piece, because hosts, workers and threads write to one log.

    If its reader has ended, as a host that was killed, the line is lost and the worker goes on.
    """
    import orjson

    with suppress(OSError):
        os.write(sys.stderr.fileno(), orjson.dumps(line) + b"\n")


def _log(step: str, **fields: Any) -> None:
    from capsule import timestamps

    write_line({"time": timestamps.now(), "step": step, **fields})
