"""The history of conversations in git: commits, the versions of one conversation, common ancestors,
and past versions to read, compare and restore.

`log` and `commit_at` list and find commits. A text that is neither a revision nor a date is an
error and never means "now". Git's own parser of dates accepts nearly any text, so it is not used.

`history` lists the commits that changed one conversation. It follows `git log` for the one path,
with git's simplification of history (git-log(1)): a merge is listed if its version differs from
the versions of all its parents. `--follow` is not used, because it guesses by similarity and stops
where branches join. A conversation's file never changes its name. If the commit that added the file
removed a file of that name from another folder, the store was moved, and the list continues with
the former path. A version that does not parse is listed as damaged and hides no other.

`ancestor` finds the committed version from which two versions of a conversation began, for copies
that a file synchronizer made. It accepts a version only if both sides prove that their writers had
read it (`_has_read`). Without such a version there is no ancestor, and the merge keeps more than it
must, which is the smaller mistake.

`past_version` finds the file of a conversation in a commit, also if the store was in another folder
then. A past version is read through a store in memory, by the same methods as the present one.
`Diff.text` writes both versions as text (`textconv.py`) and lets git compare the texts. The
alternative was `git diff REV -- path` with a textconv. It needs the attributes, starts a Python
process for each side, may read a file while it is being written, and does not find a path that has
another name in the other commit.

What must stay true: only `restore` writes. A diff is the same in a clone without the drivers, and in
a store that was moved. A person's settings of `git diff` apply, except programs and names.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import cached_property, lru_cache
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from capsule import timestamps
from capsule.engines import opening
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound, Remedy
from capsule.format import migrations
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from capsule.format.merge.comparison import Comparison, FieldChange, compare
from capsule.format.references import resolve_prefix
from capsule.format.validation import decode_checked
from capsule.git.plumbing import BlobReader, Repository, changes
from capsule.git.textconv import readable
from capsule.git_program import Git
from capsule.settings import Settings
from capsule.store.store import CoreStore

# -- Commits and their changes ---------------------------------------------------------------------

#: \x01 and seven texts, each followed by a NUL (git-log(1), "PRETTY FORMATS").
_FORMAT = "--format=%x01%H%x00%P%x00%aN%x00%aE%x00%aI%x00%cI%x00%s"
#: `BRANCH@{...}` with neither a number nor a name in the braces, which git parses as a date.
_REFLOG_DATE = re.compile(r"@\{(?!-?[0-9]+\}|u\}|upstream\}|push\})", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}|[0-9]{4}-?W[0-9]{2}-?[0-9]")


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit.

    Attributes:
        hash: Its full hash.
        parents: The hashes of its parents.
        author, email: Its author, by the repository's mailmap.
        at, committed_at: The author's and the committer's time, in ISO 8601 with the person's zone.
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
    """What a commit did to one path.

    Attributes:
        path: The path.
        parent_blobs: The blob at the path in each parent. Empty: none.
        blob: The blob at the path in the commit. Empty: none.
    """

    path: str
    parent_blobs: tuple[str, ...]
    blob: str


def log(git: Git, *arguments: str) -> list[tuple[Commit, list[PathDifference]]]:
    """Return the commits of a `git log` with these arguments. If the arguments have `--raw`, each
    has its differences.
    """
    fields = git.run(
        "log", "-z", "--no-abbrev", "--no-renames", "--encoding=UTF-8", _FORMAT, *arguments
    ).fields
    commits: list[tuple[Commit, list[PathDifference]]] = []
    index = 0
    while index < len(fields):
        field = fields[index].lstrip("\n")
        if field.startswith("\x01"):
            parents = tuple(fields[index + 1].split())
            commits.append((Commit(field[1:], parents, *fields[index + 2 : index + 7]), []))
            index += 7
        elif field:
            # A colon for each parent, the modes, the blobs and the status. The path follows.
            count = len(field) - len(field.lstrip(":"))
            names = field[count:].split(" ")[count + 1 : 2 * count + 2]
            *parent_blobs, blob = (name if name.strip("0") else "" for name in names)
            _, differences = commits[-1]
            differences.append(PathDifference(fields[index + 1], tuple(parent_blobs), blob))
            index += 2
        else:
            index += 1
    return commits


def commit_at(repository: Repository, text: str) -> Commit:
    """Return the commit for a revision (gitrevisions(7)), or for a date or time.

    A date means the end of its day. The commit for a time is the latest commit of this branch, by
    its first parents, whose committer's date is not later.

    Raises:
        NotFound: No such commit exists.
        InvalidInput: `text` is neither a revision nor a date or time.
    """
    if _REFLOG_DATE.search(text):
        raise InvalidInput(f"{text!r}: give the date alone, like 2025-01-31 or 2025-01-31T12:00Z")
    git = repository.git
    if "\0" not in text and text:
        output = git.run(
            "rev-parse", "--verify", "--end-of-options", f"{text}^{{commit}}", ok_codes=(0, 1, 128)
        )
        # The output for an excluded revision, such as ^main, begins with the mark.
        if output.code == 0 and output.text.isalnum():
            return _commit(git, output.text)
        if "ambiguous" in output.words:
            raise InvalidInput(f"{text!r} fits several commits; give more characters of it")
    latest_s = _seconds(text)
    if git.head() is None:
        raise NotFound("there is no commit here yet; see: git log", id=text)
    # `--min-age` takes seconds and nothing else, where `--until` would read a date.
    hash = ""
    if latest_s >= 0:
        options = ("--first-parent", "--max-count=1", f"--min-age={latest_s}")
        hash = git.run("rev-list", *options, "HEAD").text
    if not hash:
        first = git.run("rev-list", "--first-parent", "--max-parents=0", "HEAD").text.split("\n")[0]
        beginning = f"; it begins at {_commit(git, first).committed_at}" if first else ""
        raise NotFound(f"this branch has no commit up to {text}{beginning}", id=text)
    return _commit(git, hash)


def _seconds(text: str) -> int:
    """Return a time, or the end of a date, in seconds since 1970. Raises InvalidInput."""
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


#: The number of parsed versions in memory. The version after one commit is often the version before
#: the next one.
_MAX_CACHED = 8


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """What one commit did to a conversation.

    Attributes:
        commit: The commit. None: the step is the uncommitted changes.
        words: What it did, in a few words each.
        comparison: The same as data. None: one of the versions does not parse.
        damaged: The problem of the version in this commit. Empty: it has none.
    """

    commit: Commit | None
    words: tuple[str, ...]
    comparison: Comparison | None = None
    damaged: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        result: dict[str, Any] = {"commit": None, "words": list(self.words)}
        if self.commit is not None:
            commit_json = asdict(self.commit)
            result["commit"] = commit_json.pop("hash")
            result["committedAt"] = commit_json.pop("committed_at")
            result |= commit_json
        if self.comparison is not None:
            result["changes"] = self.comparison.as_json()
        if self.damaged:
            result["damaged"] = self.damaged
        return result


class _ReadVersion(NamedTuple):
    """One version, as far as it can be read. The default is a version that does not exist.

    Attributes:
        document: The document, if it parses.
        damaged: The problem, if it does not.
    """

    document: dict[str, Any] | None = None
    damaged: str = ""


def history(
    store: CoreStore, repository: Repository, id: str, *, limit: int | None = None
) -> Generator[TimelineStep, None, None]:
    """Yield what happened to a conversation, the latest first. The uncommitted changes come before
    all commits.

    Raises NotFound at the end, if neither the store nor the history has the conversation.
    """
    path = repository.path_of(CONVERSATIONS, id)
    exists = limit == 0 or store.engine.exists(CONVERSATIONS, id)
    remaining = limit
    with BlobReader(repository.git) as blobs:

        @lru_cache(maxsize=_MAX_CACHED)
        def version(name: str) -> _ReadVersion:
            data = blobs.read(name) if name else None
            if data is None:
                return _ReadVersion()
            try:
                return _ReadVersion(decode_checked(data, f"{id}.json", id))
            except InvalidDocument as error:
                return _ReadVersion(damaged=error.message)

        pending = _pending(store, id, version(f"HEAD:{path}"), lambda: blobs.read(f"HEAD:{path}"))
        if pending is not None and limit != 0:
            yield pending
            exists = True
            remaining = None if limit is None else limit - 1
        for commit, difference, former_path in _changes(repository, path, remaining):
            yield _step(commit, difference, former_path, version)
            exists = True
    if not exists:
        raise NotFound(
            f"no conversation {id} here, nor in the history of this branch",
            remedy=Remedy("list"),
            id=id,
        )


def versions_of(repository: Repository, id: str, limit: int) -> list[str]:
    """Return the blobs of a conversation's versions on this branch, the latest first, each once."""
    path = repository.path_of(CONVERSATIONS, id)
    blobs = [difference.blob for _, difference, _ in _changes(repository, path, limit)]
    return list(dict.fromkeys(filter(None, blobs)))


