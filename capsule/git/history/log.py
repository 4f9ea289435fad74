"""The commits of a repository: a list by `git log`, and the one that a revision or a date names.

What must stay true: git answers in its machine format; and a text that is neither a revision nor a
date is an error, never now (git's own reading of dates takes anything for one, so it is never
used).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound
from capsule.git.repository import Repository
from capsule.git_program import Git

#: \x01 and seven texts, each with a NUL behind it (git-log(1), "PRETTY FORMATS").
_FORMAT = "--format=%x01%H%x00%P%x00%aN%x00%aE%x00%aI%x00%cI%x00%s"
#: `BRANCH@{...}` with what is no number and no name of a branch in the braces: git takes that for a
#: date.
_REFLOG_DATE = re.compile(r"@\{(?!-?[0-9]+\}|u\}|upstream\}|push\})", re.IGNORECASE)
_DAY = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}|[0-9]{4}-?W[0-9]{2}-?[0-9]")


@dataclass(frozen=True, slots=True)
class Commit:
    """One commit.

    Attributes:
        hash: Its whole hash.
        parents: Those of its parents.
        author, email: Who wrote it, by the repository's mailmap.
        at, committed_at: When it was written, and when it was committed, in ISO 8601 with the
            person's zone.
        subject: The first line of its message.
    """

    hash: str
    parents: tuple[str, ...]
    author: str
    email: str
    at: str
    committed_at: str
    subject: str


class Difference(NamedTuple):
    """What a commit did to one path: the blob it was in each parent, and the blob that it is;
    empty: none.
    """

    path: str
    before: tuple[str, ...]
    after: str


def log(git: Git, *arguments: str) -> list[tuple[Commit, list[Difference]]]:
    """The commits by a `git log` with these arguments, and their differences, if the arguments have
    `--raw`.
    """
    fields = git.run(
        "log", "-z", "--no-abbrev", "--no-renames", "--encoding=UTF-8", _FORMAT, *arguments
    ).fields
    commits: list[tuple[Commit, list[Difference]]] = []
    at = 0
    while at < len(fields):
        text = fields[at].lstrip("\n")
        if text.startswith("\x01"):
            commits.append(
                (Commit(text[1:], tuple(fields[at + 1].split()), *fields[at + 2 : at + 7]), [])
            )
            at += 7
        elif text:
            # A colon for each parent, the modes, the blobs, and what was done; then the path.
            parents = len(text) - len(text.lstrip(":"))
            blobs = text[parents:].split(" ")[parents + 1 : 2 * parents + 2]
            *before, after = (blob if blob.strip("0") else "" for blob in blobs)
            commits[-1][1].append(Difference(fields[at + 1], tuple(before), after))
            at += 2
        else:
            at += 1
    return commits


def commit_at(repository: Repository, text: str) -> Commit:
    """The commit that `text` names: a revision (gitrevisions(7)), or a date or time.

    Of a date the end of its day counts. It stands for the latest commit of this branch, by its
    first parents, whose committer's date is not after it.

    Raises:
        NotFound: There is no such commit.
        InvalidInput: It is neither.
    """
    if _REFLOG_DATE.search(text):
        raise InvalidInput(
            f"{text!r}: a date stands by itself here, as 2025-01-31 or 2025-01-31T12:00Z"
        )
    git = repository.git
    if "\0" not in text and text:
        answer = git.run(
            "rev-parse", "--verify", "--end-of-options", f"{text}^{{commit}}", fine=(0, 1, 128)
        )
        if (
            not answer.code and answer.text.isalnum()
        ):  # What is excluded, like ^main, comes back with its mark.
            return _commit(git, answer.text)
        if "ambiguous" in answer.words:
            raise InvalidInput(f"{text!r} begins the names of several commits; give more of it")
    until = _seconds(text)
    if git.head() is None:
        raise NotFound("nothing was ever committed here; see: git log", id=text)
    # `--min-age` takes seconds and nothing else, where `--until` would read a date.
    options = ("--first-parent", "--max-count=1", f"--min-age={until}")
    hash = git.run("rev-list", *options, "HEAD").text if until >= 0 else ""
    if not hash:
        first = git.run("rev-list", "--first-parent", "--max-parents=0", "HEAD").text.split("\n")[0]
        began = f"; it begins at {_commit(git, first).committed_at}" if first else ""
        raise NotFound(f"this branch has no commit up to {text}{began}", id=text)
    return _commit(git, hash)


def _seconds(text: str) -> int:
    """Seconds since 1970 of a date or a time. Raises InvalidInput."""
    try:
        time = timestamps.parse(text)
        if _DAY.fullmatch(text):
            time += timedelta(days=1) - timedelta(microseconds=1)
    except (ValueError, OverflowError):
        reason = (
            "neither a revision that git knows nor a date or time, like 2025-01-31 or "
            "2025-01-31T12:00Z"
        )
        raise InvalidInput(f"{text[:100]!r} is {reason}") from None
    return math.floor((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())


def _commit(git: Git, hash: str) -> Commit:
    return log(git, "--no-walk", "--end-of-options", hash)[0][0]
