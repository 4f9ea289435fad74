"""A write or a flush fails, everybody goes on, and then the power is cut: nothing acknowledged is
lost.

Two stores write to one conversation, each through a system of its own, so that only the first one
hears of the failure. The model of the disk, and what a failed flush does in it, is in
`tests/torture/filesystem.py`.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.engines.files.disk import log
from capsule.errors import StorageFailed
from tests.core.storage.faults import store_on
from tests.torture.filesystem import Disk, Rebooted, Recorder, materialise

LONG = bool(os.environ.get("CAPSULE_TORTURE"))
#: The first message: so long that the following ones and `updatedAt` are in different sectors.
ONE = "one ".ljust(600, "-")
ERRORS = (errno.ENOSPC, errno.EIO)

pytestmark = pytest.mark.slow


class Failing(Recorder):
    """A system whose `at`-th call that changes something fails, counted from 1 when it is armed.

    Attributes:
        hit: What failed: the call, and the path.
    """

    def __init__(self, root: Path, events: list[tuple[Any, ...]]) -> None:
        super().__init__(root)
        self.events = events
        self.fail = self._count
        self.hit = ""
        self._at = self._error = 0

    def arm(self, at: int, error: int) -> None:
        self._at, self._error, self.hit = at, error, ""

    def _count(self, call: str, path: str) -> None:
        self._at -= 1
        if self._at == 0:
            self.hit = f"{call} of {self._name(path)}"
            raise OSError(self._error, os.strerror(self._error))


class Conversation:
    """A conversation that two stores write to, and what was acknowledged of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[tuple[Any, ...]] = []
        self.system = Failing(root, self.events)
        self.first = store_on(root, self.system, keep_locks=False)
        self.second = store_on(root, Failing(root, self.events), keep_locks=False)
        self.titles = ["Plan"]
        self.refused: list[StorageFailed] = []
        self._count = 0

    def append(self, store: Store, size: int = 1, *, retried: bool = False) -> None:
        self._count += 1
        text = f"{self._count:02} ".ljust(size, "x")
        for _ in range(2 if retried else 1):
            if self._does(lambda: store.append_once("plan", text[:2], content=text)):
                self.events.append(("acknowledged", text))
                break

    def append_many(self, store: Store, size: int) -> None:
        self._count += 3
        texts = [f"{self._count - n:02} ".ljust(size, "y") for n in range(3)]
        if self._does(
            lambda: store.append_many("plan", [{"role": "user", "content": text} for text in texts])
        ):
            self.events.extend(("acknowledged", text) for text in texts)

    def rename(self, store: Store) -> None:
        self.titles.append(f"Plan {len(self.titles)}")
        if self._does(lambda: store.rename("plan", self.titles[-1])):
            self.titles = self.titles[-1:]

    def flush(self, store: Store) -> None:
        self._does(store.flush)

    def load(self, store: Store) -> None:
        self._does(lambda: store.load("plan"))

    def _does(self, act: Callable[[], object]) -> bool:
        try:
            act()
        except StorageFailed as error:
            self.refused.append(error)
            return False
        return True

    def check_after_the_cut(self, place: Path, acknowledged: set[str], titles: list[str]) -> None:
        """Open what a power cut left: all that was acknowledged is there, once, and the store
        works.
        """
        with store_on(place, Rebooted(), keep_locks=False) as store:
            document = store.load("plan")
            texts = [message.content for message in document.history]
            assert acknowledged <= set(texts), f"lost: {acknowledged - set(texts)}"
            assert len(texts) == len(set(texts)) and document.title in titles
            store.append("plan", content="next")
            assert [message.content for message in store.load("plan").history] == [*texts, "next"]


