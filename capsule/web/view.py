"""One request to a page: its visitor, the stores it may use, its parameters, and its answer.

`get`, `post` and `forms` make the routes of the pages. A page is a function that takes a `View` and
returns a response. It runs in a thread. If the store raises an error, the answer shows the error's
message, and a form gets its fields back.

What must stay true: a page uses only the stores of its view. These act for the visitor, so that the
rules of permissions apply here as they do for the command line and for MCP.
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

#: The HTTP status for a class of errors.
_STATUS: dict[type[CapsuleError], int] = {
    InvalidInput: 400,
    Refused: 403,
    NotFound: 404,
    Locked: 409,
    LockLost: 409,
    InvalidDocument: 422,
    StoreBusy: 503,
}
#: The greatest number of fields of a form.
_MAX_FIELDS = 16
#: How many times larger than in the store a message can be in a form, because of its encoding.
_FORM_FACTOR = 3
#: The parameters of an address that belong to one page of a list.
_PAGE_PARAMETERS = ("cursor", "part")
#: The end of the name of the cookie with the agent that the owner writes as.
AS = "-as"
#: The values of a switch.
ON: Final = {"yes": True, "no": False}


class View:
    """A request to a page.

    Attributes:
        request: The request.
        site: The shared parts of the pages.
        visitor: The visitor.
        store: The store that reads for the visitor.
        cursor: A cursor of the store's changes. The page shows the state at this cursor, or a later
            one. Empty: the answer is a part of a page, or answers a form.
        form: The fields of the form that was sent.
    """

    cursor = ""
    form = FormData()

    def __init__(self, request: Request) -> None:
        self.request = request
        self.site: WebSite = request.app.state.site
        self.visitor: Visitor = request.scope["visitor"]
        self.store: Store = self.site.store.inner.store_for(self.visitor.agent)

    @cached_property
    def acting_agent(self) -> str | None:
        """The agent that the visitor writes as, and whose inbox is shown.

        None: the owner has chosen no agent.
        """
        if self.visitor.agent is not None:
            return self.visitor.agent
        return self.request.cookies.get(self.site.cookie + AS) or None

    @cached_property
    def acting_store(self) -> Store:
        """The store that writes: for the agent that the visitor has chosen, or for the visitor.

        Raises NotFound, InvalidInput if the chosen agent does not exist any more.
        """
        if self.acting_agent == self.visitor.agent:
            return self.store
        return self.store.inner.store_for(self.acting_agent)

    @cached_property
    def inbox(self) -> Inbox | None:
        """The unread messages of the agent that the visitor writes as.

        None: the owner has chosen no agent, or it does not exist any more.
        """
        if self.acting_agent is not None:
            with suppress(CapsuleError):
                return self.acting_store.messages.inbox()
        return None

    def may(self, scope: Allowed) -> bool:
        """Return whether the visitor's token allows this."""
        return SCOPES.index(scope) <= SCOPES.index(self.visitor.scope)

    def parameter(self, name: str) -> str:
        """Return a parameter of the address, or an empty text."""
        return self.request.query_params.get(name, "")

    def parameters(self, name: str) -> tuple[str, ...]:
        """Return all values of a parameter of the address that are not empty."""
        return tuple(filter(None, self.request.query_params.getlist(name)))

    def next_page_query(self, cursor: str) -> str:
        """Return the query of the address of the next page of a list, which begins at a cursor."""
        parameters = [
            (name, value)
            for name, value in self.request.query_params.multi_items()
            if name not in _PAGE_PARAMETERS
        ]
        return urlencode([*parameters, ("cursor", cursor)])

    @property
    def wants_json(self) -> bool:
        """Whether a script sent the request, and not a browser that opens a page."""
        return "application/json" in self.request.headers.get("accept", "")

    def path_part(self, name: str = "") -> str:
        """Return a part of the path. Without a name: the first one, the id of the page's subject."""
        parts: dict[str, str] = self.request.path_params
        return parts[name] if name else next(iter(parts.values()))

    def field(self, name: str) -> str:
        """Return a field of the form, with the line ends of files.

        Returns an empty text if the form has no such field, or if it is a file.
        """
        value = self.form.get(name)
        return value.replace("\r\n", "\n") if isinstance(value, str) else ""

    def page(self, template: str, *, status: int = 200, **values: Any) -> Response:
        """Return the page of a template, or only the block that the parameter `part` names."""
        html = self.site.draw(template, self.parameter("part"), view=self, **values)
        return HTMLResponse(html, status)

    def json(self, value: Any, status: int = 200) -> Response:
        """Return an answer to a script."""
        return Response(orjson.dumps(value), status, media_type="application/json")

    def answer_change(self, to: str, **value: Any) -> Response:
        """Return the answer to a change that was made.

        Args:
            to: The address of the page that shows it. A browser is redirected there.
            value: The fields for a script.
        """
        if self.wants_json:
            return self.json({"location": to, **value})
        return RedirectResponse(to, status_code=303)

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
        """Return the answer to a form that changed nothing: an error, or a question.

        The page has the fields of the form, so that a person can send it again.

        Args:
            reason: The message.
            status: The HTTP status.
            error: The error. None: the message is a question.
            kind: The name of the question for scripts.
            button: The label of the button that sends the form again.
            instead: New values of fields. A field with an empty value is left out.
        """
        if self.wants_json:
            name = type(error).__name__ if error else kind
            return self.json({"error": reason, "kind": name}, status)
        fields = {name: self.field(name) for name in self.form}
        way = link(error.remedy) if error and error.remedy else None
        return self.page(
            "error.html",
            status=status,
            reason=reason,
            error=error,
            typed=fields | instead,
            button=button,
            way=way,
        )


