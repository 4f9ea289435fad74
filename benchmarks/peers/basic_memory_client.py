"""Appends to a note through basic-memory's MCP server; run by `basic_memory.py` in the environment
that has it.

Prints one line of JSON. Knows nothing of the rest of the benchmarks.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from mcp import ClientSession, StdioServerParameters  # type: ignore[import-not-found, unused-ignore]
from mcp.client.stdio import stdio_client  # type: ignore[import-not-found, unused-ignore]

TEXT = "x" * 400


@contextmanager
def _nowhere() -> Iterator[TextIO]:
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        yield nowhere


async def _session(stack: AsyncExitStack, program: Path) -> Any:
    parameters = StdioServerParameters(command=str(program), args=["mcp"], env=dict(os.environ))
    errors = stack.enter_context(_nowhere())
    reading, writing = await stack.enter_async_context(stdio_client(parameters, errlog=errors))
    session = await stack.enter_async_context(ClientSession(reading, writing))
    await session.initialize()
    return session


def _arguments(tool: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Those of `given` that the tool of this version takes."""
    return {name: value for name, value in given.items() if name in tool.inputSchema["properties"]}


async def _case(program: Path, processes: int, appends: int) -> dict[str, Any]:
    title = f"Note for {processes}"
    taken: list[float] = []
    acknowledged: list[str] = []
    async with AsyncExitStack() as stack:
        sessions = [await _session(stack, program) for _ in range(processes)]
        tools = {tool.name: tool for tool in (await sessions[0].list_tools()).tools}
        new = {
            "title": title,
            "content": "# Note\n",
            "folder": "bench",
            "directory": "bench",
            "project": "main",
        }
        made = await sessions[0].call_tool("write_note", _arguments(tools["write_note"], new))
        if made.isError:
            raise RuntimeError(made.content[0].text)

        async def writer(number: int, session: Any) -> None:
            for count in range(appends):
                text = f"writer {number} message {count} "
                edit = {
                    "identifier": f"bench/{title.lower().replace(' ', '-')}",
                    "operation": "append",
                    "content": f"\n{text}{TEXT}",
                    "project": "main",
                }
                start = time.perf_counter()
                answer = await session.call_tool("edit_note", _arguments(tools["edit_note"], edit))
                taken.append(time.perf_counter() - start)
                said = " ".join(getattr(part, "text", "") for part in answer.content)
                if not answer.isError and not said.lstrip("# ").lower().startswith(
                    ("error", "edit failed")
                ):
                    acknowledged.append(text)

        await asyncio.gather(*(writer(number, session) for number, session in enumerate(sessions)))
    found = "".join(path.read_text("utf-8") for path in Path.home().rglob(f"{title}.md"))
    found += "".join(
        path.read_text("utf-8")
        for path in Path.home().rglob(f"{title.lower().replace(' ', '-')}.md")
    )
    return {
        "processes": processes,
        "attempted": processes * appends,
        "acknowledged": len(acknowledged),
        "kept": sum(text in found for text in acknowledged),
        "median_s": statistics.median(taken),
        "slowest_s": max(taken),
    }


async def main() -> None:
    """Measure with one process, then with four."""
    program = Path(sys.executable).with_name("basic-memory")
    appends = int(sys.argv[2])
    cases = [await _case(program, processes, appends) for processes in (1, 4)]
    print(json.dumps({"version": metadata.version("basic-memory"), "cases": cases}))


if __name__ == "__main__":
    asyncio.run(main())
