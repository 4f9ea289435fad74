"""Real repositories around real stores.

What must stay true: git here sees no configuration but what a test gives it, and does nothing in
the background; the drivers that it starts are those of this source tree.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from capsule import Store, git
from capsule.git.attributes import attribute_lines, driver_config
from capsule.git.clone_setup import SetupStep
from capsule.git.plumbing import Repository

ROOT = Path(__file__).resolve().parents[2]
PATHS = os.pathsep.join((str(ROOT), str(ROOT / "cli")))
#: How git starts the drivers.
PROGRAM = [sys.executable, "-P", "-m", "capsule_cli.drivers"]
#: What every repository here has: nothing runs on after a command has ended.
QUIET = {"gc.auto": "0", "maintenance.auto": "false", "core.fsmonitor": "false"}


class Ran(NamedTuple):
    """What a program answered."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def environment(**more: str) -> dict[str, str]:
    """What git runs in: what the test runs in, and the way to this source tree for the drivers."""
    return {**os.environ, "PYTHONPATH": PATHS, **more}


def script(path: Path, *lines: str) -> Path:
    """A shell script that can be run, for example a hook."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)
    return path


def run(
    directory: Path | str, *command: str, expect: int | None = 0, input: str = "", **more: str
) -> Ran:
    """Run a program in a directory.

    Args:
        directory: Where.
        command: The program and its arguments.
        expect: The exit code it must have; None: any.
        input: What it reads.
        more: Variables of the environment besides.
    """
    done = subprocess.run(
        command,
        cwd=directory,
        env=environment(**more),
        input=input.encode(),
        capture_output=True,
        timeout=90,
    )
    ran = Ran(
        done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
    )
    assert expect is None or ran.code == expect, (command, ran)
    return ran


@dataclass
class Clone:
    """A repository's working tree, and the store that lies in it.

    Attributes:
        top: The working tree.
        folder: The store's folder in it; empty: the store is the working tree.
    """

    top: Path
    folder: str = ""

    @property
    def root(self) -> Path:
        """The store's directory."""
        return self.top / self.folder if self.folder else self.top

    @property
    def repository(self) -> Repository:
        return Repository.find(str(self.root))

    def run(self, *words: str, expect: int | None = 0, input: str = "", **more: str) -> Ran:
        """`git` in the working tree's top."""
        return run(self.top, "git", *words, expect=expect, input=input, **more)

    def git(self, *words: str, **more: Any) -> str:
        """What `git` says, without the line end."""
        return self.run(*words, **more).out.rstrip("\n")

    def capsule(self, *words: str, expect: int | None = 0, input: str = "", **more: str) -> Ran:
        """The program `capsule` on this store, in a process of its own."""
        program = (sys.executable, "-m", "capsule_cli", "--store", str(self.root))
        return run(self.top, *program, *words, expect=expect, input=input, **more)

    def hook(self, name: str, *lines: str) -> Path:
        """A hook of the repository."""
        return script(Path(self.repository.common) / "hooks" / name, *lines)

    def store(self) -> Store:
        return Store.open(self.root)

    def setup(
        self, program: Sequence[str] = PROGRAM, *, everywhere: bool = False
    ) -> list[SetupStep]:
        """What `capsule git setup` does."""
        with self.store() as store:
            return git.open(store, program).setup(everywhere=everywhere)

    def teardown(self, *, everywhere: bool = False) -> list[SetupStep]:
        """What `capsule git teardown` does."""
        with self.store() as store:
            return git.open(store).teardown(everywhere=everywhere)

    def file(self, id: str, kind: str = "conversations") -> Path:
        return self.root / kind / f"{id}.json"

    def path(self, id: str, kind: str = "conversations") -> str:
        """The document as git names it."""
        return str(self.file(id, kind).relative_to(self.top))

    def at(self, revision: str, id: str, kind: str = "conversations") -> bytes:
        """The document's bytes as a commit (or, with an empty revision, the index) has them."""
        shown = ("git", "cat-file", "blob", f"{revision}:{self.path(id, kind)}")
        return subprocess.run(
            shown, cwd=self.top, env=environment(), capture_output=True, check=True
        ).stdout

    def commit(self, message: str = "a commit") -> str:
        """Add everything, and commit it. Returns: the commit."""
        self.run("add", "--all")
        self.run("commit", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def configure(self, **settings: str) -> None:
        """Set git's settings; a `_` in a name stands for its dot."""
        for name, value in settings.items():
            self.run("config", name.replace("_", "."), value)

    def use_drivers(self) -> None:
        """What every clone needs of its own for the attributes to work."""
        for name, value in driver_config(PROGRAM).items():
            self.run("config", name, value)


def prepared(top: Path, folder: str, *, drivers: bool) -> Clone:
    clone = Clone(top, folder)
    for name, value in QUIET.items():
        clone.run("config", name, value)
    if drivers:
        clone.use_drivers()
    return clone


def new(top: Path, folder: str = "", *, drivers: bool = True, commit: bool = True) -> Clone:
    """A repository with one store in it.

    Args:
        top: Where; made.
        folder: The store's folder in it; empty: the store is the repository's top.
        drivers: Whether it has the attributes and the configuration of the drivers.
        commit: Whether what it begins with is committed.
    """
    top.mkdir(parents=True, exist_ok=True)
    run(top, "git", "init", "-q", "-b", "main")
    clone = prepared(top, folder, drivers=drivers)
    Store.init(clone.root)
    if drivers:
        lines = "".join(f"{line}\n" for line in attribute_lines())
        (clone.root / ".gitattributes").write_text(lines, encoding="utf-8")
    if commit:
        clone.commit("a store")
    return clone


def bare(path: Path) -> Path:
    """A bare repository, to push to and to pull from."""
    path.mkdir(parents=True)
    run(path, "git", "init", "-q", "--bare", "-b", "main")
    for name, value in QUIET.items():
        run(path, "git", "config", name, value)
    return path


def published(first: Clone, remote: Path) -> Path:
    """A bare remote with what a repository has, which follows it from then on."""
    bare(remote)
    first.run("remote", "add", "origin", str(remote))
    first.run("push", "-q", "-u", "origin", "main")
    return remote


def cloned(remote: Path, top: Path, folder: str = "", *, drivers: bool = True) -> Clone:
    """A clone of a remote, with the configuration that a clone of its own needs."""
    top.parent.mkdir(parents=True, exist_ok=True)
    settings = [
        part for name, value in driver_config(PROGRAM).items() for part in ("-c", f"{name}={value}")
    ]
    run(top.parent, "git", *(settings if drivers else ()), "clone", "-q", str(remote), str(top))
    return prepared(top, folder, drivers=drivers)


def worktree(of: Clone, top: Path, branch: str) -> Clone:
    """A linked worktree of a repository, on a new branch."""
    of.run("worktree", "add", "-q", "-b", branch, str(top))
    return Clone(top, of.folder)
