"""The MCP server as its clients meet it: how soon it answers, what a call costs, and what it costs
to have it wait.

What must stay true: everything runs over real pipes to real processes, started as a client starts
them; the SDK's own server, with nothing in it, is the measure.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import corpus
from benchmarks.environment import usual
from benchmarks.fixtures import texts, write_capsule
from benchmarks.harness import Contestant, Samples, interleave
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows, times
from capsule import Store

__all__ = ["run"]

_EMPTY = "from mcp.server.mcpserver import MCPServer\nMCPServer('empty').run()"
_NOOP = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("noop")
@server.tool()
def noop(id: str, content: str) -> str:
    return id
server.run()
"""
_CALL_BAR, _READY_BAR, _CPU_BAR, _MB_BAR = 1.5, 1.15, 1.0, 20.0
_BARS = {
    "MCP tool call over stdio, append_message": f"at most {_CALL_BAR}x of an SDK no-op tool + one "
    "durable append",
    "MCP server ready, from its start to the answer of initialize": f"at most {_READY_BAR}x of "
    "the SDK's own empty",
    "idle MCP server with a subscription": f"under {_CPU_BAR:g} % CPU, under {_MB_BAR:g} MB above "
    "the SDK's empty one",
}
_CALL, _READY, _IDLE = _BARS
_ID = "c"
_MB = 1e6
_INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1"},
}


def run(bench: Bench) -> Report:
    """Measure the MCP server."""
    report = Report()
    program = Path(sys.executable).with_name("capsule")
    reason = (
        "" if program.exists() else f"there is no {program.name} beside {Path(sys.executable).name}"
    )
    try:
        import mcp  # noqa: F401
    except ImportError as error:
        reason = str(error)
    if reason:
        report.skipped["MCP"] = reason
        report.bars = [Bar(what, bar, "", None, reason) for what, bar in _BARS.items()]
        return report
    root = bench.directory / "store"
    Store.init(root)
    for number in range(100):
        write_capsule(root, f"c{number:03}", messages=20)
    write_capsule(root, _ID, messages=100)
    _ready(bench, report, root)
    _call(bench, report, root)
    _idle(bench, report)
    return report


def _ours(root: Path) -> list[str]:
    return [str(Path(sys.executable).with_name("capsule")), "--store", str(root), "mcp"]


def _python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


