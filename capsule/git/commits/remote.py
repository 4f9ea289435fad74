"""The remote that a branch is exchanged with: which it is, what it has, and pushing to it.

What must stay true: a remote that can't be reached is no error, and one that refuses us is; and what is merged is what
this sync fetched, never what another git has fetched meanwhile.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from capsule.errors import GitFailed, Refused
from capsule.git_program import Git

#: What git, curl and ssh say when nobody answers; not what a remote says that refuses.
_UNREACHABLE = re.compile(
    r"could(?:n't| not) resolve|temporary failure in name resolution|name or service not known|unable to look up"
    r"|failed to connect|unable to connect|couldn't connect|connection (?:refused|timed out|reset|closed by)"
    r"|operation timed out|timeout was reached|network is (?:unreachable|down)|no route to host|host is down",
    re.IGNORECASE,
)
#: Why a remote refuses a push that may pass after its own commits are merged.
_OVERTAKEN = re.compile(
    r"fetch first|non-fast-forward|stale info|needs force|cannot lock ref|failed to update ref|reference already exists"
    r"|incorrect old value|remote ref updated since checkout",
    re.IGNORECASE,
)
#: What git runs to reach a remote. Named by a repository alone, it may have come with an archive.
_HELPERS = r"^(core\.(sshcommand|gitproxy|askpass)|credential\.(.*\.)?helper|remote\..*\.(uploadpack|receivepack|vcs))$"


class Offline(Exception):
    """The remote can't be reached; its words say why. It never leaves the package."""


class Rejected(Exception):
    """Somebody else pushed first. It never leaves the package."""


def branch_of(git: Git) -> str:
    """The branch that is checked out. Raises GitFailed when there is none (a detached HEAD)."""
    answer = git.run("symbolic-ref", "--quiet", "--short", "HEAD", fine=(0, 1))
    if answer.code:
        reason = f"no branch is checked out in {git.directory}; check one out first: git switch BRANCH"
        raise GitFailed(reason, command=["symbolic-ref", "HEAD"], words=answer.words)
    return answer.text


def remote_of(git: Git, branch: str) -> Remote | None:
    """The remote of a branch: the one it follows, else the only one there is; None when there is none.

    Raises:
        Refused: There are several, and it follows none; or the repository names programs of its own for them.
    """
    _ensure_own_helpers(git)
    name, merge = (
        git.run("config", "--get", f"branch.{branch}.{key}", fine=(0, 1)).text for key in ("remote", "merge")
    )
    if name and merge and name != ".":
        return Remote(git, name, branch, merge, follows=True)
    there = git.run("remote").text.splitlines()
    if len(there) > 1 and name not in there:
        raise Refused(
            f"branch {branch} follows no branch of a remote, and there are several remotes ({', '.join(there)}); say "
            f"which: git push -u REMOTE {branch}",
            path=git.directory,
        )
    if not there:
        return None
    return Remote(git, name if name in there else there[0], branch, f"refs/heads/{branch}", follows=False)


def _ensure_own_helpers(git: Git) -> None:
    """Raise Refused when the repository's own configuration names what git is to reach a remote with."""
    fields = git.run("config", "-z", "--show-scope", "--name-only", "--get-regexp", _HELPERS, fine=(0, 1)).fields
    own = [name for scope, name in zip(fields[::2], fields[1::2], strict=True) if scope in ("local", "worktree")]
    if own:
        raise Refused(
            f"the repository's own configuration names a program for reaching remotes ({', '.join(own)}), which "
            "a sync does not run; if it is yours, set it in your own configuration (git config --global), or "
            "exchange with git pull and git push",
            path=git.directory,
        )


@dataclass(frozen=True, slots=True)
class Remote:
    """The branch `ref` (`refs/heads/...`) of the remote `name`, and the `branch` here, which may follow it already."""

    git: Git
    name: str
    branch: str
    ref: str
    follows: bool

    def __str__(self) -> str:
        return f"{self.name}/{self.ref.removeprefix('refs/heads/')}"

    def tip(self) -> str | None:
        """The commit of the branch there, which git then has too; None: no such branch. Raises Offline, GitFailed."""
        lines = self._ask("ls-remote", "--quiet", self.name, self.ref).splitlines()
        tip = next((line.split("\t")[0] for line in lines if line.endswith(f"\t{self.ref}")), None)
        if tip is not None and not self._has(tip):
            self._ask("fetch", "--quiet", self.name, self.ref)
            if not self._has(tip):  # It was removed there in between.
                return self.tip()
        return tip

    def push(self) -> None:
        """Push, and follow the branch from then on. Raises Rejected, Offline, GitFailed."""
        follow = () if self.follows else ("--set-upstream",)
        try:
            self._ask("push", "--quiet", "--porcelain", *follow, self.name, f"refs/heads/{self.branch}:{self.ref}")
        except GitFailed as error:
            if _OVERTAKEN.search(error.words):
                raise Rejected from error
            raise

    def _has(self, commit: str) -> bool:
        return self.git.run("cat-file", "-e", f"{commit}^{{commit}}", fine=(0, 1, 128)).code == 0

    def _ask(self, *command: str) -> str:
        answer = self.git.run(*command, fine=range(256))
        if answer.code == 0:
            return answer.text
        # `push --porcelain` says on standard output which branch was refused, and why; and then that it is done.
        out = answer.out.strip().removesuffix(b"\nDone")
        words = b"\n".join(part.strip() for part in (out, answer.err)).decode("utf-8", "replace").strip()
        if _UNREACHABLE.search(words) or self._is_unmounted():
            raise Offline(words)
        reason = f"git {command[0]} failed with {self.name}: {words or f'exit code {answer.code}'}"
        raise GitFailed(reason, command=list(command), words=words)

    def _is_unmounted(self) -> bool:
        """Whether the remote is a directory that isn't there now, as on a disk that was removed."""
        url = self.git.run("remote", "get-url", self.name, fine=(0, 1, 2, 128)).text
        if url.startswith("file://"):
            url = unquote(urlsplit(url).path)
        elif "://" in url or re.match(r"[^/]+:", url):
            return False
        return bool(url) and not os.path.exists(os.path.join(self.git.directory, url))
