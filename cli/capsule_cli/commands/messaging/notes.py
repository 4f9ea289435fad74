"""`notes`: what an agent writes for itself, and who may look at it."""

from __future__ import annotations

from typing import Annotated

import typer

from capsule_cli.completion import complete_agent
from capsule_cli.shared.inputs import message_text
from capsule_cli.shared.opening import acting, agent_named, store_as
from capsule_cli.shared.options import Agent, File, argument, flag, option
from capsule_cli.shared.output import answer, listing

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()

Tags = Annotated[list[str] | None, option("--tag TAG", "Name a tag. Repeatable.", ...)]
Session = Annotated[str | None, option("--session NAME", "Name the session.", ...)]
_OF = "Look at the notes of this agent."
Of = Annotated[str | None, option("--of AGENT", _OF, ..., autocompletion=complete_agent)]
Limit = Annotated[int, option("--limit -n N", "Print at most N notes.", ..., min=1)]


@group.callback()
def _notes() -> None:
    """Write notes that only the agent reads, and whom it lets look."""


@commands.command("write")
def write(
    text: str | None = argument("TEXT", "The text. Without it: the text of --file, or of standard input."),
    tag: Tags = None,
    session: Session = None,
    file: File = None,
) -> None:
    """Write a note and print its id."""
    content = message_text(text, file)
    with acting() as (store, agent):
        note = store.notes.write(content, agent=agent, tags=tag or (), session=session)
    answer(note.as_json(), note.id)


@commands.command("search")
def search(
    text: str = argument("WORDS", "Words; without them, every note is found.", ""),
    tag: Tags = None,
    any_: bool = flag("--any", "Let one of the tags be enough; else a note has all of them."),
    session: Session = None,
    of: Of = None,
    limit: Limit = 20,
) -> None:
    """Search notes by words, tags and session, the best first."""
    with store_as(agent_named()) as store:
        found = store.notes.search(
            text, agent=store.agent, of=of, tags=tag or (), any_tag=any_, session=session, limit=limit
        )
    rows = [(note.id, note.written_at, ",".join(note.tags), note.session, note.text) for note in found]
    columns = ("id", "written", "tags", "session", "text")
    listing([note.as_json() for note in found], columns, rows, "no notes", last="text")


@commands.command("list")
def list_(of: Of = None, limit: Limit = 20) -> None:
    """List notes, the latest first."""
    search("", of=of, limit=limit)


@commands.command("allow")
def allow(other: Agent) -> None:
    """Let another agent look at the notes. That is recorded."""
    with acting() as (store, agent):
        head = store.notes.allow(other, agent=agent)
    answer(head.as_json(), f"{head.id}: {other} may look")


@commands.command("end")
def end(other: Agent) -> None:
    """Let another agent look at the notes no more."""
    with acting() as (store, agent):
        head = store.notes.end(other, agent=agent)
    answer(head.as_json(), f"{head.id}: {other} may look no more")