Step = Callable[[Conversation], object]
#: What is done by whom: the first store meets the failure in it, the second one never does.
STEPS: dict[str, list[Step]] = {
    "appends": [
        lambda c: c.append(c.first), lambda c: c.append(c.first, 700), lambda c: c.append(c.first),
        lambda c: c.append(c.first)],
    "a log that grows": [
        lambda c: c.append(c.first), lambda c: c.append(c.first, 5000), lambda c: c.append(c.first),
        lambda c: c.append(c.first, 9000), lambda c: c.append(c.second)],
    "a log that is renewed": [lambda c, n=n: c.append(c.first, 900) for n in range(9)],
    "a log that both renew": [
        lambda c, n=n: c.append(c.second if n % 3 == 2 else c.first, 900) for n in range(9)],
    "batches": [lambda c: c.append_many(c.first, 700), lambda c: c.append(c.second), lambda c: c.append(c.first)],
    "appends of both": [
        lambda c: c.append(c.second), lambda c: c.append(c.first), lambda c: c.append(c.second),
        lambda c: c.append(c.first), lambda c: c.append(c.second)],
    "retries": [
        lambda c: c.append(c.first, retried=True), lambda c: c.append(c.first, 5000, retried=True),
        lambda c: c.append(c.second), lambda c: c.append(c.first, retried=True)],
    "a flush of the store": [
        lambda c: c.append(c.first), lambda c: c.flush(c.first), lambda c: c.append(c.first),
        lambda c: c.flush(c.second), lambda c: c.append(c.second), lambda c: c.append(c.first)],
    "another one looks": [
        lambda c: c.append(c.second), lambda c: c.append(c.first, 600), lambda c: c.load(c.second),
        lambda c: c.append(c.second), lambda c: c.append(c.second, 600)],
    "a new head": [
        lambda c: c.append(c.first), lambda c: c.rename(c.first), lambda c: c.append(c.second),
        lambda c: c.append(c.first), lambda c: c.rename(c.second), lambda c: c.append(c.first)],
}  # fmt: skip


@pytest.fixture
def template(memory: Path) -> Path:
    """A store with a conversation, durable."""
    root = memory / "template"
    Store.init(root)
    with Store.open(root, keep_locks=False) as store:
        store.create(id="plan", title="Plan", type="group")
        store.append("plan", content=ONE)
    return root


class Run:
    """Steps on a fresh copy of a store, and what a power cut leaves after them."""

    def __init__(self, template: Path, memory: Path, rng: random.Random) -> None:
        self._template, self._memory, self._rng = template, memory, rng
        self._tried: set[int] = set()

    def run(self, steps: list[Step], at: int, error: int) -> bool:
        """Run the steps with a failure at the `at`-th call, and cut the power after the steps
        behind it.

        Returns:
            Whether there was such a call.
        """
        root = Path(shutil.copytree(self._template, self._memory / "store"))
        disk = Disk(root)
        conversation = Conversation(root)
        conversation.system.arm(at, error)
        cuts = []
        for step in steps:
            step(conversation)
            if conversation.system.hit:
                cuts.append((len(conversation.events), list(conversation.titles)))
        conversation.first.close()
        conversation.second.close()
        cuts.append((len(conversation.events), list(conversation.titles)))
        played = 0
        try:
            for number, titles in cuts if conversation.system.hit else ():
                for event in conversation.events[played:number]:
                    disk.play(event)
                played = number
                acknowledged = {
                    event[1] for event in conversation.events[:number] if event[0] == "acknowledged"
                }
                trees = list(disk.extreme_trees())
                if LONG:
                    more = list(disk.trees(self._rng, long=False))
                    trees += self._rng.sample(more, min(len(more), 30))
                for tree in trees:
                    state = hash((tuple(sorted(acknowledged)), tuple(sorted(tree.items()))))
                    if state in self._tried:
                        continue
                    self._tried.add(state)
                    materialise(tree, self._memory / "after")
                    conversation.check_after_the_cut(
                        self._memory / "after", acknowledged | {ONE}, titles
                    )
        except BaseException as failure:
            failure.add_note(f"call {at} failed ({os.strerror(error)}): {conversation.system.hit}")
            failure.add_note(f"refused: {[str(refused) for refused in conversation.refused]}")
            last = conversation.events[played - 1]
            failure.add_note(
                f"cut after event {played} of {len(conversation.events)}: {last!r:.100}"
            )
            raise
        shutil.rmtree(root)
        return bool(conversation.system.hit)


@pytest.fixture
def run(template: Path, memory: Path, rng: random.Random) -> Run:
    return Run(template, memory, rng)


@pytest.mark.parametrize("steps", STEPS)
def test_nothing_acknowledged_is_lost_by_a_failure_and_a_power_cut_after_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, steps: str
) -> None:
    monkeypatch.setattr(log, "MESSAGE_BYTES", 1000)
    if "renew" in steps:
        monkeypatch.setattr(log, "_LARGEST", 4096)
    for error in ERRORS:
        at = 1
        while run.run(STEPS[steps], at, error):
            at += 1
        assert at >= 10
