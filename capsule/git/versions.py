"""A version of a conversation that git has: read, compared with another one, and brought back.

What must stay true: a past version is only read, through a store in memory, by the same methods as
the present one. And git compares texts that were made here, from versions that were read and
checked, so that a clone without the drivers and a store that moved show the same; the person's
settings of diff hold, but for programs and names.

The alternative for the latter was `git diff REV -- path` with the textconv given by `-c`: that
works only where the attributes are set up too, starts a Python for each side, reads a file that a
splice may be under way in, and finds no path that has another name in the other commit.
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
        commit: The commit that holds this version.
        path: Where it holds it: `REVISION:path`, for words and errors.
        data: The file's bytes there.
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
        """A store in memory that holds this version alone. Raises InvalidDocument: It does not
        parse.
        """
        document = migrations.upgrade(decode_checked(self.data, self.path, self.id), self.path)[0]
        return CoreStore("", Settings(), opening.in_memory([(CONVERSATIONS, document, self.data)]))

    @property
    def document(self) -> dict[str, Any]:
        """The version as `Store.document` gives one. Raises InvalidDocument: It does not parse."""
        return self.store.document(self.id)


def past_version(repository: Repository, id: str, text: str) -> PastVersion:
    """The version of a conversation in the commit that `text` names, as `commit_at` takes it."""
    commit, path = commit_at(repository, text), repository.path_of(CONVERSATIONS, id)
    revision = repository.short(commit.hash)
    with BlobReader(repository.git) as blobs:
        data = blobs.read(f"{commit.hash}:{path}")
        if data is None and (path := _elsewhere(repository, commit, path)):
            data = blobs.read(f"{commit.hash}:{path}")
    if data is not None:
        return PastVersion(id, commit, f"{revision}:{path}", data)
    reason = f"conversation {id} is not in commit {revision} of {commit.committed_at}"
    git, spec = repository.git, f":(top,literal){repository.path_of(CONVERSATIONS, id)}"
    born = log(git, "--diff-filter=A", "HEAD", "--", spec) if git.head() else []
    if not born:
        raise NotFound(
            f"{reason}, nor was it ever committed on this branch", remedy=Remedy("log", id), id=id
        )
    first = born[-1][0]
    began = f"the first that has it is {repository.short(first.hash)} of {first.committed_at}"
    raise NotFound(f"{reason}; {began}", remedy=Remedy("log", id), id=id)


def _elsewhere(repository: Repository, commit: Commit, path: str) -> str:
    """Where else a commit has the conversation, the store having moved since; empty when that is
    not clear.
    """
    name = "/" + "/".join(path.rsplit("/", 2)[-2:])
    paths = repository.git.run(
        "ls-tree", "-r", "-z", "--name-only", "--full-tree", commit.hash
    ).fields
    others = [other for other in paths if other != path and f"/{other}".endswith(name)]
    return others[0] if len(others) == 1 else ""


def resolve(store: CoreStore, repository: Repository, prefix: str) -> str:
    """Find the id of a conversation by its beginning, in the store, else in the history of this
    branch.
    """
    try:
        return store.resolve(prefix)
    except NotFound as error:
        if prefix == "@last" or repository.git.head() is None:
            raise
        spec = repository.pathspec(f"{CONVERSATIONS}/{prefix}*.json")
        command = ("log", "-z", "--format=", "--name-only", "--no-renames", "HEAD", "--", spec)
        places = map(
            repository.document_at,
            (path.lstrip("\n") for path in repository.git.run(*command).fields),
        )
        gone = sorted({place[1] for place in places if place})
        if not gone:
            raise error from None
        return resolve_prefix(gone, prefix)


@dataclass(frozen=True)
class Diff:
    """What changed between two versions of a conversation.

    Attributes:
        id: The conversation.
        before, after: The versions; None: as it is in the store.
        documents: What they hold.
    """

    id: str
    before: PastVersion
    after: PastVersion | None
    documents: tuple[dict[str, Any], dict[str, Any]]
    _directory: str

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints: the messages that were added, edited and removed, and the changed
        fields.
        """
        commits = {
            "from": self.before.commit.hash,
            "to": self.after.commit.hash if self.after else None,
        }
        return {"id": self.id, **commits, **compare(*self.documents).as_json(messages=True)}

    def text(self, *, coloured: bool = False) -> bytes:
        """A unified diff of the two as chats, by the repository's settings; empty: there is none.
        Raises GitFailed.
        """
        texts = ["".join(f"{line}\n" for line in readable(document)) for document in self.documents]
        if texts[0] == texts[1]:
            return b""
        names = [
            f"{version.label if version else 'now'}/{self.id}.txt"
            for version in (self.before, self.after)
        ]
        with TemporaryDirectory(prefix="capsule-diff-") as directory:
            for name, text in zip(names, texts, strict=True):
                os.makedirs(os.path.join(directory, os.path.dirname(name)), exist_ok=True)
                with open(
                    os.path.join(directory, name), "w", encoding="utf-8", errors="backslashreplace"
                ) as file:
                    file.write(text)
            # With its directory named, git knows the repository's settings outside of it.
            options = ("--no-prefix", "--no-ext-diff", "--no-textconv", "--no-renames")
            colour = f"--color={'always' if coloured else 'never'}"
            command = (
                f"--git-dir={self._directory}",
                "diff",
                "--no-index",
                *options,
                colour,
                "--",
                *names,
            )
            return Git(directory).run(*command, ok_codes=(0, 1)).out


def diff(store: CoreStore, repository: Repository, id: str, before: str, after: str | None) -> Diff:
    """What changed between two versions; `after` None: to the conversation as it is in
    the store.
    """
    old = past_version(repository, id, before)
    new = past_version(repository, id, after) if after is not None else None
    now = new.document if new else store.document(id)
    return Diff(id, old, new, (old.document, now), repository.directory)


@dataclass(frozen=True)
class Restoration:
    """What bringing a version back changed, or would change.

    Attributes:
        version: The version.
        changes: What it changed, in a few words each; empty: nothing.
        kept: Where the version lies whose place it took; None: nowhere.
        dry_run: Whether nothing was written.
    """

    version: PastVersion
    changes: tuple[str, ...]
    kept: str | None
    dry_run: bool

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        version = self.version
        result = {
            "id": version.id,
            "title": version.document["title"],
            "commit": version.commit.hash,
        }
        return {**result, "changes": list(self.changes), "kept": self.kept, "dryRun": self.dry_run}


def restore(
    store: CoreStore, repository: Repository, id: str, text: str, *, dry_run: bool
) -> Restoration:
    """Write a past version anew, where it differs from what is there."""
    version = past_version(repository, id, text)
    document, now = version.document, None
    changes = ["a damaged file replaced"]
    with suppress(InvalidDocument):
        with suppress(NotFound):
            now = store.document(id)
        changes = compare(now, document).words()
    kept = store.versions.restore(id, document).kept if changes and not dry_run else None
    return Restoration(version, tuple(changes), kept, dry_run)
