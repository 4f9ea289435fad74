"""`note`: what an agent writes for itself, and who may read it."""

from __future__ import annotations

from typing import Annotated

from capsule_cli.completion import complete_agent
from capsule_cli.public import acting, named
from capsule_cli.shared.inputs import message_text
from capsule_cli.shared.options import Agent, File, argument, option
from capsule_cli.shared.output import answer
from capsule_cli.shared.passing import Rows, passing

does = passing(acting)

Tags = Annotated[list[str] | None, option("--tag TAG", "Name a tag. Repeatable.", ...)]
Session = Annotated[str | None, option("--session ID", "The session in which it is written.", ...)]
Of = Annotated[
    str | None,
    option("--of AGENT", "Look at the notes of this agent.", ..., autocompletion=complete_agent),
]
Limit = Annotated[int, option("--limit -n N", "Print at most N notes.", ..., min=1)], 20
_ANY = "Find notes with one of the tags; else with all of them."
_SHOWN = Rows(
    {"id": "id", "written": "written_at", "tags": "tags", "session": "session", "text": "text"},
    "no notes",
)


def write(
    text: str | None = argument(
        "TEXT", "The text. Without it: the text of --file, or of standard input."
    ),
    tag: Tags = None,
    session: Session = None,
    file: File = None,
) -> None:
    """Write a note and print its id."""
    content = message_text(text, file)
    with acting() as (store, agent):
        note = store.notes.write(content, agent=agent, tags=tag or (), session=session)
    answer(note.as_json(), note.id)


search = does("Search notes by words, tags and session, the best first.")(
    "notes.search",
    _SHOWN,
    opens=named,
    text=(Annotated[str, argument("WORDS", "Words; without them, every note is found.", ...)], ""),
    tags=(Tags, []),
    any_tag=Annotated[bool, option("--any", _ANY, ...)],
    session=Session,
    of=Of,
    limit=Limit,
)
list_ = does("List notes, the latest first.")(
    "notes.search", _SHOWN, opens=named, of=Of, limit=Limit
)
share = does("Permit another agent to read the notes. The permission is recorded.")(
    "notes.share", "{0.id}: {other} may read them", other=Agent
)
unshare = does("Stop sharing the notes with another agent.")(
    "notes.unshare", "{0.id}: {other} can no longer read them", other=Agent
)
