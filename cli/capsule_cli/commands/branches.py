"""`branch`: list, switch, add and remove the branches of a conversation. Also removes one message,
for `delete --which`.

What must stay true: before messages are removed, their number is shown. Afterwards the command that
brings them back is named.
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
    from capsule_cli.commands.reading.drawing import as_lines, as_objects

    with open_version(id, at) as (store, conversation_id), paged():
        history, tree, current = store.branches.tree(conversation_id)
        if global_options.json:
            print_answer(as_objects(tree, history, current), "")
        else:
            print_answer(None, "\n".join(as_lines(history, tree, current)))


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
    with open_conversation(id) as (store, conversation_id):
        switched = store.branches.switch(conversation_id, message, step=next_ - previous)
        alternatives = store.branches.alternatives(conversation_id, switched.message)
    number = alternatives.index + 1
    count = len(alternatives.ids)
    value = {
        "message": switched.message,
        "leaf": switched.leaf,
        "changed": switched.changed,
        "number": number,
        "count": count,
    }
    text = f"{conversation_id}: on the branch of message {switched.message}"
    if not switched.changed:
        text = f"{conversation_id}: already on the branch of message {switched.message}"
    if count > 1:
        text += f", {number} of {count}"
    print_answer(value, text, line=True)


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
    with open_conversation(id) as (store, conversation_id):
        if text is None and file is None:
            slot = store.branches.slot(conversation_id, message)
            if slot.parent is None and not global_options.json:
                raise CommandStopped(
                    f"message {slot.message} is a root; give the other text to add it beside it"
                )
            value = {"message": slot.message, "parent": slot.parent}
            print_answer(value, slot.parent or "", line=True)
            return
        fields: dict[str, Any] = {"from": from_, "model": model}
        alternative = store.branches.regenerate(
            conversation_id, message_text(text, file), message, **fields
        )
    answer = {"id": alternative.id, "at": alternative.at, "parent": alternative.parent}
    print_answer(answer, str(alternative.id), line=True)


def trim(id: Id, dry_run: DryRun = False, yes: Yes = False) -> None:
    """Remove every branch but the active one; the messages stay in the trash until
    `trash purge`.
    """
    with open_conversation(id) as (store, conversation_id):
        removal = store.branches.trim(conversation_id, dry_run=True)
        if removal.ids and not dry_run:
            ensure_confirmed(
                f"Remove {removal}, of other branches? A copy stays in the trash.", yes=yes
            )
            expected = None if yes else removal.ids
            removal = store.branches.trim(conversation_id, expected=expected)
    _print_removal(conversation_id, removal, dry_run=dry_run)


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
    """Remove a message and its answers, or only the message.

    Args:
        id: The conversation, as the user named it.
        message: The message, as the user named it.
        keep_children: Whether the answers stay. They then answer the message above.
        dry_run: Whether to print only what would be removed.
        yes: Whether to remove without asking.
    """
    with open_conversation(id) as (store, conversation_id):
        message_id = str(store.find_message(conversation_id, message).id)
        removal = store.branches.remove(
            conversation_id, message_id, keep_children=keep_children, dry_run=True
        )
        if not dry_run:
            ensure_confirmed(f"Remove {removal}? A copy stays in the trash.", yes=yes)
            removal = store.branches.remove(
                conversation_id,
                message_id,
                keep_children=keep_children,
                expected=None if yes else removal.ids,
            )
    _print_removal(conversation_id, removal, dry_run=dry_run)


def _print_removal(id: str, removal: Removal, *, dry_run: bool) -> None:
    value: dict[str, Any] = {
        "removed": list(removal.ids),
        "roles": removal.roles,
        "leaf": removal.leaf,
        "dryRun": dry_run,
    }
    text = f"{id}: {removal} {'would be removed' if dry_run else 'removed'}"
    if removal.ids and not dry_run:
        value["undo"] = f"capsule restore {id}"
        text += f"; undo: {value['undo']}"
    print_answer(value, one_line(text))
