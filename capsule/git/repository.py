"""The git repository that contains a store, and its paths of the store's documents.

What must stay true: a path is relative to the top of the repository, with `/` between its parts, as
git writes it. The store may be the repository's root or any folder in it. The repository may be a
linked worktree.
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

#: Operations of a person that may be unfinished, by the file in git's directory that shows it, and
#: how to end each.
_UNFINISHED = {
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
        git: Git, in the repository's top directory. It runs no program that the repository names.
        top: The top directory.
        prefix: The store's folder in it: empty, or with a `/` at the end.
        directory: Git's own directory for this worktree, with its index and its HEAD.
        common: Git's directory that all worktrees share, with the objects, the refs and the
            configuration.
    """

    git: Git
    top: str
    prefix: str
    directory: str
    common: str

    @classmethod
    def find(cls, root: str) -> Repository:
        """Return the repository that contains the store at `root`.

        Raises:
            NotFound: The store is in no repository.
            Refused: The program `git` is not installed, or a filter can't be turned off.
            GitFailed: Git refuses, for example because somebody else owns the directory.
        """
        git = Git(root)
        try:
            output = git.run(
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
        # Git prints an empty line for an empty prefix, and `text` drops it.
        top, directory, common, prefix = (*output.text.split("\n"), "")[:4]
        return cls(
            git=Git(top).without_filters(),
            top=top,
            prefix=prefix,
            directory=directory,
            common=os.path.abspath(os.path.join(root, common)),
        )

    def path_of(self, kind: str, id: str) -> str:
        """Return the path of a document in the repository: `folder/conversations/{id}.json`."""
        return f"{self.prefix}{kind}/{id}.json"

    def document_at(self, path: str) -> tuple[str, str] | None:
        """Return the kind and id of the store's document at `path`. None: it is no document, or the
        conflict copy of a program that synchronizes files.
        """
        location = document_in(path)
        if location is None:
            return None
        prefix, kind, id = location
        if prefix != self.prefix or original_of(id) is not None:
            return None
        return kind, id

    def pathspec(self, pattern: str) -> str:
        """Return the pathspec for a pattern below the store's folder, wherever git runs."""
        return ":(top,glob)" + re.sub(r"([*?[\\])", r"\\\1", self.prefix) + pattern

    def pathspecs(self) -> list[str]:
        """Return the pathspecs of the store's documents."""
        return [self.pathspec(f"{kind}/*.json") for kind in KINDS]

    def unfinished_operation(self) -> tuple[str, str] | None:
        """Return the operation of git that a person has begun in this worktree and not ended, such
        as a merge, and how to end it.
        """
        for name, operation in _UNFINISHED.items():
            if os.path.exists(os.path.join(self.directory, name)):
                return operation
        return None

    def short(self, hash: str) -> str:
        """Return a hash as this repository shortens it."""
        return self.git.run("rev-parse", "--short", hash).text


def document_in(path: str) -> tuple[str, str, str] | None:
    """Return the store's folder, the kind and the id of a path, if it may be a document of any store
    in the repository.
    """
    folder, _, name = path.rpartition("/")
    prefix, _, kind = folder.rpartition("/")
    id = name.removesuffix(".json")
    if kind not in KINDS or name == id or not is_id(id):
        return None
    return f"{prefix}/" if prefix else "", kind, id
