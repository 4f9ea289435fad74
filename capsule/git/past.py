"""A conversation as it was: which commit a person means, and the version in it, read as the store reads its own.

What must stay true: a text that is neither a revision nor a date is an error, never now (git's own reading of dates
takes anything for one, so it is never asked to read any); and a past version is only read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from capsule import timestamps
from capsule.choosing import one_of
from capsule.errors import InvalidInput, NotFound
from capsule.format import migrations
from capsule.format.tree import Tree
from capsule.git.blobs import Blobs
from capsule.git.history import COMMIT_FORMAT, Commit, commits_in, pathspec
from capsule.git.repository import Repository
from capsule.head import Head
from capsule.reading import KIND
from capsule.settling import decoded
from capsule.store import Store

__all__ = ["Past", "commit_at", "past", "resolve", "short"]

Entry = dict[str, Any]

#: `BRANCH@{...}` with what is no number and no name of a branch in the braces: git takes that for a date.
_REFLOG_DATE = re.compile(r"@\{(?!-?[0-9]+\}|u\}|upstream\}|push\})", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}|[0-9]{4}-?W[0-9]{2}-?[0-9]")


@dataclass(frozen=True)
class Past:
    """One past version of a conversation, with what the store offers of the present one.

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
        """As `Store.read`."""
        assert self._document
        return self.data

    def document(self, id: str) -> dict[str, Any]:
        """As `Store.document`."""
        return self._document

    def head(self, id: str) -> Head:
        """As `Store.head`."""
        found = Head.of(self._document, self.path, len(self.data))
        assert found is not None  # It was validated.
        return found

    def branches(self, id: str) -> tuple[list[Entry], Tree, str | None]:
        """As `Store.branches`."""
        history = self._document["history"]
        return history, Tree(history), self._document["metadata"].get("currentNode")

    def tail_of_path(self, id: str, n: int) -> tuple[list[tuple[int, Entry]], Tree | None]:
        """As `Store.tail_of_path`."""
        history, tree, current = self.branches(id)
        return [(place, history[place]) for place in tree.path(current)[-n:]], tree

    def tail_entries(self, id: str, n: int) -> tuple[int, list[Entry]]:
        """As `Store.tail_entries`."""
        history = self._document["history"]
        first = max(len(history) - n, 0)
        return first, history[first:]

    def is_line(self, id: str, entries: list[Entry]) -> bool:
        """As `Store.is_line`; of what is in memory anyway the whole is looked at."""
        return False


def commit_at(repository: Repository, text: str) -> Commit:
    """The commit that a person means.

    Args:
        repository: The repository.
        text: A revision (gitrevisions(7)); else an ISO 8601 date or time, UTC where it names no zone. Of a date the
            end of its day is meant. It stands for the last commit of this branch up to then: of the commits that the
            branch went through itself (first parents), the latest whose committer's date is not after it.

    Raises:
        NotFound: There is no such commit.
        InvalidInput: It is neither.
        GitFailed: Git failed.

    Cost: two calls of git.
    """
    if _REFLOG_DATE.search(text):
        raise InvalidInput(f"{text!r}: a date stands by itself here, as 2025-01-31 or 2025-01-31T12:00Z")
    git = repository.git
    if "\0" not in text and text:
        found = git.run("rev-parse", "--verify", "--end-of-options", f"{text}^{{commit}}", fine=(0, 1, 128))
        if not found.code and found.text.isalnum():  # What is excluded, like ^main, comes back with its mark.
            return _commit(repository, found.text)
        if "ambiguous" in found.words:
            raise InvalidInput(f"{text!r} begins the names of several commits; give more of it")
    until = _moment(text)
    if git.run("rev-parse", "--verify", "--quiet", "HEAD", fine=(0, 1, 128)).code:
        raise NotFound("nothing was ever committed here; see: git log", id=text)
    # `--min-age` takes seconds and nothing else, where `--until` would read a date.
    asking = ("rev-list", "--first-parent", "--max-count=1", f"--min-age={until}", "HEAD")
    hash = git.run(*asking).text if until >= 0 else ""
    if not hash:
        first = git.run("rev-list", "--first-parent", "--max-parents=0", "HEAD").text.split("\n")[0]
        began = f"; it begins at {_commit(repository, first).committed_at}" if first else ""
        raise NotFound(f"this branch has no commit up to {text}{began}", id=text)
    return _commit(repository, hash)


