"""The store of each client over HTTP: an instance for each session, and one by name for each holder.

    client                                   its store                        its locks last
    with a session (protocol of 2025)        an instance of its own           to the end of the session
    without (protocol of 2026)               the instance of its token's      until unlocked, or `lock.ttl` after the
                                             name (`capsule --instance`)      last use; a save alone keeps none

What must stay true: two sessions are two instances, also of one holder; a session's locks are released when it ends,
however it ends (DELETE, idle too long, the server stops), and a request that still runs then takes no lock. All of them
share the files and the index of one store, so that a session costs little.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from capsule.errors import CapsuleError, InvalidInput
from capsule.mcp_server import sdk
from capsule.mcp_server.access import SCOPES, Access, Scope
from capsule.mcp_server.stores import Stores
from capsule.public import Store

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext

log = logging.getLogger("capsule")

_SEEN = "capsule.session"


@dataclass(slots=True)
class _Opened:
    """The store of a session or of a holder.

    Attributes:
        holder: Whose token it is for.
        used: When it was asked for last, by the monotonic clock.
        kept: What rooms keep for its client, by name.
    """

    store: Store
    holder: str
    used: float = field(default_factory=time.monotonic)
    kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.store.remember_own()


class HttpStores(Stores):
    """The stores behind a server over HTTP.

    Args:
        root: The store's directory.
        most: The widest scope that any client has.
        has_agents: Whether the holders are agents, who are online while a store is open for them.
        idle_s: Seconds without a request after which a holder's store is closed. Its locks are no longer refreshed
            then, so they expire.
    """

    def __init__(self, root: str, *, most: Scope = "admin", has_agents: bool = False, idle_s: float = 60.0) -> None:
        super().__init__(Store.open(root, keep_locks=False))
        self._most = most
        self._has_agents = has_agents
        self._idle_s = idle_s
        self._guard = threading.Lock()
        self._sessions: dict[str, _Opened] = {}
        self._holders: dict[str, _Opened] = {}
        self._is_over = False

    def access(self, ctx: ServerRequestContext[Any, Any]) -> Access:
        """What the token of this request says."""
        user: Any = ctx.request.scope["user"]  # type: ignore[union-attr]
        own = max((scope for scope in SCOPES if scope in user.scopes), key=SCOPES.index)
        return Access(str(user.username), min(own, self._most, key=SCOPES.index))

    def of(self, ctx: ServerRequestContext[Any, Any]) -> Store:
        """The store of the client that made this request; a session's is opened at its first call."""
        return self._opened(ctx).store

    def kept(self, ctx: ServerRequestContext[Any, Any]) -> dict[str, Any]:
        """What rooms keep for the client of this request, by name."""
        return self._opened(ctx).kept

    def _opened(self, ctx: ServerRequestContext[Any, Any]) -> _Opened:
        holder = self.access(ctx).name
        assert holder is not None
        # The SDK's own record of the session: what a header says may be made up.
        connection = sdk.connection_of(ctx.session)
        with self._running():
            if connection.session_id is None:
                return self._of_holder(holder)
            return self._sessions.get(connection.session_id) or self._begun(connection, holder)

    def of_holder(self, holder: str) -> Store:
        """The store of a holder's requests that have no session; it stays open while it is asked for again."""
        with self._running():
            return self._of_holder(holder).store

    @contextmanager
    def _running(self) -> Iterator[None]:
        with self._guard:
            if self._is_over:
                raise InvalidInput("the server is being stopped")
            yield

    def _of_holder(self, holder: str) -> _Opened:
        opened = self._holders.get(holder)
        if opened is None:
            opened = self._holders[holder] = self._open(holder, instance=holder)
        opened.used = time.monotonic()
        return opened

    def _begun(self, connection: Connection, holder: str) -> _Opened:
        session = str(connection.session_id)
        if connection.state.get(_SEEN):
            raise InvalidInput("the session has ended; begin a new one")
        connection.state[_SEEN] = True
        connection.exit_stack.push_async_callback(self._ended, session)
        return self._sessions.setdefault(session, self._open(holder, user=holder))

    def _open(self, holder: str, **options: str) -> _Opened:
        store = self._main.beside(keep_locks=False, agent=holder, **options)
        if self._has_agents:
            store.agents.ensure(holder)
            store.agents.serve()
        return _Opened(store, holder)

    def acting(self) -> list[Store]:
        """The stores of the sessions and holders that there are now."""
        with self._guard:
            return [one.store for one in (*self._sessions.values(), *self._holders.values())]

    async def _ended(self, session: str) -> None:
        # The SDK waits for a while; a lock that can't be released by then is, when its conversation can be had.
        await anyio.to_thread.run_sync(self.end, session, abandon_on_cancel=True)

    def end(self, session: str) -> None:
        """Release the locks of a session that has ended; an unknown one is passed over."""
        with self._guard:
            ended = self._sessions.pop(session, None)
        if ended is not None:
            _let_go(ended.store.close)

    def tidy(self, holders: set[str]) -> None:
        """Close the stores of idle holders, and of those whose token was revoked.

        Args:
            holders: The names of those who have a token.
        """
        before = time.monotonic() - self._idle_s
        with self._guard:
            idle = [name for name, one in self._holders.items() if one.used < before or name not in holders]
            revoked = [id for id, one in self._sessions.items() if one.holder not in holders]
            closing = [self._holders.pop(name) for name in idle] + [self._sessions.pop(id) for id in revoked]
        for one in closing:
            _let_go(one.store.close)

    def release(self) -> None:
        """Release the locks of all sessions at once, each beside the others; no store is opened from here on."""
        with self._guard:
            self._is_over = True
            stores = [session.store for session in self._sessions.values()]
        _all_at_once([store.release for store in stores])

    def close(self) -> None:
        """Close all stores."""
        with self._guard:
            self._is_over = True
            stores = [one.store for one in (*self._sessions.values(), *self._holders.values())]
            self._sessions, self._holders = {}, {}
        _all_at_once([store.close for store in stores])
        _let_go(self._main.close)


def _all_at_once(work: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=partial(_let_go, one), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _let_go(close: Callable[[], None]) -> None:
    try:
        close()
    except CapsuleError as error:
        log.warning("a store could not be closed as it should be: %s", error)
