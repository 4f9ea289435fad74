"""`delete`, `restore` and `trash`: move conversations and messages to the trash and back.

What must stay true: a person at a terminal is asked before something is deleted. `trash list` lists
everything that `restore` brings back, conversations and messages. With --all, a conversation that
can't be deleted is reported, and the others are deleted.
"""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.interface import Trashed
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound, Remedy
from capsule.format.references import resolve_prefix
from capsule.ids import is_id
from capsule_cli.completion import complete_id, complete_trashed
from capsule_cli.error_output import exit_with_errors
from capsule_cli.shared.inputs import ensure_confirmed
from capsule_cli.shared.options import (
    CONVERSATION,
    DryRun,
    Yes,
    argument,
    flag,
    option,
    parse_duration,
    refuse_if,
)
from capsule_cli.shared.output import one_line, print_answer, print_list, with_count, with_progress
from capsule_cli.shared.stores import open_core_store

if TYPE_CHECKING:
    from capsule.store.objects.trash import RemovedMessages
    from capsule.store.store import CoreStore


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
        from capsule_cli.commands.branches import delete_message

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


def list_() -> None:
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


def purge(
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
