"""The note: believed when it is whole, and never when a byte of it is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.format.anatomy import Anatomy
from capsule.storage import note
from capsule.storage.interface import Known, Signature
from capsule.storage.syscalls import Syscalls

SYS = Syscalls()
BIG = 2**63 - 1
KNOWN = Known(
    Signature(1, 2, 3, 4), Anatomy(7, 6, 5, 4, 3, 2, 1), note.new_tag(), "2025-01-12T10:30:00.000Z", "b" * 36, ""
)


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "note", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def size(fd: int) -> int:
    return os.fstat(fd).st_size


@pytest.mark.parametrize(
    "known",
    [
        KNOWN,
        KNOWN._replace(anatomy=None, doubt="bytes"),
        Known(Signature(BIG, BIG, BIG, BIG), Anatomy(*[BIG] * 7), note.new_tag(), "9" * 24, "b" * 36, "name"),
    ],
)
def test_a_note_is_read_as_it_was_written(fd: int, known: Known) -> None:
    note.rewrite(SYS, fd, known, [b'{"a": 1}', b'{"b": 2}'])
    assert note.read_header(SYS, fd, size(fd)) == known
    assert note.read_records(SYS, fd, size(fd)) == [b'{"a": 1}', b'{"b": 2}']
    later = known._replace(stamp="x")
    after, raw = note.add(SYS, fd, size(fd), later, [b'{"c": 3}'])
    assert after == size(fd) and len(raw) == note.HEADER_BYTES and note.decode_header(raw) == later
    assert note.read_records(SYS, fd, after) == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']


def test_no_note_with_a_wrong_byte_is_believed(fd: int) -> None:
    note.rewrite(SYS, fd, KNOWN, [b'{"a": 1}'])
    whole = os.pread(fd, size(fd), 0)
    for at in range(len(whole)):
        os.pwrite(fd, bytes([whole[at] ^ 0x41]), at)
        header, records = note.read_header(SYS, fd, len(whole)), note.read_records(SYS, fd, len(whole))
        assert header in (None, KNOWN) and records in ([], [b'{"a": 1}'])
        assert header is not None or records
        os.pwrite(fd, whole[at : at + 1], at)


def test_no_cut_note_is_believed(fd: int) -> None:
    note.rewrite(SYS, fd, KNOWN, [b'{"a": 1}'])
    for length in range(size(fd) - 1, -1, -1):
        os.ftruncate(fd, length)
        assert note.read_header(SYS, fd, length) is None
        assert note.read_records(SYS, fd, length) in ([], [b'{"a": 1}'])


@given(st.binary(max_size=2000))
def test_garbage_is_no_note_and_no_error(data: bytes) -> None:
    fd = os.memfd_create("note") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
    try:
        os.pwrite(fd, data, 0)
        assert note.read_header(SYS, fd, len(data)) is None and note.read_records(SYS, fd, len(data)) == []
        after, _ = note.add(SYS, fd, len(data), KNOWN, [b"{}"])
        assert note.read_header(SYS, fd, after) == KNOWN and note.read_records(SYS, fd, after) == [b"{}"]
    finally:
        os.close(fd)


def test_the_log_stays_small_and_keeps_the_latest(fd: int) -> None:
    note.rewrite(SYS, fd, KNOWN, [])
    for n in range(3000):
        note.add(SYS, fd, size(fd), KNOWN, [b'{"n": %d, "x": "%s"}' % (n, b"x" * 300)])
        assert size(fd) <= note.LOG_BYTES + note.HEADER_BYTES
    kept = note.read_records(SYS, fd, size(fd))
    assert len(kept) * 300 > note.LOG_BYTES // 3
    assert kept[-1].startswith(b'{"n": 2999') and kept == sorted(kept, key=lambda line: int(line[6:].split(b",")[0]))
