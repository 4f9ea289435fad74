"""Try an entry: start the server as the program would, send it requests, and report.

What must stay true: the server gets the command, arguments and environment of the entry, and of
this process's environment only the variables that every program passes on. Only a tool that changes
nothing is called. A server that does not start or answer, or breaks the protocol, is a problem in the
report and no exception.
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

from capsule.mcp_server.clients.settings import LaunchCommand
from capsule.mcp_server.tools.answers import token_cost

#: Seconds for starting the server, all requests and stopping it.
TIMEOUT_S = 30.0
#: The tool that is called. It changes nothing.
PROBE_TOOL = "list_conversations"
#: Characters of stderr, from the end, that a finding repeats.
_MAX_STDERR_CHARS = 2000
#: Prints the store that a server with this argument and environment serves, and the reason.
_LOCATE_STORE = """
import sys
from capsule.locate import locate_store
location = locate_store(sys.argv[1] if len(sys.argv) > 1 else None)
print(location.root, location.explanation, sep="\\n")
"""


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
    #: The directory of the store that its arguments, environment and folder lead to, and the reason
    #: why it is this one, in words. If it can't be found out, the store is empty, and the reason
    #: says why.
    store: str = ""
    reason: str = ""


def probe(
    launch: LaunchCommand, *, cwd: str, store: str | None = None, timeout_s: float = TIMEOUT_S
) -> ProbeReport:
    """Start the server of an entry, send it the requests that every program sends, and stop it.

    Args:
        launch: How the entry starts the server.
        cwd: The folder where the program would start it, unless the entry names one.
        store: The store that it has to serve. None: any.
        timeout_s: Seconds for starting the server, all requests and stopping it. Finding the store
            before that may take as long again.
    """
    report = ProbeReport()
    cwd = launch.cwd or cwd
    program = launch.command
    if os.path.dirname(program):
        program = os.path.join(cwd, program)
    if shutil.which(program, path={**_environment(), **launch.env}.get("PATH")) is None:
        report.problems.append(
            f"{launch.command} can't be found, or is not executable; write the entry again"
        )
        return report
    if not os.path.isdir(cwd):
        report.problems.append(
            f"its working directory {cwd} is not a directory; correct the entry's cwd"
        )
        return report
    report.store, report.reason = _store_served_by(launch, cwd, timeout_s)
    logger = logging.getLogger("mcp")
    level = logger.level
    with tempfile.TemporaryFile() as stderr:
        logger.setLevel(logging.CRITICAL)  # A server's faults are findings, not log lines.
        try:
            _talk(launch, cwd, stderr, timeout_s, report)
        finally:
            logger.setLevel(level)
        if report.problems:
            stderr.seek(0)
            if error_output := stderr.read().decode("utf-8", "replace").strip():
                report.problems[-1] += f"; it said: {error_output[-_MAX_STDERR_CHARS:]}"
    if report.problems or store is None:
        return report
    if not report.store:
        report.problems.append(
            f"whether it serves {store} can't be found out: {report.reason}; write the entry again "
            f"with --store {store}"
        )
    elif os.path.realpath(report.store) != os.path.realpath(store):
        report.problems.append(
            f"it serves {report.store}, not {store}; write the entry again with --store {store}"
        )
    return report


def _environment() -> dict[str, str]:
    """Return the variables that every program passes on: PATH, HOME and so on."""
    from mcp.client.stdio import get_default_environment

    return get_default_environment()


def _talk(
    launch: LaunchCommand, cwd: str, stderr: BinaryIO, timeout_s: float, report: ProbeReport
) -> None:
    """Send requests to the server, and write the answers and problems into the report."""
    import anyio
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    server = StdioServerParameters(
        command=launch.command, args=list(launch.args), env=dict(launch.env), cwd=cwd
    )
    invalid_output: list[str] = []

    async def receive(message: Any) -> None:
        if isinstance(message, Exception):
            invalid_output.append(str(message))

    async def talk() -> None:
        start_s = time.perf_counter()
        unfinished_step = "answer"
        transport = stdio_client(server, errlog=stderr)  # type: ignore[arg-type]
        with anyio.move_on_after(timeout_s) as scope:
            async with Client(transport, mode="legacy", message_handler=receive) as client:
                report.ready_ms = round((time.perf_counter() - start_s) * 1000)
                info = client.server_info
                report.server = f"{info.name} {info.version}" if info else ""
                report.protocol = client.protocol_version
                tools = (await client.list_tools()).tools
                report.tools = len(tools)
                report.tokens = sum(
                    token_cost(f"{tool.name}: {tool.description} {tool.input_schema}")
                    for tool in tools
                )
                if PROBE_TOOL not in {tool.name for tool in tools}:
                    report.problems.append(
                        f"it has no tool {PROBE_TOOL}, so it is not Capsule; write the entry again"
                    )
                elif (answer := await client.call_tool(PROBE_TOOL, {"limit": 1})).is_error:
                    error_output = " ".join(getattr(block, "text", "") for block in answer.content)
                    report.problems.append(f"{PROBE_TOOL} failed: {error_output}")
                unfinished_step = "stop"
        if scope.cancelled_caught:
            command = shlex.join([launch.command, *launch.args])
            report.problems.append(
                f"it did not {unfinished_step} within {timeout_s:g} s; try it in a terminal: {command}"
            )

    try:
        anyio.run(talk)
    except Exception as error:
        # The SDK has its own for each thing a server can do wrong, some of them in groups.
        report.problems.append(f"it ended, or did not speak the protocol: {_error_text(error)}")
    if invalid_output:
        report.problems.append(
            "it writes other text than the protocol to stdout, which breaks its clients"
        )


def _error_text(error: BaseException) -> str:
    """Return the text of an error. Of a group, return the text of its first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def _store_served_by(launch: LaunchCommand, cwd: str, timeout_s: float) -> tuple[str, str]:
    """Return the store that such a server serves, and the reason. If it can't be found out, return
    an empty text and the error.

    A process with the server's environment calls the function that a server calls too.
    """
    python_variables = {"PYTHONUTF8": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", _LOCATE_STORE, *filter(None, [launch.store])]
    environment = {**_environment(), **launch.env, **python_variables}
    try:
        output = subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, check=True, timeout=timeout_s
        ).stdout
    except subprocess.CalledProcessError as error:
        return "", error.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
    except subprocess.TimeoutExpired:
        return "", f"the store was not found within {timeout_s:g} s"
    except OSError as error:
        return "", f"{sys.executable} can't be started: {error.strerror}"
    root, _, explanation = output.decode().strip().rpartition("\n")
    return root, explanation
