"""Contents into git, and entries into its index, without git reading a file of the working tree.

What must stay true: what enters is what was given, byte for byte, whatever attributes and filters say; and one process
of git serves any number of contents.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from capsule.git.program import Git

__all__ = [
    "FILE",
    "Entry",
    "Raw",
    "blob_name",
    "changes",
    "empty_tree",
    "object_format",
    "refresh",
    "set_entries",
    "write_blobs",
]

#: A regular file that can't be executed, in git's words.
FILE = "100644"
_ABSENT = "000000"


class Raw(NamedTuple):
    """One line of git's raw format of differences (git-diff(1), "RAW OUTPUT FORMAT").

    Attributes:
        old_mode, new_mode: In octal; empty when there is nothing on that side.
        old, new: Names of the contents; zeros where there is none, or where it wasn't looked at.
        status: A letter.
        path: Relative to the top directory.
    """

    old_mode: str
    new_mode: str
    old: str
    new: str
    status: str
    path: str


class Entry(NamedTuple):
    """What the index is to have at a path; the mode empty: nothing."""

    path: str
    mode: str
    name: str


def changes(git: Git, *command: str) -> list[Raw]:
    """What a `git diff-files`, `diff-index` or `diff-tree` tells, which is given `-z --raw --no-renames` here."""
    fields = iter(git.run(command[0], "-z", "--raw", "--no-renames", "--ignore-submodules=dirty", *command[1:]).fields)
    found = []
    for told in fields:
        if not told.startswith(":"):
            continue  # The name of a commit, which `diff-tree` puts first for one alone.
        old_mode, new_mode, old, new, status = told[1:].split(" ")
        modes = ["" if mode == _ABSENT else mode for mode in (old_mode, new_mode)]
        found.append(Raw(modes[0], modes[1], old, new, status, next(fields)))
    return found


def object_format(git: Git) -> str:
    """How the repository names its objects: `sha1` or `sha256`."""
    return git.run("rev-parse", "--show-object-format").text


def blob_name(data: bytes, hashing: str) -> str:
    """The name that git gives to a content (gitformat of objects: git-hash-object(1)).

    Args:
        data: The content.
        hashing: As `object_format` gives it.
    """
    import hashlib

    return hashlib.new(hashing, b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest()


def write_blobs(git: Git, contents: Iterable[bytes]) -> None:
    """Make git have contents (git-fast-import(1)). A few become loose objects, many a pack."""
    stream = b"".join(b"blob\ndata %d\n%b\n" % (len(content), content) for content in contents)
    if stream:
        git.run("fast-import", "--quiet", "--done", input=stream + b"done\n")


def set_entries(git: Git, entries: Iterable[Entry]) -> None:
    """Set entries of the index, or take them out (git-update-index(1), `--index-info`)."""
    told = b"".join(
        f"{entry.mode or 0} {entry.name if entry.mode else '0' * len(entry.name)}\t{entry.path}\0".encode(
            "utf-8", "surrogateescape"
        )
        for entry in entries
    )
    if told:
        git.run("update-index", "-z", "--index-info", input=told)


def refresh(git: Git) -> None:
    """Have git look which files are as the index has them, and remember it. What differs is no failure."""
    # Without `-q`, under which git says nothing of a lock that another git has on the index, so that nobody would wait.
    git.run("update-index", "--refresh", fine=(0, 1))


def empty_tree(git: Git) -> str:
    """The name of the tree without entries, which git then has."""
    return git.run("hash-object", "-t", "tree", "-w", "--stdin").text
