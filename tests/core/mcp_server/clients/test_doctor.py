"""Trying an entry out: real servers, started as the programs start them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from capsule.mcp_server.clients import doctor
from capsule.mcp_server.clients.settings import LaunchCommand, MachinePaths
from tests.core.cli.conftest import Program

pytestmark = pytest.mark.slow

CAPSULE = str(Path(sys.executable).with_name("capsule"))

#: Answers everything but a call of a tool.
_SERVER_WHOSE_TOOL_HANGS = """
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        version = request["params"]["protocolVersion"]
        info = {"name": "hanging", "version": "1"}
        result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    elif request["method"] == "tools/list":
        result = {"tools": [{"name": "list_conversations", "inputSchema": {"type": "object"}}]}
    else:
        continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "server.sh"
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


@pytest.mark.slow
@pytest.mark.sample
def test_a_server_that_works_is_described(
    capsule: Program, places: MachinePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "CAPSULE_STORE", "/nowhere"
    )  # What this process has there does not reach the server.
    seen = doctor.probe(
        LaunchCommand(CAPSULE, ("mcp", "--store", str(capsule.root))), cwd=places.home
    )
    assert seen.problems == []
    assert seen.server.startswith("capsule ")
    assert seen.protocol >= "2025-11-25"
    assert seen.tools > 5 and seen.ready_ms > 0
    assert 300 < seen.tokens < 3500
    assert seen.store == str(capsule.root)


def test_the_store_is_the_one_of_the_directory_and_the_environment_the_entry_gives(
    capsule: Program, places: MachinePaths
) -> None:
    launch = LaunchCommand(
        CAPSULE, ("mcp",), env={"CAPSULE_STORE": capsule.root.name}, cwd=str(capsule.root.parent)
    )
    seen = doctor.probe(launch, cwd=places.home)
    assert seen.store == str(capsule.root) and "CAPSULE_STORE" in seen.reason
    own = doctor.probe(LaunchCommand(CAPSULE, ("mcp",)), cwd=places.home, store=str(capsule.root))
    assert own.store.startswith(places.home)
    assert own.problems == [
        (
            f"it serves {own.store}, not {capsule.root}; write the entry again with --store "
            f"{capsule.root}"
        )
    ]


def test_a_store_that_can_not_be_found_out_is_a_finding_with_the_reason(
    capsule: Program, tmp_path: Path
) -> None:
    server = script(tmp_path, f"CAPSULE_STORE= exec '{CAPSULE}' mcp --store '{capsule.root}'")
    launch = LaunchCommand(server, env={"CAPSULE_STORE": "/nowhere"})
    seen = doctor.probe(launch, cwd=str(tmp_path), store=str(capsule.root))
    [problem] = seen.problems
    assert seen.store == "" and "/nowhere" in seen.reason
    assert str(capsule.root) in problem and seen.reason in problem


def test_finding_the_store_ends_at_the_timeout(tmp_path: Path) -> None:
    store, reason = doctor._store_served_by(LaunchCommand("capsule"), str(tmp_path), 0.001)
    assert store == "" and "within 0.001 s" in reason


def test_a_tool_that_never_answers_is_not_called_a_server_that_does_not_stop(
    tmp_path: Path,
) -> None:
    server = tmp_path / "server.py"
    server.write_text(_SERVER_WHOSE_TOOL_HANGS, encoding="utf-8")
    launch = LaunchCommand(sys.executable, (str(server),))
    seen = doctor.probe(launch, cwd=str(tmp_path), timeout_s=5)
    [problem] = seen.problems
    assert seen.tools == 1
    assert problem.startswith("it did not answer within 5 s")


def test_a_server_that_does_not_work_is_a_finding_with_what_it_said(tmp_path: Path) -> None:
    for body, timeout_s, problem in (
        ("echo no luck today >&2; exit 3", 60, "protocol"),
        ("exec cat", 60, "protocol"),
        ("exec sleep 600", 0.5, "within 0.5 s"),
    ):
        seen = doctor.probe(
            LaunchCommand(script(tmp_path, body)), cwd=str(tmp_path), timeout_s=timeout_s
        )
        [found] = seen.problems
        assert problem in found and ("no luck today" in found) == ("luck" in body)
        assert seen.tools == 0


def test_a_server_that_writes_something_else_to_stdout_is_a_finding(
    capsule: Program, tmp_path: Path
) -> None:
    server = script(tmp_path, f"echo hello\nexec '{CAPSULE}' mcp --store '{capsule.root}'")
    seen = doctor.probe(LaunchCommand(server), cwd=str(tmp_path))
    assert seen.problems == [
        "it writes other text than the protocol to stdout, which breaks its clients"
    ]
    assert seen.tools > 5


def test_a_server_that_is_no_capsule_is_a_finding(tmp_path: Path) -> None:
    body = "from mcp.server.mcpserver import MCPServer\nMCPServer('other').run('stdio')\n"
    seen = doctor.probe(LaunchCommand(sys.executable, ("-c", body)), cwd=str(tmp_path))
    assert seen.problems == [
        "it has no tool list_conversations, so it is not Capsule; write the entry again"
    ]


def test_an_executable_or_a_directory_that_is_gone_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    for launch, named in (
        (LaunchCommand(str(tmp_path / "gone"), ("mcp",)), tmp_path / "gone"),
        (LaunchCommand(str(tmp_path / "plain"), ("mcp",)), tmp_path / "plain"),
        (LaunchCommand(CAPSULE, ("mcp",), cwd=str(tmp_path / "gone")), tmp_path / "gone"),
    ):
        [problem] = doctor.probe(launch, cwd=str(tmp_path)).problems
        assert str(named) in problem
