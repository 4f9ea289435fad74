"""`branch`: the branches of a conversation; and what `delete` does to a message.

What must stay true: messages that go are counted out before they go, and how they come back is
said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.inputs import ensure_confirmed, message_text
from capsule_cli.shared.options import (
    At,
    DryRun,
    File,
    From,
    Id,
    Yes,
    argument,
    flag,
    option,
    refuse_if,
)
from capsule_cli.shared.output import CommandStopped, one_line, print_answer
from capsule_cli.shared.pager import paged
from capsule_cli.shared.stores import open_conversation, open_core_store, open_version

if TYPE_CHECKING:
    from capsule import Removal


def list_(id: Id, at: At = None) -> None:
    """Print the tree of branches, one line for each message. With --json, a list says which message
    answers which.
    """
    from capsule_cli.shared.trees import as_lines, as_objects

    with open_version(id, at) as (store, id), paged():
        history, tree, current = store.branches.tree(id)
        text = "" if global_options.json else "\n".join(as_lines(history, tree, current))
        print_answer(as_objects(tree, history, current) if global_options.json else None, text)


def switch(
    id: Id,
    message: str | None = argument(
        "MESSAGE",
        "A message of the branch: its id, @N or @last. Without it: the last active message with "
        "alternatives.",
    ),
    next_: bool = flag("--next", "Switch to the next alternative of the message."),
    previous: bool = flag("--previous", "Switch to the previous alternative."),
) -> None:
    """Make another branch the active one: the branch through a message, up to its newest answer."""
    refuse_if(next_ and previous, "give --next or --previous, not both", "--next")
    refuse_if(
        message is None and not (next_ or previous),
        "name a message, or give --next or --previous",
        "MESSAGE",
    )
    with open_conversation(id) as (store, id):
        done = store.branches.switch(id, message, step=next_ - previous)
        beside = store.branches.alternatives(id, done.message)
    number, count = beside.index + 1, len(beside.ids)
    facts = {
        "message": done.message,
        "leaf": done.leaf,
        "changed": done.changed,
        "number": number,
        "count": count,
    }
    which = f"message {done.message}" + (f", {number} of {count}" if count > 1 else "")
    print_answer(
        facts, f"{id}: {'' if done.changed else 'already '}on the branch of {which}", line=True
    )


def regenerate(
    id: Id,
    text: str | None = argument(
        "TEXT",
        "The other answer, or - for standard input. Without it and --file nothing is changed: the "
        "id of "
        "the message to answer is printed, for: append --parent.",
    ),
    message: str | None = option(
        "--which MESSAGE",
        "Add it beside this answer: its id, @N or @last. Without it, beside the last "
        "answer of the active branch.",
    ),
    from_: From = None,
    model: str | None = option("--model MODEL", "Name the model that wrote it."),
    file: File = None,
) -> None:
    """Add an alternative to an answer of an assistant, and make it the active one."""
    with open_conversation(id) as (store, id):
        if text is None and file is None:
            slot = store.branches.slot(id, message)
            if slot.parent is None and not global_options.json:
                raise CommandStopped(
                    f"message {slot.message} answers none; give the other text, and it is put "
                    "beside it"
                )
            print_answer(
                {"message": slot.message, "parent": slot.parent}, slot.parent or "", line=True
            )
            return
        more: dict[str, Any] = {"from": from_, "model": model}
        made = store.branches.regenerate(id, message_text(text, file), message, **more)
    print_answer({"id": made.id, "at": made.at, "parent": made.parent}, str(made.id), line=True)


def trim(id: Id, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Remove every branch but the active one; the messages stay in the trash until
    `trash purge`.
    """
    with open_conversation(id) as (store, id):
        planned = store.branches.trim(id, dry_run=True)
        if planned.ids and not dry_run:
            ensure_confirmed(
                f"Remove {planned}, of other branches? A copy stays in the trash.", yes=yes
            )
            planned = store.branches.trim(id, expected=None if yes else planned.ids)
    _tell(id, planned, dry_run=dry_run)


def fork(
    id: Id,
    at: str | None = option(
        "--up-to MESSAGE",
        "Copy up to this message: its id, @N or @last. Else all of the active branch.",
    ),
    title: str | None = option("--title TITLE", "Give it this title. Without it: Fork of ..."),
    without_attachments: bool = flag(
        "--without-attachments", "Leave out the attachments of the messages."
    ),
) -> None:
    """Copy a branch, up to a message, into a new conversation and print its id."""
    with open_core_store() as store:
        head = store.forks.create(
            store.resolve(id), at=at, title=title, attachments=not without_attachments
        )
    print_answer(head.as_json(), head.id)


def delete_message(id: str, message: str, *, keep_children: bool, dry_run: bool, yes: bool) -> None:
    """Remove a message and what answers it, or it alone."""
    with open_conversation(id) as (store, id):
        which = str(store.find_message(id, message).id)
        planned = store.branches.remove(id, which, keep_children=keep_children, dry_run=True)
        if not dry_run:
            ensure_confirmed(f"Remove {planned}? A copy stays in the trash.", yes=yes)
            expected = None if yes else planned.ids
            planned = store.branches.remove(
                id, which, keep_children=keep_children, expected=expected
            )
    _tell(id, planned, dry_run=dry_run)


def _tell(id: str, removal: Removal, *, dry_run: bool) -> None:
    facts: dict[str, Any] = {
        "removed": list(removal.ids),
        "roles": removal.roles,
        "leaf": removal.leaf,
    }
    facts["dryRun"] = dry_run
    undone = ""
    if removal.ids and not dry_run:
        facts["undo"] = f"capsule restore {id}"
        undone = f"; undo: {facts['undo']}"
    print_answer(
        facts, one_line(f"{id}: {removal} {'would be removed' if dry_run else 'removed'}{undone}")
    )
