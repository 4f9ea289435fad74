"""Commit the documents of a store to git, at once or whenever nobody has written for a while.

What must stay true:

- A document is committed as a whole version, read under its mutex, in the clean form.
- Other files that a person has staged stay staged, and are in no commit of ours.
- A document that does not parse is left out and reported. It stops nothing else.
- An interruption after any step is harmless: the next commit goes on from there.
- A commit of thousands of documents has a message of at most about a hundred lines. A text of a
  conversation makes no line of its own, so it can forge no trailer.
- A store in which somebody writes without a pause is committed too, later. A failure, for example
  because a person's git holds the index, is retried and reported once.

Documents enter git from memory (`objects.py`) and not by `git add`. `git add` reads a file when it
gets to it, so all mutexes would be held until git has read the last file, and it stops at the first
file that does not parse. Here a mutex is held while one file is read, and no filter is started.
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
    """What became of one document.

    Attributes:
        kind: Its kind, by the name in `KINDS`.
        id: Its id.
        title: A conversation's title; another's name.
        words: What changed, in a few words each.
    """

    kind: str
    id: str
    title: str
    words: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
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
        name, first = _quoted(self.title or self.id), self.words[0]
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
    """What became of documents of the store, of the first hundred of them.

    Cost: reading and comparing both versions of each.
    """
    changes = []
    with BlobReader(repository.git) as blobs:
        for number, raw in enumerate(differences[:_MAX_DESCRIBED]):
            progress(number, min(len(differences), _MAX_DESCRIBED))
            changes.append(_change(repository, blobs, raw))
    return changes


def _change(repository: Repository, blobs: BlobReader, raw: RawDifference) -> DocumentChange:
    place = repository.document_at(raw.path)
    assert place is not None
    kind, id = place
    sides = ((raw.old_mode, raw.old), (raw.new_mode, raw.new))
    before, after = (
        _document(kind, id, blobs.read(name) or b"", raw.path) if mode else None
        for mode, name in sides
    )
    named = before or after or {}
    words: list[str] = []
    if KINDS[kind].has_entries and {} not in (before, after):
        with suppress(InvalidDocument):  # One may be of a newer major version.
            words = compare(before, after).words()
    elif before is None or after is None:
        words = ["created" if before is None else "deleted"]
    title = str(named.get("title") or named.get("name") or "")
    return DocumentChange(kind, id, title, tuple(words or ["changed"]))


def _document(kind: str, id: str, data: bytes, path: str) -> dict[str, Any]:
    """The document in `data`; empty when it does not parse, as it may have got into git without a
    check.
    """
    try:
        return (
            decode_checked(data, path, id) if KINDS[kind].has_entries else codec.decode(data, path)
        )
    except CapsuleError:
        return {}


def commit_message(
    documents: Sequence[DocumentChange], more: int, files: Sequence[str], subject: str | None = None
) -> str:
    """The message of a commit.

    Args:
        documents: What is described one by one.
        more: How many documents there are besides.
        files: The store's other files.
        subject: What the person says it is; None: made of what changed.
    """
    changed = [f"{file} changed" for file in files]
    body = [
        *(document.line for document in documents),
        *([f"and {more} more"] if more else []),
        *changed,
    ]
    subject = subject or _subject([*(document.phrase for document in documents), *changed], more)
    return "\n".join([subject, "", *body]) + "\n"


def _subject(phrases: Sequence[str], more: int) -> str:
    """As many phrases as a line takes, and how many there are besides; the first one always."""
    subject, left = truncated(phrases[0], _MAX_SUBJECT), list(phrases[1:])
    while left and len(f"{subject}, {left[0]}") <= _MAX_SUBJECT:
        subject = f"{subject}, {left.pop(0)}"
    return subject + (f" and {len(left) + more} more" if left or more else "")


def _quoted(text: str) -> str:
    """A text in quotes and in one line, as Python writes it."""
    return repr(truncated(text, _MAX_TITLE))


#: What is committed besides the documents. Not `overrides/next.json`: what waits for the next
#: conversation waits on one machine.
FILES = ("capsule.toml", ".gitattributes", ".gitignore")
#: Contents are given to git when they are so many bytes, or so many.
_BATCH_BYTES = 32 << 20
_BATCH = 500


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What was committed.

    Attributes:
        commit: The commit; None: there was nothing to commit.
        subject: The first line of its message.
        documents: What became of the first hundred documents.
        count: How many documents it has.
        files: The store's other files in it.
        invalid: What does not parse, and was left out.
    """

    commit: str | None = None
    subject: str = ""
    documents: tuple[DocumentChange, ...] = ()
    count: int = 0
    files: tuple[str, ...] = ()
    invalid: tuple[InvalidDocument, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "commit": self.commit,
            "subject": self.subject,
            "documents": [document.as_json() for document in self.documents],
            "count": self.count,
            "files": list(self.files),
            "invalid": [str(problem) for error in self.invalid for problem in error.problems],
        }


def commit(operation: Operation, message: str | None = None) -> CommitResult:
    """Commit what changed in the store; without a message, its subject says what changed."""
    git, repository = operation.git, operation.repository
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
    ours: list[RawDifference] = []
    others: list[RawDifference] = []
    for raw in objects.changes(git, "diff-index", "--cached", base):
        (ours if raw.path in indexed and raw.path not in invalid else others).append(raw)
    if not ours:
        return CommitResult(invalid=tuple(invalid.values()))
    return _commit(operation, ours, others, message, tuple(invalid.values()))


