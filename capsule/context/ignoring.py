"""The walk through a project that git can't be asked about: the files that no ignore file excludes.

What must stay true: as git does, it enters no directory that is ignored, and the nearest ignore file that says anything
of a path decides. pathspec knows what a line means.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress

from pathspec import GitIgnoreSpec

from capsule.context.reading import read_regular

#: Directories that hold what a version control system knows, and no file of the project.
_OWN_OF_VCS = frozenset({".git", ".hg", ".svn", ".jj"})
#: An ignore file is not larger than this, in bytes.
_MOST = 10_000_000

#: The lines of one ignore file, by the directory that they are about; the nearest in front.
_Rules = tuple[tuple[str, GitIgnoreSpec], ...]


def walk(root: str, global_ignore: str) -> Iterator[str]:
    """The files below `root`, relative to it, in no order.

    Args:
        root: The project.
        global_ignore: The text of the user's global ignore file.
    """
    root = os.path.realpath(root)
    top = root
    while not os.path.lexists(f"{top}/.git") and os.path.dirname(top) != top:
        top = os.path.dirname(top)
    above: _Rules = ((root, _spec(global_ignore)),)
    if os.path.lexists(f"{top}/.git"):
        above = (*_read(f"{top}/.git/info/exclude", top), (top, _spec(global_ignore)))
        names = os.path.relpath(root, top).split("/") if root != top else []
        for depth in range(len(names)):
            directory = "/".join((top, *names[:depth]))
            above = (*_read(f"{directory}/.gitignore", directory), *above)
    pending = [(root, above)]
    while pending:
        directory, rules = pending.pop()
        try:
            with os.scandir(directory) as found:
                entries = list(found)
        except OSError:
            continue
        if directory != root and any(entry.name == ".git" for entry in entries):
            continue  # A repository of its own.
        rules = (*_read(f"{directory}/.gitignore", directory), *rules)
        for entry in entries:
            path = f"{directory}/{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _OWN_OF_VCS and not _is_ignored(f"{path}/", rules):
                    pending.append((path, rules))
            elif entry.is_file(follow_symlinks=False) and not _is_ignored(path, rules):
                yield path[len(root) + 1 :]


def _read(path: str, directory: str) -> _Rules:
    text = read_regular(path, _MOST)
    return ((directory, _spec(os.fsdecode(text.removeprefix(b"\xef\xbb\xbf")))),) if text else ()


def _spec(text: str) -> GitIgnoreSpec:
    """The lines of an ignore file; those that can't be understood say nothing."""
    understood = []
    for line in text.split("\n"):
        with suppress(ValueError):
            GitIgnoreSpec.from_lines([line])
            understood.append(line)
    return GitIgnoreSpec.from_lines(understood)


def _is_ignored(path: str, rules: _Rules) -> bool:
    said = (spec.check_file(path[len(directory) + 1 :]).include for directory, spec in rules)
    return next((ignored for ignored in said if ignored is not None), False)
