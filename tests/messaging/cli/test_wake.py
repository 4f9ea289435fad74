"""`capsule agent wake`: what a hook answers, and what a test of the bells says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.messaging import doorbells
from capsule.messaging.doorbells import DoorbellTarget

SESSION = {"session_id": "one", "cwd": "/"}


@pytest.fixture
def agents(capsule: Any, tmp_path: Path) -> Any:
    """The program, and two agents; bob works in the folder `project`."""
    (tmp_path / "project" / "deep").mkdir(parents=True)
    capsule("agent", "register", "--as", "anna")
    capsule("agent", "register", "--as", "bob", "--project", str(tmp_path / "project"))
    return capsule


def hook(
    capsule: Any, client: str, event: str, *options: str, said: Any = SESSION, expect: int = 0
) -> Any:
    """Run a hook; its standard output and error."""
    answer = capsule(
        "agent", "wake", "hook", client, event, *options, input=json.dumps(said), expect=expect
    )
    return answer.stdout, answer.stderr


@pytest.mark.parametrize("client", ["claude-code", "codex", "gemini"])
def test_a_hook_with_nothing_to_say_says_nothing(agents: Any, client: str) -> None:
    assert hook(agents, client, "SessionStart", "--as", "bob") == ("", "")
    assert hook(agents, client, "SessionStart") == ("", ""), "no agent works here"


@pytest.mark.parametrize(
    ("client", "event"),
    [("claude-code", "UserPromptSubmit"), ("codex", "UserPromptSubmit"), ("gemini", "BeforeAgent")],
)
def test_a_hook_tells_what_is_unread_and_from_whom_and_no_text(
    agents: Any, client: str, event: str
) -> None:
    agents("send", "--as", "anna", "--to", "bob", "the secret of the day")
    out, err = hook(agents, client, event, "--as", "bob")
    assert err == ""
    told = json.loads(out)
    assert told.keys() == {"hookSpecificOutput"}
    assert told["hookSpecificOutput"]["hookEventName"] == event
    context = told["hookSpecificOutput"]["additionalContext"]
    assert "1 unread from anna" in context and "bob" in context
    assert "secret" not in context and "\n" not in context


def test_the_agent_is_the_one_whose_project_the_session_is_in(agents: Any, tmp_path: Path) -> None:
    agents("send", "--as", "anna", "--to", "bob", "hello")
    inside = SESSION | {"cwd": str(tmp_path / "project" / "deep")}
    assert "1 unread" in hook(agents, "claude-code", "SessionStart", said=inside)[0]
    beside = SESSION | {"cwd": str(tmp_path)}
    assert hook(agents, "claude-code", "SessionStart", said=beside) == ("", "")


def test_mail_that_is_there_wakes_claude_code_at_the_end_of_its_turn_once(agents: Any) -> None:
    agents("send", "--as", "anna", "--to", "bob", "the secret of the day")
    out, err = hook(agents, "claude-code", "Stop", "--as", "bob", expect=2)
    assert out == ""
    assert "1 unread from anna" in err and "secret" not in err
    waits = started(agents)
    assert waits.poll() is None, "a ring is outstanding"
    waits.kill()


def test_a_run_of_claude_code_without_a_terminal_is_not_kept_waiting(
    agents: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_ENTRYPOINT", "sdk-cli")
    agents("send", "--as", "anna", "--to", "bob", "hello")
    assert hook(agents, "claude-code", "Stop", "--as", "bob") == ("", "")


def started(capsule: Any, session: str = "one") -> subprocess.Popen[bytes]:
    """A `Stop` hook that waits."""
    options = ("--store", str(capsule.root), "--as", "bob")
    process: subprocess.Popen[bytes] = capsule.start(
        "agent", "wake", "hook", "claude-code", "Stop", *options
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(SESSION | {"session_id": session}).encode())
    process.stdin.close()
    with Store.open(capsule.root) as store:
        while True:
            bell = doorbells.load_targets(store, "bob").find(
                DoorbellTarget("claude-code", {"session": session})
            )
            if bell is not None and doorbells.is_reachable(store, bell):
                return process
            assert process.poll() is None


def test_a_message_wakes_the_session_that_waits(agents: Any) -> None:
    waits = started(agents)
    agents("send", "--as", "anna", "--to", "bob", "the secret of the day")
    assert waits.wait(60) == 2
    assert b"1 unread from anna" in waits.stderr.read()


def test_one_process_waits_for_a_session_and_another_for_another_one(agents: Any) -> None:
    first, other = started(agents), started(agents, "two")
    assert hook(agents, "claude-code", "Stop", "--as", "bob") == ("", "")
    assert first.poll() is None and other.poll() is None
    first.kill()
    other.kill()


@pytest.mark.slow
def test_the_process_that_waits_ends_with_its_client(agents: Any) -> None:
    waits = started(agents)
    waits.stderr.close()  # As it is when the client has died, whatever shell stands in between.
    assert waits.wait(60) == 0


@pytest.mark.slow
def test_the_process_that_waits_ends_with_its_session(agents: Any) -> None:
    waits = started(agents)
    assert hook(agents, "claude-code", "SessionEnd", "--as", "bob") == ("", "")
    assert waits.wait(60) == 0


def test_a_hook_of_codex_says_where_its_thread_can_be_rung(agents: Any) -> None:
    hook(agents, "codex", "SessionStart", "--as", "bob")
    with Store.open(agents.root) as store:
        [bell] = doorbells.load_targets(store, "bob").targets
    assert bell.target.client == "codex" and bell.target.address["session"] == "one"
    hook(agents, "codex", "SessionEnd", "--as", "bob")
    with Store.open(agents.root) as store:
        assert doorbells.load_targets(store, "bob").targets == ()


def test_what_a_hook_cannot_use_is_a_line_on_stderr_and_no_answer(agents: Any) -> None:
    out, err = hook(agents, "claude-code", "SessionStart", "--as", "nobody", expect=1)
    assert (out, err.count("\n")) == ("", 1)
    assert hook(agents, "claude-code", "SessionStart", "--as", "bob", said=[1]) == ("", "")


@pytest.mark.files
def test_a_hook_loads_nothing_heavy(agents: Any) -> None:
    script = (
        "import sys; from capsule_cli import __main__\n"
        "sys.argv = ['capsule', 'agent', 'wake', 'hook', 'claude-code', 'SessionStart', '--as', "
        "'bob']\n"
        "try: __main__.main()\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    environment = {**agents.environment(), "CAPSULE_STORE": str(agents.root)}
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(SESSION),
        capture_output=True,
        text=True,
        env=environment,
    )
    loaded = set(done.stderr.split())
    heavy = {
        "typer",
        "pydantic",
        "mcp",
        "rich",
        "asyncio",
        "subprocess",
        "urllib.request",
        "importlib.metadata",
    }
    heavy |= {
        "socket",
        "secrets",
        "capsule.format.filters",
        "capsule.store.pages",
    }
    assert "capsule.messaging.doorbells" in loaded
    assert loaded & heavy == set()


@pytest.mark.slow
def test_a_test_rings_everywhere_and_says_what_happened(agents: Any, tmp_path: Path) -> None:
    assert "bob has no doorbell" in agents("agent", "wake", "test", "--as", "bob", expect=1).stderr
    heard = tmp_path / "heard"
    code = f"import sys; open({str(heard)!r}, 'w').write(sys.stdin.read())"
    agents(
        "agent",
        "wake",
        "install",
        "command",
        "--address",
        f'{sys.executable} -c "{code}"',
        "--as",
        "bob",
    )
    agents("agent", "wake", "install", "webhook", "--address", "http://127.0.0.1:1/", "--as", "bob")
    waits = started(agents)
    told = agents.json("agent", "wake", "test", "--as", "bob")
    assert {one["client"]: one["ok"] for one in told} == {
        "command": True,
        "webhook": False,
        "claude-code": True,
    }
    assert "test" in heard.read_text()
    assert waits.wait(60) == 2
    assert b"test" in waits.stderr.read()
    agents("agent", "wake", "uninstall", "command", "webhook", "--as", "bob")
    [one] = agents.json("agent", "wake", "test", "--as", "bob", expect=1)
    assert one["client"] == "claude-code" and not one["ok"]


def test_hooks_go_into_the_settings_and_out_again(
    agents: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    [told] = agents.json("agent", "wake", "install", "claude-code", "--as", "bob")
    path = tmp_path / ".claude" / "settings.json"
    assert (told["path"], told["changed"]) == (str(path), True)
    assert "hook claude-code Stop" in path.read_text() and "--as bob" in path.read_text()
    agents("agent", "wake", "uninstall", "claude-code")
    assert json.loads(path.read_text()) == {}


def test_hooks_of_a_program_without_the_tools_of_messaging_are_told_how_to_add_them(
    agents: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # No program there changes the settings itself.
    fix = "capsule mcp install claude-code --tools all"
    assert fix in agents("agent", "wake", "install", "claude-code", "--as", "bob").stderr
    agents("mcp", "install", "claude-code")
    assert fix in agents("agent", "wake", "install", "claude-code", "--as", "bob").stderr
    agents("mcp", "install", "claude-code", "--tools", "all")
    assert fix not in agents("agent", "wake", "install", "claude-code", "--as", "bob").stderr


@pytest.mark.parametrize(
    "words",
    [
        ["cursor"],
        ["webhook"],
        ["gemini", "--address", "x"],
        ["webhook", "command", "--address", "x"],
    ],
)
def test_what_cannot_be_woken_is_a_usage_error(agents: Any, words: list[str]) -> None:
    agents("agent", "wake", "install", *words, "--as", "bob", expect=2)
    assert not os.path.exists(agents.root / ".capsule" / "doorbells")
