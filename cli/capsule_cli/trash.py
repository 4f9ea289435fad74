"""`delete`, `trash`, `restore`, `purge`: to the trash and back.

What must stay true: a person at a terminal is asked before something goes; and `trash` lists whatever `restore` brings
back, conversations and messages alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsule import timestamps
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound
from capsule.storage.interface import Trashed
from capsule_cli.completion import complete_id, complete_trashed
from capsule_cli.consent import ensure_agreed
from capsule_cli.opening import store_of
from capsule_cli.options import Yes, asked, seconds, usage
from capsule_cli.output import in_terminal, one_line, out, out_json, short_ids, short_time, table

if TYPE_CHECKING:
    from capsule import Store
    from capsule.discarding import Removed

commands = typer.Typer()


@commands.command("delete")
def delete(
    ctx: typer.Context,
    ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID", autocompletion=complete_id, help="The conversations: ids, beginnings of ids, or @last."
        ),
    ] = None,
    all_: Annotated[
        bool,
        typer.Option("--all", help="Every conversation of the store: asks twice; where nobody can be, with --yes."),
    ] = False,
    message: Annotated[
        str | None,
        typer.Option(
            "--which",
            metavar="MESSAGE",
            help="Not the conversation, but one message of it and all that answers it: its id, @N or @last.",
        ),
    ] = None,
    keep_children: Annotated[
        bool, typer.Option("--keep-children", help="With --which: what answers it stays, and moves up.")
    ] = False,
    with_forks: Annotated[
        bool, typer.Option("--with-forks", help="Their forks too, and theirs; else these stay.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    yes: Yes = False,
) -> None:
    """Move conversations to the trash; with --which: messages of one."""
    if message is not None:
        from capsule_cli.branching import delete_message

        if all_ or with_forks or not ids or len(ids) > 1:
            raise usage("a message is of one conversation: give its id, and neither --all nor --with-forks", "--which")
        delete_message(ctx, ids[0], message, keep_children=keep_children, dry_run=dry_run, yes=yes)
        return
    if keep_children:
        raise usage("say which message is to go: --which MESSAGE", "--keep-children")
    if all_ and (with_forks or dry_run):
        raise usage("all go: --all takes neither --with-forks nor --dry-run", "--all")
    if all_:
        if ids:
            raise usage("give ids or --all, not both", "--all")
        from capsule_cli.discarding import delete_all

        delete_all(ctx, yes=yes)
        return
    if not ids:
        raise usage("name the conversations, or give --all", "ID")
    told: list[dict[str, Any]] = []
    with store_of(ctx) as store:
        # All are found before the first goes: a mistyped id deletes nothing, and @last is what it was.
        found = list(dict.fromkeys(store.resolve(id) for id in ids))
        named = found
        if with_forks:
            found = list(dict.fromkeys(one for id in found for one in (id, *store.forks(id, deep=True))))
        titles = {id: one_line(_title_of(store, id)) for id in found}
        if dry_run:
            _tell_plan(ctx, titles)
            return
        ensure_agreed("Delete " + ", ".join(map(repr, titles.values())) + "?", yes=yes, has_undo=True)
        for gone in _deleted(store, named, with_forks=with_forks):
            told.append({"id": gone.id, "deletedAt": gone.deleted_at, "undo": f"capsule restore {gone.id}"})
            if not asked(ctx).json:
                out(f"{gone.id}: {titles.get(gone.id, '')!r} is in the trash; undo: capsule restore {gone.id}")
    if asked(ctx).json:
        out_json(told)


@commands.command("trash")
def trash(ctx: typer.Context) -> None:
    """List the conversations and messages in the trash, the latest first."""
    with store_of(ctx) as store:
        told = [_described(store, item) for item in _in_trash(store)]
    if asked(ctx).json:
        out_json(told)
    else:
        ids = short_ids(one["id"] for one in told) if in_terminal() else {}
        rows = [(ids.get(one["id"], one["id"]), short_time(one["deletedAt"]), _line(one)) for one in told]
        table(("id", "deleted", "title"), rows, empty="the trash is empty")


@commands.command("restore")
def restore(
    ctx: typer.Context,
    id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            autocompletion=complete_trashed,
            help="The conversation: its id, a unique beginning of it, or @last (what was deleted last).",
        ),
    ],
    deleted: Annotated[
        str | None,
        typer.Option(
            "--deleted", metavar="TIME", help="What was deleted then, as capsule trash shows it; else what was last."
        ),
    ] = None,
) -> None:
    """Bring back a conversation or messages from the trash. An earlier version from git: capsule git restore."""
    with store_of(ctx) as store:
        item = _chosen(store, id, deleted)
        came: dict[str, Any] = {}
        if isinstance(item, Trashed):
            head = store.restore(item.id, item)
            said = f"back, and damaged: {head.damaged}" if head.damaged else f"{one_line(head.title)!r} is back"
        else:
            came["restored"] = store.restore_messages(item.trashed)
            head = store.head(item.trashed.id)
            said = f"{_messages(len(came['restored']))} restored in {one_line(head.title)!r}"
    if asked(ctx).json:
        out_json(head.as_json() | came)
    else:
        out(f"{head.id}: {said}")


@commands.command("purge")
def purge(
    ctx: typer.Context,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Only what was deleted that long ago, like 30d.")
    ] = "0s",
    yes: Yes = False,
) -> None:
    """Remove for good what is in the trash and in the quarantine, and every other trace of it in .capsule/."""
    age_s = seconds(older_than, "--older-than")
    with store_of(ctx) as store:
        before = timestamps.canonical((datetime.now(UTC) - timedelta(seconds=age_s)).isoformat())
        many = sum(_of(item).deleted_at <= before for item in _in_trash(store))
        ensure_agreed(f"Remove {many} in the trash, and what is as old in the quarantine, for good?", yes=yes)
        gone = store.purge(age_s)
    if asked(ctx).json:
        out_json({"purged": gone})
    else:
        out(f"{len(gone)} removed for good")


def _deleted(store: Store, ids: list[str], *, with_forks: bool) -> Iterator[Trashed]:
    """Delete conversations; each is told as soon as it is gone."""
    done: set[str] = set()
    for id in ids:
        if id in done:  # It was a fork of one before.
            continue
        gone = store.delete_with_forks(id) if with_forks else [store.delete(id)]
        done |= {one.id for one in gone}
        yield from gone


def _tell_plan(ctx: typer.Context, titles: dict[str, str]) -> None:
    if asked(ctx).json:
        out_json([{"id": id, "title": title, "dryRun": True} for id, title in titles.items()])
    else:
        out("\n".join(f"{id}: {title!r} would go to the trash" for id, title in titles.items()))


def _title_of(store: Store, id: str) -> str:
    """The title of a conversation that is to go; a damaged one may go too."""
    try:
        return store.head(id).title
    except InvalidDocument:
        return "a damaged file"


def _in_trash(store: Store) -> list[Trashed | Removed]:
    """The conversations and messages in the trash, the latest first."""
    return sorted([*store.trash(), *store.removed()], key=lambda item: _of(item).deleted_at, reverse=True)


def _of(item: Trashed | Removed) -> Trashed:
    return item if isinstance(item, Trashed) else item.trashed


def _described(store: Store, item: Trashed | Removed) -> dict[str, Any]:
    """What is said of something in the trash."""
    trashed = _of(item)
    told = {"id": trashed.id, "deletedAt": trashed.deleted_at, "path": trashed.path}
    if not isinstance(item, Trashed):
        return told | {"title": item.title, "reason": item.reason, "messages": [one["id"] for one in item.messages]}
    try:
        head = store.trashed_head(item)
    except CapsuleError:
        return told | {"title": "damaged"}
    return told | {"title": "damaged" if head.damaged else head.title}


def _line(told: dict[str, Any]) -> str:
    if "messages" not in told:
        return str(told["title"])
    return f"{_messages(len(told['messages']))} {told['reason']} in {told['title']!r}"


def _messages(count: int) -> str:
    return f"{count} message{'' if count == 1 else 's'}"


def _beginning(time: str) -> str:
    """How a time begins in the files that `trash` shows in the reader's zone, to the minute; another stays as it is."""
    text = time.strip().replace(" ", "T")
    shown = re.fullmatch(r"(.{16})(:.{2})?[+-]\d\d:\d\d", text)
    try:
        return (
            timestamps.canonical(f"{shown[1]}{shown[2] or ':00'}{text[-6:]}")[: 19 if shown[2] else 16]
            if shown
            else text
        )
    except ValueError:
        return text


def _chosen(store: Store, prefix: str, deleted: str | None) -> Trashed | Removed:
    """What in the trash is meant: of this id, the latest, or the latest that was deleted at a time."""
    items = _in_trash(store)
    at = _beginning(deleted or "")
    if prefix != "@last":
        ids = {_of(item).id for item in items}
        found = [prefix] if prefix in ids else sorted(id for id in ids if len(prefix) >= 4 and id.startswith(prefix))
        if len(found) > 1:
            named = ", ".join(found[:5])
            raise InvalidInput(f"{prefix!r} begins the ids of {len(found)} in the trash: {named}; type more")
        items = [item for item in items if _of(item).id in found]
    for item in items:
        if _of(item).deleted_at.startswith(at):
            return item
    then = f" that was deleted at {deleted[:40]!r}" if deleted and items else ""
    raise NotFound(f"nothing of {prefix[:130]!r} is in the trash{then}; see what is: capsule trash", id=prefix)
