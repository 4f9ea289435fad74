"""Who is let in to the page, and as whom: addresses with a token, the cookie, and what every request must show.

What must stay true: without a cookie that this machine made nothing of the store is shown; what a browser sends for
another site (a foreign `Host` or `Origin`, a form that is none of ours) reaches no page; and every answer forbids the
browser to load or run anything from elsewhere. What an agent may do is not decided here: its store does.
"""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import parse_qsl, urlencode

import orjson
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from capsule.mcp_server.access import Scope as Allowed
    from capsule.mcp_server.transport.tokens import Token, Tokens

#: Seconds after which a cookie is good no more.
_LASTS_S: Final = 30 * 86_400
_FORMS: Final = ("application/x-www-form-urlencoded", "multipart/form-data")
_NOTHING_ELSE: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: with it, browsers say "null" as the origin of our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Visitor(NamedTuple):
    """Who looks at the page.

    Attributes:
        agent: The agent whose token opened it, or that the server was started for; None: the store's owner.
        token: The hash of that token; empty: it was an address of the server's own.
        scope: The widest scope of what it may do.
    """

    agent: str | None = None
    token: str = ""
    scope: Allowed = "admin"


class Admission:
    """The addresses with a token that are still good, and the cookies of one store.

    Args:
        key: The secret that cookies are signed with; it is of this machine and this store.
        tokens: The tokens of agents.
        root: The store's directory: it names the cookie, as browsers send cookies to every port of a host.
        agent: The agent that the server was started for; None: the store's owner.
    """

    def __init__(self, key: bytes, tokens: Tokens, root: str, agent: str | None) -> None:
        self._own = Visitor(agent)
        self.cookie = f"capsule-{sha256(root.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"
        self._key, self._tokens = key, tokens
        self._unused: set[str] = set()

    def token(self) -> str:
        """A new token, which opens the page once, for whoever the server was started for."""
        token = secrets.token_urlsafe(24)
        self._unused.add(token)
        return token

    def admit(self, token: str) -> Visitor | None:
        """Who comes with a token: one of `token`, which is used up with that, or an agent's. None: it is neither."""
        if token in self._unused:
            self._unused.discard(token)
            return self._own
        known = self._tokens.holder_of(token)
        return None if known is None else _visitor(known)

    def cookie_of(self, visitor: Visitor) -> str:
        """The value of the cookie for a visitor."""
        data = urlsafe_b64encode(orjson.dumps([visitor.agent, visitor.token, int(time.time()) + _LASTS_S]))
        return f"{data.decode()}.{self._mac(data)}"

    def visitor_of(self, cookie: str) -> Visitor | None:
        """The visitor with a cookie; None: it is none of ours, too old, or of a token that was revoked."""
        data, _, mac = cookie.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(data.encode()).encode()):
            return None
        with suppress(ValueError):
            agent, token, until = orjson.loads(urlsafe_b64decode(data))
            if until < time.time():
                return None
            if not token:
                return self._own if agent == self._own.agent else None
            there = (_visitor(each) for each in self._tokens.all() if not each.is_over(time.time()))
            return next((visitor for visitor in there if (visitor.agent, visitor.token) == (agent, token)), None)
        return None

    def _mac(self, data: bytes) -> str:
        return hmac.new(self._key, self.cookie.encode() + b"." + data, sha256).hexdigest()


def _visitor(token: Token) -> Visitor:
    return Visitor(token.name, token.hash, token.scope)


class Gate:
    """The application around the pages: it lets in who may come in, and says in each answer what is forbidden.

    Args:
        app: The pages. They find the visitor in the scope of a request, as `visitor`.
        admission: Who is let in.
        hosts: What the header `Host` may say, with its port if it has one.
        is_secure: Whether the browser speaks TLS with the server.
    """

    def __init__(self, app: ASGIApp, admission: Admission, hosts: Iterable[str], *, is_secure: bool) -> None:
        self._app, self._admission, self._is_secure = app, admission, is_secure
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
            return _text("this server is not called so; a name of its own is given by --allow-host", 403)
        if scope["path"].startswith("/static/"):
            return None
        if scope["method"] not in ("GET", "HEAD") and (refused := self._foreign(headers)):
            return _text(refused, 403)
        asked = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = next((value for name, value in asked if name == "token"), None)
        if token is not None and (visitor := self._admission.admit(token)) is not None:
            path = "/" + scope["path"].lstrip("/\\")  # Else `//name` would lead to another host.
            left = urlencode([each for each in asked if each[0] != "token"])
            answer = RedirectResponse(f"{path}?{left}".rstrip("?"), status_code=303)
            cookie = self._admission.cookie_of(visitor)
            answer.set_cookie(
                self._admission.cookie,
                cookie,
                max_age=_LASTS_S,
                httponly=True,
                samesite="strict",
                secure=self._is_secure or headers.get("x-forwarded-proto") == "https",
            )
            return answer
        found = self._admission.visitor_of(HTTPConnection(scope).cookies.get(self._admission.cookie, ""))
        if found is None:
            return _text(
                "This page is open to whoever has its address with the token. An address is good once: "
                "run `capsule web` again for another one, or use a token of an agent: /?token=TOKEN",
                401,
            )
        scope["visitor"] = found
        return None

    def _foreign(self, headers: Headers) -> str:
        """Why a request that changes something is refused before it is read; empty: it is not."""
        origin = headers.get("origin")
        scheme, _, host = (origin or "").partition("://")
        if origin is not None and (scheme not in ("http", "https") or host.lower() not in self._hosts):
            return "this was sent from a page of another site"
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "this was sent from a page of another site"
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        return "" if kind in _FORMS else f"a change is sent as a form, as {' or '.join(_FORMS)}"


def _text(text: str, status: int) -> Response:
    return Response(text + "\n", status, media_type="text/plain")
