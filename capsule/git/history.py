"""What became of one conversation, commit by commit.

What must stay true: git is asked once for the list of commits, in its machine format, and for a content only when that
commit is told of; a version that does not parse is listed as damaged and hides no other; and nothing here writes.

The list is that of `git log` for the one path, with its simplification of history (git-log(1)): a merge is in it when
it holds what none of its parents does, and is told by what it changed against all of them. `--follow` is not used: it
goes by likeness, and breaks where branches join. A conversation's file never changes its name, so where its history
begins, that commit is asked whether a file of that name went from another folder, and the list goes on there.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from capsule.engines.files import files_of
from capsule.errors import InvalidDocument, NotFound
from capsule.format.comparing import Comparison, compare, in_all
from capsule.git.blobs import Blobs
from capsule.git.objects import changes
from capsule.git.program import Git
from capsule.git.repository import Repository
from capsule.reading import KIND
from capsule.settling import decoded
from capsule.store import Store

__all__ = ["COMMIT_FORMAT", "Commit", "Step", "commits_in", "history", "pathspec", "versions_of"]

#: A commit as `commits_in` reads it: \x01 and seven texts, each with a NUL behind it (git-log(1), "PRETTY FORMATS").
COMMIT_FORMAT = "--format=%x01%H%x00%P%x00%aN%x00%aE%x00%aI%x00%cI%x00%s"
#: Whatever the person's settings are: the first commit differs from nothing, and no path is followed.
_SETTINGS = {"log.showRoot": "true", "log.follow": "false", "log.showSignature": "false"}
_CACHED = 8


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit.

    Attributes:
        hash: Its whole hash.
        parents: Those of its parents.
        author: Who wrote it, by the repository's mailmap.
        email: Their address.
        at: When it was written, in ISO 8601 with the author's zone.
        committed_at: When it was committed, likewise.
        subject: The first line of its message.
    """

    hash: str
    parents: tuple[str, ...]
    author: str
    email: str
    at: str
    committed_at: str
    subject: str


@dataclass(frozen=True, slots=True)
class Step:
    """What one commit did to a conversation.

    Attributes:
        commit: The commit; None: what is not committed yet.
        words: What it did, in a few words each.
        comparison: The same as data; None where one of the versions does not parse.
        damaged: What is wrong with the version in this commit; empty when nothing is.
    """

    commit: Commit | None
    words: tuple[str, ...]
    comparison: Comparison | None = None
    damaged: str = ""

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        told: dict[str, Any] = {"commit": None, "words": list(self.words)}
        if self.commit is not None:
            found = self.commit
            told |= {"commit": found.hash, "parents": list(found.parents), "author": found.author}
            told |= {"email": found.email, "at": found.at, "committedAt": found.committed_at, "subject": found.subject}
        if self.comparison is not None:
            told["changes"] = self.comparison.as_json()
        if self.damaged:
            told["damaged"] = self.damaged
        return told


class _Entry(NamedTuple):
    """What a commit did to one path: the blob it was in each parent, and the blob that it is; empty: none."""

    path: str
    before: tuple[str, ...]
    after: str


class _Version(NamedTuple):
    """One version, as far as it can be read; neither: there was none."""

    document: dict[str, Any] | None = None
    damaged: str = ""


def pathspec(path: str) -> str:
    """What git takes for this very path, from wherever it runs."""
    return f":(top,literal){path}"


def history(store: Store, repository: Repository, id: str, *, limit: int | None = None) -> Generator[Step, None, None]:
    """What became of a conversation, the latest first; what is not committed yet before all.

    Args:
        store: The store.
        repository: Its repository.
        id: The conversation, which may be gone by now.
        limit: So many steps at most.

    Raises:
        NotFound: Neither the store nor the history of this branch has, or had, such a conversation.
        GitFailed: Git failed.

    Cost: one `git log`, and a read and a parse of each version that is told of.
    """
    told = 0
    with Blobs(repository.git) as blobs:
        versions = _Versions(blobs, id)
        pending = _pending(store, repository, id, versions)
        if pending is not None and limit != 0:
            yield pending
            told = 1
        left = None if limit is None else limit - told
        for commit, entry, came_from in _changes(repository, repository.path_of(KIND, id), left):
            yield _step(commit, entry, came_from, versions)
            told += 1
    if not told and limit != 0 and not store.engine.exists(KIND, id):
        raise NotFound(f"no conversation {id} here, nor in the history of this branch; see: capsule list", id=id)


def versions_of(repository: Repository, id: str, limit: int) -> list[str]:
    """The blobs that a conversation was on this branch, the latest first, each once."""
    found = _changes(repository, repository.path_of(KIND, id), limit)
    return list(dict.fromkeys(entry.after for _, entry, _ in found if entry.after))


def _pending(store: Store, repository: Repository, id: str, versions: _Versions) -> Step | None:
    """What the store has that the last commit does not."""
    committed_as = f"HEAD:{repository.path_of(KIND, id)}"
    committed = versions.at(committed_as)
    try:
        now = _Version(store.document(id))
    except NotFound:
        now = _Version()
    except InvalidDocument as error:
        got = files_of(store.engine).read(KIND, id)
        is_committed = got is not None and got[0] == versions.bytes_at(committed_as)
        return None if is_committed else Step(None, ("damaged",), damaged=error.message)
    words, comparison = _told(now, [committed])
    if committed.damaged or (comparison is not None and comparison):
        return Step(None, words, comparison)
    return None


