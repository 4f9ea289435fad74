"""Set a clone up for conversations, remove that again, and report the status of a clone.

`set_up` adds lines to `.gitattributes` and `.gitignore`, settings to git's configuration and a
line to the pre-commit hook. `take_down` removes exactly these. Both report what they did as steps.
`inspect_clone` runs one check after another: whether the clone is set up, what changed in it, and
what to do. Each check fills a part of `RepositoryStatus`, and yields findings with their remedies.

What must stay true:

- A second call of `set_up` changes nothing.
- Capsule's lines in a file are one block between two marks. The bytes outside of it never change.
  If the block is removed, the file is the same as before. Files are replaced as a whole.
- A hook of somebody else is never replaced, moved or made executable. A hook that is committed or
  is no shell script does not change, and the step names the line to add. The line names no program
  and no path (`attributes.CHECK_LINE`).
- Settings and hooks that several stores or worktrees of one repository share are removed with the
  last of them.
- The inspection changes nothing, and runs no program that the repository's configuration names. A
  finding is based on what git does with a document of this store, not on the text of some
  configuration file.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.disk import whole_files
from capsule.disk.whole_files import replace_file
from capsule.errors import CapsuleError, GitFailed, InvalidDocument, NotFound, Problem, Refused
from capsule.format.merge.clean_form import clean
from capsule.format.validation import KINDS
from capsule.git.attributes import (
    CHECK,
    CHECK_LINE,
    DRIVER,
    attribute_lines,
    clone_config,
    ignore_lines,
    settings,
)
from capsule.git.merge import merge_version
from capsule.git.plumbing import Repository, attributes, blob_name, object_format
from capsule.git_program import Git

if TYPE_CHECKING:
    from capsule.format.merge.annotations import Conflict


# -- Setting up ------------------------------------------------------------------------------------

_BEGIN = b"# >>> capsule git setup >>>"
_END = b"# <<< capsule git setup <<<"
#: Added to the first mark if the line before it had no line end, so that the added line end is
#: removed too.
_ADDED_LINE_END = b" (and the line end before)"
#: Added to the first mark if the file did not exist.
_MADE_FILE = b" (and the file)"
#: The first line of a hook that Capsule makes.
_SHEBANG = b"#!/bin/sh\n"


class _Block(NamedTuple):
    """Capsule's lines in a file.

    Attributes:
        start, end: The offsets in bytes where they begin and end.
        mark: The first mark.
        newline: The line end of the first mark.
    """

    start: int
    end: int
    mark: bytes
    newline: bytes


def has_block(data: bytes | None) -> bool:
    """Return whether a file (None: it does not exist) has lines of Capsule's."""
    return data is not None and any(line.startswith(_BEGIN) for line in data.splitlines())


def with_block(
    data: bytes | None, lines: Sequence[str], path: str, *, at_top: bool = False
) -> bytes:
    """Return a file with Capsule's lines in it.

    Args:
        data: The content of the file. None: it does not exist.
        lines: The lines, without line ends. They get those of the file.
        path: The file, for the error.
        at_top: Whether new lines go below the first line instead of at the end.

    Raises:
        InvalidDocument: Lines of Capsule's begin in the file and do not end.
    """
    if data is None:
        block = _joined(_BEGIN + _MADE_FILE, lines, b"\n")
        return _SHEBANG + block if at_top else block
    blocks = _blocks(data, path)
    if blocks:
        first, *duplicates = blocks
        new = data
        for duplicate in reversed(duplicates):
            new = new[: duplicate.start] + new[duplicate.end :]
        return new[: first.start] + _joined(first.mark, lines, first.newline) + new[first.end :]
    newline = b"\r\n" if data.partition(b"\n")[0].endswith(b"\r") else b"\n"
    offset = len(data)
    if at_top and b"\n" in data:
        offset = data.find(b"\n") + 1
    block = _joined(_BEGIN, lines, newline)
    if data[:offset] and not data[:offset].endswith(b"\n"):
        block = newline + _joined(_BEGIN + _ADDED_LINE_END, lines, newline)
    return data[:offset] + block + data[offset:]


