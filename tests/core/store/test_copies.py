"""Conflict copies of file synchronizers are found, merged and kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import InvalidInput
from capsule.format.json import codec
from capsule.maintenance.conflict_copies import Ancestor
from capsule.maintenance.doctor import DoctorFinding, examine

pytestmark = [pytest.mark.files, pytest.mark.usefixtures("root")]
KEEPS_LOCKS = False
ID = "plan-1"
SYNCTHING = f"{ID}.sync-conflict-20250112-103000-ABCDEFG"
NAMES = [SYNCTHING, f"{ID} (Anna's conflicted copy 2025-01-12)", f"{ID} 2", f"{ID}-DESKTOP-AB12CD"]


def place(store: Store, name: str) -> Path:
    return Path(store.root, "conversations", f"{name}.json")


def diverge(store: Store, name: str = SYNCTHING) -> None:
    """Make a conversation of two messages, with one more message here and a different one in a
    copy.
    """
    messages = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    store.create(id=ID, title="Plan", messages=messages)
    common = place(store, ID).read_bytes()
    store.append(ID, content="there")
    place(store, name).write_bytes(place(store, ID).read_bytes())
    put(store, common)
    store.append(ID, content="here")


def put(store: Store, data: bytes) -> None:
    """Write a version as another computer does, without the log of this one."""
    place(store, ID).write_bytes(data)
    note = Path(store.root, ".capsule", "mutex", f"conversations-{ID}")
    if note.exists():
        note.write_bytes(b"")
    Path(store.root, ".capsule", "logs", note.name).unlink(missing_ok=True)


def contents(store: Store, id: str = ID) -> list[str]:
    return [message["content"] for message in store.document(id)["history"]]


def copies(
    store: Store, *, repair: bool = False, ancestor: Ancestor | None = None
) -> list[DoctorFinding]:
    return [
        f
        for f in examine(store, repair=repair, ancestor=ancestor)
        if f.kind not in ("leftover", "vanished")
    ]


def quarantined(store: Store, reason: str) -> list[bytes]:
    found = sorted(
        Path(store.root, ".capsule", "quarantine").glob(f"conversations~{ID}~*~{reason}~*.json")
    )
    return [path.read_bytes() for path in found]


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_reported_and_with_repair_merged_and_kept(store: Store, name: str) -> None:
    diverge(store, name)
    before = place(store, ID).read_bytes(), place(store, name).read_bytes()
    (finding,) = copies(store)
    assert (finding.kind, finding.id, finding.repaired) == ("copy", ID, None) and finding.is_trouble
    assert finding.path == str(place(store, name))
    assert (place(store, ID).read_bytes(), place(store, name).read_bytes()) == before
    (finding,) = copies(store, repair=True)
    assert finding.repaired and sorted(contents(store)) == ["here", "one", "there", "two"]
    assert quarantined(store, "copy") == [before[1]] and not place(store, name).exists()
    assert copies(store) == []


def test_several_copies_are_merged_one_after_another(store: Store) -> None:
    diverge(store)
    data = place(store, SYNCTHING).read_bytes()
    place(store, f"{ID} 2").write_bytes(data.replace(b'"there"', b'"there, said better"'))
    assert len([finding for finding in copies(store, repair=True) if finding.repaired]) == 2
    assert {"here", "there", "there, said better"} <= set(contents(store))
    assert copies(store) == []


def test_a_copy_with_nothing_new_is_moved_to_quarantine(store: Store) -> None:
    store.create(id=ID, title="Plan", messages=[{"role": "user", "content": "one"}])
    before = place(store, ID).read_bytes()
    place(store, SYNCTHING).write_bytes(before)
    (finding,) = copies(store, repair=True)
    assert finding.repaired and finding.repaired.startswith("had nothing")
    assert place(store, ID).read_bytes() == before and quarantined(store, "copy") == [before]


def test_a_copy_whose_conversation_is_gone_becomes_the_conversation(store: Store) -> None:
    diverge(store)
    store.delete(ID)
    (finding,) = copies(store, repair=True)
    assert finding.repaired and finding.repaired.startswith("is now the conversation")
    assert contents(store) == ["one", "two", "there"] and len(quarantined(store, "copy")) == 1


def test_a_copy_that_cannot_be_merged_is_reported_with_its_path_and_left(store: Store) -> None:
    diverge(store)
    copy, whole = place(store, SYNCTHING), place(store, ID).read_bytes()
    data = copy.read_bytes()
    for here, there, kind, line in (
        (whole, data[:60], "copy", 5),
        (whole, data.replace(b'"plan-1"', b'"plan-9"'), "copy", 2),
        (b'{"id": ', data, "damaged", 1),
    ):
        put(store, here)
        copy.write_bytes(there)
        found = copies(store, repair=True)
        assert [finding.repaired for finding in found] == [None] * len(found)
        assert next(finding for finding in found if finding.kind == kind).line == line
        assert (place(store, ID).read_bytes(), copy.read_bytes()) == (here, there)


def test_a_copy_of_a_locked_conversation_is_not_merged(store: Store) -> None:
    diverge(store)
    with store.beside() as other, other.locks.take(ID):
        before = place(store, ID).read_bytes()
        (finding,) = copies(store, repair=True)
        assert "locked by" in finding.what and finding.repaired is None
        assert place(store, ID).read_bytes() == before and place(store, SYNCTHING).exists()
    assert copies(store, repair=True)[0].repaired


def test_a_merge_with_an_ancestor_removes_what_one_side_removed_and_keeps_both_files(
    store: Store,
) -> None:
    diverge(store)
    document = codec.decode(place(store, SYNCTHING).read_bytes(), "")
    document["history"] = [
        document["history"][0],
        document["history"][2] | {"parent": document["history"][0]["id"]},
    ]
    place(store, SYNCTHING).write_bytes(codec.encode(document))
    base = codec.decode(place(store, ID).read_bytes(), "")
    base["history"] = base["history"][:2]
    ours = place(store, ID).read_bytes()
    assert copies(store, repair=True, ancestor=lambda id, mine, theirs: codec.encode(base))[
        0
    ].repaired
    assert sorted(contents(store)) == ["here", "one", "there"]
    assert quarantined(store, "merged") == [ours]


def test_list_and_show_work_beside_copies(store: Store) -> None:
    for name in NAMES:
        place(store, name).parent.mkdir(exist_ok=True)
    diverge(store)
    for name in NAMES[1:]:
        place(store, name).write_bytes(place(store, SYNCTHING).read_bytes())
    damaged = {head.id: head.damaged for head in store.heads() if head.damaged}
    assert set(damaged) == set(NAMES)
    assert all(f"a conflict copy of conversation {ID}" in damaged[name] for name in NAMES[:3])
    place(store, NAMES[3]).unlink()
    assert store.resolve("plan") == ID
    with pytest.raises(InvalidInput, match="too short"):
        store.resolve("pla")


def test_a_crash_after_a_merge_doubles_no_message(store: Store) -> None:
    diverge(store)
    data = place(store, SYNCTHING).read_bytes()
    assert copies(store, repair=True)[0].repaired
    merged = place(store, ID).read_bytes()
    place(store, SYNCTHING).write_bytes(data)
    assert copies(store, repair=True)[0].repaired
    assert place(store, ID).read_bytes() == merged


@pytest.mark.parametrize(("kind", "id"), [("agent", "anna"), ("project", "api-123456")])
def test_a_copy_of_a_document_without_a_history_is_merged(store: Store, kind: str, id: str) -> None:
    folder = Path(store.root, f"{kind}s")
    folder.mkdir(exist_ok=True)
    here, there = (codec.encode({"id": id, "name": "Anna"} | more) for more in ({}, {"more": 1}))
    (folder / f"{id}.json").write_bytes(here)
    (folder / f"{id} (conflicted copy 2026-07-10 070952).json").write_bytes(there)
    (finding,) = copies(store)
    assert (finding.kind, finding.what, finding.repaired) == (
        "copy",
        f"a conflict copy of {kind} {id}",
        None,
    )
    (finding,) = copies(store, repair=True)
    assert finding.repaired and finding.repaired.startswith(f"merged into the {kind}")
    assert codec.decode((folder / f"{id}.json").read_bytes(), "")["more"] == 1
    assert [path.name for path in folder.iterdir()] == [f"{id}.json"] and copies(store) == []
