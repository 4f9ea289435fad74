"""Where things lie in a store's directory, and with which permissions they are made.

What must stay true: every path is made here from a kind and a checked id, so that none can leave the store.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from capsule.ids import check_id
from capsule.storage.files import sync_directory
from capsule.storage.syscalls import Syscalls

__all__ = ["SETTINGS_NAME", "Layout"]

SETTINGS_NAME = "capsule.toml"
_DERIVED = ".capsule"
_GITIGNORE = b"# Derived and transient: rebuilt from the files, never committed.\n*\n"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one store.

    Attributes:
        root: The store's directory.
        shared: New files and directories get the process's umask instead of 0600 and 0700.
    """

    root: str
    shared: bool = False

    @property
    def file_mode(self) -> int:
        return 0o666 if self.shared else 0o600

    @property
    def directory_mode(self) -> int:
        return 0o777 if self.shared else 0o700

    def documents(self, kind: str) -> str:
        return f"{self.root}/{kind}"

    def document(self, kind: str, id: str) -> str:
        return f"{self.root}/{kind}/{check_id(id)}.json"

    def temporary(self, kind: str, id: str) -> str:
        """The name a new version is written under; whoever holds the document's mutex owns it."""
        return f"{self.root}/{kind}/.{id}.tmp"

    def derived(self, *parts: str) -> str:
        return "/".join((self.root, _DERIVED, *parts))

    def ensure_derived(self, sys: Syscalls, name: str) -> None:
        """Make `.capsule/`, its `.gitignore` and the directory `name` in it (none when empty), where missing."""
        self.ensure_directory(sys, self.derived())
        ignore = self.derived(".gitignore")
        try:
            fd = sys.open(ignore, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, self.file_mode)
        except FileExistsError:
            pass
        else:
            try:
                sys.pwrite(fd, _GITIGNORE, 0)
            finally:
                sys.close(fd)
        if name:
            self.ensure_directory(sys, self.derived(name))

    def ensure_directory(self, sys: Syscalls, path: str) -> None:
        """Make a directory, if it is missing; durable on return, as is what it will hold when that is synced."""
        try:
            sys.mkdir(path, self.directory_mode)
        except FileExistsError:
            return
        sync_directory(sys, os.path.dirname(path))
