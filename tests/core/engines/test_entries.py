"""The documents of a session have entries as a conversation has: followed, noticed, taken in when
edited by hand.
"""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.engines.interface import (
    CONVERSATIONS,
    INBOUND,
    OUTBOUND,
    DocumentNotifier,
    Engine,
    edit_document,
)
from capsule.errors import NotFound, Refused
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.ids import new_message_id
from capsule.maintenance.doctor import examine

STAMP, LATER = (f"2026-01-0{day}T10:00:00.000Z" for day in (1, 2))


def make(engine: Engine, kind: str, id: str = "s_1") -> None:
    engine.create(kind, new_capsule(id, "Session", STAMP))


def append(engine: Engine, kind: str, *texts: str, id: str = "s_1") -> None:
    with engine.transaction(kind, id) as transaction:
        entries = [
            {"role": "system", "content": text, "timestamp": LATER, "id": new_message_id()}
            for text in texts
        ]
        encoded = [codec.encode_entry(entry) for entry in entries]
        transaction.append(entries, encoded, LATER, time=LATER, head=None, ends_active=True)


def texts(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["content"] for entry in entries]


def test_the_documents_of_one_id_are_apart(engine: Engine) -> None:
    kinds = (INBOUND, OUTBOUND, CONVERSATIONS)
    for kind in kinds:
        assert engine.ids(kind) == [] and not engine.exists(kind, "s_1")
        with pytest.raises(NotFound):
            engine.document(kind, "s_1")
        make(engine, kind)
    make(engine, INBOUND, "s_2")
    for _ in range(2):
        for kind in kinds:
            append(engine, kind, kind)
    for kind in kinds:
        assert texts(engine.document(kind, "s_1")["history"]) == [kind, kind]
        assert kind.encode() in engine.read(kind, "s_1")
    assert (engine.ids(INBOUND), engine.ids(OUTBOUND)) == (["s_1", "s_2"], ["s_1"])
    with engine.transaction(INBOUND, "s_1") as transaction:
        trashed = transaction.delete()
    assert (
        engine.trash.entries(INBOUND) == [trashed]
        and engine.ids(INBOUND) == ["s_2"]
        and engine.exists(OUTBOUND, "s_1")
    )
    engine.trash.restore(INBOUND, "s_1", trashed.token)
    append(engine, INBOUND, "after")
    assert texts(engine.document(INBOUND, "s_1")["history"]) == [INBOUND, INBOUND, "after"]


@pytest.mark.parametrize("kind", [INBOUND, CONVERSATIONS])
def test_what_was_appended_is_followed_and_another_change_is_read_whole(
    engine: Engine, kind: str
) -> None:
    with pytest.raises(NotFound):
        engine.follow(kind, "s_1")
    make(engine, kind)
    first = engine.follow(kind, "s_1")
    assert first.entries == [] and first.is_complete
    append(engine, kind, "one", "two")
    second = engine.follow(kind, "s_1", first.position)
    assert texts(second.entries) == ["one", "two"] and not second.is_complete
    assert engine.follow(kind, "s_1", second.position) == (second.position, [], False)
    append(engine, kind, "three")
    with engine.transaction(kind, "s_1") as transaction:
        third = transaction.follow(second.position)
        assert (
            texts(third.entries) == ["three"]
            and third.position == engine.follow(kind, "s_1").position
        )
        document = transaction.document()
        transaction.replace(document | {"history": document["history"][1:], "updatedAt": LATER})
        replaced = transaction.follow(third.position)
    assert texts(replaced.entries) == ["two", "three"] and replaced.is_complete
    for since in (None, first.position, third.position):
        found = engine.follow(kind, "s_1", since)
        assert (
            texts(found.entries) == ["two", "three"]
            and found.is_complete
            and found.position == replaced.position
        )


