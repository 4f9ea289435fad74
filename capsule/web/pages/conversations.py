"""The list of conversations."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from capsule.engines.queries import Filter
from capsule.web.view import ON, View, get

#: The number of conversations in a page.
_PAGE: Final = 50


def _filter(view: View, unread: dict[str, int]) -> Filter:
    words: dict[str, Any] = {
        name: view.asked(name) or None for name in ("mode", "type", "agent", "project", "source")
    }
    return Filter(
        tags=view.every("tag"),
        title=view.asked("title"),
        archived=ON.get(view.asked("archived") or "no"),
        pinned=ON.get(view.asked("pinned")),
        locked=ON.get(view.asked("locked")),
        since=view.asked("since"),
        ids=frozenset(unread) if view.asked("unseen") else None,
        **words,
    )


def _list(view: View) -> Response:
    unread = {item.id: item.unread for item in view.inbox.conversations} if view.inbox else {}
    asked, part = _filter(view, unread), view.asked("part")
    listed = (
        view.store.list(asked, limit=_PAGE, cursor=view.asked("cursor"))
        if part != "facets"
        else None
    )
    facets = view.store.facets(asked) if part != "found" else None
    return view.page("conversations.html", listed=listed, asked=asked, facets=facets, unread=unread)


ROUTES = [get("/", _list)]
