"""A supervisor of writers: it forks them, kills a random one with SIGKILL every few milliseconds,
and forks another.

Python takes a fifth of a second to start, so a writer that was a separate program would die during
its imports. Here a process with all modules loaded forks the writers, and each opens its own Store;
most die in the middle of a write. What must stay true: the supervisor kills only its own children,
never one that it has waited for, and has no Store open while it forks. Before every tenth kill it
waits until something was written, however slow the machine is.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from capsule import Store
from tests.processes import Child, until
from tests.torture.writers import Plan, noted, work


@dataclass
class Orders:
    """The orders of the supervisor.

    Attributes:
        plan: The plan of each writer; its `name`, `seed` and `acks` (a directory) are completed for
            each.
        kills: The number of writers to kill.
        writers: The number of writers alive at a time.
        longest_life_s: The longest time before a kill, in seconds; it is random.
    """

    plan: Plan
    kills: int
    writers: int
    longest_life_s: float


def _warm_up() -> None:
    """Load all modules that a writer needs, by writing once."""
    with tempfile.TemporaryDirectory() as directory:
        Store.init(directory)
        with Store.open(directory) as store:
            store.append(store.create(title="warm", type="chat").id, content="up")


def _fork(orders: Orders, number: int, rng: random.Random, ready: int) -> int:
    seed = rng.getrandbits(32)
    pid = os.fork()
    if pid:
        return pid
    try:
        name = f"w{number}"
        plan = replace(orders.plan, name=name, seed=seed, acks=f"{orders.plan.acks}/{name}")
        logging.getLogger("capsule").setLevel(logging.ERROR)
        with Store.open(plan.root) as store:
            os.write(ready, b"o")
            work(plan, store)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)  # The writer must be killed; any other end is a failure.


def _supervise(orders: Orders) -> dict[str, float]:
    rng = random.Random(orders.plan.seed)
    _warm_up()
    opened, ready = os.pipe()
    living: list[int] = []
    began, started = time.monotonic(), 0
    try:
        for killed in range(orders.kills):
            while len(living) < min(orders.writers, orders.kills - killed):
                living.append(_fork(orders, started, rng, ready))
                started += 1
                os.read(opened, 1)  # A writer killed before it opens the store proves nothing.
            time.sleep(rng.uniform(0, orders.longest_life_s))
            if killed % 10 == 0:
                before = noted(orders.plan.acks)
                until(lambda before=before: noted(orders.plan.acks) > before)  # type: ignore[misc]
            victim = living.pop(rng.randrange(len(living)))
            os.kill(victim, signal.SIGKILL)
            _, status = os.waitpid(victim, 0)
            if not os.WIFSIGNALED(status):
                raise AssertionError("a writer failed before it was killed; see above")
    finally:
        for pid in living:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return {"kills": orders.kills, "seconds": time.monotonic() - began}


def main() -> dict[str, float]:
    given = json.loads(sys.argv[1])
    return _supervise(Orders(Plan(**given.pop("plan")), **given))


def supervise(root: Path, acks: Path, ids: list[str], seed: int, **how: Any) -> dict[str, float]:
    """Run a supervisor to its end. Returns: its report.

    Args:
        root: The store.
        acks: The directory of the acknowledgements, one file a writer.
        ids: The conversations.
        seed: The seed of the random choices of the supervisor and the writers.
        how: Fields of `Plan` and of `Orders`.
    """
    orders = {name: how.pop(name) for name in ("kills", "writers", "longest_life_s")}
    given = json.dumps({"plan": asdict(Plan(str(root), str(acks), "", seed, ids, **how)), **orders})
    with closing(Child("from tests.torture.supervisor import main; say(main())", given)) as child:
        return child.hear()