class _Pipes:
    """A server started in a directory, and the other end of its pipes: one JSON a line."""

    def __init__(self, words: list[str], where: Path) -> None:
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=where,
            env=usual(),
        )
        self._numbers = itertools.count(1)

    def tell(self, method: str, **more: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(
            json.dumps({"jsonrpc": "2.0", "method": method} | more).encode() + b"\n"
        )
        self.process.stdin.flush()

    def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request."""
        number = next(self._numbers)
        self.tell(method, id=number, params=params)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer = json.loads(line)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
        raise RuntimeError(f"{method}: the server went away with {self.process.wait()}")

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)
        self.process.stdout.close()


def _ready(bench: Bench, report: Report, root: Path) -> None:
    servers = {"capsule mcp": _ours(root), "the SDK's empty server": _python(_EMPTY)}
    started: list[_Pipes] = []

    def stop() -> None:
        while started:
            started.pop().close()

    def start(words: list[str]) -> None:
        started.append(_Pipes(words, root))
        started[-1].ask("initialize", _INITIALIZE)

    def plain() -> None:
        subprocess.run(
            [sys.executable, "-c", "import mcp.server.mcpserver"], check=True, env=usual()
        )

    rounds = bench.rounds(25, 5)
    with bench.progress("MCP servers, ready", rounds) as step:
        samples = interleave(
            [
                *(
                    Contestant(name, partial(start, words), prepare=stop)
                    for name, words in servers.items()
                ),
                Contestant('python -c "import mcp.server.mcpserver"', plain, prepare=stop),
            ],
            rounds,
            warm_up=2,
            tick=step,
        )
        stop()
    us, empty = samples["capsule mcp"], samples["the SDK's empty server"]
    ratio = us.median / empty.median
    columns = ("what", "server", "rounds", "median", "p95", "p99", "max", "capsule / it")
    report.tables.append(
        Table(
            "MCP over stdio: until the server answers",
            columns,
            sample_rows("ready", samples.values(), us),
        )
    )
    report.bars.append(
        Bar(
            _READY,
            _BARS[_READY],
            f"{times(ratio)} ({micro(us.median)} and {micro(empty.median)})",
            ratio <= _READY_BAR,
            "what is imported and built besides the SDK: the command line, the store, a dozen "
            "tools with their models",
        )
    )
    report.data["ready"] = {name: one.as_json() for name, one in samples.items()}


@asynccontextmanager
async def _client(words: list[str], where: Path) -> AsyncIterator[Any]:
    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(command=words[0], args=words[1:], cwd=where, env=usual())
    async with Client(server) as client:
        yield client


@contextmanager
def _clients(
    loop: asyncio.AbstractEventLoop, servers: dict[str, list[str]], where: Path
) -> Iterator[dict[str, Any]]:
    """A connected client of each server. They live in one task, as they must end where
    they began.
    """
    ready: asyncio.Future[dict[str, Any]] = loop.create_future()
    done = asyncio.Event()

    async def hold() -> None:
        async with AsyncExitStack() as stack:
            try:
                found = {
                    name: await stack.enter_async_context(_client(words, where))
                    for name, words in servers.items()
                }
            except BaseException as error:
                ready.set_exception(error)
                return
            ready.set_result(found)
            await done.wait()

    task = loop.create_task(hold())
    try:
        yield loop.run_until_complete(ready)
    finally:
        done.set()
        loop.run_until_complete(task)


def _call(bench: Bench, report: Report, root: Path) -> None:
    plain = bench.directory / "plain"
    Store.init(plain)
    write_capsule(plain, _ID, messages=100)
    pool = itertools.cycle(texts())
    loop = asyncio.new_event_loop()
    rounds = bench.rounds(1000, 150)
    servers = {"capsule": _ours(root), "no-op": _python(_NOOP)}

    def asked(client: Any, tool: str) -> Coroutine[Any, Any, Any]:
        return client.call_tool(tool, {"id": _ID, "content": next(pool)})

    def called(client: Any, tool: str) -> None:
        answer = loop.run_until_complete(asked(client, tool))
        assert not answer.is_error, answer

    with (
        bench.progress("MCP calls", rounds) as step,
        Store.open(plain) as store,
        _clients(loop, servers, root) as clients,
    ):
        samples = interleave(
            [
                Contestant("append_message", lambda: called(clients["capsule"], "append_message")),
                Contestant("an SDK server's no-op tool", lambda: called(clients["no-op"], "noop")),
                Contestant(
                    "Store.append, in one's own process",
                    lambda: store.append(_ID, content=next(pool)),
                ),
            ],
            rounds,
            warm_up=20,
            tick=step,
        )
    loop.close()
    us = samples["append_message"]
    allowed: Samples = samples["an SDK server's no-op tool"]
    limit_s = allowed.median + samples["Store.append, in one's own process"].median
    ratio = us.median / limit_s
    columns = ("what", "how", "rounds", "median", "p95", "p99", "max", "capsule / it")
    report.tables.append(
        Table(
            "MCP over stdio: a call of a tool",
            columns,
            sample_rows("400 bytes", samples.values(), us),
            "By the SDK's client, which negotiates the newest protocol. The no-op takes the same "
            "arguments.",
        )
    )
    report.bars.append(
        Bar(
            _CALL,
            _BARS[_CALL],
            f"{times(ratio)} ({micro(us.median)} of {micro(limit_s)} for both)",
            ratio <= _CALL_BAR,
            "a result with a model of its own, which the server validates and the client checks "
            "against its schema",
        )
    )
    report.data["call"] = {name: one.as_json() for name, one in samples.items()}


def cpu_s(pid: int) -> float:
    """The seconds of a processor that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(pid: int) -> dict[str, int]:
    """What a process has in memory, in bytes: all (`Rss`), and its share of what is
    shared (`Pss`).
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii").splitlines()[1:]
    found = {line.partition(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return {name: found[name] for name in ("Rss", "Pss")}


def _idle(bench: Bench, report: Report) -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        reason = "the system does not tell of other processes in /proc"
        report.bars.append(Bar(_IDLE, _BARS[_IDLE], "", None, reason))
        return
    made = corpus.ensure(bench)
    with Store.open(made.root) as store:
        id = next(store.heads()).id  # The index is there, as whoever used the store before left it.
    seconds = bench.rounds(40, 6, 1)
    servers = {"capsule mcp": _ours(made.root), "the SDK's empty server": _python(_EMPTY)}
    opened: dict[str, _Pipes] = {}
    found: dict[str, dict[str, float]] = {}
    with bench.progress("idle MCP servers", 1) as step:
        try:
            for name, words in servers.items():
                opened[name] = pipes = _Pipes(words, made.root)
                pipes.ask("initialize", _INITIALIZE)
                pipes.tell("notifications/initialized")
                pipes.ask("tools/list", {})
            opened["capsule mcp"].ask(
                "resources/subscribe", {"uri": f"capsule://conversations/{id}"}
            )
            time.sleep(4)  # What is still to be begun has begun.
            before = {name: cpu_s(one.process.pid) for name, one in opened.items()}
            time.sleep(seconds)
            for name, one in opened.items():
                pid = one.process.pid
                found[name] = {"cpu": (cpu_s(pid) - before[name]) / seconds * 100} | _memory(pid)
        finally:
            for one in opened.values():
                one.close()
        step()
    us, empty = found["capsule mcp"], found["the SDK's empty server"]
    above = (us["Rss"] - empty["Rss"]) / _MB
    rows = [
        (name, f"{one['cpu']:.2f} %", f"{one['Rss'] / _MB:,.1f} MB", f"{one['Pss'] / _MB:,.1f} MB")
        for name, one in found.items()
    ]
    report.tables.append(
        Table(
            "An idle MCP server",
            ("server", "CPU", "resident", "its share (PSS)"),
            rows,
            f"Over {seconds:g} s, side by side. Ours serves {made.conversations:,} conversations "
            "of "
            f"{made.messages:,} messages, and has a subscription to one, so that it watches.",
        )
    )
    report.bars.append(
        Bar(
            _IDLE,
            _BARS[_IDLE],
            f"{us['cpu']:.2f} % (the empty one: {empty['cpu']:.2f} %), {above:+.1f} MB",
            us["cpu"] < _CPU_BAR and above < _MB_BAR,
            "the modules of the store and what they import, sqlite's cache, and the thread that "
            "listens",
        )
    )
    report.data["idle"] = found
