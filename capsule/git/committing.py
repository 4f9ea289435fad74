"""Committing what belongs to a store, and nothing else.

What must stay true: what is committed of a document is a whole version, read under its mutex, in the clean form; what a
person has staged of other files stays staged and is in no commit of ours; what does not parse is named and left out,
and holds up nothing else; and each step can be the last one, for the next commit goes on from there.

Documents enter git from memory (`objects.py`) and not by `git add`. That reads a file when it gets to it, so that the
mutexes of all of them would be held until git has read the last one, and it stops at the first that doesn't parse.
Here a mutex is held for as long as one file takes to be read, and no filter need be started.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from capsule.errors import InvalidDocument, Refused
from capsule.format.cleaning import clean
from capsule.git.describing import Described, described, message_of
from capsule.git.objects import (
    FILE,
    Entry,
    Raw,
    blob_name,
    changes,
    empty_tree,
    object_format,
    refresh,
    set_entries,
    write_blobs,
)
from capsule.git.turns import Turn, patiently

__all__ = ["Committed", "commit", "ensure_attributes", "head_of"]

#: What of a store is committed besides its documents. Not `overrides/next.json`: what waits for the next conversation
#: waits on one machine, and would come in every clone.
FILES = ("capsule.toml", ".gitattributes", ".gitignore")
#: Contents are given to git when they are so many bytes, or so many.
_BATCH_BYTES = 32 << 20
_BATCH = 500


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit came to.

    Attributes:
        commit: Its name; None: there was nothing to commit.
        subject: The first line of its message.
        documents: What became of the documents; of the first hundred.
        count: How many there are.
        files: The store's other files in it.
        invalid: What does not parse, and was left out.
    """

    commit: str | None = None
    subject: str = ""
    documents: tuple[Described, ...] = ()
    count: int = 0
    files: tuple[str, ...] = ()
    invalid: tuple[InvalidDocument, ...] = field(default=())

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


def head_of(turn: Turn) -> str | None:
    """The commit that HEAD names; None before the first one."""
    answer = turn.git.run("rev-parse", "--verify", "--quiet", "HEAD^{commit}", fine=(0, 1, 128))
    return answer.text if answer.code == 0 else None


def commit(turn: Turn, message: str | None = None) -> Committed:
    """Commit what changed in the store.

    Args:
        turn: The turn.
        message: The commit's subject; None: made of what changed.

    Raises:
        Refused: The attributes that make git treat documents as such are not in force.
        GitFailed: Git did not commit, as a hook refused it for example; what is staged then stays so.
        StoreBusy, Refused, StorageFailed: A document could not be read.

    Cost: reading what git takes for changed, each file under its mutex.
    """
    git, repository = turn.git, turn.repository
    turn.told("look", 0, 0)
    base = head_of(turn) or empty_tree(git)
    found = _changed(turn, base)
    documents = {path for path in found if repository.document_at(path)}
    ensure_attributes(turn, documents)
    invalid = _stage(turn, sorted(documents), found)
    plain = sorted(found.keys() - documents)
    if plain:
        specs = "".join(f":(top,literal){path}\0" for path in plain).encode("utf-8", "surrogateescape")
        patiently(lambda: git.run("add", "--all", "--pathspec-from-file=-", "--pathspec-file-nul", input=specs))
    committed = found.keys() - invalid.keys()
    staged = changes(git, "diff-index", "--cached", base)
    ours: list[Raw] = []
    others: list[Raw] = []
    for raw in staged:
        (ours if raw.path in committed else others).append(raw)
    if not ours:
        return Committed(invalid=tuple(invalid.values()))
    return _commit(turn, ours, others, message, tuple(invalid.values()))


def _changed(turn: Turn, base: str) -> dict[str, Raw | None]:
    """The store's paths that may differ from HEAD or from the index, each with what the index has; None: nothing."""
    git, repository = turn.git, turn.repository
    specs = [*repository.pathspecs(), *(f":(top,literal){repository.prefix}{name}" for name in FILES)]
    found: dict[str, Raw | None] = {}
    for raw in changes(git, "diff-index", "--cached", base, "--", *specs):
        # As the index has it, which is what the files are held against.
        found[raw.path] = Raw(raw.new_mode, "", raw.new, "", raw.status, raw.path) if raw.new_mode else None
    for raw in changes(git, "diff-files", "--", *specs):
        found[raw.path] = raw
    for path in git.run("ls-files", "-z", "--full-name", "--others", "--exclude-standard", "--", *specs).fields:
        found.setdefault(path, None)
    allowed = {repository.prefix + name for name in FILES}
    return {path: raw for path, raw in found.items() if path in allowed or repository.document_at(path)}


