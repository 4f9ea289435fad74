"""The log repairs stale saves, failed flushes, retried writes, and files that are still being
saved.
"""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.engines.files import external_edits
from capsule.engines.files.external_edits import purge_log_texts
from capsule.errors import InvalidDocument, StorageFailed
from capsule.maintenance import doctor
from tests.core.storage.faults import store_on
from tests.core.store.files import contents, put_over, quarantined
from tests.torture.filesystem import Disk, Rebooted, Recorder, materialise

KIND = "conversations"


@pytest.fixture
def path(root: Path, store: Store) -> Path:
    store.create(
        id="plan", title="Plan", type="group", messages=[{"role": "user", "content": "one"}]
    )
    return root / "conversations" / "plan.json"


def test_acknowledged_messages_survive_a_power_cut_after_a_stale_save(
    root: Path, store: Store, path: Path, rng: Any
) -> None:
    """No store has read the stale save before the power cut, so that the log alone has
    the message.
    """
    store.close()
    before, stale = Disk(root), path.read_bytes()
    recorder = Recorder(root)
    with store_on(root, recorder, keep_locks=False) as recorded:
        recorded.append("plan", content="two")
        recorded.append("plan", content="three")
    for event in recorder.events:
        before.play(event)
    for number, tree in enumerate(before.trees(rng, long=False)):
        place = root.parent / f"after{number}"
        materialise(tree, place)
        put_over(place / "conversations" / "plan.json", stale)
        with store_on(place, Rebooted()) as again:
            assert contents(again) == ["one", "two", "three"]


@pytest.mark.parametrize(("lacks", "kind"), [(1, "interrupted"), (2, "overwritten")])
def test_a_write_that_a_power_cut_may_have_interrupted_does_not_count_as_acknowledged(
    root: Path, store: Store, path: Path, lacks: int, kind: str
) -> None:
    versions = [path.read_bytes()]
    for text in ("two", "three"):
        store.append("plan", content=text)
        versions.append(path.read_bytes())
    store.close()
    path.write_bytes(versions[~lacks])
    for system, said in ((None, "overwritten"), (Rebooted(), kind)):
        with Store.open(root) if system is None else store_on(root, system) as again:
            (found,) = doctor.examine(again)
            assert (found.kind, "lacks acknowledged changes" in found.what) == (
                said,
                said == "overwritten",
            )
    with store_on(root, Rebooted()) as again:
        assert [each.repaired for each in doctor.examine(again, repair=True)] == ["merged back"]
        assert contents(again) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("change", "is_done"),
    [
        (lambda store: store.untag("plan", "old"), lambda store: store.head("plan").tags == ()),
        (
            lambda store: store.rename("plan", "Plan"),
            lambda store: store.head("plan").title == "Plan",
        ),
        (lambda store: store.branches.remove("plan", "@0"), lambda store: contents(store) == []),
    ],
)
def test_a_log_older_than_the_file_undoes_nothing(  # type: ignore[no-untyped-def]
    root: Path, store: Store, path: Path, change, is_done
) -> None:
    store.tag("plan", "old")
    store.rename("plan", "Other")
    log = root / ".capsule" / "logs" / "conversations-plan"
    older = log.read_bytes()
    change(store)
    store.close()
    log.write_bytes(older)
    for lost in (root / ".capsule" / "mutex").iterdir():
        lost.write_bytes(b"")
    with store_on(root, Rebooted()) as again:
        assert is_done(again)


class FailingFlush(Syscalls):
    """A system whose flushes of data fail while `fails` is set."""

    fails = False

    def fdatasync(self, fd: int) -> None:  # type: ignore[override]
        if self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        os.fdatasync(fd)


def test_a_retry_under_a_key_never_acknowledges_bytes_whose_flush_failed(
    root: Path, store: Store, path: Path
) -> None:
    store.append("plan", content="two")
    system = FailingFlush()
    with store_on(root, system, keep_locks=False) as failing:
        failing.append("plan", content="three")
        inode = path.stat().st_ino
        system.fails = True
        with pytest.raises(StorageFailed):
            failing.append_once("plan", "k", content="four")
        system.fails = False
        message, repeated = failing.append_once("plan", "k", content="four")
    assert contents(store) == ["one", "two", "three", "four"] and message.content == "four"
    assert not repeated or path.stat().st_ino != inode  # Every byte was written again.


