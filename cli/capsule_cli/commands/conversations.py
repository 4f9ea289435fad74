"""`new`, `list` and `set`: start a conversation, list them, and change a title, tags and place."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from capsule.engines.queries import Filter, Order
from capsule.errors import NotFound, Refused
from capsule.ids import is_id
from capsule_cli.completion import complete_agent, complete_id, complete_tag
from capsule_cli.shared.inputs import ensure_confirmed
from capsule_cli.shared.options import (
    Id,
    Limit,
    Mode,
    Tags,
    Type,
    Yes,
    argument,
    flag,
    option,
    parse_time,
    refuse_if,
)
from capsule_cli.shared.output import in_terminal, one_line, print_answer, print_list, progress
from capsule_cli.shared.pager import paged
from capsule_cli.shared.stores import open_conversation, open_core_store

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.objects.summaries import Standing
    from capsule.store.store import CoreStore


def new(
    title: str | None = argument(
        "TITLE", "The title. Without it, the first user message gives one."
    ),
    mode: Mode = option("--mode", "Set the mode of the conversation.", "api"),
    tag: list[str] | None = option(
        "--tag TAG", "Add this tag. Repeatable.", autocompletion=complete_tag
    ),
    message: str | None = option("--message -m TEXT", "Add a first user message."),
    type: Type = option(
        "--type",
        "Choose who may write: a chat has one writer at a time, the other types have many.",
        "chat",
    ),
    id: str | None = option("--id ID", "Give it this id. Without it, it gets a new UUID."),
) -> None:
    """Start a conversation and print its id."""
    refuse_if(message is not None and not message.strip(), "the message is empty", "--message")
    messages = [] if message is None else [{"role": "user", "content": message}]
    with open_core_store() as store:
        head = store.create(
            title=title, mode=mode, type=type, tags=tag or (), id=id, messages=messages
        )
    made = f"Made {one_line(head.title)!r} ({head.type})\n" if in_terminal() else ""
    print_answer(head.as_json(), made + head.id)


def list_(
    tag: Tags = None,
    mode: Mode | None = option("--mode", "List conversations of this mode."),
    locked: bool = flag("--locked", "List locked conversations."),
    archived: bool = flag("--archived", "List archived conversations too."),
    since: str | None = option(
        "--since WHEN",
        "List conversations that changed since then: a day (UTC), a time, yesterday, or 2h, 3d "
        "ago.",
    ),
    agent: str | None = option(
        "--agent AGENT",
        "List conversations that this agent takes part in.",
        autocompletion=complete_agent,
    ),
    project: str | None = option(
        "--project DIR",
        "List conversations of this project: of sessions in the folder, and of its agents.",
    ),
    source: str | None = option(
        "--source PROGRAM",
        "List conversations imported from this program (claude-code), or written here (here).",
    ),
    sort: Order = option(
        "--sort",
        "Sort by time, the latest first, or by title. Pinned conversations always come first.",
        "updated",
    ),
    limit: Limit = None,
    summaries_of: str | None = option(
        "--summaries-of ID",
        "List the summaries of this conversation, and whether it has newer messages.",
        autocompletion=complete_id,
    ),
) -> None:
    """List the conversations: pinned ones first, then the latest, and damaged files at the end."""
    after = parse_time(since, "--since") if since else ""
    with open_core_store() as store, progress("indexing") as bar:
        of = None if summaries_of is None else _source(store, summaries_of)
        in_archive = None if archived else False
        folder = None if project is None else os.path.realpath(project)
        shown = Filter(
            tuple(tag or ()),
            mode=mode,
            archived=in_archive,
            locked=locked or None,
            since=after,
            summaries_of=of,
            agent=agent,
            project=folder,
            source=source,
        )
        page = store.list(shown, sort, limit=limit, progress=bar)
        moved = (
            {}
            if of is None
            else {summary.head.id: summary.standing for summary in store.summaries.list(of)}
        )
        ids = store.ids() if in_terminal() else []
    columns, row = _PERSONS if in_terminal() else _PROGRAMS
    value = [
        head.as_json()
        | ({} if head.damaged else {"messages": page.messages[head.id]})
        | ({"model": page.models[head.id]} if head.id in page.models else {})
        | ({"source": moved[head.id].as_json()} if head.id in moved else {})
        for head in page.heads
    ]
    empty = (
        "no conversation is like that"
        if ids
        else "there is no conversation yet; start one with: capsule new"
    )
    with paged():
        rows = [row(head, page.messages[head.id], _state(head, moved)) for head in page.heads]
        # Short ids are unique in the whole store, and not only among those in the list.
        print_list(value, columns, rows, empty, ids=ids)


def _source(store: CoreStore, id: str) -> str:
    """The id of a conversation that has summaries; a deleted one needs its whole id."""
    try:
        return store.resolve(id)
    except NotFound:
        if is_id(id) and store.list(Filter(archived=None, summaries_of=id), limit=1).total:
            return id
        raise


def _for_program(head: Head, count: int, state: str) -> tuple[str, ...]:
    if head.damaged:
        return (head.id, "", f"damaged: {head.damaged}", "", "", "damaged")
    return (head.id, head.updated_at, head.title, head.mode, ",".join(head.tags), state)


def _for_person(head: Head, count: int, state: str) -> tuple[str, ...]:
    if head.damaged:
        return (head.id, "", "", "damaged", "", head.damaged)
    state = ",".join(
        part for part in (state, "" if head.mode == "api" else head.mode, head.source) if part
    )
    return (head.id, head.updated_at, str(count), state, ",".join(head.tags), head.title)


#: The columns of `list`, and what makes a row of them.
_PROGRAMS = ("id", "updated", "title", "mode", "tags", "state"), _for_program
_PERSONS = ("id", "updated", "n", "state", "tags", "title"), _for_person


def _state(head: Head, standings: Mapping[str, Standing]) -> str:
    flags = (
        ("pinned", head.pinned),
        ("archived", head.archived),
        ("locked", head.lock is not None),
    )
    standing = standings.get(head.id)
    return ",".join([*(name for name, on in flags if on), *([standing.state] if standing else [])])


def set_(
    id: Id,
    title: str | None = option("--title TITLE", "Give it this title."),
    suggest: bool = flag(
        "--suggest",
        "Keep a title that a person gave, unless the person agrees to the new one (when "
        "asked, or by --yes). Without --title the first message gives one.",
    ),
    add: list[str] | None = option(
        "--add-tag TAG", "Add this tag. Repeatable.", autocompletion=complete_tag
    ),
    remove: list[str] | None = option(
        "--remove-tag TAG", "Remove this tag. Repeatable.", autocompletion=complete_tag
    ),
    pin: bool | None = option("--pin/--no-pin", "Pin it to the top of the list, or unpin it."),
    archive: bool | None = option(
        "--archive/--no-archive", "Hide it from the list, or show it again."
    ),
    yes: Yes = False,
) -> None:
    """Change the title, the tags, the pin or the archive flag of a conversation."""
    with open_conversation(id) as (store, id):
        if suggest:
            head, title = _suggested(store, id, title, yes=yes), None
        if not suggest or add or remove or not pin is archive is None:
            head = store.update(
                id,
                title=title,
                tagged=add or (),
                untagged=remove or (),
                pinned=pin,
                archived=archive,
            )
    flags = [name for name, on in (("pinned", head.pinned), ("archived", head.archived)) if on]
    said = [repr(one_line(head.title)), *(f"#{one_line(tag)}" for tag in head.tags), *flags]
    print_answer(head.as_json(), f"{head.id}: {' · '.join(said)}")


def _suggested(store: CoreStore, id: str, title: str | None, *, yes: bool) -> Head:
    """The head after a title was suggested.

    Raises:
        Refused: A person gave the title that stands there, and nobody can be asked.
        Stopped: They want to keep it.
    """
    title = store.titles.by_rule(id) if title is None else title
    refuse_if(not title, "no user message says what it is about; give a title", "TITLE")
    head = store.titles.suggest(id, title)
    while head is None:
        there = store.head(id)
        if there.title == title.strip(" \t"):
            return there
        if not yes and not sys.stdin.isatty():
            reason = (
                f"{id}: its title {there.title!r} was given by a person, and stays unless "
                "they agree; "
            )
            raise Refused(reason + "say so with --yes", path=there.path)
        ensure_confirmed(f"Replace {one_line(there.title)!r} by {one_line(title)!r}?", yes=yes)
        head = store.titles.suggest(
            id, title, instead_of=there.title
        )  # None: it was renamed while the person thought.
    return head