def ensure_attributes(turn: Turn, paths: Iterable[str]) -> None:
    """Raise Refused unless git would treat these documents as what they are."""
    asked = "".join(f"{path}\0" for path in sorted(paths)).encode("utf-8", "surrogateescape")
    if not asked:
        return
    told = turn.git.run("check-attr", "-z", "--stdin", "filter", "merge", input=asked).fields
    for path, attribute, value in zip(told[::3], told[1::3], told[2::3], strict=True):
        if value != "capsule":
            raise Refused(
                f"git isn't told that {path} is a conversation: its attribute {attribute} is {value}, not capsule, so "
                "that locks would be committed and clones could not merge; run: capsule git setup",
                path=path,
            )


def _stage(turn: Turn, paths: Sequence[str], found: dict[str, Raw | None]) -> dict[str, InvalidDocument]:
    """Give the index the documents' versions of now; what does not parse is left as it is there, and returned."""
    git = turn.git
    invalid: dict[str, InvalidDocument] = {}
    hashing = object_format(git)
    contents: dict[str, bytes] = {}
    entries: list[Entry] = []

    def give() -> None:
        write_blobs(git, contents.values())
        if entries:
            patiently(lambda: set_entries(git, entries))
        contents.clear()
        entries.clear()

    for number, path in enumerate(paths):
        turn.told("read", number, len(paths))
        before = found[path]
        try:
            data = _clean_version(turn, path)
        except InvalidDocument as error:
            invalid[path] = error
            continue
        if data is None:
            if before is not None:
                entries.append(Entry(path, "", before.old))
            continue
        name = blob_name(data, hashing)
        # Also where it is what the index has: git is to look again at a file that was locked when it looked last.
        entries.append(Entry(path, FILE, name))
        if before is None or (before.old, before.old_mode) != (name, FILE):
            contents[name] = data
        if len(entries) >= _BATCH or sum(map(len, contents.values())) >= _BATCH_BYTES:
            give()
    give()
    return invalid


def _clean_version(turn: Turn, path: str) -> bytes | None:
    """The clean form of a document as it lies there now; None when it is gone."""
    at = turn.repository.document_at(path)
    assert at is not None
    kind, id = at
    data = turn.store.version(kind, id)
    return None if data is None else clean(data, turn.store.engine.name(kind, id), kind)


def _commit(
    turn: Turn, ours: list[Raw], others: list[Raw], message: str | None, invalid: tuple[InvalidDocument, ...]
) -> Committed:
    """Commit what of the index is ours. What else a person has staged is out of it, and stays in the index."""
    git, repository = turn.git, turn.repository
    documents = [raw for raw in ours if repository.document_at(raw.path)]
    files = [raw.path for raw in ours if not repository.document_at(raw.path)]
    shown = described(repository, documents, lambda done, total: turn.told("compare", done, total))
    text = message_of(shown, len(documents) - len(shown), files, message)
    path = turn.file("message")
    with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
    # Most files are clean as they are, which git then sees without starting the filter.
    patiently(lambda: refresh(git))
    drivers = {**turn.drivers, **({"filter.capsule.required": "false"} if invalid else {})}
    committing = git.with_config(drivers)
    if others:
        index = _index_without(turn, others)
        committing = turn.with_index(index).with_config(drivers)
    turn.told("commit", 0, 0)
    patiently(lambda: committing.run("commit", "--quiet", "--cleanup=whitespace", "--file", path))
    os.unlink(path)
    if others:
        os.unlink(index)
    head = head_of(turn)
    assert head is not None
    return Committed(head, text.partition("\n")[0], tuple(shown), len(documents), tuple(files), invalid)


def _index_without(turn: Turn, others: list[Raw]) -> str:
    """A copy of the index in which these paths are as HEAD has them."""
    path = turn.file("index")
    with open(os.path.join(turn.repository.directory, "index"), "rb") as file:
        data = file.read()
    with open(path, "xb") as file:
        file.write(data)
    set_entries(turn.with_index(path), [Entry(raw.path, raw.old_mode, raw.old) for raw in others])
    return path
