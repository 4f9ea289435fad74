"""`watch`, and `show --follow`: changes as they come or came, and the end of a conversation as it
grows.

What must stay true: a line is written as soon as its change is known, and the one after it only
when the first has been taken; both end at once, whatever they wait for; a text that stands in a
file can't command the terminal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidDocument, NotFound, Refused, StorageFailed
from capsule_cli.completion import complete_id
from capsule_cli.shared.exec import run_command_for
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import argument, flag, option, refuse_if
from capsule_cli.shared.output import (
    in_terminal,
    one_line,
    print_answer,
    print_json,
    print_notice,
    print_rows,
    print_text,
    short_time,
    with_count,
)
from capsule_cli.shared.stores import open_conversation, open_core_store
from capsule_cli.signals import end_at_once

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.store.store import CoreStore


def watch(
    ids: list[str] | None = argument(
        "ID",
        "Watch only these conversations. Without any: all of them.",
        autocompletion=complete_id,
    ),
    after: str | None = option(
        "--after CURSOR",
        "Begin with the changes after this cursor, from a change or from --print-cursor.",
    ),
    print_cursor: bool = flag("--print-cursor", "Print the current cursor and exit."),
    exec_: str | None = option(
        "--exec CMD",
        "Run this in a shell for each change, one after the other. The command finds the change "
        "as JSON in "
        "CAPSULE_CHANGE and on its standard input, and CAPSULE_ID, CAPSULE_KIND and CAPSULE_STORE.",
    ),
    events: bool = flag(
        "--events", "Print the events after the cursor, then the cursor to continue from, and end."
    ),
    kinds: str = option(
        "--kinds LIST",
        "With --events: print only these, with commas between: messages, channels, groups, "
        "directs, conversations",
        "",
    ),
    follow: bool = flag("--follow -f", "With --events: continue with new events until Ctrl-C."),
) -> None:
    """Report the changes of all programs as they happen, a line each, until Ctrl-C (exit code 130)
    or SIGTERM (143).

    A line has the time, the kind, the conversation and the details; with --json it is a JSON
    object. Kinds: created, appended, edited, head, locked, unlocked, deleted, restored, damaged,
    repaired.

    With --events and --as it reports only conversations that the agent may read. With --json a line
    is a JSON object with `kind`, `id`, `topics` and `cursor`; the last line has only the cursor.
    With -f each event has its own.
    """
    refuse_if(
        print_cursor and (after or exec_ or events),
        "it prints a cursor and ends; give it alone",
        "--print-cursor",
    )
    refuse_if(
        events and (ids or exec_),
        "events are those of the whole store: give neither ids nor --exec",
        "--events",
    )
    refuse_if(
        (kinds or follow) and not events,
        "--kinds and --follow are for --events; watch always goes on",
    )
    if events:
        _events(after, kinds, follow=follow)
        return
    end_at_once()
    with open_core_store() as store:
        if print_cursor:
            now = store.changes().cursor
            print_answer({"cursor": now}, now, line=True)
            return
        for change in followed(store, after, [store.resolve(id) for id in ids] if ids else None):
            _tell(change, change.as_json())
            if exec_ is not None:
                variables = {
                    "CAPSULE_ID": change.id,
                    "CAPSULE_KIND": change.kind,
                    "CAPSULE_STORE": store.root,
                }
                short: dict[str, Any] = {"messages": [], "removed": []}
                run_command_for(change.as_json(), exec_, "CAPSULE_CHANGE", short=short, **variables)


def _events(since: str | None, kinds: str, *, follow: bool) -> None:
    from capsule.watch.events import as_json, check_topics, topics_of

    wanted = check_topics(filter(None, kinds.split(",")))
    if follow:
        end_at_once()
    with open_core_store() as store:
        news = store.changes(since)
        while news.changes or follow:
            for change in news.changes:
                if wanted.intersection(topics_of(change)):
                    _tell(change, as_json(change))
            news = store.wait_for_changes(news.cursor) if follow else store.changes(news.cursor)
        print_answer({"cursor": news.cursor}, news.cursor, line=True)


def followed(store: CoreStore, since: str | None, ids: list[str] | None) -> Iterator[Change]:
    """The changes after a cursor (None: from now on) as they come, in some conversations (None: in
    all).
    """
    while True:
        news = store.wait_for_changes(since, ids=ids)
        yield from news.changes
        since = news.cursor


def _tell(change: Change, shown: dict[str, Any]) -> None:
    if global_options.json:
        print_json(shown, line=True)
    elif in_terminal():
        at = short_time(change.at, "seconds")
        print_text(one_line(f"{at}  {change.kind:<8}  {change.id}  {_details(change)}".rstrip()))
    else:
        print_rows([(change.at, change.kind, change.id, _details(change))])


def _details(change: Change) -> str:
    """What of the conversation changed, in words."""
    from capsule.rules.locking import describe

    said = []
    if change.kind in ("created", "appended", "restored"):
        said.append(with_count(len(change.messages) or change.count, "message"))
    elif change.kind == "edited":
        said += (
            [f"{with_count(len(change.messages), 'message')} changed"] if change.messages else []
        )
        said += (
            [f"{with_count(len(change.removed), 'message')} taken out"] if change.removed else []
        )
    elif change.kind == "head":
        said.append(", ".join(change.fields))
    elif change.lock is not None:
        said.append(
            f"by {describe(change.lock)}"
            if change.kind == "locked"
            else f"was {describe(change.lock)}"
        )
    elif change.damaged:
        said.append(change.damaged)
    if change.source == "outside" and change.kind not in ("damaged", "deleted"):
        said.append("by hand")
    return ", ".join(said)


def follow(id: str, last: int) -> None:
    """Print the last messages of a conversation, and what comes, until it is deleted."""
    end_at_once()
    with open_conversation(id) as (store, id):
        # The cursor comes first: what is written meanwhile is in the beginning, and is not shown
        # once more.
        since = store.changes().cursor
        shown = _MessagePrinter()
        first, entries = store.tail_entries(id, last)
        for at, entry in enumerate(entries, first):
            shown.message("message", at, entry)
        _follow(store, id, since, shown)


def _follow(store: CoreStore, id: str, since: str, shown: _MessagePrinter) -> None:
    """Show what changes in a conversation, until it is deleted."""
    due: dict[str, str] = {}  # What is to be shown, and as what, as soon as the file can be read.
    for change in followed(store, since, [id]):
        if change.kind == "deleted":
            _note(id, "deleted", "was deleted")
            return
        if change.kind == "damaged":
            words = f"can't be read until it is repaired:\n{change.damaged}"
            _note(id, "damaged", words, damaged=change.damaged)
        elif change.kind == "repaired":
            _note(id, "repaired", "is repaired")
        if change.removed:
            gone = with_count(len(change.removed), "message")
            _note(id, "removed", f"has lost {gone}", ids=list(change.removed))
        if change.kind == "edited":
            due = dict.fromkeys(change.messages, "edited") | due
        else:
            due |= {message: "appended" for message in change.messages if message not in shown.ids}
        try:
            for at, entry in _entries(store, id, due):
                shown.message(due[str(entry.get("id"))], at, entry)
            due.clear()
        except (InvalidDocument, NotFound, Refused, StorageFailed):
            pass  # The change that reports it will come.


def _entries(
    store: CoreStore, id: str, wanted: Collection[str]
) -> list[tuple[int, dict[str, Any]]]:
    """The messages of these ids that are there, with their places. Costs reading from the first of
    them on.
    """
    many = len(wanted) + 16
    while wanted:
        first, entries = store.tail_entries(id, many)
        places = [
            (at, entry) for at, entry in enumerate(entries, first) if str(entry.get("id")) in wanted
        ]
        if first == 0 or len(places) >= len(wanted):
            return places
        many *= 8
    return []


class _MessagePrinter:
    """Writes messages, with an empty line between two, and knows which it wrote."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def message(self, kind: str, at: int, entry: dict[str, Any]) -> None:
        """Write a message, or how it is now."""
        from capsule_cli.commands.reading.drawing import drawn

        if global_options.json:
            print_json({"kind": kind, "at": at, "message": entry}, line=True)
        else:
            edited = {"editedAt": True} if kind == "edited" else {}
            print_text(("\n" if self.ids else "") + drawn(at, edited | entry))
        self.ids.add(str(entry.get("id")))


def _note(id: str, kind: str, words: str, **more: Any) -> None:
    if global_options.json:
        print_json({"kind": kind, **more}, line=True)
    else:
        print_notice(f"conversation {id} {words}")
