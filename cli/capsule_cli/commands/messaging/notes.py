"""`note`: write, search and share the notes that an agent keeps for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from capsule_cli.completion import complete_agent
from capsule_cli.public import open_agent_store, open_named_agent_store
from capsule_cli.shared.inputs import message_text
from capsule_cli.shared.options import Agent, File, argument, flag, option
from capsule_cli.shared.output import as_json, one_line, print_answer, print_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from capsule.messaging.notes import Note

Tags = Annotated[list[str] | None, option("--tag TAG", "Name a tag. Repeatable.", ...)]
Session = Annotated[str | None, option("--session ID", "The session in which it is written.", ...)]
Of = Annotated[
    str | None,
    option("--of AGENT", "Look at the notes of this agent.", ..., autocompletion=complete_agent),
]
Limit = Annotated[int, option("--limit -n N", "Print at most N notes.", ..., min=1)]
_ANY = "Find notes with one of the tags; else with all of them."


def note_write(
    text: str | None = argument(
        "TEXT", "The text. Without it: the text of --file, or of standard input."
    ),
    tag: Tags = None,
    session: Session = None,
    file: File = None,
) -> None:
    """Write a note and print its id."""
    content = message_text(text, file)
    with open_agent_store() as (store, agent):
        note = store.notes.write(content, agent=agent, tags=tag or (), session=session)
    print_answer(note.as_json(), note.id)


def note_search(
    text: str = argument("WORDS", "Words; without them, every note is found.", ""),
    tags: Tags = None,
    any_tag: bool = flag("--any", _ANY),
    session: Session = None,
    author: Of = None,
    limit: Limit = 20,
) -> None:
    """Search notes by words, tags and session, the best first."""
    with open_named_agent_store() as store:
        notes = store.notes.search(
            text, tags=tags or (), any_tag=any_tag, session=session, of=author, limit=limit
        )
    _print_notes(notes)


def note_list(author: Of = None, limit: Limit = 20) -> None:
    """List notes, the latest first."""
    with open_named_agent_store() as store:
        notes = store.notes.search(of=author, limit=limit)
    _print_notes(notes)


def note_share(reader: Agent) -> None:
    """Permit another agent to read the notes. The permission is recorded."""
    with open_agent_store() as (store, _):
        head = store.notes.share(reader)
    print_answer(head.as_json(), f"{head.id}: {one_line(reader)} may read them")


def note_unshare(reader: Agent) -> None:
    """Stop sharing the notes with another agent."""
    with open_agent_store() as (store, _):
        head = store.notes.unshare(reader)
    print_answer(head.as_json(), f"{head.id}: {one_line(reader)} can no longer read them")


def _print_notes(notes: Sequence[Note]) -> None:
    rows = [
        (note.id, note.written_at, ",".join(note.tags), note.session or "", note.text)
        for note in notes
    ]
    columns = ("id", "written", "tags", "session", "text")
    print_list(as_json(notes), columns, rows, "no notes", last="text")