def wait(notices: DocumentNotifier, count: int) -> set[tuple[str, str]]:
    """What is noticed, once it is so many: those of two writes may come one after the other."""
    poll, found = select.poll(), set[tuple[str, str]]()
    poll.register(notices.fileno(), select.POLLIN)
    while len(found) < count:
        assert poll.poll(60_000)
        found |= notices.changed_documents() or set()
    return found


def test_a_write_of_any_kind_is_noticed_once_it_is_done(engine: Engine) -> None:
    make(engine, INBOUND)
    notices = DocumentNotifier(engine.tracker)
    assert notices.changed_documents() == set()
    append(engine, INBOUND, "one")
    engine.flush()  # Which may be noticed too.
    assert wait(notices, 1) == {(INBOUND, "s_1")} and notices.changed_documents() == set()
    engine.read(INBOUND, "s_1")
    assert notices.changed_documents() == set()
    make(engine, CONVERSATIONS, "a-b")
    edit_document(engine, "sessions", "registry", lambda data: b"{}")
    assert wait(notices, 2) == {(CONVERSATIONS, "a-b"), ("sessions", "registry")}
    notices._tracker.close()  # As where another directory takes the name.
    assert notices.changed_documents() is None and notices.changed_documents() == set()
    append(engine, INBOUND, "two")
    engine.flush()
    assert wait(notices, 1) == {(INBOUND, "s_1")}
    notices.close()


def on_files(root: Path) -> FilesEngine:
    Store.init(root)
    engine = FilesEngine(FileStorage(str(root)))
    make(engine, INBOUND)
    append(engine, INBOUND, "one", "two")
    return engine


def test_a_hand_edit_of_a_session_is_taken_in_and_followed(tmp_path: Path) -> None:
    engine = on_files(tmp_path)
    path = tmp_path / "sessions" / "s_1" / "inbound.json"
    place = engine.follow(INBOUND, "s_1").position
    document = orjson.loads(path.read_bytes())
    document["history"][0]["content"] = "by hand"
    path.write_bytes(orjson.dumps(document))
    os.utime(path, (1, 1))
    found = engine.follow(INBOUND, "s_1", place)
    assert found.is_complete and texts(found.entries) == ["by hand", "two"]
    append(engine, INBOUND, "three")
    assert texts(orjson.loads(path.read_bytes())["history"]) == ["by hand", "two", "three"]
    engine.close()


@pytest.mark.parametrize("link", ["sessions", "sessions/s_1"])
def test_a_session_behind_a_symlink_is_not_reached(tmp_path: Path, link: str) -> None:
    engine = on_files(tmp_path / "store")
    engine.close()
    place = tmp_path / "store" / link
    place.rename(tmp_path / "outside")
    place.symlink_to(tmp_path / "outside")
    engine = FilesEngine(FileStorage(str(tmp_path / "store")))
    with pytest.raises(Refused):
        append(engine, INBOUND, "three")
    with pytest.raises(Refused):
        engine.read(INBOUND, "s_1")
    engine.close()


def test_the_doctor_finds_nothing_in_a_sound_session_and_says_what_is_damaged(
    tmp_path: Path,
) -> None:
    engine = on_files(tmp_path)
    make(engine, OUTBOUND)
    engine.files.write("inbox", "s_1", "report.pdf", b"data")
    engine.leases.record_heartbeat("s_1")
    edit_document(engine, "sessions", "registry", lambda data: b"{}\n")
    engine.close()
    folder = tmp_path / "sessions" / "s_1"
    with Store.open(tmp_path) as store:
        assert [str(finding) for finding in examine(store)] == []
        (folder / "outbound.json").write_bytes(b"{")
        (folder / ".inbound.tmp").write_bytes(b"half")
        found = {(finding.kind, finding.path) for finding in examine(store, repair=True)}
        assert found == {
            ("damaged", str(folder / "outbound.json")),
            ("leftover", str(folder / ".inbound.tmp")),
        }
        (folder / "outbound.json").unlink()
        assert [(finding.kind, finding.id) for finding in examine(store)] == [("vanished", "s_1")]
        assert store.ids() == [] and list(store.heads()) == []
