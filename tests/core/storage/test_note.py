"""The note and the log: trusted up to the first wrong byte."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import Signature
from capsule.engines.files import note
from capsule.engines.files.disk.log import Flushed, Log, Position
from capsule.engines.files.protocols import Known
from capsule.format.json.anatomy import Anatomy

SYS = Syscalls()
BIG = 2**63 - 1
STAMP = "2025-01-12T10:30:00.000Z"
KNOWN = Known(Signature(1, 2, 3, 4), Anatomy(7, 6, 5, 4, 3, 2, 1), note.new_tag(), STAMP, "b" * 36, "", STAMP, STAMP)
HUGE = Known(
    Signature(BIG, BIG, BIG, BIG), Anatomy(*[2**50] * 7), note.new_tag(), "9" * 24, "b" * 36, "name", "9" * 24, "9" * 24
)


def test_a_header_with_any_wrong_byte_is_refused() -> None:
    for known, position in (
        (KNOWN, None),
        (KNOWN._replace(anatomy=None, doubt="bytes"), Position(1, 2, 3, 4, 5)),
        (HUGE, Position(BIG, 2**40, 2**40, 2**32 - 1, 2**40)),
    ):
        raw = note.encode_header(known, position)
        assert len(raw) == note.HEADER_BYTES and note.decode_header(raw) == (known, position)
        for place in {*range(len(raw) - 1)} - {8}:
            assert note.decode_header(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :]) is None
        assert note.decode_header(raw[:-50]) is None


@given(st.binary(max_size=2000))
def test_random_bytes_are_no_header(data: bytes) -> None:
    assert note.decode_header(data) is None


CHECKPOINT = [b'{"k":"checkpoint","at":7}']


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    log = Log.make(SYS, str(tmp_path / "log"), 0o600, [[b"0"]], Flushed(7))
    yield log
    log.close()


def put(log: Log, *records: bytes) -> Log:
    if log.lacks_room(list(records)):
        log = log.renewed(list(records), 0o600, Flushed(7))
    log.make_room(list(records))
    log.put(list(records), log.position)
    log.take()
    return log


def test_a_log_is_read_up_to_its_first_wrong_byte(log: Log, tmp_path: Path) -> None:
    for n in range(1, 4):
        put(log, b"%d" % n, b"more")
    whole = (tmp_path / "log").read_bytes()
    assert log.read() == [[b"0"], CHECKPOINT, *([b"%d" % n, b"more"] for n in range(1, 4))]
    end = log.position.end
    starts = [0, *(at + 1 for at in range(end) if whole[at : at + 1] == b"\n")]
    for place in range(end):
        (tmp_path / "log").write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        again = Log.open(SYS, str(tmp_path / "log"), None)
        assert again is not None
        assert again.position.end == max(start for start in starts if start <= place)
        again.close()


def test_a_withdrawn_line_and_its_remains_are_not_read(log: Log) -> None:
    log.put([b"a" * 100], log.position)
    log.put([b"a" * 100], log.position)
    log.withdraw()
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
