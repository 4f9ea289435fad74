"""Who is let in to the page, and as whom: addresses with a token, tokens of agents, and the cookie.

What must stay true: a cookie was made by this machine for this store, and ends with the token that
it was made for. What an agent may do is not decided here: its store does.
"""

from __future__ import annotations

import hmac
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
from starlette.requests import HTTPConnection
from starlette.responses import Response

if TYPE_CHECKING:
    from capsule.engines.local_documents import LocalDocuments
    from capsule.mcp_server.access import Scope as Allowed
    from capsule.mcp_server.transport.tokens import Token, Tokens

#: Seconds after which a cookie is good no more.
_LASTS_S: Final = 30 * 86_400
#: The id of the key that cookies are signed with.
_KEY: Final = "web"


class Visitor(NamedTuple):
    """Who looks at the page.

    Attributes:
        agent: The agent whose token opened it, or that the server was started for; None: the
            store's owner.
        token: The hash of that token; empty: it was an address of the server's own.
        scope: The widest scope of what it may do.
    """

    agent: str | None = None
    token: str = ""
    scope: Allowed = "admin"


class Admission:
    """The addresses with a token that are still good, and the cookies of one store.

    Args:
        machine: Keeps the secret that cookies are signed with; it is of this machine and this
            store.
        tokens: The tokens of agents.
        root: The store's directory: it names the cookie, as browsers send cookies to every port of
            a host.
        agent: The agent that the server was started for; None: the store's owner.
    """

    def __init__(
        self, machine: LocalDocuments, tokens: Tokens, root: str, agent: str | None
    ) -> None:
        self._own = Visitor(agent)
        self.cookie = f"capsule-{sha256(root.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"
        self._machine, self._tokens = machine, tokens
        self._first_key = machine.key(_KEY)
        self._unused: set[str] = set()

    def token(self) -> str:
        """Return a new token, which opens the page once, for whoever the server was started for."""
        token = secrets.token_urlsafe(24)
        self._unused.add(token)
        return token

    def is_unused(self, token: str) -> bool:
        """Return whether this is one of `token` that was not used yet."""
        return token in self._unused

    def admit(self, token: str) -> Visitor | None:
        """Return who comes with a token. None: it is none of `token` and no agent's.

        One of `token` is used up with that.
        """
        if token in self._unused:
            self._unused.discard(token)
            return self._own
        known = self._tokens.holder_of(token)
        return None if known is None else _visitor(known)

    def replaced_by_own(self, cookie: str) -> str:
        """Return who looks with a cookie and would not any more with one of `token`, in words;
        empty: nobody.
        """
        holder = self._holder_of(cookie)
        if holder is None or holder == (self._own.agent, ""):
            return ""
        return _in_words(holder[0])

    @property
    def own_name(self) -> str:
        """Whom the page shows to whoever comes with one of `token`, in words."""
        return _in_words(self._own.agent)

    def visitor_of(self, cookie: str) -> Visitor | None:
        """Return the visitor with a cookie; None: it is none of ours, too old, or of a token that
        was revoked.

        Cost: reading one or two small files.
        """
        holder = self._holder_of(cookie)
        if holder is None:
            return None
        agent, token = holder
        if not token:
            return self._own if agent == self._own.agent else None
        there = (_visitor(each) for each in self._tokens.all() if not each.has_expired(time.time()))
        return next(
            (visitor for visitor in there if (visitor.agent, visitor.token) == holder), None
        )

    def sign_in(self, answer: Response, visitor: Visitor, connection: HTTPConnection) -> None:
        """Give the browser the cookie of a visitor."""
        self.set_cookie(answer, self.cookie, self._value_for(visitor), _LASTS_S, connection)

    def sign_out_everywhere(self) -> None:
        """End every cookie of this store that was made on this machine. Raises StoreBusy, Refused,
        StorageFailed.
        """
        self._machine.renew_key(_KEY)

    def set_cookie(
        self, answer: Response, name: str, value: str, lasts_s: int, connection: HTTPConnection
    ) -> None:
        """Set a cookie that only the server reads, and that goes over TLS only if the browser
        speaks it.
        """
        is_tls = (
            connection.url.scheme == "https"
            or connection.headers.get("x-forwarded-proto") == "https"
        )
        answer.set_cookie(
            name, value, max_age=lasts_s, httponly=True, samesite="strict", secure=is_tls
        )

    def _value_for(self, visitor: Visitor) -> str:
        data = urlsafe_b64encode(
            orjson.dumps([visitor.agent, visitor.token, int(time.time()) + _LASTS_S])
        )
        return f"{data.decode()}.{self._mac(data)}"

    def _holder_of(self, cookie: str) -> tuple[str | None, str] | None:
        """The agent that a cookie names, and the hash of its token; None: the cookie is none of
        ours, or too old.
        """
        data, _, mac = cookie.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(data.encode()).encode()):
            return None
        with suppress(ValueError):
            agent, token, until = orjson.loads(urlsafe_b64decode(data))
            return (agent, token) if until >= time.time() else None
        return None

    def _mac(self, data: bytes) -> str:
        # Read anew, as another server of this store may have ended all cookies. Where nothing can
        # be written there is no file, and the key is this server's.
        key = self._machine.existing_key(_KEY) or self._first_key
        return hmac.new(key, self.cookie.encode() + b"." + data, sha256).hexdigest()


def _visitor(token: Token) -> Visitor:
    return Visitor(token.name, token.hash, token.scope)


def _in_words(agent: str | None) -> str:
    return agent or "the owner"
