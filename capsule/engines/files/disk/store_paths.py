"""The paths of a store's files and directories, and the permissions of new ones.

A document is `{kind}/{id}.json`. All documents of a session share the directory `sessions/{id}`, and
the kinds that belong to this machine are in `.capsule/`, which is never committed.

What must stay true: every path is made here from a kind and a checked id, so that none can leave
the store. No directory of a store is reached through a symlink: a repository or an archive can
contain one, and behind it are other people's files.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import open_file, sync_directory
from capsule.engines.entries import SIDE_FILE_FOLDERS
from capsule.errors import Refused
from capsule.ids import check_id

DERIVED_NAME = ".capsule"
#: The kinds that belong to this machine, such as how to wake an agent here, or which commands may
#: run. `LocalFiles` takes a file of these that the store did not write for missing, since a
#: repository can contain one, and its content may be run.
LOCAL = frozenset({"commands", "doorbells", "homes", "imports", "keys", "webhooks"})
#: The kinds whose documents are `{directory}/{id}/{kind}.json`, each with the directory.
NESTED = {"inbound": "sessions", "outbound": "sessions"}
#: All kinds of documents.
KINDS = (
    LOCAL
    | NESTED.keys()
    | {"agents", "applied", "conversations", "overrides", "projects", "sessions"}
)
#: The folder of each kind, from the root.
_FOLDERS = {
    kind: f"{DERIVED_NAME}/{kind}" if kind in LOCAL else NESTED.get(kind, kind) for kind in KINDS
}
_GITIGNORE = b"# Derived and transient: rebuilt from the files, never committed.\n*\n"


class StorePaths(NamedTuple):
    """The paths of one store.

    Attributes:
        root: The store's directory.
        shared: Whether new files and directories get their permissions from the process's umask.
            Otherwise they are 0600 and 0700.
    """

    root: str
    shared: bool = False

    @property
    def file_mode(self) -> int:
        """Return the permission bits of a new file."""
        return 0o666 if self.shared else 0o600

    @property
    def directory_mode(self) -> int:
        """Return the permission bits of a new directory."""
        return 0o777 if self.shared else 0o700

    def documents(self, kind: str) -> str:
        """Return the directory that has all documents of a kind, or the directories of them.

        Raises ValueError if the kind is not in `KINDS`.
        """
        if kind not in _FOLDERS:
            raise ValueError(
                f"{kind!r} is not a kind of documents in engines/files/disk/store_paths.py"
            )
        return f"{self.root}/{_FOLDERS[kind]}"

    def directory(self, kind: str, id: str) -> str:
        """Return the directory of one document."""
        if kind in NESTED:
            return f"{self.root}/{NESTED[kind]}/{id}"
        return self.documents(kind)

    @lru_cache(maxsize=1024)  # noqa: B019 - self is a tuple of two values
    def document(self, kind: str, id: str) -> str:
        """Return the path of a document. Raises InvalidInput if this is not an id."""
        if kind in NESTED:
            return f"{self.directory(kind, check_id(id))}/{kind}.json"
        return f"{self.documents(kind)}/{check_id(id)}.json"

    def temporary(self, kind: str, id: str) -> str:
        """Return the path under which a new version is written. It belongs to the holder of the
        document's mutex.
        """
        name = kind if kind in NESTED else id
        return f"{self.directory(kind, id)}/.{name}.tmp"

    def folder(self, kind: str, id: str) -> str:
        """Return the directory of the side files of a kind."""
        return f"{self.root}/{SIDE_FILE_FOLDERS[kind].format(check_id(id))}"

    def derived(self, *parts: str) -> str:
        """Return a path in `.capsule/`, for a message only. `StoreDirectory` gives access to files
        there.
        """
        return "/".join((self.root, DERIVED_NAME, *parts))

    def check(self, sys: Syscalls, path: str) -> None:
        """Raise `Refused` if a directory of the store, or one above it in the store, is a symlink.

        A directory that does not exist is no error.
        """
        refuse_symlinks(sys, self.directories_down_to(path))

    def ensure(self, sys: Syscalls, path: str) -> None:
        """Make a directory of the store and those above it, durably.

        Raises `Refused` if one is a symlink.
        """
        for directory in self.directories_down_to(path):
            refuse_symlinks(sys, [directory])
            self.ensure_directory(sys, directory)

    def directories_down_to(self, path: str) -> list[str]:
        """Return the directories from the one below the root down to this one."""
        names = path[len(self.root) + 1 :].split("/")
        return ["/".join((self.root, *names[: n + 1])) for n in range(len(names))]

    def ensure_directory(self, sys: Syscalls, path: str) -> None:
        """Make a directory if it does not exist, durably."""
        with suppress(FileExistsError):
            sys.mkdir(path, self.directory_mode)
            sync_directory(sys, os.path.dirname(path))


class StoreDirectory:
    """`.capsule/`, or a directory in it.

    Args:
        paths: The paths of the store.
        sys: The system calls.
        name: The directory's name. Empty: `.capsule/` itself.
        parent: The directory below the root that contains it.

    Attributes:
        path: Its path, for a message or a comparison.
        file_mode: The permission bits of a new file in it.
    """

    def __init__(
        self, paths: StorePaths, sys: Syscalls, name: str = "", *, parent: str = DERIVED_NAME
    ) -> None:
        self._paths = paths
        self._sys = sys
        self._parent = f"{paths.root}/{parent}"
        self.path = f"{self._parent}/{name}" if name else self._parent
        self._directories = paths.directories_down_to(self.path)
        self.file_mode = paths.file_mode

    def check(self) -> None:
        """Raise `Refused` if it, or a directory above it in the store, is a symlink.

        A directory that does not exist is no error.
        """
        refuse_symlinks(self._sys, self._directories)

    def file(self, name: str) -> str:
        """Return the path of a file in it. Raises `Refused` if the directory is a symlink."""
        refuse_symlinks(self._sys, self._directories)
        return f"{self.path}/{name}"

    def files(self) -> list[str]:
        """Return the names of the regular files in it. Empty if it does not exist.

        Raises `Refused` if it is a symlink.
        """
        return [name for name, _ in self.statuses()]

    def statuses(self) -> list[tuple[str, os.stat_result]]:
        """Return name and lstat of each regular file in it. Otherwise as `files`."""
        self.check()
        try:
            return [
                (name, status)
                for name, status in self._sys.names(self.path)
                if stat.S_ISREG(status.st_mode)
            ]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def ensure(self) -> None:
        """Make it if it does not exist, and `.capsule/` with its `.gitignore`.

        Raises `Refused` if one of them is a symlink.
        """
        self._paths.ensure(self._sys, self.path)
        if self._parent == self._paths.derived():
            self._ensure_ignored()

    def _ensure_ignored(self) -> None:
        """Write the `.gitignore` of `.capsule/` if it does not exist."""
        path = f"{self._parent}/.gitignore"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with suppress(FileExistsError), open_file(self._sys, path, flags, self.file_mode) as fd:
            self._sys.pwrite(fd, _GITIGNORE, 0)


def refuse_symlinks(sys: Syscalls, paths: list[str]) -> None:
    """Raise `Refused` if one of these directories, from the outermost to the innermost, is a
    symlink. A directory that does not exist is no error.
    """
    for path in paths:
        try:
            status = sys.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return
        if stat.S_ISLNK(status.st_mode):
            raise Refused(
                f"{path} is a symlink, and Capsule follows no symlinks inside a store; see "
                f"where it leads, then remove it: rm {path}",
                path=path,
            )
