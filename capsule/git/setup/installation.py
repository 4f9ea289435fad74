"""Set a clone up for conversations, and remove that again.

`set_up` adds lines to `.gitattributes` and `.gitignore`, settings to git's configuration and a
line to the pre-commit hook. `take_down` removes exactly these. Both report what they did as steps.

Invariants:
- A second call changes nothing.
- Our lines in somebody else's file are one block between two marks. The bytes outside of it never
  change, and without the block the file is what it was before. Files are replaced as a whole.
- A hook of somebody else is never replaced, moved or made executable. A hook that is committed or
  is no shell script is left alone, and the step says which line to add. The line names no program
  and no path (`attributes.CHECK_LINE`).
- What several stores or worktrees of one repository share is removed with the last of them.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from capsule.disk import whole_files
from capsule.disk.whole_files import replace_file
from capsule.errors import CapsuleError, GitFailed, InvalidDocument, NotFound, Problem, Refused
from capsule.git.repository import Repository
from capsule.git.setup.attributes import (
    CHECK,
    CHECK_LINE,
    DRIVER,
    attribute_lines,
    clone_config,
    ignore_lines,
    settings,
)
from capsule.git_program import Git

_BEGIN = b"# >>> capsule git setup >>>"
_END = b"# <<< capsule git setup <<<"
#: Stands behind the first mark when the line before it had no end, so that the end is removed too.
_ENDED = b" (and the line end before)"
#: Stands there when there was no such file.
_MADE = b" (and the file)"
#: The first line of a program that we make.
_SHEBANG = b"#!/bin/sh\n"


class _Block(NamedTuple):
    """Our lines in a file: where they begin and end, in bytes, and the first mark with its line
    end.
    """

    start: int
    end: int
    mark: bytes
    newline: bytes


def has_block(data: bytes | None) -> bool:
    """Whether a file (None: there is none) holds lines of ours."""
    return data is not None and any(line.startswith(_BEGIN) for line in data.splitlines())


def with_block(
    data: bytes | None, lines: Sequence[str], path: str, *, at_top: bool = False
) -> bytes:
    """A file with our lines in it.

    Args:
        data: What it holds; None: there is none.
        lines: Our lines, without line ends. They get the file's.
        path: The file, for the error.
        at_top: Whether new lines stand below the first line instead of at the end.

    Raises:
        InvalidDocument: Our lines begin there and don't end.
    """
    if data is None:
        return (_SHEBANG if at_top else b"") + _joined(_BEGIN + _MADE, lines, b"\n")
    blocks = _blocks(data, path)
    if blocks:
        for block in reversed(blocks[1:]):
            data = data[: block.start] + data[block.end :]
        return (
            data[: blocks[0].start]
            + _joined(blocks[0].mark, lines, blocks[0].newline)
            + data[blocks[0].end :]
        )
    newline = b"\r\n" if data.partition(b"\n")[0].endswith(b"\r") else b"\n"
    at = data.find(b"\n") + 1 if at_top and b"\n" in data else len(data)
    ours = _joined(_BEGIN, lines, newline)
    if data[:at] and not data[:at].endswith(b"\n"):
        ours = newline + _joined(_BEGIN + _ENDED, lines, newline)
    return data[:at] + ours + data[at:]


def without_block(data: bytes, path: str) -> bytes | None:
    """A file without our lines; None: only our beginning of it is left. Raises InvalidDocument: our
    lines don't end.
    """
    is_ours = False
    for block in reversed(_blocks(data, path)):
        start = block.start
        if block.mark.endswith(_ENDED) and block.end == len(data):
            start -= len(
                block.newline
            )  # Unless somebody has gone on behind ours: their line needs it now.
        is_ours = is_ours or block.mark.endswith(_MADE)
        data = data[:start] + data[block.end :]
    return None if is_ours and data in (b"", _SHEBANG) else data


def _blocks(data: bytes, path: str) -> list[_Block]:
    blocks: list[_Block] = []
    begun: tuple[int, _Block] | None = None
    at = 0
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        words = line.rstrip(b"\r\n")
        if words.startswith(_BEGIN) and begun is None:
            begun = number, _Block(at, at, words, line[len(words) :])
        at += len(line)
        if words == _END and begun is not None:
            blocks.append(begun[1]._replace(end=at))
            begun = None
    if begun is not None:
        reason = (
            "the lines of `capsule git setup` begin here and never end; remove them, or end "
            "them with the line: "
        )
        raise InvalidDocument.of([Problem(path, begun[0], 1, "", reason + _END.decode())])
    return blocks


def _joined(mark: bytes, lines: Sequence[str], newline: bytes) -> bytes:
    return b"".join(line + newline for line in (mark, *(line.encode() for line in lines), _END))


def read(path: str) -> bytes | None:
    """The content of a file; None: there is no file.

    Raises:
        Refused: A symlink or something else is in its place, or it may not be read.
        StorageFailed: The system failed.
    """
    with whole_files.translate_errors(path, "read"):
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(mode):
            reason = "is a symlink" if stat.S_ISLNK(mode) else "is not a file"
            raise Refused(
                f"{path}: {reason}; it stays unchanged; put a file in its place", path=path
            )
        with open(path, "rb") as file:
            return file.read()


_NAME = "pre-commit"
_LINES = (
    "# Checks the conversations that are staged; `capsule git teardown` removes this.",
    CHECK_LINE,
)
_NOT_EXECUTABLE = "it isn't executable, so git doesn't run it"
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "ksh", "mksh", "zsh"})
#: The mark of a hook that the framework https://pre-commit.com wrote. It may write it anew at any
#: time, and runs `pre-commit.legacy` beside it first.
_FRAMEWORK = b"File generated by pre-commit"
_LEGACY = ".legacy"
_FRAMEWORK_CONFIG = ".pre-commit-config.yaml"
_FRAMEWORK_ID = re.compile(rf"^\s*-?\s*id:\s*['\"]?{DRIVER}['\"]?\s*(#.*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Hook:
    """The pre-commit hook of a repository.

    Attributes:
        path: The file that our line belongs in.
        data: What it holds; None: there is none.
        runs: The file that runs the check already; empty: none.
        obstacle: Why our line can't be added, in words; empty: it can.
        is_others: Whether that is because the file is not this repository's own.
    """

    path: str
    data: bytes | None
    runs: str
    obstacle: str
    is_others: bool

    @property
    def way_out(self) -> str:
        """What a person does where our line can't be added."""
        if self.obstacle == _NOT_EXECUTABLE:
            return (
                f"run: chmod +x {shlex.quote(self.path)}, and then: capsule git setup; or remove it"
            )
        return f"have it run this line before all others: {CHECK_LINE}"


