"""Tries an entry out: starts the server as the program would, talks to it, and reports.

What must stay true: the server gets the command, the arguments and the environment that the entry
gives, and of this process's environment only what every program passes on; only what changes
nothing is called; and a server that doesn't answer, or says what is no protocol, is a finding,
never a traceback.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from capsule.mcp_server.clients.programs import LaunchCommand
from capsule.mcp_server.tools.answers.results import token_cost

#: Seconds that the server has for all requests together.
TIMEOUT_S = 30.0
#: The tool that is called: it changes nothing, and needs nothing.
PROBE_TOOL = "list_conversations"
#: Characters of stderr, from the end, that a finding repeats.
_MAX_STDERR_CHARS = 2000


@dataclass(slots=True)
class ProbeReport:
    """The report on a server."""

    #: What is wrong, each with its way out.
    problems: list[str] = field(default_factory=list)
    server: str = ""
    protocol: str = ""
    #: How many tools it has, and about how many tokens their list costs a model.
    tools: int = 0
    tokens: int = 0
    #: How long it took until it answered.
    ready_ms: int = 0
    #: The directory of the store that it serves, and the reason why it serves this one, in words.
    store: str = ""
    reason: str = ""


def probe(
    launch: LaunchCommand, *, cwd: str, store: str | None = None, timeout_s: float = TIMEOUT_S
) -> ProbeReport:
    """Start the server as an entry says, ask it what any program asks, and stop it.

    Args:
        cwd: Where the program would start it, when the entry doesn't say.
        store: The store that it should serve; None: any.
    """
    seen = ProbeReport()
    cwd = launch.cwd or cwd
    name = os.path.join(cwd, launch.command) if os.path.dirname(launch.command) else launch.command
    if shutil.which(name, path={**_environment(), **launch.env}.get("PATH")) is None:
        seen.problems.append(
            f"{launch.command} no longer exists, or is not executable; write the entry again"
        )
        return seen
    if not os.path.isdir(cwd):
        seen.problems.append(
            f"its working directory {cwd} is not a directory; correct the entry's cwd"
        )
        return seen
    seen.store, seen.reason = _store(launch, cwd)
    logger = logging.getLogger("mcp")
    level = logger.level
    with tempfile.TemporaryFile() as stderr:
        logger.setLevel(logging.CRITICAL)  # A server's faults are findings, not log lines.
        try:
            _talk(launch, cwd, stderr, timeout_s, seen)
        finally:
            logger.setLevel(level)
        if seen.problems:
            stderr.seek(0)
            if said := stderr.read().decode("utf-8", "replace").strip():
                seen.problems[-1] += f"; it said: {said[-_MAX_STDERR_CHARS:]}"
    if (
        not seen.problems
        and store is not None
        and os.path.realpath(seen.store) != os.path.realpath(store)
    ):
        seen.problems.append(
            f"it serves {seen.store}, not {store}; write the entry again with --store {store}"
        )
    return seen


def _environment() -> dict[str, str]:
    """What every program passes on of its own environment: PATH, HOME and the like."""
    from mcp.client.stdio import get_default_environment

    return get_default_environment()


def _talk(
    launch: LaunchCommand, cwd: str, stderr: BinaryIO, timeout_s: float, seen: ProbeReport
) -> None:
    import anyio
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(
        command=launch.command, args=list(launch.args), env=dict(launch.env), cwd=cwd
    )
    garbage: list[str] = []

    async def hear(message: Any) -> None:
        if isinstance(message, Exception):
            garbage.append(str(message))

    async def talk() -> None:
        begun = time.perf_counter()
        transport = stdio_client(server, errlog=stderr)  # type: ignore[arg-type]
        with anyio.move_on_after(timeout_s) as scope:
            async with Client(transport, mode="legacy", message_handler=hear) as client:
                seen.ready_ms = round((time.perf_counter() - begun) * 1000)
                info = client.server_info
                seen.server = f"{info.name} {info.version}" if info else ""
                seen.protocol = client.protocol_version
                listed = (await client.list_tools()).tools
                seen.tools = len(listed)
                seen.tokens = sum(
                    token_cost(f"{tool.name}: {tool.description} {tool.input_schema}")
                    for tool in listed
                )
                if PROBE_TOOL not in {tool.name for tool in listed}:
                    seen.problems.append(
                        f"it has no tool {PROBE_TOOL}, so it is not Capsule; write the entry again"
                    )
                elif (answer := await client.call_tool(PROBE_TOOL, {"limit": 1})).is_error:
                    said = " ".join(getattr(block, "text", "") for block in answer.content)
                    seen.problems.append(f"{PROBE_TOOL} failed: {said}")
        if scope.cancelled_caught:
            failed, words = (
                "stop" if seen.tools else "answer",
                shlex.join([launch.command, *launch.args]),
            )
            seen.problems.append(
                f"it did not {failed} within {timeout_s:g} s; try it in a terminal: {words}"
            )

    try:
        anyio.run(talk)
    except (
        Exception
    ) as error:  # the SDK has its own for each thing a server can do wrong, some of them in groups
        seen.problems.append(f"it ended, or did not speak the protocol: {_error_text(error)}")
    if garbage:
        seen.problems.append(
            "it writes other text than the protocol to stdout, which breaks its clients"
        )


def _error_text(error: BaseException) -> str:
    """What an error says; of a group, what its first one says."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _store(launch: LaunchCommand, cwd: str) -> tuple[str, str]:
    """The store that such a server serves, and why: found by the same function in a process with
    its environment.
    """
    code = (
        "import sys; from capsule.locate import locate_store as find; found = "
        "find((sys.argv[1:] or [None])[0])\n"
    )
    code += "print(found.root, found.words, sep='\\n')"
    ours = {"PYTHONUTF8": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", code, *filter(None, [launch.store])]
    environment = {**_environment(), **launch.env, **ours}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, check=False)
    root, _, words = done.stdout.decode().strip().rpartition("\n")
    return root, words