def _pending(
    store: CoreStore, id: str, committed: _ReadVersion, read_committed: Callable[[], bytes | None]
) -> TimelineStep | None:
    """Return the step of the uncommitted changes, or None if there are none.

    Args:
        store: The store.
        id: The conversation.
        committed: The version in the last commit.
        read_committed: Reads the bytes of that version.
    """
    try:
        present = _ReadVersion(store.document(id))
    except NotFound:
        present = _ReadVersion()
    except InvalidDocument as error:
        content = store.engine.external_edits().read_stray(CONVERSATIONS, id)
        if content is not None and content == read_committed():
            return None
        return TimelineStep(None, ("damaged",), damaged=error.message)
    words, comparison = _describe(present, [committed])
    if not committed.damaged and not comparison:
        return None
    return TimelineStep(None, words, comparison)


def _changes(
    repository: Repository, path: str, limit: int | None
) -> Iterator[tuple[Commit, PathDifference, str]]:
    """Yield the commits that touched a conversation, the latest first: the commit, its difference,
    and the former path of the conversation, if the commit moved it.
    """
    git = repository.git
    start = git.head()
    remaining = limit
    current_path = path
    while start and (remaining is None or remaining > 0):
        options = () if remaining is None else (f"--max-count={remaining}",)
        # `-c`: for a merge, the paths that differ from all its parents (git-diff-tree(1), "DIFF
        # FORMAT FOR MERGES").
        spec = f":(top,literal){current_path}"
        commits = log(git, "-c", "--raw", *options, "--end-of-options", start, "--", spec)
        start = ""
        if remaining is not None:
            remaining -= len(commits)
        for number, (commit, differences) in enumerate(commits, 1):
            difference = PathDifference(current_path, ("",), "")
            for listed in differences:
                if listed.path == current_path:
                    difference = listed
                    break
            former_path = ""
            is_last = number == len(commits)
            # A shallow clone's oldest commit has no parents: git omits those that the clone lacks.
            if is_last and not any(difference.parent_blobs) and len(commit.parents) == 1:
                former_path, blob = _moved_from(git, commit, current_path)
                difference = difference._replace(parent_blobs=(blob,))
                start = commit.parents[0] if former_path else ""
            yield commit, difference, former_path
            current_path = former_path or current_path