def _moment(text: str) -> int:
    """Seconds since 1970 of a date or a time. Raises InvalidInput."""
    try:
        found = timestamps.parse(text)
        if _DAY.fullmatch(text):
            found = found + timedelta(days=1) - timedelta(microseconds=1)
    except (ValueError, OverflowError):
        what = "neither a revision that git knows nor a date or time, like 2025-01-31 or 2025-01-31T12:00Z"
        raise InvalidInput(f"{text[:100]!r} is {what}") from None
    return math.floor((found - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


def _commit(repository: Repository, hash: str) -> Commit:
    arguments = ("log", "-z", "--no-walk", "--encoding=UTF-8", COMMIT_FORMAT, "--end-of-options", hash)
    answer = repository.git.with_config({"log.showSignature": "false"}).run(*arguments)
    return next(commit for commit, _ in commits_in(answer.fields))


def past(repository: Repository, id: str, text: str) -> Past:
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
    commit = commit_at(repository, text)
    path = repository.path_of(KIND, id)
    with Blobs(repository.git) as blobs:
        for there in (path, *_elsewhere(repository, commit, path)):
            data = blobs.read(f"{commit.hash}:{there}")
            if data is not None:
                return Past(id, commit, f"{short(repository, commit.hash)}:{there}", data)
    raise _not_there(repository, id, commit)


def short(repository: Repository, hash: str) -> str:
    """A hash as this repository shortens it."""
    return repository.git.run("rev-parse", "--short", hash).text


def _elsewhere(repository: Repository, commit: Commit, path: str) -> Iterator[str]:
    """Where else a commit may have the conversation, the store having moved since; nowhere when that is not clear."""
    name = "/".join(path.rsplit("/", 2)[-2:])
    names = repository.git.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit.hash).fields
    found = [one for one in names if one != path and (one == name or one.endswith(f"/{name}"))]
    if len(found) == 1:
        yield found[0]


def _not_there(repository: Repository, id: str, commit: Commit) -> NotFound:
    path = repository.path_of(KIND, id)
    asking = ("log", "-z", "--no-renames", "--diff-filter=A", "--encoding=UTF-8", COMMIT_FORMAT, "HEAD", "--")
    git = repository.git.with_config({"log.showSignature": "false", "log.follow": "false", "log.showRoot": "true"})
    is_born = not git.run("rev-parse", "--verify", "--quiet", "HEAD", fine=(0, 1, 128)).code
    came = [found for found, _ in commits_in(git.run(*asking, pathspec(path)).fields)] if is_born else []
    what = f"conversation {id} is not in commit {short(repository, commit.hash)} of {commit.committed_at}"
    if not came:
        return NotFound(f"{what}, nor was it ever committed on this branch; see: capsule git log {id}", id=id)
    first = came[-1]
    began = f"the first that has it is {short(repository, first.hash)} of {first.committed_at}"
    return NotFound(f"{what}; {began}; see: capsule git log {id}", id=id)


def resolve(store: Store, repository: Repository, prefix: str) -> str:
    """As `Store.resolve`, of a conversation that may be gone by now.

    Raises:
        NotFound: Neither the store nor the history of this branch has one that is meant.
        InvalidInput: Several are, or it is too short.
    """
    try:
        return store.resolve(prefix)
    except NotFound as error:
        git, there = repository.git, repository.pathspecs(KIND)[0].removesuffix("*.json") + f"{prefix}*.json"
        if prefix == "@last" or git.run("rev-parse", "--verify", "--quiet", "HEAD", fine=(0, 1, 128)).code:
            raise
        config = {"log.follow": "false", "log.showRoot": "true", "log.showSignature": "false"}
        asking = ("log", "-z", "--format=", "--name-only", "--no-renames", "HEAD", "--", there)
        paths = git.with_config(config).run(*asking).fields
        found = {repository.document_at(path.lstrip("\n")) for path in paths}
        gone = sorted({kind_and_id[1] for kind_and_id in found if kind_and_id})
        if not gone:
            raise error from None
        return one_of(gone, prefix)
