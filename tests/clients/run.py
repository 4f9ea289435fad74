"""Real clients against the real server: `make clients`.

Each client reads the settings that `capsule mcp install` wrote, starts the server with them, and
prints what it found. The clients use only the machine's Python and npm: HOME is a temporary
directory, no client has credentials, and every proxy is a closed port. A client that can't be
installed here is skipped, by name.

Run by hand, with names to run only those: `python tests/clients/run.py [NAME...]`. Exits 1 when one
fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.node.ensure import Installed, Unavailable, ensure  # noqa: E402

#: The longest time of one command of a client, in seconds.
TIMEOUT_S = 90
CAPSULE = str(Path(sys.executable).parent / "capsule")
#: Stops clients from sending data home; a closed port takes the rest.
QUIET = {
    "HTTP_PROXY": "http://127.0.0.1:9",
    "HTTPS_PROXY": "http://127.0.0.1:9",
    "NO_PROXY": "127.0.0.1,localhost",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "GEMINI_TELEMETRY_ENABLED": "false",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
}
#: Files that a client makes in a home; the real one must have none of them.
TRACES = (
    ".claude",
    ".claude.json",
    ".codex",
    ".gemini",
    ".mcp-inspector",
    ".config/opencode",
    ".local/share/opencode",
    ".cache/opencode",
    ".local/state/capsule",
)
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Failed(Exception):
    """A client did not pass its check."""


@dataclass(frozen=True)
class World:
    """The surroundings of a client: a home, a project, a store, and its program."""

    home: Path
    project: Path
    store: Path
    installed: Installed | None = None

    def environment(self) -> dict[str, str]:
        """The environment of a client."""
        path = "/usr/local/bin:/usr/bin:/bin"
        if self.installed is not None:
            path = f"{self.installed.node.parent}:{self.installed.modules / '.bin'}:{path}"
        variables = {
            "HOME": str(self.home),
            "PATH": path,
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            **QUIET,
        }
        # A person would trust this folder.
        return {**variables, "GEMINI_CLI_TRUST_WORKSPACE": "true"}

    def run(self, *words: str, expect: int = 0) -> str:
        """The stdout of a command."""
        try:
            done = subprocess.run(
                words,
                cwd=self.project,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(
                f"{words[0]} did not end within {TIMEOUT_S} s; it said: {error.stdout!r}"
            ) from None
        if done.returncode != expect:
            raise Failed(
                f"{' '.join(words)} exited {done.returncode}: "
                f"{(done.stderr or done.stdout)[-1500:]}"
            )
        return done.stdout

    def listing(self, *words: str) -> str:
        """The output of a command for a person: stdout and, as some use that, stderr."""
        both = self.run("/bin/sh", "-c", 'exec "$0" "$@" 2>&1', *words)
        return _COLOUR.sub("", both)

    def capsule(self, *words: str) -> str:
        """The output of `capsule` on the store of this world."""
        return self.run(CAPSULE, "--store", str(self.store), *words)


def line_with(output: str, *words: str) -> str:
    """The first line that has all these words.

    Raises:
        Failed: There is none.
    """
    for line in output.splitlines():
        if all(word in line for word in words):
            return line.strip()
    raise Failed(f"no line has {words} in its output:\n{output[-1500:]}")


@contextmanager
def http_server(world: World) -> Iterator[tuple[str, str]]:
    """The server over HTTP, on a free port. Yields: its address, and the token for a client."""
    bearer = "Bearer " + world.capsule("mcp", "tokens", "add", "client").strip()
    words = [CAPSULE, "--store", str(world.store), "mcp", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, text=True, cwd=world.project, env=world.environment()
    )
    assert process.stderr is not None
    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        url = next(
            (found[0] for line in process.stderr if (found := re.search(r"http://\S+", line))), None
        )
        watchdog.cancel()
        if url is None:
            raise Failed("the server over HTTP ended before it printed its address")
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield url, bearer
    finally:
        watchdog.cancel()
        process.terminate()
        process.wait(TIMEOUT_S)


def sdk(world: World) -> str:
    """The SDK's own client: both eras of the protocol, over stdio and HTTP."""
    from mcp import Client, StdioServerParameters
    from mcp.client.streamable_http import streamable_http_client
    from mcp.shared._httpx_utils import create_mcp_http_client

    over_stdio = StdioServerParameters(
        command=CAPSULE,
        args=["mcp", "--store", str(world.store)],
        env=world.environment(),
        cwd=str(world.project),
    )
    spoken = []

    async def talk(server: Any, mode: str) -> str:
        with anyio.fail_after(TIMEOUT_S):
            async with Client(server, mode=mode) as client:
                names = {tool.name for tool in (await client.list_tools()).tools}
                answer = await client.call_tool("list_conversations", {})
                read = await client.read_resource("capsule://conversations")
                if answer.is_error or "A first one" not in str(answer.content) + str(
                    answer.structured_content
                ):
                    raise Failed(f"list_conversations answered {answer}")
                if "A first one" not in str(read.contents) or "append_message" not in names:
                    raise Failed(f"the resource has {read.contents}, the tools are {names}")
                return client.protocol_version

    async def over_http(url: str, bearer: str, mode: str) -> str:
        async with create_mcp_http_client(headers={"Authorization": bearer}) as own:
            return await talk(streamable_http_client(url, http_client=own), mode)

    with http_server(world) as (url, bearer):
        for mode in ("legacy", "auto"):
            spoken.append(f"stdio {anyio.run(talk, over_stdio, mode)}")
            spoken.append(f"HTTP {anyio.run(over_http, url, bearer, mode)}")
    versions = {words.split()[1] for words in spoken}
    if len(versions) != 2:
        raise Failed(f"both eras should have been spoken, and were not: {spoken}")
    return ", ".join(spoken)


