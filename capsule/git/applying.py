"""A worktree brought from one commit to another while people and programs go on writing in it.

What must stay true: what was written to a document since the first commit is in it afterwards, and so is the lock that
stands there; nothing of a person's that isn't committed is overwritten; and wherever it is interrupted, no file is
half, HEAD names the first commit or the second, and doing it again from there comes to the same.

The order, and why. First all that could refuse is asked, on a copy of the index. Then each document goes through the
storage layer, which merges three ways: what the first commit has, what lies there now, what the second has. Then the
entries of the documents in the index, by which git leaves the files alone. Then git's own two-way merge for all else
(git-read-tree(1), "Two Tree Merge"), and at last HEAD. Interrupted before that, what is there already counts as
written here: the next sync commits it, and merges it with the same again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from capsule.errors import GitFailed, InvalidDocument
from capsule.format.cleaning import clean
from capsule.git.blobs import Blobs
from capsule.git.joining import document_in
from capsule.git.objects import Entry, Raw, changes, empty_tree, refresh, set_entries
from capsule.git.turns import Turn, patiently
from capsule.receiving import Brought
from capsule.store import Store

__all__ = ["Applied", "apply"]

_REGULAR = frozenset({"100644", "100755"})


@dataclass(slots=True)
class Applied:
    """What came into the worktree.

    Attributes:
        documents: What became of each document, by its path.
        files: How many other files changed.
    """

    documents: dict[str, Brought] = field(default_factory=dict)
    files: int = 0

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        found = [
            {"path": path, "what": brought.what}
            | ({"why": brought.why} if brought.why else {})
            | ({"notes": list(brought.notes)} if brought.notes else {})
            for path, brought in self.documents.items()
        ]
        return {"documents": found, "files": self.files}


def apply(turn: Turn, old: str | None, new: str, why: str) -> Applied:
    """Bring the worktree, the index and HEAD from one commit to another.

    Args:
        turn: The turn.
        old: The commit that HEAD names; None: there is none yet.
        new: The commit to come to.
        why: For the reflog.

    Raises:
        GitFailed: A file that a person changed is in the way; nothing was changed.
        InvalidDocument: A document that has to be merged does not parse, here or there; nothing was changed.
        StoreBusy, Refused, StorageFailed: A file can't be written; what came before it stays, and the next sync goes
            on from there.
    """
    git = turn.git
    base = old or empty_tree(git)
    found = changes(git, "diff-tree", "-r", base, new)
    with ExitStack() as opened:
        stores = _stores(turn, found, opened)
        documents = [raw for raw in found if _store_of(stores, raw.path)]
        entries = [Entry(raw.path, raw.new_mode, raw.new if raw.new_mode else raw.old) for raw in documents]
        applied = Applied(files=len(found) - len(documents))
        with Blobs(git) as blobs:
            _ensure_fit(turn, stores, blobs, documents)
            # Between this tree and the second git finds all to do but the documents.
            others = turn.tree_with(base, entries)
            _ensure_welcome(turn, others, new, entries)
            for number, raw in enumerate(documents):
                turn.told("write", number, len(documents))
                applied.documents[raw.path] = _bring_in(stores, blobs, raw)
        turn.told("index", 0, 0)
        patiently(lambda: set_entries(git, entries))
        turn.told("files", 0, 0)
        patiently(lambda: git.run("read-tree", "-m", "-u", others, new))
        turn.told("head", 0, 0)
        patiently(lambda: git.run("update-ref", "-m", why, "HEAD", new, old or "0" * len(new)))
        turn.told("refresh", 0, 0)
        patiently(lambda: refresh(git))
    return applied


def _stores(turn: Turn, found: Sequence[Raw], opened: ExitStack) -> dict[str, Store]:
    """The stores whose documents change, by their folders: ours, and others that lie in the same repository."""
    stores = {turn.repository.prefix: turn.store}
    for raw in found:
        at = document_in(raw.path)
        if at and at[0] not in stores and _is_store(turn.repository.top, at[0]):
            root = os.path.join(turn.repository.top, at[0])
            stores[at[0]] = opened.enter_context(Store.open(root, keep_locks=False))
    return stores


def _is_store(top: str, prefix: str) -> bool:
    """Whether a store lies there, in this very repository: behind a symlink, or in a repository of its own, lies
    what a name that was fetched must not reach."""
    place = top
    for part in prefix.split("/")[:-1]:
        place = os.path.join(place, part)
        if os.path.islink(place) or os.path.lexists(os.path.join(place, ".git")):
            return False
    return os.path.isfile(os.path.join(place, "capsule.toml"))


def _store_of(stores: Mapping[str, Store], path: str) -> tuple[Store, str, str] | None:
    """The store that a path is a document of, its kind and id; None: of none, so that it is a file as any other."""
    at = document_in(path)
    store = stores.get(at[0]) if at else None
    return (store, at[1], at[2]) if at and store is not None else None


def _ensure_fit(turn: Turn, stores: Mapping[str, Store], blobs: Blobs, documents: Sequence[Raw]) -> None:
    """Raise unless each document that comes is one, and each that it comes to can be merged with it."""
    for number, raw in enumerate(documents):
        turn.told("check", number, len(documents))
        at = _store_of(stores, raw.path)
        if at is None or not raw.new_mode:
            continue
        if raw.new_mode not in _REGULAR:
            what = f"{raw.path} is no regular file in what was fetched; nothing was changed; take it out there with git"
            raise GitFailed(what, command=["diff-tree"], words="")
        store, kind, id = at
        theirs = blobs.read(raw.new) or b""
        try:
            clean(theirs, raw.path, kind)
        except InvalidDocument as error:
            said = f"what was fetched has a damaged document, so nothing was changed; mend it there:\n{error.message}"
            raise InvalidDocument(said, path=error.path, problems=error.problems) from None
        try:
            store.version(kind, id)
        except InvalidDocument as error:
            said = "a document was changed there too and can't be merged, so nothing was changed; mend it, then sync "
            raise InvalidDocument(f"{said}again:\n{error.message}", path=error.path, problems=error.problems) from None


def _ensure_welcome(turn: Turn, base: str, new: str, entries: Sequence[Entry]) -> None:
    """Raise GitFailed when git would refuse to touch a file that is no document, as a person is changing it."""
    turn.told("rehearse", 0, 0)
    path = turn.file("index")
    there = os.path.join(turn.repository.directory, "index")
    if os.path.exists(there):
        with open(there, "rb") as file, open(path, "xb") as copy:
            copy.write(file.read())
    git = turn.with_index(path)
    refresh(git)
    set_entries(git, entries)
    try:
        git.run("read-tree", "-m", "-u", "-n", base, new)
    except GitFailed as error:
        what = (
            "files that were changed here and are not committed are in the way of what was fetched, so nothing was "
            f"changed; commit them, or put them aside with git stash, then sync again: {error.words}"
        )
        raise GitFailed(what, command=error.command, words=error.words) from None
    finally:
        if os.path.exists(path):
            os.unlink(path)


def _bring_in(stores: Mapping[str, Store], blobs: Blobs, raw: Raw) -> Brought:
    at = _store_of(stores, raw.path)
    assert at is not None
    store, kind, id = at
    base, theirs = (_clean(blobs, name, raw.path, kind) if mode else None
                    for mode, name in ((raw.old_mode, raw.old), (raw.new_mode, raw.new)))  # fmt: skip
    return store.bring_in(kind, id, base, theirs)


def _clean(blobs: Blobs, name: str, path: str, kind: str) -> bytes | None:
    """A version in the clean form; None when it is no document, as what got into git past us may be."""
    data = blobs.read(name)
    try:
        return None if data is None else clean(data, path, kind)
    except InvalidDocument:
        return None
