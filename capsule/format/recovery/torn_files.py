"""Repair torn files: what a crash in the middle of a splice leaves behind.

A splice appends messages: it overwrites the closing of the file with new entries and a new closing,
and overwrites `updatedAt`. A crash keeps any of its sectors (512 bytes) and drops the others. A
dropped sector has its old bytes inside the old file, and NULs or nothing past its end. So the
history of a torn file is whole up to some entry, and then one of these is true:

- It ends in the closing, or anywhere in a canonical entry.
- It goes on with NULs, which JSON cannot hold and no editor types.
- Within the seven bytes of the closing, old bytes meet new ones at a multiple of 512.
- It has the old closing and then the rest of the new bytes. A reader that copied the file during an
  append sees this, and nothing of it is lost.
- `updatedAt` spans a multiple of 512, and is half old and half new.

Three ways lead back. After a power cut `truncate_to_checkpoint` returns the file as of the last
checkpoint of the log, and the log has what was written since. If the log has the splice,
`complete_splice` compares its very bytes and completes it. Without a log, `repair_torn` believes the
forms above. The caller uses it only if no program can still be saving the file, or a person asks.

What must stay true: every entry before the tear stays unchanged. Something that looks like a typing
error of a person is never cut away. The module decides by bytes alone, and does no I/O.
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import orjson

from capsule import timestamps
from capsule.format.json import layout

_SECTOR = 512
_CLOSING, _CLOSING_EMPTY = b"\n  ]\n}\n", b"]\n}\n"
_HISTORY = re.compile(rb'\n  "history": \[')
_ENTRY_OPENING, _ENTRY_CLOSING = b"\n    {\n", b"\n    }"
#: A line inside a canonical entry: a key and a value, or a bracket, deeper than the entry's braces.
_LINE = re.compile(
    rb' {6,}(?:"(?:[^"\\\x00-\x1f]|\\.)*": '
    rb")?(?:[\[{]|[\]}],?|(?:\[\]|\{\}|true|false|null|-?[0-9][0-9.eE+-]*"
    rb'|"(?:[^"\\\x00-\x1f]|\\.)*"),?)'
)
#: The beginning of such a line.
_CUT_LINE = re.compile(
    rb' *(?:"(?:[^"\\\x00-\x1f]|\\.)*\\?(?:"(?:: ?)?)?)?(?:[\[{]|\[\]|\{\}|[a-z]{1,5}|-?[0-9.eE+-]*'
    rb'|"(?:[^"\\\x00-\x1f]|\\.)*\\?"?)?,?'
)
_ID_LINE = re.compile(rb'\n      "id": "[^"\n]*"')
_UPDATED_AT = re.compile(rb'\n  "updatedAt": "(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)",\n')


class LoggedSplice(NamedTuple):
    """A splice from the log.

    Attributes:
        offset: The byte of the file where it was written.
        entries: The messages as they are in the file.
        updated_at: The `updatedAt` that it wrote.
    """

    offset: int
    entries: list[bytes]
    updated_at: str


class RepairedFile(NamedTuple):
    """The bytes of a repaired file, and a description of the repair for a person."""

    data: bytes
    description: str


# --- With a log ---


def truncate_to_checkpoint(data: bytes, offset: int, updated_at: str) -> bytes | None:
    """Return the file with the entries up to a checkpoint, and a closing.

    Args:
        data: A file that does not parse, or is not valid.
        offset: The byte where its entries ended at the last flush.
        updated_at: An `updatedAt` for the file, if its own is torn.

    Returns:
        None if the first `offset` bytes are no capsule up to an entry.
    """
    history = _HISTORY.search(data)
    if history is None or offset < history.end() or len(data) < offset:
        return None
    closing = _CLOSING_EMPTY if offset == history.end() else _CLOSING
    result = data[:offset] + closing
    match = _UPDATED_AT.search(result, 0, history.start())
    if match is not None and updated_at and not _is_time(match[1]):
        result = result[: match.start(1)] + updated_at.encode() + result[match.end(1) :]
    return result if _parses(result) else None


def complete_splice(data: bytes, splice: LoggedSplice, *, accept_prefix: bool) -> bytes | None:
    """Return the file with a splice completed. None: `data` does not show a part of that splice.

    Behind the last older entry, each 512-byte sector must have its old or its new bytes. A mere
    prefix of the new bytes can also come from a program that is still saving the file.

    Args:
        data: A file that does not parse, or is not valid.
        splice: The splice. In a copy of the file it may be at another offset.
        accept_prefix: Whether a mere prefix counts.

    Cost: one parse of the history.
    """
    history = _HISTORY.search(data)
    if history is None:
        return None
    head = data[: history.end()]
    match = _UPDATED_AT.search(head)
    if match is None:
        return None
    new_head = _head_with_time(head, match, splice.updated_at.encode())
    if new_head is None or not _head_parses(new_head[: history.start()]):
        return None
    is_time_torn = not _is_time(match[1])
    ends = _entry_ends(data, history.end())
    # The old entries end where the splice begins. Some of its entries may be complete already.
    for base_end in ends[: -len(splice.entries) - 2 : -1]:
        old_entries = data[history.end() : base_end]
        if _has_entry_of(splice, old_entries):
            continue
        old_closing, _ = _delimiters(first=not old_entries)
        separator = b",\n" if old_entries else b"\n"
        new_tail = separator + b",\n".join(splice.entries) + _CLOSING
        tail = data[base_end:]
        if tail == old_closing and not is_time_torn:
            continue  # Nothing of the splice was written.
        if not _is_mixed_of(tail, old_closing, new_tail, splice.offset):
            continue
        is_mere_prefix = new_tail.startswith(tail) and len(tail) != len(old_closing)
        if is_time_torn or not is_mere_prefix or accept_prefix:
            return new_head + old_entries + new_tail
    return None


def _head_with_time(head: bytes, match: re.Match[bytes], new_time: bytes) -> bytes | None:
    """Return a head with another `updatedAt`. None: its own is torn, and not by that one."""
    if not _is_time(match[1]) and not _is_mixed_time(match, new_time):
        return None
    return head[: match.start(1)] + new_time + head[match.end(1) :]


def _is_mixed_time(match: re.Match[bytes], new_time: bytes) -> bool:
    """Return whether a torn `updatedAt` has a part of the new time on one side of a sector border."""
    boundary = -match.start(1) % _SECTOR
    if not 0 < boundary < len(new_time):
        return False
    torn = match[1]
    return new_time[:boundary] == torn[:boundary] or new_time[boundary:] == torn[boundary:]


def _has_entry_of(splice: LoggedSplice, entries: bytes) -> bool:
    """Return whether the bytes of a history have a message with an id of the splice."""
    for entry in splice.entries:
        id_line = _ID_LINE.search(entry)
        if id_line is not None and id_line[0] in entries:
            return True
    return False


def _is_mixed_of(data: bytes, old: bytes, new: bytes, offset: int) -> bool:
    """Return whether each sector of `data` has its old or its new bytes.

    `data` began at byte `offset` of a file. It may end anywhere. Past the old end of the file new
    bytes may be missing or NULs.
    """
    if len(data) > len(new):
        return False
    borders = {
        0,
        min(len(old), len(data)),
        len(data),
        *range(-offset % _SECTOR, len(data), _SECTOR),
    }
    padded_old = old.ljust(len(new), b"\0")
    return all(
        data[start:end] in (padded_old[start:end], new[start:end])
        for start, end in pairwise(sorted(borders))
    )


# --- Without a log ---


def repair_torn(data: bytes) -> RepairedFile | None:
    """Return the repaired file. None: no crash of a splice leaves `data`.

    Args:
        data: A file that does not parse, or is not valid.

    Cost: one parse of the history.
    """
    with_time = _repair_timestamp(data)
    repaired = _repair_tail(data if with_time is None else with_time)
    if repaired is not None:
        return repaired
    if with_time is None or not _parses(with_time):
        return None
    return RepairedFile(with_time, "a timestamp that a crash left half written was set again")


def _repair_tail(data: bytes) -> RepairedFile | None:
    """Return the file joined or cut behind its last complete entry. None: its tail is not torn."""
    history = _HISTORY.search(data)
    if history is None or not _head_parses(data[: history.start()]):
        return None
    ends = _entry_ends(data, history.end())
    end = ends[-1]
    count = len(ends) - 1
    tail = data[end:]
    closing, opening = _delimiters(first=count == 0)
    if tail.startswith(closing):
        joined = _join_behind_closing(data, end, closing, opening)
        if joined is not None:
            return joined
    if tail in (_CLOSING, _CLOSING_EMPTY) or not _is_torn_tail(tail, end, first=count == 0):
        return None
    lost = max(len(data.rstrip(b"\0")) - end, 0)
    return RepairedFile(
        data[:end] + closing,
        f"cut back to its last complete message ({count} kept, {lost} bytes cut)",
    )


def _join_behind_closing(
    data: bytes, end: int, closing: bytes, opening: bytes
) -> RepairedFile | None:
    """Replace the old closing by the opening of the entry that goes on behind it.

    A copy has these bytes if an append came between two reads of it. None: it does not go on so.
    """
    joined = data[:end] + opening[: len(closing)] + data[end + len(closing) :]
    if not joined.startswith(opening, end):
        return None
    repaired = _repair_tail(joined)
    if repaired is None and not _parses(joined):
        return None
    result = joined if repaired is None else repaired.data
    return RepairedFile(result, "joined where an append came between two reads of a copy")


def _is_torn_tail(tail: bytes, offset: int, *, first: bool) -> bool:
    """Return whether a crash leaves these bytes behind the last complete entry.

    Args:
        tail: The bytes.
        offset: The byte of the file where they begin.
        first: Whether there is no entry before them.
    """
    closing, opening = _delimiters(first=first)
    if closing.startswith(tail) and tail != closing[:-1]:
        return True
    if tail.startswith(closing):
        # The old closing, and then the bytes that were written past the old end of the file.
        beyond = offset + len(closing)
        return tail[len(closing) : len(closing) + 1] == b"\0" or beyond % _SECTOR == 0
    bytes_before_nul, nul, _ = tail.partition(b"\0")
    if nul and _are_nuls_of_crash(bytes_before_nul, offset, closing, opening):
        return True
    if not nul and _begins_entry(tail, opening):
        return True
    return _meets_in_closing(tail, offset, closing, opening)


def _are_nuls_of_crash(
    bytes_before_nul: bytes, offset: int, closing: bytes, opening: bytes
) -> bool:
    """Return whether NULs behind `bytes_before_nul` begin at a sector border or at the old end of the file.

    Anywhere else a person put them there.
    """
    is_at_border = (offset + len(bytes_before_nul)) % _SECTOR == 0
    if is_at_border and (
        closing.startswith(bytes_before_nul) or _begins_entry(bytes_before_nul, opening)
    ):
        return True
    is_at_old_end = len(bytes_before_nul) == len(closing)
    return is_at_old_end and _is_mixed_of(
        bytes_before_nul, closing, opening[: len(closing)], offset
    )


def _meets_in_closing(tail: bytes, offset: int, closing: bytes, opening: bytes) -> bool:
    """Return whether old and new bytes meet at a sector border inside the closing."""
    border = -offset % _SECTOR
    if not 0 < border < len(closing):
        return False
    if tail[:border] == closing[:border]:
        return True
    return tail[:border] == opening[:border] and tail[border:] in (closing[border:], b"")


def _begins_entry(data: bytes, opening: bytes) -> bool:
    """Return whether `data` is a canonical entry that is cut anywhere, also in its opening."""
    if opening.startswith(data):
        return True
    if not data.startswith(opening):
        return False
    *lines, cut_line = data[len(opening) :].split(b"\n")
    if not all(_LINE.fullmatch(line) for line in lines):
        return False
    return _CUT_LINE.fullmatch(cut_line) is not None or b"    },".startswith(cut_line)


def _repair_timestamp(data: bytes) -> bytes | None:
    """Return the file with another `updatedAt`. None: its own is a time, or a person typed it."""
    head_end = data.find(b'\n  "context": ') + 1
    match = _UPDATED_AT.search(data, 0, head_end)
    if match is None or _is_time(match[1]):
        return None
    if match.start(1) // _SECTOR == (match.end(1) - 1) // _SECTOR:
        return None  # A single sector is old or new, never both.
    latest = max(_times_in(data, head_end), default=b"1970-01-01T00:00:00.000Z")
    return data[: match.start(1)] + latest + data[match.end(1) :]


def _times_in(data: bytes, head_end: int) -> list[bytes]:
    """Return the canonical times of the last three messages and of the creation."""
    entries, _ = layout.last_entries(data, 3)
    times = re.findall(rb'\n      "timestamp": "([^"\n]+)"', entries)
    times += re.findall(rb'\n  "createdAt": "([^"\n]+)"', data[:head_end])
    return [time for time in times if _is_time(time)]


# --- The parts of a file ---


def _is_time(text: bytes) -> bool:
    return timestamps.is_canonical(text.decode(errors="replace"))


def _head_parses(head: bytes) -> bool:
    """Return whether the bytes before the line of `history` are a JSON object without its end."""
    return head.endswith(b",") and _parses(head[:-1] + b"\n}")


def _parses(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def _delimiters(*, first: bool) -> tuple[bytes, bytes]:
    """Return the closing of the file behind an entry, and the opening of the next entry there.

    `first`: behind the bracket of `history` instead, where there is no entry yet.
    """
    if first:
        return _CLOSING_EMPTY, _ENTRY_OPENING
    return _CLOSING, b"," + _ENTRY_OPENING


def _entry_ends(data: bytes, start: int) -> list[int]:
    """Return `start`, the byte behind the bracket, and the end of each complete entry behind it."""
    ends = [start]
    end = start
    opening = _ENTRY_OPENING
    while data.startswith(opening, end):
        brace = data.find(_ENTRY_CLOSING, end + len(opening) - 1)
        if brace < 0:
            break
        entry_end = brace + len(_ENTRY_CLOSING)
        if not _parses(data[end:entry_end].removeprefix(b",")):
            break
        end = entry_end
        ends.append(end)
        opening = b"," + _ENTRY_OPENING
    return ends