def inspector(world: World) -> str:
    """The MCP Inspector's command line: tools, a call and resources, over stdio and HTTP."""
    lines = []
    with http_server(world) as (url, bearer):
        over_http = [url, "--header", f"Authorization: {bearer}"]
        for name, target in (
            ("stdio", [CAPSULE, "mcp", "--store", str(world.store)]),
            ("HTTP", over_http),
        ):

            def ask(*words: str, target: list[str] = target) -> Any:
                return json.loads(world.run("mcp-inspector", "--cli", *target, *words))

            tools = ask("--method", "tools/list", "--strict")["tools"]
            called = ask(
                "--method",
                "tools/call",
                "--tool-name",
                "list_conversations",
                "--tool-arg",
                "limit=1",
            )
            listed = ask("--method", "resources/list")["resources"]
            templates = ask("--method", "resources/templates/list")["resourceTemplates"]
            read = ask("--method", "resources/read", "--uri", "capsule://conversations")["contents"]
            if (
                "1 conversation," not in called["content"][0]["text"]
                or "A first one" not in read[0]["text"]
            ):
                raise Failed(f"over {name} the results are {called} and {read}")
            lines.append(
                f"{name}: {len(tools)} tools, {len(listed)} resources, {len(templates)} templates"
            )
    return "; ".join(lines)


def claude_code(world: World) -> str:
    """`claude mcp list`, with the user's settings."""
    world.capsule("mcp", "install", "claude-code")
    line = line_with(world.listing("claude", "mcp", "list"), "capsule:", "Connected")
    world.capsule("mcp", "install", "claude-code", "--settings", "project")
    line_with(world.listing("claude", "mcp", "get", "capsule"), str(world.store))
    world.capsule("mcp", "uninstall", "claude-code", "--settings", "project")
    world.capsule("mcp", "uninstall", "claude-code")
    if "capsule:" in (output := world.listing("claude", "mcp", "list")):
        raise Failed(f"it still has the entry after uninstall: {output}")
    return line


def listed(client: str, *words: str) -> Callable[[World], str]:
    """`CLIENT mcp list`, with the user's settings and a project's; the words of one that is
    connected.
    """

    def check(world: World) -> str:
        for scope in ("user", "project"):
            world.capsule("mcp", "install", client, "--settings", scope)
            line = line_with(world.listing(client, "mcp", "list"), *words)
            world.capsule("mcp", "uninstall", client, "--settings", scope)
            if words[-1] in (output := world.listing(client, "mcp", "list")):
                raise Failed(f"it still has the entry after uninstall: {output}")
        return line

    return check


def codex(world: World) -> str:
    """Codex's app-server: `mcpServerStatus/list`, with the user's settings and those of a trusted
    project.
    """
    settings = world.home / ".codex" / "config.toml"
    settings.parent.mkdir()
    settings.write_text(
        f'# trusted\n[projects."{world.project}"]\ntrust_level = "trusted"\n', encoding="utf-8"
    )
    before = settings.read_text()
    for scope in ("user", "project"):
        world.capsule("mcp", "install", "codex", "--settings", scope)
        servers = _app_server(world, in_project=scope == "project")
        if [one["name"] for one in servers] != ["capsule"] or "append_message" not in servers[0][
            "tools"
        ]:
            raise Failed(f"of {scope} settings it says {json.dumps(servers)[:1500]}")
        world.capsule("mcp", "uninstall", "codex", "--settings", scope)
        if left := _app_server(world, in_project=scope == "project"):
            raise Failed(f"it still has the entry after uninstall: {left}")
    if tomllib.loads(settings.read_text()).get("projects") != tomllib.loads(before).get("projects"):
        raise Failed(f"its settings are not what they were: {settings.read_text()}")
    server = servers[0]
    return f"{server['name']}: {server['serverInfo']['version']}, {len(server['tools'])} tools"


