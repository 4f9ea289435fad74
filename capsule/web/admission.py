"""Decides which visitors may open the page, by a token or a cookie.

A visitor comes with a token: one of an address that the server printed, which is valid once, or one
of an agent. The server answers with a cookie, which names the agent and the hash of the token, and
is signed with a key of this machine. Later requests show the cookie.

What must stay true: a cookie was made by this machine for this store. It is invalid when its token
is revoked or expires, or when the key is renewed. The permissions of an agent are not decided here,
but by its store.
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
    from capsule.mcp_server.access import Token, Tokens

#: How long a cookie is valid, in seconds.
_COOKIE_S: Final = 30 * 86_400
#: The id of the key that cookies are signed with.
_KEY: Final = "web"


class Visitor(NamedTuple):
    """A visitor of the page.

    Attributes:
        agent: The agent that the visitor is: of the token, or the one that started the server.
            None: the store's owner.
        token: The hash of the agent's token. Empty: the visitor used an address of the server.
        scope: The widest permission of the token.
    """

    agent: str | None = None
    token: str = ""
    scope: Allowed = "admin"


class Admission:
    """The valid tokens of addresses, and the cookies of one store.

    Args:
        local: The documents of this machine for this store. One has the key that signs cookies.
        tokens: The tokens of agents.
        root: The store's directory. The name of the cookie is derived from it, as browsers send
            cookies to every port of a host.
        agent: The agent that the server was started for. None: the store's owner.
    """

    def __init__(self, local: LocalDocuments, tokens: Tokens, root: str, agent: str | None) -> None:
        self._server_visitor = Visitor(agent)
        self.cookie = f"capsule-{sha256(root.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"
        self._local = local
        self._tokens = tokens
        self._first_key = local.key(_KEY)
        self._unused_tokens: set[str] = set()

    def token(self) -> str:
        """Return a new token. It opens the page once, for the agent or owner of the server."""
        token = secrets.token_urlsafe(24)
        self._unused_tokens.add(token)
        return token

    def is_unused(self, token: str) -> bool:
        """Return whether a token is from `token` and was not used yet."""
        return token in self._unused_tokens

    def admit(self, token: str) -> Visitor | None:
        """Return the visitor with a token, or None if the token is not valid.

        A token from `token` is invalid after this call.
        """
        if token in self._unused_tokens:
            self._unused_tokens.discard(token)
            return self._server_visitor
        agent_token = self._tokens.holder_of(token)
        return None if agent_token is None else _visitor(agent_token)

    def replaced_by_own(self, cookie: str) -> str:
        """Return the name of the visitor with a cookie, whom a token from `token` would sign out.

        Empty: the cookie is not valid, or the token is for the same visitor.
        """
        holder = self._holder_of(cookie)
        if holder is None or holder == (self._server_visitor.agent, ""):
            return ""
        agent, _ = holder
        return _visitor_name(agent)

    @property
    def own_name(self) -> str:
        """The name of the visitor with a token from `token`."""
        return _visitor_name(self._server_visitor.agent)

    def visitor_of(self, cookie: str) -> Visitor | None:
        """Return the visitor with a cookie.

        Returns None if this server did not make the cookie, if it is too old, or if its token was
        revoked. Cost: reading one or two small files.
        """
        holder = self._holder_of(cookie)
        if holder is None:
            return None
        agent, token = holder
        if not token:
            return self._server_visitor if agent == self._server_visitor.agent else None
        for agent_token in self._tokens.all():
            if agent_token.has_expired(time.time()):
                continue
            visitor = _visitor(agent_token)
            if (visitor.agent, visitor.token) == holder:
                return visitor
        return None

    def sign_in(self, answer: Response, visitor: Visitor, connection: HTTPConnection) -> None:
        """Give the browser the cookie of a visitor."""
        self.set_cookie(answer, self.cookie, self._value_for(visitor), _COOKIE_S, connection)

    def sign_out_everywhere(self) -> None:
        """Make all cookies of this store invalid that this machine made.

        Raises StoreBusy, Refused, StorageFailed.
        """
        self._local.renew_key(_KEY)

    def set_cookie(
        self, answer: Response, name: str, value: str, lasts_s: int, connection: HTTPConnection
    ) -> None:
        """Set a cookie that scripts can't read. With TLS, the browser sends it over TLS only."""
        is_tls = (
            connection.url.scheme == "https"
            or connection.headers.get("x-forwarded-proto") == "https"
        )
        answer.set_cookie(
            name, value, max_age=lasts_s, httponly=True, samesite="strict", secure=is_tls
        )

    def _value_for(self, visitor: Visitor) -> str:
        valid_until = int(time.time()) + _COOKIE_S
        data = urlsafe_b64encode(orjson.dumps([visitor.agent, visitor.token, valid_until]))
        return f"{data.decode()}.{self._mac(data)}"

    def _holder_of(self, cookie: str) -> tuple[str | None, str] | None:
        """Return the agent in a cookie, and the hash of its token.

        Returns None if this machine did not sign the cookie, or if it is too old.
        """
        data, _, mac = cookie.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(data.encode()).encode()):
            return None
        with suppress(ValueError):
            agent, token, valid_until = orjson.loads(urlsafe_b64decode(data))
            return (agent, token) if valid_until >= time.time() else None
        return None

    def _mac(self, data: bytes) -> str:
        # The key is read each time, as another server of this store may have renewed it. If the
        # directory is not writable, the key has no file, and belongs to this server alone.
        key = self._local.existing_key(_KEY) or self._first_key
        return hmac.new(key, self.cookie.encode() + b"." + data, sha256).hexdigest()


def _visitor(token: Token) -> Visitor:
    return Visitor(token.name, token.hash, token.scope)


def _visitor_name(agent: str | None) -> str:
    return agent or "the owner"
