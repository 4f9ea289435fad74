"""A version of a conversation that git has, read as the store reads its own; and the difference of two as git shows it.

What must stay true: a past version is only read. And git shows the difference of texts that were made here, from
versions that were read and checked, so that neither a clone without the drivers nor a store that moved shows anything
else; the person's settings of diff hold, but for programs and names.

The alternative for the latter was `git diff REV -- path` with the textconv given by `-c`: that works only where the
attributes are set up too, starts a Python for each side, reads a file that a splice may be under way in, and finds no
path that has another name in the other commit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any

from capsule.engines.files.external_edits import decoded
from capsule.errors import NotFound
from capsule.format import migrations
from capsule.format.head import Head
from capsule.format.references import one_of
from capsule.format.tree.tree import Tree
from capsule.git.history.log import Commit, commit_at, log
from capsule.git.objects import Blobs
from capsule.git.program import Git
from capsule.git.repository import Repository
from capsule.store.reading import KIND
from capsule.store.store import Store

Entry = dict[str, Any]


@dataclass(frozen=True)
class PastVersion:
    """One past version of a conversation. What it offers besides is what the store offers of the present one.

    Attributes:
        id: The conversation.
        commit: The commit that holds this version.
        path: Where it holds it: `REVISION:path`, for words and errors.
        data: The file's bytes there.
    """

    id: str
    commit: Commit
    path: str
    data: bytes

    @cached_property
    def _document(self) -> dict[str, Any]:
        return migrations.current(decoded(self.data, self.path, self.id), self.path)[0]

    def read(self, id: str) -> bytes:
        assert self._document
        return self.data

    def document(self, id: str) -> dict[str, Any]:
        return self._document

    def head(self, id: str) -> Head:
        head = Head.of(self._document, self.path, len(self.data))
        assert head is not None  # It was validated.
        return head

    def branches(self, id: str) -> tuple[list[Entry], Tree, str | None]:
        history = self._document["history"]
        return history, Tree(history), self._document["metadata"].get("currentNode")

    def tail_of_path(self, id: str, n: int) -> tuple[list[tuple[int, Entry]], Tree | None]:
        history, tree, current = self.branches(id)
        return [(place, history[place]) for place in tree.path(current)[-n:]], tree

    def tail_entries(self, id: str, n: int) -> tuple[int, list[Entry]]:
        history = self._document["history"]
        first = max(len(history) - n, 0)
        return first, history[first:]

    def is_line(self, id: str, entries: list[Entry]) -> bool:
        return False  # The whole is in memory, and is looked at.


def past_version(repository: Repository, id: str, text: str) -> PastVersion:
    """The version of a conversation that a commit holds.

    Args:
        repository: The repository.
        id: The conversation, which may be gone by now.
        text: The commit, as `commit_at` takes it.

    Raises:
        NotFound: There is no such commit, or it does not have the conversation; the first that has is named.
        InvalidInput, GitFailed: As `commit_at`.
        InvalidDocument: What it has there does not parse. Raised when it is read.
    """
    commit, path = commit_at(repository, text), repository.path_of(KIND, id)
    revision = repository.short(commit.hash)
    with Blobs(repository.git) as blobs:
        data = blobs.read(f"{commit.hash}:{path}")
        if data is None and (path := _elsewhere(repository, commit, path)):
            data = blobs.read(f"{commit.hash}:{path}")
    if data is not None:
        return PastVersion(id, commit, f"{revision}:{path}", data)
    what = f"conversation {id} is not in commit {revision} of {commit.committed_at}"
    git, spec = repository.git, f":(top,literal){repository.path_of(KIND, id)}"
    born = log(git, "--diff-filter=A", "HEAD", "--", spec) if git.head() else []
    if not born:
        raise NotFound(f"{what}, nor was it ever committed on this branch; see: capsule git log {id}", id=id)
    first = born[-1][0]
    began = f"the first that has it is {repository.short(first.hash)} of {first.committed_at}"
    raise NotFound(f"{what}; {began}; see: capsule git log {id}", id=id)


def _elsewhere(repository: Repository, commit: Commit, path: str) -> str:
    """Where else a commit has the conversation, the store having moved since; empty when that is not clear."""
    name = "/" + "/".join(path.rsplit("/", 2)[-2:])
    paths = repository.git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit.hash).fields
    others = [other for other in paths if other != path and f"/{other}".endswith(name)]
    return others[0] if len(others) == 1 else ""


def resolve(store: Store, repository: Repository, prefix: str) -> str:
    """As `Store.resolve`, of a conversation that may be gone by now.

    Raises:
        NotFound: Neither the store nor the history of this branch has one that is meant.
        InvalidInput: Several are, or it is too short.
    """
    try:
        return store.resolve(prefix)
    except NotFound as error:
        if prefix == "@last" or repository.git.head() is None:
            raise
        spec = repository.pathspecs(KIND)[0].removesuffix("*.json") + f"{prefix}*.json"
        command = ("log", "-z", "--format=", "--name-only", "--no-renames", "HEAD", "--", spec)
        places = map(repository.document_at, (path.lstrip("\n") for path in repository.git.run(*command).fields))
        gone = sorted({place[1] for place in places if place})
        if not gone:
            raise error from None
        return one_of(gone, prefix)


def text_difference(
    repository: Repository, name: str, before: tuple[str, bytes], after: tuple[str, bytes], *, coloured: bool = False
) -> bytes:
    """A unified diff by git; empty when the texts are the same.

    Args:
        repository: The repository whose settings hold.
        name: What the texts are of, as the name of a file.
        before: What the one is called, as the name of a folder, and the text in UTF-8.
        after: The other one, likewise.
        coloured: Whether it is coloured.

    Raises:
        GitFailed: Git failed.
    """
    if before[1] == after[1]:
        return b""
    with TemporaryDirectory(prefix="capsule-diff-") as directory:
        for label, text in (before, after):
            os.mkdir(os.path.join(directory, label))
            with open(os.path.join(directory, label, name), "wb") as file:
                file.write(text)
        # Told of its repository, git knows its settings out there.
        options = ("--no-prefix", "--no-ext-diff", "--no-textconv", "--no-renames")
        colour = f"--color={'always' if coloured else 'never'}"
        command = (f"--git-dir={repository.directory}", "diff", "--no-index", *options, colour, "--")
        return Git(directory).run(*command, f"{before[0]}/{name}", f"{after[0]}/{name}", fine=(0, 1)).out
