"""Which store stands for a client over HTTP: an instance for each session, one by name for each holder.

    client                                   its store                        its locks last
    with a session (protocol of 2025)        an instance of its own           to the end of the session
    without (protocol of 2026), with a       the instance of that name, as    until unlocked, or `lock.ttl` after the
    token                                    `capsule --instance NAME`        last use; a save alone keeps none
    without session and token                one that can't lock              -

What must stay true: two sessions are two instances, also of one holder; a session's locks are released when it ends,
however it ends (DELETE, idle too long, the server stops), and a request that is still running then locks nothing any
more; and the module knows of HTTP only that a request has a user and a session.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from capsule.errors import CapsuleError, InvalidInput
from capsule.store import Store

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context

    from capsule.holding import HeldLock

__all__ = ["HttpStores"]

_log = logging.getLogger("capsule")

_SEEN = "capsule.session"


class _Unlocking(Store):
    """A store for clients that nobody can tell apart: there is nobody who could hold a lock."""

    def lock(self, id: str) -> HeldLock:
        """Refused."""
        raise InvalidInput(
            f"conversation {id} was not locked: without a session and without a token nobody can be told apart, and "
            f"so nobody can hold a lock; give the client a token (capsule tokens add NAME). Saves need no lock"
        )


@dataclass(frozen=True, slots=True)
class _Session:
    """The store of a session, and the holder whose token began it."""

    store: Store
    user: str | None


@dataclass(slots=True)
class _Named:
    """The store of a holder.

    Attributes:
        used: When it was asked for last, by the monotonic clock.
    """

    store: Store
    used: float = field(default_factory=time.monotonic)


class HttpStores:
    """The stores behind a server over HTTP.

    Args:
        root: The store's directory.
        idle_s: Seconds after which the store of a holder who asks for nothing is closed. Its locks stay, and are no
            longer refreshed, so that they run out.
    """

    def __init__(self, root: str, *, idle_s: float = 60.0) -> None:
        self._root = root
        self._idle_s = idle_s
        self._guard = threading.Lock()
        self._sessions: dict[str, _Session] = {}
        self._named: dict[str, _Named] = {}
        self._anonymous: Store | None = None
        self._is_over = False
        self._main = Store.open(root, keep_locks=False)

    def main(self) -> Store:
        """The server's own store."""
        return self._main

    def of(self, ctx: Context) -> Store:
        """The store of the client that made this call. A session's is made at its first call."""
        request: Any = ctx.request_context.request
        user = request.scope.get("user")
        name = None if user is None else str(user.username)
        # The SDK's own record of the session, which it shows to nobody else: what a header says may be made up.
        connection: Any = ctx.request_context.session._connection
        if connection.session_id is None:
            return self._of_nobody() if name is None else self._of_holder(name)
        return self._of_session(connection, name)

    def _of_session(self, connection: Any, user: str | None) -> Store:
        with self._guard:
            session = self._sessions.get(connection.session_id)
            if session is None:
                self._ensure_running()
                if connection.state.get(_SEEN):
                    raise InvalidInput("the session has ended; begin a new one")
                session = _Session(Store.open(self._root, keep_locks=False, user=user), user)
                self._sessions[connection.session_id] = session
                connection.state[_SEEN] = True
                connection.exit_stack.push_async_callback(self._ended, connection.session_id)
        return session.store

    def _of_holder(self, name: str) -> Store:
        with self._guard:
            named = self._named.get(name)
            if named is None:
                self._ensure_running()
                opened = Store.open(self._root, keep_locks=False, instance=name)
                named = self._named[name] = _Named(opened)
            named.used = time.monotonic()
            return named.store

    def _of_nobody(self) -> Store:
        with self._guard:
            if self._anonymous is None:
                self._ensure_running()
                self._anonymous = _Unlocking.open(self._root, keep_locks=False)
            return self._anonymous

    def _ensure_running(self) -> None:
        if self._is_over:
            raise InvalidInput("the server is being stopped")

    async def _ended(self, session: str) -> None:
        # The SDK waits for a while; a lock that can't be released by then is, when its conversation can be had.
        await anyio.to_thread.run_sync(self.end, session, abandon_on_cancel=True)

    def end(self, session: str) -> None:
        """A session has ended: its locks are released. Nothing happens when there is no such session."""
        with self._guard:
            ended = self._sessions.pop(session, None)
        if ended is not None:
            _let_go(ended.store.close)

    def tidy(self, holders: set[str]) -> None:
        """Close the stores of holders who have asked for nothing lately, or have no token any more.

        Args:
            holders: The names of those who have one.
        """
        before = time.monotonic() - self._idle_s
        with self._guard:
            idle = [name for name, named in self._named.items() if named.used < before or name not in holders]
            revoked = [id for id, session in self._sessions.items() if session.user not in {None, *holders}]
            closing = [self._named.pop(name).store for name in idle]
            closing += [self._sessions.pop(id).store for id in revoked]
        for store in closing:
            _let_go(store.close)

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
            stores = [session.store for session in self._sessions.values()]
            stores += [*(named.store for named in self._named.values()), self._main]
            stores += [self._anonymous] if self._anonymous is not None else []
            self._sessions, self._named, self._anonymous = {}, {}, None
        _all_at_once([store.close for store in stores])


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
        _log.warning("a store could not be closed as it should be: %s", error)
