"""`edit`, `branch`, `lock`, `delete`, `restore` and `trash`: change a conversation, or remove it and
bring it back.

What must stay true:
- `edit` works as visudo does, on a temporary copy. Nothing is written before it is valid. The typed
  text is never lost: if it can't be saved, the copy stays and its path is printed.
- Before messages are removed, their number is shown. Afterwards the command that brings them back
  is named.
- A person at a terminal is asked before something is deleted. `trash list` lists everything that
  `restore` brings back, conversations and messages. With --all, a conversation that can't be
  deleted is reported, and the others are deleted.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from capsule import timestamps
from capsule.engines.interface import Trashed
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound, Remedy
from capsule.format.references import resolve_prefix
from capsule.ids import is_id
from capsule_cli.exits import exit_with_errors, report_error
from capsule_cli.shared.inputs import decode_text, ensure_confirmed, message_text, read_file
from capsule_cli.shared.options import (
    CONVERSATION,
    At,
    DryRun,
    File,
    From,
    Id,
    Yes,
    argument,
    complete_id,
    complete_trashed,
    flag,
    option,
    parse_duration,
    refuse_if,
    usage_error,
)
from capsule_cli.shared.output import (
    CommandStopped,
    exit_reason,
    global_options,
    in_terminal,
    one_line,
    print_answer,
    print_list,
    print_notice,
    short_ids,
    with_count,
    with_progress,
)
from capsule_cli.shared.programs import paged
from capsule_cli.shared.stores import (
    instance_name,
    open_conversation,
    open_core_store,
    open_version,
)

if TYPE_CHECKING:
    from capsule import Removal
    from capsule.format.documents.head import Head
    from capsule.format.models import Message
    from capsule.store.objects.trash import RemovedMessages
    from capsule.store.store import CoreStore


# -- edit ------------------------------------------------------------------------------------------

T = TypeVar("T")


def edit(
    id: Id,
    text: str | None = argument(
        "TEXT", "With --which: the new text. Without it: standard input, or the editor."
    ),
    message: str | None = option(
        "--which MESSAGE", "Edit one message: its id, @N (its place) or @last."
    ),
    keep_original: bool = flag(
        "--beside", "With --which: keep the message, and add the new text as an alternative."
    ),
) -> None:
    """Open a conversation in $VISUAL or $EDITOR under its lock, and save it when it is valid."""
    refuse_if(
        keep_original and message is None,
        "name the message to add the text beside: --which MESSAGE",
        "--beside",
    )
    refuse_if(
        text is not None and message is None,
        "a text changes one message: name it with --which MESSAGE",
        "TEXT",
    )
    with open_conversation(id) as (store, conversation_id):
        if message is None:
            with _locked(store, conversation_id):
                head = _edit_capsule(store, conversation_id)
            value = {"changed": head is not None, **(head or store.head(conversation_id)).as_json()}
            outcome = "saved" if head else "nothing changed"
            print_answer(value, f"{conversation_id}: {outcome}")
            return
        edited = _edit_message(store, conversation_id, message, text, keep_original=keep_original)
        value = {"changed": edited is not None}
        outcome = "nothing changed"
        if edited:
            value |= {"id": edited.id, "at": edited.at}
            outcome = f"message {edited.id} {'added' if keep_original else 'changed'}"
        print_answer(value, f"{conversation_id}: {outcome}", line=True)


def _edit_capsule(store: CoreStore, id: str) -> Head | None:
    """Open a conversation in the editor until it is valid or the person gives up. Return None if
    nothing changed.
    """
    original = store.read(id)

    def save(data: bytes, path: str) -> Head:
        try:
            return store.edits.rewrite(id, data, original)
        except InvalidDocument as error:
            problems = [replace(problem, path=path) for problem in error.problems]
            raise InvalidDocument.of(problems) from error

    return through_editor(original, f"-{id}.json", save)


def _edit_message(
    store: CoreStore, id: str, message_id: str, text: str | None, *, keep_original: bool
) -> Message | None:
    """Change a message, or add an alternative to it. Return None if nothing changed.

    Without a text, it is read from standard input, or typed in the editor.
    """
    change = store.branches.revise if keep_original else store.edits.message
    if text is not None or not sys.stdin.isatty():
        content = message_text(text, None)
        if not keep_original and store.find_message(id, message_id).content == content:
            return None
        return change(id, message_id, content)
    with _locked(store, id):
        message = store.find_message(id, message_id)

        def save(data: bytes, path: str) -> Message:
            typed = decode_text(data, path)
            if not typed.strip():
                raise InvalidInput(
                    "the message is empty; to remove it: capsule delete ID --which MESSAGE"
                )
            return change(id, str(message.id), typed)

        return through_editor(f"{message.content}\n".encode(), f"-{id}.md", save)


def through_editor(original: bytes, suffix: str, save: Callable[[bytes, str], T]) -> T | None:
    """Let a person edit a copy until it can be saved, or they give up. Return None if they changed
    nothing.

    Only its owner can read the copy. It is removed after it was saved, and stays if it has text
    that was not saved.

    Args:
        original: The content to edit.
        suffix: The end of the copy's name, from which an editor learns the type.
        save: Saves the new content, and returns the result. The second argument is the path of the
            copy, for errors. Raises InvalidDocument or InvalidInput: it is invalid.
    """
    import tempfile

    fd, path = tempfile.mkstemp(prefix="capsule-", suffix=suffix)
    with open(fd, "wb") as file:
        file.write(original)
    try:
        while True:
            _run_editor(path)
            data = read_file(path)
            try:
                saved = None if data == original else save(data, path)
                break
            except (InvalidDocument, InvalidInput) as error:
                if not _wants_to_go_on(error):
                    raise
    except BaseException:
        if os.path.isfile(path) and read_file(path) != original:
            print_notice(f"your text is kept in {path}")
        else:
            with suppress(OSError):
                os.unlink(path)
        raise
    os.unlink(path)
    return saved


@contextmanager
def _locked(store: CoreStore, id: str) -> Iterator[None]:
    """Hold the lock during the body. If the named instance held it before, it keeps it afterwards."""
    old_lock = store.head(id).lock
    lock = store.locks.take(id)
    if old_lock is not None and old_lock.get("instanceId") == store.instance_id:
        yield
    else:
        with lock:
            yield


def _run_editor(path: str) -> None:
    import shlex
    import subprocess

    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        words = shlex.split(editor)
        code = subprocess.run([*words, path], check=False).returncode
    except (OSError, ValueError) as error:
        raise CommandStopped(
            f"the editor {editor!r} can't be started: {error}; set VISUAL or EDITOR to yours"
        ) from None
    if code:
        raise CommandStopped(
            f"the editor {editor!r} failed with {exit_reason(code)}; nothing was changed"
        )


def _wants_to_go_on(error: InvalidDocument | InvalidInput) -> bool:
    """Print an error, and ask the person whether to edit again. Return False if there is nobody to
    ask.
    """
    import typer

    if not sys.stdin.isatty():
        return False
    report_error(error)
    choice = typer.prompt("(e)dit again, or (q)uit and keep your copy", default="e", err=True)
    return not str(choice).strip().lower().startswith("q")


# -- branch ----------------------------------------------------------------------------------------


def branch_list(id: Id, at: At = None) -> None:
    """Print the tree of branches, one line for each message. With --json, a list says which message
    answers which.
    """
    from capsule_cli.commands.drawing import as_lines, as_objects

    with open_version(id, at) as (store, conversation_id), paged():
        history, tree, current = store.branches.tree(conversation_id)
        if global_options.json:
            print_answer(as_objects(tree, history, current), "")
        else:
            print_answer(None, "\n".join(as_lines(history, tree, current)))


def branch_switch(
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


def branch_regenerate(
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


def branch_trim(id: Id, dry_run: DryRun = False, yes: Yes = False) -> None:
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


def branch_fork(
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


# -- lock ------------------------------------------------------------------------------------------


def lock_take(id: Id) -> None:
    """Lock a conversation for a named holder until it is released. Nobody else can write to it
    meanwhile.
    """
    name = instance_name()
    if name is None:
        raise usage_error(
            "a lock needs a holder that outlives the command: name one with --instance NAME, "
            "or in the environment with CAPSULE_INSTANCE=NAME",
            "--instance",
        )
    with open_conversation(id) as (store, conversation_id):
        # Not in a `with`: the lock stays after the command.
        store.locks.take(conversation_id)
        head = store.head(conversation_id)
    release_command = f"capsule lock release {conversation_id} --instance {name}"
    print_answer(
        head.as_json(),
        f"{conversation_id}: locked for {name}; release it with: {release_command}",
    )


def lock_release(
    id: Id, force: bool = flag("--force", "Release it even if another holder has it.")
) -> None:
    """Release the lock of a conversation."""
    with open_conversation(id) as (store, conversation_id):
        was_locked = store.locks.release(conversation_id, force=force)
    print_answer(
        {"id": conversation_id, "released": was_locked},
        f"{conversation_id}: {'unlocked' if was_locked else 'was not locked'}",
    )


def lock_list(orphaned: bool = flag("--orphaned", "List only locks whose holder is dead.")) -> None:
    """List the locks, and say whether each holder is alive: held, orphaned, or elsewhere (on
    another host).
    """
    with open_core_store() as store:
        locks = list(store.locks.list())
        ids = store.ids() if in_terminal() else []
    if orphaned:
        locks = [lock for lock in locks if lock.state == "orphaned"]
    holders = short_ids(lock.instance for lock in locks) if in_terminal() else {}
    rows = [
        (
            lock.id,
            lock.state,
            lock.name or holders.get(lock.instance, lock.instance),
            f"{lock.user}@{lock.host}",
            lock.since,
            lock.title,
        )
        for lock in locks
    ]
    columns = ("id", "state", "holder", "who", "since", "title")
    value = [asdict(lock) for lock in locks]
    print_list(value, columns, rows, "no conversation is locked", ids=ids)
    if not global_options.json and any(lock.state == "orphaned" for lock in locks):
        print_notice(
            "an orphaned lock blocks nobody: the next write takes it over; or run: capsule "
            "lock release ID --force"
        )


# -- delete, restore, trash ------------------------------------------------------------------------


def delete(
    ids: list[str] | None = argument(
        "ID", f"The conversations, each: {CONVERSATION}", autocompletion=complete_id
    ),
    all_: bool = flag(
        "--all", "Delete every conversation of the store. Asks twice; a script must give --yes."
    ),
    message: str | None = option(
        "--which MESSAGE",
        "Delete only this message and all answers below it: its id, @N or @last. For an "
        "agent, the answers stay.",
    ),
    keep_children: bool = flag(
        "--keep-children", "With --which: keep the answers, which then answer the message above."
    ),
    with_forks: bool = flag("--with-forks", "Delete all their forks as well, recursively."),
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Move conversations, or with --which messages of one conversation, to the trash."""
    if message is not None:
        refuse_if(
            all_ or with_forks or len(ids or ()) != 1,
            "a message is of one conversation: give its id, and neither --all nor --with-forks",
            "--which",
        )
        delete_message(
            (ids or [""])[0], message, keep_children=keep_children, dry_run=dry_run, yes=yes
        )
        return
    refuse_if(keep_children, "name the message to delete: --which MESSAGE", "--keep-children")
    refuse_if(
        all_ and (with_forks or dry_run),
        "--all takes neither --with-forks nor --dry-run",
        "--all",
    )
    refuse_if(all_ and ids, "give ids or --all, not both", "--all")
    refuse_if(not all_ and not ids, "name the conversations, or give --all", "ID")
    with open_core_store() as store:
        if all_:
            _delete_all(store, yes=yes)
        else:
            _delete(store, ids or [], with_forks=with_forks, dry_run=dry_run, yes=yes)


