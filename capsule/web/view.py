"""One request, as the pages see it: who looks, which store answers, and how the answer is drawn.

What must stay true: a page asks the stores of its view only, and these act for the visitor, so that
the one rule of who may do what decides here as behind every other door. An error of the store is
shown with its own words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

import orjson
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from capsule.errors import (
    CapsuleError,
    InvalidDocument,
    InvalidInput,
    Locked,
    LockLost,
    NotFound,
    Refused,
    StoreBusy,
)
from capsule.ids import new_id
from capsule.mcp_server.access import SCOPES
from capsule.mcp_server.access import Scope as Allowed
from capsule.web.remedies import link

if TYPE_CHECKING:
    from capsule import Store
    from capsule.messaging.mail import Inbox
    from capsule.web.admission import Visitor
    from capsule.web.site import WebSite

#: The status of an answer that is an error.
_STATUS: dict[type[CapsuleError], int] = {
    InvalidInput: 400,
    Refused: 403,
    NotFound: 404,
    Locked: 409,
    LockLost: 409,
    InvalidDocument: 422,
    StoreBusy: 503,
}
#: How many fields a form has at most. Each is at most as large as a message, of which a form makes
#: three times as much.
_MOST_FIELDS, _LARGER = 16, 3
#: The fields of an address that belong to one page of a list.
_OF_A_PAGE = ("cursor", "part")
#: The cookie that says for which agent the owner writes, after the name of the store's cookie.
AS = "-as"
#: The values of a switch.
ON: Final = {"yes": True, "no": False}


class View:
    """A request to a page.

    Attributes:
        request: The request.
        site: What all pages share.
        visitor: Who looks.
        store: What reads for the visitor.
        cursor: What the page shows is of this place in the store's changes, or of a later one;
            empty: it is a part of a page, or an answer to a form.
        form: The form that was sent.
    """

    cursor = ""
    form = FormData()

    def __init__(self, request: Request) -> None:
        self.request = request
        self.site: WebSite = request.app.state.site
        self.visitor: Visitor = request.scope["visitor"]
        self.store: Store = self.site.store.inner.store_for(self.visitor.agent)

    @cached_property
    def me(self) -> str | None:
        """The agent that the visitor writes as and whose inbox this is; None: the owner, who chose
        none.
        """
        if self.visitor.agent is not None:
            return self.visitor.agent
        return self.request.cookies.get(self.site.cookie + AS) or None

    @cached_property
    def acting(self) -> Store:
        """The store that writes: for the agent that the visitor chose, else for the visitor.

        Raises NotFound, InvalidInput: there is no such agent any more.
        """
        return self.store if self.me == self.visitor.agent else self.store.inner.store_for(self.me)

    @cached_property
    def inbox(self) -> Inbox | None:
        """What the visitor's agent has not read; None: the owner chose none, or it is not there any
        more.
        """
        if self.me is not None:
            with suppress(CapsuleError):
                return self.acting.messages.inbox()
        return None

    def may(self, scope: Allowed) -> bool:
        """Whether the visitor's token allows this."""
        return SCOPES.index(scope) <= SCOPES.index(self.visitor.scope)

    def asked(self, name: str) -> str:
        """A field of the address; empty: it is not there."""
        return self.request.query_params.get(name, "")

    def every(self, name: str) -> tuple[str, ...]:
        """All values of a field of the address that are not empty."""
        return tuple(filter(None, self.request.query_params.getlist(name)))

    def following(self, cursor: str) -> str:
        """What the next page of a list is asked with: what this one was, and where that page
        begins.
        """
        asked = [
            (name, value)
            for name, value in self.request.query_params.multi_items()
            if name not in _OF_A_PAGE
        ]
        return urlencode([*asked, ("cursor", cursor)])

    @property
    def wants_json(self) -> bool:
        """Whether a script asks, and not a browser for a page."""
        return "application/json" in self.request.headers.get("accept", "")

    def at(self, name: str = "") -> str:
        """A part of the path; without a name the first one, which says what the page is about."""
        parts: dict[str, str] = self.request.path_params
        return parts[name] if name else next(iter(parts.values()))

    def sent(self, name: str) -> str:
        """A field of the form, with the ends of lines as files have them; empty: it is not there,
        or it is a file.
        """
        value = self.form.get(name)
        return value.replace("\r\n", "\n") if isinstance(value, str) else ""

    def page(self, template: str, *, status: int = 200, **shown: Any) -> Response:
        """Draw a template; of it only the block that `part` of the address names, if it does."""
        return HTMLResponse(
            self.site.draw(template, self.asked("part"), view=self, **shown), status
        )

    def json(self, value: Any, status: int = 200) -> Response:
        """An answer to a script."""
        return Response(orjson.dumps(value), status, media_type="application/json")

    def done(self, to: str, **value: Any) -> Response:
        """The answer to a change: for a script what became of it, for a browser the way to the page
        that shows it.
        """
        return (
            self.json({"location": to, **value})
            if self.wants_json
            else RedirectResponse(to, status_code=303)
        )

    def refuse(
        self,
        reason: str,
        *,
        status: int = 409,
        error: CapsuleError | None = None,
        kind: str = "Asked",
        button: str = "Try again",
        **instead: str,
    ) -> Response:
        """Say why nothing was done. What was typed stands there again, and can be sent again.

        Args:
            reason: Why.
            status: That of the answer.
            error: The error that it is; None: a question.
            kind: Its name for scripts.
            button: The name of the button that sends the form again.
            instead: Fields that are then others than they were; one that is empty is left out.
        """
        kind = type(error).__name__ if error else kind
        if self.wants_json:
            return self.json({"error": reason, "kind": kind}, status)
        typed = {name: self.sent(name) for name in self.form} | instead
        way = link(error.remedy) if error and error.remedy else None
        shown = {"reason": reason, "error": error, "typed": typed, "button": button, "way": way}
        return self.page("error.html", status=status, **shown)


