"""Commit the documents of a store to git, at once or whenever nobody has written for a while.

`commit` finds the store's paths that differ from HEAD or the index, stages them, and commits them.
`Autocommit` decides when to call it. A commit is an `Operation`, as a sync is: `operation` begins
one, and it has git, the drivers, a copy of the index, and files in git's directory.

Documents enter git from memory (`plumbing.write_blobs`) and not by `git add`. `git add` would need
all mutexes until git has read the last file, and stops at the first file that does not parse. Here a
mutex is held while one file is read, and no filter is started.

What must stay true:

- One operation runs at a time in a worktree. Its lock ends with its process, however the process
  ends. An operation does not begin during a merge or a rebase by a person. While a person's git
  writes the index, Capsule waits.
- A document is committed as a whole version, read under its mutex, in the clean form: the canonical
  layout with an inactive lock.
- Other files that a person has staged stay staged, and are in no commit of Capsule's.
- A document that does not parse is left out and reported. It stops nothing else.
- After an interruption at any step, the next commit continues from there.
- A commit of thousands of documents has a message of at most about a hundred lines. A text of a
  conversation makes no line of its own, so it can forge no trailer.
- A store in which somebody writes without a pause is committed too, later.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from shutil import copyfile
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.engines.opening import lock_of
from capsule.errors import CapsuleError, GitFailed, InvalidDocument, Refused, Remedy, StoreBusy
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from capsule.format.merge.comparison import compare
from capsule.format.text.escaping import truncated
from capsule.format.validation import KINDS, decode_checked
from capsule.git import plumbing
from capsule.git.plumbing import BlobReader, IndexEntry, RawDifference, Repository, set_entries
from capsule.git_program import Git
from capsule.store.store import CoreStore

if TYPE_CHECKING:
    from capsule.engines.changes import Change


# -- Operations ------------------------------------------------------------------------------------

T = TypeVar("T")

#: Called before each step, and during a long one: its name, the number of finished parts, and the
#: number of all. An exception from it ends the operation between two steps.
Progress = Callable[[str, int, int], None]

#: Keeps git from starting Capsule's filter, a Python process, for commands without documents.
_NO_FILTER = {
    "filter.capsule.process": "",
    "filter.capsule.clean": "",
    "filter.capsule.required": "false",
}
#: Capsule's folder in git's directory.
_FOLDER = "capsule"
#: How long an operation waits for another one, in seconds.
_OPERATION_WAIT_S = 60.0
#: How long a command waits for a lock of another git, in seconds, and between two tries.
_LOCK_WAIT_S = 10.0
_MIN_LOCK_RETRY_S = 0.02
_MAX_LOCK_RETRY_S = 0.5


def no_progress(step: str, count: int, total: int) -> None:
    """Show nothing. A `Progress`."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One commit or sync.

    Attributes:
        store: The store.
        repository: Its repository.
        drivers: The settings of Capsule's filter and merge driver, so that they also work without
            `capsule git setup`.
        progress: Shows the progress.
        asks: Whether git may ask for passwords.
    """

    store: CoreStore
    repository: Repository
    drivers: Mapping[str, str]
    progress: Progress
    asks: bool = True

    @property
    def git(self) -> Git:
        """Git as a person runs it, with hooks, but without Capsule's filter."""
        variables = {} if self.asks else {"GIT_TERMINAL_PROMPT": "0"}
        return Git(self.repository.top, _NO_FILTER, variables, trusting=True)

    @contextmanager
    def other_index(self, *, copied: bool = True) -> Iterator[Git]:
        """Yield git with another index: a copy of the worktree's, or an empty one. It is deleted at
        the end of the block.
        """
        path = self.file("index")
        index = os.path.join(self.repository.directory, "index")
        if copied and os.path.exists(index):
            copyfile(index, path)
        try:
            yield replace(self.git, variables={**self.git.variables, "GIT_INDEX_FILE": path})
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def tree_with(self, tree: str, entries: Sequence[IndexEntry]) -> str:
        """Write the tree of a commit with these entries set in it, and return its name."""
        with self.other_index(copied=False) as git:
            git.run("read-tree", tree)
            set_entries(git, entries)
            return git.run("write-tree").text

    def file(self, name: str) -> str:
        """Return the path of a file for this operation, in Capsule's folder in git's directory. A
        file that an earlier operation left is deleted.
        """
        path = os.path.join(self.repository.directory, _FOLDER, name)
        for leftover in (path, f"{path}.lock"):
            if os.path.lexists(leftover):
                os.unlink(leftover)
        return path


