"""Locks and `git status`: who locks a conversation, or lets it go, dirties nothing, and loses nobody what is staged."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.errors import Locked
from capsule.git.drivers import driver_config
from capsule.git.forgetting import forget
from tests.git.repositories import PROGRAM, Clone, cloned, new, published, worktree
from tests.git.turning import committed, status, synced
from tests.mcp_server.serving import over_http, over_stdio
from tests.processes import Child

#: Locks what it is told to, and says so.
LOCKING = """
from capsule.git.forgetting import forget
store = Store.open(sys.argv[1], lock_changed=forget)
while True:
    store.lock(hear())
    say("locked")
"""
#: Locks a conversation and lets it go, over and over.
IN_TURNS = """
from capsule.git.forgetting import forget
_, root, id, times = sys.argv
with Store.open(root, lock_changed=forget) as store:
    for _ in range(int(times)):
        with store.lock(id):
            pass
say("done")
"""


def opened(clone: Clone) -> Store:
    """The store as the doors open it."""
    return Store.open(clone.root, lock_changed=forget)


def talking(clone: Clone, *titles: str) -> list[str]:
    """A committed conversation for each title."""
    with clone.store() as store:
        ids = [store.create(title=title, messages=[{"role": "user", "content": title}]).id for title in titles]
    clone.commit()
    assert status(clone) == []
    return ids


def locked(clone: Clone, id: str) -> bool:
    return b'"active": true' in clone.file(id).read_bytes()


def index(clone: Clone) -> Path:
    return Path(clone.git("rev-parse", "--absolute-git-dir")) / "index"


@pytest.fixture(params=["store", "folder", "worktree"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Clone:
    """A store that is a repository, one in a folder whose name needs quoting, and one in a linked worktree."""
    clone = new(tmp_path / "a repö", "" if request.param == "store" else 'a "b"\n[c] ü\\')
    return worktree(clone, tmp_path / "linked tree", "aside") if request.param == "worktree" else clone


def test_a_lock_leaves_git_status_clean_from_its_beginning_to_its_end(place: Clone) -> None:
    id, other = talking(place, "Plans", "Ideas")
    with opened(place) as store:
        with store.lock(id):
            assert locked(place, id)
            assert status(place) == []
            with store.lock(id):  # Its time is written anew.
                assert status(place) == []
        assert not locked(place, id)
        assert status(place) == []
        store.lock(other)
        store.unlock(other)
        store.lock(other)
    assert not locked(place, other)
    assert status(place) == []


def test_a_lock_is_no_change_to_what_else_asks_git_either(repo: Clone) -> None:
    [id] = talking(repo, "Plans")
    with opened(repo) as store, store.lock(id):
        assert repo.git("diff", "--name-only") == ""
        assert repo.git("stash") == "No local changes to save"
        repo.run("commit", "-a", "-m", "nothing", expect=1)
        assert b'"active": false' in repo.at("", id)


def test_the_lock_of_a_process_that_was_killed_and_its_takeover_leave_git_status_clean(
    repo: Clone, child: Callable[..., Child]
) -> None:
    [id] = talking(repo, "Plans")
    holder = child(LOCKING, repo.root)
    holder.say(id)
    assert holder.hear() == "locked"
    assert status(repo) == []
    holder.kill()
    assert locked(repo, id)
    assert status(repo) == []
    before = repo.file(id).stat().st_size
    with Store.open(repo.root, user="somebody-with-a-longer-name", lock_changed=forget) as store:
        store.lock(id)
        assert repo.file(id).stat().st_size > before
        assert status(repo) == []
    assert status(repo) == []


@pytest.mark.parametrize("how", ["git", "capsule", "sync"])
def test_what_is_committed_while_it_is_locked_is_clean_when_it_is_let_go(tmp_path: Path, how: str) -> None:
    clone = new(tmp_path / "one")
    published(clone, tmp_path / "remote.git")
    [id] = talking(clone, "Plans")
    with opened(clone) as store:
        store.append(id, content="More")
        assert locked(clone, id)
        assert status(clone) == [f" M conversations/{id}.json"]
        if how == "git":
            clone.commit()
        else:
            (committed if how == "capsule" else synced)(store)
        assert status(clone) == []
    assert not locked(clone, id)
    assert status(clone) == []
    assert b"More" in clone.at("HEAD", id)


def test_what_a_sync_brings_into_a_locked_conversation_leaves_git_status_clean(tmp_path: Path) -> None:
    one = new(tmp_path / "one")
    remote = published(one, tmp_path / "remote.git")
    [id] = talking(one, "Plans")
    one.run("push", "-q")
    other = cloned(remote, tmp_path / "other")
    with other.store() as store:
        store.append(id, content="From there")
    other.commit()
    other.run("push", "-q")
    with opened(one) as store, store.lock(id):
        synced(store)
        assert locked(one, id)
        assert b"From there" in one.file(id).read_bytes()
        assert status(one) == []
    assert status(one) == []


def test_what_is_staged_and_what_is_edited_stay_as_they_are(monorepo: Clone) -> None:
    id, edited, staged = talking(monorepo, "Locked", "Edited", "Staged")
    (monorepo.top / "README.md").write_text("staged\n", encoding="utf-8")
    with monorepo.store() as store:
        store.append(staged, content="staged")
    monorepo.run("add", "--all")
    (monorepo.top / "README.md").write_text("staged, and edited\n", encoding="utf-8")
    (monorepo.top / "new").touch()
    with opened(monorepo) as store:
        store.append(edited, content="edited")
        store.unlock(edited)

        def seen() -> tuple[Any, ...]:
            ways = ((), ("--cached",), ("HEAD",))
            return status(monorepo), *(monorepo.run("diff", "--no-textconv", *way).out for way in ways)

        before = seen()
        assert len(before[0]) == 4
        for one in (id, edited, staged):
            with store.lock(one):
                assert seen() == before
            assert seen() == before


def test_an_edit_that_git_can_only_tell_by_the_time_of_its_index_is_still_told(repo: Clone) -> None:
    [id] = talking(repo, "Plans")
    repo.configure(core_trustctime="false")
    file, then = repo.top / "note", (1_700_000_000, 1_700_000_000)
    file.write_text("one", encoding="utf-8")
    os.utime(file, then)
    repo.run("add", "note")
    os.utime(index(repo), then)  # As of a git that was done within the file's own second.
    file.write_text("two", encoding="utf-8")
    os.utime(file, then)
    with opened(repo) as store:
        store.lock(id)
    assert status(repo) == ["AM note"]


def test_all_that_is_let_go_at_the_end_is_told_at_once_and_under_no_mutex(repo: Clone) -> None:
    ids = talking(repo, "one", "two", "three")
    told: list[tuple[set[str], bool]] = []

    def hear(paths: Any) -> None:
        told.append(({Path(path).stem for path in paths}, locked(repo, Path(paths[0]).stem)))
        with Store.open(repo.root, keep_locks=False) as other:
            if len(told) < 4:
                with pytest.raises(Locked):  # And not StoreBusy.
                    other.append(ids[0], content="Hello")
            else:
                other.append(ids[0], content="Hello")

    with Store.open(repo.root, lock_changed=hear) as store:
        for id in ids:
            store.lock(id)
    assert told == [*(({id}, True) for id in ids), (set(ids), False)]
    assert b"Hello" in repo.file(ids[0]).read_bytes()


def test_a_failure_of_whoever_is_told_is_none_of_the_lock(repo: Clone, caplog: pytest.LogCaptureFixture) -> None:
    [id] = talking(repo, "Plans")

    def fail(paths: Any) -> None:
        raise OSError("no such luck")

    with Store.open(repo.root, lock_changed=fail) as store:
        with store.lock(id):
            assert locked(repo, id)
            store.append(id, content="Hello")
        assert not locked(repo, id)
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert ["no such luck" in str(record.exc_info) for record in told] == [True, True]


def test_the_commands_and_the_servers_leave_git_status_clean(repo: Clone) -> None:
    [id] = talking(repo, "Plans")
    repo.capsule("lock", id, "--instance", "anna")
    assert locked(repo, id)
    assert status(repo) == []
    repo.capsule("unlock", id, "--instance", "anna")
    assert status(repo) == []
    for serve in (over_stdio, over_http):
        with _talking_to(serve, repo) as call:
            made = call("create_conversation", title="By an agent")["id"]
            call("append_message", id=made, content="Hello")
            assert locked(repo, made)
            repo.commit()
            call("lock_conversation", id=id)
            assert locked(repo, id)
            assert status(repo) == []
            call("unlock_conversation", id=id)
            assert status(repo) == []
        assert not locked(repo, made)
        assert status(repo) == []


@contextmanager
def _talking_to(serve: Any, clone: Clone) -> Iterator[Callable[..., Any]]:
    with serve(clone.root) as client:
        if serve is over_stdio:
            yield client.call
            client.leave()
        else:
            session = client.session()
            yield lambda tool, **arguments: session.call(tool, **arguments)["structuredContent"]
            session.end()
            client.signal(signal.SIGTERM)
        client.ended()


def test_nothing_is_touched_in_a_store_that_is_not_set_up_for_git(tmp_path: Path) -> None:
    clone = new(tmp_path / "plain", drivers=False)
    with clone.store() as store:
        id = store.create(title="Plans").id
    clone.commit()
    before = index(clone).stat()
    with opened(clone) as store:
        store.lock(id)
    assert index(clone).stat() == before
    Store.init(tmp_path / "alone")
    with Store.open(tmp_path / "alone", lock_changed=forget) as store:
        store.lock(store.create(title="Plans").id)


def test_a_git_that_holds_the_index_is_left_to_its_work(repo: Clone) -> None:
    [id] = talking(repo, "Plans")
    held, before = Path(f"{index(repo)}.lock"), index(repo).read_bytes()
    held.write_bytes(b"git's own")
    with opened(repo) as store:
        store.lock(id)
        assert locked(repo, id)
    assert held.read_bytes() == b"git's own"
    assert index(repo).read_bytes() == before


def test_an_index_that_another_git_has_written_meanwhile_is_not_put_back(
    repo: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = talking(repo, "Plans")
    (repo.top / "late").touch()
    link, tries = os.link, list[str]()

    def late(source: str, target: str) -> None:
        if target.endswith("index.lock"):
            tries.append(target)
            if len(tries) == 1:
                repo.run("add", "late")
        link(source, target)

    with opened(repo) as store:
        store.append(id, content="Hello")
        repo.commit()
        repo.run("rm", "--cached", "late")
        monkeypatch.setattr(os, "link", late)
        store.unlock(id)
        monkeypatch.undo()
    assert len(tries) == 2
    assert status(repo) == []
    assert not os.path.lexists(tries[0])


def test_a_git_status_that_saw_the_file_before_does_not_write_that_down(repo: Clone, tmp_path: Path) -> None:
    [id] = talking(repo, "Plans")
    begun, go_on = tmp_path / "begun", tmp_path / "go on"
    for pipe in (begun, go_on):
        os.mkfifo(pipe)
    real = driver_config(PROGRAM)["filter.capsule.process"]
    waiting = f"echo > '{begun}'; read line < '{go_on}'; {real}"
    with opened(repo) as store:
        store.lock(id)
        looking = threading.Thread(target=lambda: repo.run("-c", f"filter.capsule.process={waiting}", "status"))
        looking.start()
        begun.read_bytes()  # By now git has read the index, and knows the file's size.
        store.unlock(id)
        store.lock(id)
        store.unlock(id)
        go_on.write_bytes(b"\n")
        looking.join()
    assert status(repo) == []


@pytest.mark.parametrize("call", ["link", "replace", "fsync"])
def test_who_is_interrupted_leaves_no_lock_of_git(repo: Clone, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    [id] = talking(repo, "Plans")
    where, real = index(repo), getattr(os, call)
    before = where.read_bytes()

    def interrupted(*arguments: Any) -> Any:
        real(*arguments) if call == "link" else None
        raise KeyboardInterrupt

    monkeypatch.setattr(os, call, interrupted)
    with pytest.raises(KeyboardInterrupt):
        forget([str(repo.file(id))])
    monkeypatch.undo()
    assert where.read_bytes() == before
    assert not os.path.lexists(f"{where}.lock")
    assert os.listdir(where.parent / "capsule") == []


def test_who_is_killed_at_the_worst_instant_leaves_what_a_killed_git_leaves(
    repo: Clone, child: Callable[..., Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    [id] = talking(repo, "Plans")
    dying = child(
        """
        import signal
        from capsule.git.forgetting import forget
        os.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
        forget([sys.argv[1]])
        """,
        repo.file(id),
    )
    assert dying.end() == -signal.SIGKILL
    assert status(repo) == []
    assert "index.lock': File exists" in repo.run("add", "--all", expect=128).err
    os.unlink(f"{index(repo)}.lock")
    left = index(repo).parent / "capsule"
    assert len(os.listdir(left)) == 1
    assert repo.run("fsck").err == ""
    monkeypatch.setattr("capsule.git.forgetting._LEFT_S", -1)  # As an hour later.
    with opened(repo) as store:
        store.lock(id)
        assert status(repo) == []
    assert os.listdir(left) == []


@pytest.mark.timeout(240)
def test_two_who_lock_beside_a_git_that_stages_lose_it_nothing(repo: Clone, child: Callable[..., Child]) -> None:
    ids = talking(repo, "one", "two")
    holders = [child(IN_TURNS, repo.root, id, "60") for id in ids]
    done = [threading.Thread(target=holder.hear) for holder in holders]
    for thread in done:
        thread.start()
    staged: list[str] = []
    while any(thread.is_alive() for thread in done) or len(staged) < 10:
        name = f"file{len(staged)}"
        (repo.top / name).write_text(name, encoding="utf-8")
        # It may meet the instant in which the lock is held, as it may meet any other git.
        ran = repo.run("add", name, expect=None)
        assert ran.code == 0 or "index.lock': File exists" in ran.err, ran
        if ran.code == 0:
            staged.append(name)
        else:
            os.unlink(repo.top / name)
        if len(staged) % 5 == 0:
            repo.run("status")
    for thread in done:
        thread.join()
    with opened(repo) as store:  # Had git the index for more than a second, the last of them gave up.
        for id in ids:
            store.lock(id)
    assert sorted(status(repo)) == sorted(f"A  {name}" for name in staged)
    assert not os.path.lexists(f"{index(repo)}.lock")
    assert repo.run("fsck").code == 0
    repo.run("add", "--all")
    repo.run("commit", "-m", "all")
    assert status(repo) == []


def test_it_loads_nothing_to_start_a_process_with(child: Callable[..., Child]) -> None:
    started = child(
        """
        import capsule.git.forgetting
        say(sorted({"subprocess", "hashlib", "capsule.git.drivers", "capsule.git.program"} & set(sys.modules)))
        """
    )
    assert started.hear() == []
