"""An import that goes on while another program writes."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest

from capsule import Store
from capsule.disk import directory_tracker
from capsule.transfer import continuous_import
from capsule.transfer.continuous_import import FolderWatch, follow
from capsule.transfer.drafts.import_records import ImportResult
from capsule.transfer.reading.files import Damage
from tests.transfer.exchange import DATA, said


class Enough(Exception):
    """Ends an import that would go on."""


@pytest.fixture(params=["notices", "polling"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "polling":
        monkeypatch.setattr(directory_tracker, "must_poll", lambda directory: True)


def test_what_is_written_is_imported_and_half_a_line_is_no_damage(
    store: Store, tmp_path: Path, way: None
) -> None:
    told: list[ImportResult] = []
    chat, folder = tmp_path / "a.jsonl", tmp_path / ".specstory" / "history"
    chat.write_bytes(said("a", id="c1"))

    def tell(found: ImportResult | Damage) -> None:
        assert isinstance(found, ImportResult)
        if found.state == "unchanged":
            return
        told.append(found)
        if len(told) == 1:
            with chat.open("ab") as file:
                file.write(said("b", id="c2")[:20])
            folder.mkdir(parents=True)
            (folder.parent / "c.jsonl").write_bytes(said("hidden"))
            (folder / "b.jsonl").write_bytes(said("c", id="c3"))
        elif len(told) == 2:  # Files of one round are taken in the order of their names.
            with chat.open("ab") as file:
                file.write(said("b", id="c2")[20:])
        else:
            raise Enough

    with pytest.raises(Enough):
        follow(store, [str(tmp_path)], tell)

    assert [taken.source for taken in told] == ["c1", "c3", "c2"]


def test_only_what_was_appended_is_read_and_a_file_that_was_replaced_is_read_whole(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: None
) -> None:
    chat, other, large = (
        tmp_path / "a.jsonl",
        tmp_path.parent / "other",
        said("x" * (1 << 20), id="c1"),
    )
    sizes: list[int] = []
    read: list[int] = []

    class Counted(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            data = super().read(-1 if size is None else size) or b""
            sizes.append(len(data))
            return data

    monkeypatch.setattr("capsule.transfer.continuous_import.from_disk", Counted)
    chat.write_bytes(large)

    def tell(found: ImportResult | Damage) -> None:
        assert isinstance(found, ImportResult)
        if found.state == "unchanged":
            return
        read.append(sum(sizes))
        sizes.clear()
        if len(read) == 1:
            with chat.open("ab") as file:
                file.write(said("b", id="c2"))
        elif len(read) == 2:
            other.write_bytes(large + said("B", id="c2") + said("c", id="c3"))
            other.replace(chat)
        elif len(read) == 3:
            chat.write_bytes(
                large.replace(b"xx", b"yy")
                + said("B", id="c2")
                + said("c", id="c3")
                + said("d", id="c4")
            )
        elif len(read) == 6:
            raise Enough

    with pytest.raises(Enough):
        follow(store, [str(tmp_path)], tell)

    assert read[1] < 20_000 < len(large) < read[2] < 2 * len(large)
    texts = {store.document(id)["history"][0]["content"][:2] for id in store.ids()}
    assert texts == {"yy", "B", "c", "d"}


def test_a_part_of_a_conversation_in_a_folder_that_is_named_from_here_is_followed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: None
) -> None:
    shutil.copytree(DATA / "opencode" / "files" / "storage", tmp_path / "storage")
    monkeypatch.chdir(tmp_path)
    part = next(
        path
        for path in sorted(Path("storage/part").rglob("*.json"))
        if '"text"' in path.read_text()
    )

    def tell(found: ImportResult | Damage) -> None:
        assert isinstance(found, ImportResult)
        if found.state == "imported":
            part.write_text(part.read_text().replace('"text":', '"text": "changed", "was":'))
        elif found.state == "updated":
            raise Enough

    with pytest.raises(Enough):
        follow(store, ["storage"], tell)


def test_each_conversation_is_told_when_it_is_imported(store: Store, tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.jsonl").write_bytes(said("a", id=str(number)))

    def tell(found: ImportResult | Damage) -> None:
        assert isinstance(found, ImportResult)
        assert len(store.ids()) < 30
        raise Enough

    with pytest.raises(Enough):
        follow(store, [str(tmp_path)], tell)


def test_a_folder_that_goes_while_it_is_found_takes_none_beside_it_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, folder = FolderWatch([str(tmp_path)]), tmp_path / "new"
    files = {folder / name / "chat.jsonl" for name in ("a", "b", "c")}
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_bytes(said("a"))

    def opened(directories: list[str]) -> directory_tracker.WatchfilesWatcher:
        if all(map(Path.exists, files)):
            shutil.rmtree(folder / "b")
        return directory_tracker.WatchfilesWatcher(directories)

    monkeypatch.setattr(continuous_import, "WatchfilesWatcher", opened)
    others = sorted(str(file) for file in files if file.parent.name != "b")
    heard: set[str] = set()
    while not heard >= set(others):
        heard |= watch.changed()
    assert not (folder / "b").exists()

    for path in others:
        Path(path).write_bytes(said("b"))
        while path not in watch.changed():
            pass


def test_a_folder_that_comes_while_others_are_found_or_replaces_one_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: None
) -> None:
    file = tmp_path / "new" / "chat.jsonl"

    def opened(directories: list[str]) -> directory_tracker.WatchfilesWatcher:
        file.parent.mkdir(exist_ok=True)
        return directory_tracker.WatchfilesWatcher(directories)

    monkeypatch.setattr(continuous_import, "WatchfilesWatcher", opened)
    watch = FolderWatch([str(tmp_path)])
    for text in ("a", "b"):
        for content in (text, text * 2):  # The first may be found by looking.
            file.write_bytes(said(content))
            while str(file) not in watch.changed():
                pass
        shutil.rmtree(file.parent)
        file.parent.mkdir()