@contextmanager
def operation(
    store: CoreStore,
    drivers: Mapping[str, str],
    progress: Progress = no_progress,
    *,
    asks: bool = True,
    timeout_s: float = _OPERATION_WAIT_S,
) -> Iterator[Operation]:
    """Begin an operation, and end it with the block. No other one runs in this worktree meanwhile.

    Raises:
        NotFound: The store is in no repository.
        StoreBusy: Another operation takes longer than `timeout_s` seconds.
        GitFailed: A person has not finished a merge, a rebase or the like. The message says how to.
    """
    repository = Repository.find(store.root)
    with ExitStack() as stack:
        try:
            stack.enter_context(lock_of(repository.directory, _FOLDER, "turn", timeout_s))
        except StoreBusy as error:
            reason = (
                f"another Capsule process is working with git in {repository.top} "
                f"({error.holder}); wait for it, and try again"
            )
            raise StoreBusy(reason, id=repository.top, holder=error.holder) from None
        _ensure_nothing_unfinished(repository)
        yield Operation(store, repository, drivers, progress, asks)


def _ensure_nothing_unfinished(repository: Repository) -> None:
    """Raise GitFailed if a person has begun a merge or the like, or has to resolve conflicts."""
    unfinished = repository.unfinished_operation()
    if unfinished is not None:
        name, way_out = unfinished
        raise GitFailed(
            f"{repository.top} is in the middle of {name}; end it first: {way_out}",
            command=[],
            words="",
        )
    unmerged = repository.git.run("ls-files", "-z", "--unmerged").fields
    if unmerged:
        path = unmerged[0].partition("\t")[2]
        reason = (
            f"{repository.top} has unresolved conflicts, for example in {path}; resolve them "
            "and git add them"
        )
        raise GitFailed(reason, command=["ls-files", "--unmerged"], words="")


def retried(run: Callable[[], T]) -> T:
    """Run a git command that writes the index or a ref. It runs again as long as another git holds
    a lock on it. Raises GitFailed.
    """
    deadline = time.monotonic() + _LOCK_WAIT_S
    wait_s = _MIN_LOCK_RETRY_S
    while True:
        try:
            return run()
        except GitFailed as error:
            if ".lock': File exists" not in error.words or time.monotonic() > deadline:
                raise
        time.sleep(wait_s * random.uniform(0.5, 1.5))
        wait_s = min(wait_s * 2, _MAX_LOCK_RETRY_S)


# -- Commits ---------------------------------------------------------------------------------------

#: The message of a commit describes this many documents one by one, and counts the others.
_MAX_DESCRIBED = 100
#: Lengths in characters.
_MAX_SUBJECT = 72
_MAX_LINE = 200
_MAX_TITLE = 40


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """The change of one document in a commit.

    Attributes:
        kind: Its kind, by the name in `KINDS`.
        id: Its id.
        title: A conversation's title, or another document's name.
        words: The changes, in a few words each, such as "3 messages added".
    """

    kind: str
    id: str
    title: str
    words: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return asdict(self)

    @property
    def line(self) -> str:
        """A line for the body of a commit's message."""
        return (
            f"{KINDS[self.kind].noun} {self.id} {_quoted(self.title)}: "
            f"{truncated(', '.join(self.words), _MAX_LINE)}"
        )

    @property
    def phrase(self) -> str:
        """A phrase for its subject: `3 messages in 'Plan'`, `'Ideas' created`."""
        name = _quoted(self.title or self.id)
        first = self.words[0]
        if len(self.words) == 1 and first.endswith(" added"):
            return f"{first.removesuffix(' added')} in {name}"
        if first.startswith(("created", "deleted", "changed")):
            return f"{name} {first}"
        return f"{name}: {', '.join(self.words)}"