def _moved_from(git: Git, commit: Commit, path: str) -> tuple[str, str]:
    """Return the former path of a conversation that a commit added, and its blob there. Both are
    empty if the commit did not move it.
    """
    name = "/".join(path.rsplit("/", 2)[-2:])
    command = ("diff-tree", "-r", "--no-abbrev", "--diff-filter=D", commit.parents[0], commit.hash)
    deleted = changes(git, *command, "--", f":(top,glob)**/{name}")
    return (deleted[0].path, deleted[0].old) if len(deleted) == 1 else ("", "")


def _step(
    commit: Commit,
    difference: PathDifference,
    former_path: str,
    version: Callable[[str], _ReadVersion],
) -> TimelineStep:
    """Return the step of a commit. `version` reads the version in a blob."""
    new = version(difference.blob)
    words, comparison = _describe(new, [version(blob) for blob in difference.parent_blobs])
    if former_path:
        folder = former_path.rpartition("/conversations/")[0]
        words = (f"moved from {folder or 'the top'}", *words)
    if len(difference.parent_blobs) > 1:
        words = ("merged", *words)
    return TimelineStep(
        commit=commit,
        words=words or ("nothing but its layout or its lock",),
        comparison=comparison,
        damaged=new.damaged,
    )


def _describe(
    new: _ReadVersion, old_versions: list[_ReadVersion]
) -> tuple[tuple[str, ...], Comparison | None]:
    """Return what changed since all old versions, in words and as data, as far as they can be read.
    A merge has several old versions.
    """
    if new.damaged:
        return ("damaged",), None
    valid = [version for version in old_versions if not version.damaged]
    if not valid:
        if new.document is None:
            return ("deleted",), None
        count = len(new.document.get("history", ()))
        plural = "" if count == 1 else "s"
        return (f"readable again, with {count} message{plural}",), None
    try:
        comparison = _common_changes([compare(old.document, new.document) for old in valid])
    except InvalidDocument as error:
        return (f"can't be compared: {error.problems[0].what}",), None
    return tuple(comparison.words()), comparison


