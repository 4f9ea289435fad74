"""What every request must show before it reaches a page, and what every answer forbids.

What must stay true: without a cookie that this machine made nothing of the store is shown; what a
browser sends for another site (a foreign `Host` or `Origin`, a form that is none of ours) reaches
no page; and every answer forbids the browser to load or run anything from elsewhere. An address
never makes a browser somebody else without a question: only the server's own addresses open the
page, and an agent's token is taken from a form of ours alone. Nothing that is sent to a stranger
tells the server's own name.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import HTMLResponse, RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from capsule.web.site import WebSite

#: Where an agent's token is entered. It is open to everybody.
ENTRANCE: Final = "/enter"
#: The header in which script of a page names its store, as another server may have taken the port
#: of its own.
STORE: Final = "capsule-store"
_NEITHER: Final = (
    "This page needs an address with a token, which is valid once. Run `capsule web` again "
    f"for another address, or enter a token of an agent at {ENTRANCE}"
)
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
_NOTHING_ELSE: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: with it, browsers say "null" as the origin of our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Gate:
    """The application around the pages: it lets in who may come in, and says in each answer what is
    forbidden.

    Args:
        app: The pages. They find the visitor in the scope of a request, as `visitor`.
        site: Who is let in, and what draws the page of those who are not.
        hosts: What the header `Host` may say, with its port if it has one.
    """

    def __init__(self, app: ASGIApp, site: WebSite, hosts: Iterable[str]) -> None:
        self._app, self._site, self._admission = app, site, site.admission
        self._hosts = frozenset(map(str.lower, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _NOTHING_ELSE.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(scope)
        await (self._app if answer is None else answer)(scope, receive, guarded)

    def _answer(self, scope: Scope) -> Response | None:
        """The answer to a request that does not reach the pages; None: it does."""
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return _text(
                "this server does not have this host name; allow another name with --allow-host",
                403,
            )
        if scope["path"].startswith("/static/"):
            return None
        if scope["method"] not in ("GET", "HEAD") and (refused := self._foreign(headers)):
            return _text(refused, 403)
        if scope["path"] == ENTRANCE:
            return None
        connection = HTTPConnection(scope)
        cookie = connection.cookies.get(self._admission.cookie, "")
        if scope["method"] == "GET" and "token" in connection.query_params:
            answer = self._opened(connection, cookie)
            if answer is not None:
                return answer
        found = self._admission.visitor_of(cookie)
        if found is None:
            return entrance(self._site, connection)
        self._site.connections.trust(scope.get("client"))
        scope["visitor"] = found
        return None

    def _opened(self, connection: HTTPConnection, cookie: str) -> Response | None:
        """The answer to an address with a token: the way to the same address without it, if the
        visitor is let in.
        """
        token, to = connection.query_params["token"], without_token(connection)
        answer = RedirectResponse(to, status_code=303)
        if not self._admission.is_unused(token):
            return answer if self._admission.visitor_of(cookie) else None
        if replaced := self._admission.replaced_by_own(cookie):
            return entrance(self._site, connection, replaced=replaced, token=token)
        visitor = self._admission.admit(token)
        if visitor is None:  # It was used in between.
            return None
        self._admission.sign_in(answer, visitor, connection)
        return answer

    def _foreign(self, headers: Headers) -> str:
        """Why a request that changes something is refused before it is read; empty: it is not."""
        origin = headers.get("origin")
        scheme, _, host = (origin or "").partition("://")
        if origin is not None and (
            scheme not in ("http", "https") or host.lower() not in self._hosts
        ):
            return "this was sent from a page of another site"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "this was sent from a page of another site"
        if headers.get(STORE, self._admission.cookie) != self._admission.cookie:
            return "this was written for another store, which had this address earlier"
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        return "" if kind in _FORMS else f"a change is sent as a form, as {' or '.join(_FORMS)}"


def without_token(connection: HTTPConnection) -> str:
    """Return the path and the query of a request without its token."""
    left = [
        each
        for each in parse_qsl(connection.url.query, keep_blank_values=True)
        if each[0] != "token"
    ]
    return f"{local(connection.url.path)}?{urlencode(left)}".rstrip("?")


def local(path: str) -> str:
    """Return a path that stays on this host: `//name` would lead to another one."""
    return "/" + path.lstrip("/\\")


def entrance(
    site: WebSite,
    connection: HTTPConnection,
    *,
    error: str = "",
    replaced: str = "",
    token: str = "",
) -> Response:
    """Return the answer to somebody who is not let in, or not yet: a form for a browser, a text for
    others.

    Args:
        site: What draws it.
        connection: The request.
        error: What was wrong with the token that was entered.
        replaced: Who looks with this browser, and would not any more; with `token`.
        token: The token that is sent again if the answer is yes.
    """
    status = 401
    if replaced:
        status = 409
    elif connection.url.path == ENTRANCE and not error:
        status = 200
    if "text/html" not in connection.headers.get("accept", ""):
        answer = _text(
            f"this browser is open as {replaced}; sign out first" if replaced else _NEITHER, status
        )
    else:
        shown = {
            "to": without_token(connection),
            "error": error,
            "replaced": replaced,
            "token": token,
        }
        answer = HTMLResponse(site.draw("enter.html", own=site.admission.own_name, **shown), status)
    answer.headers["connection"] = "close"  # Strangers keep no connection open.
    return answer


def _text(text: str, status: int) -> Response:
    return Response(text + "\n", status, {"connection": "close"}, media_type="text/plain")
