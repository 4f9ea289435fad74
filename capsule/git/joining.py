"""Two branches merged where no file is touched: the documents by us, all else by git.

What must stay true: the working tree, the index and HEAD are as they were; of two versions of a document no word is
lost, or the merge is left to a person; and whatever else git could not merge is named, and left.

Documents are no business of git's merge here. It would take one for another renamed, when a fork is made and its
source deleted, and would start a driver for each. So each is merged by itself, three ways, by its path; and when both
sides changed other files too, git merges (git-merge-tree(1), git 2.38 and later) two commits in which the documents
are the same. Where the branches have crossed and several ancestors are as good, these are merged first and serve as
one, as git's recursive strategy has it (git-merge(1)).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from capsule.errors import CapsuleError, GitFailed
from capsule.format import codec
from capsule.format.cleaning import clean
from capsule.git.blobs import Blobs
from capsule.git.committing import ensure_attributes
from capsule.git.objects import FILE, Entry, Raw, blob_name, changes, empty_tree, object_format, write_blobs
from capsule.git.repository import KINDS
from capsule.git.turns import Turn
from capsule.ids import is_id

__all__ = ["Joined", "document_in", "join"]

_NEEDED = (2, 38)
_REGULAR = frozenset({"100644", "100755"})


@dataclass(slots=True)
class Joined:
    """Two branches merged.

    Attributes:
        tree: The tree of both.
        disputed: Documents of which both sides changed the same; one version stands, and a person has yet to settle it.
        kept: Documents that were deleted on one side and changed on the other, and are kept.
        notes: What was decided besides, a line of words each.
        left: What only a person can merge, by its path, and why, where that is known; the tree has our version.
    """

    tree: str = ""
    disputed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    left: dict[str, str] = field(default_factory=dict)


def document_in(path: str) -> tuple[str, str, str] | None:
    """Of a path that may be a document of any store in the repository: that store's folder, kind and id."""
    folder, _, name = path.rpartition("/")
    prefix, _, kind = folder.rpartition("/")
    id = name.removesuffix(".json")
    return (f"{prefix}/" if prefix else "", kind, id) if kind in KINDS and name != id and is_id(id) else None


def join(turn: Turn, ours: str, theirs: str, by_hand: str, *, unrelated: bool = False) -> Joined:
    """Merge two commits.

    Args:
        turn: The turn.
        ours: The commit here.
        theirs: The other one.
        by_hand: The command by which a person merges the two.
        unrelated: Whether they may have no common ancestor.

    Raises:
        GitFailed: They have none, or something is left to a person; the message says what, and the way out.
        Refused: Git isn't told what conversations are, so that a person's own merge would be line by line.

    Cost: reading and merging what both sides changed; for the rest, git's own cost of comparing trees.
    """
    ensure_attributes(turn, [turn.repository.path_of(kind, "any") for kind in KINDS])
    with Blobs(turn.git) as blobs:
        joining = _Joining(turn, blobs, by_hand)
        if not unrelated and not joining.bases(ours, theirs):
            what = (
                "what is here and what was fetched have no common history, as of two stores that were begun apart; "
                "nothing was merged. If they belong together: capsule git sync --allow-unrelated-histories"
            )
            raise GitFailed(what, command=["merge-base"], words="")
        joined = joining.commits(ours, theirs)
    if joined.left:
        paths = sorted(joined.left)
        shown = ", ".join(paths[:5]) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        what = (
            f"what is here and what was fetched both change {shown}, in ways that only a person can bring together; "
            f"nothing was merged. Merge by hand, then sync again: {by_hand}"
        )
        words = "\n".join(joined.left[path] for path in paths if joined.left[path])
        raise GitFailed(f"{what}\n{words}".rstrip(), command=["merge-tree"], words=words or shown)
    return joined


