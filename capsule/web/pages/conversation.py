"""One conversation: a window of its messages."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response
from starlette.routing import Route

from capsule.web.view import View, page

#: The number of messages in a window.
_WINDOW: Final = 100


def _conversation(view: View) -> Response:
    id = view.request.path_params["id"]
    message = view.request.path_params.get("message")
    head = view.store.head(id)
    window = view.store.page(id, _WINDOW, around=message, cursor=view.asked("cursor") or None)
    return view.page("conversation.html", head=head, window=window, chosen=message)


ROUTES = [Route("/c/{id}", page(_conversation)), Route("/c/{id}/m/{message}", page(_conversation))]
