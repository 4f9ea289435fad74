"""The history of conversations in git: commits, the versions of one conversation, common ancestors.

`log` and `commit_at` list and find commits. A text that is neither a revision nor a date is an
error and never means "now". Git's own parser of dates accepts nearly any text, so it is not used.

`timeline` lists the commits that changed one conversation. It follows `git log` for the one path,
with git's simplification of history (git-log(1)): a merge is listed if its version differs from
those of all its parents. `--follow` is not used, because it guesses by similarity and stops where
branches join. A conversation's file never changes its name. So where its history begins, a file of
that name which the same commit removed from another folder shows where the list continues. A
version that does not parse is listed as damaged and hides no other. Nothing here writes.

`ancestor` finds the committed version from which two versions of a conversation began, for copies
that a file synchronizer made. It takes a version only if both sides prove that their writers had
read it: each has the last message of that version and an `updatedAt` that is not earlier, each
message that both have is the same or has a later edit, and no message that a side lacks came into
the committed version after that last message (by a merge, for example). Without such a version
there is no ancestor, and the merge keeps more than it must, which is the smaller mistake.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple

from capsule import timestamps
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound, Remedy
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from capsule.format.merge.comparison import Comparison, FieldChange, compare
from capsule.format.validation import decode_checked
from capsule.git.objects import BlobReader, changes
from capsule.git.repository import Repository
from capsule.git_program import Git
from capsule.store.store import CoreStore

#: \x01 and seven texts, each with a NUL behind it (git-log(1), "PRETTY FORMATS").
_FORMAT = "--format=%x01%H%x00%P%x00%aN%x00%aE%x00%aI%x00%cI%x00%s"
#: `BRANCH@{...}` with what is no number and no name of a branch in the braces: git takes that for a
#: date.
_REFLOG_DATE = re.compile(r"@\{(?!-?[0-9]+\}|u\}|upstream\}|push\})", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}|[0-9]{4}-?W[0-9]{2}-?[0-9]")


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit.

    Attributes:
        hash: Its whole hash.
        parents: Those of its parents.
        author, email: Who wrote it, by the repository's mailmap.
        at, committed_at: When it was written, and when it was committed, in ISO 8601 with the
            person's zone.
        subject: The first line of its message.
    """

    hash: str
    parents: tuple[str, ...]
    author: str
    email: str
    at: str
    committed_at: str
    subject: str


class PathDifference(NamedTuple):
    """What a commit did to one path: the blob it was in each parent, and the blob that it is;
    empty: none.
    """

    path: str
    before: tuple[str, ...]
    after: str


def log(git: Git, *arguments: str) -> list[tuple[Commit, list[PathDifference]]]:
    """The commits by a `git log` with these arguments, and their differences, if the arguments have
    `--raw`.
    """
    fields = git.run(
        "log", "-z", "--no-abbrev", "--no-renames", "--encoding=UTF-8", _FORMAT, *arguments
    ).fields
    commits: list[tuple[Commit, list[PathDifference]]] = []
    at = 0
    while at < len(fields):
        text = fields[at].lstrip("\n")
        if text.startswith("\x01"):
            commits.append(
                (Commit(text[1:], tuple(fields[at + 1].split()), *fields[at + 2 : at + 7]), [])
            )
            at += 7
        elif text:
            # A colon for each parent, the modes, the blobs, and what was done; then the path.
            parents = len(text) - len(text.lstrip(":"))
            blobs = text[parents:].split(" ")[parents + 1 : 2 * parents + 2]
            *before, after = (blob if blob.strip("0") else "" for blob in blobs)
            commits[-1][1].append(PathDifference(fields[at + 1], tuple(before), after))
            at += 2
        else:
            at += 1
    return commits


def commit_at(repository: Repository, text: str) -> Commit:
    """The commit that `text` names: a revision (gitrevisions(7)), or a date or time.

    Of a date the end of its day counts. It stands for the latest commit of this branch, by its
    first parents, whose committer's date is not after it.

    Raises:
        NotFound: There is no such commit.
        InvalidInput: It is neither.
    """
    if _REFLOG_DATE.search(text):
        raise InvalidInput(f"{text!r}: give the date alone, like 2025-01-31 or 2025-01-31T12:00Z")
    git = repository.git
    if "\0" not in text and text:
        answer = git.run(
            "rev-parse", "--verify", "--end-of-options", f"{text}^{{commit}}", ok_codes=(0, 1, 128)
        )
        if (
            not answer.code and answer.text.isalnum()
        ):  # What is excluded, like ^main, comes back with its mark.
            return _commit(git, answer.text)
        if "ambiguous" in answer.words:
            raise InvalidInput(f"{text!r} fits several commits; give more characters of it")
    until = _seconds(text)
    if git.head() is None:
        raise NotFound("there is no commit here yet; see: git log", id=text)
    # `--min-age` takes seconds and nothing else, where `--until` would read a date.
    options = ("--first-parent", "--max-count=1", f"--min-age={until}")
    hash = git.run("rev-list", *options, "HEAD").text if until >= 0 else ""
    if not hash:
        first = git.run("rev-list", "--first-parent", "--max-parents=0", "HEAD").text.split("\n")[0]
        began = f"; it begins at {_commit(git, first).committed_at}" if first else ""
        raise NotFound(f"this branch has no commit up to {text}{began}", id=text)
    return _commit(git, hash)


