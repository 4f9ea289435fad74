"""The filter process: git sends it every document on its way into the index and gets back its clean
form.

Git starts one process for a whole command and speaks version 2 of its filter protocol with it
(gitattributes(5), "Long Running Filter Process"). The protocol consists of packets: four
hexadecimal digits with the length of the packet, themselves included, and the content. `0000` is
the flush packet, which ends a list or a content (git's
Documentation/technical/protocol-common.txt). Nothing is read beyond the packets that are asked for.

Invariants:
- The process ends when git ends, in whatever way that happens.
- It does not wait long for a lock, because the caller of git may hold it.
- A document that does not parse passes unchanged and is reported with line and column. The filter
  cannot know whether git adds a file or only compares it, and `git status` and `git checkout` must
  work while somebody repairs the file. The check before a commit refuses it (`precommit.py`).

On the way out of the index nothing changes. The filter handles that direction too, because git
applies `required` to both.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import IO

from capsule.errors import CapsuleError, InvalidDocument, InvalidInput
from capsule.format.merge.clean_form import clean
from capsule.format.validation import CONVERSATION, KINDS
from capsule.ids import is_id

FLUSH = b"0000"
#: The most bytes that one packet carries: LARGE_PACKET_DATA_MAX of git.
_MAX_PACKET = 65516


class StreamClosed(Exception):
    """The other side has closed the stream."""


def packets(stream: IO[bytes]) -> list[bytes]:
    """Return the contents of the packets up to the next flush packet. Raises StreamClosed, and
    InvalidInput if the stream has no packets.
    """
    contents: list[bytes] = []
    while True:
        header = stream.read(4)
        if header == FLUSH:
            return contents
        if len(header) < 4:
            raise StreamClosed
        size = -1
        with suppress(ValueError):
            if header.isalnum():  # `int` also accepts signs and blanks.
                size = int(header, 16) - 4
        if not 0 <= size <= _MAX_PACKET:
            raise InvalidInput(
                f"{header!r} is not the start of a packet of git's; only git starts this program"
            )
        contents.append(stream.read(size))
        if len(contents[-1]) < size:
            raise StreamClosed


def text(packet: bytes) -> str:
    """Return the line of text in a packet, such as a path. Bytes that are not UTF-8 are kept as
    surrogates, as in paths.
    """
    return packet.removesuffix(b"\n").decode("utf-8", "surrogateescape")


def packed(*lines: str) -> bytes:
    """Return the packets of a list of lines, with its flush packet."""
    packet_list = [_packet(f"{line}\n".encode("utf-8", "surrogateescape")) for line in lines]
    return b"".join(packet_list) + FLUSH


def content(data: bytes) -> bytes:
    """Return the packets of a content of any size, with its flush packet."""
    starts = range(0, len(data), _MAX_PACKET)
    return b"".join(_packet(data[start : start + _MAX_PACKET]) for start in starts) + FLUSH


def _packet(data: bytes) -> bytes:
    return b"%04x%b" % (len(data) + 4, data)


#: Returns the clean form of a content. Gets the content, and its path in the repository. Raises
#: `CapsuleError`.
Cleaner = Callable[[bytes, str], bytes]

#: Seconds to wait for a writer whose append git may have read half written. An append takes a
#: thousandth of that.
_LOCK_WAIT_S = 0.25
#: The file that marks a store. A constant here, so that the storage layer need not be loaded.
_SETTINGS = "capsule.toml"
#: The beginning of the text that the diff driver makes of a conversation. `git blame` passes that
#: text to the filter.
_READABLE = b"conversation "
_VERSION = "version=2"
#: The list before a content. A second list after the content could change the status, and is empty.
_SUCCESS = packed("status=success")
_CAPABILITIES = ("capability=clean", "capability=smudge")


def serve(
    incoming: IO[bytes],
    outgoing: IO[bytes],
    clean_form: Cleaner,
    report_error: Callable[[str], None],
) -> None:
    """Filter documents for git until it closes its end of the stream.

    Args:
        incoming, outgoing: The streams from and to git.
        clean_form: Returns the clean form of a document.
        report_error: Gets the messages of errors, which git's protocol can't transport.

    Raises:
        InvalidInput: The other side is not git, or uses another version of the protocol.
        BrokenPipeError: Git has ended.
    """
    try:
        _shake_hands(incoming, outgoing)
        while True:
            request = dict(text(line).partition("=")[::2] for line in packets(incoming))
            data = b"".join(packets(incoming))
            outgoing.write(_response(request, data, clean_form, report_error))
            outgoing.flush()
    except StreamClosed:
        return


def _shake_hands(incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """Agree on the version of the protocol, and on the directions that are filtered."""
    welcome, *versions = map(text, packets(incoming) or [b""])
    if welcome != "git-filter-client" or _VERSION not in versions:
        raise InvalidInput(
            "this program speaks version 2 of git's filter protocol; only git starts it"
        )
    outgoing.write(packed("git-filter-server", _VERSION))
    outgoing.flush()
    offered = list(map(text, packets(incoming)))
    outgoing.write(packed(*(entry for entry in _CAPABILITIES if entry in offered)))
    outgoing.flush()


def _response(
    request: dict[str, str], data: bytes, clean_form: Cleaner, report_error: Callable[[str], None]
) -> bytes:
    """Return the packets for one request. `clean` is the way into the index, `smudge` the way out
    of it.
    """
    path = request.get("pathname", "")
    command = request.get("command")
    try:
        if command == "clean":
            filtered = clean_form(data, path)
        elif command == "smudge":
            filtered = data
        else:
            raise InvalidInput(f"{path}: git asks for {command!r}, which was not offered")
    except CapsuleError as error:
        report_error(f"{error.message}\n{path}: not filtered")
        return packed("status=error")
    return _SUCCESS + content(filtered) + FLUSH


def cleaner(top: str, report_error: Callable[[str], None]) -> Cleaner:
    """Return the cleaner of the repository at `top`. `report_error` gets a message about each
    document that does not parse.
    """

    def clean_form(data: bytes, path: str) -> bytes:
        kind = kind_of(path)
        try:
            return clean(data, path, kind)
        except InvalidDocument as error:
            if data.startswith(_READABLE):
                return data
            # Git may have read the file during a write.
            complete = _read_complete(os.path.join(top, path), kind)
            if complete is not None and complete != data:
                return clean_form(complete, path)
            report_error(
                f"{error.message}\n{path}: passed unchanged, and must not be committed; repair "
                "it, or run: capsule doctor"
            )
            return data

    return clean_form


def kind_of(path: str) -> str:
    """Return the kind of the document at a path of the repository, by its folder."""
    for folder in path.split("/")[-2:-1]:
        if folder in KINDS:
            return folder
    return CONVERSATION.name


def _read_complete(path: str, kind: str) -> bytes | None:
    """Return the document at a path, read under its mutex, which git does not take. None: no store
    writes it, or another process holds the mutex too long.
    """
    folder, name = os.path.split(path)
    root = os.path.dirname(folder)
    id = name.removesuffix(".json")
    if os.path.basename(folder) != kind or not is_id(id):
        return None
    if not os.path.isfile(os.path.join(root, _SETTINGS)):
        return None
    from capsule.engines.opening import read_between_writes

    return read_between_writes(root, kind, id, _LOCK_WAIT_S)
