"""A store that was cloned or unpacked with symlinks in it: no file behind one is written or
deleted.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import CapsuleError, Refused
from capsule.maintenance.doctor import examine

UUID = "5f0c9a52-7e0b-4b0e-9f0f-6a9f7c1d2e31"
#: Names as Capsule makes them, and others.
NAMES = (
    UUID,
    f".{UUID}",
    "letter.txt",
    "conversations-team",
    "index.sqlite3",
    "conversations~team~20250112T103000123Z~0.json",
    "conversations~team~20250112T103000123Z~torn~0.json",
    ".team.1.tmp",
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    Store.init(root)
    with Store.open(root) as store:
        store.create(id="team", type="group", messages=[{"role": "user", "content": "one"}])
        store.create(id="old")
        store.delete("old")
        with store.locks.take("team"):
            pass
    return root


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A directory with files of the user."""
    elsewhere = tmp_path / "elsewhere"
    for inner in ("", "mutex", "logs", "instances", "trash", "quarantine"):
        (elsewhere / inner).mkdir()
        for name in NAMES:
            (elsewhere / inner / name).write_bytes(b"of the user\n")
    return elsewhere


def everything(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def use(root: Path) -> list[CapsuleError]:
    """Run everything that writes, sweeps and deletes. Returns: the errors."""
    errors = []
    for act in (
        lambda store: store.append("team", content="two"),
        lambda store: store.locks.take("team"),
        lambda store: store.create(id="new"),
        lambda store: list(store.heads()),
        lambda store: store.reindex(),
        lambda store: store.delete("team"),
        lambda store: store.trash.list(),
        lambda store: store.trash.restore("old"),
        lambda store: list(examine(store, repair=True)),
        lambda store: store.trash.purge(),
    ):
        try:
            with Store.open(root) as store:
                act(store)
        except CapsuleError as error:
            errors.append(error)
    return errors


@pytest.mark.parametrize("link", ["", "mutex", "logs", "instances", "trash", "quarantine"])
def test_a_symlink_in_place_of_a_derived_directory_is_refused(
    root: Path, elsewhere: Path, link: str
) -> None:
    before = everything(elsewhere)
    place = root / ".capsule" / link
    shutil.rmtree(place, ignore_errors=True)
    place.symlink_to(elsewhere)
    errors = use(root)
    assert any(isinstance(error, Refused) and f"rm {place}" in error.message for error in errors), (
        errors
    )
    assert everything(elsewhere) == before


@pytest.mark.parametrize("link", ["", "doorbells"])
def test_a_symlink_in_place_of_the_directory_of_a_local_kind_is_refused(
    root: Path, elsewhere: Path, link: str
) -> None:
    (elsewhere / "doorbells").mkdir()
    for directory in ("", "doorbells"):
        (elsewhere / directory / "anna.json").write_bytes(b"{}")
    before = everything(elsewhere)
    with Store.open(root) as store:
        engine = store.engine
        engine.local.edit("doorbells", "anna", lambda data: {})
        assert (root / ".capsule" / "doorbells" / "anna.json").is_file()
        shutil.rmtree(root / ".capsule" / link)
        (root / ".capsule" / link).symlink_to(elsewhere)
        for act in (
            lambda: engine.local.edit("doorbells", "anna", lambda data: {"new": 1}),
            lambda: engine.local.delete("doorbells", "anna"),
            lambda: engine.local.read("doorbells", "anna"),
            lambda: engine.local.ids("doorbells"),
        ):
            with pytest.raises(Refused):
                act()
    assert everything(elsewhere) == before


def test_a_symlink_in_place_of_a_directory_of_documents_is_refused(
    root: Path, tmp_path: Path
) -> None:
    """It most likely leads to another store, which guards its documents with mutexes of its own."""
    (root / "conversations").rename(tmp_path / "moved")
    (root / "conversations").symlink_to(tmp_path / "moved")
    before = everything(tmp_path / "moved")
    assert all(isinstance(error, Refused) for error in use(root))
    assert everything(tmp_path / "moved") == before


def test_a_symlink_in_place_of_a_derived_file_is_not_followed(root: Path, elsewhere: Path) -> None:
    derived = root / ".capsule"
    with Store.open(root) as store:
        list(store.heads())
    for name in (
        "index.sqlite3",
        "index.lock",
        ".gitignore",
        "mutex/conversations-team",
        "logs/conversations-team",
        f"instances/{UUID}",
    ):
        (derived / name).unlink(missing_ok=True)
        (derived / name).symlink_to(elsewhere / "letter.txt")
    before = everything(elsewhere)
    use(root)
    assert everything(elsewhere) == before


def test_files_not_made_by_capsule_are_neither_swept_nor_purged(root: Path) -> None:
    own = root / ".capsule"
    for directory in ("instances", "trash", "quarantine"):
        (own / directory).mkdir(exist_ok=True)
        for name in ("letter.txt", "a~b~c~d.json"):
            (own / directory / name).write_bytes(b"of the user\n")
    with Store.open(root) as store:
        store.append("team", content="two")
        store.create()
        store.trash.purge()
        list(examine(store, repair=True))
    files = [path for path in own.rglob("*") if path.is_file()]
    kept = [path for path in files if path.read_bytes() == b"of the user\n"]
    assert len(kept) == 6


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs on this platform")
def test_a_fifo_in_place_of_a_derived_file_blocks_no_operation(root: Path) -> None:
    for name in ("mutex/conversations-team", f"instances/{UUID}", "index.lock"):
        (root / ".capsule" / name).unlink(missing_ok=True)
        os.mkfifo(root / ".capsule" / name)
    use(root)
