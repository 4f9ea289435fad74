"""Writers as separate processes, and the check that every acknowledged message is there.

A writer records each acknowledgement with one `write(2)` of one line before its next append. The
line survives a SIGKILL of the writer, so that the file never has more than was acknowledged, and
lacks at most the last one. What must stay true: the check reads the files as JSON, without the
store; besides it, only the doctor is run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from capsule import Store
from capsule.errors import InvalidDocument, Locked
from capsule.format.json import codec
from capsule.maintenance import doctor
from tests.processes import PATIENCE_S, Child

LONG = os.environ.get("CAPSULE_TORTURE") == "1"
T = TypeVar("T")
_ROLES = ("user", "assistant", "system", "tool")


@dataclass
class Plan:
    """The plan of one writer.

    Attributes:
        root: The store.
        acks: The file of acknowledgements; lines are added to it.
        name: The writer's name; its messages begin with it.
        seed: The seed of its random choices.
        ids: The conversations it chooses from.
        count: The number of appends of each thread; 0: until it is killed.
        turns: Whether it takes the lock before, and releases it after, one to three appends.
        threads: The number of threads, which share one Store.
        longest: The characters of padding in the longest messages.
        tag_every: After this many appends it adds a tag, and records it with an empty message id;
            0: never.
    """

    root: str
    acks: str
    name: str
    seed: int
    ids: list[str]
    count: int = 0
    turns: bool = False
    threads: int = 1
    longest: int = 400
    tag_every: int = 0


class Acks:
    """The file of acknowledgements of one writer."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def add(self, conversation: str, writer: str, n: int, message: str) -> None:
        os.write(self._fd, json.dumps([conversation, writer, n, message]).encode() + b"\n")


def work(plan: Plan, store: Store) -> None:
    """Execute the plan on an open store."""
    acks = Acks(plan.acks)
    failures: list[BaseException] = []

    def guarded(name: str, seed: int) -> None:
        try:
            _write(plan, store, acks, name, random.Random(seed))
        except BaseException as error:
            failures.append(error)

    if plan.threads == 1:
        _write(plan, store, acks, plan.name, random.Random(plan.seed))
        return
    in_threads(guarded, [(f"{plan.name}.{i}", plan.seed * 100 + i) for i in range(plan.threads)])
    if failures:
        raise failures[0]


def in_threads(act: Callable[..., object], arguments: Iterable[tuple[object, ...]]) -> None:
    """Call a function in a thread for each list of arguments, and wait for all of them."""
    threads = [threading.Thread(target=act, args=each) for each in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _write(plan: Plan, store: Store, acks: Acks, name: str, rng: random.Random) -> None:
    n = 0
    while not plan.count or n < plan.count:
        id = rng.choice(plan.ids)
        if not plan.turns:
            n = _append(plan, store, acks, name, id, n, rng)
            if plan.tag_every and n % plan.tag_every == 0:
                tag = f"{name}-{n}"
                _retried_until_whole(lambda id=id, tag=tag: store.tag(id, tag))  # type: ignore[misc]
                acks.add(id, name, n, "")
            continue
        held = _turn(store, id)
        with held:
            for _ in range(min(rng.randint(1, 3), plan.count - n if plan.count else 3)):
                n = _append(plan, store, acks, name, id, n, rng)


def _turn(store: Store, id: str) -> AbstractContextManager[object]:
    """Wait for the lock on a conversation, and take it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return store.locks.take(id)
        except Locked:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.001)


def _retried_until_whole(act: Callable[[], T]) -> T:
    """The result of `act`, which is repeated until the file is whole: a person who saved half of it
    saves it again.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return act()
        except InvalidDocument:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.005)


