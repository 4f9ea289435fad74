"""`watch`, and `show --follow`: print the changes of conversations as they happen, and the new
messages of one conversation.

What must stay true: a line is written as soon as its change is known, and the next change is read
only after that. Both commands end at once at a signal, whatever they wait for. Stored text can't
command the terminal.
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
    is a JSON object with `kind`, `id`, `topics`, `cursor` and more; the last line has only the
    cursor. With -f each event has its own.
    """
    refuse_if(
        print_cursor and (after or exec_ or events),
        "it prints a cursor and ends; give it alone",
        "--print-cursor",
    )
    refuse_if(
        events and (ids or exec_),
        "events are of the whole store: give neither ids nor --exec",
        "--events",
    )
    refuse_if(
        (kinds or follow) and not events,
        "--kinds and --follow are for --events; watch always continues",
    )
    if events:
        _print_events(after, kinds, follow=follow)
        return
    end_at_once()
    with open_core_store() as store:
        if print_cursor:
            cursor = store.changes().cursor
            print_answer({"cursor": cursor}, cursor, line=True)
            return
        watched_ids = [store.resolve(id) for id in ids] if ids else None
        for change in endless_changes(store, after, watched_ids):
            _print_change(change, change.as_json())
            if exec_ is not None:
                _run_for_change(store, change, exec_)


def _run_for_change(store: CoreStore, change: Change, command: str) -> None:
    """Run the command of `--exec` for a change."""
    variables = {
        "CAPSULE_ID": change.id,
        "CAPSULE_KIND": change.kind,
        "CAPSULE_STORE": store.root,
    }
    # In place of the long lists, if the JSON is too long for a variable.
    empty_lists: dict[str, Any] = {"messages": [], "removed": []}
    run_command_for(change.as_json(), command, "CAPSULE_CHANGE", short=empty_lists, **variables)


def _print_events(after: str | None, topic_names: str, *, follow: bool) -> None:
    """Print the events after a cursor, and the cursor after them. With `follow`, go on for ever.

    Args:
        after: The cursor. None: now.
        topic_names: The topics of the events to print, with commas between them. Empty: all.
        follow: Whether to wait for new events.
    """
    from capsule.watch.events import check_topics, event_json, topics_of

    topics = check_topics(filter(None, topic_names.split(",")))
    if follow:
        end_at_once()
    with open_core_store() as store:
        batch = store.changes(after)
        while batch.changes or follow:
            for change in batch.changes:
                if topics.intersection(topics_of(change)):
                    _print_change(change, event_json(change))
            if follow:
                batch = store.wait_for_changes(batch.cursor)
            else:
                batch = store.changes(batch.cursor)
        print_answer({"cursor": batch.cursor}, batch.cursor, line=True)


def endless_changes(store: CoreStore, after: str | None, ids: list[str] | None) -> Iterator[Change]:
    """Yield the changes after a cursor as they happen.

    Args:
        store: The store.
        after: The cursor. None: from now on.
        ids: The conversations to watch. None: all.
    """
    cursor = after
    while True:
        batch = store.wait_for_changes(cursor, ids=ids)
        yield from batch.changes
        cursor = batch.cursor


def _print_change(change: Change, value: dict[str, Any]) -> None:
    """Print a change in a line. `value` is the line with --json."""
    if global_options.json:
        print_json(value, line=True)
    elif in_terminal():
        time = short_time(change.at, "seconds")
        text = f"{time}  {change.kind:<8}  {change.id}  {_details(change)}"
        print_text(one_line(text.rstrip()))
    else:
        print_rows([(change.at, change.kind, change.id, _details(change))])


