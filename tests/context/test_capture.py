"""Capturing: the same project gives the same context, of texts alone, within the given limits."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from capsule.context import drift
from capsule.context.capture import Capture, parse_sections
from capsule.context.files import FileSelection, drop_largest
from capsule.disk.syscalls import Syscalls
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.errors import InvalidInput, Refused
from capsule.format.json import codec
from capsule.format.text.tokens import estimate
from capsule.locate import load_settings
from tests.context.projects import captured, context_of, lay_out


def reasons(made: Capture) -> dict[str, str]:
    return {one.path: one.reason for one in made.left_out}


def test_a_captured_context_has_the_fields_of_the_format(tmp_path: Path) -> None:
    files = {"b.py": b"print()\n", "a/c.md": "# \u00e9\n\n```\nx\n```\n".encode(), "empty": b""}
    lay_out(tmp_path, files)
    made = captured(tmp_path)
    context = context_of(made)
    text, about = str(context["fullContext"]), context["metadata"]
    assert isinstance(about, dict)
    assert about["contextHash"] == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
    assert about["projectPath"] == str(tmp_path) and about["filesIncluded"] == 3
    assert [(file["path"], file["bytes"], file["sha256"]) for file in about["files"]] == [
        (path, len(files[path]), hashlib.sha256(files[path]).hexdigest()) for path in sorted(files)
    ]
    assert about["selection"] == FileSelection().as_json()
    parts = parse_sections(text)
    assert parts is not None and {part.path: part.data for part in parts} == files
    assert made.document().decode() == text
    assert (
        b"".join(made.encoded()) == b"".join(made.encoded())
        and about["capturedAt"] == made.captured_at
    )


@pytest.fixture
def stored(store: Store) -> Store:
    """A store with a conversation, plan."""
    store.create(id="plan", messages=[{"role": "user", "content": "one"}])
    return store


def test_a_captured_context_is_canonical_in_the_file(tmp_path: Path, stored: Store) -> None:
    lay_out(
        tmp_path / "project",
        {f"f{n}.py": f"x = '{n}\\t\u00e9\u20ac\x1b\x7f'\r\n".encode() * 90 * n for n in range(30)},
    )
    made = captured(tmp_path / "project")
    stored.context.set("plan", made)
    assert codec.encode(stored.document("plan")) == stored.read("plan")
    assert stored.context.get("plan") == context_of(made)
    assert stored.load("plan").context.metadata.files_included == 30


def test_the_same_project_gives_the_same_bytes(tmp_path: Path) -> None:
    files = {f"{n % 7}/f{n}": f"{n}\n".encode() * n for n in range(60)}
    for name, order in (("one", list(files)), ("two", list(reversed(files)))):
        lay_out(tmp_path / name / "project", {path: files[path] for path in order})
    one, two = (captured(tmp_path / name / "project", budget=900) for name in ("one", "two"))
    assert one.document() == two.document()
    assert reasons(one) == reasons(two)


def test_files_that_are_no_text_are_left_out_with_the_reason(tmp_path: Path) -> None:
    lay_out(
        tmp_path,
        {
            "a.txt": b"text\r\nof Windows\r\n",
            "bom.txt": "\ufefftext".encode(),
            "latin.txt": "caf\u00e9".encode("latin-1"),
            "nul.bin": b"a\0b",
            "png.png": b"\x89PNG\r\n\x1a\n\0\0",
            "utf16.txt": "text".encode("utf-16"),
            "large.txt": b"x" * 2000,
            ".env": b"A=1",
            "key.pem": b"x",
        },
    )
    made = captured(tmp_path, file_bytes=1000)
    assert {file.path: file.data for file in made.files} == {
        "a.txt": b"text\r\nof Windows\r\n",
        "bom.txt": "\ufefftext".encode(),
    }
    left_out = reasons(made)
    assert list(left_out) == sorted(left_out)
    assert (
        "not valid UTF-8" in left_out["latin.txt"]
        and left_out["nul.bin"] == "binary"
        and "UTF-16" in left_out["utf16.txt"]
    )
    assert "binary" in left_out["png.png"] and "more than 1,000" in left_out["large.txt"]
    assert "--include .env" in left_out[".env"] and "secrets" in left_out["key.pem"]


def test_the_largest_files_are_left_out_above_the_total_limit(tmp_path: Path) -> None:
    sizes = {f"{n:03}.py": 1_000 + n * (700 if n % 3 else 1) for n in range(220)}
    lay_out(tmp_path, {name: b"#" * size for name, size in sizes.items()})
    lay_out(tmp_path, {"000.bin": b"\0" * 150_000, "large.txt": b"x" * 200_000})
    (tmp_path / "link").symlink_to("000.py")
    limits: dict[str, object] = {"file_bytes": 190_000, "total_bytes": 900_000}
    made = captured(tmp_path, **limits)
    expected, too_much = drop_largest([*sorted(sizes.items()), ("000.bin", 150_000)], 900_000)
    assert [file.path for file in made.files] == sorted(path for path, _ in expected)
    assert made.beyond == sorted(one.path for one in too_much) and len(made.beyond) > 50
    assert {one.path for one in made.left_out} == {*made.beyond, "large.txt"}
    assert "150,000 bytes, and all files together" in reasons(made)["000.bin"]
    context = context_of(made)
    assert drift.check(context).is_current
    assert (
        captured(tmp_path, **limits | {"total_bytes": sum(sizes.values()) + 150_000}).beyond == []
    )


def test_a_document_flushed_during_its_writing_is_whole_and_durable_before_its_rename(
    tmp_path: Path,
) -> None:
    """P1: an early flush of a part proves nothing; the flush of the whole file comes before the
    rename.
    """
    calls: list[str] = []

    def note(call: str, fd: int) -> None:
        if "/conversations/" in os.readlink(f"/proc/self/fd/{fd}"):  # The log has separate flushes.
            calls.append(call)

    class Watched(Syscalls):
        def begin_flush(self, fd: int, offset: int, size: int) -> None:
            note("begin", fd)
            super().begin_flush(fd, offset, size)

        @staticmethod
        def pwrite(fd: int, data: bytes, offset: int) -> int:  # type: ignore[override]
            note("write", fd)
            return os.pwrite(fd, data, offset)

        @staticmethod
        def fsync(fd: int) -> None:  # type: ignore[override]
            note("flush", fd)
            os.fsync(fd)

        def exchange(self, one: str, other: str) -> bool:
            calls.append("name")
            return super().exchange(one, other)

    lay_out(tmp_path / "project", {f"f{n:02}.txt": b"line of text\n" * 70_000 for n in range(25)})
    Store.init(tmp_path / "store")
    settings = load_settings(str(tmp_path / "store"))
    storage = FilesEngine(
        FileStorage(str(tmp_path / "store"), sys=Watched(), append=settings.append)
    )
    with Store(str(tmp_path / "store"), settings, storage) as store:
        store.create(id="plan", messages=[{"role": "user", "content": "one"}])
        for _ in range(2):
            made = captured(tmp_path / "project")
            calls.clear()
            store.context.set("plan", made)
            assert calls.count("begin") >= 2
            named = calls.index("name")
            flushed = calls.index("flush")
            assert flushed < named and not {"write", "begin"} & set(calls[flushed:named])
        assert codec.encode(store.document("plan")) == store.read("plan")
        assert store.context.get("plan") == context_of(made)


def test_a_file_with_the_name_of_a_secret_is_taken_when_included(tmp_path: Path) -> None:
    lay_out(tmp_path, {".env": b"A=1", "deep/.env": b"B=1", "a.py": b""})
    assert [file.path for file in captured(tmp_path, include=(".env", "*.py")).files] == [
        ".env",
        "a.py",
    ]
    assert [file.path for file in captured(tmp_path, include=("*.env", "*.py")).files] == ["a.py"]


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable for root")
def test_an_unreadable_file_is_left_out(tmp_path: Path) -> None:
    lay_out(tmp_path, {"a": b"x", "b": b"y"})
    (tmp_path / "b").chmod(0)
    assert reasons(captured(tmp_path)) == {"b": "can't be read"}


@pytest.mark.files
def test_a_file_with_a_token_refuses_the_capture_until_tokens_are_allowed(
    tmp_path: Path, stored: Store
) -> None:
    token = "ghp_" + "a1B2" * 9
    lay_out(tmp_path / "project", {"a.py": f"x = 1\nTOKEN = '{token}'\n".encode(), "b.py": b""})
    made = captured(tmp_path / "project")
    before = stored.read("plan")
    with pytest.raises(Refused, match=r"a\.py:2: GitHub Token") as refused:
        stored.context.set("plan", made)
    assert token not in str(refused.value) and "--allow-secrets" in str(refused.value)
    assert stored.read("plan") == before
    assert not [
        name for name in os.listdir(f"{stored.root}/conversations") if name.endswith(".tmp")
    ]
    made.secrets_allowed = True
    stored.context.set("plan", made)
    assert token in stored.context.get("plan")["fullContext"]


@pytest.mark.slow
@given(st.integers(100, 3000))
def test_a_budget_is_filled_from_the_first_file_and_not_exceeded(
    tmp_path_factory: pytest.TempPathFactory, budget: int
) -> None:
    root = tmp_path_factory.mktemp("project")
    lay_out(
        root, {f"{'deep/' * (n % 3)}f{n}.py": b"value = call(argument)\n" * n for n in range(1, 25)}
    )
    lay_out(root, {"deep/deep/README.md": b"Read me.\n"})
    made = captured(root, budget=budget)
    text = made.document()
    counted = sum(
        estimate(text[at : at + 4096]) for at in range(0, len(text), 4096)
    )  # Short enough that every block is counted.
    assert made.tokens <= budget and counted <= budget * 1.1
    taken = {file.path for file in made.files}
    assert "deep/deep/README.md" in taken
    assert {one.path for one in made.left_out} == set(made.beyond) and not taken & set(made.beyond)
    room = budget - made.tokens
    whole = captured(root)
    assert all(file.tokens + file.overhead > room for file in whole.files if file.path not in taken)


def test_a_capture_without_a_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    lay_out(tmp_path, {"a.bin": b"\0"})
    with pytest.raises(InvalidInput, match=r"no text file.*1 were left out: binary"):
        captured(tmp_path)
