"""What stands above a conversation: its title, its tags, and where it stands in a list."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from capsule.errors import Refused
from capsule_cli.opening import store_of
from capsule_cli.options import Id, Yes, asked, usage
from capsule_cli.output import Stopped, one_line, out, out_json

if TYPE_CHECKING:
    from capsule import Store
    from capsule.head import Head

commands = typer.Typer()

Tags = Annotated[list[str], typer.Argument(metavar="TAG", help="The tags.")]


@commands.command("rename")
def rename(
    ctx: typer.Context,
    id: Id,
    title: Annotated[
        str | None,
        typer.Argument(metavar="TITLE", help="The new title; with --suggest else made from the first user message."),
    ] = None,
    suggest: Annotated[
        bool,
        typer.Option(
            "--suggest", help="Only offer it: a title that a person gave stays, unless they agree (asked, or --yes)."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Give a conversation another title; it is no longer made from the first message."""
    if title is None and not suggest:
        raise usage("the title is missing", "TITLE")
    with store_of(ctx) as store:
        id = store.resolve(id)
        if suggest:
            head = _suggested(store, id, title, yes=yes)
        else:
            head = store.rename(id, title or "")
    _tell(ctx, head, f"renamed to {one_line(head.title)!r}")


def _suggested(store: Store, id: str, title: str | None, *, yes: bool) -> Head:
    """The head after a title was suggested.

    Raises:
        Refused: A person gave the title that stands there, and nobody can be asked.
        Stopped: They want to keep it.
    """
    if title is None:
        title = store.title_by_rule(id)
        if not title:
            raise usage("no user message says what it is about; give a title", "TITLE")
    head = store.suggest_title(id, title)
    while head is None:
        there = store.head(id)
        if there.title == title.strip(" \t"):
            return there
        if not yes:
            if not sys.stdin.isatty():
                raise Refused(
                    f"{id}: its title {there.title!r} was given by a person, and stays unless they agree; "
                    "say so with --yes",
                    path=there.path,
                )
            if not typer.confirm(f"Replace {one_line(there.title)!r} by {one_line(title)!r}?", err=True):
                raise Stopped("nothing was changed")
        head = store.suggest_title(id, title, instead_of=there.title)  # None: it was renamed while the person thought.
    return head


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
