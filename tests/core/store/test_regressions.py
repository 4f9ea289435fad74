"""Failures that the torture tests of editors found, each reduced to the smallest case.

All of these failed once, except two: the test of the missing warning, and that of the editor that
never reads again.
"""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from capsule import Store, timestamps
from capsule.engines.files import external_edits
from capsule.errors import NotFound
from capsule.format.documents import creation
from capsule.format.recovery.reconcile import head_record, reconcile
from capsule.maintenance import doctor
from tests.core.store.files import contents, file_of, opened, put_over, quarantined, save, text_of

FUTURE = "2999-01-01T00:00:00.000Z"


def test_a_stale_save_in_a_file_from_a_clock_ahead_loses_nothing(
    root: Path, store: Store, group: str
) -> None:
    # All writes have the same updatedAt until the clock catches up; the first of them was taken for
    # the version read.
    save(root, group, opened(root, group) | {"updatedAt": FUTURE})
    store.head(group)
    document = opened(root, group)
    for text in ("three", "four"):
        store.append(group, content=text)
    save(root, group, document)
    assert contents(store, group) == ["one", "two", "three", "four"]


def test_two_editors_that_read_at_different_times_lose_nothing_between_them(
    root: Path, store: Store, group: str
) -> None:
    # The messages that the first save lacked came back in one write. The second save had half of
    # them, and was taken to have read the other half.
    first = opened(root, group)
    store.append(group, content="three")
    second = opened(root, group)
    store.append(group, content="four")
    save(root, group, first)
    assert contents(store, group) == ["one", "two", "three", "four"]
    save(root, group, second)
    assert contents(store, group) == ["one", "two", "three", "four"]


def test_repair_brings_back_messages_lost_by_an_editor_that_died_in_a_save(
    root: Path, store: Store, group: str
) -> None:
    text = text_of(opened(root, group))
    half = text[: text.index(b'"one"') + 2]
    file_of(root, group).write_bytes(half)
    assert [finding.repaired is not None for finding in doctor.examine(store, repair=True)] == [
        True
    ]
    assert contents(store, group) == ["one", "two"]
    assert half in quarantined(root)
    assert list(doctor.examine(store)) == []