def document_changes(
    repository: Repository,
    differences: Sequence[RawDifference],
    progress: Callable[[int, int], None],
) -> list[DocumentChange]:
    """Describe the changes of the first hundred of these documents.

    Cost: reading and comparing both versions of each.
    """
    changes = []
    with BlobReader(repository.git) as blobs:
        for number, raw in enumerate(differences[:_MAX_DESCRIBED]):
            progress(number, min(len(differences), _MAX_DESCRIBED))
            changes.append(_change(repository, blobs, raw))
    return changes


def _change(repository: Repository, blobs: BlobReader, raw: RawDifference) -> DocumentChange:
    """Describe the change of one document."""
    location = repository.document_at(raw.path)
    assert location is not None
    kind, id = location
    before = after = None
    if raw.old_mode:
        before = _document(kind, id, blobs.read(raw.old) or b"", raw.path)
    if raw.new_mode:
        after = _document(kind, id, blobs.read(raw.new) or b"", raw.path)
    words: list[str] = []
    if KINDS[kind].has_entries and {} not in (before, after):
        with suppress(InvalidDocument):  # One may be of a newer major version.
            words = compare(before, after).words()
    elif before is None:
        words = ["created"]
    elif after is None:
        words = ["deleted"]
    version = before or after or {}
    return DocumentChange(
        kind=kind,
        id=id,
        title=str(version.get("title") or version.get("name") or ""),
        words=tuple(words or ["changed"]),
    )


def _document(kind: str, id: str, data: bytes, path: str) -> dict[str, Any]:
    """Return the document in `data`. It is empty if it does not parse: it may have got into git
    without a check.
    """
    try:
        if KINDS[kind].has_entries:
            return decode_checked(data, path, id)
        return codec.decode(data, path)
    except CapsuleError:
        return {}


def commit_message(
    documents: Sequence[DocumentChange], more: int, files: Sequence[str], subject: str | None = None
) -> str:
    """Return the message of a commit.

    Args:
        documents: The documents that are described one by one.
        more: The number of documents besides.
        files: The store's other files.
        subject: The subject that the person gave. None: it is made of the changes.
    """
    body = [document.line for document in documents]
    if more:
        body.append(f"and {more} more")
    file_lines = [f"{file} changed" for file in files]
    phrases = [document.phrase for document in documents] + file_lines
    return "\n".join([subject or _subject(phrases, more), "", *body, *file_lines]) + "\n"


def _subject(phrases: Sequence[str], more: int) -> str:
    """Return a subject of as many phrases as fit in a line, at least one, and the number of the
    others.
    """
    subject = truncated(phrases[0], _MAX_SUBJECT)
    count = 1
    while count < len(phrases) and len(f"{subject}, {phrases[count]}") <= _MAX_SUBJECT:
        subject = f"{subject}, {phrases[count]}"
        count += 1
    remaining = len(phrases) - count + more
    return f"{subject} and {remaining} more" if remaining else subject


def _quoted(text: str) -> str:
    """Return a text in quotes and in one line, as Python writes it."""
    return repr(truncated(text, _MAX_TITLE))


