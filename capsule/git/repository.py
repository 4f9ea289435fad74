"""The repository that a store lies in, and which of its paths are the store's.

What must stay true: a path is repository-relative with `/` between its parts, as git writes it; the store may be the
repository's root or any folder in it, and the repository may be a linked worktree.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from capsule.errors import GitFailed, NotFound
from capsule.format.copynames import original_of
from capsule.git.program import Git
from capsule.ids import is_id
from capsule.store import Store

__all__ = ["KINDS", "Repository"]

#: The documents that git is told of, by the names of their folders.
KINDS = ("conversations", "agents")


@dataclass(frozen=True, slots=True)
class Repository:
    """A store's repository.

    Attributes:
        git: Git, in the repository's top directory.
        top: That directory.
        prefix: The store's folder in it: empty, or with a `/` at the end.
        directory: What this worktree has of git's own: its index, its HEAD.
        common: What all worktrees have together: the objects, the refs, the configuration.
    """

    git: Git
    top: str
    prefix: str
    directory: str
    common: str

    @classmethod
    def around(cls, root: str, environment: Mapping[str, str] | None = None) -> Repository:
        """The repository in which the store at `root` lies.

        Args:
            root: The store's directory.
            environment: What git runs in; None: what this process runs in.

        Raises:
            NotFound: The store lies in no repository.
            Refused: There is no program `git`.
            GitFailed: Git will not say, for example as somebody else owns the directory.
        """
        git = Git(root, environment)
        try:
            answer = git.run("rev-parse", "--show-toplevel", "--absolute-git-dir", "--git-common-dir", "--show-prefix")
        except GitFailed as error:
            if "not a git repository" not in error.words:
                raise
            what = f"the store {root} lies in no git repository; make one with: git init {root}"
            raise NotFound(what, id=root) from error
        top, directory, common, prefix = (*answer.text.split("\n"), "")[:4]
        common = os.path.abspath(os.path.join(root, common))
        return cls(Git(top, environment), top, prefix, directory, common)

    @classmethod
    def of(cls, store: Store, environment: Mapping[str, str] | None = None) -> Repository:
        """As `around`, of an open store."""
        return cls.around(store.root, environment)

    def path_of(self, kind: str, id: str) -> str:
        """Where the repository has a document: `folder/conversations/{id}.json`."""
        return f"{self.prefix}{kind}/{id}.json"

    def document_at(self, path: str) -> tuple[str, str] | None:
        """Kind and id of the store's document at `path`; None: it is none, or a file synchronizer's conflict copy."""
        if not path.startswith(self.prefix) or not path.endswith(".json"):
            return None
        kind, _, name = path[len(self.prefix) :].partition("/")
        id = name.removesuffix(".json")
        return (kind, id) if kind in KINDS and is_id(id) and original_of(id) is None else None

    def pathspecs(self, *names: str) -> list[str]:
        """What git takes for paths of the store, wherever it runs: all documents, or those of the given kinds."""
        return [f":(top,glob){_literal(self.prefix)}{kind}/*.json" for kind in names or KINDS]


def _literal(path: str) -> str:
    """`path` with what a glob would read as more than itself escaped."""
    return "".join(f"\\{letter}" if letter in "*?[\\" else letter for letter in path)