def without_block(data: bytes, path: str) -> bytes | None:
    """Return a file without Capsule's lines. None: Capsule made the file, and nothing else is in
    it. Raises InvalidDocument: the lines do not end.
    """
    is_made = False
    remaining = data
    for block in reversed(_blocks(data, path)):
        start = block.start
        # If somebody has added lines after the block, they need the line end that was added.
        if block.mark.endswith(_ADDED_LINE_END) and block.end == len(remaining):
            start -= len(block.newline)
        is_made = is_made or block.mark.endswith(_MADE_FILE)
        remaining = remaining[:start] + remaining[block.end :]
    if is_made and remaining in (b"", _SHEBANG):
        return None
    return remaining


def _blocks(data: bytes, path: str) -> list[_Block]:
    """Return Capsule's blocks in a file. More than one is there after a merge by git."""
    blocks: list[_Block] = []
    open_block: tuple[int, _Block] | None = (
        None  # The line number and the block that has no end yet.
    )
    offset = 0
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        words = line.rstrip(b"\r\n")
        if words.startswith(_BEGIN) and open_block is None:
            open_block = number, _Block(offset, offset, words, line[len(words) :])
        offset += len(line)
        if words == _END and open_block is not None:
            blocks.append(open_block[1]._replace(end=offset))
            open_block = None
    if open_block is not None:
        reason = (
            "the lines of `capsule git setup` begin here and never end; remove them, or end "
            "them with the line: "
        )
        raise InvalidDocument.of([Problem(path, open_block[0], 1, "", reason + _END.decode())])
    return blocks


def _joined(mark: bytes, lines: Sequence[str], newline: bytes) -> bytes:
    """Return a block: a first mark, lines, and the last mark."""
    all_lines = [mark, *(line.encode() for line in lines), _END]
    return b"".join(line + newline for line in all_lines)


def read(path: str) -> bytes | None:
    """Return the content of a file. None: it does not exist.

    Raises:
        Refused: It is a symlink or no file, or may not be read.
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
#: The mark of a hook that the framework https://pre-commit.com wrote. The framework may write it
#: again at any time. The hook runs the file `pre-commit.legacy` in the same folder first.
_FRAMEWORK = b"File generated by pre-commit"
_LEGACY = ".legacy"
_FRAMEWORK_CONFIG = ".pre-commit-config.yaml"
_FRAMEWORK_ID = re.compile(rf"^\s*-?\s*id:\s*['\"]?{DRIVER}['\"]?\s*(#.*)?$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Hook:
    """The pre-commit hook of a repository.

    Attributes:
        path: The file for Capsule's line.
        data: Its content. None: it does not exist.
        runs: The file that runs the check already. Empty: none.
        obstacle: Why the line can't be added. Empty: it can.
        is_others: Whether the obstacle is that the file does not belong to this repository alone.
    """

    path: str
    data: bytes | None
    runs: str
    obstacle: str
    is_others: bool

    @property
    def way_out(self) -> str:
        """What a person can do if the line can't be added."""
        if self.obstacle == _NOT_EXECUTABLE:
            return (
                f"run: chmod +x {shlex.quote(self.path)}, and then: capsule git setup; or remove it"
            )
        return f"have it run this line before all others: {CHECK_LINE}"


def find_hook(repository: Repository, *, everywhere: bool = False) -> Hook:
    """Inspect the pre-commit hook. With `everywhere`, a hook of all the user's repositories may be
    changed.
    """
    git = Git(repository.top, trusting=True)  # Otherwise git is told that no hooks exist.
    hooks = git.run("rev-parse", "--git-path", "hooks").text
    folder = os.path.normpath(os.path.join(repository.top, hooks))
    path = os.path.join(folder, _NAME)
    setting = git.run("config", "--show-scope", "--get", "core.hooksPath", ok_codes=(0, 1)).text
    scope = setting.partition("\t")[0]
    is_inside = _is_below(folder, repository.top) and not _is_below(folder, repository.common)
    data, obstacle = _inspect(path)
    if data is not None and _FRAMEWORK in data:
        path += _LEGACY
        data, obstacle = _inspect(path)
    runs = _file_with_check(repository, path, os.path.dirname(folder) if is_inside else "")
    foreign_reason = ""
    if is_inside:
        foreign_reason = (
            "it is in the working tree (core.hooksPath), where it may be committed, or "
            "generated again"
        )
    elif scope in ("global", "system", "command") and not everywhere:
        foreign_reason = f"all your repositories use it (core.hooksPath, {scope})"
    return Hook(path, data, runs, foreign_reason or obstacle, bool(foreign_reason))