def _common_changes(comparisons: Sequence[Comparison]) -> Comparison:
    """Return the changes that are in all of these comparisons, at least one, with the same later
    version. They are what a merge itself changed.
    """

    def key(part: Any) -> Any:
        """Return the name of a changed field, or the id of a message or of a pair of versions."""
        if isinstance(part, FieldChange):
            return part.name
        message = part[1] if isinstance(part, tuple) else part
        return message["id"]

    def common(name: str) -> Any:
        values = [getattr(comparison, name) for comparison in comparisons]
        if isinstance(values[0], bool):
            return all(values)
        keys = set.intersection(*(set(map(key, value)) for value in values))
        return tuple(part for part in values[0] if key(part) in keys)

    return Comparison(**{field.name: common(field.name) for field in fields(Comparison)})


#: The number of committed versions, from the latest on, among which an ancestor is searched.
_MAX_VERSIONS = 50
Document = Mapping[str, Any]


def ancestor(repository: Repository, id: str, ours: bytes, theirs: bytes) -> bytes | None:
    """Return the version from which two versions of a conversation began, in the clean form. None:
    no commit has such a version.
    """
    sides = [codec.decode(data, f"{id}.json") for data in (ours, theirs)]
    versions = list(_versions(repository, id))
    for index, (data, version) in enumerate(versions):
        older_ids = [_ids(document) for _, document in versions[index + 1 :]]
        if all(_has_read(side, version, older_ids) for side in sides):
            return data
    return None


def _versions(repository: Repository, id: str) -> Iterator[tuple[bytes, Document]]:
    """Yield the committed versions that can be read, in the clean form, the latest first."""
    with BlobReader(repository.git) as blobs:
        for name in versions_of(repository, id, _MAX_VERSIONS):
            try:
                data = clean(blobs.read(name) or b"", f"{id}.json", CONVERSATIONS)
                yield data, codec.decode(data, f"{id}.json")
            except CapsuleError:
                continue


def _ids(document: Document) -> set[str]:
    return {message["id"] for message in document["history"]}