def _delete(
    store: CoreStore, names: list[str], *, with_forks: bool, dry_run: bool, yes: bool
) -> None:
    """Move the named conversations to the trash, and with `with_forks` also their forks."""
    # All are looked up before the first is deleted: a mistyped id deletes nothing, and @last still
    # names the conversation that it named at the beginning.
    ids = list(dict.fromkeys(store.resolve(name) for name in names))
    ids_to_delete = []
    for id in ids:
        ids_to_delete.append(id)
        if with_forks:
            ids_to_delete += store.forks.list(id, deep=True)
    titles = {id: one_line(_title_of(store, id)) for id in ids_to_delete}
    if dry_run:
        plan = [{"id": id, "title": title, "dryRun": True} for id, title in titles.items()]
        lines = [f"{id}: {title!r} would go to the trash" for id, title in titles.items()]
        print_answer(plan, "\n".join(lines))
        return
    question = "Delete " + ", ".join(map(repr, titles.values())) + "?"
    ensure_confirmed(question, yes=yes, has_undo=True)
    deleted: dict[str, dict[str, Any]] = {}
    try:
        for id in ids:
            if id not in deleted:  # It may have been deleted as a fork of another one.
                items = store.forks.delete(id) if with_forks else [store.delete(id)]
                deleted |= {item.id: _as_json(item) for item in items}
    finally:
        lines = [
            f"{id}: {titles.get(id, '')!r} is in the trash; undo: {item['undo']}"
            for id, item in deleted.items()
        ]
        if deleted:
            print_answer(list(deleted.values()), "\n".join(lines))


