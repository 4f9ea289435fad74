"""What became of one conversation, commit by commit.

What must stay true: git lists the commits once, and gives a content only when its commit is in the
answer; a version that does not parse is listed as damaged and hides no other; and nothing here
writes.

The list is that of `git log` for the one path, with its simplification of history (git-log(1)): a
merge is in it when it holds what none of its parents does, with what it changed against all of
them. `--follow` is not used: it goes by likeness, and breaks where branches join. A conversation's
file never changes its name, so where its history begins, a file of that name that left another
folder in that commit shows where the list goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any, NamedTuple

from capsule.errors import InvalidDocument, NotFound, Remedy
from capsule.format.merge.comparison import Comparison, FieldChange, compare
from capsule.format.validation import decoded
from capsule.git.history.log import Commit, Difference, log
from capsule.git.objects import Blobs, changes
from capsule.git.repository import Repository
from capsule.git_program import Git
from capsule.store.reading import KIND
from capsule.store.store import CoreStore

#: Versions kept in memory: what was before one commit is what another made.
_CACHED = 8


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
        result: dict[str, Any] = {"commit": None, "words": list(self.words)}
        if self.commit is not None:
            about = asdict(self.commit)
            result |= {
                "commit": about.pop("hash"),
                "committedAt": about.pop("committed_at"),
                **about,
            }
        if self.comparison is not None:
            result["changes"] = self.comparison.as_json()
        if self.damaged:
            result["damaged"] = self.damaged
        return result


class _Version(NamedTuple):
    """One version, as far as it can be read; neither: there was none."""

    document: dict[str, Any] | None = None
    damaged: str = ""


def history(
    store: CoreStore, repository: Repository, id: str, *, limit: int | None = None
) -> Generator[Step, None, None]:
    """What became of a conversation, the latest first; what is not committed yet before all."""
    path, is_known = repository.path_of(KIND, id), limit == 0 or store.engine.exists(KIND, id)
    with Blobs(repository.git) as blobs:

        @lru_cache(maxsize=_CACHED)
        def version(name: str) -> _Version:
            data = blobs.read(name) if name else None
            try:
                return _Version(None if data is None else decoded(data, f"{id}.json", id))
            except InvalidDocument as error:
                return _Version(damaged=error.message)

        pending = _pending(store, id, version(f"HEAD:{path}"), lambda: blobs.read(f"HEAD:{path}"))
        if pending is not None and limit != 0:
            yield pending
            is_known, limit = True, None if limit is None else limit - 1
        for commit, difference, came_from in _changes(repository, path, limit):
            yield _step(commit, difference, came_from, version)
            is_known = True
    if not is_known:
        raise NotFound(
            f"no conversation {id} here, nor in the history of this branch",
            remedy=Remedy("list"),
            id=id,
        )


def versions_of(repository: Repository, id: str, limit: int) -> list[str]:
    """The blobs that a conversation was on this branch, the latest first, each once."""
    differences = (
        change[1] for change in _changes(repository, repository.path_of(KIND, id), limit)
    )
    return list(dict.fromkeys(difference.after for difference in differences if difference.after))


def _pending(
    store: CoreStore, id: str, committed: _Version, read_committed: Callable[[], bytes | None]
) -> Step | None:
    """What the store has that the last commit does not."""
    try:
        now = _Version(store.document(id))
    except NotFound:
        now = _Version()
    except InvalidDocument as error:
        content = store.engine.outside_edits().read_stray(KIND, id)
        is_committed = content is not None and content == read_committed()
        return None if is_committed else Step(None, ("damaged",), damaged=error.message)
    words, comparison = _words(now, [committed])
    return Step(None, words, comparison) if committed.damaged or comparison else None


def _changes(
    repository: Repository, path: str, limit: int | None
) -> Iterator[tuple[Commit, Difference, str]]:
    """The commits that touched the conversation, what they did, and from which other path it came
    with them.
    """
    git = repository.git
    start, left = git.head(), limit
    while start and (left is None or left > 0):
        most = () if left is None else (f"--max-count={left}",)
        # `-c`: of a merge, what differs from all its parents (git-diff-tree(1), "DIFF FORMAT FOR
        # MERGES").
        commits = log(
            git, "-c", "--raw", *most, "--end-of-options", start, "--", f":(top,literal){path}"
        )
        start, left = "", None if left is None else left - len(commits)
        for number, (commit, differences) in enumerate(commits, 1):
            difference = next(
                (listed for listed in differences if listed.path == path),
                Difference(path, ("",), ""),
            )
            came_from, is_last = "", number == len(commits)
            # A shallow clone's oldest commit has no parents here: git leaves out those that the
            # clone lacks.
            if is_last and not any(difference.before) and len(commit.parents) == 1:
                came_from, blob = _moved_from(git, commit, path)
                difference = difference._replace(before=(blob,))
                start = commit.parents[0] if came_from else ""
            yield commit, difference, came_from
            path = came_from or path


def _moved_from(git: Git, commit: Commit, path: str) -> tuple[str, str]:
    """From which path a conversation's file came with the commit in which its history begins, and
    its blob there.
    """
    name = "/".join(path.rsplit("/", 2)[-2:])
    command = ("diff-tree", "-r", "--no-abbrev", "--diff-filter=D", commit.parents[0], commit.hash)
    gone = changes(git, *command, "--", f":(top,glob)**/{name}")
    return (gone[0].path, gone[0].old) if len(gone) == 1 else ("", "")


def _step(
    commit: Commit, difference: Difference, came_from: str, version: Callable[[str], _Version]
) -> Step:
    after = version(difference.after)
    words, comparison = _words(after, [version(name) for name in difference.before])
    if came_from:
        words = (f"moved from {came_from.rpartition('/conversations/')[0] or 'the top'}", *words)
    if len(difference.before) > 1:
        words = ("merged", *words)
    return Step(commit, words or ("nothing but its layout or its lock",), comparison, after.damaged)


def _words(after: _Version, before: list[_Version]) -> tuple[tuple[str, ...], Comparison | None]:
    """What became of the versions before, in words and as data, as far as they can be read."""
    if after.damaged:
        return ("damaged",), None
    whole = [version for version in before if not version.damaged]
    if not whole:
        many = len((after.document or {}).get("history", ()))
        outcome = (
            "deleted"
            if after.document is None
            else f"readable again, with {many} message{'s' * (many != 1)}"
        )
        return (outcome,), None
    try:
        comparison = _in_all([compare(version.document, after.document) for version in whole])
    except InvalidDocument as error:
        return (f"can't be compared: {error.problems[0].what}",), None
    return tuple(comparison.words()), comparison


def _in_all(comparisons: Sequence[Comparison]) -> Comparison:
    """What changed against every one of several versions (at least one) to the same later one: what
    a merge did.
    """

    def key(part: Any) -> Any:
        return (
            part.name
            if isinstance(part, FieldChange)
            else (part[1] if isinstance(part, tuple) else part)["id"]
        )

    def common(name: str) -> Any:
        values = [getattr(each, name) for each in comparisons]
        if isinstance(values[0], bool):
            return all(values)
        keys = set.intersection(*(set(map(key, value)) for value in values))
        return tuple(part for part in values[0] if key(part) in keys)

    return Comparison(**{field.name: common(field.name) for field in fields(Comparison)})
