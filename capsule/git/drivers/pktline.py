"""Packets, as git's long-running processes speak in them.

A packet is four hexadecimal digits with its length, themselves included, and what it carries;
`0000` is the flush packet, which ends a list or a content (git's
Documentation/technical/protocol-common.txt). What must stay true: a stream that ends is another
case than one without packets; nothing is read beyond the packets asked for.
"""

from __future__ import annotations

from typing import IO

from capsule.errors import InvalidInput

FLUSH = b"0000"
#: What one packet carries at most: LARGE_PACKET_DATA_MAX of git.
_MOST = 65516


class Ended(Exception):
    """The other side has closed the stream."""


def packets(stream: IO[bytes]) -> list[bytes]:
    """What the packets up to the next flush packet carry. Raises Ended; InvalidInput when these are
    no packets.
    """
    contents: list[bytes] = []
    while True:
        header = stream.read(4)
        if header == FLUSH:
            return contents
        if len(header) < 4:
            raise Ended
        try:
            size = (
                int(header, 16) - 4 if header.isalnum() else -1
            )  # Signs and blanks are digits to Python alone.
        except ValueError:
            size = -1
        if not 0 <= size <= _MOST:
            raise InvalidInput(
                f"{header!r} begins no packet of git's; this program is started by git itself"
            )
        contents.append(stream.read(size))
        if len(contents[-1]) < size:
            raise Ended


def text(packet: bytes) -> str:
    """A packet that carries a line of text, for example a path; bytes that are no UTF-8 survive as
    a path's do.
    """
    return packet.removesuffix(b"\n").decode("utf-8", "surrogateescape")


def packed(*lines: str) -> bytes:
    """A list of lines, with its flush packet."""
    return (
        b"".join(map(_packet, (f"{line}\n".encode("utf-8", "surrogateescape") for line in lines)))
        + FLUSH
    )


def content(data: bytes) -> bytes:
    """A content of any size, with its flush packet."""
    return b"".join(_packet(data[at : at + _MOST]) for at in range(0, len(data), _MOST)) + FLUSH


def _packet(carried: bytes) -> bytes:
    return b"%04x%b" % (len(carried) + 4, carried)