def install_hook(hook: Hook) -> bool:
    """Add Capsule's line to the hook. Return whether the hook changed."""
    new = with_block(hook.data, _LINES, hook.path, at_top=True)
    if new == hook.data:
        return False
    replace_file(hook.path, hook.data, new, mode=0o777)
    return True


def uninstall_hook(
    repository: Repository, *, everywhere: bool = False
) -> tuple[list[str], list[tuple[str, str]]]:
    """Remove Capsule's line from every hook that may have it: in the folder where git finds
    hooks now, and in git's default folder.

    Returns:
        The files that were changed, and the files that still run the check, with the reason why
        they were kept.
    """
    hook = find_hook(repository, everywhere=everywhere)
    current_folder = os.path.dirname(hook.path)
    changed_paths: list[str] = []
    kept_hooks: list[tuple[str, str]] = []
    for folder in dict.fromkeys((current_folder, os.path.join(repository.common, "hooks"))):
        for name in (_NAME, _NAME + _LEGACY):
            path = os.path.join(folder, name)
            data, _ = _inspect(path)
            if data is None or not has_block(data):
                continue
            if folder == current_folder and hook.is_others:
                kept_hooks.append((path, hook.obstacle))
            else:
                replace_file(path, data, without_block(data, path))
                changed_paths.append(path)
    if hook.runs and hook.runs not in changed_paths and hook.runs not in dict(kept_hooks):
        kept_hooks.append((hook.runs, "the line was added by hand"))
    return changed_paths, kept_hooks


