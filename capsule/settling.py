"""Settling: taking in a version of a document that the store did not write.

A hand edit, a checkout, a copied file, the rest of a crash: whatever lies in a document's place, it is read whole
and validated before the store goes on from it. What must stay true: a file that does not parse is never
overwritten, except when a crash can have torn it so; and no acknowledged message is gone without a word.
"""

from __future__ import annotations

import logging
import time
from typing import Any

import orjson

from capsule import timestamps
from capsule.checkouts import replaced
from capsule.errors import InvalidDocument, NotFound, Problem
from capsule.format import anatomy, canonical, codec, migrations, validation
from capsule.format.reconcile import Outcome, head_record, reconcile, saved_record
from capsule.storage.interface import Held, Interfered, Known, Leftover, Signature, Storage

__all__ = ["decoded", "forget_texts", "is_ours", "settle"]

_log = logging.getLogger("capsule")

#: An editor that writes in place is done within this time; until then a file that doesn't parse is not judged.
_QUIET_NS = 150_000_000
_POLL_S = 0.02
_FEWER = (
    "was saved with %d messages fewer than it had, too old for the store to know whether whoever saved it had read "
    "them; they are taken for deleted"
)
_FROM_OLDER = (
    "%s: was saved from an older version, by an editor most likely; merged back what that version did not have: %s%.0s"
)
_AS_COMMITTED = (
    "%s: was put back as the last commit has it, by git or by an editor; merged back what is in no commit: %s; to have "
    "the committed version, run: capsule restore %s --at HEAD"
)


def decoded(data: bytes, path: str, id: str | None) -> dict[str, Any]:
    """The document in `data`, checked, as its file has it.

    Args:
        data: The file's bytes.
        path: The file, for the errors.
        id: The id that the file's name gives it; None: any.

    Raises:
        InvalidDocument: It is no capsule, or the capsule of another id.
    """
    document = codec.decode(data, path)
    validation.check(document, data, path)
    if id is not None and document["id"] != id:
        line, column = codec.locate(data, ("id",))
        what = f"is {document['id']!r}, but the file's name says {id!r}; rename the file, or correct the id"
        raise InvalidDocument.of([Problem(path, line, column, "id", what)])
    return document


def settle(held: Held, *, mend: bool = False, trust: bool = True) -> Known:
    """The document as the store knows it, after taking in whatever was done to it from outside.

    Args:
        held: The document, under its mutex.
        mend: Whether to cut back also a torn file that no crash of a write left so. What the store remembers comes
            back then; it is for a person to ask for, as what an editor was about to save doesn't.
        trust: Whether a file of the signature that the store left is as the store left it. A write through a mapping
            may leave that as it is.

    Raises:
        NotFound: There is none.
        InvalidDocument: It does not parse, or is no capsule, and no crash has left it so.
        Interfered: Another program wrote it meanwhile.

    Cost: nothing when the file is as the store left it; else a read and a parse of the whole, once.
    """
    known = held.look()
    if known is not None and trust:
        return known
    deliberate = None
    while True:
        got = held.read() or _put_back(held)
        if got is None:
            raise NotFound(f"no conversation {held.id}; list them with: capsule list", id=held.id)
        data, signature = got
        try:
            document = decoded(data, held.path, held.id)
            break
        except InvalidDocument:
            if 0 <= time.time_ns() - signature.mtime_ns < _QUIET_NS:
                time.sleep(_POLL_S)
                continue
            mended = held.repair(data, signature, lambda whole: is_ours(whole, held))
            if mended is None and mend:
                mended = held.repair(data, signature, lambda whole: _taken(whole, held) is not None)
                deliberate = False
            if mended is None:
                raise
            _log.warning("%s: %s", held.path, mended)
    return _take_in(held, document, data, signature, deliberate)


def forget_texts(storage: Storage, kind: str, id: str) -> None:
    """Have what the store remembers of a document hold no text that the document has no more.

    Raises:
        InvalidDocument: The document does not parse; nothing was done.
        StoreBusy, Refused, StorageFailed: The system did not let it.
    """
    with storage.mutex(kind, id) as held:
        if held.read() is not None:
            known = settle(held)
            got = held.read()
            if got is None or got[1] != known.signature:
                raise Interfered
            document = decoded(got[0], held.path, id)
            held.adopt(known.signature, known.anatomy, [head_record(known.stamp, document, len(document["history"]))])
            return
    storage.sweep(kind, Leftover("vanished", id, storage.path(kind, id), ""))


