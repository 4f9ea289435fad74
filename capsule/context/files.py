"""The files of a project that belong into a context: those that git would track.

Git lists the files; outside a work tree it uses an empty repository beside the project. What must
stay true: the same project gives the same list, sorted, on every machine. No symlink is followed. A
store within the project is not taken. A file is left out only by a rule that can be named. Only
regular files are read.

The rules of `.gitignore` are those of gitignore(5); pathspec implements them for `include` and
`exclude`.
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
_OF_A_STORE = frozenset({*KINDS, "overrides", "applied", ".capsule"})
#: The directories of other version control systems.
_OF_OTHERS = ("--exclude=.hg/", "--exclude=.svn/", "--exclude=.jj/")
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


class ProjectFiles:
    """The files of a project that no symlink leads to."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._directories = {"": True}

    def size(self, path: str) -> int | None:
        """The size of a regular file, in bytes; None: it is not a regular file."""
        if not self.has_directory_of(path):
            return None
        try:
            status = os.lstat(f"{self.root}/{path}")
        except (OSError, ValueError):
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None

    def has_directory_of(self, path: str) -> bool:
        """Whether the directory of a file exists; checked once for all files in it."""
        directory = path.rpartition("/")[0]
        known = self._directories.get(directory)
        if known is None:
            try:
                known = self.has_directory_of(directory) and stat.S_ISDIR(
                    os.lstat(f"{self.root}/{directory}").st_mode
                )
            except (OSError, ValueError):
                known = False
            self._directories[directory] = known
        return known

    def read(self, path: str, most: int) -> bytes | None:
        """The content of a regular file of at most `most` bytes; None: it is none, or can't be
        read. No FIFO blocks.
        """
        if not self.has_directory_of(path):
            return None
        try:
            fd = os.open(f"{self.root}/{path}", _FLAGS)
        except (OSError, ValueError):
            return None
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                return None
            data = io.FileIO(fd, closefd=False).readall()
            return data if len(data) <= most else None
        except OSError:
            return None
        finally:
            os.close(fd)