def _inspect(path: str) -> tuple[bytes | None, str]:
    """Return the content of a hook's file, and why no line can be added to it."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return None, ""
    if not stat.S_ISREG(mode):
        return None, "it is a symlink" if stat.S_ISLNK(mode) else "it is not a file"
    data = read(path) or b""
    if not mode & 0o111:
        return data, _NOT_EXECUTABLE
    words = re.split(rb"[\s/]+", data.partition(b"\n")[0].removeprefix(b"#!"))
    names_shell = any(word.decode("ascii", "replace") in _SHELLS for word in words)
    if data.startswith(b"#!") and names_shell:
        return data, ""
    return data, "it is not a shell script"


def _file_with_check(repository: Repository, path: str, parent: str) -> str:
    """Return the file that runs the check already. Empty: none does.

    Args:
        repository: The repository.
        path: The hook, or the file that the framework's hook runs first.
        parent: The folder above the one of hooks in the working tree, or empty. A hook there may
            run a file of it: husky makes `.husky/_/pre-commit`, which runs `.husky/pre-commit`.
    """
    parent_file = os.path.join(parent, _NAME) if parent else ""
    for candidate in (path, os.path.realpath(path), parent_file):
        try:
            with open(candidate, "rb") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        if not os.access(candidate, os.X_OK) and candidate != parent_file:
            continue
        for line in lines:
            if CHECK.encode() in line and not line.lstrip().startswith(b"#"):
                return candidate
    if path.endswith(_LEGACY):
        config = os.path.join(repository.top, _FRAMEWORK_CONFIG)
        # If the file can't be read, the framework can't read it either.
        with suppress(CapsuleError):
            if _FRAMEWORK_ID.search((read(config) or b"").decode("utf-8", "replace")):
                return config
    return ""


def _is_below(path: str, folder: str) -> bool:
    real_folder = os.path.realpath(folder)
    return os.path.commonpath((os.path.realpath(path), real_folder)) == real_folder


#: Capsule's lines in files of the store's directory, by the kind of step.
_FILES = {
    "attributes": (".gitattributes", attribute_lines()),
    "ignore": (".gitignore", ignore_lines()),
}
#: The names of git's configurations in steps, by the option of `git config`.
_CONFIGURATIONS = {"--local": "repository", "--global": "yours"}
#: A line of attributes that uses one of the drivers, as an extended regular expression.
_DRIVER_LINE = "^[^#].*[[:space:]](merge|diff|filter)=capsule([[:space:]]|$)"


@dataclass(frozen=True, slots=True)
class SetupStep:
    """A step of setting up a clone, or of removing that.

    Attributes:
        kind: `attributes`, `ignore`, `config` or `hook`.
        where: The file, or `repository` or `yours` for git's configuration.
        what: What was done, or why nothing was.
        changed: Whether anything was changed.
        todo: What a person still has to do. Empty: nothing.
    """

    kind: str
    where: str
    what: str
    changed: bool
    todo: str = ""

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return asdict(self)


def set_up(root: str, program: Sequence[str], *, everywhere: bool = False) -> list[SetupStep]:
    """Make git understand the conversations of the store at `root`.

    Args:
        root: The store's directory.
        program: The program that git starts for the drivers, and its first arguments.
        everywhere: Whether the settings go to the user's configuration instead of the repository's.
    """
    config = clone_config(program)
    try:
        repository = Repository.find(root)
    except NotFound:
        if not everywhere:
            raise
        return [_configure(Git(root), "--global", config)]
    steps = []
    for kind, (name, lines) in _FILES.items():
        steps.append(_add_lines(os.path.join(root, name), kind, lines))
    steps.append(_configure(repository.git, "--global" if everywhere else "--local", config))
    if everywhere:
        # The repository's own settings would overrule the user's, also after a later set-up.
        steps += _unconfigure(repository.git, "--local")
    return [*steps, _add_hook(repository, everywhere)]


def take_down(root: str, *, everywhere: bool = False) -> list[SetupStep]:
    """Remove what `set_up` added. With `everywhere`, also from the user's configuration."""
    try:
        repository = Repository.find(root)
    except NotFound:
        if not everywhere:
            raise
        return list(_unconfigure(Git(root), "--global"))
    steps: list[SetupStep] = []
    for kind, (name, lines) in _FILES.items():
        steps += _remove_lines(os.path.join(root, name), kind, lines)
    users = sorted(_attribute_files(repository))
    if users:
        reason = f"kept, because other attributes still use it: {', '.join(users)}"
        steps.append(SetupStep("config", "repository", reason, False))
        steps.append(SetupStep("hook", "pre-commit", reason, False))
    else:
        steps += _unconfigure(repository.git, "--local")
        changed_paths, kept_hooks = uninstall_hook(repository, everywhere=everywhere)
        for path in changed_paths:
            steps.append(SetupStep("hook", path, "taken out", True))
        for path, reason in kept_hooks:
            todo = f"take out {CHECK_LINE}"
            steps.append(SetupStep("hook", path, f"left: {reason}", False, todo))
    if everywhere:
        steps += _unconfigure(repository.git, "--global")
    elif settings(repository.git, "--global"):
        reason = "kept: it is for all your clones; remove it with: capsule git teardown --global"
        steps.append(SetupStep("config", "yours", reason, False))
    return steps


def _add_lines(path: str, kind: str, lines: Sequence[str]) -> SetupStep:
    """Add lines to a file, unless somebody has added them by hand."""
    data = read(path)
    if not has_block(data) and set(_stripped(data)).issuperset(lines):
        return SetupStep(kind, path, "already has the lines", False)
    new = with_block(data, lines, path)
    if new == data:
        return SetupStep(kind, path, "is already right", False)
    replace_file(path, data, new, mode=0o666)
    return SetupStep(kind, path, "is made" if data is None else "now has the lines", True)


