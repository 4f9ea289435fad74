"""What stands above a conversation: its title, its tags, and where it stands in a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from capsule_cli.opening import store_of
from capsule_cli.options import Id, asked
from capsule_cli.output import one_line, out, out_json

if TYPE_CHECKING:
    from capsule.head import Head

commands = typer.Typer()

Tags = Annotated[list[str], typer.Argument(metavar="TAG", help="The tags.")]


@commands.command("rename")
def rename(
    ctx: typer.Context, id: Id, title: Annotated[str, typer.Argument(metavar="TITLE", help="The new title.")]
) -> None:
    """Give a conversation another title; it is no longer made from the first message."""
    with store_of(ctx) as store:
        head = store.rename(store.resolve(id), title)
    _tell(ctx, head, f"renamed to {one_line(head.title)!r}")


@commands.command("tag")
def tag(ctx: typer.Context, id: Id, tags: Tags) -> None:
    """Add tags to a conversation; those it has stay."""
    with store_of(ctx) as store:
        head = store.tag(store.resolve(id), *tags)
    _tell(ctx, head, _tagged(head))


@commands.command("untag")
def untag(ctx: typer.Context, id: Id, tags: Tags) -> None:
    """Take tags from a conversation."""
    with store_of(ctx) as store:
        head = store.untag(store.resolve(id), *tags)
    _tell(ctx, head, _tagged(head))


@commands.command("pin")
def pin(ctx: typer.Context, id: Id) -> None:
    """Let a conversation stand above the others in a list."""
    with store_of(ctx) as store:
        head = store.pin(store.resolve(id), on=True)
    _tell(ctx, head, "pinned")


@commands.command("unpin")
def unpin(ctx: typer.Context, id: Id) -> None:
    """Let a conversation stand among the others again."""
    with store_of(ctx) as store:
        head = store.pin(store.resolve(id), on=False)
    _tell(ctx, head, "no longer pinned")


@commands.command("archive")
def archive(ctx: typer.Context, id: Id) -> None:
    """Put a conversation away: `list` shows it only when asked."""
    with store_of(ctx) as store:
        head = store.archive(store.resolve(id), on=True)
    _tell(ctx, head, "archived")


@commands.command("unarchive")
def unarchive(ctx: typer.Context, id: Id) -> None:
    """Bring a conversation back into the list."""
    with store_of(ctx) as store:
        head = store.archive(store.resolve(id), on=False)
    _tell(ctx, head, "no longer archived")


def _tagged(head: Head) -> str:
    return "tags: " + one_line(", ".join(head.tags)) if head.tags else "no tags"


def _tell(ctx: typer.Context, head: Head, words: str) -> None:
    if asked(ctx).json:
        out_json(head.as_json())
    else:
        out(f"{head.id}: {words}")