def get(path: str, answer: Callable[[View], Response]) -> Route:
    """The route of a page that only reads. Starlette runs it in a thread."""

    def read(view: View) -> Response:
        if "text/html" in view.request.headers.get("accept", ""):
            unfinished = view.site.preparation.unfinished()
            if unfinished is not None:
                text = view.site.draw("preparing.html", read=unfinished[0], all=unfinished[1])
                return HTMLResponse(text, 503, {"retry-after": "1"})
        if not view.asked("part"):
            view.cursor = (
                view.store.changes().cursor
            )  # Before the page is read: what comes between is heard of.
        return answer(view)

    def endpoint(request: Request) -> Response:
        return _guarded(View(request), read)

    return Route(path, endpoint)


def post(
    path: str, act: Callable[[View], Response], *, scope: Allowed = "write", files: int = 0
) -> Route:
    """The route of a form that changes something, for a visitor whose token allows it.

    Args:
        path: Where the form is sent.
        act: Makes the change.
        scope: What the token must allow.
        files: How many files it may have.
    """

    def refused(view: View) -> Response:
        raise Refused(
            f"the token of {view.visitor.agent} allows to {view.visitor.scope} only", path=""
        )

    async def endpoint(request: Request) -> Response:
        from anyio import to_thread

        view = View(request)
        if not view.may(scope):  # Before anything of the form is read.
            return await to_thread.run_sync(_guarded, view, refused)
        largest = _LARGER * view.store.settings.message_bytes
        async with request.form(
            max_files=files, max_fields=_MOST_FIELDS, max_part_size=largest
        ) as view.form:
            return await to_thread.run_sync(_guarded, view, act)

    return Route(path, endpoint, methods=["POST"])


def forms(path: str, does: Mapping[str, Callable[[View], object]]) -> Route:
    """The route of the forms of a page, each with what it does by the value of its field `do`; it
    leads back there.
    """

    def act(view: View) -> Response:
        if (name := view.sent("do")) not in does:
            raise InvalidInput(f"{name[:40]!r} can't be done here; it is one of {', '.join(does)}")
        does[name](view)
        here = view.request.url
        return view.done(f"{here.path}?{here.query}".rstrip("?"))

    return post(path, act)


def _guarded(view: View, answer: Callable[[View], Response]) -> Response:
    try:
        return answer(view)
    except CapsuleError as error:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        # A key that was used for another text would be refused again; that nothing was written is
        # known.
        instead = {"id": new_id()} if isinstance(error, InvalidInput) and "id" in view.form else {}
        return view.refuse(error.message, status=status, error=error, **instead)
