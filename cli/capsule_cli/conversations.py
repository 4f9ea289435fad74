"""`new` and `list`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from capsule import timestamps
from capsule.errors import NotFound
from capsule.ids import is_id
from capsule_cli.completion import complete_id, complete_tag
from capsule_cli.opening import store_of
from capsule_cli.options import Mode, Tags, Type, asked, moment, usage
from capsule_cli.output import in_terminal, one_line, out, out_json, progress, short_ids, short_time, table
from capsule_cli.pager import paged

if TYPE_CHECKING:
    from capsule import Store
    from capsule.head import Head
    from capsule.standing import Standing

commands = typer.Typer()

Sort = Literal["updated", "created", "title"]


@commands.command("new")
def new(
    ctx: typer.Context,
    title: Annotated[
        str | None, typer.Argument(metavar="TITLE", help="Its title; else made from the first user message.")
    ] = None,
    mode: Annotated[Mode, typer.Option(help="How the conversation is held.")] = "api",
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="TAG", autocompletion=complete_tag, help="A tag; may be repeated."),
    ] = None,
    message: Annotated[
        str | None, typer.Option("--message", "-m", metavar="TEXT", help="A first user message.")
    ] = None,
    type: Annotated[Type, typer.Option(help="Who talks: a chat has one writer at a time, the others many.")] = "chat",
    id: Annotated[str | None, typer.Option("--id", metavar="ID", help="Its id; else a new UUID.")] = None,
) -> None:
    """Make a conversation, and print its id."""
    if message is not None and not message.strip():
        raise usage("the message is empty", "--message")
    messages = [] if message is None else [{"role": "user", "content": message}]
    with store_of(ctx) as store:
        head = store.create(title=title, mode=mode, type=type, tags=tag or (), id=id, messages=messages)
    if asked(ctx).json:
        out_json(head.as_json())
        return
    if in_terminal():
        out(f"Made {one_line(head.title)!r} ({head.type})")
    out(head.id)


@commands.command("list")
def list_(
    ctx: typer.Context,
    tag: Tags = None,
    mode: Annotated[Mode | None, typer.Option(help="Of this mode.")] = None,
    locked: Annotated[bool, typer.Option("--locked", help="That are locked.")] = False,
    archived: Annotated[bool, typer.Option("--archived", help="The archived ones too.")] = False,
    since: Annotated[
        str | None,
        typer.Option(metavar="WHEN", help="Changed since: a day (UTC), a time, yesterday, or 2h, 3d ago."),
    ] = None,
    sort: Annotated[Sort, typer.Option(help="Latest first, or by title; pinned ones stand above.")] = "updated",
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="So many at most.")] = None,
    summaries_of: Annotated[
        str | None,
        typer.Option(
            "--summaries-of",
            metavar="ID",
            autocompletion=complete_id,
            help="The summaries of this conversation, and whether it has moved on since.",
        ),
    ] = None,
) -> None:
    """List the conversations: the latest first, pinned ones above, damaged files at the end."""
    after = moment(since, "--since") if since else ""
    with store_of(ctx) as store, progress("indexing", 1.0) as told:
        heads = list(store.heads(told))
        counts = store.message_counts()
        standings = _standings(store, summaries_of) if summaries_of is not None else None
    sound = [
        head
        for head in heads
        if not head.damaged
        and (archived or not head.archived)
        and (mode is None or head.mode == mode)
        and (not locked or head.lock is not None)
        and set(tag or ()) <= set(head.tags)
        and (not after or _time(head.updated_at) >= after)
        and (standings is None or head.id in standings)
    ]
    # A damaged file can't say whether it is what the options look for; without any it is listed.
    narrowed = bool(tag or mode or locked or since or summaries_of)
    damaged = [] if narrowed else sorted((head for head in heads if head.damaged), key=lambda head: head.id)
    chosen = (in_order(sound, sort) + damaged)[:limit]
    if asked(ctx).json:
        moved = standings or {}
        out_json(
            [
                head.as_json()
                | ({} if head.damaged else {"messages": counts.get(head.id, 0)})
                | ({"source": moved[head.id].as_json()} if moved else {})
                for head in chosen
            ]
        )
    else:
        rows: Iterable[tuple[str, ...]]
        if in_terminal():
            # By ids that are unique in the store, and not only in what is shown of it.
            ids = short_ids(head.id for head in heads)
            columns = ["id", "updated", "n", "state", "tags", "title"]
            rows = (_line(head, ids[head.id], counts.get(head.id), standings or {}) for head in chosen)
        else:
            columns = ["id", "updated", "title", "mode", "tags", "state"]
            rows = (_row(head, standings or {}) for head in chosen)
        with paged(ctx):
            table(columns, rows, empty=_nothing(heads))


def in_order(heads: Iterable[Head], sort: Sort) -> list[Head]:
    """The heads as a list shows them."""
    ordered = sorted(heads, key=lambda head: (head.title.casefold(), head.id))
    if sort != "title":
        ordered.sort(key=lambda head: _time(head.updated_at if sort == "updated" else head.created_at), reverse=True)
    ordered.sort(key=lambda head: not head.pinned)
    return ordered


def _time(text: str) -> str:
    """A time so that it compares as a text; what can't be read is oldest."""
    try:
        return timestamps.canonical(text)
    except ValueError:
        return ""


def _standings(store: Store, id: str) -> dict[str, Standing]:
    """The summaries of a conversation, by their ids; one that is gone is named by its whole id."""
    try:
        id = store.resolve(id)
    except NotFound:
        if not is_id(id):
            raise
        found = store.summaries_of(id)
        if not found:
            raise
    else:
        found = store.summaries_of(id)
    return {summary.head.id: summary.standing for summary in found}


def _nothing(heads: Sequence[Head]) -> str:
    return "no conversation is like that" if heads else "there is no conversation yet; start one with: capsule new"


def _row(head: Head, standings: Mapping[str, Standing]) -> tuple[str, ...]:
    """A conversation's line for a program."""
    if head.damaged:
        return (head.id, "", f"damaged: {head.damaged}", "", "", "damaged")
    return (head.id, head.updated_at, head.title, head.mode, ",".join(head.tags), _state(head, standings))


def _line(head: Head, id: str, count: int | None, standings: Mapping[str, Standing]) -> tuple[str, ...]:
    """A conversation's line for a person."""
    if head.damaged:
        return (id, "", "", "damaged", "", head.damaged)
    state = ",".join(part for part in (_state(head, standings), "" if head.mode == "api" else head.mode) if part)
    return (id, short_time(head.updated_at), str(count or 0), state, ",".join(head.tags), head.title)


def _state(head: Head, standings: Mapping[str, Standing]) -> str:
    flags = (("pinned", head.pinned), ("archived", head.archived), ("locked", head.lock is not None))
    standing = standings.get(head.id)
    return ",".join([*(name for name, on in flags if on), *([standing.state] if standing else [])])