def _has_read(side: Document, version: Document, older_ids: list[set[str]]) -> bool:
    """Return whether a side proves that it was made from a committed version: it is not older, has
    the last message of that version, and each message of that version that it has is the same or
    was edited later.

    Args:
        side: One of the two versions.
        version: The committed version.
        older_ids: The ids of the messages of each older committed version.
    """
    if side["updatedAt"] < version["updatedAt"] or not version["history"]:
        return False
    side_messages = {message["id"]: message for message in side["history"]}
    last_id = version["history"][-1]["id"]
    if last_id not in side_messages:
        return False
    missing = _ids(version) - side_messages.keys()
    for ids in older_ids:
        if last_id in ids and missing - ids:
            # The side may have been made from this older version, before a merge added the missing
            # messages.
            return False
    for message in version["history"]:
        side_message = side_messages.get(message["id"])
        if side_message is None or side_message == message:
            continue
        if str(side_message.get("editedAt") or "") <= str(message.get("editedAt") or ""):
            return False
    return True


# -- Past versions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class PastVersion:
    """One past version of a conversation.

    Attributes:
        id: The conversation.
        commit: The commit with this version.
        path: The file in it, as `REVISION:path`, for messages.
        data: The bytes of the file.
    """

    id: str
    commit: Commit
    path: str
    data: bytes

    @property
    def label(self) -> str:
        """The commit, as the repository shortens it."""
        return self.path.partition(":")[0]

    @cached_property
    def store(self) -> CoreStore:
        """A store in memory with this version alone. Raises InvalidDocument if it does not parse."""
        checked = decode_checked(self.data, self.path, self.id)
        document, _ = migrations.upgrade(checked, self.path)
        return CoreStore("", Settings(), opening.in_memory([(CONVERSATIONS, document, self.data)]))

    @property
    def document(self) -> dict[str, Any]:
        """The version, as `Store.document` returns it. Raises InvalidDocument if it does not
        parse.
        """
        return self.store.document(self.id)


def past_version(repository: Repository, id: str, text: str) -> PastVersion:
    """Return the version of a conversation in a commit, given as `commit_at` takes it.

    Raises NotFound if the commit does not have the conversation. The message names the first commit
    that has it.
    """
    commit = commit_at(repository, text)
    path = repository.path_of(CONVERSATIONS, id)
    revision = repository.short(commit.hash)
    with BlobReader(repository.git) as blobs:
        found_path = path
        data = blobs.read(f"{commit.hash}:{path}")
        if data is None:
            found_path = _moved_path(repository, commit, path)
            data = blobs.read(f"{commit.hash}:{found_path}") if found_path else None
    if data is not None:
        return PastVersion(id, commit, f"{revision}:{found_path}", data)
    reason = f"conversation {id} is not in commit {revision} of {commit.committed_at}"
    git = repository.git
    added_in = []
    if git.head():
        added_in = log(git, "--diff-filter=A", "HEAD", "--", f":(top,literal){path}")
    if not added_in:
        raise NotFound(
            f"{reason}, nor was it ever committed on this branch", remedy=Remedy("log", id), id=id
        )
    first, _ = added_in[-1]
    beginning = f"the first that has it is {repository.short(first.hash)} of {first.committed_at}"
    raise NotFound(f"{reason}; {beginning}", remedy=Remedy("log", id), id=id)


def _moved_path(repository: Repository, commit: Commit, path: str) -> str:
    """Return the path of a conversation in a commit in which the store was in another folder. Empty
    if no other path, or several, may be it.
    """
    name = "/" + "/".join(path.rsplit("/", 2)[-2:])
    command = ("ls-tree", "-r", "-z", "--name-only", "--full-tree", commit.hash)
    candidates = []
    for candidate in repository.git.run(*command).fields:
        if candidate != path and f"/{candidate}".endswith(name):
            candidates.append(candidate)
    return candidates[0] if len(candidates) == 1 else ""


def resolve(store: CoreStore, repository: Repository, prefix: str) -> str:
    """Find the id of a conversation by its beginning, in the store, or else in the history of this
    branch.
    """
    try:
        return store.resolve(prefix)
    except NotFound as error:
        if prefix == "@last" or repository.git.head() is None:
            raise
        spec = repository.pathspec(f"{CONVERSATIONS}/{prefix}*.json")
        command = ("log", "-z", "--format=", "--name-only", "--no-renames", "HEAD", "--", spec)
        former_ids = set()
        for path in repository.git.run(*command).fields:
            location = repository.document_at(path.lstrip("\n"))
            if location is not None:
                _, id = location
                former_ids.add(id)
        if not former_ids:
            raise error from None
        return resolve_prefix(sorted(former_ids), prefix)