@pytest.fixture
def meddler(store: Store, path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What another program does once, between the splice and the check of its result."""
    todo: list[Any] = []
    system, writer = store.engine.storage.sys, threading.get_ident()

    def lstat(place: str) -> os.stat_result:
        if (
            todo and place == str(path) and threading.get_ident() == writer
        ):  # Not the thread that flushes behind.
            todo.pop()()
        return os.lstat(place)

    monkeypatch.setattr(system, "lstat", lstat)
    return todo


def test_a_message_is_there_once_when_an_editor_saves_it_or_moves_the_file_away(
    root: Path, store: Store, path: Path, meddler: list[Any]
) -> None:
    def copy_over() -> None:
        put_over(path, path.read_bytes())

    def away_and_back() -> None:
        path.rename(root / "away")
        (root / "away").rename(path)
        os.utime(path)
        put_over(path, path.read_bytes())

    def stale() -> None:
        put_over(path, before)

    texts = ["one"]
    for n, meddle in enumerate((copy_over, away_and_back, stale)):
        before = path.read_bytes()
        meddler.append(meddle)
        message = store.append("plan", content=str(n))
        texts.append(str(n))
        assert not meddler and contents(store) == texts and message.at == len(texts) - 1
        meddler.append(meddle)
        store.append_once("plan", str(n), content=f"k{n}")
        texts.append(f"k{n}")
        assert contents(store) == texts


def test_a_message_that_a_person_removes_before_it_is_acknowledged_stays_removed(
    store: Store, path: Path, meddler: list[Any]
) -> None:
    # The append was interrupted by the person's save, found its message gone, and appended it
    # again.
    def take_out() -> None:
        document = orjson.loads(path.read_bytes())
        taken_out.append(document["history"].pop()["content"])
        put_over(
            path, orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        )

    taken_out: list[str] = []
    store.append("plan", content="two")
    for write in (
        lambda: [store.append("plan", content="three")],
        lambda: store.append_many(
            "plan", [{"role": "user", "content": text} for text in ("three", "four")]
        ),
        lambda: [store.append_once("plan", "k", content="three")[0]],
    ):
        before = contents(store)
        meddler.append(take_out)
        written = write()
        assert not meddler and taken_out.pop() == written[-1].content
        assert contents(store) == [*before, *(message.content for message in written[:-1])]
        assert written[0].at == len(before)


def test_a_half_saved_version_that_interrupted_an_append_is_left_alone(
    root: Path, store: Store, path: Path, meddler: list[Any]
) -> None:
    # The half that vim had written was taken for the remains of a crash, and the append was written
    # behind it.
    store.append_many("plan", [{"role": "user", "content": text} for text in ("two", "three")])
    document = orjson.loads(path.read_bytes())
    whole = orjson.dumps(document | {"title": "By hand"}, option=orjson.OPT_INDENT_2)
    half = whole[: whole.index(b"\n    }", whole.index(b'"history"')) + len(b"\n    }")]

    def save_half() -> None:
        path.rename(f"{path}~")
        path.write_bytes(half)

    meddler.append(save_half)
    with pytest.raises(InvalidDocument):
        store.append("plan", content="four")
    assert not meddler and path.read_bytes() == half and quarantined(root) == []
    path.write_bytes(whole)
    assert (
        contents(store) == ["one", "two", "three", "four"] and store.head("plan").title == "By hand"
    )


def test_messages_with_the_same_id_and_the_deepest_message_come_back(
    store: Store, path: Path
) -> None:
    stale = path.read_bytes()
    deep: Any = {}
    for _ in range(249):
        deep = {"x": deep}
    store.append_many("plan", [{"role": "user", "content": "first", "id": "m"}])
    between = path.read_bytes()
    store.append_many("plan", [{"role": "user", "content": "second", "id": "m"}])
    store.append("plan", content="deep", extra={"extra": deep})
    for version in (between, stale):
        put_over(path, version)
        history = store.document("plan")["history"]  # As a model it would be too deep for pydantic.
        assert [entry["content"] for entry in history] == ["one", "first", "second", "deep"]


def test_messages_without_their_ids_get_them_back(store: Store, path: Path) -> None:
    for text in ("same", "same", "other"):
        store.append("plan", content=text)
    ids = [message.id for message in store.load("plan").history]
    document = orjson.loads(path.read_bytes())
    for entry in document["history"][1:]:
        del entry["id"]
    store.append("plan", content="unseen")
    put_over(path, orjson.dumps(document))
    assert contents(store) == ["one", "same", "same", "other", "unseen"]
    assert [message.id for message in store.load("plan").history][:4] == ids


def test_delete_and_restore_keep_messages_that_a_stale_save_lacks_and_a_new_conversation_has_none(
    store: Store, path: Path
) -> None:
    stale = path.read_bytes()
    store.append("plan", content="two")
    store.delete("plan")
    store.trash.restore("plan")
    put_over(path, stale)
    assert contents(store) == ["one", "two"]
    store.delete("plan")
    store.create(id="plan", type="group")
    assert contents(store) == []
    store.append("plan", content="new")
    assert contents(store) == ["new"]


@pytest.mark.parametrize(
    "is_renamed", [False, True]
)  # The log keeps records of heads for longer than messages.
def test_a_loss_of_messages_too_old_for_the_log_is_logged(
    store: Store, path: Path, caplog: pytest.LogCaptureFixture, is_renamed: bool
) -> None:
    if is_renamed:
        store.rename("plan", "Other")
    stale = path.read_bytes()
    for n in range(400):
        store.append("plan", content=f"{n} " + "x" * 2000)
    put_over(path, stale)
    missing = 401 - len(contents(store))
    assert missing > 200 and f"without {missing} messages" in caplog.text


def test_every_write_has_a_later_updated_at(store: Store, path: Path) -> None:
    stamps = []
    for n in range(20):
        store.append("plan", content=str(n)) if n % 3 else store.rename("plan", str(n))
        stamps.append(orjson.loads(path.read_bytes())["updatedAt"])
    assert stamps == sorted(set(stamps))


def test_a_save_with_a_pause_is_left_alone_until_it_is_whole(
    root: Path, store: Store, path: Path
) -> None:
    for n in range(4):
        store.append("plan", content=f"{n} " + "x" * 3000)
    typed = orjson.loads(path.read_bytes())
    typed["history"].append({"role": "user", "content": "typed"})
    data = orjson.dumps(typed, option=orjson.OPT_INDENT_2) + b"\n"
    inode = path.stat().st_ino
    for stop in range(len(data) - 13_000, len(data) - 10, 997):
        path.write_bytes(data[:stop])
        os.utime(path, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns - 5_000_000_000))
        with pytest.raises(InvalidDocument):
            store.append("plan", content="no")
        assert [finding.kind for finding in doctor.examine(store)] in (["torn"], ["damaged"])
        assert path.stat().st_ino == inode and path.read_bytes() == data[:stop]
    path.write_bytes(data)
    assert contents(store)[-1] == "typed" and quarantined(root) == []


def test_a_half_saved_version_that_parses_is_read_again(
    store: Store, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An editor writes in place, and for an instant the file lacks the tags and the end."""
    store.tag("plan", "kept")
    half, whole = orjson.loads(path.read_bytes()), orjson.loads(path.read_bytes())
    half["metadata"]["tags"] = []
    whole["history"].append({"role": "user", "content": "typed"})
    path.write_bytes(orjson.dumps(half))
    real, looks = external_edits.time.time_ns, [path.stat().st_mtime_ns + 1]

    def sleep(seconds: float) -> None:
        path.write_bytes(orjson.dumps(whole))

    monkeypatch.setattr(external_edits.time, "sleep", sleep)
    monkeypatch.setattr(
        external_edits.time, "time_ns", lambda: looks.pop() if looks else real() + 10**9
    )
    store.append("plan", content="x")
    assert contents(store) == ["one", "typed", "x"] and store.head("plan").tags == ("kept",)


def is_log(fd: int) -> bool:
    return "/.capsule/logs/" in os.readlink(f"/proc/self/fd/{fd}")


def test_a_save_right_before_a_splice_is_not_overwritten(
    root: Path, store: Store, path: Path
) -> None:
    store.append("plan", content="two")
    typed = orjson.loads(path.read_bytes())
    typed["history"].append({"role": "user", "content": "typed"})
    data = orjson.dumps(typed, option=orjson.OPT_INDENT_2) + b"\n"

    class Typing(Syscalls):
        """An editor that saves in place when the line is in the log and not yet in the file."""

        todo = True

        def pwrite(self, fd: int, bytes: bytes, offset: int) -> int:  # type: ignore[override]
            done = os.pwrite(fd, bytes, offset)
            if self.todo and is_log(fd):
                self.todo = False
                path.write_bytes(data)
            return done

    with store_on(root, Typing(), keep_locks=False) as writing:
        writing.append("plan", content="three")
        assert contents(writing) == ["one", "two", "typed", "three"]


def test_a_copy_made_during_an_append_is_completed(root: Path, store: Store, path: Path) -> None:
    before = path.read_bytes()
    store.append("plan", content="x" * 2000)
    after = path.read_bytes()
    tail = len(before) - 7
    border = tail - tail % 512 + 512
    halves = (
        before + after[len(before) :],  # The old closing, then what was written behind it.
        before[:tail] + after[tail : len(before)],  # What was written, up to where the file ended.
        before[:border].ljust(border, b"\0")
        + after[border:],  # One sector old, or missing, and the next ones new.
    )
    for half in halves:
        put_over(path, half.replace(b'"Plan"', b'"A much longer title, by sed"'))
        assert contents(store) == ["one", "x" * 2000] and store.head("plan").title.startswith(
            "A much"
        )
        put_over(path, after)
        assert contents(store) == ["one", "x" * 2000]


def test_a_log_with_purged_texts_still_protects_the_other_messages(
    root: Path, store: Store, path: Path
) -> None:
    stale = path.read_bytes()
    for text in ("canary in a message", "kept", "canary before an edit"):
        store.append("plan", content=text)
    store.rename("plan", "canary in a title")
    store.rename("plan", "Plan")
    store.edits.message("plan", "@3", "edited")
    store.branches.remove("plan", "@1", keep_children=True)
    log = root / ".capsule" / "logs" / "conversations-plan"
    assert b"canary" in log.read_bytes()
    purge_log_texts(store.engine.storage, KIND, "plan")
    assert b"canary" not in log.read_bytes()
    put_over(path, stale)
    assert contents(store) == ["one", "kept", "edited"]


def test_an_append_that_fails_in_the_log_leaves_the_file_unchanged(
    root: Path, store: Store, path: Path
) -> None:
    class Refusing(Syscalls):
        refuses = False

        def pwrite(self, fd: int, bytes: bytes, offset: int) -> int:  # type: ignore[override]
            if self.refuses and is_log(fd):
                raise OSError(errno.EIO, "the drive refuses")
            return os.pwrite(fd, bytes, offset)

    sys = Refusing()
    with store_on(root, sys, keep_locks=False) as writing:
        writing.append("plan", content="two")
        before = path.read_bytes()
        sys.refuses = True
        with pytest.raises(StorageFailed):
            writing.append("plan", content="refused")
        assert path.read_bytes() == before
        sys.refuses = False
        writing.append("plan", content="three")
        assert contents(writing) == ["one", "two", "three"]


def test_a_flush_looks_only_at_what_was_written_since_the_last_one(
    root: Path, store: Store, path: Path
) -> None:
    store.append("plan", content="two")
    store.create(id="other", type="group")
    store.flush()
    mutexes = root / ".capsule" / "mutex"
    os.utime(mutexes / "conversations-plan", ns=(5, 5))
    os.utime(mutexes / "conversations-other", ns=(6, 6))
    assert store.flush() == 0
    looked: list[str] = []
    real = store.engine.storage.hold
    store.engine.storage.hold = lambda kind, id, *more: looked.append(id) or real(kind, id, *more)
    assert store.flush() == 0 and looked == ["other"]
    store.append("plan", content="three")
    looked.clear()
    store.flush()
    assert sorted(set(looked)) == ["other", "plan"]