#: The files that are committed besides the documents. Not `overrides/next.json`: the pending
#: overrides are for the next conversation on one machine.
FILES = ("capsule.toml", ".gitattributes", ".gitignore")
#: Contents are given to git in batches of at most this many bytes, or this many documents.
_BATCH_BYTES = 32 << 20
_BATCH_SIZE = 500


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of a commit.

    Attributes:
        commit: The commit. None: there was nothing to commit.
        subject: The first line of its message.
        documents: The changes of the first hundred documents.
        count: The number of documents in it.
        files: The store's other files in it.
        invalid: The errors of documents that do not parse, and were left out.
    """

    commit: str | None = None
    subject: str = ""
    documents: tuple[DocumentChange, ...] = ()
    count: int = 0
    files: tuple[str, ...] = ()
    invalid: tuple[InvalidDocument, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "commit": self.commit,
            "subject": self.subject,
            "documents": [document.as_json() for document in self.documents],
            "count": self.count,
            "files": list(self.files),
            "invalid": [str(problem) for error in self.invalid for problem in error.problems],
        }


def commit(operation: Operation, message: str | None = None) -> CommitResult:
    """Commit what changed in the store. Without a message, the subject describes the changes."""
    git = operation.git
    repository = operation.repository
    operation.progress("look", 0, 0)
    base = git.head() or plumbing.empty_tree(git)
    indexed = _changed(operation, base)
    documents = sorted(path for path in indexed if repository.document_at(path))
    ensure_attributes(operation, documents)
    invalid = _stage(operation, documents, indexed)
    files = sorted(indexed.keys() - set(documents))
    if files:
        specs = [f":(top,literal){path}" for path in files]
        retried(
            lambda: git.run(
                "add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul", input=specs
            )
        )
    store_changes: list[RawDifference] = []
    foreign_changes: list[RawDifference] = []
    for raw in plumbing.changes(git, "diff-index", "--cached", base):
        if raw.path in indexed and raw.path not in invalid:
            store_changes.append(raw)
        else:
            foreign_changes.append(raw)
    if not store_changes:
        return CommitResult(invalid=tuple(invalid.values()))
    return _commit(operation, store_changes, foreign_changes, message, tuple(invalid.values()))


def _changed(operation: Operation, base: str) -> dict[str, IndexEntry | None]:
    """Return the store's paths that may differ from the commit `base` or from the index, each with
    its entry in the index (None: it has none).
    """
    git = operation.git
    repository = operation.repository
    files = {repository.prefix + name for name in FILES}
    specs = [*repository.pathspecs(), *(f":(top,literal){path}" for path in sorted(files))]
    indexed: dict[str, IndexEntry | None] = {}
    for raw in plumbing.changes(git, "diff-index", "--cached", base, "--", *specs):
        indexed[raw.path] = raw.entry if raw.new_mode else None
    for raw in plumbing.changes(git, "diff-files", "--", *specs):
        indexed[raw.path] = IndexEntry(raw.path, raw.old_mode, raw.old)
    for path in git.run(
        "ls-files", "-z", "--full-name", "--others", "--exclude-standard", "--", *specs
    ).fields:
        indexed.setdefault(path, None)
    return {
        path: entry
        for path, entry in indexed.items()
        if path in files or repository.document_at(path)
    }


def ensure_attributes(operation: Operation, paths: Iterable[str]) -> None:
    """Check that git uses Capsule's filter and merge driver for these documents. Raises Refused."""
    for path, attribute, value in plumbing.attributes(operation.git, paths, "filter", "merge"):
        if value != "capsule":
            raise Refused(
                f"git does not know that {path} is a conversation: its attribute {attribute} is "
                f"{value}, not capsule; "
                "locks would be committed, and clones could not merge",
                remedy=Remedy("set up git"),
                path=path,
            )


def _stage(
    operation: Operation, paths: Sequence[str], indexed: Mapping[str, IndexEntry | None]
) -> dict[str, InvalidDocument]:
    """Set the index entries of documents to their present versions. Return the errors of documents
    that do not parse, by their paths. Their entries do not change.
    """
    git = operation.git
    store = operation.store
    invalid: dict[str, InvalidDocument] = {}
    hashing = plumbing.object_format(git)
    contents: dict[str, bytes] = {}
    entries: list[IndexEntry] = []

    def flush() -> None:
        plumbing.write_blobs(git, contents.values())
        retried(lambda: plumbing.set_entries(git, entries))
        contents.clear()
        entries.clear()

    for number, path in enumerate(paths):
        operation.progress("read", number, len(paths))
        old_entry = indexed[path]
        location = operation.repository.document_at(path)
        assert location is not None
        kind, id = location
        try:
            data = store.incoming.version(kind, id)
            if data is not None:
                data = clean(data, store.engine.name(kind, id), kind)
        except InvalidDocument as error:
            invalid[path] = error
            continue
        if data is None:
            if old_entry is not None:
                entries.append(old_entry._replace(mode=""))
            continue
        # Set even if the index has the same entry: git must compare a file again that was locked
        # when git read it last.
        entry = IndexEntry(path, plumbing.FILE, plumbing.blob_name(data, hashing))
        entries.append(entry)
        if entry != old_entry:
            contents[entry.name] = data
        if len(entries) >= _BATCH_SIZE or sum(map(len, contents.values())) >= _BATCH_BYTES:
            flush()
    flush()
    return invalid


