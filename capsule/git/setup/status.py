"""Whether a clone is set up for conversations, what changed in it, and what to do.

What must stay true: looking changes nothing, and runs nothing that the repository's configuration
names; a finding says what git itself answers, for a document of this store, and not what some file
says; and whatever is not as it should be comes with what to do about it.
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

_SET_UP = "run: capsule git setup"
_ANY_ID = "00000000-0000-4000-8000-000000000000"
_ATTRIBUTE = {"merge": DRIVER, "diff": DRIVER, "filter": DRIVER, "text": "unset"}


@dataclass(frozen=True, slots=True)
class CloneFinding:
    """What is to be done, or worth knowing.

    Attributes:
        kind: `drivers`, `attributes`, `ignore`, `hook`, `git`, `merging`, `conflicts`, `changed` or
            `upstream`.
        what: What it is, in words.
        todo: What to do about it.
        is_trouble: Whether it has to be done; else it happens in any clone.
    """

    kind: str
    what: str
    todo: str
    is_trouble: bool = True

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "kind": self.kind,
            "what": self.what,
            "todo": self.todo,
            "isTrouble": self.is_trouble,
        }


@dataclass(slots=True)
class RepositoryStatus:
    """The state of a clone. The counts and names are None where git does not say.

    Attributes:
        top: The repository's working tree.
        folder: The store's folder in it; empty: it is the store.
        git: Git's version.
        branch, upstream: The branch, and the one it follows; None: none.
        ahead, behind: How many commits the branch has that the upstream hasn't, and the other way
            round.
        changed: The documents, `kind/id`, that are not as in the last commit.
        unmerged: Those that wait for a person in a merge.
        hook: The file that runs the check before a commit; empty: none.
        findings: What is to be done, the gravest first.
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
        """What `--json` prints."""
        return {
            **asdict(self),
            "fine": self.is_fine,
            "findings": [finding.as_json() for finding in self.findings],
        }


def inspect_clone(
    repository: Repository, program: Sequence[str], conflicts: Iterable[Conflict]
) -> RepositoryStatus:
    """Look at a clone; `program` is what `set_up` would start the drivers with, `conflicts` those
    of the store.
    """
    state = RepositoryStatus(repository.top, repository.prefix.rstrip("/"))
    state.findings += _drivers(repository, program)
    state.findings += _files(repository)
    state.findings += _hook(repository, state)
    state.findings += _version(repository, state)
    state.findings += _tree(repository, state)
    under_way = list(_under_way(repository, state))
    if under_way:  # `commit` and `sync`, which the others advise, are refused until that is ended.
        state.findings = [finding for finding in state.findings if finding.is_trouble]
    state.findings += under_way
    for id, disputes in groupby(conflicts, lambda conflict: conflict.id):
        disputed = list(disputes)
        fields = ", ".join(conflict.field for conflict in disputed)
        text = (
            f'conversation {id} "{disputed[0].title}" was merged, and awaits a decision on: '
            f"{fields}"
        )
        state.findings.append(CloneFinding("conflicts", text, f"run: capsule git resolve {id}"))
    state.findings.sort(key=lambda finding: not finding.is_trouble)
    return state


def _drivers(repository: Repository, program: Sequence[str]) -> Iterator[CloneFinding]:
    """Attributes and configuration, of which one without the other is the usual trap."""
    missing = _missing_attributes(repository)
    wanted = clone_config(program)
    # Not `repository.git`, for which the filters are off.
    there = {name: values[-1] for name, values in settings(Git(repository.top)).items()}
    absent = [name for name in wanted if name not in there]
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
        where = os.path.join(repository.top, repository.prefix, ".gitattributes")
        text = (
            f"the programs are set up, but do not apply to the documents here: {'; '.join(missing)}"
        )
        yield CloneFinding(
            "attributes",
            text,
            f"{_SET_UP}; if that is not enough, look for lines other than those of {where}",
        )
    if not absent and (odd := _odd_program(there, wanted)):
        yield CloneFinding("drivers", odd, _SET_UP)


def _missing_attributes(repository: Repository) -> list[str]:
    """What git would not do with a document, each with the attribute as it is."""
    missing: dict[str, list[str]] = {}
    paths = {repository.path_of(kind, _ANY_ID): kind for kind in KINDS}
    for path, name, value in attributes(repository.git, paths, *_ATTRIBUTE):
        if value != _ATTRIBUTE[name]:
            missing.setdefault(paths[path], []).append(f"{name} is {value}")
    return [f"{kind}/*.json ({', '.join(words)})" for kind, words in missing.items()]


def _odd_program(there: Mapping[str, str], wanted: Mapping[str, str]) -> str:
    """What is wrong with the programs that the configuration names; empty: nothing."""
    command = there[f"filter.{DRIVER}.process"]
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
    # Which Python starts them doesn't matter, as long as all of them are as this version writes
    # them.
    others = clone_config(words)
    odd = [name for name in wanted if there[name] not in (wanted[name], others[name])]
    return f"not as this version sets it: {', '.join(odd)}" if odd else ""


