"""Runs a worker: `capsule worker run --agent NAME [--session ID] [-- COMMAND]`.

A host starts one for a message that waits. One that is started with `--agent -`, ahead of any
message, opens the store, and reads two lines when there is one: the agent, and the session. What
must stay true: it loads no typer, no pydantic and no mcp, and nothing once a message came; and it
ends, with what it runs, as soon as SIGTERM comes or its host is gone.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any


def run(*, store: str | None = None, agent: str, command: Sequence[str], **more: Any) -> None:
    """Run a worker until it ends. Raises CapsuleError.

    Args:
        store: The store's directory; None: the one that is found.
        agent, command, more: Arguments of `worker_of`.
    """
    from capsule import Store
    from capsule.sessions.worker.worker import worker_of

    signal.signal(signal.SIGTERM, _end)
    with Store.open(store, keep_locks=False) as opened:
        if agent == "-":
            opened.engine.tracker().close()  # What it loads is there when a message comes.
            agent, more["session"] = sys.stdin.readline().strip(), sys.stdin.readline().strip()
            if not agent:  # The host has ended.
                return
            threading.Thread(target=_end_with_host, daemon=True).start()
        worker_of(opened, agent, command, os.environ, log=_log, **more).run()


def _end_with_host() -> None:
    """Wait for the end of the input, which only the host holds open: the kernel closes it if the
    host is killed.
    """
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _end(*_: object) -> None:
    signal.signal(
        signal.SIGTERM, signal.SIG_IGN
    )  # A second one would come in the middle of giving messages back.
    sys.exit(0)


def main(options: Mapping[str, Any]) -> int:
    """Run a worker, and tell an error as a line of the log; the exit code."""
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
    """Write a line of the log, in one piece: hosts, workers and threads write there too.

    Whoever read the log may be gone, as a host is that was killed: that ends no worker.
    """
    import orjson

    with suppress(OSError):
        os.write(sys.stderr.fileno(), orjson.dumps(line) + b"\n")


def _log(step: str, **about: Any) -> None:
    from capsule import timestamps

    write_line({"time": timestamps.now(), "step": step, **about})
