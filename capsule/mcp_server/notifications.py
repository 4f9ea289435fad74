"""Notify clients of the log and of changes, in both eras of the protocol.

The log is that of the logger `capsule`. A client of 2025 calls `logging/setLevel` and
`resources/subscribe`, and is notified on its connection. A client of 2026 asks for the log with each
request, which the SDK answers, and calls `subscriptions/listen`, which the SDK answers from a bus.
One task follows the store for both, and sends each change to the connections and to the bus.

What must stay true: clients of both eras get the same events, whoever wrote the change. A client
gets every change after the answer to its subscription, but none that its agent may not read. The
store is followed only while a client listens. A client that reads nothing delays the others for
seconds only. A client that set no level gets no log, and the code that logs never waits for a client.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
)
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    EmptyResult,
    SetLevelRequestParams,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    UnsubscribeRequestParams,
)

from capsule.errors import CapsuleError
from capsule.mcp_server import sdk
from capsule.store.store import CoreStore
from capsule.store.view import can_read
from capsule.untrusted_text import visible

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from capsule.engines.changes import Change
    from capsule.mcp_server.stores import ClientStores


# -- The log ---------------------------------------------------------------------------------------

#: For each level of the protocol (RFC 5424) the lowest level of Python's logging that is sent.
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL + 1,
    "emergency": logging.CRITICAL + 1,
}
_NAMES = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
}


class ClientLogHandler(logging.Handler):
    """Sends log records to the clients of one server that set a level.

    It belongs to one event loop of asyncio. It listens to the logger `capsule` while at least one
    client has set a level. Every such client gets the records of all requests of the process.
    """

    def __init__(self) -> None:
        # Each client has a level of its own, which `_send` compares. Records below the level of the
        # logger itself do not arrive here.
        super().__init__(logging.DEBUG)
        self._levels: dict[Connection, int] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def serve(self, server: Server[Any]) -> None:
        """Register the handler of `logging/setLevel` on this server. Call it once."""
        server.add_request_handler("logging/setLevel", SetLevelRequestParams, self._set_level)

    async def _set_level(
        self, ctx: ServerRequestContext[Any], params: SetLevelRequestParams
    ) -> EmptyResult:
        connection = sdk.connection_of(ctx.session)
        if connection not in self._levels:
            connection.exit_stack.callback(self._forget, connection)
        self._levels[connection] = _LEVELS[params.level]
        self._loop = asyncio.get_running_loop()
        logging.getLogger("capsule").addHandler(self)
        return EmptyResult()

    def _forget(self, connection: Connection) -> None:
        self._levels.pop(connection, None)
        if not self._levels:
            logging.getLogger("capsule").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Pass the record to the event loop, from any thread."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._send, record.levelno, visible(record.getMessage()))

    def _send(self, level: int, message: str) -> None:
        # Above ERROR everything is critical. A level below, without a name there, counts as debug.
        name = _NAMES.get(level, "critical" if level > logging.ERROR else "debug")
        params = {"level": name, "logger": "capsule", "data": message}
        for connection, minimum in self._levels.items():
            if level >= minimum:
                task = asyncio.ensure_future(connection.notify("notifications/message", params))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


# -- Changes ---------------------------------------------------------------------------------------

_log = logging.getLogger("capsule")
#: Seconds after which a client that reads no notification gets no more of them.
_PATIENCE_S = 5.0
_RETRY_S = 1.0
_LIST_CHANGES = frozenset({"created", "deleted", "restored", "damaged", "repaired"})
#: The store of the client that subscribes.
_SUBSCRIBER: ContextVar[CoreStore] = ContextVar("subscriber")


class VisibilityBus(InMemorySubscriptionBus):
    """The bus of one server. It skips the clients whose agents may not read the changed
    conversation.

    Attributes:
        excluded_stores: The stores of those clients, for the event that is published now.
    """

    def __init__(self) -> None:
        super().__init__()
        self.excluded_stores: frozenset[CoreStore] = frozenset()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Deliver events to a listener, but those from which its store is excluded."""
        store = _SUBSCRIBER.get()
        return super().subscribe(
            lambda event: None if store in self.excluded_stores else listener(event)
        )