class _Joining:
    """The merges that one merge may need."""

    def __init__(self, turn: Turn, blobs: Blobs, by_hand: str) -> None:
        self._turn = turn
        self._git = turn.git
        self._blobs = blobs
        self._by_hand = by_hand
        self._hashing = object_format(turn.git)

    def bases(self, ours: str, theirs: str) -> list[str]:
        """The best common ancestors of two commits."""
        return self._git.run("merge-base", "--all", ours, theirs, fine=(0, 1)).text.split()

    def commits(self, ours: str, theirs: str) -> Joined:
        """Two commits merged."""
        base = ""
        for one in self.bases(ours, theirs):
            base = self._commit_of(self.commits(base, one).tree, base, one) if base else one
        return self._trees(base or empty_tree(self._git), ours, theirs)

    def _trees(self, base: str, ours: str, theirs: str) -> Joined:
        sides = [
            {raw.path: raw for raw in changes(self._git, "diff-tree", "-r", base, side)} for side in (ours, theirs)
        ]
        documents = self._documents({*sides[0], *sides[1]})
        joined = Joined()
        contents: list[bytes] = []
        entries = []
        for number, path in enumerate(documents):
            self._turn.told("join", number, len(documents))
            entries.append(self._document(path, sides[0].get(path), sides[1].get(path), joined, contents))
        write_blobs(self._git, contents)
        changed = [bool(side.keys() - set(documents)) for side in sides]
        if all(changed):
            joined.tree = self._files([base, ours, theirs], entries, joined)
        else:
            joined.tree = self._turn.tree_with(theirs if changed[1] else ours, entries)
        return joined

    def _documents(self, paths: Iterable[str]) -> list[str]:
        """Which of the paths are documents, as git is told by its attributes."""
        asked = sorted(path for path in paths if document_in(path))
        given = "".join(f"{path}\0" for path in asked).encode("utf-8", "surrogateescape")
        told = self._git.run("check-attr", "-z", "--stdin", "merge", input=given).fields if asked else []
        return [path for path, value in zip(told[::3], told[2::3], strict=True) if value == "capsule"]

    def _document(self, path: str, a: Raw | None, b: Raw | None, joined: Joined, contents: list[bytes]) -> Entry:
        """What the tree of both has in the place of a document that at least one side changed."""
        one = a or b
        assert one is not None
        if a is None or b is None or (a.new_mode, a.new) == (b.new_mode, b.new):
            return Entry(path, one.new_mode, one.new if one.new_mode else one.old)
        if not (a.new_mode and b.new_mode):
            one = a if a.new_mode else b
            joined.kept.append(path)
            return Entry(path, one.new_mode, one.new)
        if not {a.new_mode, b.new_mode} <= _REGULAR:
            joined.left[path] = f"{path}: is no regular file on one side"
            return Entry(path, a.new_mode, a.new)
        try:
            merged = self._merged(path, a.old if a.old_mode else None, a.new, b.new)
            data = clean(codec.encode(merged.document), path, _kind(path))
        except CapsuleError as error:
            joined.left[path] = error.message
            return Entry(path, a.new_mode, a.new)
        if merged.conflicts:
            joined.disputed.append(path)
        joined.notes += [f"{path}: {note}" for note in merged.notes]
        contents.append(data)
        return Entry(path, FILE, blob_name(data, self._hashing))

    def _merged(self, path: str, base: str | None, ours: str, theirs: str) -> Any:
        from capsule.format.merge import merge, merge_agents

        try:
            ancestor = None if base is None else self._decoded(base, path)
        except CapsuleError:
            ancestor = None  # It got into git past us. Without it both sides' words are kept, and that is what counts.
        how = merge if _kind(path) == "conversations" else merge_agents
        return how(ancestor, self._decoded(ours, path), self._decoded(theirs, path))

    def _decoded(self, name: str, path: str) -> dict[str, Any]:
        return codec.decode(clean(self._blobs.read(name) or b"", path, _kind(path)), path)

    def _files(self, sides: Sequence[str], entries: Sequence[Entry], joined: Joined) -> str:
        """Git's merge of all that is no document; the documents are set in it."""
        base, ours, theirs = (self._turn.tree_with(side, entries) for side in sides)
        root = self._commit_of(base)
        command = ("merge-tree", "--write-tree", "-z", *(self._commit_of(tree, root) for tree in (ours, theirs)))
        answer = self._git.run(*command, fine=range(256))
        if answer.code > 1 or not answer.out:
            raise GitFailed(self._why(answer.words), command=list(command), words=answer.words)
        tree, *told = answer.out.decode("utf-8", "surrogateescape").split("\0")
        for line in told if answer.code else ():
            if not line:
                break  # What comes behind it are words.
            joined.left.setdefault(line.partition("\t")[2], "")
        return tree

    def _commit_of(self, tree: str, *parents: str) -> str:
        """A commit that only serves a merge, and that nothing refers to."""
        told = [word for parent in parents for word in ("-p", parent)]
        return self._git.run("commit-tree", "-m", "capsule sync: of no use any more", *told, tree).text

    def _why(self, words: str) -> str:
        """What is said of a merge that git did not begin."""
        version = self._git.run("version").text
        numbers = re.search(r"(\d+)\.(\d+)", version)
        if numbers and (int(numbers[1]), int(numbers[2])) < _NEEDED:
            return (
                f"merging files that are no conversations needs git 2.38, and this is {version}; nothing was merged. "
                f"Merge by hand: {self._by_hand}"
            )
        return f"git merge-tree failed in {self._turn.repository.top}: {words}; nothing was merged"


def _kind(path: str) -> str:
    at = document_in(path)
    assert at is not None
    return at[1]
