"""Commit the documents of a store to git, at once or whenever nobody has written for a while.

`commit` finds the store's paths that differ from HEAD or the index, stages them, and commits them.
`Autocommit` decides when to call it.

Documents enter git from memory (`objects.py`) and not by `git add`. `git add` would need all
mutexes until git has read the last file, and stops at the first file that does not parse. Here a
mutex is held while one file is read, and no filter is started.

What must stay true:

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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from capsule.errors import CapsuleError, InvalidDocument, Refused, Remedy
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from capsule.format.merge.comparison import compare
from capsule.format.text.escaping import truncated
from capsule.format.validation import KINDS, decode_checked
from capsule.git import objects
from capsule.git.commits.operation import Operation, retried
from capsule.git.objects import BlobReader, IndexEntry, RawDifference
from capsule.git.repository import Repository

if TYPE_CHECKING:
    from capsule.engines.changes import Change


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
    base = git.head() or objects.empty_tree(git)
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
    for raw in objects.changes(git, "diff-index", "--cached", base):
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
    for raw in objects.changes(git, "diff-index", "--cached", base, "--", *specs):
        indexed[raw.path] = raw.entry if raw.new_mode else None
    for raw in objects.changes(git, "diff-files", "--", *specs):
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
    for path, attribute, value in objects.attributes(operation.git, paths, "filter", "merge"):
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
    hashing = objects.object_format(git)
    contents: dict[str, bytes] = {}
    entries: list[IndexEntry] = []

    def flush() -> None:
        objects.write_blobs(git, contents.values())
        retried(lambda: objects.set_entries(git, entries))
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
        entry = IndexEntry(path, objects.FILE, objects.blob_name(data, hashing))
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
    retried(lambda: objects.refresh(git))
    config = dict(operation.drivers)
    if invalid:  # Git must not fail because the filter refuses such a document.
        config["filter.capsule.required"] = "false"
    with operation.other_index() if foreign_changes else nullcontext(git) as index:
        # In the copy of the index, a person's own staged changes are reset to HEAD.
        reset = [IndexEntry(raw.path, raw.old_mode, raw.old) for raw in foreign_changes]
        objects.set_entries(index, reset)
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
