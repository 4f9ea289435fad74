"""`new`, `list` and `set`: start a conversation, list conversations, and change a title, tags and
flags.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capsule.engines.queries import Filter, Order
from capsule.errors import NotFound, Refused
from capsule.ids import is_id
from capsule_cli.shared.inputs import ensure_confirmed
from capsule_cli.shared.options import (
    Id,
    Limit,
    Mode,
    Tags,
    Type,
    Yes,
    argument,
    complete_agent,
    complete_id,
    complete_tag,
    flag,
    option,
    parse_time,
    refuse_if,
)
from capsule_cli.shared.output import in_terminal, one_line, print_answer, print_list, progress
from capsule_cli.shared.programs import paged
from capsule_cli.shared.stores import open_conversation, open_core_store

if TYPE_CHECKING:
    from capsule.engines.queries import Listed
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
    text = head.id
    if in_terminal():
        text = f"Made {one_line(head.title)!r} ({head.type})\n{text}"
    print_answer(head.as_json(), text)


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
    changed_since = parse_time(since, "--since") if since else ""
    with open_core_store() as store, progress("indexing") as report:
        summarized_id = None
        if summaries_of is not None:
            summarized_id = _summarized_conversation(store, summaries_of)
        conditions = Filter(
            tuple(tag or ()),
            mode=mode,
            archived=None if archived else False,  # None: no condition.
            locked=locked or None,
            since=changed_since,
            summaries_of=summarized_id,
            agent=agent,
            project=None if project is None else os.path.realpath(project),
            source=source,
        )
        page = store.list(conditions, sort, limit=limit, progress=report)
        standings: dict[str, Standing] = {}
        if summarized_id is not None:
            for summary in store.summaries.list(summarized_id):
                standings[summary.head.id] = summary.standing
        # Short ids are unique in the whole store, and not only among those in the list.
        ids = store.ids() if in_terminal() else []
    columns, make_row = _TABLE_FOR_PERSON if in_terminal() else _TABLE_FOR_PROGRAM
    value = []
    rows = []
    for head in page.heads:
        value.append(_list_item(head, page, standings))
        rows.append(make_row(head, page.messages[head.id], _state(head, standings)))
    empty = "there is no conversation yet; start one with: capsule new"
    if ids:
        empty = "no conversation fits"
    with paged():
        print_list(value, columns, rows, empty, ids=ids)


def _list_item(head: Head, page: Listed, standings: Mapping[str, Standing]) -> dict[str, Any]:
    """Return a conversation of the list as JSON."""
    item = head.as_json()
    if not head.damaged:
        item["messages"] = page.messages[head.id]
    if head.id in page.models:
        item["model"] = page.models[head.id]
    if head.id in standings:
        # The state of the summary's source. A head has no JSON field of this name.
        item["source"] = standings[head.id].as_json()
    return item


def _summarized_conversation(store: CoreStore, id: str) -> str:
    """Return the id of a conversation that has summaries. A deleted one must be named by its
    complete id.
    """
    try:
        return store.resolve(id)
    except NotFound:
        if is_id(id) and store.list(Filter(archived=None, summaries_of=id), limit=1).total:
            return id
        raise


def _row_for_program(head: Head, count: int, state: str) -> tuple[str, ...]:
    if head.damaged:
        return (head.id, "", f"damaged: {head.damaged}", "", "", "damaged")
    return (head.id, head.updated_at, head.title, head.mode, ",".join(head.tags), state)


def _row_for_person(head: Head, count: int, state: str) -> tuple[str, ...]:
    if head.damaged:
        return (head.id, "", "", "damaged", "", head.damaged)
    mode = "" if head.mode == "api" else head.mode
    states = ",".join(filter(None, (state, mode, head.source)))
    return (head.id, head.updated_at, str(count), states, ",".join(head.tags), head.title)


#: The columns of `list`, and the function that makes a row of them.
_TABLE_FOR_PROGRAM = ("id", "updated", "title", "mode", "tags", "state"), _row_for_program
_TABLE_FOR_PERSON = ("id", "updated", "n", "state", "tags", "title"), _row_for_person


def _state(head: Head, standings: Mapping[str, Standing]) -> str:
    """Return the flags of a conversation in one text, and for a summary the state of its source."""
    states = []
    if head.pinned:
        states.append("pinned")
    if head.archived:
        states.append("archived")
    if head.lock is not None:
        states.append("locked")
    if head.id in standings:
        states.append(standings[head.id].state)
    return ",".join(states)


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
    changes_fields = bool(add or remove or pin is not None or archive is not None)
    with open_conversation(id) as (store, conversation_id):
        new_title = title
        if suggest:
            head = _suggest_title(store, conversation_id, title, yes=yes)
            new_title = None  # It is given already.
        if changes_fields or not suggest:
            head = store.update(
                conversation_id,
                title=new_title,
                tagged=add or (),
                untagged=remove or (),
                pinned=pin,
                archived=archive,
            )
    parts = [repr(one_line(head.title)), *(f"#{one_line(tag)}" for tag in head.tags)]
    if head.pinned:
        parts.append("pinned")
    if head.archived:
        parts.append("archived")
    print_answer(head.as_json(), f"{head.id}: {' · '.join(parts)}")


def _suggest_title(store: CoreStore, id: str, title: str | None, *, yes: bool) -> Head:
    """Suggest a title, and return the head afterwards. Without a title, suggest the one
    that the first user message gives.

    Raises:
        Refused: A person gave the present title, and there is nobody to ask.
        CommandStopped: The person keeps it.
    """
    suggestion = store.titles.by_rule(id) if title is None else title
    refuse_if(
        not suggestion, "there is no user message to make a title from; give a title", "TITLE"
    )
    head = store.titles.suggest(id, suggestion)
    while head is None:
        current = store.head(id)
        if current.title == suggestion.strip(" \t"):  # As a store trims titles.
            return current
        if not yes and not sys.stdin.isatty():
            reason = (
                f"{id}: its title {current.title!r} was given by a person, and stays unless "
                "they agree; "
            )
            raise Refused(reason + "say so with --yes", path=current.path)
        ensure_confirmed(
            f"Replace {one_line(current.title)!r} by {one_line(suggestion)!r}?", yes=yes
        )
        # None if somebody renamed it while the person was asked.
        head = store.titles.suggest(id, suggestion, instead_of=current.title)
    return head