def _delete_all(store: CoreStore, *, yes: bool) -> None:
    """Move every conversation to the trash. Those that can't be deleted are reported at the end."""
    count = len(store.ids())
    if count:
        ensure_confirmed(
            f"Delete every conversation of {one_line(store.root)}, {count} of them, archived and "
            "pinned ones too?",
            f"Really all {count}? Each goes to the trash, and can only be restored one by one, "
            "by its id.",
            yes=yes,
        )
    results: list[dict[str, Any]] = []
    errors: list[CapsuleError] = []
    for id, outcome in with_progress("deleting", store.delete_all(), count):
        if isinstance(outcome, Trashed):
            results.append(_as_json(outcome))
            continue
        error = outcome
        if not is_id(id):
            path = f"{store.root}/conversations/{id}.json"
            error = InvalidInput(
                f"{path}: {outcome.message}; rename the file, or move it out of the way"
            )
        errors.append(error)
        results.append({"id": id, "error": error.message})
    deleted = len(results) - len(errors)
    text = f"{with_count(deleted, 'conversation')} {'is' if deleted == 1 else 'are'} in the trash"
    if deleted:
        text += "; undo one: capsule restore ID"
    if errors:
        text += f"; {len(errors)} stayed"
    print_answer(results, text)
    exit_with_errors(errors)