def _remove_lines(path: str, kind: str, lines: Sequence[str]) -> Iterator[SetupStep]:
    """Remove Capsule's lines from a file. Yield a step if it had such lines, or some by hand."""
    data = read(path)
    if data is not None and has_block(data):
        new = without_block(data, path)
        replace_file(path, data, new)
        outcome = "is removed" if new is None else "no longer has the lines"
        yield SetupStep(kind, path, outcome, True)
        return
    lines_by_hand = [line for line in _stripped(data) if line in lines]
    if lines_by_hand:
        todo = f"take out {'; '.join(lines_by_hand)}"
        yield SetupStep(kind, path, "kept: the lines were added by hand", False, todo)


def _stripped(data: bytes | None) -> list[str]:
    return [line.strip() for line in (data or b"").decode("utf-8", "replace").splitlines()]


def _configure(git: Git, scope: str, config: Mapping[str, str]) -> SetupStep:
    """Set settings in git's configuration. `scope` is the option of `git config` for it."""
    configured = settings(git, scope)
    changed = [name for name, value in config.items() if configured.get(name) != [value]]
    for name in changed:
        git.run("config", scope, "--replace-all", name, config[name])
    outcome = "now names this Capsule" if changed else "is already right"
    return SetupStep("config", _CONFIGURATIONS[scope], outcome, bool(changed))


def _unconfigure(git: Git, scope: str) -> Iterator[SetupStep]:
    """Remove Capsule's settings from git's configuration. Yield what was removed and kept."""
    configured = settings(git, scope).keys()
    own_names = configured & clone_config([""]).keys()
    for name in own_names:
        git.run("config", scope, "--unset-all", name)
    where = _CONFIGURATIONS[scope]
    if own_names:
        yield SetupStep("config", where, "no longer has the settings", True)
    foreign = sorted(configured - own_names)
    if foreign:
        reason = f"kept, because Capsule did not set it: {', '.join(foreign)}"
        yield SetupStep("config", where, reason, False)


def _add_hook(repository: Repository, everywhere: bool) -> SetupStep:
    """Add Capsule's line to the pre-commit hook, unless something prevents it."""
    hook = find_hook(repository, everywhere=everywhere)
    if hook.runs and (hook.obstacle or not has_block(hook.data)):
        return SetupStep("hook", hook.runs, "runs the check", False)
    if hook.obstacle:
        return SetupStep("hook", hook.path, f"left alone: {hook.obstacle}", False, hook.way_out)
    if not install_hook(hook):
        return SetupStep("hook", hook.path, "is already right", False)
    return SetupStep(
        "hook", hook.path, "is made" if hook.data is None else "now has the check", True
    )


def _attribute_files(repository: Repository) -> set[str]:
    """Return the files of attributes that use the drivers, in all worktrees of the repository. They
    belong to other stores, or to this store in other worktrees.
    """
    searches = []
    for line in repository.git.run("worktree", "list", "--porcelain").text.split("\n"):
        top = line.removeprefix("worktree ")
        if line.startswith("worktree ") and os.path.isdir(top):
            searches.append((top, "--untracked", ":(top,glob)**/.gitattributes"))
    searches.append((repository.common, "--no-index", "info/attributes"))
    paths = set()
    for top, option, spec in searches:
        command = ("grep", "-l", "-z", option, "-E", _DRIVER_LINE, "--", spec)
        try:
            names = Git(top).run(*command, ok_codes=(0, 1)).fields
        except GitFailed:
            continue  # The file does not exist, or the worktree was removed.
        paths |= {os.path.join(top, name) for name in names}
    return paths


# -- The status ------------------------------------------------------------------------------------

#: A finding lists at most this many files.
_MAX_LISTED = 3
_SET_UP = "run: capsule git setup"
#: The id of a document that git is asked about.
_ANY_ID = "00000000-0000-4000-8000-000000000000"
#: The attributes that a document needs.
_ATTRIBUTES = {"merge": DRIVER, "diff": DRIVER, "filter": DRIVER, "text": "unset"}


