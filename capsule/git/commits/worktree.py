"""Bring a worktree from one commit to another, while people and programs continue to write in it.

The steps:

1. Everything that could be refused is tried first, on a copy of the index.
2. The store merges each document three ways: the old commit's version is the base, the present file
   is ours, the new commit's version is theirs.
3. The index gets the new entries of the documents, so that git does not touch their files.
4. Git's own two-way merge updates all other files (git-read-tree(1), "Two Tree Merge").
5. HEAD moves to the new commit.

After an interruption before step 5, the changes that were already made count as local changes. The
next sync commits them, and merges them with the same commit again.

What must stay true: a document afterwards has everything that was written to it since the old
commit, and its lock. No uncommitted change of a person is overwritten. At any interruption, no file
is half written, HEAD is the old or the new commit, and another run has the same result.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    """An update of the worktree.

    Attributes:
        documents: What happened to each document, by its path.
        files: The number of other files that changed.
    """

    documents: dict[str, IncomingResult] = field(default_factory=dict)
    files: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        documents = []
        for path, result in self.documents.items():
            fields: dict[str, Any] = {"path": path, "what": result.what}
            if result.why:
                fields["why"] = result.why
            if result.notes:
                fields["notes"] = list(result.notes)
            documents.append(fields)
        return {"documents": documents, "files": self.files}


def apply(operation: Operation, old: str | None, new: str, reason: str) -> WorktreeUpdate:
    """Bring the worktree, the index and HEAD to another commit.

    Args:
        operation: The operation.
        old: The commit of HEAD. None: the branch has no commit yet.
        new: The other commit.
        reason: The text for the reflog.

    Raises:
        GitFailed: A file that a person changed is in the way. Nothing was changed.
        InvalidDocument: A document that has to be merged does not parse, in the worktree or in the
            new commit. Nothing was changed.
        StoreBusy, Refused, StorageFailed: A file can't be written. Earlier files are written, and
            the next sync continues from there.
    """
    git = operation.git
    progress = operation.progress
    base = old or empty_tree(git)
    differences = changes(git, "diff-tree", "-r", base, new)
    with ExitStack() as opened_stores, BlobReader(git) as blobs:
        documents = _changed_documents(operation, differences, blobs, opened_stores)
        entries = [document.raw.entry for document in documents]
        for number, document in enumerate(documents):
            progress("check", number, len(documents))
            document.check_mergeable()
        # The old tree with the new documents: it differs from `new` in all other files, which git
        # updates itself.
        tree_without_documents = operation.tree_with(base, entries)
        progress("rehearse", 0, 0)
        _check_worktree_clean(operation, tree_without_documents, new, entries)
        update = WorktreeUpdate(files=len(differences) - len(documents))
        for number, document in enumerate(documents):
            progress("write", number, len(documents))
            update.documents[document.raw.path] = document.merge_into_store()
    progress("index", 0, 0)
    retried(lambda: set_entries(git, entries))
    progress("files", 0, 0)
    retried(lambda: git.run("read-tree", "-m", "-u", tree_without_documents, new))
    progress("head", 0, 0)
    retried(lambda: git.run("update-ref", "-m", reason, "HEAD", new, old or "0" * len(new)))
    progress("refresh", 0, 0)
    retried(lambda: refresh(git))
    return update


def _changed_documents(
    operation: Operation,
    differences: Sequence[RawDifference],
    blobs: BlobReader,
    opened_stores: ExitStack,
) -> list[_ChangedDocument]:
    """Return the documents among the differences, of this store and of others in the repository.
    Those other stores are opened, and closed with `opened_stores`.
    """
    top = operation.repository.top
    stores: dict[str, CoreStore | None] = {operation.repository.prefix: operation.store}
    documents = []
    for raw in differences:
        location = document_in(raw.path)
        if location is None:
            continue
        folder, kind, id = location
        if folder not in stores:
            stores[folder] = None
            if _is_store(top, folder):
                store = CoreStore.open(os.path.join(top, folder), keep_locks=False)
                stores[folder] = opened_stores.enter_context(store)
        owner = stores[folder]
        if owner is not None:
            documents.append(_ChangedDocument(owner, kind, id, raw, blobs))
    return documents


def _is_store(top: str, folder: str) -> bool:
    """Return whether a folder of the repository is a store. A path from a fetched commit must not
    lead through a symlink or into another repository.
    """
    path = top
    for part in folder.split("/")[:-1]:
        path = os.path.join(path, part)
        if os.path.islink(path) or os.path.lexists(os.path.join(path, ".git")):
            return False
    return os.path.isfile(os.path.join(path, "capsule.toml"))


@dataclass(frozen=True, slots=True)
class _ChangedDocument:
    """A document of a store that differs between the two commits.

    Attributes:
        store: The store.
        kind: The kind of the document.
        id: Its id.
        raw: The difference.
        blobs: Reads its versions from git.
    """

    store: CoreStore
    kind: str
    id: str
    raw: RawDifference
    blobs: BlobReader

    def check_mergeable(self) -> None:
        """Check that the new version and the present file are valid documents. Raises GitFailed,
        InvalidDocument.
        """
        raw = self.raw
        if not raw.new_mode:
            return
        if raw.new_mode not in REGULAR:
            raise GitFailed(
                f"{raw.path} is not a regular file in the fetched commits; nothing was "
                "changed; remove it there with git",
                command=["diff-tree"],
                words="",
            )
        reason = (
            "the fetched commits have a damaged document, so nothing was changed; repair it there"
        )
        try:
            clean(self.blobs.read(raw.new) or b"", raw.path, self.kind)
            reason = (
                "a document that was changed there can't be merged, so nothing was changed; "
                "repair it, then sync again"
            )
            self.store.incoming.version(self.kind, self.id)
        except InvalidDocument as error:
            raise InvalidDocument(
                f"{reason}:\n{error.message}", path=error.path, problems=error.problems
            ) from None

    def merge_into_store(self) -> IncomingResult:
        """Merge the new version into the present file."""
        raw = self.raw
        base = self._clean_version(raw.old) if raw.old_mode else None
        theirs = self._clean_version(raw.new) if raw.new_mode else None
        return self.store.incoming.bring_in(self.kind, self.id, base, theirs)

    def _clean_version(self, name: str) -> bytes | None:
        """Return a version from git in the clean form. None: it is no document, and got into git
        without a check.
        """
        with suppress(InvalidDocument):
            return clean(self.blobs.read(name) or b"", self.raw.path, self.kind)
        return None


def _check_worktree_clean(
    operation: Operation, base: str, new: str, entries: Sequence[IndexEntry]
) -> None:
    """Check that git would update every file that is no document. Raises GitFailed if a person has
    uncommitted changes in such a file.
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