class Subscriptions:
    """The subscriptions of the clients of one server, and the task that follows the store for them.

    It belongs to one event loop of asyncio, that of the SDK's transports.
    """

    def __init__(self, bus: VisibilityBus, stores: ClientStores) -> None:
        self._bus = bus
        self._stores = stores
        self._listen_handler = ListenHandler(bus)
        #: The clients of 2025, each with its store and the addresses that it subscribed to.
        self._connections: dict[Connection, tuple[CoreStore, set[str]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._started = asyncio.Event()
        self._listener_counts: Counter[CoreStore] = Counter()

    def serve(self, server: Server[Any]) -> None:
        """Answer subscriptions on this server, and announce that its list of resources may change."""
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self._subscribe)
        server.add_request_handler(
            "resources/unsubscribe", UnsubscribeRequestParams, self._unsubscribe
        )
        server.add_request_handler(
            "subscriptions/listen", SubscriptionsListenRequestParams, self._listen
        )
        sdk.announce_list_changes(server)

    async def _subscribe(
        self, ctx: ServerRequestContext[Any], params: SubscribeRequestParams
    ) -> EmptyResult:
        from capsule.mcp_server.resources import RESOURCE_ADDRESS

        if not RESOURCE_ADDRESS.fullmatch(str(params.uri)):
            raise MCPError(INVALID_PARAMS, f"there is no resource {visible(str(params.uri)[:200])}")
        connection = sdk.connection_of(ctx.session)
        if connection not in self._connections:
            self._connections[connection] = self._stores.store_for(ctx), set()
            connection.exit_stack.callback(self._forget, connection)
        self._connections[connection][1].add(str(params.uri))
        self._start_or_stop()
        await self._started.wait()
        return EmptyResult()

    async def _listen(
        self, ctx: ServerRequestContext[Any], params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        store = self._stores.store_for(ctx)
        _SUBSCRIBER.set(store)
        self._listener_counts[store] += 1
        try:
            self._start_or_stop()
            await self._started.wait()
            return await self._listen_handler(ctx, params)
        finally:
            self._listener_counts -= Counter([store])
            self._start_or_stop()

    async def _unsubscribe(
        self, ctx: ServerRequestContext[Any], params: UnsubscribeRequestParams
    ) -> EmptyResult:
        connection = sdk.connection_of(ctx.session)
        if connection in self._connections:
            self._connections[connection][1].discard(str(params.uri))
        self._start_or_stop()
        return EmptyResult()

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._start_or_stop()

    @property
    def is_following(self) -> bool:
        """Return whether the store is followed now."""
        return self._task is not None and not self._task.done()

    def _start_or_stop(self) -> None:
        """Start the task if a client listens, else stop it."""
        has_listeners = bool(self._listener_counts) or any(
            uris for _, uris in self._connections.values()
        )
        if has_listeners and not self.is_following:
            self._started = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._follow(self._started))
        elif not has_listeners and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _follow(self, started: asyncio.Event) -> None:
        """Follow the store, and notify clients of each change. If the store fails, try again.

        Args:
            started: Set when changes from then on are sent.
        """
        cursor: str | None = None
        while True:
            try:
                store = self._stores.server_store()
                if cursor is None:
                    cursor = (await anyio.to_thread.run_sync(store.changes)).cursor
                    started.set()
                async with store.watch(cursor) as watch:
                    async for change in watch:
                        cursor = change.cursor
                        self._bus.excluded_stores = await self._stores_without_access(change)
                        for event in events(change):
                            await self._notify(event)
                return  # The store was closed.
            except CapsuleError as error:
                _log.warning("changes are not sent to subscribers for now: %s", error.message)
            except Exception:
                _log.exception("changes are no longer sent to subscribers")
                return
            finally:
                started.set()  # Nobody waits for what may never begin.
            await anyio.sleep(_RETRY_S)

    async def _stores_without_access(self, change: Change) -> frozenset[CoreStore]:
        """Return the stores of the clients that may not read a changed conversation."""
        listening = {*self._listener_counts, *(store for store, _ in self._connections.values())}
        agents = [store for store in listening if store.agent is not None]

        def blind() -> frozenset[CoreStore]:
            return frozenset(store for store in agents if not can_read(store.engine, change.id))

        return await anyio.to_thread.run_sync(blind) if agents else frozenset()

    async def _notify(self, event: ServerEvent) -> None:
        """Send an event to all clients that subscribed to its resource and may read it."""
        await self._bus.publish(event)
        for connection, (store, uris) in list(self._connections.items()):
            wants = event.uri in uris if isinstance(event, ResourceUpdated) else bool(uris)
            if not wants or store in self._bus.excluded_stores:
                continue
            with anyio.move_on_after(_PATIENCE_S) as scope:
                if isinstance(event, ResourceUpdated):
                    await connection.send_resource_updated(event.uri)
                else:
                    await connection.send_resource_list_changed()
            if scope.cancelled_caught:
                _log.warning("changes are no longer sent to a client that reads no notifications")
                self._forget(connection)


def events(change: Change) -> Iterator[ServerEvent]:
    """Yield the events of one change."""
    from capsule.mcp_server.resources import CONVERSATIONS, address, message_address

    yield ResourceUpdated(uri=address(change.id))
    for message in (*change.messages, *change.removed):
        yield ResourceUpdated(uri=message_address(change.id, message))
    yield ResourceUpdated(uri=CONVERSATIONS)
    if change.kind in _LIST_CHANGES or (
        change.kind == "head" and {"title", "archived"} & set(change.fields)
    ):
        yield ResourcesListChanged()