@dataclass(frozen=True, slots=True)
class CloneFinding:
    """Something to do in a clone, or worth knowing.

    Attributes:
        kind: `drivers`, `attributes`, `ignore`, `hook`, `git`, `merging`, `conflicts`, `changed` or
            `upstream`.
        what: The finding, in words.
        todo: What to do about it.
        is_trouble: Whether it must be done. False: it happens in any clone, such as a change that
            is not committed yet.
    """

    kind: str
    what: str
    todo: str
    is_trouble: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "kind": self.kind,
            "what": self.what,
            "todo": self.todo,
            "isTrouble": self.is_trouble,
        }


@dataclass(slots=True)
class RepositoryStatus:
    """The status of a clone.

    Attributes:
        top: The top directory of the working tree.
        folder: The store's folder in it. Empty: it is the store.
        git: Git's version.
        branch, upstream: The branch, and the one it follows. None: none.
        ahead, behind: The number of commits that only the branch has, and that only the upstream
            has. None: git does not report it.
        changed: The documents, as `kind/id`, that differ from the last commit.
        unmerged: The documents with conflicts of a merge that git has stopped at.
        hook: The file that runs the check before a commit. Empty: none.
        findings: What is to be done, the most serious first.
    """

    top: str
    folder: str
    git: str = ""
    branch: str | None = None
    upstream: str | None = None
    ahead: int | None = None
    behind: int | None = None
    changed: list[str] = field(default_factory=list)
    unmerged: list[str] = field(default_factory=list)
    hook: str = ""
    findings: list[CloneFinding] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        """Whether nothing has to be done."""
        return not any(finding.is_trouble for finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            **asdict(self),
            "fine": self.is_fine,
            "findings": [finding.as_json() for finding in self.findings],
        }


def inspect_clone(
    repository: Repository, program: Sequence[str], conflicts: Iterable[Conflict]
) -> RepositoryStatus:
    """Inspect a clone.

    Args:
        repository: The repository.
        program: The program with which `set_up` would start the drivers.
        conflicts: The conflicts in the conversations of the store, sorted by conversation.
    """
    state = RepositoryStatus(repository.top, repository.prefix.rstrip("/"))
    state.findings += _check_drivers(repository, program)
    state.findings += _check_files(repository)
    state.findings += _check_hook(repository, state)
    state.findings += _check_version(repository, state)
    state.findings += _check_tree(repository, state)
    unfinished = list(_check_unfinished(repository, state))
    if unfinished:
        # Other findings advise `commit` and `sync`, which are refused until the merge is finished.
        state.findings = [finding for finding in state.findings if finding.is_trouble]
    state.findings += unfinished
    state.findings += _check_conflicts(conflicts)
    state.findings.sort(key=lambda finding: not finding.is_trouble)
    return state


def _check_conflicts(conflicts: Iterable[Conflict]) -> Iterator[CloneFinding]:
    """Check whether earlier merges left conflicts in conversations."""
    for id, group in groupby(conflicts, lambda conflict: conflict.id):
        of_conversation = list(group)
        fields = ", ".join(conflict.field for conflict in of_conversation)
        text = (
            f'conversation {id} "{of_conversation[0].title}" was merged, and awaits a decision '
            f"on: {fields}"
        )
        yield CloneFinding("conflicts", text, f"run: capsule git resolve {id}")


def _check_drivers(repository: Repository, program: Sequence[str]) -> Iterator[CloneFinding]:
    """Check the attributes and the settings of the drivers. Each needs the other."""
    missing = _missing_attributes(repository)
    expected = clone_config(program)
    # Not by `repository.git`, for which the filters are off.
    configured = {name: values[-1] for name, values in settings(Git(repository.top)).items()}
    absent = [name for name in expected if name not in configured]
    if absent and missing:
        yield CloneFinding("drivers", "git is not set up for conversations here", _SET_UP)
    elif absent:
        text = (
            "the attributes are here, but this clone has no programs for them: git merges "
            "conversations line by line, and commits their locks (not set: "
            f"{', '.join(absent)})"
        )
        yield CloneFinding("drivers", text, _SET_UP)
    elif missing:
        path = os.path.join(repository.top, repository.prefix, ".gitattributes")
        text = (
            f"the programs are set up, but do not apply to the documents here: {'; '.join(missing)}"
        )
        yield CloneFinding(
            "attributes",
            text,
            f"{_SET_UP}; if that is not enough, look for lines other than those of {path}",
        )
    if not absent:
        problem = _program_problem(configured, expected)
        if problem:
            yield CloneFinding("drivers", problem, _SET_UP)


