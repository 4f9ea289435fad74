"""The repository that a store lies in, and which of its paths are the store's.

What must stay true: a path is repository-relative with `/` between its parts, as git writes it; the
store may be the repository's root or any folder in it, and the repository may be a linked worktree.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from capsule.errors import GitFailed, NotFound
from capsule.format.merge.copy_names import original_of
from capsule.format.validation import KINDS
from capsule.git_program import Git
from capsule.ids import is_id

#: What a person may have begun, by the file in git's directory that says so, and how to end it.
_UNDER_WAY = {
    "MERGE_HEAD": ("a merge", "git commit, or git merge --abort"),
    "rebase-merge": ("a rebase", "git rebase --continue, or git rebase --abort"),
    "rebase-apply": ("a rebase", "git rebase --continue, or git rebase --abort"),
    "CHERRY_PICK_HEAD": ("a cherry-pick", "git cherry-pick --continue, or git cherry-pick --abort"),
    "REVERT_HEAD": ("a revert", "git revert --continue, or git revert --abort"),
}


@dataclass(frozen=True, slots=True)
class Repository:
    """A store's repository.

    Attributes:
        git: Git, in the repository's top directory; it runs nothing that the repository names.
        top: That directory.
        prefix: The store's folder in it: empty, or with a `/` at the end.
        directory: Git's own directory for this worktree: its index, its HEAD.
        common: The one that all worktrees share: the objects, the refs, the configuration.
    """

    git: Git
    top: str
    prefix: str
    directory: str
    common: str

    @classmethod
    def find(cls, root: str) -> Repository:
        """The repository in which the store at `root` lies.

        Raises:
            NotFound: The store lies in no repository.
            Refused: There is no program `git`, or a filter that can't be turned off.
            GitFailed: Git refuses, for example because somebody else owns the directory.
        """
        git = Git(root)
        try:
            answer = git.run(
                "rev-parse",
                "--show-toplevel",
                "--absolute-git-dir",
                "--git-common-dir",
                "--show-prefix",
            )
        except GitFailed as error:
            if "not a git repository" not in error.words:
                raise
            reason = f"the store {root} is not in a git repository; make one with: git init {root}"
            raise NotFound(reason, id=root) from error
        top, directory, common, prefix = (*answer.text.split("\n"), "")[:4]
        common = os.path.abspath(os.path.join(root, common))
        return cls(Git(top).without_filters(), top, prefix, directory, common)

    def path_of(self, kind: str, id: str) -> str:
        """Where the repository has a document: `folder/conversations/{id}.json`."""
        return f"{self.prefix}{kind}/{id}.json"

    def document_at(self, path: str) -> tuple[str, str] | None:
        """Kind and id of the store's document at `path`; None: it is none, or a file synchronizer's
        conflict copy.
        """
        place = document_in(path)
        return (
            place[1:]
            if place and place[0] == self.prefix and original_of(place[2]) is None
            else None
        )

    def pathspec(self, pattern: str) -> str:
        """A pathspec for a pattern below the store's folder, wherever git runs."""
        return ":(top,glob)" + re.sub(r"([*?[\\])", r"\\\1", self.prefix) + pattern

    def pathspecs(self) -> list[str]:
        """The pathspecs of the store's documents."""
        return [self.pathspec(f"{kind}/*.json") for kind in KINDS]

    def under_way(self) -> tuple[str, str] | None:
        """What a person has begun with git and not ended in this worktree, and how to end it; None:
        nothing.
        """
        names = (name for name in _UNDER_WAY if os.path.exists(os.path.join(self.directory, name)))
        return next((_UNDER_WAY[name] for name in names), None)

    def short(self, hash: str) -> str:
        """A hash as this repository shortens it."""
        return self.git.run("rev-parse", "--short", hash).text


def document_in(path: str) -> tuple[str, str, str] | None:
    """The store's folder, kind and id, of a path that may be a document of any store in the
    repository.
    """
    folder, _, name = path.rpartition("/")
    prefix, _, kind = folder.rpartition("/")
    id = name.removesuffix(".json")
    return (
        (f"{prefix}/" if prefix else "", kind, id)
        if kind in KINDS and name != id and is_id(id)
        else None
    )