def _commit(
    operation: Operation,
    store_changes: list[RawDifference],
    foreign_changes: list[RawDifference],
    message: str | None,
    invalid: tuple[InvalidDocument, ...],
) -> CommitResult:
    """Commit the changes of the store in the index. Other staged changes stay staged, and are not
    in the commit.
    """
    git = operation.git
    repository = operation.repository
    documents = []
    files = []
    for raw in store_changes:
        if repository.document_at(raw.path):
            documents.append(raw)
        else:
            files.append(raw.path)
    described = document_changes(
        repository, documents, lambda count, total: operation.progress("compare", count, total)
    )
    text = commit_message(described, len(documents) - len(described), files, message)
    path = operation.file("message")
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    # So git sees without starting the filter that most files are in the clean form already.
    retried(lambda: plumbing.refresh(git))
    config = dict(operation.drivers)
    if invalid:  # Git must not fail because the filter refuses such a document.
        config["filter.capsule.required"] = "false"
    with operation.other_index() if foreign_changes else nullcontext(git) as index:
        # In the copy of the index, a person's own staged changes are reset to HEAD.
        reset = [IndexEntry(raw.path, raw.old_mode, raw.old) for raw in foreign_changes]
        plumbing.set_entries(index, reset)
        operation.progress("commit", 0, 0)
        configured = index.with_config(config)
        retried(lambda: configured.run("commit", "--quiet", "--cleanup=whitespace", "--file", path))
    os.unlink(path)
    return CommitResult(
        commit=git.head(),
        subject=text.partition("\n")[0],
        documents=tuple(described),
        count=len(documents),
        files=tuple(files),
        invalid=invalid,
    )


#: Changes without a pause are committed after this many times the pause.
_MAX_DELAYS = 20
#: A failed commit is tried again after the pause, and after this many seconds at least.
_MIN_RETRY_S = 5.0
#: The kinds of changes that change no version: git stores no locks.
_IGNORED_KINDS = frozenset({"locked", "unlocked"})


class Autocommit:
    """Decides when to commit: after a pause in the changes.

    Args:
        after_s: The pause in seconds.
        commit: Commits. If it raises a `CapsuleError`, it is called again later.
        on_failure: Called with that error, unless it is the same as the last time.
        every_s: Commit after this many seconds in any case. None: only if something changed.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        after_s: float,
        commit: Callable[[], None],
        on_failure: Callable[[CapsuleError], None],
        *,
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._after_s = after_s
        self._every_s = every_s
        self._commit = commit
        self._on_failure = on_failure
        self._clock = clock
        self._last_run = clock()
        self._last_error = ""
        #: The times of the first and the last change that is not committed, or None.
        #: Changes before the start are committed at once.
        self._pending: tuple[float, float] | None = (
            self._last_run - after_s,
            self._last_run - after_s,
        )

    def note_changes(self, changes: Iterable[Change]) -> None:
        """Remember that these changes are not committed yet."""
        if any(change.kind not in _IGNORED_KINDS for change in changes):
            now = self._clock()
            first = self._pending[0] if self._pending else now
            self._pending = (first, now)

    def due_in_s(self) -> float | None:
        """Return the seconds until the next commit. None: after the next change."""
        times = []
        if self._pending is not None:
            first, last = self._pending
            times.append(min(last + self._after_s, first + self._after_s * _MAX_DELAYS))
        if self._every_s is not None:
            times.append(self._last_run + self._every_s)
        if not times:
            return None
        return max(min(times) - self._clock(), 0.0)

    def run_if_due(self) -> None:
        """Commit if it is time."""
        if self.due_in_s() == 0:
            self.run()

    def run(self) -> None:
        """Commit now."""
        pending = self._pending
        self._pending = None  # Before the commit: changes during it are not in it.
        try:
            self._commit()
            self._last_error = ""
        except CapsuleError as error:
            if error.message != self._last_error:
                self._last_error = error.message
                self._on_failure(error)
            retry_from = self._clock() + max(_MIN_RETRY_S - self._after_s, 0.0)
            self._pending = (retry_from, retry_from)
        except BaseException:
            self._pending = pending
            raise
        finally:
            self._last_run = self._clock()
