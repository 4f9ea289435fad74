"""The list of conversations."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from capsule.engines.questions import Filter
from capsule.web.view import View, page

#: The number of conversations in a page.
_PAGE: Final = 50
_ON: Final = {"": None, "yes": True, "no": False}


def _filter(view: View) -> Filter:
    return Filter(
        tags=view.every("tag"),
        title=view.asked("title"),
        mode=view.asked("mode") or None,
        type=view.asked("type") or None,
        archived=_ON.get(view.asked("archived") or "no"),
        pinned=_ON.get(view.asked("pinned")),
        locked=_ON.get(view.asked("locked")),
        since=view.asked("since"),
    )


def _list(view: View) -> Response:
    asked = _filter(view)
    listed = view.store.list(asked, limit=_PAGE, cursor=view.asked("cursor"))
    return view.page("conversations.html", listed=listed, asked=asked, following=listed.cursor())


ROUTES = [Route("/", page(_list))]
