"""Packets: what is written is read, at every size that matters, and an end is an end."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.errors import InvalidInput
from capsule.git.drivers import pktline


def test_a_content_of_any_size_goes_through_in_packets_that_git_takes() -> None:
    for size in [0, 1, 65515, 65516, 65517, 2 * 65516, 300_000]:
        data = bytes(at % 251 for at in range(size))
        written = pktline.content(data)
        packets = pktline.packets(io.BytesIO(written))
        assert b"".join(packets) == data
        assert all(0 < len(packet) <= 65516 for packet in packets)


@given(st.lists(st.text(st.characters(exclude_characters="\n"), max_size=20)))
def test_lines_are_read_as_they_were_written(lines: list[str]) -> None:
    lines = [line.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape") for line in lines]
    stream = io.BytesIO(pktline.packed(*lines) + b"behind")
    assert list(map(pktline.text, pktline.packets(stream))) == lines
    assert stream.read() == b"behind"


@given(st.binary(max_size=30), st.data())
def test_a_stream_that_is_cut_anywhere_is_one_that_ended(carried: bytes, data: st.DataObject) -> None:
    written = pktline.content(carried)
    cut = written[: data.draw(st.integers(0, len(written) - 1))]
    with pytest.raises(pktline.Ended):
        pktline.packets(io.BytesIO(cut))


def test_what_is_no_packet_is_said_to_be_none() -> None:
    for typed in [b"help\n", b"0003", b"0001", b"ffff" + b"x" * 65531, b"-001", b"+0a1"]:
        with pytest.raises(InvalidInput, match="no packet"):
            pktline.packets(io.BytesIO(typed))
