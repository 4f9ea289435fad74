"""`git log`, `git diff`, `git restore`, and what `show --at` has of git: a conversation through time.

What must stay true: nothing here writes but `restore`, which asks the store for a new write.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import typer

from capsule.errors import InvalidDocument, NotFound
from capsule_cli.shared.asked import asked
from capsule_cli.shared.opening import store_of
from capsule_cli.shared.options import DryRun, Id, Limit, argument, option
from capsule_cli.shared.output import (
    answer,
    in_terminal,
    listing,
    one_line,
    out_bytes,
    out_json,
    out_rows,
    say,
    shown,
    styled,
    with_bar,
)
from capsule_cli.shared.pager import paged

if TYPE_CHECKING:
    from capsule import Store
    from capsule.git.history.timeline import Step
    from capsule.git.history.versions import PastVersion
    from capsule.git.repository import Repository

commands = typer.Typer()

_REVISION = "a commit as git names it, or a date or time (UTC) like 2025-01-31: the last commit up to then"


@commands.command("log")
def log(id: Id, limit: Limit = None) -> None:
    """List who changed what in a conversation, commit by commit, the latest first."""
    from capsule.git.history.timeline import history
    from capsule.git.history.versions import resolve

    with store_of() as store:
        repository = _repository(store)
        id = resolve(store, repository, id)
        length = 0

        def row(step: Step) -> tuple[str, str, str, str]:
            nonlocal length
            said = "; ".join(step.words) + (f": {step.damaged}" if step.damaged else "")
            if step.commit is None:
                return ("", "", "not committed yet", said)
            length = length or len(repository.short(step.commit.hash))
            return (step.commit.hash[:length], _when(step.commit.at), step.commit.author, said)

        with closing(history(store, repository, id, limit=limit)) as steps:
            if not asked.json and not in_terminal():
                for step in steps:
                    out_rows([row(step)])
                return
            found = list(with_bar("reading", steps))
        with paged():
            columns = ("commit", "when", "author", "what")
            listing(
                [step.as_json() for step in found], columns, map(row, found), "git has no version of it", last="what"
            )


def _when(at: str) -> str:
    """A commit's time, with the zone it was made in: to the minute for a person."""
    return f"{at[:16].replace('T', ' ')} {at[19:]}" if in_terminal() else at


@commands.command("diff")
def diff(
    id: Id,
    before: str = argument("REV", f"The earlier version: {_REVISION}.", ...),
    after: str | None = argument("REV", "The later version, likewise; else the conversation as it is."),
) -> None:
    """Print what changed between two versions of a conversation in git, in the form of a chat.

    With --json: the messages added, edited and removed, and the fields that changed.
    """
    from capsule.format.merge.comparison import compare
    from capsule.git.history.versions import past_version, resolve

    with store_of() as store:
        repository = _repository(store)
        id = resolve(store, repository, id)
        old = past_version(repository, id, before)
        new = past_version(repository, id, after) if after is not None else None
        one = old.document(id)
        other = new.document(id) if new is not None else store.document(id)
        if asked.json:
            told = {"id": id, "from": old.commit.hash, "to": new.commit.hash if new else None}
            out_json(told | compare(one, other).as_json(messages=True))
            return
        from capsule.git.history.versions import text_difference

        names = [found.path.partition(":")[0] if found else "now" for found in (old, new)]
        texts = [(name, _readable(document)) for name, document in zip(names, (one, other), strict=True)]
        with paged():
            out_bytes(text_difference(repository, f"{id}.txt", *texts, coloured=styled("x", 1) != "x"))


def _readable(document: dict[str, Any]) -> bytes:
    from capsule.format.text.readable import readable

    return "".join(f"{shown(line)}\n" for line in readable(document)).encode("utf-8", "backslashreplace")


def past_of(store: Store, id: str, at: str, *, tell: bool) -> PastVersion:
    """A past version of a conversation, which may be gone by now; with `tell`, on stderr which one it is."""
    from capsule.git.history.versions import past_version, resolve

    repository = _repository(store)
    found = past_version(repository, resolve(store, repository, id), at)
    if tell:
        say(one_line(_as_of(found)))
    return found


def _as_of(found: PastVersion) -> str:
    return f"as of commit {found.path.partition(':')[0]}, {found.commit.at}, by {found.commit.author}"


@commands.command("restore")
def restore(
    id: Id,
    at: str = option("--at REV", f"The version: {_REVISION}.", ...),
    dry_run: DryRun = False,
) -> None:
    """Bring an earlier version of a conversation back from git, as a new write."""
    from capsule.format.merge.comparison import compare
    from capsule.git.history.versions import past_version, resolve

    with store_of() as store:
        repository = _repository(store)
        found = past_version(repository, resolve(store, repository, id), at)
        id, document = found.id, found.document(found.id)
        now, damaged = _now(store, id)
        changes = ["a damaged file replaced"] if damaged else compare(now, document).words()
        told: dict[str, Any] = {"id": id, "title": document["title"], "commit": found.commit.hash, "changes": changes}
        told |= {"kept": None, "dryRun": dry_run}
        if changes and not dry_run:
            told["kept"] = store.restore_version(id, document).kept
    how, what = _as_of(found), "; ".join(changes)
    said = f"would be {how}: {what}" if dry_run else f"is {how}: {what}"
    if not changes:
        said = f"is as it was, {how}; nothing was changed"
    kept = f"; the version before is kept as {one_line(told['kept'])}" if told["kept"] else ""
    answer(told, f"conversation {id} {one_line(document['title'])!r} {said}{kept}")


def _now(store: Store, id: str) -> tuple[dict[str, Any] | None, bool]:
    """The conversation as it is, and whether its file is damaged."""
    try:
        return store.document(id), False
    except NotFound:
        return None, False
    except InvalidDocument:
        return None, True


def _repository(store: Store) -> Repository:
    from capsule.git.repository import Repository

    return Repository.around(store.root)
