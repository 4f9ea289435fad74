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
from typing import IO

from capsule.errors import CapsuleError, InvalidDocument, InvalidInput
from capsule.format.merge.clean_form import clean
from capsule.format.validation import CONVERSATION, KINDS
from capsule.ids import is_id

FLUSH = b"0000"
#: What one packet carries at most: LARGE_PACKET_DATA_MAX of git.
_MOST = 65516


class StreamClosed(Exception):
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
            raise StreamClosed
        try:
            size = (
                int(header, 16) - 4 if header.isalnum() else -1
            )  # Signs and blanks are digits to Python alone.
        except ValueError:
            size = -1
        if not 0 <= size <= _MOST:
            raise InvalidInput(
                f"{header!r} is not the start of a packet of git's; only git starts this program"
            )
        contents.append(stream.read(size))
        if len(contents[-1]) < size:
            raise StreamClosed


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


#: Gives the clean form of a content, by the path that git has for it; raises `CapsuleError`.
Cleaner = Callable[[bytes, str], bytes]

#: Seconds to wait for a writer whose append git may have read half written. An append takes a
#: thousandth of that.
_PATIENCE_S = 0.25
#: The file that marks a store. The storage layer, which has its name, is not loaded for every file.
_SETTINGS = "capsule.toml"
#: The beginning of what the diff driver makes of a conversation: `git blame` gives that to the
#: filter.
_READABLE = b"conversation "
_VERSION = "version=2"
#: What stands before a content. A second list behind it may change the status; it doesn't.
_SUCCESS = packed("status=success")
_CAPABILITIES = ("capability=clean", "capability=smudge")


def serve(
    incoming: IO[bytes], outgoing: IO[bytes], clean_form: Cleaner, tell: Callable[[str], None]
) -> None:
    """Answer git until it closes its end; `tell` gets the messages of errors, for which git's
    protocol has no place.

    Raises:
        InvalidInput: It isn't git that writes, or it speaks another version.
        BrokenPipeError: Git is gone.
    """
    try:
        _shake_hands(incoming, outgoing)
        while True:
            request = dict(text(line).partition("=")[::2] for line in packets(incoming))
            data = b"".join(packets(incoming))
            outgoing.write(_answer(request, data, clean_form, tell))
            outgoing.flush()
    except StreamClosed:
        return


def _shake_hands(incoming: IO[bytes], outgoing: IO[bytes]) -> None:
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


def _answer(
    request: dict[str, str], data: bytes, clean_form: Cleaner, tell: Callable[[str], None]
) -> bytes:
    path = request.get("pathname", "")
    try:
        if request.get("command") == "clean":
            data = clean_form(data, path)
        elif request.get("command") != "smudge":
            raise InvalidInput(
                f"{path}: git asks for {request.get('command')!r}, which was not offered"
            )
    except CapsuleError as error:
        tell(f"{error.message}\n{path}: not filtered")
        return packed("status=error")
    return _SUCCESS + content(data) + FLUSH


def cleaner(top: str, tell: Callable[[str], None]) -> Cleaner:
    """The cleaner of the repository at `top`; `tell` gets a message about each document that does
    not parse.
    """

    def clean_form(data: bytes, path: str) -> bytes:
        kind = kind_of(path)
        try:
            return clean(data, path, kind)
        except InvalidDocument as error:
            if data.startswith(_READABLE):
                return data
            whole = _between_writes(os.path.join(top, path), kind)
            if whole is not None and whole != data:
                return clean_form(whole, path)
            tell(
                f"{error.message}\n{path}: passed unchanged, and must not be committed; repair "
                "it, or run: capsule doctor"
            )
            return data

    return clean_form


def kind_of(path: str) -> str:
    """The kind of the document that git has at `path`, by its folder."""
    return next((folder for folder in path.split("/")[-2:-1] if folder in KINDS), CONVERSATION.name)


def _between_writes(path: str, kind: str) -> bytes | None:
    """The document at a path, read under its mutex, as git does not; None: no store writes it, or
    the mutex is held.
    """
    folder, name = os.path.split(path)
    root, id = os.path.dirname(folder), name.removesuffix(".json")
    if (
        os.path.basename(folder) != kind
        or not is_id(id)
        or not os.path.isfile(os.path.join(root, _SETTINGS))
    ):
        return None
    from capsule.engines.opening import between_writes

    return between_writes(root, kind, id, _PATIENCE_S)