def _files(repository: Repository) -> Iterator[CloneFinding]:
    """What others get with a clone, and what must not be in it."""
    git, prefix = repository.git, repository.prefix
    documents = [repository.path_of(kind, _ANY_ID) for kind in KINDS]
    temporary = [f"{prefix}{kind}/.{_ANY_ID}.tmp" for kind in KINDS]
    asking = ("check-ignore", "--no-index", "-z", "--stdin")
    ignored = set(git.run(*asking, input=[*documents, *temporary], ok_codes=(0, 1)).fields)
    if not ignored.issuperset(temporary):
        yield CloneFinding("ignore", "files that are just being written could be added", _SET_UP)
    for path in documents:
        if path in ignored:
            command = f"git -C {shlex.quote(repository.top)} check-ignore -v {shlex.quote(path)}"
            todo = f"remove the rule that {command} prints, if they belong in git"
            yield CloneFinding("ignore", f"git ignores the files in {os.path.dirname(path)}", todo)
    names = [f":(top,literal){prefix}{name}" for name in (".gitattributes", ".gitignore")]
    if changed := [
        entry[3:] for entry in git.run("status", "--porcelain", "-z", "--", *names).fields
    ]:
        text = (
            "different from the commit, and other clones have the committed version: "
            f"{shlex.join(changed)}"
        )
        yield CloneFinding("attributes", text, "run: capsule git commit")
    wrong = [
        repository.pathspec(name) for name in (".capsule/**", *(f"{kind}/.*.tmp" for kind in KINDS))
    ]
    if tracked := git.run("ls-files", "-z", "--", *wrong).fields:
        shown = shlex.join(tracked[:3]) + (" ..." if len(tracked) > 3 else "")
        text = f"{_count(len(tracked), 'file')} in git that are derived or half written: {shown}"
        todo = f"run in {shlex.quote(repository.top)}: git rm -r --cached -- {shown}"
        yield CloneFinding("ignore", text, todo)


def _hook(repository: Repository, state: RepositoryStatus) -> Iterator[CloneFinding]:
    there = installation.find_hook(repository)
    state.hook = there.runs
    if there.runs:
        return
    if there.obstacle:
        text = (
            f"nothing checks commits: the check can't be added to {there.path}, because "
            f"{there.obstacle}"
        )
        yield CloneFinding("hook", text, there.way_out)
    else:
        yield CloneFinding(
            "hook", "nothing checks commits: there is no pre-commit hook of Capsule", _SET_UP
        )


def _version(repository: Repository, state: RepositoryStatus) -> Iterator[CloneFinding]:
    state.git, is_enough = merge_version(repository.git)
    if not is_enough:
        needs = "capsule git sync, if it merges other files than conversations"
        yield CloneFinding(
            "git",
            f"git {state.git} is too old for this: {needs}",
            "install git 2.38 or newer",
            False,
        )


def _tree(repository: Repository, state: RepositoryStatus) -> Iterator[CloneFinding]:
    """Branch and upstream, and the documents that are not as in the last commit."""
    shape = (
        "--porcelain=v2",
        "-z",
        "--branch",
        "--no-renames",
        "--untracked-files=all",
        "--ignore-submodules=all",
    )
    for entry in repository.git.run("status", *shape, "--", *repository.pathspecs()).fields:
        kind, _, rest = entry.partition(" ")
        if kind == "#":
            _read_branch(rest, state)
            continue
        # porcelain v2 (git-status(1)): 7 fields stand before the path, 9 where it is unmerged, none
        # of a new file.
        *before, path = rest.split(" ", {"1": 7, "u": 9}.get(kind, 0))
        place = repository.document_at(path)
        if place and not (
            kind == "1" and before[0] == ".M" and _is_clean(repository, path, place[0], before[6])
        ):
            (state.unmerged if kind == "u" else state.changed).append("/".join(place))
    if state.changed:
        text = f"{_count(len(state.changed), 'document')} changed since the last commit"
        yield CloneFinding("changed", text, "run: capsule git commit", False)
    if state.ahead or state.behind:
        sides = [(state.ahead, "to push"), (state.behind, "to merge")]
        counts = " and ".join(f"{_count(count, 'commit')} {aim}" for count, aim in sides if count)
        yield CloneFinding(
            "upstream",
            f"{counts} ({state.branch} and {state.upstream})",
            "run: capsule git sync",
            False,
        )


def _is_clean(repository: Repository, path: str, kind: str, blob: str) -> bool:
    """Whether a file that git takes for changed is what the index has, but for its lock or its
    layout.
    """
    try:
        with open(os.path.join(repository.top, path), "rb") as file:
            return blob_name(clean(file.read(), path, kind), object_format(repository.git)) == blob
    except (OSError, InvalidDocument):
        return False


def _read_branch(words: str, state: RepositoryStatus) -> None:
    name, _, value = words.partition(" ")
    if name == "branch.head" and value != "(detached)":
        state.branch = value
    elif name == "branch.upstream":
        state.upstream = value
    elif name == "branch.ab":
        ahead, behind = value.split()
        state.ahead, state.behind = int(ahead), -int(behind)


def _under_way(repository: Repository, state: RepositoryStatus) -> Iterator[CloneFinding]:
    """What git has begun and not ended, in this worktree."""
    unmerged = ", ".join(state.unmerged)
    if begun := repository.unfinished_operation():
        operation, end = begun
        files, first = "", "end it with: "
        if unmerged:
            files, first = (
                f"; to be resolved: {unmerged}",
                "resolve the conflicts, git add the files, and then: ",
            )
        yield CloneFinding("merging", f"{operation} is in progress{files}", f"{first}{end}")
    elif unmerged:
        text = f"there are unresolved files without a merge in progress: {unmerged}"
        yield CloneFinding("merging", text, "resolve them, and git add them")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
