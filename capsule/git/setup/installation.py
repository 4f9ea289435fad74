"""Setting a clone up for conversations, and taking that out again.

What must stay true: done twice it changes nothing; what others wrote, in files and in git's configuration, is kept; and
what several stores or worktrees of one repository have in common goes only with the last of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from capsule.errors import CapsuleError, GitFailed, NotFound
from capsule.git.program import Git
from capsule.git.repository import Repository
from capsule.git.setup import attributes, blocks, hook
from capsule.git.setup.attributes import DRIVER, KINDS

_ATTRIBUTES, _IGNORE = ".gitattributes", ".gitignore"


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that setting up, or taking out, did or left.

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
        return asdict(self)


def ignore_lines() -> list[str]:
    """What a store makes that is of this machine alone; `.capsule/` ignores itself.

    Versions that are being written (`Layout.temporary`), and what waits for the next new conversation: the first one
    in every clone would take that.
    """
    return [*(f"{kind}/.*.tmp" for kind in KINDS), "/overrides/"]


def set_up(root: str, program: Sequence[str], *, everywhere: bool = False) -> list[Step]:
    """Make git understand the conversations of a store: attributes, configuration, and the hook.

    Args:
        root: The store's directory.
        program: How the drivers are started, as in `drivers.driver_config`.
        everywhere: Put the configuration into the user's own, so that all their clones have it. Then a store outside
            of any repository will do.

    Raises:
        NotFound: The store lies in no repository.
        InvalidDocument: Lines of ours were cut apart in one of the files.
        Refused: A file may not be written, or something else lies in its place.
        GitFailed: Git refused; what was done before stays, and doing it again goes on from there.
    """
    wanted = attributes.driver_config(program) | attributes.check_config(program)
    try:
        repository = Repository.around(root)
    except NotFound:
        if not everywhere:
            raise
        return [_configure(Git(root), wanted, everywhere=True)]
    steps = [
        _add(os.path.join(root, _ATTRIBUTES), "attributes", attributes.attribute_lines()),
        _add(os.path.join(root, _IGNORE), "ignore", ignore_lines()),
        _configure(repository.git, wanted, everywhere=everywhere),
    ]
    if everywhere and _ours(repository.git, "--local"):
        # They would stand before the user's, and go on naming the program of today.
        steps += _unconfigure(repository.git, "--local")
    return [*steps, _hook(repository, everywhere)]


def take_down(root: str, *, everywhere: bool = False) -> list[Step]:
    """Take out what `set_up` put in, and nothing else. What was left, and why, is among the steps.

    Args:
        root: The store's directory.
        everywhere: Take it out of the user's own configuration, too.

    Raises:
        As `set_up`.
    """
    try:
        repository = Repository.around(root)
    except NotFound:
        if not everywhere:
            raise
        return list(_unconfigure(Git(root), "--global"))
    paths = (("attributes", _ATTRIBUTES), ("ignore", _IGNORE))
    steps = [step for kind, name in paths for step in _remove(os.path.join(root, name), kind)]
    users = sorted(_users(repository))
    if users:
        why = f"left, as other attributes still use it: {', '.join(users)}"
        steps += [Step(kind, where, why, False) for kind, where in (("config", "repository"), ("hook", "pre-commit"))]
    else:
        steps += _unconfigure(repository.git, "--local")
        done, left = hook.unchain(repository, everywhere=everywhere)
        steps += [Step("hook", path, "taken out", True) for path in done]
        steps += [Step("hook", path, f"left: {why}", False, f"take out {attributes.CHECK_LINE}") for path, why in left]
    if everywhere:
        steps += _unconfigure(repository.git, "--global")
    elif _ours(repository.git, "--global"):
        why = "left: it is for all your clones; take it out with: capsule git teardown --global"
        steps.append(Step("config", "yours", why, False))
    return steps


def _add(path: str, kind: str, lines: Sequence[str]) -> Step:
    data = blocks.read(path)
    if not blocks.has_block(data) and set(_stripped(data)).issuperset(lines):
        return Step(kind, path, "has the lines already", False)
    after = blocks.with_block(data, lines, path)
    if after == data:
        return Step(kind, path, "is as it should be", False)
    blocks.replace(path, after)
    return Step(kind, path, "has the lines now" if data is not None else "is made", True)


def _remove(path: str, kind: str) -> Iterator[Step]:
    data = blocks.read(path)
    if data is not None and blocks.has_block(data):
        after = blocks.without_block(data, path)
        blocks.replace(path, after)
        yield Step(kind, path, "is removed" if after is None else "is without the lines", True)
    elif left := [line for line in _stripped(data) if line in _LINES]:
        yield Step(kind, path, "left: the lines there were put in by hand", False, f"take out {'; '.join(left)}")


def _stripped(data: bytes | None) -> list[str]:
    return [line.strip() for line in (data or b"").decode("utf-8", "replace").splitlines()]


_LINES = frozenset((*attributes.attribute_lines(), *ignore_lines()))
_WHOSE = {"--local": "repository", "--global": "yours"}


def _configure(git: Git, wanted: Mapping[str, str], *, everywhere: bool) -> Step:
    scope = "--global" if everywhere else "--local"
    there = _ours(git, scope)
    changed = [name for name, value in wanted.items() if there.get(name) != [value]]
    for name in changed:
        git.run("config", scope, "--replace-all", name, wanted[name])
    what = "names this Capsule now" if changed else "is as it should be"
    return Step("config", _WHOSE[scope], what, bool(changed))


def _unconfigure(git: Git, scope: str) -> Iterator[Step]:
    there = _ours(git, scope)
    known = {*attributes.driver_config([""]), attributes.CHECK}
    for name in there:
        if name in known:
            git.run("config", scope, "--unset-all", name)
    if known & set(there):
        yield Step("config", _WHOSE[scope], "is without the settings", True)
    others = sorted(set(there) - known)
    if others:
        yield Step("config", _WHOSE[scope], f"left, as Capsule did not set it: {', '.join(others)}", False)


def _ours(git: Git, scope: str) -> dict[str, list[str]]:
    """The settings under our names, in one of git's files; each may be there more than once."""
    pattern = rf"^((merge|diff|filter)\.{DRIVER}|{DRIVER})\."
    try:
        answer = git.run("config", scope, "-z", "--get-regexp", pattern, fine=(0, 1))
    except GitFailed:
        if scope == "--global":
            return {}  # There is no home, or nothing in it.
        raise
    settings: dict[str, list[str]] = {}
    for entry in answer.fields:
        name, _, value = entry.partition("\n")
        settings.setdefault(name, []).append(value)
    return settings