def _changes(repository: Repository, path: str, limit: int | None) -> Iterator[tuple[Commit, _Entry, str]]:
    """The commits that touched the conversation, what they did, and from which other path it came with them."""
    git, start, left = repository.git, "HEAD", limit
    if git.run("rev-parse", "--verify", "--quiet", "HEAD", fine=(0, 1, 128)).code:
        return  # Nothing was ever committed.
    shallow = set(_shallow(repository))
    while left is None or left > 0:
        found = _log(git, start, path, left)
        for at, (commit, entry) in enumerate(found):
            came_from, is_last = "", at == len(found) - 1
            if is_last and not any(entry.before) and len(commit.parents) == 1 and commit.hash not in shallow:
                came_from, was = _moved_from(git, commit, path)
                entry = entry._replace(before=(was,))
            yield commit, entry, came_from
            if is_last and not came_from:
                return
        if not found:
            return
        left = None if left is None else left - len(found)
        start, path = found[-1][0].parents[0], came_from


def _log(git: Git, start: str, path: str, limit: int | None) -> list[tuple[Commit, _Entry]]:
    many = () if limit is None else (f"--max-count={limit}",)
    # `-c`: of a merge, what differs from all its parents (git-diff-tree(1), "DIFF FORMAT FOR MERGES").
    shape = ("-z", "-c", "--raw", "--no-abbrev", "--no-renames", "--encoding=UTF-8", COMMIT_FORMAT)
    asking = ("log", *shape, *many, "--end-of-options", start, "--", pathspec(path))
    answer = git.with_config(_SETTINGS).run(*asking)
    return [
        (commit, next((entry for entry in entries if entry.path == path), _Entry(path, ("",), "")))
        for commit, entries in commits_in(answer.fields)
    ]


def commits_in(fields: list[str]) -> Iterator[tuple[Commit, list[_Entry]]]:
    """The commits in what `git log -z` said in `COMMIT_FORMAT`, with the entries of `--raw`, if it was asked for."""
    at = 0
    while at < len(fields):
        head = fields[at : at + 7]
        at += 7
        commit = Commit(head[0].lstrip("\n")[1:], tuple(head[1].split()), *head[2:])
        entries = []
        while at < len(fields) and not fields[at].startswith("\x01"):
            if raw := fields[at].lstrip("\n"):
                entries.append(_entry(raw, fields[at + 1]))
                at += 1
            at += 1
        yield commit, entries


def _entry(raw: str, path: str) -> _Entry:
    """One line of `--raw`: a colon for each parent, the modes, the blobs, and what was done."""
    parents = len(raw) - len(raw.lstrip(":"))
    words = raw[parents:].split(" ")
    blobs = ["" if not blob.strip("0") else blob for blob in words[parents + 1 : 2 * parents + 2]]
    return _Entry(path, tuple(blobs[:-1]), blobs[-1])


def _shallow(repository: Repository) -> list[str]:
    """The commits at which a shallow clone ends."""
    answer = repository.git.run("rev-parse", "--is-shallow-repository", "--git-path", "shallow")
    is_shallow, _, path = answer.text.partition("\n")
    if is_shallow != "true":
        return []
    with open(os.path.join(repository.git.directory, path), encoding="ascii") as file:
        return file.read().split()


def _moved_from(git: Git, commit: Commit, path: str) -> tuple[str, str]:
    """From which path a conversation's file came with the commit in which its history begins, and its blob there."""
    name = path.rsplit("/", 2)[-2:]
    asking = ("diff-tree", "-r", "--no-abbrev", "--diff-filter=D", commit.parents[0], commit.hash)
    gone = changes(git, *asking, "--", f":(top,glob)**/{'/'.join(name)}")
    return (gone[0].path, gone[0].old) if len(gone) == 1 else ("", "")


class _Versions:
    """The versions of one conversation, the last few kept: what was before one commit is what another made."""

    def __init__(self, blobs: Blobs, id: str) -> None:
        self._blobs = blobs
        self._id = id
        self._kept: OrderedDict[str, _Version] = OrderedDict()

    def at(self, name: str) -> _Version:
        """The version under a name that `Blobs.read` takes."""
        if not name:
            return _Version()
        if name not in self._kept:
            self._kept[name] = self._read(name)
            if len(self._kept) > _CACHED:
                self._kept.popitem(last=False)
        self._kept.move_to_end(name)
        return self._kept[name]

    def bytes_at(self, name: str) -> bytes | None:
        """The same as it stands there."""
        return self._blobs.read(name)

    def _read(self, name: str) -> _Version:
        data = self._blobs.read(name)
        if data is None:
            return _Version()
        try:
            return _Version(decoded(data, f"{self._id}.json", self._id))
        except InvalidDocument as error:
            return _Version(damaged=error.message)


def _step(commit: Commit, entry: _Entry, came_from: str, versions: _Versions) -> Step:
    after = versions.at(entry.after)
    words, comparison = _told(after, [versions.at(name) for name in entry.before])
    if came_from:
        words = (f"moved from {came_from.rpartition('/conversations/')[0] or 'the top'}", *words)
    if len(entry.before) > 1:
        words = ("merged", *words)
    return Step(commit, words or ("nothing but its layout or its lock",), comparison, after.damaged)


def _told(after: _Version, before: list[_Version]) -> tuple[tuple[str, ...], Comparison | None]:
    """What came of the versions before, in words and as data, as far as they can be read."""
    if after.damaged:
        return ("damaged",), None
    whole = [version for version in before if not version.damaged]
    if not whole:
        many = len((after.document or {}).get("history", ()))
        said = "deleted" if after.document is None else f"readable again, with {many} message{'s' * (many != 1)}"
        return (said,), None
    try:
        comparison = in_all([compare(version.document, after.document) for version in whole])
    except InvalidDocument as error:
        return (f"can't be compared: {error.problems[0].what}",), None
    return tuple(comparison.words()), comparison
