"""The note and the log: trusted up to the first wrong byte."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import Signature
from capsule.engines.files import state
from capsule.engines.files.disk.log import Flushed, Log, LogPosition
from capsule.engines.files.state import Durability, StateHeader
from capsule.format.json.layout import FileLayout

SYS = Syscalls()
BIG = 2**63 - 1
STAMP = "2025-01-12T10:30:00.000Z"
KNOWN = StateHeader(
    Signature(1, 900, 3, 4),
    FileLayout(900, 100, 200, 300, 800, 2, True),
    state.new_tag(),
    STAMP,
    "b" * 36,
    Durability.DURABLE,
    STAMP,
    STAMP,
)
LAST = "9999-12-31T23:59:59.999Z"
HUGE = StateHeader(
    Signature(BIG, 2**50 + 90, BIG, BIG),
    FileLayout(2**50 + 90, 2**50, 2**50 + 30, 2**50 + 31, 2**50 + 80, 1),
    state.new_tag(),
    LAST,
    "b" * 36,
    Durability.EXTERNAL,
    LAST,
    LAST,
)


def test_a_header_with_any_wrong_byte_is_refused() -> None:
    for known, position in (
        (KNOWN, None),
        (
            KNOWN._replace(file_layout=None, durability=Durability.UNFLUSHED),
            LogPosition(1, 9, 5, 4, 3),
        ),
        (HUGE, LogPosition(BIG, 2**40, 2**40, 2**32 - 1, 2**40)),
    ):
        raw = state.encode_header(known, position)
        assert len(raw) == state.HEADER_BYTES and state.decode_header(raw) == (
            known,
            position,
        )
        for place in {*range(len(raw) - 1)} - {8}:
            assert (
                state.decode_header(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
                is None
            )
        assert state.decode_header(raw[:-50]) is None


#: What is put in the place of a field, or of one thing in it.
WRONG = (None, -1, 2**40, "x", [1])


def places_in(raw: bytes) -> list[tuple[str, int | None]]:
    """The fields of a header, and the places in those that are lists."""
    fields = orjson.loads(raw[9:])
    lists = [
        (name, place)
        for name, value in fields.items()
        if isinstance(value, list)
        for place in range(len(value))
    ]
    return [*((name, None) for name in fields), *lists]


def spoil(mutex: Path, name: str, place: int | None, wrong: object) -> None:
    """Put something wrong into the header of a note, under a true checksum."""
    fields = orjson.loads(mutex.read_bytes()[9:])
    if place is None:
        fields[name] = wrong
    else:
        fields[name][place] = wrong
    body = orjson.dumps(fields).ljust(state.HEADER_BYTES - 10)
    mutex.write_bytes(b"%08x %b\n" % (zlib.crc32(body), body))


@pytest.mark.slow
def test_a_header_with_a_true_checksum_and_wrong_fields_costs_a_look_at_the_document(
    root: Path, store: Store
) -> None:
    mutex = root / ".capsule" / "mutex" / "conversations-plan"
    expected = ["one"]
    for name, place in places_in(mutex.read_bytes()):
        for wrong in WRONG:
            store.append(
                "plan", content=f"sound {len(expected)}"
            )  # So that there is a log for the header to name.
            expected.append(f"sound {len(expected)}")
            spoil(mutex, name, place, wrong)
            store.flush()
            spoil(mutex, name, place, wrong)
            assert [head.title for head in store.heads()] == ["Plan"]
            spoil(mutex, name, place, wrong)
            assert [message.content for message in store.load("plan").history] == expected, (
                name,
                place,
                wrong,
            )
            spoil(mutex, name, place, wrong)
            store.append("plan", content=f"spoilt {len(expected)}")
            expected.append(f"spoilt {len(expected)}")


@given(st.binary(max_size=2000))
def test_random_bytes_are_no_header(data: bytes) -> None:
    assert state.decode_header(data) is None


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Store.init(tmp_path)
    return tmp_path


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    """A store with a conversation that has a note and a log."""
    with Store.open(root, keep_locks=False) as store:
        store.create(id="plan", title="Plan", type="group")
        store.append("plan", content="one")
        yield store


CHECKPOINT = [b'{"k":"checkpoint","at":7}']


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log.make(SYS, str(tmp_path / "log"), 0o600, [[b"0"]], Flushed(7))
    yield log
    log.close()


def put(log: Log, *records: bytes) -> Log:
    if log.needs_compaction(list(records)):
        log = log.compacted(list(records), 0o600, Flushed(7))
    log.ensure_space(list(records))
    log.write_pending(list(records), log.position)
    log.commit_pending()
    return log


def test_a_log_is_read_up_to_its_first_wrong_byte(log: Log, tmp_path: Path) -> None:
    for n in range(1, 4):
        put(log, b"%d" % n, b"more")
    whole = (tmp_path / "log").read_bytes()
    assert log.read() == [[b"0"], CHECKPOINT, *([b"%d" % n, b"more"] for n in range(1, 4))]
    end = log.position.end
    starts = [0, *(at + 1 for at in range(end) if whole[at : at + 1] == b"\n")]
    for place in range(end):
        (tmp_path / "log").write_bytes(
            whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :]
        )
        again = Log.open(SYS, str(tmp_path / "log"), None)
        assert again is not None
        assert again.position.end == max(start for start in starts if start <= place)
        again.close()


def test_a_withdrawn_line_and_its_remains_are_not_read(log: Log) -> None:
    log.write_pending([b"a" * 100], log.position)
    log.write_pending([b"a" * 100], log.position)
    log.discard_pending()
    assert log.read() == [[b"0"], CHECKPOINT]
    put(log, b"short")
    assert log.read() == [[b"0"], CHECKPOINT, [b"short"]]
    # The same line, at the same offset, behind another line than before.
    first, second = [b"x" * 10], [b"y" * 10]
    put(log, *first)
    at = log.position.end
    put(log, *second)
    old = os.pread(log.fd, 100, at)
    log.position = log.position._replace(end=at - 20, crc=7)
    os.pwrite(log.fd, old, log.position.end)
    assert [b"y" * 10] not in log.read()


def test_a_log_grows_by_zeros_and_is_rewritten_when_full(tmp_path: Path) -> None:
    sizes = set()
    made = Log.make(SYS, str(tmp_path / "log"), 0o600, [], Flushed(7))
    for n in range(400):
        made = put(made, b"%03d" % n * 1000)
        sizes.add((tmp_path / "log").stat().st_size)
        assert made.position.size == (tmp_path / "log").stat().st_size
    assert sizes == {4096 << n for n in range(8)}
    writes = made.read()
    made.close()
    assert writes[-1] == [b"399" * 1000] and writes.count(CHECKPOINT) == 1
    assert sum(len(line) for (line,) in writes) >= 256 << 10
    assert sorted(os.listdir(tmp_path)) == ["log"]
