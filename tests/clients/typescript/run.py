"""Uses `capsule mcp` as an agent does, with both TypeScript SDKs, over stdio and over HTTP with a
token.

What must stay true: the programs under test are the installed `capsule` and the SDKs from npm; each
combination has a separate store; and a step that didn't run counts as failed.

    python tests/clients/typescript/run.py               all combinations
    python tests/clients/typescript/run.py --may-skip    exit 0 with a note where npm or its registry is not available
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2])]

from tests.node.ensure import UNAVAILABLE, Installed, Unavailable, ensure  # noqa: E402
from tests.node.serving import capsule, environment, serving  # noqa: E402

#: Client, era, transport. The names of clients are those of the modules beside main.mjs.
COMBINATIONS = [
    (sdk, era, transport)
    for sdk, eras in (("sdk1", ("2025",)), ("client2", ("2025", "2026")))
    for era in eras
    for transport in ("stdio", "http")
]
#: The number of steps in main.mjs; it prints a line for each.
STEPS = 14
TIMEOUT_S = 120


def go_through(
    sdk: str, era: str, transport: str, node: Installed, place: Path
) -> list[dict[str, Any]]:
    """Run one combination. Returns: the line of each step."""
    store = place / "store"
    program = capsule(store)
    env = environment(place)
    subprocess.run([*program, "init", str(store)], check=True, stdout=subprocess.DEVNULL, env=env)
    server = {"command": [*program, "mcp"], "env": env, "capsule": program}
    if transport == "stdio":
        return _run(sdk, era, transport, server, node)
    command = [*program, "mcp", "--http", "127.0.0.1:0"]
    added = [*program, "mcp", "tokens", "add", "tester", "--allow", "admin", "--json"]
    made = subprocess.run(
        added, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
    )
    headers = {"Authorization": f"Bearer {json.loads(made.stdout)['token']}"}
    with serving(command, place / "server.log", env) as url:
        return _run(sdk, era, transport, {**server, "url": url, "headers": headers}, node)


def _run(
    sdk: str, era: str, transport: str, server: dict[str, Any], node: Installed
) -> list[dict[str, Any]]:
    done = subprocess.run(
        node.command(HERE / "main.mjs", sdk, era, transport, json.dumps(server)),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env=node.environment(),
    )
    steps = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if (done.returncode and all(step["ok"] for step in steps)) or len(steps) != STEPS:
        steps.append(
            {"step": f"{len(steps)} of {STEPS} steps", "ok": False, "error": done.stderr[-3000:]}
        )
    return steps


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--may-skip", action="store_true", help="exit 0 where npm or its registry can't be had"
    )
    asked = parser.parse_args(arguments)
    try:
        node = ensure()
    except Unavailable as error:
        print(f"SKIPPED: the TypeScript SDKs against capsule mcp: {error}", file=sys.stderr)
        return 0 if asked.may_skip else UNAVAILABLE
    wrong = 0
    for sdk, era, transport in COMBINATIONS:
        with tempfile.TemporaryDirectory(prefix="capsule typescript ") as place:
            steps = go_through(sdk, era, transport, node, Path(place))
        bad = [step for step in steps if not step["ok"]]
        wrong += len(bad)
        print(
            f"{sdk:<8} {era}  {transport:<6} {len(steps) - len(bad):>2} ok  {len(bad):>2} wrong",
            flush=True,
        )
        for step in bad:
            print(f"WRONG: {step['step']}: {step['error']}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
