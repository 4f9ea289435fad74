"""Settling: taking in a version of a document that the store did not write.

A hand edit, a checkout, a copied file, the rest of a crash: whatever lies in a document's place, it is read whole
and validated before the store goes on from it. What must stay true: a file that does not parse is never
overwritten, except when a crash can have torn it so; and no acknowledged message is gone without a word.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import orjson

from capsule import timestamps
from capsule.errors import InvalidDocument, NotFound, Problem
from capsule.format import anatomy, canonical, codec, migrations, validation
from capsule.format.reconcile import Outcome, append_record, head_record, reconcile
from capsule.storage.interface import Held, Known, Signature

__all__ = ["decoded", "settle"]

_log = logging.getLogger("capsule")

#: An editor that writes in place is done within this time; until then a file that doesn't parse is not judged.
_QUIET_NS = 150_000_000
_POLL_S = 0.02
_GIT_TIMEOUT_S = 10


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


def settle(held: Held) -> Known:
    """The document as the store knows it, after taking in whatever was done to it from outside.

    Args:
        held: The document, under its mutex.

    Raises:
        NotFound: There is none.
        InvalidDocument: It does not parse, or is no capsule, and no crash has left it so.
        Interfered: Another program wrote it meanwhile.

    Cost: nothing when the file is as the store left it; else a read and a parse of the whole, once.
    """
    known = held.look()
    if known is not None:
        return known
    while True:
        got = held.read()
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
            mended = held.repair(data, signature, lambda whole: _is_capsule(whole, held))
            if mended is None:
                raise
            _log.warning("%s: %s", held.path, mended)
    return _take_in(held, document, data, signature)


def _is_capsule(data: bytes, held: Held) -> bool:
    try:
        decoded(data, held.path, held.id)
    except InvalidDocument:
        return False
    return True


def _take_in(held: Held, document: dict[str, Any], data: bytes, signature: Signature) -> Known:
    document, changes = migrations.current(document, held.path)
    document = canonical.in_order(document)
    outcome = reconcile(document, held.records())
    if outcome.changed and _is_in_git(held.path, data):
        _respect_git(held, outcome)
        outcome = Outcome(document)
    for what, words in outcome.overruled:
        kept = held.quarantine(orjson.dumps(what, option=orjson.OPT_INDENT_2), "overruled")
        _log.warning("%s: %s; the store's is kept as %s", held.path, words, kept)
    records = [*outcome.records, head_record(document["updatedAt"], outcome.document)]
    if not outcome.changed:
        is_canonical = not changes and codec.encode(document) == data
        return held.adopt(signature, anatomy.survey(data) if is_canonical else None, records)
    stamp = timestamps.now(document["updatedAt"])
    merged = canonical.in_order(outcome.document | {"updatedAt": stamp})
    written = codec.encode(merged)
    records += [append_record(stamp, outcome.restored), head_record(stamp, merged)]
    _log.warning("%s: %s", held.path, _words(outcome))
    return held.replace(signature, written, anatomy.survey(written), records, keep=False)


def _words(outcome: Outcome) -> str:
    said = list(outcome.remade)
    if outcome.restored:
        many = len(outcome.restored)
        said.insert(0, f"{many} message{'s' if many > 1 else ''}")
    return (
        "was saved from an older version, by an editor most likely; merged back what that version did not have: "
        + ", ".join(said)
    )


def _respect_git(held: Held, outcome: Outcome) -> None:
    """A version that git put there is a decision: what it takes away is kept aside, and stays away."""
    lost = {"restored": outcome.restored, "remade": outcome.remade}
    kept = held.quarantine(orjson.dumps(lost, option=orjson.OPT_INDENT_2), "git")
    _log.warning(
        "%s: git put a version there that lacks %d messages written since; they are kept as %s",
        held.path,
        len(outcome.restored),
        kept,
    )


def _is_in_git(path: str, data: bytes) -> bool:
    """Whether the repository around `path`, if there is one, already has this content as a blob."""
    directory = Path(path).parent
    if not any((above / ".git").exists() for above in (directory, *directory.parents)):
        return False
    import subprocess

    git = ["git", "-C", str(directory)]
    try:
        named = subprocess.run(
            [*git, "hash-object", "--stdin", "--path", Path(path).name],
            input=data,
            capture_output=True,
            timeout=_GIT_TIMEOUT_S,
            check=True,
        )
        blob = named.stdout.decode("ascii").strip()
        there = subprocess.run([*git, "cat-file", "-e", blob], capture_output=True, timeout=_GIT_TIMEOUT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return False
    return there.returncode == 0