@dataclass(frozen=True)
class Diff:
    """The difference between two versions of a conversation.

    Attributes:
        id: The conversation.
        before, after: The versions. None: the present version in the store.
        documents: The documents of both.
    """

    id: str
    before: PastVersion
    after: PastVersion | None
    documents: tuple[dict[str, Any], dict[str, Any]]
    _directory: str

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints: the messages that were added, edited and removed,
        and the changed fields.
        """
        commits = {
            "from": self.before.commit.hash,
            "to": self.after.commit.hash if self.after else None,
        }
        return {"id": self.id, **commits, **compare(*self.documents).as_json(messages=True)}

    def text(self, *, coloured: bool = False) -> bytes:
        """Return a unified diff of both versions as text, by the repository's settings. Empty: they
        have no difference. Raises GitFailed.
        """
        old_document, new_document = self.documents
        old_text = _as_text(old_document)
        new_text = _as_text(new_document)
        if old_text == new_text:
            return b""
        new_label = self.after.label if self.after else "now"
        old_name = f"{self.before.label}/{self.id}.txt"
        new_name = f"{new_label}/{self.id}.txt"
        with TemporaryDirectory(prefix="capsule-diff-") as directory:
            for name, text in ((old_name, old_text), (new_name, new_text)):
                path = os.path.join(directory, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
                    file.write(text)
            colour = "always" if coloured else "never"
            command = (
                f"--git-dir={self._directory}",  # So that git uses the repository's settings.
                "diff",
                "--no-index",
                "--no-prefix",
                "--no-ext-diff",
                "--no-textconv",
                "--no-renames",
                f"--color={colour}",
                "--",
                old_name,
                new_name,
            )
            return Git(directory).run(*command, ok_codes=(0, 1)).out


def _as_text(document: dict[str, Any]) -> str:
    return "".join(f"{line}\n" for line in readable(document))


def diff(store: CoreStore, repository: Repository, id: str, before: str, after: str | None) -> Diff:
    """Return the difference between two versions. If `after` is None, the second one is the present
    version in the store.
    """
    old = past_version(repository, id, before)
    if after is None:
        new = None
        new_document = store.document(id)
    else:
        new = past_version(repository, id, after)
        new_document = new.document
    return Diff(id, old, new, (old.document, new_document), repository.directory)


@dataclass(frozen=True)
class Restoration:
    """The result of restoring a version, or what it would change.

    Attributes:
        version: The version.
        changes: The changes, in a few words each. Empty: the present version is the same.
        kept: The path of the replaced version in the quarantine. None: nothing was replaced.
        dry_run: Whether nothing was written.
    """

    version: PastVersion
    changes: tuple[str, ...]
    kept: str | None
    dry_run: bool

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "id": self.version.id,
            "title": self.version.document["title"],
            "commit": self.version.commit.hash,
            "changes": list(self.changes),
            "kept": self.kept,
            "dryRun": self.dry_run,
        }


def restore(
    store: CoreStore, repository: Repository, id: str, text: str, *, dry_run: bool
) -> Restoration:
    """Write a past version again, if it differs from the present one."""
    version = past_version(repository, id, text)
    document = version.document
    present = None
    changes = ["a damaged file replaced"]  # Unless the present file can be compared.
    with suppress(InvalidDocument):
        with suppress(NotFound):
            present = store.document(id)
        changes = compare(present, document).words()
    quarantine_path = None
    if changes and not dry_run:
        quarantine_path = store.versions.restore(id, document).kept
    return Restoration(version, tuple(changes), quarantine_path, dry_run)
