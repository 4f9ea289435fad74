"""`delete`, `restore` and `trash`: to the trash and back.

What must stay true: a person at a terminal is asked before something goes; and `trash list` lists
what `restore` brings back, conversations and messages alike. With --all, one that can't be deleted
keeps no other from it, and is named.
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
    refuse_if(keep_children, "say which message is to go: --which MESSAGE", "--keep-children")
    refuse_if(
        all_ and (with_forks or dry_run),
        "all go: --all takes neither --with-forks nor --dry-run",
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
    store: CoreStore, ids: list[str], *, with_forks: bool, dry_run: bool, yes: bool
) -> None:
    # All are found before the first goes: a mistyped id deletes nothing, and @last is what it was.
    named = list(dict.fromkeys(store.resolve(id) for id in ids))
    doomed = [
        each
        for id in named
        for each in (id, *(store.forks.list(id, deep=True) if with_forks else ()))
    ]
    titles = {id: one_line(_title_of(store, id)) for id in doomed}
    if dry_run:
        plan = [{"id": id, "title": title, "dryRun": True} for id, title in titles.items()]
        print_answer(
            plan,
            "\n".join(f"{id}: {title!r} would go to the trash" for id, title in titles.items()),
        )
        return
    ensure_confirmed(
        "Delete " + ", ".join(map(repr, titles.values())) + "?", yes=yes, has_undo=True
    )
    trashed: dict[str, dict[str, Any]] = {}
    try:
        for id in named:
            if id not in trashed:  # It may have been a fork of one before.
                gone = store.forks.delete(id) if with_forks else [store.delete(id)]
                trashed |= {item.id: _gone(item) for item in gone}
    finally:
        lines = (
            f"{id}: {titles.get(id, '')!r} is in the trash; undo: {item['undo']}"
            for id, item in trashed.items()
        )
        if trashed:
            print_answer(list(trashed.values()), "\n".join(lines))


def _delete_all(store: CoreStore, *, yes: bool) -> None:
    many = len(store.ids())
    if many:
        ensure_confirmed(
            f"Delete every conversation of {one_line(store.root)}, {many} of them, archived and "
            "pinned ones too?",
            f"Really all {many}? Each goes to the trash, and is brought back by its id alone.",
            yes=yes,
        )
    facts: list[dict[str, Any]] = []
    failed: list[CapsuleError] = []
    for id, became in with_progress("deleting", store.delete_all(), many):
        if isinstance(became, Trashed):
            facts.append(_gone(became))
            continue
        if not is_id(id):
            path = f"{store.root}/conversations/{id}.json"
            became = InvalidInput(
                f"{path}: {became.message}; rename the file, or move it out of the way"
            )
        failed.append(became)
        facts.append({"id": id, "error": became.message})
    gone = len(facts) - len(failed)
    said = f"{with_count(gone, 'conversation')} {'is' if gone == 1 else 'are'} in the trash"
    said += "; undo one: capsule restore ID" if gone else ""
    print_answer(facts, said + (f"; {len(failed)} stayed" if failed else ""))
    exit_with_errors(failed)


def _gone(trashed: Trashed) -> dict[str, Any]:
    return {
        "id": trashed.id,
        "deletedAt": trashed.deleted_at,
        "undo": f"capsule restore {trashed.id}",
    }


def list_() -> None:
    """List the conversations and messages in the trash, the latest first."""
    facts, rows = [], []
    with open_core_store() as store:
        for item, removed in _in_trash(store):
            fact: dict[str, Any] = {"id": item.id, "deletedAt": item.deleted_at, "path": item.path}
            if removed is not None:
                fact |= {
                    "title": removed.title,
                    "reason": removed.reason,
                    "messages": [m["id"] for m in removed.messages],
                }
                line = (
                    f"{with_count(len(removed.messages), 'message')} {removed.reason} in "
                    f"{removed.title!r}"
                )
            else:
                head = store.trash.head(item)
                fact["title"] = line = "damaged" if head.damaged else head.title
            facts.append(fact)
            rows.append((item.id, item.deleted_at, line))
    print_list(
        facts, ("id", "deleted", "title"), rows, "the trash is empty", ids=[row[0] for row in rows]
    )


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
        item, removed = _chosen(store, id, deleted)
        came: dict[str, Any] = {}
        if removed is None:
            head = store.trash.restore(item.id, item)
            said = (
                f"back, and damaged: {head.damaged}"
                if head.damaged
                else f"{one_line(head.title)!r} is back"
            )
        else:
            came["restored"] = store.trash.restore_messages(item)
            head = store.head(item.id)
            said = f"{with_count(len(came['restored']), 'message')} restored in {one_line(head.title)!r}"
    print_answer(head.as_json() | came, f"{head.id}: {said}")


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
        before = timestamps.canonical((datetime.now(UTC) - timedelta(seconds=age_s)).isoformat())
        many = sum(item.deleted_at <= before for item, _ in _in_trash(store))
        ensure_confirmed(
            f"Remove {many} in the trash, and everything as old in the quarantine, permanently?",
            yes=yes,
        )
        gone = store.trash.purge(age_s)
    print_answer({"purged": gone}, f"{len(gone)} removed for good")


def _title_of(store: CoreStore, id: str) -> str:
    """The title of a conversation that is to go; a damaged one may go too."""
    try:
        return store.head(id).title
    except InvalidDocument:
        return "a damaged file"


def _in_trash(store: CoreStore) -> list[tuple[Trashed, RemovedMessages | None]]:
    """The conversations and the messages in the trash, the latest first; messages with what is
    known of them.
    """
    items = [(item, None) for item in store.trash.list()] + [
        (item.trashed, item) for item in store.trash.removed()
    ]
    return sorted(items, key=lambda item: item[0].deleted_at, reverse=True)


def _chosen(
    store: CoreStore, prefix: str, deleted: str | None
) -> tuple[Trashed, RemovedMessages | None]:
    """What in the trash is meant: of this id, the latest, or the latest that was deleted at
    a time.
    """
    items = _in_trash(store)
    if prefix != "@last":
        id = resolve_prefix(
            sorted({item.id for item, _ in items}), prefix, "deleted conversation", Remedy("trash")
        )
        items = [entry for entry in items if entry[0].id == id]
    then = (deleted or "").strip().replace(" ", "T")
    if re.search(
        r"[+-]\d\d:\d\d$", then
    ):  # As a terminal shows it: in the reader's zone, to the minute.
        with suppress(ValueError):
            then = timestamps.canonical(then)[:16]
    for item, removed in items:
        if item.deleted_at.startswith(then):
            return item, removed
    when = f" that was deleted at {deleted[:40]!r}" if deleted and items else ""
    raise NotFound(
        f"nothing of {prefix[:130]!r} is in the trash{when}; list the trash with: capsule "
        "trash list",
        id=prefix,
    )
