"""Past versions of a conversation, from commits: read, compared and restored.

`past_version` finds the file of a conversation in a commit, also if the store was in another folder
then. A past version is read through a store in memory, by the same methods as the present one.
`Diff.text` writes both versions as text (`textconv.py`) and lets git compare the texts.

The alternative was `git diff REV -- path` with a textconv. It needs the attributes, starts a Python
process for each side, may read a file while it is being written, and does not find a path that has
another name in the other commit.

What must stay true: a diff is the same in a clone without the drivers, and in a store that was
moved. A person's settings of `git diff` apply, except programs and names.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any

from capsule.engines import opening
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import InvalidDocument, NotFound, Remedy
from capsule.format import migrations
from capsule.format.merge.comparison import compare
from capsule.format.references import resolve_prefix
from capsule.format.validation import decode_checked
from capsule.git.history import Commit, commit_at, log
from capsule.git.objects import BlobReader
from capsule.git.repository import Repository
from capsule.git.textconv import readable
from capsule.git_program import Git
from capsule.settings import Settings
from capsule.store.store import CoreStore


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
