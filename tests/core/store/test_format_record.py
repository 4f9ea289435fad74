"""The record of a store's derived format, and what a program does that does not know the format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import capsule as package
from capsule import Store
from capsule.engines.files.disk.format_record import FORMAT
from capsule.errors import Refused

RECORD = Path(".capsule") / "format.json"


def contents_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


@pytest.fixture
def written(root: Path, store: Store) -> Path:
    store.create(id="plan", messages=[{"role": "user", "content": "one"}])
    store.close()
    return root


def test_a_store_says_which_format_and_version_wrote_it(written: Path) -> None:
    assert json.loads((written / RECORD).read_bytes()) == {
        "format": FORMAT,
        "version": package.__version__,
    }


def test_a_newer_format_is_refused_by_name_and_nothing_is_changed(written: Path) -> None:
    (written / RECORD).write_text(json.dumps({"format": FORMAT + 1, "version": "9.8.7"}))
    before = contents_of(written)
    with pytest.raises(Refused) as caught:
        Store.open(written)
    for words in (
        str(written),
        "Capsule 9.8.7",
        f"this is Capsule {package.__version__}",
        f"{written}/.capsule/logs",
    ):
        assert words in caught.value.message
    assert caught.value.remedy is not None and caught.value.remedy.action == "update"
    assert contents_of(written) == before


def test_a_store_goes_on_once_the_derived_files_of_a_newer_format_are_deleted(
    written: Path,
) -> None:
    (written / RECORD).write_text(json.dumps({"format": FORMAT + 1, "version": "9.8.7"}))
    for path in sorted((written / ".capsule").rglob("*"), reverse=True):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
    with Store.open(written) as store:
        store.append("plan", content="two")
    assert json.loads((written / RECORD).read_bytes())["format"] == FORMAT


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"format": "x"}', b'{"format": 1}', b"\xff" * 5000]
)
def test_a_damaged_record_is_written_anew(written: Path, data: bytes) -> None:
    (written / RECORD).write_bytes(data)
    with Store.open(written) as store:
        store.append("plan", content="two")
    assert json.loads((written / RECORD).read_bytes())["version"] == package.__version__


def test_the_record_of_another_version_with_the_same_format_is_replaced_by_the_next_write(
    written: Path,
) -> None:
    (written / RECORD).write_text(json.dumps({"format": FORMAT, "version": "0.0.1"}))
    with Store.open(written) as store:
        store.load("plan")
        assert json.loads((written / RECORD).read_bytes())["version"] == "0.0.1"
        store.append("plan", content="two")
    assert json.loads((written / RECORD).read_bytes())["version"] == package.__version__
