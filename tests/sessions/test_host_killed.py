"""A host that is killed, at any step: every message is answered, and none twice."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest

from capsule import Store
from tests.processes import ROOT, Child, until
from tests.sessions.hosting import group, said

WORKER = f"""
import sys
sys.path[:0] = [{str(ROOT)!r}]
from capsule import Store
from capsule.sessions.worker.worker import CommandResult
from capsule.sessions.worker.worker import Worker
def answer(prompt):
    return CommandResult(0, " ".join(message["content"] for message in prompt.messages))
agent, session = sys.stdin.readline().strip(), sys.stdin.readline().strip()
if not agent:
    sys.exit()
with Store.open(sys.argv[1]) as store:
    Worker(store, agent, answer, session=session, idle_s=0.3).run()
"""

HOST = """
import signal, threading
from importlib import import_module
from capsule.sessions.host.host import Host
from capsule.sessions.host.host import prestarted_workers
store, words, place, count = Store.open(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if place:
    module, kind, name = place.split(":")
    kind = getattr(import_module(module), kind)
    real, calls = getattr(kind, name), []
    def dying(*args, **more):
        result = real(*args, **more)
        calls.append(1)
        if len(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(kind, name, dying)
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
say("begins")
with prestarted_workers(words) as spawn:
    Host(store, spawn=spawn).run(stop)
"""

HOSTS = "capsule.sessions.host"
#: What the host has just done when it is killed, and the how manieth time.
PLACES = [
    ("capsule.sessions.registry:Registry:ensure_session", 1),
    (f"{HOSTS}.routing:Session:create", 1),
    (f"{HOSTS}.routing:OpenSessions:write_inbound", 1),
    (f"{HOSTS}.routing:OpenSessions:write_inbound", 2),
    (f"{HOSTS}.routing:Router:receive", 1),
    (f"{HOSTS}.host:Supervisor:wake", 1),
    ("capsule.sessions.adapters.conversations:ConversationAdapter:deliver", 1),
    (f"{HOSTS}.routing:Deliverer:_deliver", 1),
]


Hosts = Callable[..., Child]


@pytest.fixture
def host(child: Callable[..., Child], tmp_path: Path) -> Hosts:
    """Starts a host: as it is, or one that is killed behind the count-th call of a method."""

    def start(place: str = "", count: int = 0, words: Sequence[str] = ()) -> Child:
        words = words or [sys.executable, "-c", WORKER, str(tmp_path)]
        started = child(HOST, tmp_path, json.dumps(words), place, count)
        assert started.hear() == "begins"
        return started

    return start


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        store.agents.register("anna")
        group(store, "bot")
        yield store


@pytest.mark.slow
def test_a_host_killed_at_any_step_loses_no_message_and_answers_none_twice(
    store: Store, host: Hosts
) -> None:
    for number, (place, count) in enumerate(PLACES):
        store.agents.register(f"person{number}")
        running = host(place, count)
        store.messages.send(f"message {number}", agent=f"person{number}", to="bot")
        assert running.end() == -signal.SIGKILL, place
    running = host()
    for number, (place, _) in enumerate(PLACES):
        conversation = f"direct_bot_person{number}"
        until(lambda conversation=conversation: said(store, conversation, "bot"))
        assert said(store, conversation, "bot") == [f"message {number}"], place
    running.signal(signal.SIGTERM)
    assert running.end() == 0


@pytest.mark.slow
def test_the_workers_of_a_killed_host_end_and_the_next_host_runs_one_for_each_session(
    store: Store, host: Hosts, tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    begun.touch()
    store.sessions.set_agent(
        "bot", ["sh", "-c", f"echo $CAPSULE_SESSION >> {begun}; exec sleep 1000"]
    )
    words = [
        sys.executable,
        "-m",
        "capsule_cli",
        "worker",
        "run",
        "--store",
        str(tmp_path),
        "--agent",
        "-",
    ]
    for person in ("anna", "bob"):
        store.agents.register(person)
        store.messages.send("hello", agent=person, to="bot")
    for count in (2, 4):
        running = host(words=words)
        until(lambda count=count: len(begun.read_text().split()) >= count)
        at_work = [
            about["session"]
            for about in store.engine.leases.live_instances().values()
            if "session" in about
        ]
        assert sorted(at_work) == sorted(begun.read_text().split()[-2:]) == sorted(set(at_work))
        left = psutil.Process(running.pid).children(recursive=True)
        assert (
            len(left) > 4
        )  # Two workers with a guard and a command each, and one that waits for work.
        running.kill()
        until(lambda left=left: not any(is_running(process) for process in left))


def is_running(process: Any) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False
