"""The commands `worker host`, which runs a host, and `worker status`, which lists hosts and workers.

What must stay true: a first signal ends the host between two steps, and a second one ends it at
once. The log is JSON lines on stderr. Only the messages of --stdio go to stdout.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from capsule import timestamps
from capsule_cli.commands.mcp.clients import launch_words
from capsule_cli.commands.sessions.worker_process import write_line
from capsule_cli.error_output import INTERRUPTED, TERMINATED
from capsule_cli.public import open_full_store
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import flag, option, refuse_if
from capsule_cli.shared.output import in_terminal, print_json_bytes, print_list, print_safe_bytes
from capsule_cli.shared.stores import ensure_person
from capsule_cli.signals import end_at_once

if TYPE_CHECKING:
    import socket

    import psutil  # type: ignore[import-untyped]

#: Seconds after which `status` refreshes the table at a terminal.
_REFRESH_S = 1.0
#: The columns of `status`, which are the names of JSON fields.
_COLUMNS = ("what", "agent", "state", "pid", "cpu", "memory", "since", "session")


def host(
    webhook: str | None = option(
        "--webhook [HOST:]PORT", "Take signed messages by HTTP there. Without HOST: 127.0.0.1."
    ),
    stdio: bool = flag(
        "--stdio",
        "Take messages as JSON lines on standard input, and write answers to standard output.",
    ),
    workers: int = option("--workers N", "Run at most N workers at once.", 8, min=1),
) -> None:
    """Wake workers when messages come, deliver their answers, retry, schedule, and recover after
    crashes.

    It runs until Ctrl-C or SIGTERM; with --stdio also until its input ends. A second host on the
    same store waits, and takes over when the first one ends.
    """
    ensure_person("hosts")
    from capsule.sessions.adapters.interface import installed
    from capsule.sessions.adapters.programs import StdioAdapter, WebhookAdapter
    from capsule.sessions.host.host import Host, prestarted_workers

    stop = threading.Event()
    exit_codes = [0]
    read_end, write_end = os.pipe()

    def on_signal(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # So a second signal ends the process.
        exit_codes.append(INTERRUPTED if number == signal.SIGINT else TERMINATED)
        # Not `stop.set`, because the interrupted code may hold the lock of the event.
        os.write(write_end, b".")

    def stop_after_signal() -> None:
        os.read(read_end, 1)
        stop.set()

    threading.Thread(target=stop_after_signal, name="signals", daemon=True).start()
    with open_full_store() as store:
        listen = _listener_of(webhook) if webhook else None
        adapters: list[Any] = [WebhookAdapter(store.engine, listen)]
        adapters += installed(store)
        if stdio:
            wirings = store.sessions.registry.read().wirings.values()
            is_wired = any(wiring.channel == StdioAdapter.name for wiring in wirings)
            hint = (
                "no agent is wired to it; begin with: capsule worker wire stdio:stdio AGENT "
                "--pattern ."
            )
            refuse_if(not is_wired, hint, "--stdio")
            # Not `sys.stdin.buffer`: a thread that reads from it is fatal when the interpreter
            # ends.
            lines = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
            adapters.append(StdioAdapter(lines, print_json_bytes, stop.set))
        words = [*launch_words(), "worker", "run", "--store", store.root, "--agent", "-"]
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)
        with prestarted_workers(words) as spawn:
            running_host = Host(
                store, spawn=spawn, adapters=adapters, log=write_line, max_workers=workers
            )
            running_host.run(stop)
    raise typer.Exit(exit_codes[-1])


def _listener_of(address: str) -> Callable[[], socket.socket]:
    """Return a function that opens the port of an address and logs it.

    Raises InvalidInput if the address cannot be read.
    """
    from capsule.mcp_server.transport import process

    host_and_port = process.parse_address(address)

    def listen() -> socket.socket:
        listener = process.listen(*host_and_port)
        fields = {"host": listener.host, "port": listener.port}
        write_line({"time": timestamps.now(), "step": "listening", **fields})
        return listener.socket

    return listen


def status() -> None:
    """Print the running hosts and workers. At a terminal the table is refreshed until Ctrl-C."""
    end_at_once()
    processes: dict[int, psutil.Process] = {}
    with open_full_store() as store:
        while True:
            instances = []
            for fields in store.engine.leases.live_instances().values():
                instance = _describe_instance(fields)
                if instance:
                    instances.append(instance | _load_of(instance.get("pid"), processes))
            rows = [
                tuple(str(instance.get(name, "")) for name in _COLUMNS) for instance in instances
            ]
            is_refreshed = in_terminal() and not global_options.json
            if is_refreshed:
                print_safe_bytes(b"\x1b[H\x1b[J")
            print_list(
                instances,
                _COLUMNS,
                rows,
                "no host runs; begin with: capsule worker host",
                last="session",
            )
            if not is_refreshed:
                return
            time.sleep(_REFRESH_S)


def _describe_instance(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of an instance, from the fields that it announces. Empty: it is neither a
    host nor a worker.
    """
    if "host" in fields:
        return {"what": "host", **fields, "pid": fields["host"]}
    if "session" in fields:
        return {"what": "worker", **fields}
    return {}


def _load_of(pid: Any, processes: dict[int, psutil.Process]) -> dict[str, str]:
    """Return how much processor time and memory a process uses. Empty: it ended, or is another
    user's.

    Args:
        pid: Its process id.
        processes: The processes by id, which remember the last measurement.
    """
    import psutil

    try:
        process = processes.setdefault(pid, psutil.Process(pid))
        return {
            "cpu": f"{process.cpu_percent():.0f}%",
            "memory": f"{process.memory_info().rss >> 20} MiB",
        }
    except (psutil.Error, TypeError):
        return {}
