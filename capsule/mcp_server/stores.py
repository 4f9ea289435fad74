"""Choose the store that serves a call.

Over stdio the process has one client and one store. Over HTTP each client has a store:

    client                               its store                      its locks last until
    with a session (protocol of 2025)    an instance of its own         the session ends
    without one (protocol of 2026)       the instance named after its   they are released, or `lock.ttl`
                                         token (`capsule --instance`)   after the last use

What must stay true: tools, resources and prompts reach a store only through `ClientStores`, so that
the same tools serve one client and many. Two sessions are two instances, even of one holder. When a
session ends, its locks are released, whether by DELETE, by idleness or because the server stops; a
request that still runs then takes no lock. All stores share the files and the index of one, so that
a session costs little.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from capsule.errors import CapsuleError, InvalidInput
from capsule.mcp_server import sdk
from capsule.mcp_server.access import SCOPES, Access, Scope
from capsule.mcp_server.transport.process import run_in_daemon_thread
from capsule.store.store import CoreStore

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.mcpserver import Context

    from capsule.store.store import CoreStore


@dataclass(slots=True)
class ConnectedClient:
    """A client of a server.

    Attributes:
        store: The store that acts for it. Its agent is the client, and it holds the client's locks.
        room_state: What the rooms, which are the packages beside the core, store for this client,
            by the room's name.
        used: The time of the last request, by the monotonic clock, in seconds.
    """

    store: CoreStore
    room_state: dict[str, Any] = field(default_factory=dict)
    used: float = 0.0


class ClientStores:
    """The store of a server over stdio, where the process is the instance and has one client.

    Args:
        store: The store. The caller closes it.
        access: What the client may do. None: everything.
        room_state: State that rooms store for the client, by name.
    """

    def __init__(
        self,
        store: CoreStore,
        access: Access | None = None,
        room_state: dict[str, Any] | None = None,
    ) -> None:
        #: Set when the only client has closed its input. Waiting calls then end.
        self.ended = anyio.Event()
        store.remember_own()
        self._main = ConnectedClient(store, {} if room_state is None else room_state)
        self._access = access or Access()

    def agent_stores(self) -> list[CoreStore]:
        """Return the stores that act for an agent now."""
        return [self._main.store]

    def client(self, ctx: ServerRequestContext[Any, Any]) -> ConnectedClient:
        """Return the client that made this request."""
        return self._main

    def store_for(self, ctx: ServerRequestContext[Any, Any]) -> CoreStore:
        """Return the store that acts for the client of this request."""
        return self.client(ctx).store

    def server_store(self) -> CoreStore:
        """Return the store of the server itself, which is watched."""
        return self._main.store

    def access(self, ctx: ServerRequestContext[Any, Any]) -> Access:
        """Return what the client of this request may do, and for which agent."""
        return self._access


def stores_of(ctx: Context) -> ClientStores:
    """Return the stores of the server that a call is made to."""
    server: Any = ctx.mcp_server
    stores: ClientStores = server.stores
    return stores


def store_of(ctx: Context) -> CoreStore:
    """Return the store that acts for the client of a call."""
    return stores_of(ctx).store_for(ctx.request_context)


def resolve_conversation(ctx: Context, id: str) -> tuple[CoreStore, str]:
    """Return the store of a call, and the id of the conversation that the client named by `id`."""
    store = store_of(ctx)
    return store, store.resolve(id)


def access_of(ctx: Context) -> Access:
    """Return what the client of a call may do, and for which agent."""
    return stores_of(ctx).access(ctx.request_context)


def author_of_call(ctx: Context, sender: str = "") -> str | None:
    """Return the agent that writes the messages of this call. None: it is unknown.

    Raises InvalidInput: the call names another sender than the client's own agent.
    """
    name = access_of(ctx).name
    if name is None:
        return sender or None
    if sender and sender != name:
        raise InvalidInput(f"sender: you write as {name} only; leave out sender")
    return name


def author_field(ctx: Context, sender: str = "") -> dict[str, Any]:
    """Return the field `from` for a message of this call, if its author is known.

    Raises InvalidInput: as `author_of_call`.
    """
    name = author_of_call(ctx, sender)
    return {} if name is None else {"from": name}


log = logging.getLogger("capsule")

#: The key in a connection's state that is set once its store was opened.
_HAD_STORE = "capsule.session"


class HttpClientStores(ClientStores):
    """The stores behind a server over HTTP, one for each session and each holder of a token.

    Args:
        root: The directory of the store.
        max_scope: The widest scope that any client has.
        on_open: Called with the store of a new client and the name of the holder.
        idle_s: Seconds without a request after which a holder's store is closed. Its locks are no
            longer refreshed then, so they expire.
    """

    def __init__(
        self,
        root: str,
        *,
        max_scope: Scope = "admin",
        on_open: Callable[[CoreStore, str], None] = lambda store, holder: None,
        idle_s: float = 60.0,
    ) -> None:
        super().__init__(CoreStore.open(root, keep_locks=False))
        self._max_scope = max_scope
        self._on_open = on_open
        self._idle_s = idle_s
        self._lock = threading.Lock()
        #: By the id of the session, empty for none, and the name of the holder.
        self._clients: dict[tuple[str, str], ConnectedClient] = {}
        self._is_closing = False

    def access(self, ctx: ServerRequestContext[Any, Any]) -> Access:
        """Return the access of the token of this request, limited to the widest scope of the
        server.
        """
        user: Any = ctx.request.scope["user"]  # type: ignore[union-attr]
        return Access(str(user.username), min(user.scopes[0], self._max_scope, key=SCOPES.index))

    def store_of_holder(self, holder: str) -> CoreStore:
        """Return the store for requests of a holder without a session. It stays open while it is
        used.
        """
        with self._lock:
            return self._client("", holder).store

    def client(self, ctx: ServerRequestContext[Any, Any]) -> ConnectedClient:
        """Return the client that made this request. The store of a session is opened at its first
        call.
        """
        # The SDK's own record of the session, because a header may be forged.
        connection = sdk.connection_of(ctx.session)
        session, holder = connection.session_id or "", str(self.access(ctx).name)
        with self._lock:
            if session and (session, holder) not in self._clients:
                if connection.state.get(_HAD_STORE):
                    raise InvalidInput("the session has ended; begin a new one")
                client = self._client(session, holder)
                connection.state[_HAD_STORE] = True
                connection.exit_stack.push_async_callback(self._end_in_thread, session)
                return client
            return self._client(session, holder)

    def _client(self, session: str, holder: str) -> ConnectedClient:
        if self._is_closing:
            raise InvalidInput("the server is being stopped")
        client = self._clients.get((session, holder))
        if client is None:
            # A session is an instance of its own. Without one, the instance has the holder's name.
            identity = {"user": holder} if session else {"instance": holder}
            store = self._main.store.beside(keep_locks=False, agent=holder, **identity)
            self._on_open(store, holder)
            store.remember_own()
            client = self._clients[session, holder] = ConnectedClient(store)
        client.used = time.monotonic()
        return client

    def agent_stores(self) -> list[CoreStore]:
        """Return the stores of the present sessions and holders."""
        with self._lock:
            return [client.store for client in self._clients.values()]

    async def _end_in_thread(self, session: str) -> None:
        # The SDK waits only for a while. A lock whose conversation is busy is released later.
        await anyio.to_thread.run_sync(self.end, session, abandon_on_cancel=True)

    def end(self, session: str) -> None:
        """Release the locks of a session that has ended. An unknown session is ignored."""
        self._close_if(lambda key, _: bool(session) and key[0] == session)

    def close_idle(self, holders: set[str]) -> None:
        """Close the stores of idle holders, and of all clients whose holder has no token any more.

        Args:
            holders: The names of the holders of valid tokens.
        """
        cutoff_s = time.monotonic() - self._idle_s
        self._close_if(
            lambda key, client: key[1] not in holders or (not key[0] and client.used < cutoff_s)
        )

    def _close_if(self, is_over: Callable[[tuple[str, str], ConnectedClient], bool]) -> None:
        with self._lock:
            closing_keys = [key for key, client in self._clients.items() if is_over(key, client)]
            closing = [self._clients.pop(key) for key in closing_keys]
        for client in closing:
            _run_logging_errors(client.store.close)

    def release(self) -> None:
        """Release the locks of all sessions, each in a thread. No store is opened from here on."""
        with self._lock:
            self._is_closing = True
            stores = [client.store for (session, _), client in self._clients.items() if session]
        _run_in_threads([store.release for store in stores])

    def close(self) -> None:
        """Close all stores."""
        with self._lock:
            self._is_closing = True
            stores = [client.store for client in self._clients.values()]
            self._clients = {}
        _run_in_threads([store.close for store in stores])
        _run_logging_errors(self._main.store.close)


def _run_in_threads(work: list[Callable[[], None]]) -> None:
    for thread in [run_in_daemon_thread(partial(_run_logging_errors, close)) for close in work]:
        thread.join()


def _run_logging_errors(close: Callable[[], None]) -> None:
    try:
        close()
    except CapsuleError as error:
        log.warning("a store could not be closed properly: %s", error)
