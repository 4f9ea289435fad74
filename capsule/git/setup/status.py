"""The status of a clone: whether it is set up for conversations, what changed in it, and what to do.

`inspect_clone` runs one check after another. Each check fills a part of `RepositoryStatus`, and
yields findings. A finding has the remedy.

What must stay true: the inspection changes nothing, and runs no program that the repository's
configuration names. A finding is based on what git does with a document of this store, not on the
text of some configuration file.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidDocument
from capsule.format.merge.clean_form import clean
from capsule.format.validation import KINDS
from capsule.git.commits.merge import merge_version
from capsule.git.objects import attributes, blob_name, object_format
from capsule.git.repository import Repository
from capsule.git.setup import installation
from capsule.git.setup.attributes import DRIVER, clone_config, settings
from capsule.git_program import Git

if TYPE_CHECKING:
    from capsule.format.merge.annotations import Conflict

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
    hook = installation.find_hook(repository)
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