def find_hook(repository: Repository, *, everywhere: bool = False) -> Hook:
    """Look at the pre-commit hook. With `everywhere`, one that all of the user's repositories have
    may be changed.
    """
    git = Git(repository.top, trusting=True)  # Else git looks for hooks where there are none.
    folder = os.path.normpath(
        os.path.join(repository.top, git.run("rev-parse", "--git-path", "hooks").text)
    )
    path = os.path.join(folder, _NAME)
    scope = git.run(
        "config", "--show-scope", "--get", "core.hooksPath", ok_codes=(0, 1)
    ).text.partition("\t")[0]
    is_inside = _is_below(folder, repository.top) and not _is_below(folder, repository.common)
    data, obstacle = _look(path)
    if data is not None and _FRAMEWORK in data:
        path += _LEGACY
        data, obstacle = _look(path)
    runs = _runs(repository, path, os.path.dirname(folder) if is_inside else "")
    others = ""
    if is_inside:
        others = (
            "it is in the working tree (core.hooksPath), where it may be committed, or "
            "generated again"
        )
    elif scope in ("global", "system", "command") and not everywhere:
        others = f"all your repositories use it (core.hooksPath, {scope})"
    return Hook(path, data, runs, others or obstacle, bool(others))


def install_hook(hook: Hook) -> bool:
    """Add our line to the hook. Returns: whether the hook changed."""
    after = with_block(hook.data, _LINES, hook.path, at_top=True)
    if after != hook.data:
        replace_file(hook.path, hook.data, after, mode=0o777)
    return after != hook.data


def uninstall_hook(
    repository: Repository, *, everywhere: bool = False
) -> tuple[list[str], list[tuple[str, str]]]:
    """Remove our line from every hook that it can be in: where git looks now, and where it does by
    default.

    Returns:
        The files that were changed; the files that still run the check, with the reason why they
        were left.
    """
    hook = find_hook(repository, everywhere=everywhere)
    current = os.path.dirname(hook.path)
    done, left = [], []
    for folder in dict.fromkeys((current, os.path.join(repository.common, "hooks"))):
        for path in (os.path.join(folder, _NAME), os.path.join(folder, _NAME + _LEGACY)):
            data, _ = _look(path)
            if data is None or not has_block(data):
                continue
            if folder == current and hook.is_others:
                left.append((path, hook.obstacle))
            else:
                replace_file(path, data, without_block(data, path))
                done.append(path)
    if hook.runs and hook.runs not in done and hook.runs not in dict(left):
        left.append((hook.runs, "the line was added by hand"))
    return done, left


