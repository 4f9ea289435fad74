"""The page of the search in all conversations, with the options of the command line."""

from __future__ import annotations

from typing import Any, Final

import orjson
from starlette.responses import Response

from capsule.errors import InvalidInput, NotFound
from capsule.web.view import View, get

#: The number of hits in a page.
_PAGE: Final = 20
#: The parameters of the address that narrow a search.
_NARROWING: Final = (
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
    """Return the options of the search. Raises InvalidInput, NotFound."""
    parameter = view.parameter
    where = None
    try:
        if parameter("where"):
            where = orjson.loads(parameter("where"))
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the filter of fields is not valid JSON: {error}") from None
    return {
        "roles": view.parameters("role"),
        "senders": view.parameters("from"),
        "ids": [view.store.resolve(id) for id in view.parameters("in")],
        "tags": view.parameters("tag"),
        "branch": parameter("branch") or "all",
        "profile": parameter("profile") or "balanced",
        "where": where,
        **{name: parameter(name) or None for name in ("mode", "since", "until", "cursor")},
        **{name: bool(parameter(name)) for name in ("title_only", "in_tools")},
    }


def _search(view: View) -> Response:
    found = None
    problem = ""
    is_narrow = any(map(view.parameter, _NARROWING))
    try:
        if view.parameter("q").strip() or is_narrow:
            found = view.store.search(view.parameter("q"), limit=_PAGE, **_options(view))
    except (InvalidInput, NotFound) as error:
        problem = error.message
    return view.page("search.html", found=found, problem=problem, is_narrow=is_narrow)


ROUTES = [get("/search", _search)]
