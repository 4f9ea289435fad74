"""`capsule git commit --follow`: committed once nobody writes any more."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from capsule import Store
from capsule.engines.changes import Change
from capsule.errors import CapsuleError, GitFailed
from capsule.git.commit import Autocommit
from tests.git.conftest import Start
from tests.git.repositories import Clone
from tests.git.talking import sync_of

pytestmark = pytest.mark.slow


Plan = tuple[Store, str]


@pytest.fixture
def plan(repo: Clone) -> Iterator[Plan]:
    """The store of the repository, and a conversation in it."""
    with Store.open(repo.root, keep_locks=False) as store:
        yield store, store.create(title="Plan", type="group").id


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    told = process.stdout.readline()
    assert told, process.stderr.read()
    return told


def test_autocommit_commits_earlier_and_later_changes(
    repo: Clone, plan: Plan, start: Start
) -> None:
    store, id = plan
    process = start(repo, "git", "commit", "--follow", "--idle", "1")
    assert line(process).rstrip().endswith("'Plan' created")
    store.append(id, content="hello")
    assert line(process).rstrip().endswith("a message in 'Plan'")
    assert repo.at("HEAD", id) == store.read(id)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_autocommit_commits_the_rest_when_it_ends(
    repo: Clone, plan: Plan, start: Start, number: int, code: int
) -> None:
    store, id = plan
    process = start(repo, "git", "commit", "--follow", "--idle", "3600", "--json")
    assert json.loads(line(process))["count"] == 1
    store.append(id, content="not yet committed")
    process.send_signal(number)
    out, err = process.communicate()
    assert (process.returncode, err) == (code, "")
    assert json.loads(out)["documents"][0]["words"] == ["a message added"]
    assert repo.at("HEAD", id) == store.read(id)


def test_with_sync_it_gives_and_takes(clones: tuple[Clone, Clone], start: Start) -> None:
    anna, ben = clones
    with Store.open(anna.root, keep_locks=False) as store:
        id = store.create(title="Plan", type="group").id
        process = start(anna, "git", "commit", "--follow", "--idle", "1", "--sync")
        assert line(process).rstrip().endswith("'Plan' created")
        assert line(process) == "pushed 1 commit to origin/main\n"
        sync_of(ben)
        assert ben.file(id).exists()


def test_autocommit_reports_an_unreachable_remote_once(
    repo: Clone, plan: Plan, start: Start
) -> None:
    repo.run("remote", "add", "origin", str(repo.top / "no such disk" / "r.git"))
    store, id = plan
    process = start(repo, "git", "commit", "--follow", "--idle", "1", "--sync")
    for text in ("one", "two", "three"):
        assert "committed" in line(process)
        store.append(id, content=text)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert err.count("origin/main can't be reached") == len(err.splitlines()) == 1


def test_autocommit_names_a_damaged_file_once_and_commits_the_rest(
    repo: Clone, plan: Plan, start: Start
) -> None:
    store, id = plan
    bad = repo.root / "conversations" / "bad.json"
    bad.write_text("{,")
    process = start(repo, "git", "commit", "--follow", "--idle", "1")
    assert line(process).rstrip().endswith("'Plan' created")
    store.append(id, content="hello")
    assert line(process).rstrip().endswith("a message in 'Plan'")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert err.count(f"{bad}:1:2") == 1


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def change(kind: str) -> Change:
    return Change(kind=kind, id="x", at="2025-01-01T00:00:00.000Z", cursor="c")


@pytest.mark.sample
def test_it_waits_for_a_pause_and_for_no_longer_than_twenty() -> None:
    clock, acted = Clock(), []
    auto = Autocommit(10, lambda: acted.append(clock.now), pytest.fail, clock=clock)
    assert auto.due_in_s() == 0
    auto.run_if_due()
    assert acted == [100] and auto.due_in_s() is None
    auto.note_changes([change("locked"), change("unlocked")])
    assert auto.due_in_s() is None
    auto.note_changes([change("appended")])
    begun = clock.now
    while len(acted) == 1:
        clock.now += 8
        auto.run_if_due()
        auto.note_changes([change("appended")])
        assert clock.now - begun <= 200
    assert acted[1] - begun == 200
    assert auto.due_in_s() == 10


@pytest.mark.sample
def test_autocommit_reports_an_error_once_and_tries_again() -> None:
    clock, said = Clock(), []
    words = ("held", "held", "other", "", "held")
    errors: list[CapsuleError | None] = [GitFailed(word) if word else None for word in words]

    def act() -> None:
        error = errors.pop(0)
        if error is not None:
            raise error

    auto = Autocommit(1, act, lambda error: said.append(error.message), clock=clock)
    waits = []
    while errors:
        if auto.due_in_s() is None:
            auto.note_changes([change("appended")])
        wait_s = auto.due_in_s()
        assert wait_s is not None
        waits.append(wait_s)
        clock.now += wait_s
        auto.run_if_due()
    assert said == ["held", "other", "held"]
    assert waits == [0, 5, 5, 5, 1]


def test_an_autocommit_that_syncs_acts_without_changes() -> None:
    clock, acted = Clock(), []
    auto = Autocommit(1, lambda: acted.append(clock.now), pytest.fail, every_s=300, clock=clock)
    for _ in range(3):
        clock.now += auto.due_in_s() or 0
        auto.run_if_due()
    assert acted == [100, 400, 700]
