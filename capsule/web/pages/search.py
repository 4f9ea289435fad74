"""Search in all conversations, with what the command line can be asked too."""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.responses import Response

from capsule.errors import InvalidInput, NotFound
from capsule.web.view import View, get

#: The number of hits in a page.
_PAGE: Final = 20
#: What a search can be narrowed by, by the names of the address.
_FIELDS: Final = (
    "role",
    "from",
    "in",
    "tag",
    "mode",
    "since",
    "until",
    "title_only",
    "branch",
    "in_tools",
    "where",
)


def _options(view: View) -> dict[str, Any]:
    """What the store is asked with. Raises InvalidInput, NotFound."""
    asked = view.asked
    try:
        where = orjson.loads(asked("where")) if asked("where") else None
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the filter of fields is not valid JSON: {error}") from None
    return {
        "roles": view.every("role"),
        "senders": view.every("from"),
        "ids": [view.store.resolve(id) for id in view.every("in")],
        "tags": view.every("tag"),
        "branch": asked("branch") or "all",
        "profile": asked("profile") or "balanced",
        "where": where,
        **{name: asked(name) or None for name in ("mode", "since", "until", "cursor")},
        **{name: bool(asked(name)) for name in ("title_only", "in_tools")},
    }


def _search(view: View) -> Response:
    found, problem, is_narrow = None, "", any(map(view.asked, _FIELDS))
    try:
        if view.asked("q").strip() or is_narrow:
            found = view.store.search(view.asked("q"), limit=_PAGE, **_options(view))
    except (InvalidInput, NotFound) as error:
        problem = error.message
    return view.page("search.html", found=found, problem=problem, is_narrow=is_narrow)


ROUTES = [get("/search", _search)]
