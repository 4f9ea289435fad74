"""`capsule worker run`, in processes of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from capsule import Store
from capsule.sessions.events import Route, inbound_message
from capsule.sessions.registry import AgentSetup, Registry, SessionRecord
from capsule.sessions.rules.messages import receive
from capsule.sessions.session import Session
from capsule_cli import fast_path
from capsule_cli.commands.sessions import workers
from tests.core.cli.conftest import Program
from tests.processes import until

ANSWERS = ("sh", "-c", "cat > /dev/null; echo done")
HANGS = ("sh", "-c", "echo begun >&2; exec sleep 100")


@pytest.fixture
def owner(capsule: Program) -> Iterator[Store]:
    with Store.open(capsule.root) as owner:
        owner.sessions.set_agent("bot", ANSWERS)
        Registry(owner.engine).edit(lambda state: state.put(SessionRecord("s1", "bot")))
        yield owner


@pytest.fixture
def session(owner: Store) -> Session:
    session = Session.create(owner.engine, "s1", "bot")
    asked = inbound_message(
        id="m1", content="Hello", route=Route("conversations", "direct_anna_bot")
    )
    session.write_inbound(lambda session_state: receive(session_state, [asked]))
    return session


def became(session: Session) -> str:
    session_state = session.read()
    return session_state.status("m1")


def told(worker: subprocess.Popen[bytes], step: str) -> dict[str, Any]:
    """The next line of a worker's log that tells of such a step."""
    assert worker.stderr is not None
    for line in worker.stderr:
        if line.startswith(b"{") and json.loads(line)["step"] == step:
            return dict(json.loads(line))
    raise AssertionError(f"it ended with {worker.wait()}")


def test_sigterm_returns_what_runs(capsule: Program, session: Session) -> None:
    worker = capsule.start("worker", "run", "--agent", "bot", "--", *HANGS)
    told(worker, "claimed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0
    assert became(session) == "released"


def test_a_worker_that_is_started_ahead_learns_later_what_it_is_for(
    capsule: Program, session: Session
) -> None:
    unused, worker = (
        capsule.start("worker", "run", "--store", str(capsule.root), "--agent", "-")
        for _ in range(2)
    )
    assert worker.stdin is not None
    worker.stdin.write(b"bot\ns1\n")
    worker.stdin.flush()
    assert told(worker, "completed")["messages"] == ["m1"]
    assert unused.communicate() == (b"", b"")
    assert unused.returncode == 0


def test_a_worker_whose_log_nobody_reads_any_more_answers_all_the_same(
    capsule: Program, session: Session
) -> None:
    worker = capsule.start("worker", "run", "--store", str(capsule.root), "--agent", "-")
    assert worker.stdin is not None and worker.stderr is not None
    worker.stderr.close()
    worker.stdin.write(b"bot\ns1\n")
    worker.stdin.flush()
    until(lambda: became(session) == "completed")
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0


def test_a_worker_that_fails_in_a_way_that_nobody_thought_of_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[dict[str, Any]] = []
    monkeypatch.setattr(workers, "run_worker", lambda: 1 / 0)
    monkeypatch.setattr(workers, "write_line", lines.append)
    assert workers.run_worker_and_log({}) == 1
    assert "ZeroDivisionError" in lines[0]["error"] and __file__ in lines[0]["trace"]


def test_a_worker_without_a_command_says_what_is_wrong(capsule: Program, owner: Store) -> None:
    error = capsule.process("worker", "run", "--agent", "nobody", expect=3).stderr
    assert json.loads(error)["error"].startswith("agent nobody has no command")
    Registry(owner.engine).edit(lambda state: state.put(AgentSetup("bot", command=("rm",))))
    assert "approved" in capsule.process("worker", "run", "--agent", "bot", expect=6).stderr
    assert capsule("worker", "run", "--agent", "bot", "--idle", "soon", expect=2).stderr


@pytest.mark.files
def test_a_worker_loads_nothing_heavy_before_its_command_starts(
    capsule: Program, session: Session
) -> None:
    script = (
        "import sys; from capsule_cli import __main__; from capsule.sessions.worker import worker\n"
        "def show(*words, **more): print(*sorted(sys.modules), file=sys.stderr); sys.exit()\n"
        "worker.run_command = show\n"
        "sys.argv = ['capsule', 'worker', 'run', '--agent', 'bot', '--session', 's1']\n"
        "__main__.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=capsule.environment(),
        check=False,
    )
    loaded = set(done.stderr.split())
    heavy = {
        "typer",
        "pydantic",
        "mcp",
        "rich",
        "asyncio",
        "cronsim",
        "sqlite3",
        "zoneinfo",
        "importlib.metadata",
    }
    heavy |= {"socket", "secrets", "tempfile", "capsule.store.pages"}
    heavy |= {"capsule.format.filters"}
    assert "capsule.sessions.worker.worker" in loaded
    assert loaded & heavy == set()


def test_a_worker_that_is_started_ahead_loads_nothing_once_a_message_came(
    capsule: Program, session: Session
) -> None:
    script = (
        "import sys; from capsule_cli import __main__; from capsule.sessions.worker import worker\n"
        "class Words:\n"
        "    words = iter(['bot', 's1'])\n"
        "    def readline(self): self.loaded = set(sys.modules); return next(self.words)\n"
        "def show(*words, **more): print('began', *sys.modules.keys() - sys.stdin.loaded); "
        "sys.exit()\n"
        "worker.run_command, sys.stdin = show, Words()\n"
        f"sys.argv = ['capsule', 'worker', 'run', '--store', {str(capsule.root)!r}, '--agent', "
        "'-']\n"
        "__main__.main()\n"
    )
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "env": capsule.environment(),
    }
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as worker:
        assert worker.stdout is not None
        began, *loaded = worker.stdout.read().decode().split()
    assert began == "began"
    assert not [name for name in loaded if name.startswith(("capsule", "watchfiles", "ctypes"))]


def test_a_plain_worker_is_read_without_typer() -> None:
    assert fast_path.read(
        ["worker", "run", "--store", "somewhere", "--agent", "-", "--", "sh", "-c", "true"]
    )
