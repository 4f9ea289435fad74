"""Contents read from git and written to it, and entries of its index, without git reading the
working tree.

What must stay true: a content enters byte for byte, whatever attributes and filters say; and one
process of git serves any number of contents.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from capsule.errors import GitFailed
from capsule.git_program import Git

#: Git's mode of a regular file that can't be executed; and the modes of all regular files.
FILE = "100644"
REGULAR = frozenset({FILE, "100755"})
_ABSENT = "000000"


class BlobReader:
    """The contents of a repository, read one after another from one `git cat-file --batch`, within
    a `with` block.
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
        """The content of the blob `name`, a hash or `REVISION:path`; None: there is none. Raises
        GitFailed.
        """
        if "\n" in name:
            return None
        process = self._process = self._process or self._git.start(
            "cat-file", "--batch", errors=subprocess.DEVNULL
        )
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
        # git-cat-file(1), "BATCH OUTPUT": the name, the kind, the size; else "missing" or
        # "ambiguous".
        _, kind, size = (*header[:-1].rsplit(b" ", 2), b"", b"")[:3]
        if not size.isdigit():
            return None
        data = process.stdout.read(int(size) + 1)[:-1]
        return data if kind == b"blob" else None


class RawDifference(NamedTuple):
    """One line of git's raw format of differences (git-diff(1), "RAW OUTPUT FORMAT").

    The modes are empty where there is nothing on that side; the names of the contents are zeros
    there, and where git did not look at it.
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
    """What the index is to have at a path; an empty mode: nothing."""

    path: str
    mode: str
    name: str


def changes(git: Git, *command: str) -> list[RawDifference]:
    """The differences by a `git diff-files`, `diff-index` or `diff-tree`."""
    options = ("-z", "--raw", "--no-renames", "--ignore-submodules=dirty")
    fields = iter(git.run(command[0], *options, *command[1:]).fields)
    differences = []
    for line in fields:
        if not line.startswith(":"):
            continue  # The name of a commit, which `diff-tree` puts first for one alone.
        old_mode, new_mode, old, new, _ = line[1:].split(" ")
        modes = ["" if mode == _ABSENT else mode for mode in (old_mode, new_mode)]
        differences.append(RawDifference(modes[0], modes[1], old, new, next(fields)))
    return differences


def attributes(git: Git, paths: Iterable[str], *names: str) -> list[tuple[str, str, str]]:
    """Path, attribute and value for each of the paths and of these
    attributes (git-check-attr(1)).
    """
    asked = sorted(paths)
    fields = git.run("check-attr", "-z", "--stdin", *names, input=asked).fields if asked else []
    return list(zip(fields[::3], fields[1::3], fields[2::3], strict=True))


def object_format(git: Git) -> str:
    """How the repository names its objects: `sha1` or `sha256`."""
    return git.run("rev-parse", "--show-object-format").text


def blob_name(data: bytes, hashing: str) -> str:
    """The name that git gives to a content (git-hash-object(1)), in an `object_format`."""
    return hashlib.new(
        hashing, b"blob %d\0%b" % (len(data), data), usedforsecurity=False
    ).hexdigest()


def write_blobs(git: Git, contents: Iterable[bytes]) -> None:
    """Write contents into git (git-fast-import(1)). A few become loose objects, many a pack."""
    stream = b"".join(b"blob\ndata %d\n%b\n" % (len(content), content) for content in contents)
    if stream:
        git.run("fast-import", "--quiet", "--done", input=stream + b"done\n")


def set_entries(git: Git, entries: Iterable[IndexEntry]) -> None:
    """Set entries of the index, or remove them (git-update-index(1), `--index-info`)."""
    lines = [
        f"{mode or 0} {name if mode else '0' * len(name)}\t{path}" for path, mode, name in entries
    ]
    if lines:
        git.run("update-index", "-z", "--index-info", input=lines)


def refresh(git: Git) -> None:
    """Make git compare the files with the index, and remember which are the same. A difference is
    no failure.
    """
    # Not with `-q`, under which git does not report a lock that another git has on the index.
    git.run("update-index", "--refresh", ok_codes=(0, 1))


def empty_tree(git: Git) -> str:
    """Write the tree without entries; its name."""
    return git.run("hash-object", "-t", "tree", "-w", "--stdin").text
