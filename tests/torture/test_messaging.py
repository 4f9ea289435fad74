"""Six agents in six processes write to each other, and the processes are killed and started again.

Each agent sends numbered messages to the others, directly and in groups, and acknowledges what it
hears at random. It writes down what it hears before it acknowledges it. What must hold: every
message of a conversation reaches each of its recipients at least once, those of one sender in
order, and in the end nobody has anything unread. So it is in one store, and in two clones that sync
through git.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path

import pytest

from capsule import Store
from capsule.format.documents.members import members_in
from capsule.format.json import codec
from tests.conftest import SEED
from tests.git.repositories import bare, cloned, environment, new
from tests.processes import Child
from tests.torture.test_clones import FOLDER, Work, run_syncs, sync_until_stable
from tests.torture.writers import LONG, assert_in_order, assert_only_leftovers, in_threads, outlived

pytestmark = pytest.mark.slow

AGENTS = tuple(f"agent-{letter}" for letter in "abcdef")
#: The number of messages that each agent sends.
COUNT = 1000 if LONG else 200


@dataclass
class Talk:
    """What one agent does.

    Attributes:
        root: Its store.
        logs: The directory of the logs.
        agent: Its id.
        groups: The groups that it is in.
        seed: The seed of its random choices.
        messages: The number of messages that it sends, over all its lives.
        dies_at: The step at which its process kills itself; 0: at none.
    """

    root: str
    logs: str
    agent: str
    groups: list[str]
    seed: int
    messages: int
    dies_at: int = 0

    @property
    def sent(self) -> Path:
        """A byte for each message that was acknowledged as sent."""
        return Path(self.logs) / f"{self.agent}.sent"

    @property
    def heard(self) -> Path:
        """A line for each message that was heard: the conversation and the message."""
        return Path(self.logs) / f"{self.agent}.heard"


def talk(work: Talk) -> None:
    """Send the messages that are left, and hear others in between."""
    rng = random.Random(work.seed)
    sent = os.open(work.sent, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    steps = count(1)

    def maybe_die() -> None:
        if next(steps) == work.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    with Store.open(work.root, keep_locks=False) as store:
        while (n := os.fstat(sent).st_size) < work.messages:
            # The same recipient for the same number: a message that was sent and not acknowledged
            # is sent again.
            whom = random.Random(f"{work.agent} {n}").choice(
                [*(other for other in AGENTS if other != work.agent), *work.groups]
            )
            target = {"conversation": whom} if whom in work.groups else {"to": whom}
            text = f"{work.agent} {n}"
            store.messages.send(text, agent=work.agent, idempotency_key=text, **target)
            maybe_die()
            os.write(sent, b".")
            if rng.random() < 0.4:
                hear(store, work, rng.random() < 0.7, maybe_die)


def hear(store: Store, work: Talk, acknowledges: bool, maybe_die: object = lambda: None) -> int:
    """Hear what is unread, and write it down. Returns: the number of messages."""
    heard = store.messages.listen(agent=work.agent, timeout_s=0)
    maybe_die()
    log = os.open(work.heard, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(log, b"".join(f"{mail.conversation} {mail.id}\n".encode() for mail in heard.messages))
    os.close(log)
    maybe_die()
    if acknowledges and heard.messages:
        store.messages.ack(agent=work.agent, cursor=heard.cursor)
    return len(heard.messages)


def main(work: str) -> None:
    talk(Talk(**json.loads(work)))


def run_talk(work: Talk, rng: random.Random, deaths: Counter[str], failures: list[str]) -> None:
    """Run the processes of an agent, one after another when they are killed, until it has sent
    everything.
    """

    def start() -> tuple[Child, float | None]:
        work.seed = rng.getrandbits(32)
        is_killed = deaths[work.agent] <= work.messages // 200
        # A message takes a step at least, so that each agent dies once at least; or before, in the
        # middle of a write.
        work.dies_at = rng.randint(1, work.messages) if is_killed else 0
        body = "from tests.torture.test_messaging import main; main(*sys.argv[1:])"
        process = Child(body, json.dumps(asdict(work)), env=environment())
        return process, rng.uniform(0.4, 3.0) if is_killed else None

    outlived(work.agent, start, deaths, failures)


def meet(root: Path, agents: Sequence[str]) -> list[str]:
    """Register the agents, and make a group of all of them and one of some; the groups."""
    with Store.open(root, keep_locks=False) as store:
        for agent in agents:
            store.agents.register(agent)
        everybody = store.groups.create("everybody", agent=agents[0], with_=list(agents[1:]))
        some = store.groups.create("some", agent=agents[1], with_=list(agents[3:]))
    return [everybody.id, some.id]


def groups_of(root: Path, agent: str, groups: Sequence[str]) -> list[str]:
    with Store.open(root, keep_locks=False) as store:
        return [id for id in groups if any(one.id == agent for one in store.head(id).participants)]


def drain(work: Talk) -> None:
    """Hear and acknowledge until nothing is unread."""
    with Store.open(work.root, keep_locks=False) as store:
        while hear(store, work, True):
            pass
        assert store.messages.inbox(agent=work.agent).unread == 0


def check(root: Path, works: Sequence[Talk]) -> tuple[int, int]:
    """Compare what was heard with the files. Returns: the numbers of messages sent, and of those
    heard again.
    """
    count = again = 0
    heard = {
        work.agent: [tuple(line.split()) for line in work.heard.read_text().splitlines()]
        for work in works
    }
    for path in sorted((root / "conversations").glob("*.json")):
        document = codec.decode(path.read_bytes(), str(path))
        entries = {entry["id"]: entry for entry in document["history"]}
        count += len(entries)
        for agent in (one.id for one in members_in(document["metadata"]["participants"])):
            mine = [message for conversation, message in heard[agent] if conversation == path.stem]
            first = list(dict.fromkeys(mine))
            again += len(mine) - len(first)
            assert set(first) == {id for id, entry in entries.items() if entry["from"] != agent}, (
                path.stem,
                agent,
            )
            assert_in_order((entries[id] for id in first), f"{path.stem}, as {agent} heard it")
    assert count == sum(work.messages for work in works)
    return count, again


@pytest.mark.parametrize("count", [20, COUNT])
def test_every_message_reaches_every_recipient_though_processes_are_killed(
    tmp_path: Path, count: int
) -> None:
    root, logs, rng = tmp_path / "store", tmp_path / "logs", random.Random(SEED + count)
    Store.init(root)
    logs.mkdir()
    groups = meet(root, AGENTS)
    works = [
        Talk(str(root), str(logs), agent, groups_of(root, agent, groups), 0, count)
        for agent in AGENTS
    ]
    deaths: Counter[str] = Counter()
    failures: list[str] = []
    began = time.monotonic()
    in_threads(
        run_talk, [(work, random.Random(rng.getrandbits(32)), deaths, failures) for work in works]
    )
    assert failures == []
    for work in works:
        drain(work)
    sent, again = check(root, works)
    killed = sum(deaths.values())
    print(
        f"seed {SEED}: {sent} messages, {again} heard again, {killed} kills, "
        f"{time.monotonic() - began:.1f} s"
    )
    assert killed


def test_every_message_reaches_every_recipient_in_two_clones(tmp_path: Path) -> None:
    logs, rng, syncs = tmp_path / "logs", random.Random(SEED), 40 if LONG else 10
    logs.mkdir()
    first = new(tmp_path / "clone 0", FOLDER)
    first.run("remote", "add", "origin", str(bare(tmp_path / "remote.git")))
    groups = meet(first.root, AGENTS)
    sync_until_stable([first])
    clones = [first, cloned(tmp_path / "remote.git", tmp_path / "clone 1", FOLDER)]
    works = [
        Talk(
            str(clones[at % 2].root),
            str(logs),
            agent,
            groups_of(first.root, agent, groups),
            0,
            COUNT,
        )
        for at, agent in enumerate(AGENTS)
    ]
    deaths: Counter[str] = Counter()
    failures: list[str] = []
    began = time.monotonic()
    syncing = [
        Work(str(clone.top), str(tmp_path / f"syncs {at}"), f"sync {at}", 0, syncs, 0.01)
        for at, clone in enumerate(clones)
    ]
    tasks = [(run_talk, work) for work in works] + [(run_syncs, work) for work in syncing]
    dice = random.Random(rng.getrandbits(32))
    in_threads(
        lambda run, work, dice: run(work, dice, deaths, failures),
        [(*task, random.Random(dice.random())) for task in tasks],
    )
    assert failures == []
    sync_until_stable(clones)
    for work in works:
        drain(work)
    sync_until_stable(clones)
    sent, again = check(first.root, works)
    for clone in clones:
        with clone.store() as store:
            assert {
                agent: store.messages.inbox(agent=agent).unread for agent in AGENTS
            } == dict.fromkeys(AGENTS, 0)
        assert_only_leftovers(clone.root)
    killed = sum(deaths.values())
    print(
        f"seed {SEED}: {sent} messages, {again} heard again, {killed} kills, "
        f"{time.monotonic() - began:.1f} s"
    )
