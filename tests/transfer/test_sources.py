"""Where an import reads from: folders, zips, streams. What is dangerous is refused, and damage is
read around.
"""

from __future__ import annotations

import io
import os
import random
import threading
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from capsule import Store
from capsule.transfer.reading.files import CHUNK_BYTES
from capsule.transfer.reading.json_stream import MAX_VALUE_BYTES
from tests.transfer.exchange import DATA, said, take, zipped


def test_a_stream_has_no_files_beside_it(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = DATA / "chatgpt" / "modern"
    (tmp_path / "file-00bb-notes.txt").write_text("of somebody else")

    id = take(store, (folder / "conversations.json").read_bytes()).conversations[0].id

    history = store.document(id)["history"]
    assert not [
        file for entry in history for file in entry.get("attachments", ()) if "sha256" in file
    ]


class Endless(io.RawIOBase):
    """A stream without an end: its beginning, and then the same bytes again and again.

    Attributes:
        read_bytes: How many bytes were read.
    """

    def __init__(self, begin: bytes, then: bytes) -> None:
        self._begin = begin
        self._then = then * (CHUNK_BYTES // len(then))
        self.read_bytes = 0

    def read(self, size: int = -1) -> bytes:
        data, self._begin = self._begin or self._then, b""
        self.read_bytes += len(data)
        assert self.read_bytes < 1 << 30, "it is read for ever"
        return data


@pytest.mark.parametrize("then", [b"\0", b" \n", b"\x93\xfe\n{\x01", b"no conversation\n"])
def test_a_stream_in_which_no_conversation_begins_is_refused(store: Store, then: bytes) -> None:
    stream = Endless(b"", then)
    report = store.import_(stream=stream)
    assert [(one.path, "refused" in one.reason) for one in report.problems.first] == [("-", True)]
    assert stream.read_bytes <= MAX_VALUE_BYTES + CHUNK_BYTES and not report.conversations


def test_a_device_without_an_end_is_refused_and_the_other_files_are_imported(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_bytes(said("a"))
    report = store.import_("/dev/zero", tmp_path / "a.jsonl")
    assert [(one.path, "refused" in one.reason) for one in report.problems.first] == [
        ("/dev/zero", True)
    ]
    assert len(report.conversations) == 1


@pytest.mark.slow
def test_a_long_stream_whose_conversation_begins_at_once_is_read_to_its_end(store: Store) -> None:
    blank = b" " * (CHUNK_BYTES - 1) + b"\n"
    stream = io.BytesIO(
        said("a", id="1") + blank * (MAX_VALUE_BYTES // CHUNK_BYTES + 1) + said("b", id="2")
    )
    assert [taken.source for taken in store.import_(stream=stream).conversations] == ["1", "2"]


def test_a_pipe_is_read_once(store: Store, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=[said("a", "b", id="1")])
    writer.start()
    report = store.import_(pipe)
    writer.join()
    assert [(taken.source, taken.messages) for taken in report.conversations] == [("1", 2)]


class Pipe(io.RawIOBase):
    """A file that can't go back, so that a zip has the sizes of files behind them."""

    def __init__(self) -> None:
        self.data = b""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += bytes(data)
        return len(data)


@pytest.mark.parametrize("packing", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("cut", "read", "damaged"), [(10, ["1", "2", "3"], 1), (20_000, ["1", "2"], 2)]
)
def test_the_files_of_a_zip_that_was_cut_are_read_as_far_as_they_go(
    store: Store, rng: random.Random, packing: int, cut: int, read: list[str], damaged: int
) -> None:
    text = rng.randbytes(50_000).hex()
    pipe = Pipe() if packing == zipfile.ZIP_DEFLATED else io.BytesIO()
    with zipfile.ZipFile(pipe, "w", packing) as archive:
        archive.writestr("a.jsonl", said("a", id="1"))
        archive.writestr("b.jsonl", said("b", id="2") + said(text, id="3"))
    data = pipe.data if isinstance(pipe, Pipe) else pipe.getvalue()
    report = take(store, data[:-cut])

    assert [taken.source for taken in report.conversations] == read
    assert "directory" in report.problems.first[0].reason
    assert report.problems.count == damaged


def nested(depth: int) -> bytes:
    data = zipped({"chat.jsonl": said("a")})
    for _ in range(depth):
        data = zipped({"inner.zip": data})
    return data


@pytest.mark.parametrize(
    ("files", "taken", "refused"),
    [
        ({"a/b/c/chat.jsonl": said("a"), "notes.txt": b"-"}, 1, ""),
        ({"../chat.jsonl": said("a"), "ok.jsonl": said("b")}, 1, "leads out"),
        ({"/etc/chat.jsonl": said("a")}, 0, "leads out"),
        ({"zeros.jsonl": b"\0" * (1 << 25), "ok.jsonl": said("b")}, 0, "far more than its size"),
        ({"inner.zip": nested(1)}, 1, ""),
        ({"inner.zip": nested(9)}, 0, "inside 3 others"),
        ({"inner.zip": nested(1)[:-30]}, 1, "directory, is missing"),
        ({"inner.zip": b"PK\x03\x04" + b"x" * 99}, 0, "directory, is missing"),
    ],
)
def test_a_zip_is_read_and_what_is_dangerous_in_it_is_refused(
    store: Store, files: dict[str, bytes], taken: int, refused: str
) -> None:
    report = take(store, zipped(files))

    assert len(report.conversations) == taken
    assert [refused in problem.reason for problem in report.problems.first] == (
        [True] if refused else []
    )


@pytest.mark.parametrize(
    ("data", "taken", "problem"),
    [
        (
            zstandard.compress(said("a", id="1")) + zstandard.compress(said("b", id="2")),
            ["1", "2"],
            "",
        ),
        (zipped({"inner.jsonl.zst": zstandard.compress(said("a", id="1"))}), ["1"], ""),
        (
            zstandard.compress(said("a", id="1")) + zstandard.compress(said("b", id="2"))[:-8],
            ["1"],
            "end is missing",
        ),
        (zstandard.compress(said("a", id="1")) + b"no frame", ["1"], "to its end"),
        (zstandard.compress(said("a") + b" " * (1 << 25)), [], "far more than its size"),
    ],
    ids=["two frames", "in a zip", "cut", "with something else behind", "a bomb"],
)
def test_a_file_in_zstandard_is_unpacked_as_far_as_it_goes(
    store: Store, data: bytes, taken: list[str], problem: str
) -> None:
    report = take(store, data)

    assert [one.source for one in report.conversations] == taken
    assert {problem in one.reason for one in report.problems.first} == (
        {True} if problem else set()
    )


def test_a_link_that_leads_out_of_a_folder_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "secret.jsonl").write_bytes(said("secret"))
    (tmp_path / "export" / "chat.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (tmp_path / "export" / "other.jsonl").write_bytes(said("a"))
    report = store.import_(tmp_path / "export")

    assert len(report.conversations) == 1
    assert ["leads out" in problem.reason for problem in report.problems.first] == [True]


def test_hidden_folders_are_entered_where_programs_are_known_to_keep_conversations(
    store: Store, tmp_path: Path
) -> None:
    known = {".specstory/history", "a/.codex/sessions/2026", "a/.specstory/history/b"}
    for folder in known | {".specstory/debug", ".git"}:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "x.jsonl").write_bytes(said(folder, id=folder))

    assert {taken.source for taken in store.import_(tmp_path).conversations} == known
    assert len(store.import_(tmp_path / ".specstory").conversations) == 2


def test_the_files_of_a_folder_are_in_memory_one_at_a_time(store: Store, tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.jsonl").write_bytes(said("x" * 200_000, id=str(number)))
    store.import_(tmp_path / "0.jsonl", is_dry_run=True)
    tracemalloc.start()
    store.import_(tmp_path, is_dry_run=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 6_000_000