def get(path: str, answer: Callable[[View], Response]) -> Route:
    """Return the route of a page that only reads. Starlette runs it in a thread."""

    def read(view: View) -> Response:
        if "text/html" in view.request.headers.get("accept", ""):
            unfinished = view.site.preparation.unfinished()
            if unfinished is not None:
                bytes_read, bytes_total = unfinished
                html = view.site.draw("preparing.html", read=bytes_read, all=bytes_total)
                return HTMLResponse(html, 503, {"retry-after": "1"})
        if not view.parameter("part"):
            # The cursor is read before the page, so that no change between them is missed.
            view.cursor = view.store.changes().cursor
        return answer(view)

    def endpoint(request: Request) -> Response:
        return _guarded(View(request), read)

    return Route(path, endpoint)


def post(
    path: str, act: Callable[[View], Response], *, scope: Allowed = "write", files: int = 0
) -> Route:
    """Return the route of a form that changes something.

    Args:
        path: The path.
        act: Makes the change.
        scope: The permission that the token of the visitor must have.
        files: The greatest number of files.
    """

    def refused(view: View) -> Response:
        raise Refused(
            f"the token of {view.visitor.agent} allows to {view.visitor.scope} only", path=""
        )

    async def endpoint(request: Request) -> Response:
        from anyio import to_thread

        view = View(request)
        if not view.may(scope):  # The form is not read at all.
            return await to_thread.run_sync(_guarded, view, refused)
        max_bytes = _FORM_FACTOR * view.store.settings.message_bytes
        async with request.form(
            max_files=files, max_fields=_MAX_FIELDS, max_part_size=max_bytes
        ) as view.form:
            return await to_thread.run_sync(_guarded, view, act)

    return Route(path, endpoint, methods=["POST"])


def forms(path: str, actions: Mapping[str, Callable[[View], object]]) -> Route:
    """Return the route of the forms of a page, which lead back to the page.

    Args:
        path: The path of the page.
        actions: The function of each form, by the value of its field `do`.
    """

    def act(view: View) -> Response:
        name = view.field("do")
        if name not in actions:
            raise InvalidInput(
                f"{name[:40]!r} can't be done here; it is one of {', '.join(actions)}"
            )
        actions[name](view)
        url = view.request.url
        return view.answer_change(f"{url.path}?{url.query}".rstrip("?"))

    return post(path, act)


def _guarded(view: View, answer: Callable[[View], Response]) -> Response:
    """Return the answer of a page, or the answer to the error that it raises."""
    try:
        return answer(view)
    except CapsuleError as error:
        status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 500)
        instead = {}
        if isinstance(error, InvalidInput) and "id" in view.form:
            # Nothing was written, so the form can get a new idempotency key. The old one may have
            # been used for another text, and would be refused again.
            instead["id"] = new_id()
        return view.refuse(error.message, status=status, error=error, **instead)