def _as_json(trashed: Trashed) -> dict[str, Any]:
    return {
        "id": trashed.id,
        "deletedAt": trashed.deleted_at,
        "undo": f"capsule restore {trashed.id}",
    }


def trash_list() -> None:
    """List the conversations and messages in the trash, the latest first."""
    items, rows = [], []
    with open_core_store() as store:
        for trashed, removal in _in_trash(store):
            item: dict[str, Any] = {
                "id": trashed.id,
                "deletedAt": trashed.deleted_at,
                "path": trashed.path,
            }
            if removal is not None:
                item["title"] = removal.title
                item["reason"] = removal.reason
                item["messages"] = [message["id"] for message in removal.messages]
                count = with_count(len(removal.messages), "message")
                text = f"{count} {removal.reason} in {removal.title!r}"
            else:
                head = store.trash.head(trashed)
                text = "damaged" if head.damaged else head.title
                item["title"] = text
            items.append(item)
            rows.append((trashed.id, trashed.deleted_at, text))
    columns = ("id", "deleted", "title")
    print_list(items, columns, rows, "the trash is empty", ids=[row[0] for row in rows])


def restore(
    id: str = argument(
        "ID",
        "The conversation: its id, a unique beginning of it, or @last (what was deleted last).",
        ...,
        autocompletion=complete_trashed,
    ),
    deleted: str | None = option(
        "--deleted TIME",
        "Restore what was deleted at this time, as capsule trash list shows it. Without it: what "
        "was deleted last.",
    ),
) -> None:
    """Bring back a conversation or messages from the trash. To bring back a version from git:
    capsule git restore.
    """
    with open_core_store() as store:
        trashed, removal = _choose(store, id, deleted)
        extra: dict[str, Any] = {}
        if removal is None:
            head = store.trash.restore(trashed.id, trashed)
            text = f"{one_line(head.title)!r} is back"
            if head.damaged:
                text = f"back, and damaged: {head.damaged}"
        else:
            restored = store.trash.restore_messages(trashed)
            extra["restored"] = restored
            head = store.head(trashed.id)
            text = f"{with_count(len(restored), 'message')} restored in {one_line(head.title)!r}"
    print_answer(head.as_json() | extra, f"{head.id}: {text}")