def _details(change: Change) -> str:
    """Return the details of a change in words."""
    from capsule.rules.locking import describe

    details = []
    if change.kind in ("created", "appended", "restored"):
        # `count` is the number in the whole conversation. A new one without ids has only that.
        details.append(with_count(len(change.messages) or change.count, "message"))
    elif change.kind == "edited":
        if change.messages:
            details.append(f"{with_count(len(change.messages), 'message')} changed")
        if change.removed:
            details.append(f"{with_count(len(change.removed), 'message')} taken out")
    elif change.kind == "head":
        details.append(", ".join(change.fields))
    elif change.lock is not None:
        preposition = "by" if change.kind == "locked" else "was"
        details.append(f"{preposition} {describe(change.lock)}")
    elif change.damaged:
        details.append(change.damaged)
    if change.source == "outside" and change.kind not in ("damaged", "deleted"):
        details.append("by hand")
    return ", ".join(details)


def follow_conversation(id: str, last: int) -> None:
    """Print the last messages of a conversation, and then its changes until it is deleted.

    Args:
        id: The conversation, as the user named it.
        last: The number of messages to begin with.
    """
    end_at_once()
    with open_conversation(id) as (store, conversation_id):
        # The cursor is taken first, so that no message is missed. A message that is written in the
        # meantime is mostly among the last messages. Then `_follow` does not print it again.
        cursor = store.changes().cursor
        printer = _MessagePrinter()
        first, entries = store.tail_entries(conversation_id, last)
        for position, entry in enumerate(entries, first):
            printer.print("message", position, entry)
        _follow(store, conversation_id, cursor, printer)


def _follow(store: CoreStore, id: str, after: str, printer: _MessagePrinter) -> None:
    """Print the changes of a conversation after a cursor, until it is deleted.

    Messages that can't be read now, because the file is damaged, are printed after a later change.
    """
    # The messages to print: the kind of change by id. A message that was not printed yet remains
    # "appended" when it is edited.
    pending: dict[str, str] = {}
    for change in endless_changes(store, after, [id]):
        if change.kind == "deleted":
            _print_note(id, "deleted", "was deleted")
            return
        if change.kind == "damaged":
            text = f"can't be read until it is repaired:\n{change.damaged}"
            _print_note(id, "damaged", text, damaged=change.damaged)
        elif change.kind == "repaired":
            _print_note(id, "repaired", "is repaired")
        if change.removed:
            count = with_count(len(change.removed), "message")
            _print_note(id, "removed", f"has lost {count}", ids=list(change.removed))
        if change.kind == "edited":
            pending = dict.fromkeys(change.messages, "edited") | pending
        else:
            new_ids = [message for message in change.messages if message not in printer.ids]
            pending |= dict.fromkeys(new_ids, "appended")
        try:
            for position, entry in _entries(store, id, pending):
                printer.print(pending[str(entry.get("id"))], position, entry)
            pending.clear()
        except (InvalidDocument, NotFound, Refused, StorageFailed):
            pass  # They remain pending until the next change.


def _entries(store: CoreStore, id: str, ids: Collection[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return the existing messages of these ids, with their positions.

    Cost: reads the file from the first of them to the end, or all of it if one does not exist.
    """
    limit = len(ids) + 16
    while ids:
        first, entries = store.tail_entries(id, limit)
        matches = [
            (position, entry)
            for position, entry in enumerate(entries, first)
            if str(entry.get("id")) in ids
        ]
        if first == 0 or len(matches) >= len(ids):
            return matches
        limit *= 8
    return []


class _MessagePrinter:
    """Prints messages with an empty line between two.

    Attributes:
        ids: The ids of the messages that were printed.
    """

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def print(self, kind: str, position: int, entry: dict[str, Any]) -> None:
        """Print a message. `kind` is message, appended or edited."""
        from capsule_cli.commands.reading.drawing import draw_message

        if global_options.json:
            print_json({"kind": kind, "at": position, "message": entry}, line=True)
        else:
            default = {"editedAt": True} if kind == "edited" else {}
            separator = "\n" if self.ids else ""
            print_text(separator + draw_message(position, default | entry))
        self.ids.add(str(entry.get("id")))


def _print_note(id: str, kind: str, text: str, **fields: Any) -> None:
    """Print a change that has no message. `text` is for a person, `fields` are for --json."""
    if global_options.json:
        print_json({"kind": kind, **fields}, line=True)
    else:
        print_notice(f"conversation {id} {text}")
