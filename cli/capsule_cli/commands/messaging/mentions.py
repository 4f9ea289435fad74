"""`mentions`: the messages that ask something of an agent by its name."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from capsule_cli.shared.opening import acting
from capsule_cli.shared.options import argument, option
from capsule_cli.shared.output import answer, listing, one_line

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()


@group.callback()
def _mentions() -> None:
    """List the messages that mention the agent, and note what it is done with."""


@commands.command("list")
def list_(
    state: Literal["open", "unread", "read", "done", "all"] = option(
        "--state STATE", "Print those in this state; open: not done.", "open"
    ),
    kind: Literal["mention", "review", "action", "fyi"] | None = option("--kind KIND", "Print those of this kind."),
    limit: int = option("--limit -n N", "Print at most N.", 100, min=1),
) -> None:
    """List the messages that mention the agent, the latest first. It marks nothing read.

    A mention is read with its message, and done when the agent says so.
    """
    with acting() as (store, agent):
        found = store.messages.mentions(agent=agent, state=state, kind=kind, limit=limit)
    rows = [
        (one.mail.id, one.state, one.mail.mention, one.mail.from_, one.mail.conversation, one.mail.content)
        for one in found
    ]
    columns = ("id", "state", "kind", "from", "conversation", "text")
    listing([one.as_json() for one in found], columns, rows, "no message mentions you so", last="text")


@commands.command("done")
def done(id: Annotated[str, argument("ID", "The message: its id.", ...)]) -> None:
    """Note that the agent is done with what a message asked of it."""
    with acting() as (store, agent):
        store.messages.done(id, agent=agent)
    answer({"message": id, "done": True}, f"{one_line(id)}: done")
