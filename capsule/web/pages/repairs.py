"""What waits for a person's decision: conflicts of merges, damaged files, and the trash.

What must stay true: nothing is decided here; each button sends what a person chose.
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
    heads = sorted(
        (head for head in view.store.heads() if head.conflicts or head.damaged),
        key=lambda head: head.id,
    )
    disputed, damaged = (
        [head for head in heads if bool(head.damaged) == is_so] for is_so in (False, True)
    )
    time, _, token = view.asked("before").partition(" ")
    gone = _trash(view, (time, token) if token else None)
    return view.page(
        "repairs.html",
        conflicts=[
            conflict for head in disputed[:_PAGE] for conflict in view.store.conflicts.list(head.id)
        ],
        damaged=damaged[:_PAGE],
        more=(max(0, len(disputed) - _PAGE), max(0, len(damaged) - _PAGE)),
        gone=gone[:_PAGE],
        following=" ".join(_place(gone[_PAGE - 1][0])) if len(gone) > _PAGE else "",
        as_json=lambda value: orjson.dumps(value).decode(),
    )


def _trash(
    view: View, before: tuple[str, str] | None
) -> list[tuple[Trashed, str, RemovedMessages | None]]:
    """What is in the trash behind an entry, the latest first, a page of it and perhaps more: each
    entry with its title, and of messages what is known of them."""
    trash, limit = view.store.trash, _PAGE + 1
    deleted = [entry for entry in trash.list() if before is None or _place(entry) < before][:limit]
    heads = ((entry, trash.head(entry)) for entry in deleted)
    gone: list[tuple[Trashed, str, RemovedMessages | None]] = [
        (entry, head.title or head.damaged, None) for entry, head in heads
    ]
    gone += [
        (removed.trashed, removed.title, removed)
        for removed in trash.removed(before=before, limit=limit)
    ]
    return sorted(gone, key=lambda each: _place(each[0]), reverse=True)


def _place(entry: Trashed) -> tuple[str, str]:
    """The place of an entry in the list."""
    return entry.deleted_at, entry.token


def _entry(view: View) -> tuple[Trashed, RemovedMessages | None]:
    """What lies in the trash under a token; of messages also what they are."""
    trash, token = view.store.trash, view.at()
    if deleted := next((each for each in trash.list() if each.token == token), None):
        return deleted, None
    if removed := next((each for each in trash.removed() if each.trashed.token == token), None):
        return removed.trashed, removed
    raise NotFound("this is no longer in the trash", id=token)


def _trashed(view: View) -> Response:
    trashed, removed = _entry(view)
    title = removed.title if removed else view.store.trash.head(trashed).title
    return view.page("trashed.html", trashed=trashed, removed=removed, title=title)


def _restore(view: View) -> Response:
    trashed, removed = _entry(view)
    if removed is None:
        return view.done(address("c", view.store.trash.restore(trashed.id, trashed).id))
    ids = view.store.trash.restore_messages(trashed)
    return view.done(address("c", trashed.id, *(("m", ids[0]) if ids else ())), ids=ids)


ROUTES = [
    get("/repairs", _repairs),
    get("/trash/{token}", _trashed),
    post("/trash/{token}", _restore),
]
