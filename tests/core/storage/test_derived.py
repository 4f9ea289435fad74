"""Derived files are deleted, cut, overwritten or replaced by older ones while no store is open: no
data is lost.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import CapsuleError
from capsule.format.json import codec
from capsule.maintenance.doctor import examine

GARBAGE = random.Random(7).randbytes(3000)


def replaced_by_older(path: Path) -> None:
    older = path.with_name(path.name + ".older")
    if older.exists():
        older.replace(path)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "deleted": lambda path: path.unlink(),
    "emptied": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "cut by a byte": lambda path: os.truncate(path, max(path.stat().st_size - 1, 0)),
    "garbage": lambda path: path.write_bytes(GARBAGE),
    "NULs": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "garbage at the end": lambda path: path.write_bytes(path.read_bytes() + GARBAGE),
    "one bit": lambda path: (
        path.write_bytes(
            path.read_bytes()[:-300]
            + bytes([path.read_bytes()[-300] ^ 1])
            + path.read_bytes()[-299:]
        )
        if path.stat().st_size > 300
        else None
    ),
    "older": replaced_by_older,
    "may not be read": lambda path: path.chmod(0),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A used store: two conversations, a lock of a dead instance, a conversation in the trash."""
    root = tmp_path / "store"
    Store.init(root)
    with Store.open(root, instance="desk") as store:
        store.create(id="chat", title="Chat")
        store.append("chat", content="one")
        store.create(id="team", title="Team", type="group")
        store.append("team", content="one")
        store.create(id="gone")
        store.delete("gone")
    for path in (root / ".capsule" / "mutex").iterdir():
        shutil.copy2(path, path.with_name(path.name + ".older"))
    with Store.open(root, instance="desk") as store:
        store.append("chat", content="two")
        store.rename("chat", "Renamed")
        store.append("team", content="two")
        store.append("team", content="three")
    (root / ".capsule" / "instances").mkdir(exist_ok=True)
    (root / ".capsule" / "instances" / "5f0c9a52-7e0b-4b0e-9f0f-6a9f7c1d2e31").write_bytes(
        b'{"pid": 1}\n'
    )
    return root


def check(root: Path) -> None:
    with Store.open(root, instance="desk") as store:
        assert sorted(head.title for head in store.heads()) == ["Renamed", "Team"]
        assert [message.content for message in store.tail("team", 2)] == ["two", "three"]
        for id, texts in (("chat", ["one", "two"]), ("team", ["one", "two", "three"])):
            assert [message.content for message in store.load(id).history] == texts
            store.append(id, content="next")
            store.tag(id, "x")
            assert [message.content for message in store.load(id).history] == [*texts, "next"]
            assert codec.encode(store.document(id)) == store.read(id)
        store.locks.release("chat")
    with Store.open(root) as store:
        store.append("chat", content="and on")
        store.create(title="New")
        store.delete("team")
        store.trash.restore("team")
        list(examine(store, repair=True))
        assert [str(finding) for finding in examine(store)] == []


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("what", ["mutex", "instances", "logs"])
def test_damage_to_all_derived_files_of_a_kind_loses_no_data(
    root: Path, what: str, damage: str
) -> None:
    for path in sorted((root / ".capsule" / what).iterdir()):
        if path.exists() and path.suffix != ".older":
            DAMAGES[damage](path)
    if os.getuid() and damage == "may not be read":
        pytest.skip("permissions bind this user: the store says so instead")
    for path in (root / ".capsule" / what).glob("*.older"):
        path.unlink()
    check(root)


@pytest.mark.parametrize(
    "what", ["", "mutex", "log", "logs", "instances", "trash", "quarantine", ".gitignore"]
)
def test_deleting_a_derived_directory_loses_no_data(root: Path, what: str) -> None:
    place = root / ".capsule" / what
    if place.is_dir():
        shutil.rmtree(place)
    elif place.exists():
        place.unlink()
    check(root)


def test_the_derived_directory_of_another_store_loses_no_data(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    Store.init(other)
    with Store.open(other) as store:
        store.create(id="chat", title="Other", messages=[{"role": "user", "content": "not mine"}])
        store.create(
            id="team",
            title="Other",
            type="group",
            messages=[{"role": "user", "content": "not mine"}],
        )
    shutil.rmtree(root / ".capsule")
    shutil.copytree(other / ".capsule", root / ".capsule")
    with Store.open(root, instance="desk") as store:
        for id, texts in (("chat", ["one", "two"]), ("team", ["one", "two", "three"])):
            found = [message.content for message in store.load(id).history]
            assert [text for text in found if text != "not mine"] == texts


def test_a_directory_in_place_of_a_mutex_file_is_an_error_and_loses_no_data(root: Path) -> None:
    place = root / ".capsule" / "mutex" / "conversations-team"
    place.unlink()
    place.mkdir()
    before = (root / "conversations" / "team.json").read_bytes()
    with Store.open(root) as store, pytest.raises(CapsuleError):
        store.append("team", content="x")
    assert (root / "conversations" / "team.json").read_bytes() == before
    place.rmdir()
    check(root)
