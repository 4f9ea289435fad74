"""`watch` and `tail`: changes as they come, and the end of a conversation as it grows.

What must stay true: a line is written as soon as its change is known, and the one after it only when the first has been
taken; both end at once, whatever they wait for; a text that stands in a file can't command the terminal.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import orjson
import typer

from capsule.errors import InvalidDocument, NotFound, Refused, StorageFailed
from capsule_cli.completion import complete_id
from capsule_cli.shared.asked import asked
from capsule_cli.shared.opening import conversation, store_of
from capsule_cli.shared.options import Id, argument, flag, option, refuse
from capsule_cli.shared.output import answer, counted, in_terminal, one_line, out, out_json, out_rows, say
from capsule_cli.signals import end_at_once

if TYPE_CHECKING:
    from capsule import Store
    from capsule.engines.changes import Change
    from capsule_cli.commands.git.sync import Waiting

commands = typer.Typer()

#: Bytes of JSON that are put into a command's environment at most; Linux takes 128 KiB a variable.
ENVIRONMENT = 100_000


@commands.command("watch")
def watch(
    ids: list[str] | None = argument("ID", "Watch these conversations only; none: all.", autocompletion=complete_id),
    cursor: str | None = option(
        "--cursor CURSOR",
        "Begin with what changed since: the cursor of a change, or of --print-cursor.",
    ),
    print_cursor: bool = flag("--print-cursor", "Print the present cursor, and end."),
    exec_: str | None = option(
        "--exec CMD",
        "Run this in a shell for each change, one after the other. The command finds the change as JSON in "
        "CAPSULE_CHANGE and on its standard input, and CAPSULE_ID, CAPSULE_KIND and CAPSULE_STORE.",
    ),
    autocommit: int | None = option(
        "--autocommit SECONDS",
        "Commit to git when nobody has written for this long, as `capsule git autocommit` does.",
        min=1,
    ),
) -> None:
    """Report changes as they happen, a line each, whoever makes them, until Ctrl-C (exit code 130) or SIGTERM (143).

    A line has the time, the kind, the conversation and the details; with --json it is a JSON object. Kinds: created,
    appended, edited, head, locked, unlocked, deleted, restored, damaged, repaired.
    """
    alone = cursor is None and exec_ is None and autocommit is None
    refuse(print_cursor and not alone, "it prints a cursor and ends; give it alone", "--print-cursor")
    if autocommit is None:
        end_at_once()
    else:
        from capsule_cli.commands.git.sync import committing
    with store_of() as store:
        if print_cursor:
            now = store.changes().cursor
            answer({"cursor": now}, now, line=True)
            return
        wanted = [store.resolve(id) for id in ids] if ids else None
        with nullcontext() if autocommit is None else committing(store, autocommit, tells=say) as waiting:
            for change in followed(store, cursor, wanted, waiting):
                _tell(change)
                if exec_ is not None:
                    _run(exec_, change, store.root)


def followed(
    store: Store, since: str | None, ids: list[str] | None, waiting: Waiting | None = None
) -> Iterator[Change]:
    """The changes as they come, waited for with `waiting` where that is given."""
    while True:
        found = waiting(since, ids) if waiting else store.wait_for_changes(since, ids=ids)
        yield from found.changes
        since = found.cursor


def _tell(change: Change) -> None:
    if asked.json:
        out_json(change.as_json(), line=True)
    elif in_terminal():
        at = f"{change.at[:10]} {change.at[11:19]}Z"
        out(one_line(f"{at}  {change.kind:<8}  {change.id}  {_details(change)}".rstrip()))
    else:
        out_rows([(change.at, change.kind, change.id, _details(change))])


def _details(change: Change) -> str:
    """What of the conversation changed, in words."""
    from capsule.locks.policy import describe

    said = []
    if change.kind in ("created", "appended", "restored"):
        said.append(counted(len(change.messages) or change.count, "message"))
    elif change.kind == "edited":
        said += [f"{counted(len(change.messages), 'message')} changed"] if change.messages else []
        said += [f"{counted(len(change.removed), 'message')} taken out"] if change.removed else []
    elif change.kind == "head":
        said.append(", ".join(change.fields))
    elif change.lock is not None:
        said.append(f"by {describe(change.lock)}" if change.kind == "locked" else f"was {describe(change.lock)}")
    elif change.damaged:
        said.append(change.damaged)
    if change.source == "outside" and change.kind not in ("damaged", "deleted"):
        said.append("by hand")
    return ", ".join(said)


def _run(command: str, change: Change, root: str) -> None:
    """Run a person's command for a change; that it fails is said, and is no reason to miss the next change."""
    told = orjson.dumps(change.as_json())
    # A variable that is too long would keep the command from being run at all.
    short = told if len(told) <= ENVIRONMENT else orjson.dumps(change.as_json() | {"messages": [], "removed": []})
    variables = {
        "CAPSULE_CHANGE": short.decode(),
        "CAPSULE_ID": change.id,
        "CAPSULE_KIND": change.kind,
        "CAPSULE_STORE": root,
    }
    try:
        done = subprocess.run(command, shell=True, input=told + b"\n", env={**os.environ, **variables}, check=False)
    except OSError as error:
        say(f"--exec: {one_line(command)} could not be run: {error.strerror}")
        return
    if done.returncode:
        how = f"exit code {done.returncode}" if done.returncode > 0 else f"signal {-done.returncode}"
        say(f"--exec: {one_line(command)} failed for {change.kind} {change.id}: {how}")