@dataclass(frozen=True, slots=True)
class FileSelection:
    """The choice of files; the context keeps it, so that the project can be captured again.

    Attributes:
        include: Patterns as in `.gitignore`; a file must match one of them. A path without a
            wildcard names a file, which is then taken even if git ignores it or its name is one of
            a file of secrets. Empty: all files.
        exclude: Patterns as in `.gitignore`; a file that matches one is left out.
        file_bytes: Files larger than this many bytes are left out.
        total_bytes: The largest files are left out, until the rest has at most this many bytes.
        budget: The largest number of tokens in the document, estimated; None: no limit.
    """

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    file_bytes: int = FILE_BYTES
    total_bytes: int = TOTAL_BYTES
    budget: int | None = None

    @property
    def named(self) -> frozenset[str]:
        """The paths that `include` names without a wildcard. Raises InvalidInput: a path leads out
        of the project.
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
        """The selection as a capsule has it."""
        fields: dict[str, Any] = {"include": list(self.include), "exclude": list(self.exclude)}
        fields |= {"fileBytes": self.file_bytes, "totalBytes": self.total_bytes}
        return fields if self.budget is None else fields | {"budget": self.budget}

    @classmethod
    def of(cls, fields: Any) -> FileSelection:
        """The selection in a capsule; missing and invalid fields have their defaults."""
        get = fields.get if isinstance(fields, dict) else {}.get
        include, exclude = (
            tuple(str(text) for text in got if isinstance(text, str))
            if isinstance(got := get(name), list)
            else ()
            for name in ("include", "exclude")
        )
        sizes = {
            name: int(got)
            for name, key in (
                ("file_bytes", "fileBytes"),
                ("total_bytes", "totalBytes"),
                ("budget", "budget"),
            )
            if type(got := get(key)) is int and got >= 0
        }
        return cls(include, exclude, **sizes)


@dataclass(frozen=True, slots=True)
class ExcludedFile:
    """A file that is left out, and the reason in words."""

    path: str
    why: str


@dataclass(slots=True)
class FileCandidates:
    """The listed files: relative POSIX paths, sorted, with their sizes in bytes; and the files left
    out so far.
    """

    files: list[tuple[str, int]] = field(default_factory=list)
    left_out: list[ExcludedFile] = field(default_factory=list)


def candidates(inside: ProjectFiles, selection: FileSelection) -> FileCandidates:
    """The files of a project that `selection` takes, judged by their names and sizes alone.

    Raises:
        NotFound: There is no such directory.
        InvalidInput: A pattern is invalid.
        GitFailed, Refused: Git can't list the files, or is not installed.

    Cost: a `git ls-files`; an `lstat` for each file and directory.
    """
    root, listed = inside.root, FileCandidates()
    if not os.path.isdir(root):
        raise NotFound(f"{root}: there is no such directory to capture", id=root)
    include, exclude = _spec(selection.include), _spec(selection.exclude)
    named = selection.named
    for path in sorted({*_listed(root), *named}):
        if _is_of_a_store(inside, path) or (exclude is not None and exclude.match_file(path)):
            continue
        if include is not None and path not in named and not include.match_file(path):
            continue
        size = inside.size(path)
        if size is None:
            continue  # Deleted meanwhile, a symlink or a submodule: no regular file.
        if path.encode("utf-8", "ignore") != os.fsencode(path):
            listed.left_out.append(ExcludedFile(path, "its name is not valid UTF-8"))
        elif size > selection.file_bytes:
            listed.left_out.append(too_large(path, size, selection))
        else:
            listed.files.append((path, size))
    return listed


def too_large(path: str, size: int, selection: FileSelection) -> ExcludedFile:
    """A file left out because of its size."""
    return ExcludedFile(path, f"{size:,} bytes, more than {selection.file_bytes:,}")


def within(
    files: list[tuple[str, int]], most: int
) -> tuple[list[tuple[str, int]], list[ExcludedFile]]:
    """The files without the largest, so that together they have at most `most` bytes; and the files
    left out.
    """
    total = sum(size for _, size in files)
    if total <= most:
        return files, []
    dropped: dict[str, ExcludedFile] = {}
    for path, size in sorted(files, key=lambda file: (-file[1], file[0])):
        if total <= most:
            break
        total -= size
        dropped[path] = ExcludedFile(
            path, f"{size:,} bytes, and all files together have more than {most:,}"
        )
    return [file for file in files if file[0] not in dropped], list(dropped.values())


def _is_of_a_store(inside: ProjectFiles, path: str) -> bool:
    """Whether a file lies in the directories of a store."""
    parts = path.split("/")
    return any(
        part in _OF_A_STORE and inside.size("/".join([*parts[:at], "capsule.toml"])) is not None
        for at, part in enumerate(parts[:-1])
    )


def _spec(patterns: Iterable[str]) -> GitIgnoreSpec | None:
    patterns = tuple(patterns)
    if not patterns:
        return None
    from pathspec import GitIgnoreSpec

    try:
        return GitIgnoreSpec.from_lines(patterns)
    except ValueError as error:
        raise InvalidInput(
            f"invalid pattern: {error}; patterns have the syntax of .gitignore"
        ) from None


def _listed(root: str) -> list[str]:
    """The files that git tracks or would track below `root`, relative to it."""
    listing = ("ls-files", "-z", "--others", "--exclude-standard")
    try:
        output = Git(root).run(*listing, "--cached", "--deduplicate", timeout_s=_GIT_TIMEOUT_S)
    except GitFailed:
        with tempfile.TemporaryDirectory(prefix="capsule-") as empty:
            Git(empty).run("init", "--quiet", "--bare", "--template=")
            beside = Git(root, variables={"GIT_DIR": empty, "GIT_WORK_TREE": root})
            output = beside.run(*listing, *_OF_OTHERS, timeout_s=_GIT_TIMEOUT_S)
    return [path for path in output.fields if not path.endswith("/")]
