"""Read contents from git, write contents to it, and set entries of its index, without git reading
the working tree.

What must stay true: a content is written byte for byte, whatever attributes and filters are
configured. One process of git serves any number of contents.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from capsule.errors import GitFailed
from capsule.git_program import Git

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
