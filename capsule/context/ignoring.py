"""The walk through a project that git can't be asked about: the files that no ignore file excludes.

What must stay true: it gives what `git ls-files --cached --others --exclude-standard` would give, were the project a
repository without commits; a test compares the two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from capsule.context.reading import read_regular

__all__ = ["walk"]

#: Directories that hold what a version control system knows, and no file of the project.
_OWN_OF_VCS = frozenset({b".git", b".hg", b".svn", b".jj"})

#: An ignore file is not larger than this, in bytes.
_MOST = 10_000_000


class _Pattern(NamedTuple):
    """One line of an ignore file.

    Attributes:
        ignores: Whether what it matches is ignored; else it is taken after all.
        regex: Matches a path, that of a directory with a slash at its end; None: every path.
        inside: Whether it matches what is below the path that the regex matches, and not that path.
        directories: Whether it is about directories alone.
    """

    ignores: bool
    regex: re.Pattern[str] | None
    inside: bool
    directories: bool

    def matches(self, path: str) -> bool:
        if self.directories and not path.endswith("/"):
            return False
        if self.regex is None:
            return True
        if self.inside:
            found = self.regex.match(path)
            return found is not None and found.end() < len(path)
        return self.regex.fullmatch(path) is not None


class _Rule(NamedTuple):
    """One ignore file. Of a path so many characters are cut off, and the prefix put in front, to have it as the file
    sees it; the last line that matches decides, so it stands in front."""

    cut: int
    prefix: str
    patterns: tuple[_Pattern, ...]


#: The one that decides first in front.
_Rules = tuple[_Rule, ...]


def walk(root: str, global_ignore: str) -> Iterator[str]:
    """The files below `root`, relative to it, in no order.

    Args:
        root: The project.
        global_ignore: The text of the user's global ignore file.
    """
    pending: list[tuple[str, _Rules]] = [("", _above(root, global_ignore))]
    top = os.fsencode(root) + b"/"
    while pending:
        directory, rules = pending.pop()
        place = top + directory.encode("latin-1")
        try:
            with os.scandir(place) as found:
                entries = list(found)
        except OSError:
            continue
        if directory and any(entry.name == b".git" for entry in entries):
            continue  # A repository of its own.
        if any(entry.name == b".gitignore" for entry in entries):
            rules = (*_read(place + b"/.gitignore", len(directory)), *rules)
        for entry in entries:
            is_directory = entry.is_dir(follow_symlinks=False)
            if is_directory and entry.name in _OWN_OF_VCS:
                continue
            path = directory + _as_text(entry.name)
            if rules and _is_ignored(path, is_directory, rules):
                continue
            if is_directory:
                pending.append((f"{path}/", rules))
            elif entry.is_file(follow_symlinks=False):
                yield path if path.isascii() else os.fsdecode(path.encode("latin-1"))


def _above(root: str, global_ignore: str) -> _Rules:
    """What is to be asked of every file: the user's own rules, and those of a repository around the project."""
    user = _patterns(os.fsencode(global_ignore))
    top = real = os.path.realpath(root)
    while not os.path.lexists(f"{top}/.git"):
        above = os.path.dirname(top)
        if above == top:
            return (_Rule(0, "", user),) if user else ()
        top = above
    names = os.path.relpath(real, top).split("/") if real != top else []
    below = _as_text(os.fsencode("".join(f"{name}/" for name in names)))
    rules: _Rules = _read(f"{top}/.git/info/exclude", 0, below)
    if user:
        rules = (*rules, _Rule(0, below, user))
    # From the top down to the directory above the project, the nearest in front.
    for depth in range(len(names)):
        directory = "".join(f"{name}/" for name in names[:depth])
        prefix = below[len(os.fsencode(directory)) :]
        rules = (*_read(f"{top}/{directory}.gitignore", 0, prefix), *rules)
    return rules


def _read(path: str | bytes, cut: int, prefix: str = "") -> _Rules:
    text = read_regular(path, _MOST)
    if not text:
        return ()
    return (_Rule(cut, prefix, _patterns(text)),)


def _patterns(text: bytes) -> tuple[_Pattern, ...]:
    """The rules in a text. Lines end as git has them end, which is not how Python does."""
    lines = _as_text(text.removeprefix(b"\xef\xbb\xbf")).split("\n")
    found = [_pattern(line.removesuffix("\r")) for line in lines]
    return tuple(pattern for pattern in reversed(found) if pattern is not None)


def _pattern(line: str) -> _Pattern | None:
    """What a line says; None when it says nothing, or nothing that git would understand.

    The pattern is made by pathspec. It is not asked itself: it judges a file by all its path at once, so that what is
    said of a directory is said of what is inside, which git says only of a directory that it doesn't enter.
    """
    from pathspec import GitIgnoreSpec

    directories = line.endswith("/**/")
    try:
        (made,) = GitIgnoreSpec.from_lines([line[:-1] if directories else line]).patterns
    except ValueError:
        return None
    regex = made.regex
    if made.include is None or regex is None:
        return None
    if not regex.pattern.startswith("^"):
        return _Pattern(made.include, None, inside=False, directories=directories or "/" in regex.pattern)
    return _Pattern(made.include, regex, inside=regex.pattern.endswith("/"), directories=directories)


def _as_text(data: bytes) -> str:
    """Bytes as a text of as many characters, as all paths are in this module: to git, a `?` is one byte."""
    return data.decode("latin-1")


def _is_ignored(path: str, is_directory: bool, rules: _Rules) -> bool:
    """Whether a path is ignored: the nearest ignore file that says anything of it decides."""
    for rule in rules:
        below = rule.prefix + path[rule.cut :] + ("/" if is_directory else "")
        for pattern in rule.patterns:
            if pattern.matches(below):
                return pattern.ignores
    return False
