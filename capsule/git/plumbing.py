"""The git repository that contains a store: its paths of the store's documents, and the contents that
are read from git and written to it without the working tree.

What must stay true:
- A path is relative to the top of the repository, with `/` between its parts, as git writes it. The
  store may be the repository's root or any folder in it. The repository may be a linked worktree.
- A content is written byte for byte, whatever attributes and filters are configured. One process of
  git serves any number of contents.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from capsule.errors import GitFailed, NotFound
from capsule.format.merge.copy_names import original_of
from capsule.format.validation import KINDS
from capsule.git_program import Git
from capsule.ids import is_id

# -- The repository --------------------------------------------------------------------------------

#: Operations of a person that may be unfinished, by the file in git's directory that shows it, and
#: how to end each.
_UNFINISHED = {
    "MERGE_HEAD": ("a merge", "git commit, or git merge --abort"),
    "rebase-merge": ("a rebase", "git rebase --continue, or git rebase --abort"),
    "rebase-apply": ("a rebase", "git rebase --continue, or git rebase --abort"),
    "CHERRY_PICK_HEAD": ("a cherry-pick", "git cherry-pick --continue, or git cherry-pick --abort"),
    "REVERT_HEAD": ("a revert", "git revert --continue, or git revert --abort"),
}


@dataclass(frozen=True, slots=True)
class Repository:
    """A store's repository.

    Attributes:
        git: Git, in the repository's top directory. It runs no program that the repository names.
        top: The top directory.
        prefix: The store's folder in it: empty, or with a `/` at the end.
        directory: Git's own directory for this worktree, with its index and its HEAD.
        common: Git's directory that all worktrees share, with the objects, the refs and the
            configuration.
    """

    git: Git
    top: str
    prefix: str
    directory: str
    common: str

    @classmethod
    def find(cls, root: str) -> Repository:
        """Return the repository that contains the store at `root`.

        Raises:
            NotFound: The store is in no repository.
            Refused: The program `git` is not installed, or a filter can't be turned off.
            GitFailed: Git refuses, for example because somebody else owns the directory.
        """
        git = Git(root)
        try:
            output = git.run(
                "rev-parse",
                "--show-toplevel",
                "--absolute-git-dir",
                "--git-common-dir",
                "--show-prefix",
            )
        except GitFailed as error:
            if "not a git repository" not in error.words:
                raise
            reason = f"the store {root} is not in a git repository; make one with: git init {root}"
            raise NotFound(reason, id=root) from error
        # Git prints an empty line for an empty prefix, and `text` drops it.
        top, directory, common, prefix = (*output.text.split("\n"), "")[:4]
        return cls(
            git=Git(top).without_filters(),
            top=top,
            prefix=prefix,
            directory=directory,
            common=os.path.abspath(os.path.join(root, common)),
        )

    def path_of(self, kind: str, id: str) -> str:
        """Return the path of a document in the repository: `folder/conversations/{id}.json`."""
        return f"{self.prefix}{kind}/{id}.json"

    def document_at(self, path: str) -> tuple[str, str] | None:
        """Return the kind and id of the store's document at `path`. None: it is no document, or the
        conflict copy of a program that synchronizes files.
        """
        location = document_in(path)
        if location is None:
            return None
        prefix, kind, id = location
        if prefix != self.prefix or original_of(id) is not None:
            return None
        return kind, id

    def pathspec(self, pattern: str) -> str:
        """Return the pathspec for a pattern below the store's folder, wherever git runs."""
        return ":(top,glob)" + re.sub(r"([*?[\\])", r"\\\1", self.prefix) + pattern

    def pathspecs(self) -> list[str]:
        """Return the pathspecs of the store's documents."""
        return [self.pathspec(f"{kind}/*.json") for kind in KINDS]

    def unfinished_operation(self) -> tuple[str, str] | None:
        """Return the operation of git that a person has begun in this worktree and not ended, such
        as a merge, and how to end it.
        """
        for name, operation in _UNFINISHED.items():
            if os.path.exists(os.path.join(self.directory, name)):
                return operation
        return None

    def short(self, hash: str) -> str:
        """Return a hash as this repository shortens it."""
        return self.git.run("rev-parse", "--short", hash).text


def document_in(path: str) -> tuple[str, str, str] | None:
    """Return the store's folder, the kind and the id of a path, if it may be a document of any store
    in the repository.
    """
    folder, _, name = path.rpartition("/")
    prefix, _, kind = folder.rpartition("/")
    id = name.removesuffix(".json")
    if kind not in KINDS or name == id or not is_id(id):
        return None
    return f"{prefix}/" if prefix else "", kind, id


# -- Contents and the index ------------------------------------------------------------------------

#: Git's mode of a regular file that can't be executed, and the modes of all regular files.
FILE = "100644"
REGULAR = frozenset({FILE, "100755"})
_ABSENT = "000000"


