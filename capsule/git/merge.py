"""Merge two commits into a tree, without touching a file: Capsule merges the documents, git merges
all other files.

Each document is merged by its path, three ways: base, ours and theirs. If both sides also changed
other files, git merges two temporary commits in which the documents are the same
(git-merge-tree(1), git 2.38 and later). Git's own merge gets no documents: it starts a driver for
each, and takes a new fork with a deleted source for a renamed file. If the two commits have several
best common ancestors, these are merged first, and the result is the base, as in git's recursive
strategy (git-merge(1)).

What must stay true: the working tree, the index and HEAD do not change. The merge of two versions
of a document loses no text, or the document is left to a person. A file that git could not merge is
named, and left to a person.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from capsule.errors import CapsuleError, GitFailed, Remedy
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from capsule.format.validation import KINDS
from capsule.git import plumbing
from capsule.git.commit import Operation, ensure_attributes
from capsule.git.drivers import merged_version
from capsule.git.plumbing import BlobReader, IndexEntry, RawDifference, document_in
from capsule.git_program import Git

#: An error lists at most this many paths.
_MAX_LISTED = 5


@dataclass(slots=True)
class MergedCommits:
    """The merge of two commits.

    Attributes:
        tree: The merged tree.
        disputed: The paths of documents in which both sides changed the same field. The document
            has one of the values, and the conflict, until a person resolves it.
        kept: The paths of documents that were deleted on one side and changed on the other. They
            are kept.
        notes: Other decisions of the merge, a line each.
        unresolved: The paths that only a person can merge, with the reason, if known. The tree has
            our version.
    """

    tree: str = ""
    disputed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unresolved: dict[str, str] = field(default_factory=dict)


def merge_commits(
    operation: Operation, ours: str, theirs: str, manual_command: str, *, unrelated: bool = False
) -> MergedCommits:
    """Merge two commits.

    Args:
        operation: The operation.
        ours, theirs: The commits.
        manual_command: The command with which a person merges them, for errors.
        unrelated: Whether the commits may lack a common ancestor.

    Raises:
        GitFailed: They have no common ancestor, or something is left to a person.
        Refused: The attributes are missing, so that a person's own merge would be line by line.

    Cost: reading and merging the documents that both sides changed. For other files, git's own cost
    of comparing trees.
    """
    ensure_attributes(operation, [operation.repository.path_of(kind, "any") for kind in KINDS])
    with BlobReader(operation.git) as blobs:
        merger = _CommitMerger(operation, blobs, manual_command)
        if not unrelated and not merger.bases(ours, theirs):
            reason = (
                "the local and the fetched branch have no common history (the stores were "
                "made separately); nothing was merged"
            )
            raise GitFailed(
                reason, remedy=Remedy("join histories"), command=["merge-base"], words=""
            )
        merge = merger.merge(ours, theirs)
    if merge.unresolved:
        paths = sorted(merge.unresolved)
        listed = ", ".join(paths[:_MAX_LISTED])
        if len(paths) > _MAX_LISTED:
            listed += f" and {len(paths) - _MAX_LISTED} more"
        reason = (
            f"the local and the fetched branch both change {listed}, and only a person can "
            f"merge this; nothing was merged. Merge by hand, then sync again: {manual_command}"
        )
        details = "\n".join(merge.unresolved[path] for path in paths if merge.unresolved[path])
        raise GitFailed(
            f"{reason}\n{details}".rstrip(), command=["merge-tree"], words=details or listed
        )
    return merge


class _CommitMerger:
    """Merges commits. One merge needs several if the commits have several best common ancestors."""

    def __init__(self, operation: Operation, blobs: BlobReader, manual_command: str) -> None:
        self._operation = operation
        self._git = operation.git
        self._blobs = blobs
        self._manual_command = manual_command
        self._hashing = plumbing.object_format(operation.git)

    def bases(self, ours: str, theirs: str) -> list[str]:
        """Return the best common ancestors of two commits."""
        return self._git.run("merge-base", "--all", ours, theirs, ok_codes=(0, 1)).text.split()

    def merge(self, ours: str, theirs: str) -> MergedCommits:
        """Merge two commits. Several best common ancestors are merged into one base first."""
        base = ""
        for ancestor in self.bases(ours, theirs):
            if base:
                base = self._temporary_commit(self.merge(base, ancestor).tree, base, ancestor)
            else:
                base = ancestor
        return self._merge_with_base(base or plumbing.empty_tree(self._git), ours, theirs)

    def _merge_with_base(self, base: str, ours: str, theirs: str) -> MergedCommits:
        """Merge two commits with this commit or tree as the base."""
        our_changes = self._changes_by_path(base, ours)
        their_changes = self._changes_by_path(base, theirs)
        paths = [path for path in {**our_changes, **their_changes} if document_in(path)]
        documents = []
        for path, _, driver in plumbing.attributes(self._git, paths, "merge"):
            if driver == "capsule":
                documents.append(path)
        merge = MergedCommits()
        contents: list[bytes] = []
        entries = []
        for number, path in enumerate(documents):
            self._operation.progress("join", number, len(documents))
            entry = self._merge_document(
                path, our_changes.get(path), their_changes.get(path), merge, contents
            )
            entries.append(entry)
        plumbing.write_blobs(self._git, contents)
        we_changed_files = bool(our_changes.keys() - set(documents))
        they_changed_files = bool(their_changes.keys() - set(documents))
        if we_changed_files and they_changed_files:
            merge.tree = self._merge_other_files(base, ours, theirs, entries, merge)
        elif they_changed_files:
            merge.tree = self._operation.tree_with(theirs, entries)
        else:
            merge.tree = self._operation.tree_with(ours, entries)
        return merge

    def _changes_by_path(self, base: str, commit: str) -> dict[str, RawDifference]:
        changes = plumbing.changes(self._git, "diff-tree", "-r", base, commit)
        return {raw.path: raw for raw in changes}

    def _merge_document(
        self,
        path: str,
        ours: RawDifference | None,
        theirs: RawDifference | None,
        merge: MergedCommits,
        contents: list[bytes],
    ) -> IndexEntry:
        """Return the entry of the merged tree for a document that at least one side changed.

        Args:
            path: The document.
            ours, theirs: The change on each side. None: that side did not change it.
            merge: The merge. Conflicts, notes and unresolved paths are added to it.
            contents: New contents for git. The merged document is added to them.
        """
        if ours is None or theirs is None or ours.entry == theirs.entry:
            return (ours or theirs).entry  # type: ignore[union-attr]  # At least one side changed it.
        if not (ours.new_mode and theirs.new_mode):
            merge.kept.append(path)
            return ours.entry if ours.new_mode else theirs.entry
        if not {ours.new_mode, theirs.new_mode} <= plumbing.REGULAR:
            merge.unresolved[path] = f"{path}: is not a regular file on one side"
            return ours.entry
        location = document_in(path)
        assert location is not None
        _, kind, _ = location
        try:
            base = self._base_document(ours, path, kind)
            our_document = self._decoded(ours.new, path, kind)
            their_document = self._decoded(theirs.new, path, kind)
            data, result = merged_version(base, our_document, their_document, path, kind)
        except CapsuleError as error:
            merge.unresolved[path] = error.message
            return ours.entry
        if result.conflicts:
            merge.disputed.append(path)
        merge.notes += [f"{path}: {note}" for note in result.notes]
        contents.append(data)
        return IndexEntry(path, plumbing.FILE, plumbing.blob_name(data, self._hashing))

    def _base_document(self, raw: RawDifference, path: str, kind: str) -> dict[str, Any] | None:
        """Return the base version of a document. None: it did not exist, or does not parse."""
        try:
            return self._decoded(raw.old, path, kind) if raw.old_mode else None
        except CapsuleError:
            # It got into git without a check. A merge without a base keeps the texts of both sides.
            return None

    def _decoded(self, name: str, path: str, kind: str) -> dict[str, Any]:
        return codec.decode(clean(self._blobs.read(name) or b"", path, kind), path)

    def _merge_other_files(
        self,
        base: str,
        ours: str,
        theirs: str,
        entries: Sequence[IndexEntry],
        merge: MergedCommits,
    ) -> str:
        """Let git merge the files that are no documents, and return the tree. The merged documents
        are set in all three trees first, so that git finds no difference in them.
        """
        base_tree = self._operation.tree_with(base, entries)
        our_tree = self._operation.tree_with(ours, entries)
        their_tree = self._operation.tree_with(theirs, entries)
        root = self._temporary_commit(base_tree)
        our_commit = self._temporary_commit(our_tree, root)
        their_commit = self._temporary_commit(their_tree, root)
        command = ["merge-tree", "--write-tree", "-z", our_commit, their_commit]
        output = self._git.run(*command, ok_codes=range(256))
        if output.code > 1 or not output.out:
            raise GitFailed(self._failure(output.words), command=command, words=output.words)
        tree, *lines = output.out.decode("utf-8", "surrogateescape").split("\0")
        if output.code == 1:  # There are conflicts: their paths, an empty line, and messages.
            for line in lines:
                if not line:
                    break
                merge.unresolved.setdefault(line.partition("\t")[2], "")
        return tree

    def _temporary_commit(self, tree: str, *parents: str) -> str:
        """Return a new commit that only this merge needs. No ref names it."""
        options = [word for parent in parents for word in ("-p", parent)]
        return self._git.run(
            "commit-tree", "-m", "capsule sync: no longer needed", *options, tree
        ).text

    def _failure(self, words: str) -> str:
        """Return the message of an error of `git merge-tree`."""
        version, is_enough = merge_version(self._git)
        if is_enough:
            return (
                f"git merge-tree failed in {self._operation.repository.top}: {words}; nothing "
                "was merged"
            )
        return (
            "merging files other than conversations needs git 2.38, and this is git version "
            f"{version}; nothing was merged. Merge by hand: {self._manual_command}"
        )


def merge_version(git: Git) -> tuple[str, bool]:
    """Return git's version, and whether it can merge files that are no documents."""
    version = git.run("version").text.removeprefix("git version ")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return version, numbers is not None and tuple(map(int, numbers.groups())) >= (2, 38)
