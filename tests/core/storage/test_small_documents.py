"""Documents without entries, as agents and doorbells: a change is whole and durable, and keeps an
editor's save.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.engines.interface import edit_document
from tests.torture.filesystem import Disk, Recorder, materialise


def in_place(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def by_rename(path: Path, data: bytes) -> None:
    path.with_name("anna.json~").write_bytes(data)
    path.with_name("anna.json~").rename(path)


@pytest.mark.parametrize("save", [in_place, by_rename])
@pytest.mark.parametrize("before", [None, b'{"name": "Anna"}'])
def test_a_save_of_an_editor_during_a_change_stays(
    root: Path, storage: FileStorage, save: Callable[[Path, bytes], None], before: bytes | None
) -> None:
    engine, path = FilesEngine(storage), root / "agents" / "anna.json"
    path.parent.mkdir()
    if before is not None:
        edit_document(engine, "agents", "anna", lambda data: before)
    saved: list[bytes] = []

    def change(data: bytes | None) -> bytes:
        if not saved:
            saved.append(b'{"name": "Saved by hand"}')
            save(path, saved[0])
        return (data or b"") + b"\n"

    edit_document(engine, "agents", "anna", change)
    assert [file.name for file in path.parent.iterdir()] == ["anna.json"]
    assert engine.read("agents", "anna") == saved[0] + b"\n"


def test_a_change_is_old_or_new_after_a_power_cut_and_new_once_it_returned(
    memory: Path, rng: random.Random
) -> None:
    root, place, old, new = memory / "store", memory / "after", b'{"n": 1}\n', b'{"n": 2}\n' * 200
    (root / "conversations").mkdir(parents=True)
    (root / "agents").mkdir()
    edit_document(FilesEngine(FileStorage(str(root))), "agents", "anna", lambda data: old)
    disk, recorder = Disk(root), Recorder(root)
    engine = FilesEngine(FileStorage(str(root), sys=recorder))
    edit_document(engine, "agents", "anna", lambda data: new)
    edit_document(engine, "agents", "bob", lambda data: new)
    for number in range(len(recorder.events) + 1):
        if number:
            disk.play(recorder.events[number - 1])
        for tree in disk.trees(rng, long=False):
            assert tree["agents/anna.json"] in (old, new)
            if number == len(recorder.events):
                assert tree["agents/anna.json"] == tree["agents/bob.json"] == new
            materialise(tree, place)
            left = FilesEngine(FileStorage(str(place)))
            edit_document(left, "agents", "anna", lambda data: (data or b"") + b"\n")
            assert left.read("agents", "anna") == tree["agents/anna.json"] + b"\n"
            left.close()


def test_a_document_of_the_machine_counts_only_as_this_store_wrote_it(
    root: Path, storage: FileStorage
) -> None:
    machine, path = FilesEngine(storage).local, root / ".capsule" / "doorbells" / "anna.json"
    machine.edit("doorbells", "anna", lambda before: {"n": 1})
    assert machine.read("doorbells", "anna") == {"n": 1}
    by_rename(path, b'{"n": 1}')  # As a checkout, or the unpacking of an archive, puts it there.
    assert machine.read("doorbells", "anna") is None
    machine.edit("doorbells", "anna", lambda before: {"new": before is None})
    assert machine.read("doorbells", "anna") == {"new": True}
    if os.geteuid() == 0:
        os.chown(path, 1, -1)  # In a store that several users share.
        machine.edit("doorbells", "bob", lambda before: {})
        assert machine.read("doorbells", "anna") is None
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    assert FilesEngine(FileStorage(str(copy))).local.read("doorbells", "anna") is None


@pytest.mark.parametrize("writes", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_a_document_of_the_machine_that_is_written_meanwhile_is_read(
    storage: FileStorage, writes: int
) -> None:
    machine = FilesEngine(storage).local
    machine.edit("doorbells", "anna", lambda before: {"n": 0})

    def write() -> None:
        for _ in range(writes):
            machine.edit("doorbells", "anna", lambda before: {"n": (before or {})["n"] + 1})

    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(write)
        while not written.done():
            assert machine.read("doorbells", "anna")
        written.result()
    assert machine.read("doorbells", "anna") == {"n": writes}