def _look(path: str) -> tuple[bytes | None, str]:
    """What a hook's file holds, and why no line can be added to it."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None, ""
    if not stat.S_ISREG(mode):
        return None, "it is a symlink" if stat.S_ISLNK(mode) else "it is not a file"
    data = read(path) or b""
    if not mode & 0o111:
        return data, _NOT_EXECUTABLE
    first = re.split(rb"[\s/]+", data.partition(b"\n")[0].removeprefix(b"#!"))
    is_shell = data.startswith(b"#!") and any(
        word.decode("ascii", "replace") in _SHELLS for word in first
    )
    return data, "" if is_shell else "it is not a shell script"


def _runs(repository: Repository, path: str, owner: str) -> str:
    """The file that runs the check already; empty: none.

    `path` is the hook, or what the framework runs before its own. `owner` is where a hook in the
    working tree may have what it runs: husky makes `.husky/_/pre-commit`, which runs
    `.husky/pre-commit`.
    """
    by_owner = os.path.join(owner, _NAME) if owner else ""
    for file in (path, os.path.realpath(path), by_owner):
        try:
            with open(file, "rb") as opened:
                lines = opened.read().splitlines()
        except OSError:
            continue
        is_run = os.access(file, os.X_OK) or file == by_owner
        if is_run and any(
            CHECK.encode() in line and not line.lstrip().startswith(b"#") for line in lines
        ):
            return file
    if path.endswith(_LEGACY):
        config = os.path.join(repository.top, _FRAMEWORK_CONFIG)
        try:
            if _FRAMEWORK_ID.search((read(config) or b"").decode("utf-8", "replace")):
                return config
        except CapsuleError:
            pass  # What can't be read, the framework can't read either.
    return ""


def _is_below(path: str, folder: str) -> bool:
    path, folder = os.path.realpath(path), os.path.realpath(folder)
    return os.path.commonpath((path, folder)) == folder


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
    wanted = clone_config(program)
    try:
        repository = Repository.find(root)
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
        repository = Repository.find(root)
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
        why = f"kept, because other attributes still use it: {', '.join(users)}"
        steps += [
            SetupStep(kind, where, why, False)
            for kind, where in (("config", "repository"), ("hook", "pre-commit"))
        ]
    else:
        steps += _unconfigure(repository.git, "--local")
        done, left = uninstall_hook(repository, everywhere=everywhere)
        steps += [SetupStep("hook", path, "taken out", True) for path in done]
        steps += [
            SetupStep("hook", path, f"left: {why}", False, f"take out {CHECK_LINE}")
            for path, why in left
        ]
    if everywhere:
        steps += _unconfigure(repository.git, "--global")
    elif settings(repository.git, "--global"):
        why = "kept: it is for all your clones; remove it with: capsule git teardown --global"
        steps.append(SetupStep("config", "yours", why, False))
    return steps


def _add(path: str, kind: str, lines: Sequence[str]) -> SetupStep:
    data = read(path)
    if not has_block(data) and set(_stripped(data)).issuperset(lines):
        return SetupStep(kind, path, "already has the lines", False)
    after = with_block(data, lines, path)
    if after == data:
        return SetupStep(kind, path, "is already right", False)
    replace_file(path, data, after, mode=0o666)
    return SetupStep(kind, path, "now has the lines" if data is not None else "is made", True)


def _remove(path: str, kind: str, lines: Sequence[str]) -> Iterator[SetupStep]:
    data = read(path)
    if data is not None and has_block(data):
        after = without_block(data, path)
        replace_file(path, data, after)
        yield SetupStep(
            kind, path, "is removed" if after is None else "no longer has the lines", True
        )
    elif left := [line for line in _stripped(data) if line in lines]:
        yield SetupStep(
            kind,
            path,
            "kept: the lines were added by hand",
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
        "now names this Capsule" if changed else "is already right",
        bool(changed),
    )


def _unconfigure(git: Git, scope: str) -> Iterator[SetupStep]:
    there, known = settings(git, scope).keys(), clone_config([""]).keys()
    for name in there & known:
        git.run("config", scope, "--unset-all", name)
    if there & known:
        yield SetupStep("config", _WHOSE[scope], "no longer has the settings", True)
    if others := sorted(there - known):
        yield SetupStep(
            "config",
            _WHOSE[scope],
            f"kept, because Capsule did not set it: {', '.join(others)}",
            False,
        )


def _add_hook(repository: Repository, everywhere: bool) -> SetupStep:
    there = find_hook(repository, everywhere=everywhere)
    if there.runs and (there.obstacle or not has_block(there.data)):
        return SetupStep("hook", there.runs, "runs the check", False)
    if there.obstacle:
        return SetupStep("hook", there.path, f"left alone: {there.obstacle}", False, there.way_out)
    if not install_hook(there):
        return SetupStep("hook", there.path, "is already right", False)
    return SetupStep(
        "hook", there.path, "is made" if there.data is None else "now has the check", True
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
                .run("grep", "-l", "-z", *options, "-E", _USE, "--", spec, ok_codes=(0, 1))
                .fields
            )
        except GitFailed:
            continue  # There is no such file, or the worktree is gone.
        paths |= {os.path.join(top, name) for name in names}
    return paths
