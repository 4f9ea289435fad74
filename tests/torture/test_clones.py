"""Clones of one bare remote are written to and synced at random, and some syncs are killed; all end
with equal bytes.

Each clone has writers, which append, tag and rename at random, and a process that syncs again and
again and is sometimes killed in the middle. What must hold: no acknowledged message or tag is
missing in any clone, all clones have the same bytes, and the only conflicts left are titles that
two writers changed.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import GitFailed, StoreBusy
from capsule.format.json import codec
from capsule.git.sync import SyncResult
from tests.conftest import SEED
from tests.git.repositories import Clone, bare, cloned, environment, new
from tests.git.talking import committed, status, sync_of, synced
from tests.processes import Child, until
from tests.torture.writers import (
    LONG,
    Acks,
    acknowledged,
    assert_in_order,
    assert_only_leftovers,
    in_threads,
    outlived,
)

pytestmark = pytest.mark.slow

FOLDER = "tälk [s]"
_TYPES = ("group", "channel", "direct", "chat")
_PAUSE_S = 0.06 if LONG else 0.02
#: Errors that pass by themselves: the git of a killed sync is still running, or others pushed first
#: ten times.
_PASSING = (".lock", "pushed to", "cannot lock ref", "works in")


@dataclass
class Work:
    """The work of one process.

    Attributes:
        top: The working tree of its clone.
        acks: The file of acknowledgements, or of finished syncs.
        name: Its name.
        seed: The seed of its random choices.
        rounds: The number of syncs; 0 for a writer, which works until it is stopped.
        deaths: The probability, at each step of a sync, that the process kills itself.
    """

    top: str
    acks: str
    name: str
    seed: int
    rounds: int = 0
    deaths: float = 0.0

    @property
    def root(self) -> Path:
        return Path(self.top) / FOLDER


def write(work: Work, ended: threading.Event) -> None:
    """Append to conversations, its own and those of other clones, until `ended` is set."""
    rng, acks, n = random.Random(work.seed), Acks(work.acks), 0
    with Store.open(work.root, keep_locks=False) as store:
        while not ended.wait(rng.uniform(0, _PAUSE_S)):
            there = sorted(path.stem for path in (work.root / "conversations").glob("[!.]*.json"))
            if len(there) < 3 or (len(there) < 12 and rng.random() < 0.03):
                id = store.create(title=f"of {work.name}", type=rng.choice(_TYPES)).id
            else:
                id = rng.choice(there)
            dice = rng.random()
            if dice < 0.05:
                store.tag(id, f"{work.name}-{n}")
                acks.add(id, work.name, n, "")
            elif dice < 0.06:
                store.rename(id, f"{work.name} {n}")
            else:
                text = f"{work.name} {n} {'é' * rng.choice((0, 20, 300))}"
                acks.add(
                    id,
                    work.name,
                    n,
                    store.append(id, role=rng.choice(("user", "assistant")), content=text).id,
                )
            n += 1


def passes(error: GitFailed | StoreBusy) -> bool:
    return any(known in error.message for known in _PASSING)


def sync_repeatedly(work: Work) -> None:
    """Sync until this process and its killed predecessors have finished `rounds` syncs."""
    rng = random.Random(work.seed)
    done = os.open(work.acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def maybe_die(step: str, number: int, total: int) -> None:
        if rng.random() < work.deaths:
            os.kill(os.getpid(), signal.SIGKILL)

    with Store.open(work.root, keep_locks=False) as store:
        while os.fstat(done).st_size < work.rounds:
            time.sleep(rng.uniform(0, _PAUSE_S * 5))
            try:
                (synced if rng.random() < 0.9 else committed)(store, told=maybe_die)
            except (GitFailed, StoreBusy) as error:
                if not passes(error):
                    raise
                print(f"again: {error.message}", file=sys.stderr)
            os.write(done, b".")


def main(what: str, work: str) -> None:
    if what == "sync":
        sync_repeatedly(Work(**json.loads(work)))
        return
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    write(Work(**json.loads(work)), ended)


def started(what: str, work: Work) -> Child:
    body = "from tests.torture.test_clones import main; main(*sys.argv[1:])"
    return Child(body, what, json.dumps(asdict(work)), env=environment())


def run_syncs(work: Work, rng: random.Random, deaths: Counter[str], failures: list[str]) -> None:
    """Run syncing processes, one after another when they are killed, until all syncs are done."""

    def start() -> tuple[Child, float | None]:
        work.seed = rng.getrandbits(32)
        # At any moment, also while it runs git, which then continues alone for a while.
        is_killed = work.deaths and rng.random() < 0.3
        return started("sync", work), rng.uniform(0.3, 2.0) if is_killed else None

    outlived(work.name, start, deaths, failures)


def sync_until_stable(clones: list[Clone]) -> int:
    """Sync all clones in turn until nothing changes. Returns: the number of rounds."""

    def once(clone: Clone) -> SyncResult | None:
        """None while the git of a sync that was killed is still at work."""
        try:
            return sync_of(clone)
        except (GitFailed, StoreBusy) as error:
            if passes(error):
                return None
            raise

    for round in range(1, 20):
        found = [until(lambda clone=clone: once(clone)) for clone in clones]
        if not any(done.committed.commit or done.received or done.pushed for done in found):
            return round
    raise AssertionError("the clones never come to rest")


def written(acks: Path) -> Counter[str]:
    """How much each writer has acknowledged."""
    return Counter(writer for _, writer, _, _ in acknowledged(acks))


def check(clones: list[Clone], acks: Path) -> int:
    """Compare every clone with the acknowledgements. Returns: their number."""
    files = [
        {path.name: path.read_bytes() for path in (clone.root / "conversations").iterdir()}
        for clone in clones
    ]
    for one in files[1:]:
        assert one.keys() == files[0].keys()
        assert [name for name in one if one[name] != files[0][name]] == []
    documents = {
        name.removesuffix(".json"): codec.decode(data, name) for name, data in files[0].items()
    }
    by_id = {
        id: {entry["id"]: entry for entry in document["history"]}
        for id, document in documents.items()
    }
    assert {id: len(found) for id, found in by_id.items()} == {
        id: len(d["history"]) for id, d in documents.items()
    }
    count = 0
    for id, writer, n, message in acknowledged(acks):
        count += 1
        if not message:
            assert f"{writer}-{n}" in documents[id]["metadata"]["tags"], (id, writer, n)
            continue
        assert message in by_id[id], (id, writer, n, message)
        assert by_id[id][message]["content"].split(" ")[:2] == [writer, str(n)]
    for id, document in documents.items():
        assert codec.encode(document) == files[0][f"{id}.json"]
        assert_in_order(document["history"], id)
    return count


@pytest.mark.parametrize("many", [2, 3])
def test_clones_written_to_and_synced_at_random_end_equal(tmp_path: Path, many: int) -> None:
    rng = random.Random(SEED + many)
    rounds, deaths, writers = (40, 0.005, 2) if LONG else (5, 0.01, 1)
    began = time.monotonic()
    first = new(tmp_path / "clone 0", FOLDER)
    first.run("remote", "add", "origin", str(bare(tmp_path / "remote.git")))
    sync_of(first)
    clones = [
        first,
        *(cloned(tmp_path / "remote.git", tmp_path / f"clone {n}", FOLDER) for n in range(1, many)),
    ]
    clones[-1].configure(core_autocrlf="true")
    acks = tmp_path / "acks"
    acks.mkdir()
    names = {f"w{at}{n}": clone for at, clone in enumerate(clones) for n in range(writers)}
    writing = [
        started("write", Work(str(clone.top), str(acks / name), name, rng.getrandbits(32)))
        for name, clone in names.items()
    ]
    killed: Counter[str] = Counter()
    failures: list[str] = []
    try:
        works = [
            Work(str(clone.top), str(tmp_path / f"syncs {at}"), f"s{at}", 0, rounds, deaths)
            for at, clone in enumerate(clones)
        ]
        in_threads(
            run_syncs,
            [(work, random.Random(rng.getrandbits(32)), killed, failures) for work in works],
        )
        # Every clone has something of its own when the last syncs begin: they have to merge.
        before = written(acks)
        until(
            lambda: (
                not all(writer.is_running for writer in writing)
                or (
                    (now := written(acks)).total() > 50
                    and all(now[name] > before[name] for name in names)
                )
            )
        )
    finally:
        failures += [words for writer in writing for code, words in [writer.ended()] if code]
    assert failures == []
    came_to_rest = sync_until_stable(clones)
    count = check(clones, acks)
    for clone in clones:
        assert status(clone) == []
        assert_only_leftovers(clone.root)
    merges = int(first.git("rev-list", "--count", "--merges", "HEAD"))
    commits = int(first.git("rev-list", "--count", "HEAD"))
    print(
        f"{many} clones, seed {SEED}: {count} acknowledged, {commits} commits, {merges} of them "
        "merges, "
        f"{sum(killed.values())} syncs killed, at rest after {came_to_rest} rounds, "
        f"{time.monotonic() - began:.0f} s"
    )
    assert merges