def _hook(repository: Repository, everywhere: bool) -> Step:
    there = hook.find(repository, everywhere=everywhere)
    if there.runs and (there.obstacle or not blocks.has_block(there.data)):
        return Step("hook", there.runs, "has the check run", False)
    if there.obstacle:
        return Step("hook", there.path, f"left alone: {there.obstacle}", False, there.way_out)
    if not hook.chain(there):
        return Step("hook", there.path, "is as it should be", False)
    return Step("hook", there.path, "is made" if there.data is None else "has the check now", True)


def _users(repository: Repository) -> set[str]:
    """The attributes that go on using the drivers: of other stores, and of other worktrees of this repository."""
    paths = [os.path.join(repository.common, "info", "attributes")]
    for line in repository.git.run("worktree", "list", "--porcelain").text.split("\n"):
        top = line.removeprefix("worktree ")
        if top == line or not os.path.isdir(top):
            continue
        listing = ("ls-files", "-z", "-c", "-o", "--exclude-standard", "--", f":(top,glob)**/{_ATTRIBUTES}")
        try:
            paths += [os.path.join(top, name) for name in Git(top).run(*listing).fields]
        except CapsuleError:
            continue  # Its directory is gone.
    return {path for path in paths if _names_drivers(path)}


def _names_drivers(path: str) -> bool:
    try:
        lines = _stripped(blocks.read(path))
    except CapsuleError:
        return False
    ours = set(attributes.ATTRIBUTES.split()[:3])
    return any(ours & set(line.split()[1:]) for line in lines if not line.startswith("#"))
