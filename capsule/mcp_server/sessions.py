"""The store of each client over HTTP: an instance for each session, and one by name for each
holder.

    client                                   its store                        its locks last
    with a session (protocol of 2025)        an instance of its own           to the end of the session
    without (protocol of 2026)               the instance of its token's      until unlocked, or `lock.ttl` after the
                                             name (`capsule --instance`)      last use; a save alone keeps none

What must stay true: two sessions are two instances, also of one holder; a session's locks are
released when it ends, however it ends (DELETE, idle too long, the server stops), and a request that
still runs then takes no lock. All of them share the files and the index of one store, so that a
session costs little.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from capsule.errors import CapsuleError, InvalidInput
from capsule.mcp_server import sdk
from capsule.mcp_server.access import SCOPES, Access, Scope
from capsule.mcp_server.stores import Client, Stores
from capsule.mcp_server.transport.lifetime import beside
from capsule.store.store import CoreStore

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from capsule.mcp_server.added import Added

log = logging.getLogger("capsule")

_SEEN = "capsule.session"


class HttpStores(Stores):
    """The stores behind a server over HTTP.

    Args:
        most: The widest scope that any client has.
        added: What is added to the server.
        idle_s: Seconds without a request after which a holder's store is closed. Its locks are no
            longer refreshed then, so they expire.
    """

    def __init__(
        self, root: str, *, most: Scope = "admin", added: Sequence[Added] = (), idle_s: float = 60.0
    ) -> None:
        super().__init__(CoreStore.open(root, keep_locks=False))
        self._most, self._added, self._idle_s = most, added, idle_s
        self._guard = threading.Lock()
        #: By the session's id, empty for none, and the holder's name.
        self._clients: dict[tuple[str, str], Client] = {}
        self._is_over = False

    def access(self, ctx: ServerRequestContext[Any, Any]) -> Access:
        """What the token of this request says."""
        user: Any = ctx.request.scope["user"]  # type: ignore[union-attr]
        return Access(str(user.username), min(user.scopes[0], self._most, key=SCOPES.index))

    def of_holder(self, holder: str) -> CoreStore:
        """The store of a holder's requests that have no session; it stays open while it is asked
        for again.
        """
        with self._guard:
            return self._client("", holder).store

    def client(self, ctx: ServerRequestContext[Any, Any]) -> Client:
        """The client that made this request; the store of a session is opened at its first call."""
        # The SDK's own record of the session: what a header says may be made up.
        connection = sdk.connection_of(ctx.session)
        session, holder = connection.session_id or "", str(self.access(ctx).name)
        with self._guard:
            if session and (session, holder) not in self._clients:
                if connection.state.get(_SEEN):
                    raise InvalidInput("the session has ended; begin a new one")
                client = self._client(session, holder)
                connection.state[_SEEN] = True
                connection.exit_stack.push_async_callback(self._ended, session)
                return client
            return self._client(session, holder)

    def _client(self, session: str, holder: str) -> Client:
        if self._is_over:
            raise InvalidInput("the server is being stopped")
        client = self._clients.get((session, holder))
        if client is None:
            whose = {"user": holder} if session else {"instance": holder}
            store = self._main.store.beside(keep_locks=False, agent=holder, **whose)
            for added in self._added:
                if added.enrol is not None:
                    added.enrol(store, holder, None, True)
                if added.arrive is not None:
                    added.arrive(store)
            store.remember_own()
            client = self._clients[session, holder] = Client(store)
        client.used = time.monotonic()
        return client

    def acting(self) -> list[CoreStore]:
        """The stores of the sessions and holders that there are now."""
        with self._guard:
            return [client.store for client in self._clients.values()]

    async def _ended(self, session: str) -> None:
        # The SDK waits for a while; a lock that can't be released by then is, when its conversation
        # can be had.
        await anyio.to_thread.run_sync(self.end, session, abandon_on_cancel=True)

    def end(self, session: str) -> None:
        """Release the locks of a session that has ended; an unknown one is passed over."""
        self._close_if(lambda key, _: bool(session) and key[0] == session)

    def tidy(self, holders: set[str]) -> None:
        """Close the stores of idle holders, and of all who are not among `holders`, who have a
        token.
        """
        before = time.monotonic() - self._idle_s
        self._close_if(
            lambda key, client: key[1] not in holders or (not key[0] and client.used < before)
        )

    def _close_if(self, is_over: Callable[[tuple[str, str], Client], bool]) -> None:
        with self._guard:
            over = [key for key, client in self._clients.items() if is_over(key, client)]
            closing = [self._clients.pop(key) for key in over]
        for client in closing:
            _let_go(client.store.close)

    def release(self) -> None:
        """Release the locks of all sessions at once, each beside the others; no store is opened
        from here on.
        """
        with self._guard:
            self._is_over = True
            stores = [client.store for (session, _), client in self._clients.items() if session]
        _all_at_once([store.release for store in stores])

    def close(self) -> None:
        """Close all stores."""
        with self._guard:
            self._is_over = True
            stores = [client.store for client in self._clients.values()]
            self._clients = {}
        _all_at_once([store.close for store in stores])
        _let_go(self._main.store.close)


def _all_at_once(work: list[Callable[[], None]]) -> None:
    for thread in [beside(partial(_let_go, close)) for close in work]:
        thread.join()


def _let_go(close: Callable[[], None]) -> None:
    try:
        close()
    except CapsuleError as error:
        log.warning("a store could not be closed as it should be: %s", error)
