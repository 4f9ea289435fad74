"""Setting a clone up for conversations, and removing that again.

What must stay true: done twice it changes nothing; what others wrote, in files and in git's
configuration, is kept; and what several stores or worktrees of one repository share goes only with
the last of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from capsule.disk.whole_files import replace_file
from capsule.errors import GitFailed, NotFound
from capsule.git.repository import Repository
from capsule.git.setup import blocks, hook
from capsule.git.setup.attributes import (
    CHECK_LINE,
    attribute_lines,
    ignore_lines,
    settings,
    wanted_config,
)
from capsule.git_program import Git

#: Our lines in files of the store's directory, by the kind of step.
_FILES = {
    "attributes": (".gitattributes", attribute_lines()),
    "ignore": (".gitignore", ignore_lines()),
}
_WHOSE = {"--local": "repository", "--global": "yours"}
#: A line of attributes that uses a driver of ours, as an extended regular expression.
_USE = "^[^#].*[[:space:]](merge|diff|filter)=capsule([[:space:]]|$)"


@dataclass(frozen=True, slots=True)
class SetupStep:
    """What setting up, or removing, did or left in one place.

    Attributes:
        kind: `attributes`, `ignore`, `config` or `hook`.
        where: The file, or whose configuration.
        what: What was done, or why nothing was, in words.
        changed: Whether anything was changed.
        todo: What is left for a person to do; empty: nothing.
    """

    kind: str
    where: str
    what: str
    changed: bool
    todo: str = ""

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return asdict(self)


def set_up(root: str, program: Sequence[str], *, everywhere: bool = False) -> list[SetupStep]:
    """Make git understand the conversations of the store at `root`."""
    wanted = wanted_config(program)
    try:
        repository = Repository.around(root)
    except NotFound:
        if not everywhere:
            raise
        return [_configure(Git(root), "--global", wanted)]
    steps = [_add(os.path.join(root, name), kind, lines) for kind, (name, lines) in _FILES.items()]
    steps.append(_configure(repository.git, "--global" if everywhere else "--local", wanted))
    if (
        everywhere
    ):  # The repository's own would overrule the user's, and go on naming the program of today.
        steps += _unconfigure(repository.git, "--local")
    return [*steps, _add_hook(repository, everywhere)]


def take_down(root: str, *, everywhere: bool = False) -> list[SetupStep]:
    """Remove what `set_up` added."""
    try:
        repository = Repository.around(root)
    except NotFound:
        if not everywhere:
            raise
        return list(_unconfigure(Git(root), "--global"))
    steps = [
        step
        for kind, (name, lines) in _FILES.items()
        for step in _remove(os.path.join(root, name), kind, lines)
    ]
    if users := sorted(_users(repository)):
        why = f"left, as other attributes still use it: {', '.join(users)}"
        steps += [
            SetupStep(kind, where, why, False)
            for kind, where in (("config", "repository"), ("hook", "pre-commit"))
        ]
    else:
        steps += _unconfigure(repository.git, "--local")
        done, left = hook.unchain(repository, everywhere=everywhere)
        steps += [SetupStep("hook", path, "taken out", True) for path in done]
        steps += [
            SetupStep("hook", path, f"left: {why}", False, f"take out {CHECK_LINE}")
            for path, why in left
        ]
    if everywhere:
        steps += _unconfigure(repository.git, "--global")
    elif settings(repository.git, "--global"):
        why = "left: it is for all your clones; take it out with: capsule git teardown --global"
        steps.append(SetupStep("config", "yours", why, False))
    return steps


def _add(path: str, kind: str, lines: Sequence[str]) -> SetupStep:
    data = blocks.read(path)
    if not blocks.has_block(data) and set(_stripped(data)).issuperset(lines):
        return SetupStep(kind, path, "has the lines already", False)
    after = blocks.with_block(data, lines, path)
    if after == data:
        return SetupStep(kind, path, "is as it should be", False)
    replace_file(path, data, after, mode=0o666)
    return SetupStep(kind, path, "has the lines now" if data is not None else "is made", True)


def _remove(path: str, kind: str, lines: Sequence[str]) -> Iterator[SetupStep]:
    data = blocks.read(path)
    if data is not None and blocks.has_block(data):
        after = blocks.without_block(data, path)
        replace_file(path, data, after)
        yield SetupStep(kind, path, "is removed" if after is None else "is without the lines", True)
    elif left := [line for line in _stripped(data) if line in lines]:
        yield SetupStep(
            kind,
            path,
            "left: the lines there were put in by hand",
            False,
            f"take out {'; '.join(left)}",
        )


def _stripped(data: bytes | None) -> list[str]:
    return [line.strip() for line in (data or b"").decode("utf-8", "replace").splitlines()]


def _configure(git: Git, scope: str, wanted: Mapping[str, str]) -> SetupStep:
    there = settings(git, scope)
    changed = [name for name, value in wanted.items() if there.get(name) != [value]]
    for name in changed:
        git.run("config", scope, "--replace-all", name, wanted[name])
    return SetupStep(
        "config",
        _WHOSE[scope],
        "names this Capsule now" if changed else "is as it should be",
        bool(changed),
    )


def _unconfigure(git: Git, scope: str) -> Iterator[SetupStep]:
    there, known = settings(git, scope).keys(), wanted_config([""]).keys()
    for name in there & known:
        git.run("config", scope, "--unset-all", name)
    if there & known:
        yield SetupStep("config", _WHOSE[scope], "is without the settings", True)
    if others := sorted(there - known):
        yield SetupStep(
            "config", _WHOSE[scope], f"left, as Capsule did not set it: {', '.join(others)}", False
        )


def _add_hook(repository: Repository, everywhere: bool) -> SetupStep:
    there = hook.find(repository, everywhere=everywhere)
    if there.runs and (there.obstacle or not blocks.has_block(there.data)):
        return SetupStep("hook", there.runs, "has the check run", False)
    if there.obstacle:
        return SetupStep("hook", there.path, f"left alone: {there.obstacle}", False, there.way_out)
    if not hook.chain(there):
        return SetupStep("hook", there.path, "is as it should be", False)
    return SetupStep(
        "hook", there.path, "is made" if there.data is None else "has the check now", True
    )


def _users(repository: Repository) -> set[str]:
    """The attributes that use the drivers: of other stores, and of other worktrees of this
    repository.
    """
    worktrees = repository.git.run("worktree", "list", "--porcelain").text.split("\n")
    tops = [line.removeprefix("worktree ") for line in worktrees if line.startswith("worktree ")]
    places = [
        (top, ("--untracked",), ":(top,glob)**/.gitattributes")
        for top in tops
        if os.path.isdir(top)
    ]
    paths = set()
    for top, options, spec in [*places, (repository.common, ("--no-index",), "info/attributes")]:
        try:
            names = (
                Git(top)
                .run("grep", "-l", "-z", *options, "-E", _USE, "--", spec, fine=(0, 1))
                .fields
            )
        except GitFailed:
            continue  # There is no such file, or the worktree is gone.
        paths |= {os.path.join(top, name) for name in names}
    return paths
