"""A worktree brought from one commit to another while people and programs go on writing in it.

What must stay true: what was written to a document since the first commit is in it afterwards, and
so is its lock; nothing of a person's that isn't committed is overwritten; and wherever it is
interrupted, no file is half, HEAD names the first commit or the second, and a second run from there
has the same result.

First everything that could refuse is tried, on a copy of the index. Then the store merges each
document three ways: what the first commit has, what lies there now, what the second has. Then the
index gets the entries of the documents, so that git leaves the files alone. Then git's own two-way
merge brings all else (git-read-tree(1), "Two Tree Merge"), and at last HEAD moves. After an
interruption before that, what is there already counts as written here: the next sync commits it,
and merges it with the same again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from capsule.errors import GitFailed, InvalidDocument
from capsule.format.merge.clean_form import clean
from capsule.git.commits.operation import Operation, retried
from capsule.git.objects import (
    REGULAR,
    BlobReader,
    IndexEntry,
    RawDifference,
    changes,
    empty_tree,
    refresh,
    set_entries,
)
from capsule.git.repository import document_in
from capsule.store.objects.merges import IncomingResult
from capsule.store.store import CoreStore


@dataclass(slots=True)
class WorktreeUpdate:
    """What came into the worktree: what became of each document, by its path, and how many other
    files changed.
    """

    documents: dict[str, IncomingResult] = field(default_factory=dict)
    files: int = 0

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        documents = [
            {"path": path, "what": brought.what}
            | ({"why": brought.why} if brought.why else {})
            | ({"notes": list(brought.notes)} if brought.notes else {})
            for path, brought in self.documents.items()
        ]
        return {"documents": documents, "files": self.files}


def apply(operation: Operation, old: str | None, new: str, why: str) -> WorktreeUpdate:
    """Bring the worktree, the index and HEAD from the commit that HEAD names (None: there is none
    yet) to another.

    Args:
        why: For the reflog.

    Raises:
        GitFailed: A file that a person changed is in the way; nothing was changed.
        InvalidDocument: A document that has to be merged does not parse, here or there; nothing was
            changed.
        StoreBusy, Refused, StorageFailed: A file can't be written; what came before it stays, and
            the next sync goes on from there.
    """
    git, progress = operation.git, operation.progress
    base = old or empty_tree(git)
    differences = changes(git, "diff-tree", "-r", base, new)
    with ExitStack() as opened, BlobReader(git) as blobs:
        stores = _stores(operation, differences, opened)
        documents = [_ChangedDocument(stores[place[0]], *place[1:], raw, blobs) for raw in differences
                     if (place := document_in(raw.path)) and place[0] in stores]  # fmt: skip
        entries = [document.raw.entry for document in documents]
        for number, document in enumerate(documents):
            progress("check", number, len(documents))
            document.ensure_fit()
        # Between this tree and the second git finds all to do but the documents.
        others = operation.tree_with(base, entries)
        progress("rehearse", 0, 0)
        _ensure_welcome(operation, others, new, entries)
        applied = WorktreeUpdate(files=len(differences) - len(documents))
        for number, document in enumerate(documents):
            progress("write", number, len(documents))
            applied.documents[document.raw.path] = document.bring_in()
    progress("index", 0, 0)
    retried(lambda: set_entries(git, entries))
    progress("files", 0, 0)
    retried(lambda: git.run("read-tree", "-m", "-u", others, new))
    progress("head", 0, 0)
    retried(lambda: git.run("update-ref", "-m", why, "HEAD", new, old or "0" * len(new)))
    progress("refresh", 0, 0)
    retried(lambda: refresh(git))
    return applied


def _stores(
    operation: Operation, differences: Sequence[RawDifference], opened: ExitStack
) -> Mapping[str, CoreStore]:
    """The stores whose documents change, by their folders: ours, and others that lie in the same
    repository.
    """
    stores, top = {operation.repository.prefix: operation.store}, operation.repository.top
    for folder in {
        place[0] for raw in differences if (place := document_in(raw.path))
    } - stores.keys():
        if _is_store(top, folder):
            stores[folder] = opened.enter_context(
                CoreStore.open(os.path.join(top, folder), keep_locks=False)
            )
    return stores


def _is_store(top: str, folder: str) -> bool:
    """Whether a store lies there. A fetched name must not reach behind a symlink or into another
    repository.
    """
    place = top
    for part in folder.split("/")[:-1]:
        place = os.path.join(place, part)
        if os.path.islink(place) or os.path.lexists(os.path.join(place, ".git")):
            return False
    return os.path.isfile(os.path.join(place, "capsule.toml"))


@dataclass(frozen=True, slots=True)
class _ChangedDocument:
    """A document of a store that differs between the two commits."""

    store: CoreStore
    kind: str
    id: str
    raw: RawDifference
    blobs: BlobReader

    def ensure_fit(self) -> None:
        """Raise unless what comes is a document, and what is here can be merged with it."""
        raw = self.raw
        if not raw.new_mode:
            return
        if raw.new_mode not in REGULAR:
            odd = (
                f"{raw.path} is not a regular file in the fetched commits; nothing was "
                "changed; remove it there with git"
            )
            raise GitFailed(odd, command=["diff-tree"], words="")
        why = "the fetched commits have a damaged document, so nothing was changed; repair it there"
        try:
            clean(self.blobs.read(raw.new) or b"", raw.path, self.kind)
            why = (
                "a document that was changed there can't be merged, so nothing was changed; "
                "repair it, then sync again"
            )
            self.store.incoming.version(self.kind, self.id)
        except InvalidDocument as error:
            raise InvalidDocument(
                f"{why}:\n{error.message}", path=error.path, problems=error.problems
            ) from None

    def bring_in(self) -> IncomingResult:
        """Merge what comes into the file."""
        raw = self.raw
        sides = ((raw.old_mode, raw.old), (raw.new_mode, raw.new))
        base, theirs = (self._clean(name) if mode else None for mode, name in sides)
        return self.store.incoming.bring_in(self.kind, self.id, base, theirs)

    def _clean(self, name: str) -> bytes | None:
        with suppress(InvalidDocument):  # What got into git past us need not be a document.
            return clean(self.blobs.read(name) or b"", self.raw.path, self.kind)
        return None


def _ensure_welcome(
    operation: Operation, base: str, new: str, entries: Sequence[IndexEntry]
) -> None:
    """Raise GitFailed when git would refuse to touch a file that is no document, as a person is
    changing it.
    """
    with operation.other_index() as git:
        refresh(git)
        set_entries(git, entries)
        try:
            git.run("read-tree", "-m", "-u", "-n", base, new)
        except GitFailed as error:
            reason = (
                "uncommitted local changes are in the way of the fetched commits, so nothing "
                "was changed; commit them, or put them aside with git stash, then sync again: "
                f"{error.words}"
            )
            raise GitFailed(reason, command=error.command, words=error.words) from None
