"""Two commits merged without touching a file: the documents by us, all else by git.

What must stay true: the working tree, the index and HEAD stay as they were; of two versions of a
document no word is lost, or the merge is left to a person; and whatever else git could not merge is
named, and left.

Git's own merge gets no documents. It takes one for another renamed, when a fork is made and its
source deleted, and starts a driver for each. So each is merged by itself, three ways, by its path;
and when both sides changed other files too, git merges (git-merge-tree(1), git 2.38 and later) two
commits in which the documents are the same. Where the branches have crossed and several ancestors
are as good, these are merged first and serve as one, as in git's recursive strategy (git-merge(1)).
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
from capsule.git import objects
from capsule.git.commits.commit import ensure_attributes
from capsule.git.commits.operation import Operation
from capsule.git.drivers.merge import merged_version
from capsule.git.objects import BlobReader, IndexEntry, RawDifference
from capsule.git.repository import document_in
from capsule.git_program import Git


@dataclass(slots=True)
class MergedCommits:
    """Two commits merged.

    Attributes:
        tree: The tree of both.
        disputed: Documents of which both sides changed the same; one version stands until a person
            settles it.
        kept: Documents that were deleted on one side and changed on the other, and are kept.
        notes: What was decided besides, a line of words each.
        left: What only a person can merge, by its path, and why, where that is known; the tree has
            our version.
    """

    tree: str = ""
    disputed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def merge_commits(
    operation: Operation, ours: str, theirs: str, by_hand: str, *, unrelated: bool = False
) -> MergedCommits:
    """Merge two commits; `by_hand` is the command by which a person does.

    Raises:
        GitFailed: They have no common ancestor and are not `unrelated`, or something is left to a
            person.
        Refused: The attributes are missing, so that a person's own merge would be line by line.

    Cost: reading and merging what both sides changed; for the rest, git's own cost of comparing
    trees.
    """
    ensure_attributes(operation, [operation.repository.path_of(kind, "any") for kind in KINDS])
    with BlobReader(operation.git) as blobs:
        merges = _CommitMerger(operation, blobs, by_hand)
        if not unrelated and not merges.bases(ours, theirs):
            reason = (
                "the local and the fetched branch have no common history (the stores were "
                "made separately); nothing was merged"
            )
            raise GitFailed(
                reason, remedy=Remedy("join histories"), command=["merge-base"], words=""
            )
        merge = merges.of_commits(ours, theirs)
    if merge.left:
        paths = sorted(merge.left)
        shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        reason = (
            f"the local and the fetched branch both change {shown}, and only a person can "
            f"merge this; nothing was merged. Merge by hand, then sync again: {by_hand}"
        )
        words = "\n".join(merge.left[path] for path in paths if merge.left[path])
        raise GitFailed(f"{reason}\n{words}".rstrip(), command=["merge-tree"], words=words or shown)
    return merge


class _CommitMerger:
    """The merges that one merge may need."""

    def __init__(self, operation: Operation, blobs: BlobReader, by_hand: str) -> None:
        self._operation, self._git, self._blobs, self._by_hand = (
            operation,
            operation.git,
            blobs,
            by_hand,
        )
        self._hashing = objects.object_format(operation.git)

    def bases(self, ours: str, theirs: str) -> list[str]:
        """The best common ancestors of two commits."""
        return self._git.run("merge-base", "--all", ours, theirs, ok_codes=(0, 1)).text.split()

    def of_commits(self, ours: str, theirs: str) -> MergedCommits:
        base = ""
        for ancestor in self.bases(ours, theirs):
            base = (
                self._commit_of(self.of_commits(base, ancestor).tree, base, ancestor)
                if base
                else ancestor
            )
        return self._of_trees(base or objects.empty_tree(self._git), ours, theirs)

    def _of_trees(self, base: str, ours: str, theirs: str) -> MergedCommits:
        differences = (
            objects.changes(self._git, "diff-tree", "-r", base, side) for side in (ours, theirs)
        )
        sides = [{raw.path: raw for raw in side} for side in differences]
        paths = (path for path in {**sides[0], **sides[1]} if document_in(path))
        documents = [
            path
            for path, _, value in objects.attributes(self._git, paths, "merge")
            if value == "capsule"
        ]
        merge = MergedCommits()
        contents: list[bytes] = []
        entries = []
        for number, path in enumerate(documents):
            self._operation.progress("join", number, len(documents))
            entries.append(
                self._document(path, sides[0].get(path), sides[1].get(path), merge, contents)
            )
        objects.write_blobs(self._git, contents)
        others = [bool(side.keys() - set(documents)) for side in sides]
        if all(others):
            merge.tree = self._other_files([base, ours, theirs], entries, merge)
        else:
            merge.tree = self._operation.tree_with(theirs if others[1] else ours, entries)
        return merge

    def _document(
        self,
        path: str,
        ours: RawDifference | None,
        theirs: RawDifference | None,
        merge: MergedCommits,
        new: list[bytes],
    ) -> IndexEntry:
        """What the tree of both has in the place of a document that at least one side changed."""
        if ours is None or theirs is None or ours.entry == theirs.entry:
            return (ours or theirs).entry  # type: ignore[union-attr]  # At least one side changed it.
        if not (ours.new_mode and theirs.new_mode):
            merge.kept.append(path)
            return ours.entry if ours.new_mode else theirs.entry
        if not {ours.new_mode, theirs.new_mode} <= objects.REGULAR:
            merge.left[path] = f"{path}: is not a regular file on one side"
            return ours.entry
        place = document_in(path)
        assert place is not None
        kind = place[1]
        try:
            base = self._base(ours, path, kind)
            mine, yours = (self._decoded(raw.new, path, kind) for raw in (ours, theirs))
            data, merged = merged_version(base, mine, yours, path, kind)
        except CapsuleError as error:
            merge.left[path] = error.message
            return ours.entry
        if merged.conflicts:
            merge.disputed.append(path)
        merge.notes += [f"{path}: {note}" for note in merged.notes]
        new.append(data)
        return IndexEntry(path, objects.FILE, objects.blob_name(data, self._hashing))

    def _base(self, raw: RawDifference, path: str, kind: str) -> dict[str, Any] | None:
        try:
            return self._decoded(raw.old, path, kind) if raw.old_mode else None
        except CapsuleError:
            return None  # It got into git past us. A merge without it keeps both sides' words.

    def _decoded(self, name: str, path: str, kind: str) -> dict[str, Any]:
        return codec.decode(clean(self._blobs.read(name) or b"", path, kind), path)

    def _other_files(
        self, sides: Sequence[str], entries: Sequence[IndexEntry], merge: MergedCommits
    ) -> str:
        """Git's merge of all that is no document; the documents are set in it."""
        base, ours, theirs = (self._operation.tree_with(side, entries) for side in sides)
        root = self._commit_of(base)
        command = (
            "merge-tree",
            "--write-tree",
            "-z",
            *(self._commit_of(tree, root) for tree in (ours, theirs)),
        )
        answer = self._git.run(*command, ok_codes=range(256))
        if answer.code > 1 or not answer.out:
            raise GitFailed(self._why(answer.words), command=list(command), words=answer.words)
        tree, *lines = answer.out.decode("utf-8", "surrogateescape").split("\0")
        for line in lines if answer.code else ():
            if not line:
                break  # What comes behind it are words.
            merge.left.setdefault(line.partition("\t")[2], "")
        return tree

    def _commit_of(self, tree: str, *parents: str) -> str:
        """A commit that only serves a merge, and that no ref names."""
        options = [word for parent in parents for word in ("-p", parent)]
        return self._git.run(
            "commit-tree", "-m", "capsule sync: no longer needed", *options, tree
        ).text

    def _why(self, words: str) -> str:
        version, is_enough = merge_version(self._git)
        if is_enough:
            return (
                f"git merge-tree failed in {self._operation.repository.top}: {words}; nothing "
                "was merged"
            )
        return (
            "merging files other than conversations needs git 2.38, and this is git version "
            f"{version}; nothing was merged. Merge by hand: {self._by_hand}"
        )


def merge_version(git: Git) -> tuple[str, bool]:
    """Git's version, and whether it can merge what is no document."""
    version = git.run("version").text.removeprefix("git version ")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return version, numbers is not None and tuple(map(int, numbers.groups())) >= (2, 38)
