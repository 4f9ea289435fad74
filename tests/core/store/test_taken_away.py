"""What a save takes away: a restore shows nobody what they have read, and what a save removes is
kept and reported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capsule import Store, timestamps
from tests.core.storage.faults import store_on
from tests.core.store.files import contents, file_of, opened, put_over, quarantined, save
from tests.torture.filesystem import Disk, Rebooted, Recorder, materialise

#: Later than every write of a test: a program sets this `updatedAt` itself.
OWN_TIME = "2990-01-01T00:00:00.000Z"


@pytest.fixture(params=["created with its messages", "appended"])
def group(request: pytest.FixtureRequest, store: Store, clock: None) -> str:
    """A group conversation with two messages, which its log knows or not."""
    messages = [{"role": "user", "content": text} for text in ("one", "two")]
    is_created_with = request.param != "appended"
    id = store.create(
        id="plan", title="Plan", type="group", messages=messages if is_created_with else []
    ).id
    if not is_created_with:
        store.append_many(id, messages)
    return id


def remove(store: Store, message: str = "@0") -> None:
    store.branches.remove("plan", message, keep_children=True)


def restore(store: Store) -> None:
    """Bring back what was removed last."""
    store.trash.restore_messages(store.trash.removed("plan")[0].trashed)


def edited(document: dict[str, Any], at: int, text: str) -> dict[str, Any]:
    """The document, in which the message at this place has another text."""
    document["history"][at]["content"] = text
    return document


def without(document: dict[str, Any], at: int) -> dict[str, Any]:
    del document["history"][at]
    return document


def test_messages_appended_since_an_editor_read_come_back_when_an_older_one_was_removed_and_restored(
    root: Path, store: Store, group: str
) -> None:
    document = opened(root, group)
    for text in ("three", "four", "five"):
        store.append(group, content=text)
    remove(store)
    restore(store)
    save(root, group, edited(document, 0, "ONE"))
    assert contents(store) == ["ONE", "two", "three", "four", "five"]


def test_a_restored_message_is_there_once_after_a_program_sets_its_own_time(
    root: Path, store: Store, group: str
) -> None:
    remove(store)
    restore(store)
    save(root, group, opened(root, group) | {"updatedAt": OWN_TIME})
    assert contents(store) == ["one", "two"]


def test_a_power_cut_in_an_edit_doubles_no_restored_message(
    root: Path, store: Store, group: str, rng: Any
) -> None:
    remove(store)
    restore(store)
    store.close()
    disk, recorder = Disk(root), Recorder(root)
    read = file_of(root, group).read_bytes()
    with store_on(root, recorder, keep_locks=False) as recorded:
        recorded.edits.rewrite(group, read.replace(b'"two"', b'"TWO"'), read)
    for number, event in enumerate(recorder.events):
        disk.play(event)
        for tree in disk.trees(rng, long=False):
            place = root.parent / f"after{number}"
            materialise(tree, place)
            with store_on(place, Rebooted()) as again:
                assert contents(again) in (["one", "two"], ["one", "TWO"])


def test_an_acknowledged_edit_of_a_restored_message_survives_a_stale_save(
    root: Path, store: Store, group: str
) -> None:
    remove(store)
    restore(store)
    document = opened(root, group)
    store.edits.message(group, "@0", "ONE")
    save(root, group, edited(document, 1, "TWO"))
    assert contents(store) == ["ONE", "TWO"]


def test_a_message_that_was_removed_restored_and_removed_stays_removed(
    root: Path, store: Store, group: str
) -> None:
    document = opened(root, group)
    remove(store)
    restore(store)
    remove(store)
    save(root, group, edited(document, 1, "TWO"))
    assert contents(store) == ["TWO"]


def test_the_answers_of_a_message_that_is_removed_again_keep_a_parent_that_is_there(
    root: Path, store: Store, group: str
) -> None:
    document = opened(root, group)
    remove(store, "@1")
    store.append(group, content="three")
    restore(store)
    stale = opened(root, group)
    remove(store, "@1")
    for version in (document, stale):
        save(root, group, edited(version, 0, "ONE"))
        history = store.load(group).history
        assert [message.content for message in history] == ["ONE", "three"]
        assert history[1].parent in (None, history[0].id)


def test_messages_that_a_save_removes_are_kept_until_they_are_purged(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.append(group, content="three")
    store.edits.message(group, "@1", "TWO")
    save(root, group, without(without(opened(root, group), 2), 1))
    assert contents(store) == ["one"]
    (kept,) = quarantined(root)
    assert b'"TWO"' in kept and b'"three"' in kept
    (record,) = caplog.records
    assert "2 messages" in record.getMessage() and "/quarantine/" in record.getMessage()
    assert contents(store) == ["one"] and len(caplog.records) == 1
    assert len(store.trash.purge()) == 2  # The edit's former text is in the trash.
    assert quarantined(root) == []


def test_messages_that_are_removed_after_the_log_has_lost_them_are_counted(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    for n in range(60):
        store.append(group, content=f"{n} " + "x" * 10_000)
    document = opened(root, group)
    del document["history"][:5]
    save(root, group, document)
    assert len(contents(store)) == 57
    assert "without 5 messages" in caplog.text


@pytest.mark.parametrize("updated_at", ["", OWN_TIME])
def test_an_edit_that_a_save_reverts_is_kept(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture, updated_at: str
) -> None:
    store.edits.message(group, "@0", "ONE")
    document = opened(root, group)
    for text in ("one", "by hand"):
        save(
            root,
            group,
            edited(document, 0, text) | ({"updatedAt": updated_at} if updated_at else {}),
        )
        assert contents(store) == [text, "two"]
        (kept,) = quarantined(root)
        assert b'"ONE"' in kept
        assert len(caplog.records) == 1, "the second text replaces no text of the store"


@pytest.mark.parametrize("updated_at", ["", OWN_TIME])
def test_a_title_that_a_save_reverts_is_kept(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture, updated_at: str
) -> None:
    store.rename(group, "Other")
    document = opened(root, group) | {"title": "Plan"}
    save(root, group, document | ({"updatedAt": updated_at} if updated_at else {}))
    assert store.head(group).title == "Plan"
    (kept,) = quarantined(root)
    assert b'"Other"' in kept
    assert "the change of title" in caplog.text


def test_a_stale_save_with_a_time_of_its_own_reverts_nothing_in_silence(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    document = opened(root, group)
    store.rename(group, "Other")
    store.edits.message(group, "@0", "ONE")
    remove(store, "@1")
    save(
        root,
        group,
        document | {"updatedAt": timestamps.later_than(opened(root, group)["updatedAt"])},
    )
    assert (store.head(group).title, contents(store)) == ("Plan", ["one", "two"])
    (kept,) = quarantined(root)
    assert b'"Other"' in kept and b'"ONE"' in kept
    (record,) = caplog.records
    for words in ("title", "edit of message", "removal of message"):
        assert words in record.getMessage()
    # What was settled once is not reported again.
    put_over(file_of(root, group), file_of(root, group).read_bytes())
    assert contents(store) == ["one", "two"] and len(caplog.records) == 1


def test_a_hand_edit_of_a_message_reports_nothing(
    root: Path, store: Store, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    save(root, group, edited(opened(root, group), 0, "ONE") | {"title": "By hand"})
    assert contents(store) == ["ONE", "two"]
    assert (caplog.records, quarantined(root)) == ([], [])


def test_a_message_that_is_put_back_by_hand_is_protected_again(
    root: Path, store: Store, group: str
) -> None:
    document = opened(root, group)
    remove(store)
    stale = opened(root, group)
    store.append(group, content="three")
    now = opened(root, group)
    save(root, group, now | {"history": [document["history"][0], *now["history"]]})
    assert contents(store) == ["one", "two", "three"]
    save(root, group, edited(stale, 0, "TWO"))
    assert sorted(contents(store)) == ["TWO", "one", "three"]
