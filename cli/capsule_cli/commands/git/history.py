"""`git log`, `git diff`, `git restore`, and the past versions for `show --at`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from capsule import git
from capsule.format.text.escaping import one_line
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import DryRun, Id, Limit, argument, option
from capsule_cli.shared.output import (
    in_terminal,
    print_answer,
    print_json,
    print_list,
    print_notice,
    print_rows,
    print_safe_bytes,
    styled,
    with_progress,
)
from capsule_cli.shared.pager import paged
from capsule_cli.shared.stores import open_core_store

if TYPE_CHECKING:
    from capsule.git.history import PastVersion, TimelineStep
    from capsule.store.store import CoreStore


_REVISION = (
    "a commit as git names it, or a date or time (UTC) like 2025-01-31: the last commit up to then"
)


def log(id: Id, limit: Limit = None) -> None:
    """List the changes of a conversation with their authors, commit by commit, the latest first."""
    with open_core_store() as store:
        clone = git.open(store)
        length = 0

        def row(step: TimelineStep) -> tuple[str, str, str, str]:
            nonlocal length
            words = "; ".join(step.words) + (f": {step.damaged}" if step.damaged else "")
            if step.commit is None:
                return ("", "", "not committed yet", words)
            length = length or len(clone.repository.short(step.commit.hash))
            time = step.commit.at  # With the zone it was made in: for a person, to the minute.
            time = f"{time[:16].replace('T', ' ')} {time[19:]}" if in_terminal() else time
            return (step.commit.hash[:length], time, step.commit.author, words)

        with closing(clone.log(clone.resolve(id), limit=limit)) as steps:
            if not global_options.json and not in_terminal():
                for step in steps:
                    print_rows([row(step)])
                return
            timeline = list(with_progress("reading", steps))
        with paged():
            columns = ("commit", "when", "author", "what")
            print_list(
                [step.as_json() for step in timeline],
                columns,
                map(row, timeline),
                "git has no version of it",
                last="what",
            )


def diff(
    id: Id,
    old_revision: str = argument("REV", f"The earlier version: {_REVISION}.", ...),
    new_revision: str | None = argument(
        "REV", "The later version, likewise. Without it: the present conversation."
    ),
) -> None:
    """Print what changed between two versions of a conversation in git, in the form of a chat.

    With --json: the messages added, edited and removed, and the fields that changed.
    """
    with open_core_store() as store:
        clone = git.open(store)
        difference = clone.diff(clone.resolve(id), old_revision, new_revision)
        if global_options.json:
            print_json(difference.as_json())
            return
        with paged():
            print_safe_bytes(difference.text(coloured=styled("x", 1) != "x"))


def past_of(store: CoreStore, id: str, revision: str, *, announce: bool) -> PastVersion:
    """Return a past version of a conversation, which may be deleted now. With `announce`, name its
    commit on stderr.
    """
    clone = git.open(store)
    version = clone.version(clone.resolve(id), revision)
    if announce:
        print_notice(one_line(_version_text(version)))
    return version


def _version_text(version: PastVersion) -> str:
    return f"as of commit {version.label}, {version.commit.at}, by {version.commit.author}"


def restore(
    id: Id,
    revision: str = option("--at REV", f"The version: {_REVISION}.", ...),
    dry_run: DryRun = False,
) -> None:
    """Bring an earlier version of a conversation back from git, as a new write."""
    with open_core_store() as store:
        clone = git.open(store)
        restored = clone.restore(clone.resolve(id), revision, dry_run=dry_run)
    value = restored.as_json()
    version_text = _version_text(restored.version)
    text = f"{'would be' if dry_run else 'is'} {version_text}: {'; '.join(restored.changes)}"
    if not restored.changes:
        text = f"already has this version, {version_text}; nothing was changed"
    if restored.kept:
        text += f"; the former version is kept as {one_line(restored.kept)}"
    print_answer(value, f"conversation {value['id']} {one_line(value['title'])!r} {text}")
