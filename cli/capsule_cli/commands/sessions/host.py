"""`host`: what stands between the messages and the workers, and how it and they are.

What must stay true: a signal ends the host between two steps, and a second one at once; its log is
JSON lines on stderr, and nothing but messages of --stdio goes to stdout.
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

#: Seconds between two looks of `status` at a terminal.
_FRESH_S = 1.0


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
    from capsule.sessions.adapters.stdio import StdioAdapter
    from capsule.sessions.adapters.webhook import WebhookAdapter
    from capsule.sessions.host.host import Host
    from capsule.sessions.host.supervisor import prestarted_workers

    stop, codes = threading.Event(), [0]
    heard, hears = os.pipe()

    def hear(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        codes.append(INTERRUPTED if number == signal.SIGINT else TERMINATED)
        os.write(
            hears, b"."
        )  # Not `stop.set`: what a signal interrupts may hold the lock of the event.

    def end() -> None:
        os.read(heard, 1)
        stop.set()

    threading.Thread(target=end, name="signals", daemon=True).start()
    with open_full_store() as store:
        adapters: list[Any] = [
            WebhookAdapter(store.engine, _listening(webhook) if webhook else None)
        ]
        adapters += installed(store)
        if stdio:
            wirings = store.sessions.registry.read().wirings.values()
            way = (
                "no agent is wired to it; begin with: capsule worker wire stdio:stdio AGENT "
                "--pattern ."
            )
            refuse_if(
                not any(wiring.channel == StdioAdapter.name for wiring in wirings), way, "--stdio"
            )
            # Not `sys.stdin.buffer`: a thread that reads from it is fatal when the interpreter
            # ends.
            lines = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
            adapters.append(StdioAdapter(lines, print_json_bytes, stop.set))
        words = [*launch_words(), "worker", "run", "--store", store.root]
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, hear)
        with prestarted_workers([*words, "--agent", "-"]) as spawn:
            Host(store, spawn=spawn, adapters=adapters, log=write_line, max_workers=workers).run(
                stop
            )
    raise typer.Exit(codes[-1])


def _listening(where: str) -> Callable[[], socket.socket]:
    """What takes a port when the host begins. Raises InvalidInput: this is not an address."""
    from capsule.mcp_server.transport import http_process

    place = http_process.parse(where)

    def listen() -> socket.socket:
        listener = http_process.listen(*place)
        about = {"host": listener.host, "port": listener.port}
        write_line({"time": timestamps.now(), "step": "listening", **about})
        return listener.socket

    return listen


def status() -> None:
    """Print the running hosts and workers. At a terminal the table is refreshed until Ctrl-C."""
    end_at_once()
    processes: dict[int, psutil.Process] = {}
    with open_full_store() as store:
        while True:
            instances = map(_fields, store.engine.leases.live_instances().values())
            live = [
                fields | _load(fields.get("pid"), processes)
                for fields in instances
                if "what" in fields
            ]
            rows = [tuple(str(fields.get(name, "")) for name in _COLUMNS) for fields in live]
            is_fresh = in_terminal() and not global_options.json
            if is_fresh:
                print_safe_bytes(b"\x1b[H\x1b[J")
            print_list(
                live,
                _COLUMNS,
                rows,
                "no host runs; begin with: capsule worker host",
                last="session",
            )
            if not is_fresh:
                return
            time.sleep(_FRESH_S)


_COLUMNS = ("what", "agent", "state", "pid", "cpu", "memory", "since", "session")


def _fields(about: dict[str, Any]) -> dict[str, Any]:
    """What a host or a worker says of itself; of another instance nothing."""
    if "host" in about:
        return {"what": "host", **about, "pid": about["host"]}
    return {"what": "worker", **about} if "session" in about else {}


def _load(pid: Any, processes: dict[int, psutil.Process]) -> dict[str, str]:
    """How much of the machine a process takes; nothing: it has gone, or may not be looked at."""
    import psutil

    try:
        process = processes.setdefault(pid, psutil.Process(pid))
        return {
            "cpu": f"{process.cpu_percent():.0f}%",
            "memory": f"{process.memory_info().rss >> 20} MiB",
        }
    except (psutil.Error, TypeError):
        return {}