def _missing_attributes(repository: Repository) -> list[str]:
    """Return the kinds of documents with wrong attributes, each with those attributes."""
    missing: dict[str, list[str]] = {}
    paths = {repository.path_of(kind, _ANY_ID): kind for kind in KINDS}
    for path, name, value in attributes(repository.git, paths, *_ATTRIBUTES):
        if value != _ATTRIBUTES[name]:
            missing.setdefault(paths[path], []).append(f"{name} is {value}")
    return [f"{kind}/*.json ({', '.join(words)})" for kind, words in missing.items()]


def _program_problem(configured: Mapping[str, str], expected: Mapping[str, str]) -> str:
    """Return the problem of the programs in the configuration. Empty: they have none."""
    command = configured[f"filter.{DRIVER}.process"]
    try:
        words = shlex.split(command)
        words = words[: words.index("filter")]
    except ValueError:
        words = []
    if not words:
        return f"filter.{DRIVER}.process was not written by Capsule: {command}"
    if shutil.which(words[0]) is None:
        return (
            "the program of the drivers is missing, so git can't add or check out "
            f"conversations: {words[0]}"
        )
    # Another Python may start the drivers, if all settings are what this version writes for it.
    with_its_program = clone_config(words)
    outdated = [
        name
        for name in expected
        if configured[name] not in (expected[name], with_its_program[name])
    ]
    return f"not as this version sets it: {', '.join(outdated)}" if outdated else ""


def _check_files(repository: Repository) -> Iterator[CloneFinding]:
    """Check which files other clones get: attributes, documents, and no derived files."""
    git = repository.git
    prefix = repository.prefix
    documents = [repository.path_of(kind, _ANY_ID) for kind in KINDS]
    temporary = [f"{prefix}{kind}/.{_ANY_ID}.tmp" for kind in KINDS]
    command = ("check-ignore", "--no-index", "-z", "--stdin")
    ignored = set(git.run(*command, input=[*documents, *temporary], ok_codes=(0, 1)).fields)
    if not ignored.issuperset(temporary):
        yield CloneFinding("ignore", "files that are just being written could be added", _SET_UP)
    for path in documents:
        if path in ignored:
            check_command = (
                f"git -C {shlex.quote(repository.top)} check-ignore -v {shlex.quote(path)}"
            )
            todo = f"remove the rule that {check_command} prints, if they belong in git"
            yield CloneFinding("ignore", f"git ignores the files in {os.path.dirname(path)}", todo)
    names = [f":(top,literal){prefix}{name}" for name in (".gitattributes", ".gitignore")]
    changed = [entry[3:] for entry in git.run("status", "--porcelain", "-z", "--", *names).fields]
    if changed:
        text = (
            "different from the commit, and other clones have the committed version: "
            f"{shlex.join(changed)}"
        )
        yield CloneFinding("attributes", text, "run: capsule git commit")
    patterns = [".capsule/**", *(f"{kind}/.*.tmp" for kind in KINDS)]
    tracked = git.run("ls-files", "-z", "--", *map(repository.pathspec, patterns)).fields
    if tracked:
        listed = shlex.join(tracked[:_MAX_LISTED])
        if len(tracked) > _MAX_LISTED:
            listed += " ..."
        text = f"{_count(len(tracked), 'file')} in git that are derived or half written: {listed}"
        todo = f"run in {shlex.quote(repository.top)}: git rm -r --cached -- {listed}"
        yield CloneFinding("ignore", text, todo)


def _check_hook(repository: Repository, state: RepositoryStatus) -> Iterator[CloneFinding]:
    """Check that a pre-commit hook runs Capsule's check."""
    hook = find_hook(repository)
    state.hook = hook.runs
    if hook.runs:
        return
    if hook.obstacle:
        text = (
            f"nothing checks commits: the check can't be added to {hook.path}, because "
            f"{hook.obstacle}"
        )
        yield CloneFinding("hook", text, hook.way_out)
    else:
        yield CloneFinding(
            "hook", "nothing checks commits: there is no pre-commit hook of Capsule", _SET_UP
        )


