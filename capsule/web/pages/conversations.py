"""The page with the list of conversations, and the values that it can be filtered by."""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from capsule.engines.queries import Filter
from capsule.web.view import ON, View, get

#: The number of conversations in a page.
_PAGE: Final = 50


def _filter(view: View, unread: dict[str, int]) -> Filter:
    """Return the filter in the address. `unread` has the number of unread messages by conversation."""
    texts: dict[str, Any] = {
        name: view.parameter(name) or None
        for name in ("mode", "type", "agent", "project", "source")
    }
    return Filter(
        tags=view.parameters("tag"),
        title=view.parameter("title"),
        archived=ON.get(view.parameter("archived") or "no"),
        pinned=ON.get(view.parameter("pinned")),
        locked=ON.get(view.parameter("locked")),
        since=view.parameter("since"),
        ids=frozenset(unread) if view.parameter("unseen") else None,
        **texts,
    )


def _list(view: View) -> Response:
    """Show the list and the facets, or one of them if the address names this part."""
    unread = {}
    if view.inbox:
        unread = {item.id: item.unread for item in view.inbox.conversations}
    filter = _filter(view, unread)
    part = view.parameter("part")
    listed = None
    facets = None
    if part != "facets":
        listed = view.store.list(filter, limit=_PAGE, cursor=view.parameter("cursor"))
    if part != "found":
        facets = view.store.facets(filter)
    return view.page(
        "conversations.html", listed=listed, asked=filter, facets=facets, unread=unread
    )


ROUTES = [get("/", _list)]