class BlobReader:
    """Reads contents of a repository, within a `with` block. The first read starts one
    `git cat-file --batch` for all of them.
    """

    def __init__(self, git: Git) -> None:
        self._git = git
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def read(self, name: str) -> bytes | None:
        """Return the content of a blob. None: it does not exist. Raises GitFailed.

        Args:
            name: The blob's hash, or `REVISION:path`.
        """
        if "\n" in name:
            return None
        if self._process is None:
            self._process = self._git.start("cat-file", "--batch", errors=subprocess.DEVNULL)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(name.encode("utf-8", "surrogateescape") + b"\n")
            process.stdin.flush()
            header = process.stdout.readline()
        except BrokenPipeError:
            header = b""
        if not header.endswith(b"\n"):
            command = ["cat-file", "--batch"]
            raise GitFailed(
                f"git cat-file ended unexpectedly in {self._git.directory}",
                command=command,
                words="",
            )
        # git-cat-file(1), "BATCH OUTPUT": the name, the kind and the size, or else "missing" or
        # "ambiguous".
        _, kind, size = (*header[:-1].rsplit(b" ", 2), b"", b"")[:3]
        if not size.isdigit():
            return None
        data = process.stdout.read(int(size) + 1)[:-1]
        return data if kind == b"blob" else None


class RawDifference(NamedTuple):
    """One line of git's raw format of differences (git-diff(1), "RAW OUTPUT FORMAT").

    Attributes:
        old_mode, new_mode: The modes of the file. Empty: it does not exist on that side.
        old, new: The names of the contents. Zeros: it does not exist on that side, or git did not
            compute the name.
        path: The file.
    """

    old_mode: str
    new_mode: str
    old: str
    new: str
    path: str

    @property
    def entry(self) -> IndexEntry:
        """The entry that an index has after this difference."""
        return IndexEntry(self.path, self.new_mode, self.new if self.new_mode else self.old)


class IndexEntry(NamedTuple):
    """An entry to set in the index. An empty mode removes the path."""

    path: str
    mode: str
    name: str


def changes(git: Git, *command: str) -> list[RawDifference]:
    """Return the differences that `git diff-files`, `diff-index` or `diff-tree` lists."""
    options = ("-z", "--raw", "--no-renames", "--ignore-submodules=dirty")
    fields = iter(git.run(command[0], *options, *command[1:]).fields)
    differences = []
    for line in fields:
        if not line.startswith(":"):
            continue  # The name of the commit, which `diff-tree` prints if it gets only one.
        old_mode, new_mode, old, new, _ = line[1:].split(" ")
        modes = ["" if mode == _ABSENT else mode for mode in (old_mode, new_mode)]
        differences.append(RawDifference(modes[0], modes[1], old, new, next(fields)))
    return differences


def attributes(git: Git, paths: Iterable[str], *names: str) -> list[tuple[str, str, str]]:
    """Return path, attribute and value for each path and each of these attributes
    (git-check-attr(1)).
    """
    sorted_paths = sorted(paths)
    if not sorted_paths:
        return []
    fields = git.run("check-attr", "-z", "--stdin", *names, input=sorted_paths).fields
    return list(zip(fields[::3], fields[1::3], fields[2::3], strict=True))


def object_format(git: Git) -> str:
    """Return the hash function that names the repository's objects: `sha1` or `sha256`."""
    return git.run("rev-parse", "--show-object-format").text


def blob_name(data: bytes, hashing: str) -> str:
    """Return the name that git gives to a content (git-hash-object(1)).

    Args:
        data: The content.
        hashing: The hash function, as `object_format` returns it.
    """
    blob = b"blob %d\0%b" % (len(data), data)
    return hashlib.new(hashing, blob, usedforsecurity=False).hexdigest()


def write_blobs(git: Git, contents: Iterable[bytes]) -> None:
    """Write contents into git (git-fast-import(1)). A few become loose objects, many a pack."""
    stream = b"".join(b"blob\ndata %d\n%b\n" % (len(content), content) for content in contents)
    if stream:
        git.run("fast-import", "--quiet", "--done", input=stream + b"done\n")


def set_entries(git: Git, entries: Iterable[IndexEntry]) -> None:
    """Set entries of the index, or remove them (git-update-index(1), `--index-info`)."""
    lines = []
    for path, mode, name in entries:
        if mode:
            lines.append(f"{mode} {name}\t{path}")
        else:
            lines.append(f"0 {'0' * len(name)}\t{path}")
    if lines:
        git.run("update-index", "-z", "--index-info", input=lines)


def refresh(git: Git) -> None:
    """Make git compare the files with the index, and remember which are unchanged. A difference is
    no failure.
    """
    # Without `-q`: with it, git does not report another git's lock on the index.
    git.run("update-index", "--refresh", ok_codes=(0, 1))


def empty_tree(git: Git) -> str:
    """Write the tree without entries, and return its name."""
    return git.run("hash-object", "-t", "tree", "-w", "--stdin").text
