"""The promises of a storage engine to the store; these tests run for every implementation."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from capsule.disk.syscalls import Syscalls
from capsule.engines.files.document import HeldDocument
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.external_edits import repaired_file
from capsule.engines.files.state import Durability, StateHeader
from capsule.engines.files.storage import FileStorage
from capsule.errors import (
    CapsuleError,
    ConcurrentWrite,
    InvalidDocument,
    InvalidInput,
    NotFound,
    Refused,
)
from capsule.format.json import codec, layout
from capsule.format.recovery.torn_files import repair_torn
from tests.core.storage.conftest import STAMP, document, entry, head, texts_of
from tests.torture.filesystem import Rebooted

KIND = "conversations"
LATER = "2025-01-12T10:31:00.000Z"


def put(storage: FileStorage, id: str, texts: list[str]) -> bytes:
    data = document(id, texts)
    with storage.hold(KIND, id) as held:
        held.replace(None, data, layout.survey(data), [])
    return data


def data_of(storage: FileStorage, id: str = "plan") -> bytes:
    got = storage.read(KIND, id)
    assert got is not None
    return got[0]


def looked(held: HeldDocument) -> StateHeader:
    known = held.unchanged_header()
    assert known is not None
    return known


def test_a_written_document_is_read_unchanged_and_known(storage: FileStorage) -> None:
    assert storage.read(KIND, "plan") is None and storage.current_header(KIND, "plan") is None
    assert not storage.exists(KIND, "plan") and list(storage.scan(KIND)) == []
    data = put(storage, "plan", ["one"])
    assert data_of(storage) == data and storage.exists(KIND, "plan")
    known = storage.current_header(KIND, "plan")
    assert (
        known is not None and known.file_layout == layout.survey(data) and known.updated_at == STAMP
    )
    (scanned,) = storage.scan(KIND)
    assert (scanned.id, scanned.path, scanned.is_regular) == (
        "plan",
        storage.path(KIND, "plan"),
        True,
    )
    assert scanned.signature == known.signature
    with storage.hold(KIND, "plan") as held:
        assert held.unchanged_header() == known
        assert held.read() == (data, known.signature)


@pytest.mark.parametrize("before", [[], ["one"], ["one", "two"]])
@pytest.mark.parametrize("added", [["x"], ["x", "y", "z" * 5000]])
def test_appended_entries_are_at_the_end_and_the_rest_is_unchanged(
    storage: FileStorage, before: list[str], added: list[str]
) -> None:
    put(storage, "plan", before)
    with storage.hold(KIND, "plan") as held:
        after = held.splice(looked(held), [entry(text) for text in added], LATER, [])
        assert held.unchanged_header() == after
    wanted = document("plan", before + added).replace(
        b'"updatedAt": "' + STAMP.encode(), b'"updatedAt": "' + LATER.encode()
    )
    assert data_of(storage) == wanted
    assert after.file_layout == layout.survey(wanted) and after.updated_at == LATER
    assert storage.current_header(KIND, "plan") == after


@pytest.mark.parametrize("title", ["New", "", "x" * 3000])
@pytest.mark.parametrize("added", [[], ["two"]])
def test_a_new_head_leaves_the_history_unchanged(
    storage: FileStorage, title: str, added: list[str]
) -> None:
    put(storage, "plan", ["one"])
    with storage.hold(KIND, "plan") as held:
        after = held.rewrite_head(
            looked(held), head("plan", title, LATER), [entry(text) for text in added], []
        )
        assert held.unchanged_header() == after
        after = held.splice(after, [entry("three")], LATER, [])
    assert texts_of(data_of(storage)) == ["one", *added, "three"]
    assert after.file_layout == layout.survey(data_of(storage)) and after.updated_at == LATER


@pytest.mark.parametrize("sizes", [(0, 10, 0), (3000, 1, 70_000), (5 << 20, 20, 9 << 20)])
def test_a_new_context_leaves_the_history_unchanged(
    storage: FileStorage, sizes: tuple[int, ...]
) -> None:
    put(storage, "plan", ["one"])
    for size in sizes:
        context = {"fullContext": "x" * size, "metadata": {}} if size else {}
        lines = layout.context_lines([codec.encode(context)[:-1]])
        with storage.hold(KIND, "plan") as held:
            after = held.rewrite_head(looked(held), head("plan", "New", LATER), [], [], lines)
            assert held.unchanged_header() == after
            after = held.splice(after, [entry("more")], LATER, [])
        assert codec.decode(data_of(storage), "plan")["context"] == context
        assert after.file_layout == layout.survey(data_of(storage))
    assert texts_of(data_of(storage)) == ["one", "more", "more", "more"]


def test_several_changes_under_one_mutex_build_on_each_other(storage: FileStorage) -> None:
    put(storage, "plan", ["one"])
    with storage.hold(KIND, "plan") as held:
        known = held.rewrite_head(
            looked(held), head("plan", "a much longer title than before"), [], []
        )
        known = held.rewrite_head(known, head("plan", "b"), [entry("two")], [])
        known = held.splice(known, [entry("three")], LATER, [])
        data = document("plan", ["four"])
        known = held.replace(known.signature, data, layout.survey(data), [])
        known = held.rewrite_head(known, head("plan", "c"), [entry("five")], [])
        got = held.read()
        assert got is not None and got[1] == known.signature
        assert b'"title": "c"' in held.head(known)
    assert texts_of(data_of(storage)) == ["four", "five"]


def test_no_write_replaces_a_version_that_it_did_not_read(storage: FileStorage, root: Path) -> None:
    first = put(storage, "plan", ["one"])
    path = Path(storage.path(KIND, "plan"))
    for write in (
        lambda held, known: held.splice(known, [entry("x")], LATER, []),
        lambda held, known: held.rewrite_head(known, head("plan", "x"), [], []),
        lambda held, known: held.replace(known.signature, first, known.file_layout, []),
        lambda held, known: held.replace(None, first, known.file_layout, []),
    ):
        with storage.hold(KIND, "plan") as held:
            got = held.read()
            assert got is not None
            known = held.accept_file(got[1], layout.survey(got[0]), [], STAMP)
            other = document("plan", ["by hand"])
            copy = root / "copy"
            copy.write_bytes(other)
            copy.rename(path)
            with pytest.raises(ConcurrentWrite):
                write(held, known)
            assert path.read_bytes() == other
            assert held.unchanged_header() is None
    assert [path.name for path in (root / KIND).iterdir()] == ["plan.json"]


@pytest.mark.parametrize("size", ["the same size", "another size"])
def test_an_edit_in_place_is_noticed_by_the_next_look(
    storage: FileStorage, root: Path, size: str
) -> None:
    data = put(storage, "plan", ["one"])
    new = data.replace(b'"one"', b'"two"' if size == "the same size" else b'"something else"')
    path = root / KIND / "plan.json"
    path.write_bytes(new)
    os.utime(path, ns=(1, 1))
    assert storage.current_header(KIND, "plan") is None
    with storage.hold(KIND, "plan") as held:
        assert held.unchanged_header() is None
        got = held.read()
        assert got is not None and got[0] == new
        known = held.accept_file(got[1], layout.survey(new), [b'{"adopted": 1}'], STAMP)
        assert (
            held.unchanged_header() == known and held.records() == []
        )  # A file that was only read gets no log.
        held.splice(known, [entry("three")], LATER, [])
    assert texts_of(data_of(storage))[1:] == ["three"]


def test_the_records_of_each_write_are_read_in_their_order(storage: FileStorage) -> None:
    put(storage, "plan", [])
    for n in range(5):
        with storage.hold(KIND, "plan") as held:
            held.make_base_record = lambda: b'"before"'
            held.splice(looked(held), [entry(str(n))], LATER, [b'{"n": %d}' % n, b'{"m": 1}'])
    with storage.hold(KIND, "plan") as held:
        records = [[b'"before"'], *([b'{"n": %d}' % n, b'{"m": 1}'] for n in range(5))]
        assert held.records() == records
        got = held.read()
        assert got is not None
        held.accept_file(got[1], None, [b'{"new": 1}'], LATER)
        assert held.records() == [*records, [b'{"new": 1}']]
        held.rewrite_records([[b'"kept"']])
        assert held.records() == [[b'"kept"']]
        held.rewrite_records([])
        assert held.records() == []


def test_the_log_keeps_the_newest_256_kib_of_messages_beside_other_records(
    storage: FileStorage,
) -> None:
    put(storage, "plan", [])
    text = b"x" * 20_000
    for n in range(60):
        with storage.hold(KIND, "plan") as held:
            records = [
                b'{"n": %d, "x": "%s"}' % (n, text),
                b'{"k":"head","n":%d,"x":"%s"}' % (n, text),
            ]
            held.splice(looked(held), [entry(str(n))], LATER, records)
    with storage.hold(KIND, "plan") as held:
        for _ in range(900):
            held.rewrite_head(
                looked(held), head("plan", "x"), [], [b'{"k":"lock","x":"%s"}' % text[:500]]
            )
        kept = [record for records in held.records() for record in records]
        messages = [int(record[6:].split(b",")[0]) for record in kept if record.startswith(b'{"n"')]
        assert (
            messages == list(range(60 - len(messages), 60))
            and len(messages) * len(text) >= 256 << 10
        )
        large = b'"' + b"x" * 700_000 + b'"'
        for record in (large, b'"small"'):
            held.splice(looked(held), [entry(record[:2].hex())], LATER, [record])
            assert held.records()[-1] == [record]
        assert [large] in held.records()


def test_the_tail_has_the_last_entries(storage: FileStorage) -> None:
    texts = [str(number) * 30_000 for number in range(5)]
    put(storage, "plan", texts)
    known = storage.current_header(KIND, "plan")
    assert known is not None
    for n in (1, 2, 3, 100):
        block = storage.tail(KIND, "plan", known, n)
        assert block is not None
        assert [message["content"] for message in orjson.loads(block)] == texts[-n:]
    (Path(storage.path(KIND, "plan"))).write_bytes(document("plan", ["other"]))
    assert storage.tail(KIND, "plan", known, 1) is None


def test_the_beginning_of_a_file_reaches_to_its_context(storage: FileStorage, root: Path) -> None:
    for title in ("short", "x" * 20_000):
        data = document("plan", ["one" * 50_000], title)
        (root / KIND / "plan.json").write_bytes(data)
        beginning, end = storage.read_head_and_end(storage.path(KIND, "plan"))
        assert data.startswith(beginning) and b'\n  "context": ' in beginning and end == data[-8:]
    (root / KIND / "plan.json").unlink()
    with pytest.raises(NotFound):
        storage.read_head_and_end(storage.path(KIND, "plan"))


def test_a_deleted_document_is_in_the_trash_and_can_be_restored(
    storage: FileStorage, root: Path
) -> None:
    data = put(storage, "plan", ["one"])
    with storage.hold(KIND, "plan") as held:
        trashed = held.delete()
        assert held.unchanged_header() is None and held.read() is None
    assert not storage.exists(KIND, "plan") and storage.current_header(KIND, "plan") is None
    assert (
        storage.trash_directories.entries(KIND) == [trashed]
        and storage.trash_directories.read(trashed.token) == data
    )
    assert storage.trash_directories.entries("agents") == []
    with storage.hold(KIND, "plan") as held:
        held.restore(trashed.token)
        assert held.unchanged_header() is None  # It must be read as a whole before the next write.
    assert data_of(storage) == data and storage.trash_directories.entries(KIND) == []
    with storage.hold(KIND, "plan") as held:
        trashed = held.delete()
    second = put(storage, "plan", ["two"])
    with storage.hold(KIND, "plan") as held, pytest.raises(Refused):
        held.restore(trashed.token)
    assert data_of(storage) == second and storage.trash_directories.entries(KIND) == [trashed]


def test_deletions_at_one_instant_all_stay_in_the_trash(storage: FileStorage) -> None:
    tokens = set()
    for n in range(5):
        put(storage, "plan", [str(n)])
        with storage.hold(KIND, "plan") as held:
            tokens.add(held.delete().token)
    assert len(tokens) == 5
    assert {texts_of(storage.trash_directories.read(token))[0] for token in tokens} == set("01234")


def test_a_file_in_quarantine_has_the_name_of_its_document_and_the_reason(
    storage: FileStorage,
) -> None:
    put(storage, "plan", [])
    with storage.hold(KIND, "plan") as held:
        paths = [held.quarantine(b"data %d" % n, "why") for n in range(3)]
    assert [Path(path).read_bytes() for path in paths] == [b"data 0", b"data 1", b"data 2"]
    assert all("plan" in path and "why" in path for path in paths)
    assert storage.trash_directories.purge(3600) == []
    assert sorted(storage.trash_directories.purge(0)) == sorted(paths)


def test_a_torn_document_is_mended_and_the_original_is_kept(
    storage: FileStorage, root: Path
) -> None:
    whole = put(storage, "plan", ["one", "two"])
    torn = whole[:-7] + b",\n    {\n      "
    path = root / KIND / "plan.json"
    path.write_bytes(torn)
    assert repair_torn(torn) is not None and repair_torn(whole) is None
    with storage.hold(KIND, "plan") as held:
        got = held.read()
        assert got is not None
        assert repaired_file(held, *got) is None  # A program may be saving it.
        found = repaired_file(held, *got, is_requested=True)
        assert found is not None and found[0] == whole
        os.utime(path, (1, 1))  # A time before the machine started: no program is still saving it.
        got = held.read()
        assert got is not None and repaired_file(held, *got) == found
        kept = held.repair(*got, found[0])
    assert path.read_bytes() == whole and Path(kept).read_bytes() == torn


def test_an_id_with_a_path_is_refused(storage: FileStorage, root: Path) -> None:
    for id in ["", ".", "../x", "a/b", "a\0b", "x" * 129, ".tmp"]:
        for use in (
            lambda: storage.read(KIND, id),
            lambda: storage.exists(KIND, id),
            lambda: storage.current_header(KIND, id),
            lambda: storage.hold(KIND, id).__enter__(),
            lambda: storage.path(KIND, id),
        ):
            with pytest.raises(InvalidInput):
                use()
        assert [path.name for path in root.iterdir()] == [KIND]


PLACES: dict[str, Callable[[Path], None]] = {
    "symlink": lambda path: path.symlink_to("elsewhere"),
    "fifo": os.mkfifo,
    "directory": lambda path: path.mkdir(),
}


@pytest.mark.parametrize("what", PLACES)
def test_a_path_that_is_no_regular_file_is_no_document(
    storage: FileStorage, root: Path, what: str
) -> None:
    path = root / KIND / "plan.json"
    PLACES[what](path)
    with pytest.raises(InvalidDocument):
        storage.read(KIND, "plan")
    with pytest.raises(InvalidDocument):
        storage.read_head_and_end(str(path))
    assert [(scanned.id, scanned.is_regular) for scanned in storage.scan(KIND)] == [("plan", False)]
    assert storage.exists(KIND, "plan")
    data = document("plan", [])
    with storage.hold(KIND, "plan") as held:
        with pytest.raises(InvalidDocument):
            held.read()
        with pytest.raises(ConcurrentWrite):
            held.replace(None, data, layout.survey(data), [])
    assert [place.name for place in (root / KIND).iterdir()] == ["plan.json"]


def test_leftovers_of_dead_processes_are_found_and_swept(storage: FileStorage, root: Path) -> None:
    put(storage, "plan", ["one"])
    put(storage, "gone", ["one"])
    assert storage.leftovers(KIND) == []
    (root / KIND / ".plan.tmp").write_bytes(b"half")
    (root / KIND / "gone.json").unlink()
    found = {leftover.kind: leftover for leftover in storage.leftovers(KIND)}
    assert {kind: leftover.id for kind, leftover in found.items()} == {
        "temporary": "plan",
        "vanished": "gone",
    }
    for leftover in found.values():
        assert storage.sweep(KIND, leftover)
    assert storage.leftovers(KIND) == []
    kept = [path.read_bytes() for path in (root / ".capsule" / "quarantine").iterdir()]
    assert kept == [b"half"]


def test_a_leftover_temporary_blocks_no_writer_and_is_kept(
    storage: FileStorage, root: Path
) -> None:
    put(storage, "plan", ["one"])
    (root / KIND / ".plan.tmp").write_bytes(b"half")
    with storage.hold(KIND, "plan") as held:
        held.rewrite_head(looked(held), head("plan", "x"), [], [])
    assert [path.name for path in (root / KIND).iterdir()] == ["plan.json"]
    assert [path.read_bytes() for path in (root / ".capsule" / "quarantine").iterdir()] == [b"half"]


def test_a_signature_from_before_a_reboot_is_not_trusted(root: Path) -> None:
    before, after = FileStorage(str(root)), FileStorage(str(root), sys=Rebooted())
    data = put(before, "plan", ["one"])
    with before.hold(KIND, "plan") as held:
        held.splice(looked(held), [entry("two")], LATER, [b'{"n": 1}'])
    assert (
        before.current_header(KIND, "plan") is not None
        and after.current_header(KIND, "plan") is None
    )
    with after.hold(KIND, "plan") as held:
        assert held.unchanged_header() is None
        assert held.records() == [[b'{"n": 1}']]
    assert data
    before.close()
    after.close()


def test_system_errors_become_errors_of_the_package(storage: FileStorage, root: Path) -> None:
    put(storage, "plan", [])
    with pytest.raises(CapsuleError), storage.hold(KIND, "plan"):
        raise OSError(5, "Input/output error")
    (root / "agents").write_bytes(b"in the way")
    with pytest.raises(CapsuleError):
        list(storage.scan("agents"))
    with pytest.raises(CapsuleError):
        storage.read("agents", "x")
    assert not storage.exists("agents", "x")


def test_a_document_is_read_from_an_offset(storage: FileStorage) -> None:
    data = put(storage, "plan", ["one", "two"])
    known = storage.current_header(KIND, "plan")
    for offset in (0, 1, 100, 10_000_000):
        assert known is not None and storage.read(KIND, "plan", offset) == (
            data[offset:],
            known.signature,
        )
        assert storage.read(KIND, "nobody", offset) is None


def test_find_gives_the_same_as_scan(storage: FileStorage, root: Path) -> None:
    put(storage, "plan", ["one"])
    (root / KIND / "no id.json").write_bytes(b"")
    (root / KIND / "link.json").symlink_to("plan.json")
    scanned = {found.id: found for found in storage.scan(KIND)}
    assert scanned.keys() == {"plan", "no id", "link"}
    assert {id: storage.find(KIND, id) for id in scanned} == scanned
    for id in ("nobody", "../x", ".plan", "a\0b", ""):
        assert storage.find(KIND, id) is None
    assert storage.find("agents", "plan") is None


def test_the_note_stays_when_the_file_changes(storage: FileStorage, root: Path) -> None:
    assert storage.recorded_header(KIND, "plan") is None
    put(storage, "plan", ["one"])
    known = storage.current_header(KIND, "plan")
    assert known is not None and storage.recorded_header(KIND, "plan") == known
    (root / KIND / "plan.json").write_bytes(b"{}")
    assert (
        storage.current_header(KIND, "plan") is None
        and storage.recorded_header(KIND, "plan") == known
    )


def test_derived_files_can_be_made_moved_into_place_locked_and_dropped(
    storage: FileStorage, root: Path, make
) -> None:  # type: ignore[no-untyped-def]
    derived, other = storage.derived, make(str(root)).derived
    assert derived.inode("index") == 0
    path = Path(derived.make("index.new"))
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(CapsuleError):
        derived.make("index.new")
    path.write_bytes(b"x")
    derived.install("index.new", "index")
    assert (
        Path(derived.path("index")).read_bytes() == b"x"
        and derived.inode("index")
        and not path.exists()
    )
    release = derived.try_lock("index.lock")
    assert release is not None and other.try_lock("index.lock") is None
    release()
    again = other.try_lock("index.lock")
    assert again is not None
    again()
    assert set(derived.names()) == {".gitignore", "index", "index.lock"}
    derived.remove("index", "never there")
    assert set(derived.names()) == {".gitignore", "index.lock"}


def test_the_history_is_read_from_an_offset_under_the_mutex(
    storage: FileStorage, root: Path
) -> None:
    data = document("a", ["one", "two"])
    with storage.hold("conversations", "a") as held:
        known = held.replace(None, data, layout.survey(data), [])
        assert known.file_layout is not None
        for start in (
            known.file_layout.history,
            known.file_layout.tail - 5,
            known.file_layout.tail,
        ):
            assert held.history(known, start) == data[start : known.file_layout.tail]
        (root / "conversations" / "a.json").write_bytes(data[:40])
        with pytest.raises(ConcurrentWrite):
            held.history(known, known.file_layout.history)


def test_a_file_moved_away_before_its_flush_is_read_again(storage: FileStorage) -> None:
    put(storage, "plan", ["one"])
    path = Path(storage.path(KIND, "plan"))
    with storage.hold(KIND, "plan") as held:
        known = looked(held)
        away = path.rename(path.with_name("plan.json~"))
        with pytest.raises(ConcurrentWrite):
            held.flush(known)
        away.rename(path)
        got = held.read()
        assert got is not None
        assert (
            held.flush(held.accept_file(got[1], known.file_layout, [], STAMP)).durability
            is Durability.DURABLE
        )


class Flushes(Syscalls):
    """A system that notes what is flushed, by the inode."""

    def __init__(self) -> None:
        self.flushed: list[int] = []

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        self.flushed.append(os.fstat(fd).st_ino)
        os.fsync(fd)


def test_a_retry_flushes_the_version_that_another_program_put_there(tmp_path: Path) -> None:
    sys = Flushes()
    engine = FilesEngine(FileStorage(str(tmp_path), sys=sys))
    data = put(engine.storage, "plan", ["one"])
    path = Path(engine.storage.path(KIND, "plan"))
    edited = path.with_name("copy")
    edited.write_bytes(data.replace(b'"one"', b'"two"'))
    edited.rename(path)
    with engine.transaction(KIND, "plan") as transaction:
        sys.flushed.clear()
        transaction.ensure_durable()
    assert path.stat().st_ino in sys.flushed and path.parent.stat().st_ino in sys.flushed


def test_a_version_that_is_saved_while_a_transaction_runs_begins_it_again(tmp_path: Path) -> None:
    engine = FilesEngine(FileStorage(str(tmp_path)))
    data = put(engine.storage, "plan", ["one"])
    with engine.transaction(KIND, "plan") as transaction:
        Path(engine.storage.path(KIND, "plan")).write_bytes(data.replace(b'"one"', b'"two"'))
        with pytest.raises(ConcurrentWrite):
            transaction.document()
