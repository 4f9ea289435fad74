"""The demo's act of sessions: a host, two scripts as workers, a task that comes by itself, and a
kill -9.

What must stay true: as for the demo; and a question has exactly one answer, whoever was killed.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from capsule_cli.commands.demo.stage import DEADLINE_S, Process, check, print_step

MOWER = """\
import os, sys
from capsule import Store, timestamps
from capsule.sessions.worker.toolkit import Toolkit

if "Is it dry now?" in sys.stdin.read():
    print("It is dry: mown.")
else:
    soon = timestamps.from_ms(timestamps.ms_of(timestamps.now()) + 1000)
    with Store.open() as store:
        tools = Toolkit(store, os.environ["CAPSULE_SESSION"], os.environ["CAPSULE_MESSAGE"])
        tools.schedule("make", prompt="Is it dry now?", processAfter=soon)
    print("It is wet. I look again.")
"""
#: It hangs when it is run for the first time.
VET = 'mkdir hanging 2>/dev/null && sleep 600\necho "All sheep are well."\n'


def act(
    directory: str, names: dict[str, str], run: Callable[..., str], start: Callable[[str], Process]
) -> None:
    """Play the act. `run` and `start` belong to the show, and `names` are the paths that its lines
    may name.
    """
    for agent, program, script in (("mower", "{python}", MOWER), ("vet", "sh", VET)):
        names[agent] = os.path.join(directory, f"{agent}.script")
        Path(names[agent]).write_text(script, encoding="utf-8")
        run(f"capsule worker set {agent} --folder {{directory}} -- {program} {{{agent}}}")
    run("capsule agent register --as rosa")
    host, listener = start("capsule worker host"), start("capsule listen --as rosa --follow --json")
    print_step(f"$ capsule worker host      (kept open: process {host.pid})")
    _step(host, "running")
    run("capsule send --as rosa --to mower 'Can you mow?'")
    sheep = run("capsule send --as rosa --to vet 'How are the sheep?'").strip()
    for _ in range(50 * DEADLINE_S):
        if os.path.isdir(os.path.join(directory, "hanging")):
            break
        time.sleep(0.02)
    workers = json.loads(start("capsule worker status --json").ended()[0])
    (pid,) = (worker["pid"] for worker in workers if worker.get("agent") == "vet")
    os.kill(pid, signal.SIGKILL)
    print_step(f"$ kill -9 {pid}      (the worker of vet, in the middle of its answer)")
    _step(host, "retry")
    hurry = start(f"capsule worker retry {sheep}")
    # On a slow machine the next try, which is due after five seconds, has begun already.
    if hurry.wait(DEADLINE_S) == 0:
        print_step(f"$ capsule worker retry {sheep}")
    answers = [listener.hear() for _ in range(3)]
    for each in answers:
        print_step(f"heard by rosa: {each.get('from')}: {each.get('content')}")
    texts = sorted(str(each.get("content")) for each in answers)
    check(
        texts == ["All sheep are well.", "It is dry: mown.", "It is wet. I look again."],
        f"rosa heard {texts}",
    )
    host.terminate()
    check(host.wait(DEADLINE_S) == 143, "the host did not end")
    steps = [line.split("\t")[2] for line in run(f"capsule worker why {sheep}").splitlines()]
    check(
        steps.count("claimed") == 2 and steps.count("delivered") == 1,
        f"the way of the question is {steps}",
    )


def _step(host: Process, name: str) -> None:
    """Wait for a line of the host's log, or of a worker's."""
    assert host.stderr is not None
    while line := host.stderr.readline():
        entry = json.loads(line)
        if name in (entry.get("step"), entry.get("event")):
            return
    check(False, f"the host ended before {name}")
