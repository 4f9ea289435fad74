"""External edits: versions of a document that the store did not write.

A hand edit, a checkout, a copied file, or the rest of a crash: the file is read whole and validated
before the store continues from it. What must stay true: a file that does not parse is never
overwritten, unless a crash can have torn it so; no acknowledged message disappears without a
report.

Git writes files without asking the store: a checkout of another branch, a pull, a rebase. Such a
version is a decision, even though it lacks messages. An editor that saves an old copy unchanged can
leave the very same bytes, and that is no decision. So a version counts as git's only if HEAD names
it and named another one lately. That one is returned too, so that the caller sees whether git
replaced anything that is in no commit. Nothing here writes to the repository, and git runs no
program and fetches nothing for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.disk.whole_files import Signature
from capsule.engines.files.state import STEP_NS, Durability, StateHeader
from capsule.engines.interface import not_found
from capsule.errors import ConcurrentWrite, GitFailed, InvalidDocument, Refused
from capsule.format import migrations
from capsule.format.json import canonical, codec, layout
from capsule.format.recovery.reconcile import (
    erase_removed_texts,
    head_record,
    logged_splices,
    with_recovered_ids,
)
from capsule.format.validation import decode_checked

if TYPE_CHECKING:
    from collections.abc import Callable

    from capsule.engines.files.document import HeldDocument
    from capsule.engines.files.storage import FileStorage
    from capsule.format.recovery.torn_files import RepairedFile
    from capsule.git_program import Git


_log = logging.getLogger("capsule")

#: An editor that writes in place is mostly done within this time after its last byte; so long it is
#: waited for.
_QUIET_NS = 150_000_000
_POLL_S = 0.02
_PATIENCE_S = 1.0
_FEWER = (
    "was saved without %d messages that it had before; they are too old for the log, so "
    "they count as deleted"
)
_TAKEN_AWAY = "%s: the saved version removes content of the store: %s; it is kept as %s"
_TAKEN_BY_GIT = "%s: git put a version there that lacks later writes: %s; it is kept as %s"
_FROM_OLDER = (
    "%s: was saved from an older version, probably by an editor; merged back what it lacked: %s"
)
_AFTER_A_CUT = (
    "%s: was not flushed before a power cut or the loss of the disk; restored from its log: %s"
)
_AS_COMMITTED = (
    "%s: was reset to the last commit, by git or by an editor; merged back what is in no commit: %s"
)


def reconcile_external_edit(
    held: HeldDocument,
    *,
    repair: Callable[[bytes], RepairedFile | None] | None = None,
    trust: bool = True,
) -> StateHeader:
    """The document as the store knows it, after taking in whatever was done to it from outside.

    Args:
        held: The document, under its mutex.
        repair: Also have a damaged file made whole that no crash of a write left so: by this, or else
            by cutting it back. What the store remembers comes back then; it is for a person to ask
            for, as what an editor was about to save doesn't.
        trust: Whether a file of the signature that the store left is as the store left it. A write
            through a mapping may leave that as it is.

    Raises:
        NotFound: There is none.
        InvalidDocument: It does not parse, or is no capsule, and no crash has left it so.
        Interfered: Another program wrote it meanwhile.

    Cost: nothing when the file is as the store left it; else a read and a parse of the whole, once.
    """
    known = held.unchanged_header()
    if known is not None and trust:
        return known
    deliberate = None
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        got = held.read() or _wait_until_it_is_back(held)
        if got is None:
            raise not_found(held.kind, held.id)
        data, signature = got
        age_ns = time.time_ns() - signature.mtime_ns
        is_patient = time.monotonic() < deadline
        if 0 <= age_ns < STEP_NS and is_patient:
            time.sleep((STEP_NS - age_ns) / 1e9)  # What parses may be half of what is being saved.
            continue
        try:
            document = decode_checked(data, held.path, held.id)
            break
        except InvalidDocument:
            mended = repaired_file(held, data, signature)
            if mended is None and 0 <= age_ns < _QUIET_NS and is_patient:
                time.sleep(_POLL_S)
                continue
            if mended is None and repair is not None:
                mended = repair(data) or repaired_file(held, data, signature, asked=True)
            if mended is None:
                raise
            deliberate = False  # What such a file lacks nobody took out.
            kept = held.repair(data, signature, mended.data)
            _log.warning(
                "%s: %s; the damaged original is kept as %s", held.path, mended.description, kept
            )
    return _reconcile(held, document, data, signature, deliberate)


def _wait_until_it_is_back(held: HeldDocument) -> tuple[bytes, Signature] | None:
    """A document that was there lately, once it is again: vim moves the old version away before it
    writes the new.
    """
    if held.header() is None:
        return None
    deadline = time.monotonic_ns() + _QUIET_NS
    got = None
    while got is None and time.monotonic_ns() < deadline:
        time.sleep(_POLL_S / 10)
        got = held.read()
    return got


def repaired_file(
    held: HeldDocument, data: bytes, signature: Signature, *, asked: bool = False
) -> RepairedFile | None:
    """A file that isn't valid, as it is once mended, and in words what was done; None when it is
    left alone.

    Unasked, it is mended where the log has the very write that tore it, or nobody can be saving it
    any more.

    Args:
        held: The document, under its mutex.
        data: The file.
        signature: Its signature.
        asked: Whether a person asked for it.
    """
    from capsule.format.recovery import torn_files

    written = logged_splices(held.records())
    is_restarted = held.durability is Durability.RESTARTED
    # Whoever saved it before the machine was started is done with it.
    is_left = asked or is_restarted or signature.mtime_ns < held.sys.booted_ns()
    if is_left and held.checkpoint_end >= 0:
        whole = torn_files.truncate_to_checkpoint(
            data, held.checkpoint_end, max((stamp for *_, stamp in written), default="")
        )
        if whole is not None and _parsed_or_none(whole, held) is not None:
            return torn_files.RepairedFile(
                whole, "completed from the log, because a power cut interrupted its writes"
            )
    for n, (at, entries, stamp) in enumerate(written if not is_restarted else ()):
        splice = torn_files.LoggedSplice(
            at, [codec.encode_entry(entry) for entry in entries], stamp
        )
        whole = torn_files.complete_splice(
            data, splice, accept_prefix=is_left or (n == 0 and held.is_torn(signature))
        )
        if whole is not None:
            mended: RepairedFile | None = torn_files.RepairedFile(
                whole, "completed where a write was interrupted"
            )
            break
    else:
        mended = torn_files.repair_torn(data) if is_left else None
    return mended if mended is not None and _parsed_or_none(mended.data, held) is not None else None


def purge_log_texts(storage: FileStorage, kind: str, id: str) -> None:
    """Have the log of a document hold no text of a message, and no title, that the document has no
    more.

    A document that is gone has no log afterwards. What a person deleted stays deleted, and what the
    document has is still protected from a stale save.

    Raises:
        InvalidDocument: The document does not parse; nothing was done.
        StoreBusy, Refused, StorageFailed: The system did not let it.
    """
    with storage.hold(kind, id) as held:
        if held.read() is None:
            held.drop_header_and_log()
            return
        known = reconcile_external_edit(held)
        got = held.read()
        if got is None or got[1] != known.signature:
            raise ConcurrentWrite
        document, _ = migrations.upgrade(decode_checked(got[0], held.path, id), held.path)
        held.rewrite_records(erase_removed_texts(held.records(), document))


def _parsed_or_none(data: bytes, held: HeldDocument) -> dict[str, Any] | None:
    """The capsule in `data`, as it would be taken in; None when it is none."""
    try:
        return migrations.upgrade(decode_checked(data, held.path, held.id), held.path)[0]
    except InvalidDocument:
        return None


def _reconcile(
    held: HeldDocument,
    document: dict[str, Any],
    data: bytes,
    signature: Signature,
    deliberate: bool | None,
) -> StateHeader:
    from capsule.format.recovery.reconcile import reconcile

    known = held.records()
    sure = held.certain_writes
    is_restarted = held.durability is Durability.RESTARTED
    history = with_recovered_ids(document["history"], known)
    is_renamed = history is not document["history"]
    document, changes = migrations.upgrade(document | {"history": history}, held.path)
    document = canonical.in_order(document)
    outcome = reconcile(document, known, deliberate=deliberate, certain_writes=sure)
    is_lacking = outcome.is_changed or outcome.unlogged_count > 0
    is_gits = _was_written_by_git(held, data, known) if is_lacking and deliberate is None else False
    if is_gits:  # A version that git put there is a decision: what it takes away stays away.
        outcome = reconcile(document, known, deliberate=True, certain_writes=sure)
    if outcome.lost_in_words:
        kept = held.quarantine(outcome.lost_values, "git" if is_gits else "overruled")
        _log.warning(
            _TAKEN_BY_GIT if is_gits else _TAKEN_AWAY, held.path, outcome.lost_in_words, kept
        )
    if outcome.unlogged_count:
        _log.warning("%s: %s", held.path, _FEWER % outcome.unlogged_count)
    noted = held.header()
    newest = max(outcome.latest_update, noted.newest_updated_at if noted is not None else "")
    if not outcome.is_changed and not is_renamed:
        is_canonical = not changes and codec.encode(document) == data
        parts = layout.survey(data) if is_canonical else None
        return held.accept_file(signature, parts, outcome.edit_records, newest)
    stamp = timestamps.later_than(newest)
    merged = canonical.in_order(outcome.document | {"updatedAt": stamp})
    written = codec.encode(merged)
    records = [*outcome.edit_records, head_record(stamp, merged, len(merged["history"]))]
    known_now = held.replace(signature, written, layout.survey(written), records)
    if outcome.is_changed:
        held.is_completed = is_restarted and len(known) > (sure or 0)
        words = (
            _AFTER_A_CUT
            if held.is_completed
            else _FROM_OLDER
            if is_gits is False
            else _AS_COMMITTED
        )
        _log.warning(words, held.path, outcome.missing_in_words)
    return known_now


def _was_written_by_git(held: HeldDocument, data: bytes, known: list[list[bytes]]) -> bool | None:
    """Whether a version that lacks something was put there by git, and what it replaced is in a
    commit as a whole.

    Returns:
        None where that can't be told: HEAD has this version, but had no other one that holds all
        that the store remembers. It may be an editor's, saved unchanged; and what is in no commit
        must not go.
    """
    from capsule.format.recovery.reconcile import LOCK_PHRASE, reconcile

    versions = replaced(held.path, data)
    if versions is None:
        return False
    documents = [
        taken for version in versions if (taken := _parsed_or_none(version, held)) is not None
    ]
    outcomes = (reconcile(document, known) for document in documents)
    # No commit has a lock.
    return (
        any(
            not outcome.restored and outcome.reapplied in ([], [LOCK_PHRASE])
            for outcome in outcomes
        )
        or None
    )


#: The caller holds a mutex.
_GIT_TIMEOUT_S = 2.0
#: How many places of HEAD are looked at, and how many different versions in them are read.
_MOVES, _VERSIONS = 50, 8


def replaced(path: str, data: bytes) -> list[bytes] | None:
    """The committed versions of a document that git may have replaced by this one.

    Args:
        path: The document.
        data: What lies there.

    Returns:
        None when `data` is not what the commit has that is checked out. Else the other versions
        that HEAD named lately, by the reflog, the latest first; none when HEAD did not move, as
        after `git checkout -- FILE`.

    Cost: none outside of a repository; else two starts of git, and two seconds at most.
    """
    return _ask_git(path, lambda git, name: _replaced(git, name, data))


def committed_version(path: str) -> bytes | None:
    """The version of a document that the commit has which is checked out; None: there is none. Runs
    git.
    """
    contents = _ask_git(
        path, lambda git, name: _contents(git, [f"HEAD:{name}"], time.monotonic() + _GIT_TIMEOUT_S)
    )
    return contents[0] if contents else None


def _ask_git(path: str, ask: Callable[[Git, str], list[bytes] | None]) -> list[bytes] | None:
    """What `ask` learns from git, by the name that the repository has for a document; None: there
    is no repository.
    """
    place = Path(path).resolve()
    top = next((above for above in place.parents if (above / ".git").exists()), None)
    if top is None:
        return None
    from capsule.git_program import Git  # Needed seldom, and subprocess with it.

    try:
        return ask(Git(str(top)), place.relative_to(top).as_posix())
    except (GitFailed, Refused):
        return None


def _replaced(git: Git, name: str, data: bytes) -> list[bytes] | None:
    until = time.monotonic() + _GIT_TIMEOUT_S
    revisions = ["HEAD", *(f"HEAD@{{{place}}}" for place in range(1, _MOVES))]
    # The exit code is 128 where the reflog is shorter; what comes before the end is printed all the
    # same.
    asked = ("cat-file", "--batch-check=%(objectname) %(objecttype)")
    names = _lines(f"{revision}:{name}" for revision in revisions)
    answer = git.run(*asked, input=names, ok_codes=(0, 128), timeout_s=_GIT_TIMEOUT_S)
    objects = [line.rpartition(" ")[::2] for line in answer.text.split("\n")]
    blobs = list(dict.fromkeys(name for name, kind in objects if kind == "blob"))
    if objects[0][1] != "blob" or blobs[0] not in _names(data):
        return None
    return _contents(git, blobs[1 : 1 + _VERSIONS], until) if len(blobs) > 1 else []


def _names(data: bytes) -> set[str]:
    """What git may call this content: in either format of objects, and before it wrote line ends
    for Windows.
    """
    from hashlib import sha1, sha256

    blobs = [
        b"blob %d\0%b" % (len(content), content) for content in {data, data.replace(b"\r\n", b"\n")}
    ]
    return {
        hashed(blob, usedforsecurity=False).hexdigest()
        for blob in blobs
        for hashed in (sha1, sha256)
    }


def _contents(git: Git, names: list[str], until: float) -> list[bytes]:
    output = git.run(
        "cat-file", "--batch", input=_lines(names), timeout_s=max(until - time.monotonic(), 0.1)
    ).out
    contents = []
    while output:
        header, _, output = output.partition(b"\n")
        size = header.split(b" ")[-1]
        if size.isdigit():  # Else "missing", as in a partial clone.
            contents.append(output[: int(size)])
            output = output[int(size) + 1 :]
    return contents


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