def _changed(operation: Operation, base: str) -> dict[str, IndexEntry | None]:
    """The store's paths that may differ from HEAD or from the index, each with what the index has;
    None: nothing.
    """
    git, repository = operation.git, operation.repository
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
    """Raise Refused unless git gives these documents to Capsule's filter and merge driver."""
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
    """Give the index the present versions of documents; what does not parse stays there as it is,
    and is returned.
    """
    git, store = operation.git, operation.store
    invalid: dict[str, InvalidDocument] = {}
    hashing = objects.object_format(git)
    contents: dict[str, bytes] = {}
    entries: list[IndexEntry] = []

    def give() -> None:
        objects.write_blobs(git, contents.values())
        retried(lambda: objects.set_entries(git, entries))
        contents.clear()
        entries.clear()

    for number, path in enumerate(paths):
        operation.progress("read", number, len(paths))
        before, place = indexed[path], operation.repository.document_at(path)
        assert place is not None
        try:
            data = store.incoming.version(*place)
            data = data and clean(data, store.engine.name(*place), place[0])
        except InvalidDocument as error:
            invalid[path] = error
            continue
        if data is None:
            if before is not None:
                entries.append(before._replace(mode=""))
            continue
        # Also where it is what the index has: git is to look again at a file that was locked when
        # it looked last.
        entry = IndexEntry(path, objects.FILE, objects.blob_name(data, hashing))
        entries.append(entry)
        if entry != before:
            contents[entry.name] = data
        if len(entries) >= _BATCH or sum(map(len, contents.values())) >= _BATCH_BYTES:
            give()
    give()
    return invalid


def _commit(
    operation: Operation,
    ours: list[RawDifference],
    others: list[RawDifference],
    message: str | None,
    invalid: tuple[InvalidDocument, ...],
) -> CommitResult:
    """Commit what of the index is ours. What else is staged stays staged, and is not in
    the commit.
    """
    git, repository = operation.git, operation.repository
    documents = [raw for raw in ours if repository.document_at(raw.path)]
    files = [raw.path for raw in ours if not repository.document_at(raw.path)]
    shown = document_changes(
        repository, documents, lambda done, total: operation.progress("compare", done, total)
    )
    text = commit_message(shown, len(documents) - len(shown), files, message)
    path = operation.file("message")
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    # Most files are clean as they are, which git then sees without starting the filter.
    retried(lambda: objects.refresh(git))
    drivers = {**operation.drivers, **({"filter.capsule.required": "false"} if invalid else {})}
    with operation.other_index() if others else nullcontext(git) as index:
        # A person's own staged changes are, in the copy, as HEAD has them.
        objects.set_entries(index, [IndexEntry(raw.path, raw.old_mode, raw.old) for raw in others])
        operation.progress("commit", 0, 0)
        committing = index.with_config(drivers)
        retried(lambda: committing.run("commit", "--quiet", "--cleanup=whitespace", "--file", path))
    os.unlink(path)
    return CommitResult(
        git.head(), text.partition("\n")[0], tuple(shown), len(documents), tuple(files), invalid
    )


#: Changes without a pause are committed after so many times the pause.
_MAX_DELAYS = 20
#: What failed is tried again after the pause, and after this many seconds at least.
_AGAIN_S = 5.0
#: What changes no version: git knows no locks.
_NO_CHANGE = frozenset({"locked", "unlocked"})


class Autocommit:
    """When to commit.

    Args:
        after_s: How long nobody must have written, in seconds.
        act: Commits; a `CapsuleError` that it raises goes to `failed`, and it is called again
            later.
        failed: Called with an error, when it is another than the last time.
        every_s: Act after this many seconds in any case; None: only when something changed.
        clock: The clock, in seconds.
    """

    def __init__(
        self,
        after_s: float,
        act: Callable[[], None],
        failed: Callable[[CapsuleError], None],
        *,
        every_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._after_s, self._every_s = after_s, every_s
        self._act, self._failed, self._clock = act, failed, clock
        self._acted = clock()
        self._error = ""
        # What changed before the start is committed at once.
        self._due: tuple[float, float] | None = (
            self._acted - after_s,
        ) * 2  # The first and the last change.

    def heard(self, changes: Iterable[Change]) -> None:
        """Something changed."""
        if any(change.kind not in _NO_CHANGE for change in changes):
            now = self._clock()
            self._due = (self._due[0] if self._due else now, now)

    def due_in_s(self) -> float | None:
        """Seconds until there is something to do; None: until something changes."""
        times = []
        if self._due is not None:
            first, last = self._due
            times.append(min(last + self._after_s, first + self._after_s * _MAX_DELAYS))
        if self._every_s is not None:
            times.append(self._acted + self._every_s)
        return max(min(times) - self._clock(), 0.0) if times else None

    def act_if_due(self) -> None:
        """Commit, when it is time to."""
        if self.due_in_s() == 0:
            self.act()

    def act(self) -> None:
        """Commit now."""
        due, self._due = self._due, None
        try:
            self._act()
            self._error = ""
        except CapsuleError as error:
            if error.message != self._error:
                self._error = error.message
                self._failed(error)
            again = self._clock() + max(_AGAIN_S - self._after_s, 0.0)
            self._due = (again, again)
        except BaseException:
            self._due = due
            raise
        finally:
            self._acted = self._clock()
