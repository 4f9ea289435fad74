"""List the files of a project that belong into a context: those that git would track.

Git lists the files. Outside a git work tree, an empty repository beside the project makes this
possible. The rules of `.gitignore` are those of gitignore(5). pathspec implements them for
`include` and `exclude`.

What must stay true: the same project gives the same list, sorted, on every machine. No symlink is
followed. A store within the project is not included. A file is left out only by a rule that can be
named. Only regular files are read.
"""

from __future__ import annotations

import io
import os
import stat
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capsule.errors import GitFailed, InvalidInput, NotFound
from capsule.format.validation import KINDS
from capsule.git_program import Git

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

FILE_BYTES = 1_000_000
TOTAL_BYTES = 100_000_000
_GIT_TIMEOUT_S = 60
_WILD = frozenset("*?[\\")
_STORE_DIRECTORIES = frozenset({*KINDS, "overrides", "applied", ".capsule"})
#: The directories of other version control systems.
_OTHER_SYSTEMS = ("--exclude=.hg/", "--exclude=.svn/", "--exclude=.jj/")
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class ProjectFiles:
    """The files of a project that no symlink leads to."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._directories = {"": True}

    def size(self, path: str) -> int | None:
        """Return the size of a regular file, in bytes. None: it is not a regular file."""
        if not self.has_directory_of(path):
            return None
        try:
            status = os.lstat(f"{self.root}/{path}")
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def has_directory_of(self, path: str) -> bool:
        """Return whether the directory of a file exists, and no part of its path is a symlink.

        The result is cached.
        """
        directory = path.rpartition("/")[0]
        cached = self._directories.get(directory)
        if cached is not None:
            return cached
        exists = False
        if self.has_directory_of(directory):
            try:
                exists = stat.S_ISDIR(os.lstat(f"{self.root}/{directory}").st_mode)
            except (OSError, ValueError):
                exists = False
        self._directories[directory] = exists
        return exists

    def read(self, path: str, max_bytes: int) -> bytes | None:
        """Return the content of a regular file of at most `max_bytes`. It blocks at no FIFO.

        None: it is no such file, or can't be read.
        """
        if not self.has_directory_of(path):
            return None
        try:
            fd = os.open(f"{self.root}/{path}", _FLAGS)
        except (OSError, ValueError):
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
                return None
            data = io.FileIO(fd, closefd=False).readall()
            return data if len(data) <= max_bytes else None
        except OSError:
            return None
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The choice of files. It is stored in the context, so that the project can be captured again.

    Attributes:
        include: Patterns as in `.gitignore`. A file must match one of them. A path without a
            wildcard names a file, which is included even if git ignores it or it has a name for
            secrets. Empty: all files.
        exclude: Patterns as in `.gitignore`. A file that matches one is left out.
        file_bytes: Files larger than this many bytes are left out.
        total_bytes: The largest files are left out, until the rest has at most this many bytes.
        budget: The largest estimated number of tokens in the document. None: no limit.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    file_bytes: int = FILE_BYTES
    total_bytes: int = TOTAL_BYTES
    budget: int | None = None

    @property
    def named(self) -> frozenset[str]:
        """The paths that `include` names without a wildcard.

        Raises InvalidInput: a path leads out of the project.
        """
        paths = set()
        for pattern in self.include:
            if pattern.startswith("!") or _WILD & set(pattern) or pattern.endswith("/"):
                continue
            parts = pattern.removeprefix("./").lstrip("/").split("/")
            if ".." in parts:
                raise InvalidInput(
                    f"--include {pattern}: is outside the project; capture that directory instead"
                )
            paths.add("/".join(parts))
        return frozenset(paths)

    def as_json(self) -> dict[str, Any]:
        """Return the selection as it is stored in a capsule."""
        fields: dict[str, Any] = {
            "include": list(self.include),
            "exclude": list(self.exclude),
            "fileBytes": self.file_bytes,
            "totalBytes": self.total_bytes,
        }
        if self.budget is not None:
            fields["budget"] = self.budget
        return fields

    @classmethod
    def of(cls, fields: Any) -> FileSelection:
        """Return the selection in a capsule. Missing and invalid fields have their defaults."""
        if not isinstance(fields, dict):
            return cls()
        sizes = {}
        for name, key in _SIZES.items():
            value = fields.get(key)
            if type(value) is int and value >= 0:
                sizes[name] = int(value)
        return cls(_patterns(fields.get("include")), _patterns(fields.get("exclude")), **sizes)


#: The fields of a `FileSelection` that are numbers, with their names in a capsule.
_SIZES = {"file_bytes": "fileBytes", "total_bytes": "totalBytes", "budget": "budget"}


def _patterns(value: Any) -> tuple[str, ...]:
    """Return the texts in a list. Anything else gives none."""
    if not isinstance(value, list):
        return ()
    return tuple(str(text) for text in value if isinstance(text, str))


@dataclass(frozen=True, slots=True)
class ExcludedFile:
    """A file that is left out, and the reason in words."""

    path: str
    reason: str


@dataclass(slots=True)
class FileCandidates:
    """The files that can be included.

    Attributes:
        files: Relative POSIX paths, sorted, with their sizes in bytes.
        left_out: The files that are left out.
    """

    files: list[tuple[str, int]] = field(default_factory=list)
    left_out: list[ExcludedFile] = field(default_factory=list)


def candidates(project_files: ProjectFiles, selection: FileSelection) -> FileCandidates:
    """Return the files of a project that a selection includes, by their names and sizes alone.

    Raises:
        NotFound: The directory does not exist.
        InvalidInput: A pattern is invalid.
        GitFailed, Refused: Git can't list the files, or is not installed.

    Cost: a `git ls-files`; an `lstat` for each file and directory.
    """
    root = project_files.root
    listed = FileCandidates()
    if not os.path.isdir(root):
        raise NotFound(f"{root}: there is no such directory to capture", id=root)
    include = _spec(selection.include)
    exclude = _spec(selection.exclude)
    named = selection.named
    for path in sorted({*_listed(root), *named}):
        if _is_in_store(project_files, path) or (exclude is not None and exclude.match_file(path)):
            continue
        if include is not None and path not in named and not include.match_file(path):
            continue
        size = project_files.size(path)
        if size is None:
            continue  # No regular file: it was deleted, or is a symlink or a submodule.
        if path.encode("utf-8", "ignore") != os.fsencode(path):
            listed.left_out.append(ExcludedFile(path, "its name is not valid UTF-8"))
        elif size > selection.file_bytes:
            listed.left_out.append(too_large(path, size, selection))
        else:
            listed.files.append((path, size))
    return listed


def too_large(path: str, size: int, selection: FileSelection) -> ExcludedFile:
    """Return a file that is left out because of its size."""
    return ExcludedFile(path, f"{size:,} bytes, more than {selection.file_bytes:,}")


def drop_largest(
    files: list[tuple[str, int]], max_bytes: int
) -> tuple[list[tuple[str, int]], list[ExcludedFile]]:
    """Leave out the largest files, until the others have at most `max_bytes` together.

    Args:
        files: Paths and sizes in bytes.
        max_bytes: The limit.

    Returns: the other files, and those that are left out.
    """
    total = sum(size for _, size in files)
    if total <= max_bytes:
        return files, []
    dropped: dict[str, ExcludedFile] = {}
    for path, size in sorted(files, key=lambda file: (-file[1], file[0])):
        if total <= max_bytes:
            break
        total -= size
        reason = f"{size:,} bytes, and all files together have more than {max_bytes:,}"
        dropped[path] = ExcludedFile(path, reason)
    return [file for file in files if file[0] not in dropped], list(dropped.values())


def _is_in_store(project_files: ProjectFiles, path: str) -> bool:
    """Return whether a file is in one of the directories of a store (beside a `capsule.toml`)."""
    parts = path.split("/")
    for index, part in enumerate(parts[:-1]):
        if part in _STORE_DIRECTORIES:
            settings = "/".join([*parts[:index], "capsule.toml"])
            if project_files.size(settings) is not None:
                return True
    return False


def _spec(patterns: Iterable[str]) -> GitIgnoreSpec | None:
    """Return a matcher for patterns, or None."""
    lines = tuple(patterns)
    if not lines:
        return None
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(lines)
    except ValueError as error:
        raise InvalidInput(
            f"invalid pattern: {error}; patterns have the syntax of .gitignore"
        ) from None


def _listed(root: str) -> list[str]:
    """Return the files that git tracks or would track below `root`, relative to it."""
    listing = ("ls-files", "-z", "--others", "--exclude-standard")
    try:
        output = Git(root).run(*listing, "--cached", "--deduplicate", timeout_s=_GIT_TIMEOUT_S)
    except GitFailed:
        with tempfile.TemporaryDirectory(prefix="capsule-") as empty:
            Git(empty).run("init", "--quiet", "--bare", "--template=")
            repository = Git(root, variables={"GIT_DIR": empty, "GIT_WORK_TREE": root})
            output = repository.run(*listing, *_OTHER_SYSTEMS, timeout_s=_GIT_TIMEOUT_S)
    return [path for path in output.fields if not path.endswith("/")]
