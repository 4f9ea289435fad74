"""The pages of conflicts of merges, of damaged files, and of the trash.

What must stay true: the page decides nothing. Each button sends the choice of a person.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import orjson
from starlette.responses import Response

from capsule.errors import NotFound
from capsule.web.view import View, get, post
from capsule.web.words import address

if TYPE_CHECKING:
    from capsule.engines.interface import Trashed
    from capsule.store.objects.trash import RemovedMessages

#: The number of conversations with conflicts, of damaged files, and of entries of the trash in a
#: page.
_PAGE: Final = 50


def _repairs(view: View) -> Response:
    heads = [head for head in view.store.heads() if head.conflicts or head.damaged]
    heads.sort(key=lambda head: head.id)
    disputed = [head for head in heads if not head.damaged]
    damaged = [head for head in heads if head.damaged]
    time, _, token = view.parameter("before").partition(" ")
    gone = _trash(view, (time, token) if token else None)
    following = ""
    if len(gone) > _PAGE:
        last, _, _ = gone[_PAGE - 1]
        following = " ".join(_sort_key(last))
    return view.page(
        "repairs.html",
        conflicts=[
            conflict for head in disputed[:_PAGE] for conflict in view.store.conflicts.list(head.id)
        ],
        damaged=damaged[:_PAGE],
        more=(max(0, len(disputed) - _PAGE), max(0, len(damaged) - _PAGE)),
        gone=gone[:_PAGE],
        following=following,
        as_json=lambda value: orjson.dumps(value).decode(),
    )


def _trash(
    view: View, before: tuple[str, str] | None
) -> list[tuple[Trashed, str, RemovedMessages | None]]:
    """Return entries of the trash, the latest first: at least a page, if it has so many.

    Each is a triple of the entry, its title, and the removed messages. Those are None for a whole
    conversation. `before` is the key of the last entry of the page before.
    """
    trash = view.store.trash
    limit = _PAGE + 1
    entries: list[tuple[Trashed, str, RemovedMessages | None]] = []
    deleted = [entry for entry in trash.list() if before is None or _sort_key(entry) < before]
    for entry in deleted[:limit]:
        head = trash.head(entry)
        entries.append((entry, head.title or head.damaged, None))
    for removed in trash.removed(before=before, limit=limit):
        entries.append((removed.trashed, removed.title, removed))
    return sorted(entries, key=lambda item: _sort_key(item[0]), reverse=True)


def _sort_key(entry: Trashed) -> tuple[str, str]:
    """Return the key by which the entries of the trash are sorted."""
    return entry.deleted_at, entry.token


def _entry(view: View) -> tuple[Trashed, RemovedMessages | None]:
    """Return the entry of the trash with a token, and the messages if it has removed messages."""
    trash = view.store.trash
    token = view.path_part()
    for entry in trash.list():
        if entry.token == token:
            return entry, None
    for removed in trash.removed():
        if removed.trashed.token == token:
            return removed.trashed, removed
    raise NotFound("this is no longer in the trash", id=token)


def _trashed(view: View) -> Response:
    trashed, removed = _entry(view)
    title = removed.title if removed else view.store.trash.head(trashed).title
    return view.page("trashed.html", trashed=trashed, removed=removed, title=title)


def _restore(view: View) -> Response:
    trashed, removed = _entry(view)
    if removed is None:
        return view.answer_change(address("c", view.store.trash.restore(trashed.id, trashed).id))
    ids = view.store.trash.restore_messages(trashed)
    message_path = ("m", ids[0]) if ids else ()
    return view.answer_change(address("c", trashed.id, *message_path), ids=ids)


ROUTES = [
    get("/repairs", _repairs),
    get("/trash/{token}", _trashed),
    post("/trash/{token}", _restore),
]