def _app_server(world: World, *, in_project: bool = False) -> list[dict[str, Any]]:
    """The MCP servers of Codex's app-server; in a project: those of a session there."""
    process = subprocess.Popen(
        ["codex", "app-server"],
        cwd=world.project,
        env=world.environment(),
        executable=shutil.which("codex", path=world.environment()["PATH"]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        stdin.write(json.dumps({"id": number, "method": method, "params": params}) + "\n")
        stdin.flush()
        for line in stdout:
            answer = json.loads(line)
            if answer.get("id") == number and "method" not in answer:
                if "result" not in answer:
                    raise Failed(f"app-server answered {method} with {line}")
                return dict(answer["result"])
        raise Failed(f"app-server went away without an answer to {method}")

    watchdog = threading.Timer(TIMEOUT_S, process.kill)
    watchdog.start()
    try:
        ask(0, "initialize", {"clientInfo": {"name": "capsule-tests", "version": "1"}})
        stdin.write('{"method": "initialized"}\n')
        thread = (
            ask(1, "thread/start", {"cwd": str(world.project)})["thread"]["id"]
            if in_project
            else None
        )
        return list(ask(2, "mcpServerStatus/list", {"threadId": thread} if thread else {})["data"])
    finally:
        watchdog.cancel()
        stdin.close()
        process.terminate()
        stdout.read()
        process.wait(TIMEOUT_S)


@dataclass(frozen=True)
class Check:
    """A client: its check, and the folder in npm/ that pins its version."""

    run: Callable[[World], str]
    package: str = ""


CHECKS = {
    "SDK for Python": Check(sdk),
    "MCP Inspector": Check(inspector, "inspector"),
    "Claude Code": Check(claude_code, "claude-code"),
    "OpenCode": Check(listed("opencode", "capsule", "connected"), "opencode"),
    "Gemini CLI": Check(listed("gemini", "Connected", "capsule:"), "gemini"),
    "Codex": Check(codex, "codex"),
}


@contextmanager
def _home_for_npm(home: Path) -> Iterator[None]:
    """Use another HOME while npm installs, as packages run scripts; npm keeps its settings and
    cache.
    """
    home.mkdir(parents=True)
    real = Path.home()
    kept = {"NPM_CONFIG_USERCONFIG": str(real / ".npmrc"), "NPM_CONFIG_CACHE": str(real / ".npm")}
    before = dict(os.environ)
    lower = {name.lower() for name in before}
    os.environ.update(
        {name: value for name, value in kept.items() if name.lower() not in lower}, HOME=str(home)
    )
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def examine(check: Check, folder: Path) -> tuple[str, str]:
    """Run a check. Returns: ok, FAILED or SKIPPED, and its outcome."""
    version = ""
    installed = None
    if check.package:
        package = HERE / "npm" / check.package
        try:
            with _home_for_npm(folder / "npm"):
                installed = ensure(package)
        except Unavailable as error:
            return "SKIPPED", str(error)
        pinned = json.loads((package / "package.json").read_text())["dependencies"]
        version = " ".join(pinned.values()) + ": "
    world = World(folder / "home", folder / "my project", folder / "my störe", installed)
    world.home.mkdir(parents=True)
    world.project.mkdir()
    try:
        world.run(CAPSULE, "init", str(world.store))
        world.capsule("new", "A first one")
        return "ok", version + check.run(world).replace(str(folder), "")
    except Failed as error:
        return "FAILED", version + str(error)


def main(names: list[str]) -> int:
    """Run the checks whose names contain one of `names`, or all of them."""
    rows = []
    before = {trace for trace in TRACES if (Path.home() / trace).exists()}
    for name, check in CHECKS.items():
        if names and not any(part.lower() in name.lower() for part in names):
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(
            prefix="capsule-clients-", ignore_cleanup_errors=True
        ) as folder:
            state, outcome = examine(check, Path(folder).resolve())
        rows.append((name, state))
        print(f"{state:8}{name} ({time.monotonic() - begun:.0f} s)\n        {outcome}", flush=True)
    left = {trace for trace in TRACES if (Path.home() / trace).exists()} - before
    rows.append(
        (f"your home is as it was{f', but for {left}' if left else ''}", "FAILED" if left else "ok")
    )
    print("\n" + "\n".join(f"{state:8}{name}" for name, state in rows))
    return 1 if any(state == "FAILED" for _, state in rows) or len(rows) == 1 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