def _check_version(repository: Repository, state: RepositoryStatus) -> Iterator[CloneFinding]:
    """Check git's version."""
    state.git, is_enough = merge_version(repository.git)
    if not is_enough:
        needs = "capsule git sync, if it merges other files than conversations"
        yield CloneFinding(
            "git",
            f"git {state.git} is too old for this: {needs}",
            "install git 2.38 or newer",
            False,
        )


def _check_tree(repository: Repository, state: RepositoryStatus) -> Iterator[CloneFinding]:
    """Check the branch and its upstream, and the documents that differ from the last commit."""
    options = (
        "--porcelain=v2",
        "-z",
        "--branch",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=all",
    )
    for entry in repository.git.run("status", *options, "--", *repository.pathspecs()).fields:
        kind, _, rest = entry.partition(" ")
        if kind == "#":
            _read_branch(rest, state)
        else:
            _read_entry(repository, kind, rest, state)
    if state.changed:
        text = f"{_count(len(state.changed), 'document')} changed since the last commit"
        yield CloneFinding("changed", text, "run: capsule git commit", False)
    counts = []
    if state.ahead:
        counts.append(f"{_count(state.ahead, 'commit')} to push")
    if state.behind:
        counts.append(f"{_count(state.behind, 'commit')} to merge")
    if counts:
        text = f"{' and '.join(counts)} ({state.branch} and {state.upstream})"
        yield CloneFinding("upstream", text, "run: capsule git sync", False)


def _read_entry(repository: Repository, kind: str, entry: str, state: RepositoryStatus) -> None:
    """Read the entry of one path in git's format porcelain v2 (git-status(1)): `1` is a changed
    file, `u` an unmerged one, `?` a new one. 7, 9 or no fields come before the path.
    """
    *details, path = entry.split(" ", {"1": 7, "u": 9}.get(kind, 0))
    location = repository.document_at(path)
    if location is None:
        return
    name = "/".join(location)
    if kind == "u":
        state.unmerged.append(name)
        return
    if kind == "1" and details[0] == ".M":  # Only the file differs, not the index.
        document_kind, _ = location
        if _is_clean(repository, path, document_kind, details[6]):
            return
    state.changed.append(name)


def _is_clean(repository: Repository, path: str, kind: str, blob: str) -> bool:
    """Return whether a file that git lists as changed differs from the blob in the index only in
    its lock or its layout.
    """
    try:
        with open(os.path.join(repository.top, path), "rb") as file:
            return blob_name(clean(file.read(), path, kind), object_format(repository.git)) == blob
    except (OSError, InvalidDocument):
        return False


def _read_branch(words: str, state: RepositoryStatus) -> None:
    """Read a line about the branch in git's format porcelain v2."""
    name, _, value = words.partition(" ")
    if name == "branch.head" and value != "(detached)":
        state.branch = value
    elif name == "branch.upstream":
        state.upstream = value
    elif name == "branch.ab":
        ahead, behind = value.split()
        state.ahead = int(ahead)
        state.behind = -int(behind)


def _check_unfinished(repository: Repository, state: RepositoryStatus) -> Iterator[CloneFinding]:
    """Check whether a person has begun a merge or the like in this worktree and not finished it."""
    unmerged = ", ".join(state.unmerged)
    unfinished = repository.unfinished_operation()
    if unfinished is not None:
        operation, way_out = unfinished
        text = f"{operation} is in progress"
        todo = f"end it with: {way_out}"
        if unmerged:
            text += f"; to be resolved: {unmerged}"
            todo = f"resolve the conflicts, git add the files, and then: {way_out}"
        yield CloneFinding("merging", text, todo)
    elif unmerged:
        text = f"there are unresolved files without a merge in progress: {unmerged}"
        yield CloneFinding("merging", text, "resolve them, and git add them")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
