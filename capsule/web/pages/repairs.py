"""What waits for a person's decision: conflicts of merges, damaged files, and the trash.

What must stay true: nothing is decided here; each button sends what a person chose, to the page that makes the change.
"""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.responses import Response
from starlette.routing import Route

from capsule.web.view import View, page

#: The number of conversations with conflicts, of damaged files, and of entries of the trash in a page.
_PAGE: Final = 50


def _repairs(view: View) -> Response:
    heads = sorted((head for head in view.store.heads() if head.conflicts or head.damaged), key=lambda head: head.id)
    disputed, damaged = ([head for head in heads if bool(head.damaged) == is_so] for is_so in (False, True))
    gone = _trash(view, view.asked("before"))
    return view.page(
        "repairs.html",
        conflicts=[conflict for head in disputed[:_PAGE] for conflict in view.store.conflicts.list(head.id)],
        damaged=damaged[:_PAGE],
        more=(max(0, len(disputed) - _PAGE), max(0, len(damaged) - _PAGE)),
        gone=gone[:_PAGE],
        following=gone[_PAGE - 1][0].deleted_at if len(gone) > _PAGE else "",
        as_json=lambda value: orjson.dumps(value).decode(),
    )


def _trash(view: View, before: str) -> list[tuple[Any, str, Any]]:
    """What came into the trash before a time, the latest first, a page of it and perhaps more: each entry with its
    title, and of messages what is known of them."""
    trash = view.store.trash
    deleted = [entry for entry in trash.list() if not before or entry.deleted_at < before]
    removed = trash.removed(before=before, limit=_PAGE + 1)
    heads = ((entry, trash.head(entry)) for entry in deleted[: _PAGE + 1])
    gone = [(entry, head.title or head.damaged or "", None) for entry, head in heads]
    return sorted([*gone, *((each.trashed, each.title, each) for each in removed)], key=_time, reverse=True)


def _time(entry: tuple[Any, str, Any]) -> str:
    return str(entry[0].deleted_at)


ROUTES = [Route("/repairs", page(_repairs))]
