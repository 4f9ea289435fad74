"""External edits: versions of a document that the store did not write.

A hand edit, a checkout, a copied file, or a file that a crash tore: its signature differs from the
state header. Under the mutex, `reconcile_external_edit` reads the whole file, waits while somebody
may still be saving it, repairs it if a crash tore it, and compares it with the log. The result is
the version itself, or the version merged with what its author had not seen, written as a new file.
The `document` module then continues from its state header.

What must stay true: a file that does not parse is never overwritten, unless a crash can have torn
it so. No acknowledged message disappears without a report.

Git writes files without asking the store: a checkout of another branch, a pull, a rebase. Such a
version is a decision, even if it lacks messages. An editor that saves an old copy unchanged leaves
the same bytes, and that is no decision. So a version counts as git's only if HEAD has it, and
recently had another version that has everything the log knows. Nothing here writes to the
repository, and git runs no program and fetches nothing for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.disk.whole_files import FileContent, Signature
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
    from capsule.engines.files.document import HeldDocument
    from capsule.engines.files.storage import FileStorage
    from capsule.format.recovery.torn_files import RepairedFile
    from capsule.git_program import Git


_log = logging.getLogger("capsule")

#: An editor that writes in place is mostly done within this time after its last byte.
_QUIET_NS = 150_000_000
#: How often to look for such an editor's end, and for how long, in seconds.
_POLL_S = 0.02
_PATIENCE_S = 1.0
#: How often to look for a file that an editor moved away, in seconds.
_RETURN_POLL_S = _POLL_S / 10
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


class _GitVerdict(Enum):
    """Whether git wrote a version that lacks something."""

    #: HEAD has another version: an editor wrote this one.
    NO = "no"
    #: HEAD has this version, but had no other one recently that has everything the log knows. An
    #: editor may have saved it. What is in no commit must not be removed.
    UNCERTAIN = "uncertain"
    #: HEAD has this version, and a commit has everything that it replaced.
    YES = "yes"


def reconcile_external_edit(
    held_document: HeldDocument,
    *,
    repair: Callable[[bytes], RepairedFile | None] | None = None,
    trust: bool = True,
) -> StateHeader:
    """Accept whatever other programs did to a document, and return its new state header.

    Args:
        held_document: The document, under its mutex.
        repair: Repairs a damaged file that no crash of a write left. If it returns None, the file
            is cut back instead. What only the log has comes back then, so a person has to ask for
            it: an editor could still be saving the file.
        trust: Whether to trust a signature that is the same as in the header. A write through a
            memory mapping may leave it unchanged.

    Raises:
        NotFound: The document does not exist.
        InvalidDocument: It does not parse or is no capsule, and no crash can have left it so.
        ConcurrentWrite: Another program wrote it meanwhile.

    Cost: nothing if the file is unchanged. Otherwise it is read and parsed once.
    """
    header = held_document.unchanged_header()
    if header is not None and trust:
        return header
    is_deliberate = None
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        content = held_document.read() or _wait_until_it_is_back(held_document)
        if content is None:
            raise not_found(held_document.kind, held_document.id)
        data, signature = content
        age_ns = time.time_ns() - signature.mtime_ns
        is_patient = time.monotonic() < deadline
        if 0 <= age_ns < STEP_NS and is_patient:
            # Even a version that parses may be half of what somebody is saving.
            time.sleep((STEP_NS - age_ns) / 1e9)
            continue
        try:
            document = decode_checked(data, held_document.path, held_document.id)
            break
        except InvalidDocument:
            repaired = repaired_file(held_document, data, signature)
            if repaired is None and 0 <= age_ns < _QUIET_NS and is_patient:
                time.sleep(_POLL_S)
                continue
            if repaired is None and repair is not None:
                repaired = repair(data) or repaired_file(
                    held_document, data, signature, is_requested=True
                )
            if repaired is None:
                raise
            is_deliberate = False  # Nobody removed what a damaged file lacks.
            quarantine_path = held_document.repair(data, signature, repaired.data)
            _log.warning(
                "%s: %s; the damaged original is kept as %s",
                held_document.path,
                repaired.description,
                quarantine_path,
            )
    return _reconcile(held_document, document, data, signature, is_deliberate)


def _wait_until_it_is_back(held_document: HeldDocument) -> FileContent | None:
    """Wait a moment for a document that vanished, and read it: vim moves the old version away
    before it writes the new one.
    """
    if held_document.header() is None:
        return None
    deadline = time.monotonic_ns() + _QUIET_NS
    content = None
    while content is None and time.monotonic_ns() < deadline:
        time.sleep(_RETURN_POLL_S)
        content = held_document.read()
    return content


# -- Repairing -------------------------------------------------------------------------------------


def repaired_file(
    held_document: HeldDocument,
    data: bytes,
    signature: Signature,
    *,
    is_requested: bool = False,
) -> RepairedFile | None:
    """Return an invalid file as it is after a repair, with a description of the repair.

    None: the file must be left alone. Without a request, a file is repaired only if the log has the
    very write that tore it, or if nobody can still be saving it.

    Args:
        held_document: The document, under its mutex.
        data, signature: The file.
        is_requested: Whether a person asked for it.
    """
    from capsule.format.recovery import torn_files

    splices_in_log = logged_splices(held_document.records())
    is_restarted = held_document.durability is Durability.RESTARTED
    is_older_than_boot = signature.mtime_ns < held_document.sys.booted_ns()
    is_abandoned = is_requested or is_restarted or is_older_than_boot
    checkpoint_end = held_document.log_evidence.checkpoint_end
    if is_abandoned and checkpoint_end >= 0:
        newest = max((updated_at for *_, updated_at in splices_in_log), default="")
        completed = torn_files.truncate_to_checkpoint(data, checkpoint_end, newest)
        if completed is not None and _parsed_or_none(completed, held_document) is not None:
            return torn_files.RepairedFile(
                completed, "completed from the log, because a power cut interrupted its writes"
            )
    repaired: RepairedFile | None = None
    if not is_restarted:
        repaired = _redo_logged_splice(held_document, splices_in_log, data, signature, is_abandoned)
    if repaired is None and is_abandoned:
        repaired = torn_files.repair_torn(data)
    if repaired is None or _parsed_or_none(repaired.data, held_document) is None:
        return None
    return repaired


def _redo_logged_splice(
    held_document: HeldDocument,
    splices_in_log: list[tuple[int, list[dict[str, Any]], str]],
    data: bytes,
    signature: Signature,
    is_abandoned: bool,
) -> RepairedFile | None:
    """Complete a torn file with the splice in the log that tore it."""
    from capsule.format.recovery import torn_files

    for number, (offset, entries, updated_at) in enumerate(splices_in_log):
        encoded = [codec.encode_entry(entry) for entry in entries]
        logged_splice = torn_files.LoggedSplice(offset, encoded, updated_at)
        may_cut = is_abandoned or (number == 0 and held_document.is_torn(signature))
        completed = torn_files.complete_splice(data, logged_splice, accept_prefix=may_cut)
        if completed is not None:
            return torn_files.RepairedFile(completed, "completed where a write was interrupted")
    return None


def _parsed_or_none(data: bytes, held_document: HeldDocument) -> dict[str, Any] | None:
    """Parse a capsule and migrate it to the current version. None: it is not valid."""
    try:
        document = decode_checked(data, held_document.path, held_document.id)
        return migrations.upgrade(document, held_document.path)[0]
    except InvalidDocument:
        return None


# -- Comparing with the log ------------------------------------------------------------------------


def _reconcile(
    held_document: HeldDocument,
    document: dict[str, Any],
    data: bytes,
    signature: Signature,
    is_deliberate: bool | None,
) -> StateHeader:
    """Compare a valid version with the log, and accept it or write the merged version.

    Args:
        held_document: The document, under its mutex.
        document, data, signature: The version, parsed and as a file.
        is_deliberate: Whether its author removed what it lacks. None: `reconcile` decides.
    """
    from capsule.format.recovery.reconcile import reconcile  # Seldom needed.

    path = held_document.path
    logged_writes = held_document.records()
    certain_writes = held_document.log_evidence.certain_writes
    is_restarted = held_document.durability is Durability.RESTARTED
    history = with_recovered_ids(document["history"], logged_writes)
    has_new_ids = history is not document["history"]
    document, migration_changes = migrations.upgrade(document | {"history": history}, path)
    document = canonical.in_order(document)
    outcome = reconcile(
        document, logged_writes, deliberate=is_deliberate, certain_writes=certain_writes
    )
    verdict = _GitVerdict.NO
    is_lacking = outcome.is_changed or outcome.unlogged_count > 0
    if is_lacking and is_deliberate is None:
        verdict = _was_written_by_git(held_document, data, logged_writes)
        if verdict is _GitVerdict.YES:  # A decision: what the version lacks stays removed.
            outcome = reconcile(
                document, logged_writes, deliberate=True, certain_writes=certain_writes
            )
    if outcome.lost_in_words:
        is_gits = verdict is _GitVerdict.YES
        quarantine_path = held_document.quarantine(
            outcome.lost_values, "git" if is_gits else "overruled"
        )
        message = _TAKEN_BY_GIT if is_gits else _TAKEN_AWAY
        _log.warning(message, path, outcome.lost_in_words, quarantine_path)
    if outcome.unlogged_count:
        _log.warning("%s: %s", path, _FEWER % outcome.unlogged_count)
    newest_updated_at = outcome.latest_update
    old_header = held_document.header()
    if old_header is not None:
        newest_updated_at = max(newest_updated_at, old_header.newest_updated_at)
    if not outcome.is_changed and not has_new_ids:
        is_canonical = not migration_changes and codec.encode(document) == data
        file_layout = layout.survey(data) if is_canonical else None
        return held_document.accept_file(
            signature, file_layout, outcome.edit_records, newest_updated_at
        )
    updated_at = timestamps.later_than(newest_updated_at)
    merged = canonical.in_order(outcome.document | {"updatedAt": updated_at})
    encoded = codec.encode(merged)
    records = [*outcome.edit_records, head_record(updated_at, merged, len(merged["history"]))]
    header = held_document.replace(signature, encoded, layout.survey(encoded), records)
    if outcome.is_changed:
        held_document.is_completed = is_restarted and len(logged_writes) > (certain_writes or 0)
        message = _merge_message(verdict, is_completed=held_document.is_completed)
        _log.warning(message, path, outcome.missing_in_words)
    return header


def _merge_message(verdict: _GitVerdict, *, is_completed: bool) -> str:
    """Return the warning that a version was merged with what it lacked, by the cause."""
    if is_completed:
        return _AFTER_A_CUT
    if verdict is _GitVerdict.NO:
        return _FROM_OLDER
    return _AS_COMMITTED


def purge_log_texts(storage: FileStorage, kind: str, id: str) -> None:
    """Remove from the log of a document all texts and titles that the document no longer has.

    The log of a document that is gone is deleted. Afterwards what a person deleted stays deleted,
    and what the document has is still protected from a stale save.

    Raises:
        InvalidDocument: The document does not parse. Nothing was changed.
        StoreBusy, Refused, StorageFailed: The mutex was not free, or the system refused.
    """
    with storage.hold(kind, id) as held_document:
        if held_document.read() is None:
            held_document.drop_header_and_log()
            return
        header = reconcile_external_edit(held_document)
        content = held_document.read()
        if content is None or content.signature != header.signature:
            raise ConcurrentWrite
        path = held_document.path
        document, _ = migrations.upgrade(decode_checked(content.data, path, id), path)
        held_document.rewrite_records(erase_removed_texts(held_document.records(), document))


# -- Git -------------------------------------------------------------------------------------------

#: How long git may take, in seconds. The caller holds a mutex.
_GIT_TIMEOUT_S = 2.0
_MIN_GIT_TIMEOUT_S = 0.1
#: The number of positions of HEAD that are looked at, and of different versions that are read.
_MAX_POSITIONS = 50
_MAX_VERSIONS = 8
#: The exit code of git if the reflog is shorter than `_MAX_POSITIONS`. What comes before its end is
#: printed all the same.
_REFLOG_TOO_SHORT = 128


def _was_written_by_git(
    held_document: HeldDocument, data: bytes, logged_writes: list[list[bytes]]
) -> _GitVerdict:
    """Say whether git wrote a version that lacks something, and has what it replaced in a commit."""
    from capsule.format.recovery.reconcile import LOCK_PHRASE, reconcile

    versions = replaced_versions(held_document.path, data)
    if versions is None:
        return _GitVerdict.NO
    for version in versions:
        document = _parsed_or_none(version, held_document)
        if document is None:
            continue
        outcome = reconcile(document, logged_writes)
        # No commit has a lock.
        if not outcome.restored and outcome.reapplied in ([], [LOCK_PHRASE]):
            return _GitVerdict.YES
    return _GitVerdict.UNCERTAIN


def replaced_versions(path: str, data: bytes) -> list[bytes] | None:
    """Return the committed versions of a document that git may have replaced by this one.

    Args:
        path: The document.
        data: Its bytes now.

    Returns:
        The other versions that HEAD had recently, according to the reflog, the latest first. Empty
        if HEAD had no other one, as after `git checkout -- FILE`. None if HEAD does not have this
        version, or if there is no repository.

    Cost: none outside of a repository. Otherwise two starts of git, and at most two seconds.
    """
    return _ask_git(path, lambda git, name: _versions_of_head(git, name, data))


def committed_version(path: str) -> bytes | None:
    """Return the version of a document in HEAD, or None. Runs git."""
    contents = _ask_git(
        path, lambda git, name: _contents(git, [f"HEAD:{name}"], time.monotonic() + _GIT_TIMEOUT_S)
    )
    return contents[0] if contents else None


def _ask_git(path: str, ask: Callable[[Git, str], list[bytes] | None]) -> list[bytes] | None:
    """Call `ask` with the repository of a document and the document's name in it.

    Returns None if there is no repository, or if git fails.
    """
    document_path = Path(path).resolve()
    for directory in document_path.parents:
        if (directory / ".git").exists():
            break
    else:
        return None
    from capsule.git_program import Git  # Seldom needed, and it imports subprocess.

    try:
        return ask(Git(str(directory)), document_path.relative_to(directory).as_posix())
    except (GitFailed, Refused):
        return None


def _versions_of_head(git: Git, name: str, data: bytes) -> list[bytes] | None:
    """See `replaced_versions`."""
    deadline = time.monotonic() + _GIT_TIMEOUT_S
    revisions = ["HEAD"]
    revisions += [f"HEAD@{{{position}}}" for position in range(1, _MAX_POSITIONS)]
    answer = git.run(
        "cat-file",
        "--batch-check=%(objectname) %(objecttype)",
        input=_lines(f"{revision}:{name}" for revision in revisions),
        ok_codes=(0, _REFLOG_TOO_SHORT),
        timeout_s=_GIT_TIMEOUT_S,
    )
    objects = [line.rpartition(" ")[::2] for line in answer.text.split("\n")]
    blobs = list(dict.fromkeys(blob for blob, kind in objects if kind == "blob"))
    is_in_head = objects[0][1] == "blob" and blobs[0] in _blob_names(data)
    if not is_in_head:
        return None
    other_blobs = blobs[1 : 1 + _MAX_VERSIONS]
    return _contents(git, other_blobs, deadline) if other_blobs else []


def _blob_names(data: bytes) -> set[str]:
    """Return the names that git may have for this content: in both formats of objects, and before
    it wrote line ends for Windows.
    """
    from hashlib import sha1, sha256

    names = set()
    for content in (data, data.replace(b"\r\n", b"\n")):
        blob = b"blob %d\0%b" % (len(content), content)
        names.add(sha1(blob, usedforsecurity=False).hexdigest())
        names.add(sha256(blob, usedforsecurity=False).hexdigest())
    return names


def _contents(git: Git, names: list[str], deadline: float) -> list[bytes]:
    """Return the contents of blobs. Those that a partial clone lacks are left out."""
    timeout_s = max(deadline - time.monotonic(), _MIN_GIT_TIMEOUT_S)
    output = git.run("cat-file", "--batch", input=_lines(names), timeout_s=timeout_s).out
    contents = []
    while output:
        header, _, output = output.partition(b"\n")
        size = header.split(b" ")[-1]
        if size.isdigit():  # Otherwise it is "missing".
            contents.append(output[: int(size)])
            output = output[int(size) + 1 :]
    return contents


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