def _put_back(held: Held) -> tuple[bytes, Signature] | None:
    """A document that was there lately, once it is again: vim moves the old version away before it writes the new."""
    if not held.records():
        return None
    deadline = time.monotonic_ns() + _QUIET_NS
    got = None
    while got is None and time.monotonic_ns() < deadline:
        time.sleep(_POLL_S / 10)
        got = held.read()
    return got


def is_ours(mended: bytes, held: Held) -> bool:
    """Whether a mended file is one that the store can have written, so that a crash of a write has torn it.

    A crash takes nothing that was acknowledged. Where something is missing, an editor is at work or died at it, and
    what it wrote is its person's to mend. Only a power cut can take what is remembered, as it may have been noted and
    not yet flushed.
    """
    document = _taken(mended, held)
    if document is None:
        return False
    outcome = reconcile(document, held.records())
    return held.rebooted() or (not outcome.removed and not outcome.short)


def _taken(data: bytes, held: Held) -> dict[str, Any] | None:
    """The capsule in `data`, as it would be taken in; None when it is none."""
    try:
        return migrations.current(decoded(data, held.path, held.id), held.path)[0]
    except InvalidDocument:
        return None


def _take_in(held: Held, document: dict[str, Any], data: bytes, signature: Signature, deliberate: bool | None) -> Known:
    document, changes = migrations.current(document, held.path)
    document = canonical.in_order(document)
    known = held.records()
    outcome = reconcile(document, known, deliberate=deliberate)
    is_gits = _is_gits(held, data, known) if outcome.changed and deliberate is None else False
    if is_gits:
        _respect_git(held, outcome)
        outcome = reconcile(document, known, deliberate=True)
    for what, words in outcome.overruled:
        kept = held.quarantine(orjson.dumps(what, option=orjson.OPT_INDENT_2), "overruled")
        _log.warning("%s: %s; the store's is kept as %s", held.path, words, kept)
    if outcome.forgotten:
        _log.warning("%s: %s", held.path, _FEWER % outcome.forgotten)
    records = outcome.records
    if not outcome.changed:
        records.append(head_record(document["updatedAt"], document, len(document["history"]), by_hand=True))
        is_canonical = not changes and codec.encode(document) == data
        return held.adopt(signature, anatomy.survey(data) if is_canonical else None, records)
    stamp = timestamps.now(document["updatedAt"])
    merged = canonical.in_order(outcome.document | {"updatedAt": stamp})
    written = codec.encode(merged)
    records += [saved_record(document), head_record(stamp, merged, len(merged["history"]))]
    known_now = held.replace(signature, written, anatomy.survey(written), records, keep=False)
    _log.warning(_FROM_OLDER if is_gits is False else _AS_COMMITTED, held.path, _lacking(outcome), held.id)
    return known_now


def _lacking(outcome: Outcome) -> str:
    said = list(outcome.remade)
    if outcome.restored:
        many = len(outcome.restored)
        said.insert(0, f"{many} message{'s' if many > 1 else ''}")
    return ", ".join(said)


def _respect_git(held: Held, outcome: Outcome) -> None:
    """A version that git put there is a decision: what it takes away is kept aside, and stays away."""
    overruled = [what for what, _ in outcome.overruled]
    lost: dict[str, Any] = {"restored": outcome.restored, "remade": outcome.remade, "overruled": overruled}
    if outcome.remade:  # Words alone: what a field held, or a message, is only in the document that would have become.
        lost["document"] = outcome.document
    kept = held.quarantine(orjson.dumps(lost, option=orjson.OPT_INDENT_2), "git")
    _log.warning(
        "%s: git put a version there that lacks what was written since: %s; it is kept as %s",
        held.path,
        _lacking(outcome),
        kept,
    )


def _is_gits(held: Held, data: bytes, known: list[bytes]) -> bool | None:
    """Whether a version that lacks something was put there by git, and what it replaced is in a commit as a whole.

    Returns:
        None where that can't be told: HEAD has this version, but had no other one that holds all that the store
        remembers. It may be an editor's, saved unchanged; and what is in no commit must not go.
    """
    committed = replaced(held.path, data)
    if committed is None:
        return False
    documents = [taken for version in committed if (taken := _taken(version, held)) is not None]
    outcomes = (reconcile(document, known) for document in documents)
    # No commit has a lock.
    return any(not one.restored and set(one.remade) <= {"the lock"} for one in outcomes) or None
