"""What stands above a conversation: its title, its tags, and where it stands in a list."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsule.errors import Refused
from capsule_cli.completion import complete_tag
from capsule_cli.opening import store_of
from capsule_cli.options import Id, Yes, asked, usage
from capsule_cli.output import Stopped, one_line, out, out_json

if TYPE_CHECKING:
    from capsule import Store
    from capsule.head import Head

commands = typer.Typer()

Tags = Annotated[list[str], typer.Argument(metavar="TAG", autocompletion=complete_tag, help="The tags.")]


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
    """Give a conversation another title, which no rule changes any more. As: set --title."""
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
    """Add tags to a conversation; those it has stay. As: set --tag."""
    _set(ctx, id, tagged=tags)


@commands.command("pin")
def pin(ctx: typer.Context, id: Id) -> None:
    """Pin a conversation to the top of the list. As: set --pin."""
    _set(ctx, id, pinned=True)


@commands.command("archive")
def archive(ctx: typer.Context, id: Id) -> None:
    """Archive a conversation: `list` shows it only with --archived. As: set --archive."""
    _set(ctx, id, archived=True)


@commands.command("set")
def set_(
    ctx: typer.Context,
    id: Id,
    title: Annotated[str | None, typer.Option("--title", metavar="TITLE", help="Give it this title.")] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="TAG", autocompletion=complete_tag, help="Add this tag. Repeatable."),
    ] = None,
    untag: Annotated[
        list[str] | None,
        typer.Option("--untag", metavar="TAG", autocompletion=complete_tag, help="Remove this tag. Repeatable."),
    ] = None,
    pin: Annotated[
        bool | None, typer.Option("--pin/--unpin", help="Pin it to the top of the list, or let it go.")
    ] = None,
    archive: Annotated[
        bool | None, typer.Option("--archive/--unarchive", help="Take it out of the list, or bring it back.")
    ] = None,
) -> None:
    """Change the title, the tags, the pin or the archive flag of a conversation, in one write."""
    _set(ctx, id, title=title, tagged=tag or (), untagged=untag or (), pinned=pin, archived=archive)


def _set(ctx: typer.Context, id: str, **changes: Any) -> None:
    with store_of(ctx) as store:
        head = store.update(store.resolve(id), **changes)
    flags = [name for name, on in (("pinned", head.pinned), ("archived", head.archived)) if on]
    said = [repr(one_line(head.title)), *(f"#{one_line(tag)}" for tag in head.tags), *flags]
    _tell(ctx, head, " · ".join(said))


def _tell(ctx: typer.Context, head: Head, words: str) -> None:
    if asked(ctx).json:
        out_json(head.as_json())
    else:
        out(f"{head.id}: {words}")