@commands.command("tail")
def tail(
    id: Id,
    last: int = option("--last -n N", "Begin with N messages.", 10, min=0),
    follow: bool = flag("--follow -f", "Go on with what any process appends or edits, until it is deleted."),
) -> None:
    """Print the last messages of a conversation, and follow it with -f. With --json: a JSON object a line.

    An object has `kind`, and mostly `at` (the place in the history) and `message`. Kinds: message (to begin
    with), appended, edited, removed (`ids`), damaged (`damaged`), repaired, deleted.
    """
    if follow:
        end_at_once()
    with conversation(id) as (store, id):
        follower = _Follower(store, id)
        if not follow:
            follower.begin(last)
            return
        since = store.changes().cursor
        try:
            follower.begin(last)
        except InvalidDocument as error:
            follower.damaged(error.message)
        for change in followed(store, since, [id], None):
            if not follower.heard(change):
                return


class _Follower:
    """Shows a conversation's end as it changes."""

    def __init__(self, store: Store, id: str) -> None:
        self._store = store
        self._id = id
        self._first = True
        #: What the beginning showed, as the changes after its cursor may tell of it too.
        self._shown: set[str] = set()
        #: What is still to be shown, and as what: the file could not be read when it was told of.
        self._due: dict[str, str] = {}
        self._to_begin: int | None = None

    def begin(self, last: int) -> None:
        """Show the last messages. Raises InvalidDocument; they are shown then when the file is repaired."""
        self._to_begin = last
        first, entries = self._store.tail_entries(self._id, last)
        self._to_begin = None
        for at, entry in enumerate(entries, first):
            self._shown.add(str(entry.get("id")))
            self._show("message", at, entry)

    def heard(self, change: Change) -> bool:
        """Show what a change brought; False when the conversation is gone."""
        if change.kind == "deleted":
            self._note("deleted", "was deleted")
            return False
        if change.kind == "damaged":
            self.damaged(change.damaged)
        elif change.kind == "repaired":
            self._note("repaired", "is repaired")
        if change.removed:
            self._note("removed", f"{counted(len(change.removed), 'message')} taken out", ids=list(change.removed))
        kind = "edited" if change.kind == "edited" else "appended"
        for message in change.messages:
            if kind == "edited":
                self._due.setdefault(message, kind)
            elif message not in self._shown:
                self._due[message] = kind
        self._catch_up()
        return True

    def damaged(self, what: str) -> None:
        """Say that the file doesn't parse."""
        self._note("damaged", f"can't be read until it is repaired:\n{what}", damaged=what)

    def _catch_up(self) -> None:
        """Show what is due, as far as the file can be read."""
        try:
            if self._to_begin is not None:
                self.begin(self._to_begin)
                self._due = {id: kind for id, kind in self._due.items() if id not in self._shown}
            if not self._due:
                return
            found = self._entries()
        except (InvalidDocument, NotFound, Refused, StorageFailed):
            return  # A change that tells of it is on its way.
        for at, entry in found:
            self._show(self._due[str(entry.get("id"))], at, entry)
        self._due.clear()  # What wasn't found is gone again.

    def _entries(self) -> list[tuple[int, dict[str, Any]]]:
        """The messages that are due, with their places. Costs reading the file from the first of them on."""
        many = len(self._due) + 16
        while True:
            first, entries = self._store.tail_entries(self._id, many)
            found = [(at, entry) for at, entry in enumerate(entries, first) if str(entry.get("id")) in self._due]
            if first == 0 or len(found) >= len(self._due):
                return found
            many *= 8

    def _show(self, kind: str, at: int, entry: Mapping[str, Any]) -> None:
        from capsule_cli.commands.show import drawn

        if asked.json:
            out_json({"kind": kind, "at": at, "message": entry}, line=True)
            return
        if kind == "edited":
            entry = {**entry, "editedAt": entry.get("editedAt") or True}
        out(drawn(at, entry) if self._first else f"\n{drawn(at, entry)}")
        self._first = False

    def _note(self, kind: str, words: str, **more: Any) -> None:
        if asked.json:
            out_json({"kind": kind, **more}, line=True)
        else:
            say(f"conversation {self._id}: {words}" if kind == "removed" else f"conversation {self._id} {words}")
