"""The branches of a conversation: `switch`, `regenerate`, `trim` and `fork`; and what `delete` does to a message.

What must stay true: messages that go are counted out before they go, and how they come back is said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsule_cli.consent import ensure_agreed
from capsule_cli.inputs import message_text
from capsule_cli.opening import store_of
from capsule_cli.options import Id, Yes, asked, usage
from capsule_cli.output import Stopped, one_line, out, out_json, out_json_line

if TYPE_CHECKING:
    from capsule import Removal

commands = typer.Typer()

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")]


@commands.command("switch")
def switch(
    ctx: typer.Context,
    id: Id,
    message: Annotated[
        str | None,
        typer.Argument(
            metavar="MESSAGE",
            help="A message of the branch: its id, @N or @last. Else the last of the active branch that has others "
            "beside it.",
        ),
    ] = None,
    next_: Annotated[bool, typer.Option("--next", help="To the message behind it, of those beside it.")] = False,
    previous: Annotated[bool, typer.Option("--previous", help="To the message before it, likewise.")] = False,
) -> None:
    """Make another branch the active one: the one that leads to a message, and on to the newest answers."""
    if next_ and previous:
        raise usage("give --next or --previous, not both", "--next")
    if message is None and not (next_ or previous):
        raise usage("name a message, or give --next or --previous", "MESSAGE")
    with store_of(ctx) as store:
        id = store.resolve(id)
        done = store.switch(id, message, step=next_ - previous)
        beside = store.alternatives(id, done.message)
    number, count = beside.index + 1, len(beside.ids)
    if asked(ctx).json:
        told = {"message": done.message, "leaf": done.leaf, "changed": done.changed}
        out_json_line({**told, "number": number, "count": count})
    else:
        which = f"message {done.message}" + (f", {number} of {count}" if count > 1 else "")
        out(f"{id}: " + ("on the branch of" if done.changed else "already on the branch of") + f" {which}")


@commands.command("regenerate")
def regenerate(
    ctx: typer.Context,
    id: Id,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="The other answer, or - for standard input. Without it and --file nothing is changed: the id of the "
            "message to answer is printed, for: append --parent.",
        ),
    ] = None,
    message: Annotated[
        str | None,
        typer.Option(
            "--which",
            metavar="MESSAGE",
            help="The answer there is: its id, @N or @last. Else the last of the active branch.",
        ),
    ] = None,
    from_: Annotated[str | None, typer.Option("--from", metavar="AGENT", help="The agent that says it, by id.")] = None,
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="The model that wrote it.")] = None,
    file: Annotated[str | None, typer.Option("--file", "-F", metavar="FILE", help="Take the text from it.")] = None,
) -> None:
    """Put another answer beside one of an assistant, and go on from there."""
    with store_of(ctx) as store:
        id = store.resolve(id)
        if text is None and file is None:
            slot = store.slot(id, message)
            if asked(ctx).json:
                out_json_line({"message": slot.message, "parent": slot.parent})
            elif slot.parent is None:
                raise Stopped(f"message {slot.message} answers none; give the other text, and it is put beside it")
            else:
                out(slot.parent)
            return
        more = {name: value for name, value in (("from", from_), ("model", model)) if value is not None}
        made = store.regenerate(id, message_text(text, file), message, **more)
    if asked(ctx).json:
        out_json_line({"id": made.id, "at": made.at, "parent": made.parent})
    else:
        out(str(made.id))


@commands.command("trim")
def trim(ctx: typer.Context, id: Id, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Remove every branch but the active one; the messages stay in the trash until `purge`."""
    with store_of(ctx) as store:
        id = store.resolve(id)
        planned = store.prune(id, dry_run=True)
        if planned.ids and not dry_run:
            ensure_agreed(f"Remove {planned}, of other branches? A copy stays in the trash.", yes=yes)
            planned = store.prune(id, expected=None if yes else planned.ids)
    _tell(ctx, id, planned, dry_run=dry_run)


@commands.command("fork")
def fork(
    ctx: typer.Context,
    id: Id,
    at: Annotated[
        str | None,
        typer.Option(
            "--up-to",
            metavar="MESSAGE",
            help="The last message to take along: its id, @N or @last. Else that of the active branch.",
        ),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TITLE", help="Its title; else Fork of ...")] = None,
    without_attachments: Annotated[
        bool, typer.Option("--without-attachments", help="Leave out what is attached to the messages.")
    ] = False,
) -> None:
    """Make a new conversation of a branch, up to a message, and print its id."""
    with store_of(ctx) as store:
        head = store.fork(store.resolve(id), at=at, title=title, attachments=not without_attachments)
    if asked(ctx).json:
        out_json(head.as_json())
    else:
        out(head.id)


def delete_message(ctx: typer.Context, id: str, message: str, *, keep_children: bool, dry_run: bool, yes: bool) -> None:
    """Remove a message and what answers it, or it alone."""
    with store_of(ctx) as store:
        id = store.resolve(id)
        found = store.find_message(id, message)
        planned = store.delete_message(id, str(found.id), keep_children=keep_children, dry_run=True)
        if not dry_run:
            ensure_agreed(f"Remove {planned}? A copy stays in the trash.", yes=yes)
            expected = None if yes else planned.ids
            planned = store.delete_message(id, str(found.id), keep_children=keep_children, expected=expected)
    _tell(ctx, id, planned, dry_run=dry_run)


def _tell(ctx: typer.Context, id: str, removal: Removal, *, dry_run: bool) -> None:
    if asked(ctx).json:
        told: dict[str, Any] = {"removed": list(removal.ids), "roles": removal.roles, "leaf": removal.leaf}
        undo = {"undo": f"capsule restore {id}"} if removal.ids and not dry_run else {}
        out_json({**told, "dryRun": dry_run, **undo})
    else:
        undone = f"; undo: capsule restore {id}" if removal.ids else ""
        out(one_line(f"{id}: {removal} " + ("would be removed" if dry_run else f"removed{undone}")))
