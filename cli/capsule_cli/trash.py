"""`delete`, `trash`, `restore`, `purge`: to the trash and back.

What must stay true: a person at a terminal is asked before something goes; a script is not, and says --yes where
the same line is to work in both.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsule import timestamps
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound
from capsule_cli.completion import complete_id, complete_trashed
from capsule_cli.opening import store_of
from capsule_cli.options import Yes, asked, seconds
from capsule_cli.output import Stopped, in_terminal, one_line, out, out_json, short_ids, short_time, table

if TYPE_CHECKING:
    from capsule import Store
    from capsule.storage.interface import Trashed

commands = typer.Typer()


@commands.command("delete")
def delete(
    ctx: typer.Context,
    ids: Annotated[
        list[str],
        typer.Argument(
            metavar="ID", autocompletion=complete_id, help="The conversations: ids, beginnings of ids, or @last."
        ),
    ],
    yes: Yes = False,
) -> None:
    """Move conversations to the trash."""
    told: list[dict[str, Any]] = []
    with store_of(ctx) as store:
        # All are found before the first goes: a mistyped id deletes nothing, and @last is what it was.
        found = list(dict.fromkeys(store.resolve(id) for id in ids))
        titles = {id: one_line(_title_of(store, id)) for id in found}
        _ask("Delete " + ", ".join(repr(title) for title in titles.values()) + "?", yes)
        for id in found:
            gone = store.delete(id)
            told.append({"id": gone.id, "deletedAt": gone.deleted_at, "undo": f"capsule restore {id}"})
            if not asked(ctx).json:
                out(f"{id}: {titles[id]!r} is in the trash; undo: capsule restore {id}")
    if asked(ctx).json:
        out_json(told)


@commands.command("trash")
def trash(ctx: typer.Context) -> None:
    """List what is in the trash, the latest first."""
    with store_of(ctx) as store:
        items = sorted(store.trash(), key=lambda item: item.deleted_at, reverse=True)
        titles = [_trashed_title(store, item) for item in items]
    if asked(ctx).json:
        out_json(
            [
                {"id": i.id, "title": t, "deletedAt": i.deleted_at, "path": i.path}
                for i, t in zip(items, titles, strict=True)
            ]
        )
    else:
        ids = short_ids(item.id for item in items) if in_terminal() else {}
        rows = [(ids.get(i.id, i.id), short_time(i.deleted_at), t) for i, t in zip(items, titles, strict=True)]
        table(("id", "deleted", "title"), rows)


@commands.command("restore")
def restore(
    ctx: typer.Context,
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            autocompletion=complete_trashed,
            help="A conversation in the trash: its id, a unique beginning of it, or @last (deleted last).",
        ),
    ],
) -> None:
    """Bring a conversation back from the trash."""
    with store_of(ctx) as store:
        head = store.restore(_trashed(store, id))
    if asked(ctx).json:
        out_json(head.as_json())
    else:
        out(
            f"{head.id}: "
            + (f"back, and damaged: {head.damaged}" if head.damaged else f"{one_line(head.title)!r} is back")
        )


@commands.command("purge")
def purge(
    ctx: typer.Context,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only what was deleted that long ago, like 30d.")
    ] = "0s",
    yes: Yes = False,
) -> None:
    """Remove what is in the trash and in the quarantine, for good."""
    age_s = seconds(older_than, "--older-than")
    with store_of(ctx) as store:
        before = timestamps.canonical((datetime.now(UTC) - timedelta(seconds=age_s)).isoformat())
        many = sum(item.deleted_at <= before for item in store.trash())
        _ask(f"Remove {many} in the trash, and what is as old in the quarantine, for good?", yes)
        gone = store.purge(age_s)
    if asked(ctx).json:
        out_json({"purged": gone})
    else:
        out(f"{len(gone)} removed for good")


def _ask(question: str, yes: bool) -> None:
    """Ask a person; whoever is no person at a terminal has said what they want by calling."""
    if not yes and sys.stdin.isatty() and not typer.confirm(question, err=True):
        raise Stopped("nothing was changed")


def _title_of(store: Store, id: str) -> str:
    """The title of a conversation that is to go; a damaged one may go too."""
    try:
        return store.head(id).title
    except InvalidDocument:
        return "a damaged file"


def _trashed_title(store: Store, item: Trashed) -> str:
    try:
        head = store.trashed_head(item)
    except CapsuleError:
        return "damaged"
    return "damaged" if head.damaged else head.title


def _trashed(store: Store, prefix: str) -> str:
    """The id in the trash that `prefix` means."""
    items = sorted(store.trash(), key=lambda item: item.deleted_at)
    ids = {item.id for item in items}
    if prefix == "@last" and items:
        return str(items[-1].id)
    found = [prefix] if prefix in ids else sorted(id for id in ids if len(prefix) >= 4 and id.startswith(prefix))
    if not found:
        raise NotFound(f"no conversation {prefix[:130]!r} is in the trash; see what is: capsule trash", id=prefix)
    if len(found) > 1:
        raise InvalidInput(f"{prefix!r} begins the ids of {len(found)} in the trash: {', '.join(found[:5])}; type more")
    return str(found[0])
