"""Torn tails: what a crash in the middle of a splice can leave, told from what a person can type.

After a power cut `truncate_to_checkpoint` gives the file as it was at the last checkpoint of the log, which has
all that was written since. Where the log has a splice that a kill interrupted, `complete_splice` compares its
very bytes, and completes it. Without a log (`.capsule/` was deleted), `repair_torn` knows what such a file
looks like; that is believed only of a file that nobody can still be saving, or when a person asks
for it.

A splice overwrites the closing of the file with new entries and a closing, and `updatedAt` in its
place. A crash keeps any of its sectors (512 bytes) and drops the others: those inside the old file
keep their old bytes, those beyond read as NULs or lie past the end. So a torn file is one whose
history is whole up to some entry, and then

- ends: in the closing, or in a canonical entry, cut anywhere;
- or goes on with NULs, which no JSON text holds and no editor types;
- or shows, within the seven bytes of the closing, old bytes meeting new ones at a multiple of 512;
- or, copied by a reader while an append was on its way, has the old closing, and behind it the rest
  of what took its place, of which nothing is lost;
- or has a timestamp across a multiple of 512, of the right shape and no time: half old and half
  new.

What must stay true: every entry before the tear is kept as it is, what a person's typing error
looks like is never cut away, and the module decides on bytes alone, doing no I/O.
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
#: A line inside a canonical entry: a key and a value, or a bracket, deeper than the entry's braces.
_LINE = re.compile(
    rb' {6,}(?:"(?:[^"\\\x00-\x1f]|\\.)*": '
    rb")?(?:[\[{]|[\]}],?|(?:\[\]|\{\}|true|false|null|-?[0-9][0-9.eE+-]*"
    rb'|"(?:[^"\\\x00-\x1f]|\\.)*"),?)'
)
_CUT_LINE = re.compile(
    rb' *(?:"(?:[^"\\\x00-\x1f]|\\.)*\\?(?:"(?:: ?)?)?)?(?:[\[{]|\[\]|\{\}|[a-z]{1,5}|-?[0-9.eE+-]*'
    rb'|"(?:[^"\\\x00-\x1f]|\\.)*\\?"?)?,?'
)
_ID_LINE = re.compile(rb'\n      "id": "[^"\n]*"')
_STAMP = re.compile(rb'\n  "updatedAt": "(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)",\n')


class LoggedSplice(NamedTuple):
    """A splice as the log has it: where it wrote, the entries as they stand in the file, and their
    `updatedAt`.
    """

    at: int
    entries: list[bytes]
    stamp: str


class RepairedFile(NamedTuple):
    """A file made whole: its bytes, and in words what was done."""

    data: bytes
    what: str


def truncate_to_checkpoint(data: bytes, at: int, stamp: str) -> bytes | None:
    """The file as its first bytes show it, when its entries ended there; None if these are no
    capsule up to an entry.

    Args:
        data: A file that does not parse, or is not valid.
        at: The byte at which its entries ended when it was last flushed.
        stamp: An `updatedAt` for it, should its own be torn.
    """
    history = _HISTORY.search(data)
    if history is None or at < history.end() or len(data) < at:
        return None
    base = data[:at] + (b"]\n}\n" if at == history.end() else _CLOSING)
    match = _STAMP.search(base, 0, history.start())
    if match is not None and stamp and not timestamps.is_canonical(match[1].decode()):
        base = base[: match.start(1)] + stamp.encode() + base[match.end(1) :]
    return base if _parses(base) else None


def complete_splice(data: bytes, splice: LoggedSplice, *, cut: bool) -> bytes | None:
    """The file with a splice completed; None unless `data` shows a part of that very splice.

    What stands behind the last entry before it is then made of sectors of what was there and of
    what was written. A mere beginning of what was written is also what a program leaves that saves
    the file and isn't done yet.

    Args:
        data: A file that does not parse, or is not valid.
        splice: What was written, and where; in a copy of the file it may lie elsewhere.
        cut: Whether it may be such a beginning.

    Cost: one parse of the history.
    """
    history = _HISTORY.search(data)
    if history is None:
        return None
    head, stamp = data[: history.end()], splice.stamp.encode()
    match = _STAMP.search(head)
    if match is None:
        return None
    is_torn = not timestamps.is_canonical(match[1].decode())
    if is_torn:
        met = -match.start(1) % _SECTOR
        if not 0 < met < len(stamp) or (
            stamp[:met] != match[1][:met] and stamp[met:] != match[1][met:]
        ):
            return None
    head = head[: match.start(1)] + stamp + head[match.end(1) :]
    if not _head_parses(head[: history.start()]):
        return None
    ids = [match[0] for entry in splice.entries if (match := _ID_LINE.search(entry))]
    ends = _ends(data, history.end())
    for base in ends[: -len(splice.entries) - 2 : -1]:
        is_first = base == history.end()
        old, _ = _around(first=is_first)
        block = (b"\n" if is_first else b",\n") + b",\n".join(splice.entries) + _CLOSING
        rest = data[base:]
        if (rest == old and not is_torn) or any(line in data[history.end() : base] for line in ids):
            continue  # Nothing of the splice is missing here.
        if not _is_mixed_of(rest, old, block, splice.at):
            continue
        if is_torn or not block.startswith(rest) or cut or len(rest) == len(old):
            return head + data[history.end() : base] + block
    return None


def _is_mixed_of(rest: bytes, old: bytes, new: bytes, at: int) -> bool:
    """Whether each sector of `rest`, which began at byte `at` of a file, is as it was or as it was
    written; it may end anywhere, and what was written past the old end may be missing or NULs."""
    borders = {0, min(len(old), len(rest)), len(rest), *range(-at % _SECTOR, len(rest), _SECTOR)}
    old = old.ljust(len(new), b"\0")
    places = sorted(borders)
    pairs = pairwise(places)
    return len(rest) <= len(new) and all(rest[a:b] in (old[a:b], new[a:b]) for a, b in pairs)


def repair_torn(data: bytes) -> RepairedFile | None:
    """The file made whole, when a crash can have left `data`; None when it can't.

    Args:
        data: A file that does not parse, or is not valid.

    Cost: one parse of the history.
    """
    stamped = _mend_stamp(data)
    cut = _mend_tail(stamped or data)
    if cut is not None:
        return cut
    if stamped is None or not _parses(stamped):
        return None
    return RepairedFile(stamped, "a timestamp that a crash left half written was set again")


def _mend_tail(data: bytes) -> RepairedFile | None:
    history = _HISTORY.search(data)
    if history is None or not _head_parses(data[: history.start()]):
        return None
    ends = _ends(data, history.end())
    end, count = ends[-1], len(ends) - 1
    rest = data[end:]
    closing, opening = _around(first=not count)
    joined = data[:end] + opening[: len(closing)] + rest[len(closing) :]
    if rest.startswith(closing) and joined.startswith(opening, end):
        whole = _mend_tail(joined)
        if whole is not None or _parses(joined):
            return RepairedFile(
                whole.data if whole else joined,
                "joined where an append came between two reads of a copy",
            )
    if rest in (_CLOSING, _CLOSING_EMPTY) or not _torn(rest, end, first=count == 0):
        return None
    lost = len(data.rstrip(b"\0")) - end
    return RepairedFile(
        data[:end] + closing,
        f"cut back to its last complete message ({count} kept, {max(lost, 0)} bytes cut)",
    )


def _head_parses(head: bytes) -> bool:
    return head.endswith(b",") and _parses(head[:-1] + b"\n}")


def _parses(data: bytes) -> bool:
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def _around(*, first: bool) -> tuple[bytes, bytes]:
    """What closes a history behind an entry, and what opens the next one there; `first`: behind the
    bracket.
    """
    return (_CLOSING_EMPTY, b"\n    {\n") if first else (_CLOSING, b",\n    {\n")


def _ends(data: bytes, start: int) -> list[int]:
    """The byte after the bracket, and where each complete entry behind it ends."""
    ends = [start]
    end = start
    opening = b"\n    {\n"
    while data.startswith(opening, end):
        close = data.find(b"\n    }", end + len(opening) - 1) + len(b"\n    }")
        if close < len(b"\n    }") or not _parses(data[end:close].removeprefix(b",")):
            break
        end = close
        ends.append(end)
        opening = b",\n    {\n"
    return ends


def _torn(rest: bytes, offset: int, *, first: bool) -> bool:
    """Whether what follows the last complete entry, at byte `offset`, is what a crash leaves."""
    closing, opening = _around(first=first)
    if closing.startswith(rest) and rest != closing[:-1]:
        return True
    if rest.startswith(closing):
        # The old closing, and then what was written past the old end of the file.
        after = offset + len(closing)
        return rest[len(closing) : len(closing) + 1] == b"\0" or after % _SECTOR == 0
    written, nul, _ = rest.partition(b"\0")
    # NULs begin where a sector does, or where the file ended before; anywhere else a person put
    # them there.
    if (
        nul
        and (offset + len(written)) % _SECTOR == 0
        and (closing.startswith(written) or _begins_entry(written, opening))
    ):
        return True
    if (
        nul
        and len(written) == len(closing)
        and _is_mixed_of(written, closing, opening[: len(closing)], offset)
    ):
        return True
    if not nul and _begins_entry(rest, opening):
        return True
    # Old and new meet at a sector's border inside the closing.
    border = -offset % _SECTOR
    if 0 < border < len(closing):
        met, beyond = rest[:border], rest[border:]
        if met == closing[:border]:
            return True
        return opening[:border] == met and beyond in (closing[border:], b"")
    return False


def _begins_entry(rest: bytes, opening: bytes) -> bool:
    """Whether `rest` is a canonical entry cut anywhere, its opening included."""
    if opening.startswith(rest):
        return True
    if not rest.startswith(opening):
        return False
    *lines, cut = rest[len(opening) :].split(b"\n")
    if not all(_LINE.fullmatch(line) for line in lines):
        return False
    return _CUT_LINE.fullmatch(cut) is not None or b"    },".startswith(cut)


def _mend_stamp(data: bytes) -> bytes | None:
    """`data` with an `updatedAt` that is not a time set anew; None when it is a time."""
    match = _STAMP.search(data, 0, data.find(b'\n  "context": ') + 1)
    if match is None or match.start(1) // _SECTOR == (match.end(1) - 1) // _SECTOR:
        return None  # A single sector is old or new, never both: a person typed this.
    if timestamps.is_canonical(match[1].decode()):
        return None
    latest = max(_times(data), default=b"1970-01-01T00:00:00.000Z")
    return data[: match.start(1)] + latest + data[match.end(1) :]


def _times(data: bytes) -> list[bytes]:
    """The times of the last few messages and of the creation, as far as they are canonical."""
    block, _ = layout.last_entries(data, 3)
    stamps = re.findall(rb'\n      "timestamp": "([^"\n]+)"', block) + re.findall(
        rb'\n  "createdAt": "([^"\n]+)"', data[: data.find(b'\n  "context": ') + 1]
    )
    return [time for time in stamps if timestamps.is_canonical(time.decode(errors="replace"))]
