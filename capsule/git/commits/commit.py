"""Committing what belongs to a store, and nothing else.

What must stay true: a document is committed as a whole version, read under its mutex, in the clean form; what a person
has staged of other files stays staged and is in no commit of ours; what does not parse is named and left out, and
stops nothing else; and each step can be the last one, for the next commit goes on from there.

Documents enter git from memory (`objects.py`) and not by `git add`. That reads a file when it gets to it, so that all
mutexes would be held until git has read the last file, and it stops at the first that doesn't parse. Here a mutex is
held while one file is read, and no filter is started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from capsule.errors import InvalidDocument, Refused, Remedy
from capsule.format.merge.clean_form import clean
from capsule.git import objects
from capsule.git.commits.message import DocumentChange, commit_message, document_changes
from capsule.git.commits.operation import Operation, retried
from capsule.git.objects import Entry, Raw

#: What is committed besides the documents. Not `overrides/next.json`: what waits for the next conversation waits on one
#: machine.
FILES = ("capsule.toml", ".gitattributes", ".gitignore")
#: Contents are given to git when they are so many bytes, or so many.
_BATCH_BYTES = 32 << 20
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Committed:
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


def commit(operation: Operation, message: str | None = None) -> Committed:
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
        retried(lambda: git.run("add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul", input=specs))
    ours: list[Raw] = []
    others: list[Raw] = []
    for raw in objects.changes(git, "diff-index", "--cached", base):
        (ours if raw.path in indexed and raw.path not in invalid else others).append(raw)
    if not ours:
        return Committed(invalid=tuple(invalid.values()))
    return _commit(operation, ours, others, message, tuple(invalid.values()))


def _changed(operation: Operation, base: str) -> dict[str, Entry | None]:
    """The store's paths that may differ from HEAD or from the index, each with what the index has; None: nothing."""
    git, repository = operation.git, operation.repository
    files = {repository.prefix + name for name in FILES}
    specs = [*repository.pathspecs(), *(f":(top,literal){path}" for path in sorted(files))]
    indexed: dict[str, Entry | None] = {}
    for raw in objects.changes(git, "diff-index", "--cached", base, "--", *specs):
        indexed[raw.path] = raw.entry if raw.new_mode else None
    for raw in objects.changes(git, "diff-files", "--", *specs):
        indexed[raw.path] = Entry(raw.path, raw.old_mode, raw.old)
    for path in git.run("ls-files", "-z", "--full-name", "--others", "--exclude-standard", "--", *specs).fields:
        indexed.setdefault(path, None)
    return {path: entry for path, entry in indexed.items() if path in files or repository.document_at(path)}


def ensure_attributes(operation: Operation, paths: Iterable[str]) -> None:
    """Raise Refused unless git gives these documents to Capsule's filter and merge driver."""
    for path, attribute, value in objects.attributes(operation.git, paths, "filter", "merge"):
        if value != "capsule":
            raise Refused(
                f"git does not know that {path} is a conversation: its attribute {attribute} is {value}, not capsule; "
                "locks would be committed, and clones could not merge",
                remedy=Remedy("set up git"),
                path=path,
            )


def _stage(
    operation: Operation, paths: Sequence[str], indexed: Mapping[str, Entry | None]
) -> dict[str, InvalidDocument]:
    """Give the index the present versions of documents; what does not parse stays there as it is, and is returned."""
    git, store = operation.git, operation.store
    invalid: dict[str, InvalidDocument] = {}
    hashing = objects.object_format(git)
    contents: dict[str, bytes] = {}
    entries: list[Entry] = []

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
        # Also where it is what the index has: git is to look again at a file that was locked when it looked last.
        entry = Entry(path, objects.FILE, objects.blob_name(data, hashing))
        entries.append(entry)
        if entry != before:
            contents[entry.name] = data
        if len(entries) >= _BATCH or sum(map(len, contents.values())) >= _BATCH_BYTES:
            give()
    give()
    return invalid


def _commit(
    operation: Operation, ours: list[Raw], others: list[Raw], message: str | None, invalid: tuple[InvalidDocument, ...]
) -> Committed:
    """Commit what of the index is ours. What else is staged stays staged, and is not in the commit."""
    git, repository = operation.git, operation.repository
    documents = [raw for raw in ours if repository.document_at(raw.path)]
    files = [raw.path for raw in ours if not repository.document_at(raw.path)]
    shown = document_changes(repository, documents, lambda done, total: operation.progress("compare", done, total))
    text = commit_message(shown, len(documents) - len(shown), files, message)
    path = operation.file("message")
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    # Most files are clean as they are, which git then sees without starting the filter.
    retried(lambda: objects.refresh(git))
    drivers = {**operation.drivers, **({"filter.capsule.required": "false"} if invalid else {})}
    with operation.other_index() if others else nullcontext(git) as index:
        # A person's own staged changes are, in the copy, as HEAD has them.
        objects.set_entries(index, [Entry(raw.path, raw.old_mode, raw.old) for raw in others])
        operation.progress("commit", 0, 0)
        committing = index.with_config(drivers)
        retried(lambda: committing.run("commit", "--quiet", "--cleanup=whitespace", "--file", path))
    os.unlink(path)
    return Committed(git.head(), text.partition("\n")[0], tuple(shown), len(documents), tuple(files), invalid)
