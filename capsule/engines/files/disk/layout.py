"""Where things lie in a store's directory, and with which permissions they are made.

What must stay true: every path is made here from a kind and a checked id, so that none can leave
the store; and no directory of a store is reached through a symlink. A repository or an archive can
carry one, and what is written or unlinked behind it is somebody else's file.
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
#: Kinds of this machine only, such as how to wake an agent here, or which commands may run: in
#: `.capsule/`, never committed. A file that the store did not write counts as missing: what it says
#: may be run, and a repository can carry one.
LOCAL = frozenset({"commands", "doorbells", "homes", "imports", "keys", "webhooks"})
#: Kinds of which all documents with one id share a directory, and are called in it as their kind:
#: the directory above.
NESTED = {"inbound": "sessions", "outbound": "sessions"}
#: The kinds of documents, all of them: a purge visits each.
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
        shared: New files and directories get the process's umask instead of 0600 and 0700.
    """

    root: str
    shared: bool = False

    @property
    def file_mode(self) -> int:
        """The permission bits of a new file."""
        return 0o666 if self.shared else 0o600

    @property
    def directory_mode(self) -> int:
        """The permission bits of a new directory."""
        return 0o777 if self.shared else 0o700

    def documents(self, kind: str) -> str:
        """The directory that all documents of a kind lie in, or below. Raises ValueError: it is not
        in `KINDS`.
        """
        if kind not in _FOLDERS:
            raise ValueError(f"{kind!r} is not a kind of documents in engines/files/disk/layout.py")
        return f"{self.root}/{_FOLDERS[kind]}"

    def directory(self, kind: str, id: str) -> str:
        """The directory that a document lies in."""
        return f"{self.root}/{NESTED[kind]}/{id}" if kind in NESTED else self.documents(kind)

    @lru_cache(maxsize=1024)  # noqa: B019 - a layout is two values, and holds nothing
    def document(self, kind: str, id: str) -> str:
        """Where a document lies. Raises InvalidInput: this is not an id."""
        if kind in NESTED or kind not in _FOLDERS:
            return f"{self.directory(kind, check_id(id))}/{kind}.json"
        return f"{self.root}/{_FOLDERS[kind]}/{check_id(id)}.json"

    def temporary(self, kind: str, id: str) -> str:
        """The name a new version is written under; whoever holds the document's mutex owns it."""
        return f"{self.directory(kind, id)}/.{kind if kind in NESTED else id}.tmp"

    def folder(self, kind: str, id: str) -> str:
        """The directory of the files of a kind that are no documents."""
        return f"{self.root}/{SIDE_FILE_FOLDERS[kind].format(check_id(id))}"

    def derived(self, *parts: str) -> str:
        """A path in `.capsule/`, for a message; to reach what is there, ask a `StoreDirectory`."""
        return "/".join((self.root, DERIVED_NAME, *parts))

    def check(self, sys: Syscalls, path: str) -> None:
        """Raise Refused when a directory of the store, or one around it, is a symlink. One that is
        missing will do.
        """
        refuse_symlinks(sys, self.down_to(path))

    def ensure(self, sys: Syscalls, path: str) -> None:
        """Make a directory of the store, and those around it, durably. Raises `Refused`: one is a
        symlink.
        """
        for above in self.down_to(path):
            refuse_symlinks(sys, [above])
            self.ensure_directory(sys, above)

    def down_to(self, path: str) -> list[str]:
        """The directories from below the root to this one."""
        names = path[len(self.root) + 1 :].split("/")
        return ["/".join((self.root, *names[: n + 1])) for n in range(len(names))]

    def ensure_directory(self, sys: Syscalls, path: str) -> None:
        """Make a directory, if it is missing; durable on return, as is what it will hold when that
        is synced.
        """
        with suppress(FileExistsError):
            sys.mkdir(path, self.directory_mode)
            sync_directory(sys, os.path.dirname(path))


class StoreDirectory:
    """`.capsule/`, or a directory in it.

    Args:
        layout: The paths of the store.
        sys: The seam to the system.
        name: The directory's name; empty: `.capsule/` itself.
        around: The directory below the root that holds it, when it is another than `.capsule/`.

    Attributes:
        path: Where it lies, for a message or a comparison.
        file_mode: Permission bits of a new file in it.
    """

    def __init__(
        self, layout: StorePaths, sys: Syscalls, name: str = "", *, around: str = DERIVED_NAME
    ) -> None:
        self._layout = layout
        self._sys = sys
        self._around = f"{layout.root}/{around}"
        self.path = f"{self._around}/{name}" if name else self._around
        self._way = layout.down_to(self.path)
        self.file_mode = layout.file_mode

    def check(self) -> None:
        """Raise Refused when it, or `.capsule/` around it, is a symlink. One that is missing will
        do.
        """
        refuse_symlinks(self._sys, self._way)

    def file(self, name: str) -> str:
        """The path of a file in it. Raises `Refused`: it is a symlink."""
        refuse_symlinks(self._sys, self._way)
        return f"{self.path}/{name}"

    def files(self) -> list[str]:
        """The names of the regular files in it; none where it is missing. Raises `Refused`: it is a
        symlink.
        """
        return [name for name, _ in self.statuses()]

    def statuses(self) -> list[tuple[str, os.stat_result]]:
        """The regular files in it by their names, each with its lstat. Otherwise as `files`."""
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
        """Make it, and `.capsule/` with its `.gitignore`, where it is missing. Raises `Refused`:
        one is a symlink.
        """
        self._layout.ensure(self._sys, self.path)
        if self._around == self._layout.derived():
            self._ensure_ignored()

    def _ensure_ignored(self) -> None:
        path, flags = (
            f"{self._around}/.gitignore",
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC,
        )
        with suppress(FileExistsError), open_file(self._sys, path, flags, self.file_mode) as fd:
            self._sys.pwrite(fd, _GITIGNORE, 0)


def refuse_symlinks(sys: Syscalls, paths: list[str]) -> None:
    """Raise Refused when one of these directories is a symlink, the outermost first; one that is
    missing will do.
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