def test_a_write_waits_while_vim_has_moved_the_old_version_away(
    root: Path, store: Store, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The write raised NotFound.
    path = file_of(root, group)
    backup = path.with_name(path.name + "~")

    def sleep(seconds: float) -> None:
        if backup.exists():
            backup.rename(path)

    with monkeypatch.context() as patched:
        patched.setattr(external_edits, "_QUIET_NS", 60_000_000_000)
        patched.setattr(external_edits.time, "sleep", sleep)
        for act in (lambda: store.append(group, content="three"), lambda: store.load(group)):
            path.rename(backup)
            act()
            assert not backup.exists()
    assert contents(store, group) == ["one", "two", "three"]
    path.unlink()
    with pytest.raises(NotFound):
        store.append(group, content="four")


def test_a_title_changed_by_hand_and_back_without_a_write_in_between_stays_so(
    root: Path, store: Store, group: str
) -> None:
    # Both saves have one updatedAt; the first was applied again as an edit by the store. (Found by
    # the model.)
    for title in ("Other", "Plan"):
        save(root, group, opened(root, group) | {"title": title})
        assert store.document(group)["title"] == title


def test_a_stale_save_does_not_bring_back_a_lock_that_was_refreshed(
    root: Path, store: Store
) -> None:
    # No record has the time of such a lock, so that it was taken for one added by the person.
    # (Found by the model.)
    id = store.create(title="Plan", type="group").id
    with store.locks.take(id):
        store.locks.take(id)
        document = opened(root, id)
    store.locks.release(id)
    save(root, id, document)
    store.append(id, content="one")
    assert store.head(id).lock is None


def test_the_same_words_typed_twice_in_one_place_are_two_messages(root: Path, store: Store) -> None:
    # Both got the id that is derived from the position and the words. (Found by the model.)
    id = store.create(title="Plan", type="group").id
    for _ in range(2):
        document = opened(root, id)
        document["history"] = [{"role": "user", "content": "again"}, *document["history"]]
        save(root, id, document)
        store.tag(id, "new")
    assert len({message.id for message in store.load(id).history}) == 2


def test_an_editor_that_never_reads_again_loses_no_message_in_the_log(
    root: Path, store: Store, group: str
) -> None:
    # Its saves have the time of the version that it read. Once the record of that version is cut
    # off the log, the first save must not be taken for it: every earlier message would count as
    # read.
    document = opened(root, group)
    for n in range(17):
        store.append(group, content=f"{n} " + "x" * 10_000)
    save(root, group, document)
    assert len(contents(store, group)) == 19
    for n in range(17, 27):
        store.append(group, content=f"{n} " + "x" * 10_000)
    save(root, group, document)
    there = contents(store, group)
    assert there[-11].startswith("16 ") and there[-1].startswith("26 ")


def test_a_tag_added_in_the_same_millisecond_as_the_version_read_stays(
    root: Path, store: Store, group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The later of the two heads of that millisecond was taken for the version read.
    stamp = timestamps.now()
    monkeypatch.setattr(timestamps, "now", lambda not_before="": stamp)
    store.append(group, content="three")
    document = opened(root, group)
    store.tag(group, "store")
    document["metadata"]["tags"].append("hand")
    save(root, group, document)
    assert set(store.head(group).tags) == {"old", "store", "hand"}


def test_a_save_between_the_rename_and_the_note_is_noticed(
    root: Path, store: Store, group: str
) -> None:
    # The note took the editor's file for the store's: its offsets were wrong, and later writes
    # raised StoreBusy.
    path, sys = file_of(root, group), store.engine.storage.sys
    exchange, typed = sys.exchange, orjson.dumps(opened(root, group) | {"title": "By hand"})

    def meanwhile(one: str, other: str) -> bool:
        done = exchange(one, other)
        path.write_bytes(typed)
        return done

    sys.exchange = meanwhile
    store.tag(group, "new")
    del sys.exchange
    with Store.open(root) as other:  # This one has no head in memory.
        other.append(group, content="three")
    assert contents(store, group) == ["one", "two", "three"]
    assert (store.head(group).title, store.head(group).tags) == ("By hand", ("old", "new"))


def test_no_reader_sees_a_version_that_is_taken_back(root: Path, store: Store, group: str) -> None:
    # The store exchanged its new version with the one that an editor had just saved, and back. The
    # editor read in between, and its next save lacked what its last one had.
    path, sys = file_of(root, group), store.engine.storage.sys
    open_, seen = sys.open, []
    typed = opened(root, group)
    typed["history"].append({"role": "user", "content": "typed"})

    def open_new(name: str, flags: int, mode: int = 0o777) -> int:
        if name.endswith(".tmp") and not seen:
            save(root, group, typed)
            seen.append(name)
        return open_(name, flags, mode)

    exchange = sys.exchange

    def look(one: str, other: str) -> bool:
        done = exchange(one, other)
        seen.append([message["content"] for message in opened(root, group)["history"]])
        return done

    sys.open, sys.exchange = open_new, look
    store.tag(group, "new")
    assert len(seen) > 1 and all("typed" in version for version in seen[1:])
    assert contents(store, group) == ["one", "two", "typed"] and path.exists()


def test_a_lock_without_a_record_is_no_conflict() -> None:
    """A writer was killed between its lock and the record of it; the next save put the old lock
    into the quarantine.
    """
    free, held = (
        creation.inactive_lock(),
        {"active": True, "instanceId": "a", "timestamp": None, "user": None, "host": None},
    )
    document = creation.new_capsule("plan", "Plan", "2025-01-12T10:30:00.000Z", lock=free)
    records = [
        [head_record(document["updatedAt"], document, 0)],
        [
            head_record(
                document["updatedAt"],
                document | {"metadata": document["metadata"] | {"lock": held}},
                0,
            )
        ],
    ]
    killed = held | {"instanceId": "b"}
    outcome = reconcile(document | {"metadata": document["metadata"] | {"lock": killed}}, records)
    assert outcome.overridden == []
    assert outcome.document["metadata"]["lock"] == killed


def test_empty_metadata_stays_an_object_when_the_title_changes() -> None:
    """The file was written without its metadata. (Found by the fuzzing.)"""
    document = creation.new_capsule("plan", "Plan", "2025-01-12T10:30:00.000Z")
    renamed = document | {"title": "Renamed", "updatedAt": "2025-01-12T10:31:00.000Z"}
    records = [[head_record(head["updatedAt"], head, 0)] for head in (document, renamed)]
    outcome = reconcile(document | {"metadata": {}}, records)
    assert outcome.document["title"] == "Renamed"
    assert outcome.document["metadata"] == {}


def test_an_unknown_field_beside_the_history_is_neither_doubled_nor_lost(root: Path) -> None:
    """After a rewrite the cached head held the field too, and the next rename wrote it twice. The
    record of a rename lacks the field, and the merge of a stale save took that for its removal."""
    path = file_of(root, "plan")
    with Store.open(root, keep_locks=False) as store:
        store.create(
            id="plan", title="Plan", type="group", messages=[{"role": "user", "content": "one"}]
        )
        path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes()) | {"zebra": {"a": 1}}))
        store.rename("plan", "Rewritten")
        read = path.read_bytes()
        store.rename("plan", "Reheaded")
        assert store.document("plan")["zebra"] == {"a": 1}
    with Store.open(root, keep_locks=False) as store:
        store.rename("plan", "Again")
        store.append("plan", content="two")
        put_over(path, read)
        assert store.document("plan")["zebra"] == {"a": 1}
        assert store.head("plan").title == "Again"
        assert contents(store) == ["one", "two"]