def _seconds(text: str) -> int:
    """Seconds since 1970 of a date or a time. Raises InvalidInput."""
    try:
        time = timestamps.parse(text)
        if _DAY.fullmatch(text):
            time += timedelta(days=1) - timedelta(microseconds=1)
    except (ValueError, OverflowError):
        reason = (
            "neither a revision that git knows nor a date or time, like 2025-01-31 or "
            "2025-01-31T12:00Z"
        )
        raise InvalidInput(f"{text[:100]!r} is {reason}") from None
    return math.floor((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


def _commit(git: Git, hash: str) -> Commit:
    return log(git, "--no-walk", "--end-of-options", hash)[0][0]


#: Versions kept in memory: what was before one commit is what another made.
_CACHED = 8


@dataclass(frozen=True, slots=True)
class TimelineStep:
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


class _ReadVersion(NamedTuple):
    """One version, as far as it can be read; neither: there was none."""

    document: dict[str, Any] | None = None
    damaged: str = ""


def history(
    store: CoreStore, repository: Repository, id: str, *, limit: int | None = None
) -> Generator[TimelineStep, None, None]:
    """What became of a conversation, the latest first; what is not committed yet before all."""
    path, is_known = (
        repository.path_of(CONVERSATIONS, id),
        limit == 0 or store.engine.exists(CONVERSATIONS, id),
    )
    with BlobReader(repository.git) as blobs:

        @lru_cache(maxsize=_CACHED)
        def version(name: str) -> _ReadVersion:
            data = blobs.read(name) if name else None
            try:
                return _ReadVersion(
                    None if data is None else decode_checked(data, f"{id}.json", id)
                )
            except InvalidDocument as error:
                return _ReadVersion(damaged=error.message)

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
        change[1] for change in _changes(repository, repository.path_of(CONVERSATIONS, id), limit)
    )
    return list(dict.fromkeys(difference.after for difference in differences if difference.after))


def _pending(
    store: CoreStore, id: str, committed: _ReadVersion, read_committed: Callable[[], bytes | None]
) -> TimelineStep | None:
    """What the store has that the last commit does not."""
    try:
        now = _ReadVersion(store.document(id))
    except NotFound:
        now = _ReadVersion()
    except InvalidDocument as error:
        content = store.engine.external_edits().read_stray(CONVERSATIONS, id)
        is_committed = content is not None and content == read_committed()
        return None if is_committed else TimelineStep(None, ("damaged",), damaged=error.message)
    words, comparison = _words(now, [committed])
    return TimelineStep(None, words, comparison) if committed.damaged or comparison else None


def _changes(
    repository: Repository, path: str, limit: int | None
) -> Iterator[tuple[Commit, PathDifference, str]]:
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
                PathDifference(path, ("",), ""),
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
    commit: Commit,
    difference: PathDifference,
    came_from: str,
    version: Callable[[str], _ReadVersion],
) -> TimelineStep:
    after = version(difference.after)
    words, comparison = _words(after, [version(name) for name in difference.before])
    if came_from:
        words = (f"moved from {came_from.rpartition('/conversations/')[0] or 'the top'}", *words)
    if len(difference.before) > 1:
        words = ("merged", *words)
    return TimelineStep(
        commit, words or ("nothing but its layout or its lock",), comparison, after.damaged
    )


def _words(
    after: _ReadVersion, before: list[_ReadVersion]
) -> tuple[tuple[str, ...], Comparison | None]:
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


#: So many committed versions are looked at, from the latest on.
_MOST = 50
Document = Mapping[str, Any]


def ancestor(repository: Repository, id: str, ours: bytes, theirs: bytes) -> bytes | None:
    """The version that two versions of a conversation began from, in the clean form; None: no
    commit shows it.
    """
    sides = [codec.decode(data, f"{id}.json") for data in (ours, theirs)]
    versions = list(_versions(repository, id))
    for at, (data, version) in enumerate(versions):
        older = [_ids(document) for _, document in versions[at + 1 :]]
        if all(_has_read(side, version, older) for side in sides):
            return data
    return None


def _versions(repository: Repository, id: str) -> Iterator[tuple[bytes, Document]]:
    """The committed versions that can be read, in the clean form, the latest first."""
    with BlobReader(repository.git) as blobs:
        for name in versions_of(repository, id, _MOST):
            try:
                data = clean(blobs.read(name) or b"", f"{id}.json", CONVERSATIONS)
                yield data, codec.decode(data, f"{id}.json")
            except CapsuleError:
                continue


def _ids(document: Document) -> set[str]:
    return {message["id"] for message in document["history"]}


def _has_read(side: Document, version: Document, older: list[set[str]]) -> bool:
    """Whether the version `side` shows that it was made from `version`; `older` has the messages of
    earlier ones.
    """
    if side["updatedAt"] < version["updatedAt"] or not version["history"]:
        return False
    messages = {message["id"]: message for message in side["history"]}
    last = version["history"][-1]["id"]
    if last not in messages:
        return False
    missing = _ids(version) - messages.keys()
    if any(last in had and missing - had for had in older):
        # It may have been made from that older one, and never have had what came in between.
        return False
    return all(
        mine == message or str(mine.get("editedAt") or "") > str(message.get("editedAt") or "")
        for message in version["history"]
        if (mine := messages.get(message["id"])) is not None
    )