def _append(
    plan: Plan, store: Store, acks: Acks, name: str, id: str, n: int, rng: random.Random
) -> int:
    padding = "é" * rng.choice((0, 10, 80, plan.longest // 2, plan.longest))
    role = rng.choice(_ROLES)
    message = _retried_until_whole(
        lambda: store.append(id, role=role, content=f"{name} {n} {padding}")
    )
    acks.add(id, name, n, str(message.id))
    return n + 1


def main() -> None:
    """A writer as a process: says that it is ready, waits for a word, works, and ends."""
    plan = Plan(**json.loads(sys.argv[1]))
    with Store.open(plan.root) as store:
        print("true", flush=True)
        sys.stdin.readline()
        work(plan, store)


class Writers:
    """Writers that begin at the same time."""

    def __init__(self, plans: Iterable[Plan]) -> None:
        body = "from tests.torture.writers import main; main()"
        self._writers = [Child(body, json.dumps(asdict(plan))) for plan in plans]

    def __enter__(self) -> Writers:
        return self

    def begin(self) -> None:
        """Wait until all are ready, and start them."""
        for writer in self._writers:
            writer.hear()
        for writer in self._writers:
            writer.say()

    def running(self) -> bool:
        return any(writer.is_running for writer in self._writers)

    def finish(self) -> None:
        """Wait for all of them, and assert that each exited with 0."""
        assert [ended for writer in self._writers if (ended := writer.ended())[0]] == []

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()


def outlived(
    name: str,
    start: Callable[[], tuple[Child, float | None]],
    deaths: Counter[str],
    failures: list[str],
) -> None:
    """Start a process again and again, until it was not killed.

    Args:
        name: Under which it counts in `deaths`.
        start: Starts it; and gives the seconds after which it is to be killed from outside, None:
            not at all.
        deaths: The number of killed processes, by their names.
        failures: Gets what a process said that ended otherwise than with 0.
    """
    while True:
        process, life_s = start()
        timer = threading.Timer(life_s or 0, process.signal, (signal.SIGKILL,))
        if life_s is not None:
            timer.start()
        try:
            code, words = process.ended()
        finally:
            timer.cancel()
            process.close()
        if code == -signal.SIGKILL:
            deaths[name] += 1
            continue
        failures += [words] if code else []
        return


def noted(acks: str | Path) -> int:
    """The bytes of all acknowledgements in a directory of their files."""
    return sum(entry.stat().st_size for entry in os.scandir(acks))


@dataclass
class Kept:
    """The numbers of messages in the store and of acknowledged ones."""

    acked: int = 0
    kept: int = 0
    missing: list[str] = field(default_factory=list)
    unacknowledged: Counter[str] = field(default_factory=Counter)  # by writer


def acknowledged(directory: Path) -> Iterator[tuple[str, str, int, str]]:
    """The acknowledgements in a directory of their files: conversation, writer, number, message id.

    A last line that SIGKILL cut short is no acknowledgement.
    """
    for path in sorted(directory.iterdir()):
        for line in path.read_bytes().split(b"\n")[:-1]:
            conversation, writer, n, message = json.loads(line)
            yield conversation, writer, n, message


def check(root: Path, acks: Path) -> Kept:
    """Compare the files with the acknowledgements.

    Asserts that every acknowledged message is there once and unchanged, those of each writer in its
    order, that ids are unique in a conversation, and that every file is canonical.
    """
    promised: dict[str, dict[str, tuple[str, int]]] = defaultdict(dict)
    for conversation, writer, n, message in acknowledged(acks):
        promised[conversation][message] = (writer, n)
    result = Kept(acked=sum(map(len, promised.values())))
    for path in sorted((root / "conversations").glob("*.json")):
        data = path.read_bytes()
        document = codec.decode(data, str(path))
        assert codec.encode(document) == data, f"{path} is not canonical"
        ids = [entry["id"] for entry in document["history"]]
        twice = [id for id, times in Counter(ids).items() if times > 1]
        assert not twice, f"{path} has messages twice: {twice}"
        mine = promised.pop(path.stem, {})
        result.missing += [f"{path.stem}: {mine[id]}" for id in mine if id not in set(ids)]
        result.unacknowledged.update(
            entry["content"].split(" ", 1)[0]
            for entry in document["history"]
            if entry["id"] not in mine
        )
        result.kept += len(mine.keys() & set(ids))
        for entry in document["history"]:
            writer, n, _ = entry["content"].split(" ", 2)
            assert mine.get(entry["id"], (writer, int(n))) == (writer, int(n)), (
                f"{path}: {entry['id']} was changed"
            )
        assert_in_order(document["history"], str(path))
        times = [entry["timestamp"] for entry in document["history"]]
        assert times == sorted(times), f"{path}: times go back"
    assert not promised, f"conversations are gone: {list(promised)}"
    assert not result.missing, f"acknowledged, and not there: {result.missing[:10]}"
    return result


def assert_in_order(entries: Iterable[dict[str, Any]], place: str) -> None:
    """Assert that the messages of each writer, which begin with its name and a number, are in their
    order.
    """
    latest: dict[str, int] = {}
    for writer, n in (entry["content"].split(" ")[:2] for entry in entries):
        assert latest.get(writer, -1) < int(n), (
            f"{place}: {writer}'s messages are out of order at {n}"
        )
        latest[writer] = int(n)


def assert_clean(root: Path) -> None:
    """Assert that the doctor finds nothing."""
    with Store.open(root) as store:
        assert [str(finding) for finding in doctor.examine(store)] == []


def assert_only_leftovers(root: Path) -> int:
    """Assert that the doctor finds only what dead processes leave by design, and repair removes it;
    return its number.

    These are instance files, which the next process to take a lock also sweeps, and temporaries of
    writers that were killed while they replaced a file, which the next replacement also sweeps.
    """
    with Store.open(root) as store:
        found = list(doctor.examine(store))
        assert {finding.kind for finding in found} <= {"leftover"}, list(map(str, found))
        for finding in found:
            directory = Path(finding.path).parent.name
            assert directory == "instances" or (
                directory in ("conversations", "agents") and finding.path.endswith(".tmp")
            )
        list(doctor.examine(store, repair=True))
    assert_clean(root)
    return len(found)


def make(root: Path, types: Iterable[str]) -> list[str]:
    """A store with an empty conversation of each type; their ids."""
    Store.init(root)
    (root / "capsule.toml").write_text(
        f'[storage]\nmutex_timeout = "{PATIENCE_S:.0f}s"\n', encoding="utf-8"
    )
    with Store.open(root, keep_locks=False) as store:
        return [store.create(title=f"{type} {i}", type=type).id for i, type in enumerate(types)]