def trash_purge(
    older_than: str = option(
        "--older-than DURATION",
        "Remove only what was deleted longer ago than this, for example 30d.",
        "0s",
    ),
    yes: Yes = False,
) -> None:
    """Remove the trash and the quarantine permanently, with every trace in .capsule/."""
    age_s = parse_duration(older_than, "--older-than")
    with open_core_store() as store:
        cutoff = timestamps.canonical((datetime.now(UTC) - timedelta(seconds=age_s)).isoformat())
        count = sum(trashed.deleted_at <= cutoff for trashed, _ in _in_trash(store))
        ensure_confirmed(
            f"Remove {count} in the trash, and everything as old in the quarantine, permanently?",
            yes=yes,
        )
        purged = store.trash.purge(age_s)
    print_answer({"purged": purged}, f"{len(purged)} removed permanently")


def _title_of(store: CoreStore, id: str) -> str:
    """Return the title of a conversation, which may be damaged."""
    try:
        return store.head(id).title
    except InvalidDocument:
        return "a damaged file"


def _in_trash(store: CoreStore) -> list[tuple[Trashed, RemovedMessages | None]]:
    """Return the conversations and the removals of messages in the trash, the latest first. A
    conversation has None in place of a removal.
    """
    items: list[tuple[Trashed, RemovedMessages | None]] = []
    items += [(trashed, None) for trashed in store.trash.list()]
    items += [(removal.trashed, removal) for removal in store.trash.removed()]
    return sorted(items, key=lambda item: item[0].deleted_at, reverse=True)


def _choose(
    store: CoreStore, prefix: str, deleted: str | None
) -> tuple[Trashed, RemovedMessages | None]:
    """Return the conversation or removal in the trash that the user means.

    Args:
        store: The store.
        prefix: An id, a unique beginning of one, or @last. Of several items, the latest counts.
        deleted: The time at which it was deleted, or its beginning. None: any.

    Raises NotFound: it is not in the trash.
    """
    items = _in_trash(store)
    if prefix != "@last":
        ids = sorted({trashed.id for trashed, _ in items})
        id = resolve_prefix(ids, prefix, "deleted conversation", Remedy("trash"))
        items = [item for item in items if item[0].id == id]
    time_prefix = (deleted or "").strip().replace(" ", "T")
    # A time as a terminal shows it: in the reader's zone, to the minute.
    if re.search(r"[+-]\d\d:\d\d$", time_prefix):
        with suppress(ValueError):
            time_prefix = timestamps.canonical(time_prefix)[:16]
    for trashed, removal in items:
        if trashed.deleted_at.startswith(time_prefix):
            return trashed, removal
    condition = f" that was deleted at {deleted[:40]!r}" if deleted and items else ""
    raise NotFound(
        f"nothing of {prefix[:130]!r} is in the trash{condition}; list the trash with: capsule "
        "trash list",
        id=prefix,
    )
