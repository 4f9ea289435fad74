"""Checks each request before it reaches a page, and sets the security headers of each answer.

The gate checks the host name, then the origin of a change, then the visitor's cookie. A request that
fails gets an answer here: an error, or the form to sign in.

What must stay true:
- Without a cookie from this machine, a request gets nothing of the store.
- A request that a browser sends for another site (another `Host` or `Origin`, no form of ours)
  reaches no page.
- Each answer forbids the browser to load or run anything from other sites.
- An address never signs a browser in as another visitor without a question. Only addresses of the
  server sign in. The token of an agent is accepted from a form of ours alone.
- No answer to a request without a cookie has the host name of the server.
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

#: The page to sign in with an agent's token. It is open to everybody.
ENTRANCE: Final = "/enter"
#: The header in which a script names the store of its page. Another server may have taken the port
#: meanwhile.
STORE: Final = "capsule-store"
_NO_TOKEN: Final = (
    "This page needs an address with a token, which is valid once. Run `capsule web` again "
    f"for another address, or enter a token of an agent at {ENTRANCE}"
)
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
_SECURITY_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; "
    "base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # With `no-referrer`, browsers would send "null" as the origin of our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Gate:
    """The application around the pages: it checks requests, and adds headers to answers.

    Args:
        app: The pages. They find the visitor in the scope of a request, as `visitor`.
        site: Decides which visitors may enter, and draws the form to sign in.
        hosts: The allowed values of the header `Host`, with the port if it has one.
    """

    def __init__(self, app: ASGIApp, site: WebSite, hosts: Iterable[str]) -> None:
        self._app = app
        self._site = site
        self._admission = site.admission
        self._hosts = frozenset(map(str.lower, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        answer = self._answer(scope)
        app = self._app if answer is None else answer
        await app(scope, receive, send_with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that may not reach the pages. None: it may."""
        headers = Headers(scope=scope)
        if headers.get("host", "").lower() not in self._hosts:
            return _text(
                "this server does not have this host name; allow another name with --allow-host",
                403,
            )
        if scope["path"].startswith("/static/"):
            return None
        if scope["method"] not in ("GET", "HEAD"):
            reason = self._refusal_of_change(headers)
            if reason:
                return _text(reason, 403)
        if scope["path"] == ENTRANCE:
            return None
        connection = HTTPConnection(scope)
        cookie = connection.cookies.get(self._admission.cookie, "")
        if scope["method"] == "GET" and "token" in connection.query_params:
            answer = self._answer_to_token(connection, cookie)
            if answer is not None:
                return answer
        visitor = self._admission.visitor_of(cookie)
        if visitor is None:
            return entrance(self._site, connection)
        self._site.connections.trust(scope.get("client"))
        scope["visitor"] = visitor
        return None

    def _answer_to_token(self, connection: HTTPConnection, cookie: str) -> Response | None:
        """Return the answer to an address with a token: a redirect to the address without it.

        If the browser is signed in as another visitor, the answer is a question. None: the token is
        not valid, and neither is the cookie.
        """
        token = connection.query_params["token"]
        answer = RedirectResponse(without_token(connection), status_code=303)
        if not self._admission.is_unused(token):
            return answer if self._admission.visitor_of(cookie) else None
        replaced = self._admission.replaced_by_own(cookie)
        if replaced:
            return entrance(self._site, connection, replaced=replaced, token=token)
        visitor = self._admission.admit(token)
        if visitor is None:  # Another request used it in between.
            return None
        self._admission.sign_in(answer, visitor, connection)
        return answer

    def _refusal_of_change(self, headers: Headers) -> str:
        """Return why a change is refused by its headers. Empty: it is not."""
        origin = headers.get("origin")
        if origin is not None:
            scheme, _, host = origin.partition("://")
            if scheme not in ("http", "https") or host.lower() not in self._hosts:
                return "this was sent from a page of another site"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "this was sent from a page of another site"
        if headers.get(STORE, self._admission.cookie) != self._admission.cookie:
            return "this was written for another store, which had this address earlier"
        content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if content_type not in _FORMS:
            return f"a change is sent as a form, as {' or '.join(_FORMS)}"
        return ""


def without_token(connection: HTTPConnection) -> str:
    """Return the path and the query of a request without its token."""
    query = parse_qsl(connection.url.query, keep_blank_values=True)
    remaining = [(name, value) for name, value in query if name != "token"]
    return f"{local(connection.url.path)}?{urlencode(remaining)}".rstrip("?")


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
    """Return the answer to a request without a valid cookie: a form, or a text for other programs.

    Args:
        site: Draws the form.
        connection: The request.
        error: Why the entered token was refused.
        replaced: The name of the visitor that this browser is signed in as, and that `token` would
            sign out. The form asks for a confirmation.
        token: The token that the form sends again.
    """
    status = 401
    if replaced:
        status = 409
    elif connection.url.path == ENTRANCE and not error:
        status = 200
    if "text/html" not in connection.headers.get("accept", ""):
        text = _NO_TOKEN
        if replaced:
            text = f"this browser is open as {replaced}; sign out first"
        answer = _text(text, status)
    else:
        html = site.draw(
            "enter.html",
            own=site.admission.own_name,
            to=without_token(connection),
            error=error,
            replaced=replaced,
            token=token,
        )
        answer = HTMLResponse(html, status)
    answer.headers["connection"] = "close"  # No connection stays open without a cookie.
    return answer


def _text(text: str, status: int) -> Response:
    return Response(text + "\n", status, {"connection": "close"}, media_type="text/plain")
