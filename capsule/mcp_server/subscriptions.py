"""Notifies clients of changes, in both eras of the protocol.

A client of 2025 asks with `resources/subscribe` and hears of it on its connection; one of 2026 asks
with `subscriptions/listen`, which the SDK answers from a bus. What must stay true: both hear the
same, of whoever wrote it; a client hears of every change after the answer to its subscription, and
of none that its agent may not read; the store is followed only while somebody listens; and a client
that does not read delays the others for seconds only.
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

_log = logging.getLogger("capsule")
#: Seconds after which a client that takes no notification is given up.
_PATIENCE_S = 5.0
_RETRY_S = 1.0
_LISTED = frozenset({"created", "deleted", "restored", "damaged", "repaired"})
#: The store of the client that subscribes.
_SUBSCRIBER: ContextVar[CoreStore] = ContextVar("subscriber")


class VisibilityBus(InMemorySubscriptionBus):
    """The bus of one server, which passes over the clients whose agent may not read
    what changed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.passed_over: frozenset[CoreStore] = frozenset()

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Deliver events to a listener."""
        store = _SUBSCRIBER.get()
        return super().subscribe(
            lambda event: None if store in self.passed_over else listener(event)
        )


class Subscriptions:
    """Who listens to what on one server, and the task that follows the store for them.

    It belongs to one event loop of asyncio, which the transports of the SDK run on.
    """

    def __init__(self, bus: VisibilityBus, stores: ClientStores) -> None:
        self._bus, self._stores, self._listened = bus, stores, ListenHandler(bus)
        self._connections: dict[Connection, tuple[CoreStore, set[str]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._begun = asyncio.Event()
        self._listening: Counter[CoreStore] = Counter()

    def serve(self, server: Server[Any]) -> None:
        """Answer `resources/subscribe` and `resources/unsubscribe` of this server, and say that its
        list changes.
        """
        server.add_request_handler("resources/subscribe", SubscribeRequestParams, self._subscribe)
        server.add_request_handler(
            "resources/unsubscribe", UnsubscribeRequestParams, self._unsubscribe
        )
        server.add_request_handler(
            "subscriptions/listen", SubscriptionsListenRequestParams, self._listen
        )
        sdk.say_that_lists_change(server)

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
        self._adapt()
        await self._begun.wait()
        return EmptyResult()

    async def _listen(
        self, ctx: ServerRequestContext[Any], params: SubscriptionsListenRequestParams
    ) -> SubscriptionsListenResult:
        store = self._stores.store_for(ctx)
        _SUBSCRIBER.set(store)
        self._listening[store] += 1
        try:
            self._adapt()
            await self._begun.wait()
            return await self._listened(ctx, params)
        finally:
            self._listening -= Counter([store])
            self._adapt()

    async def _unsubscribe(
        self, ctx: ServerRequestContext[Any], params: UnsubscribeRequestParams
    ) -> EmptyResult:
        connection = sdk.connection_of(ctx.session)
        if connection in self._connections:
            self._connections[connection][1].discard(str(params.uri))
        self._adapt()
        return EmptyResult()

    def _forget(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._adapt()

    @property
    def followed(self) -> bool:
        """Whether the store is followed now."""
        return self._task is not None and not self._task.done()

    def _adapt(self) -> None:
        """Follow the store when somebody listens, and only then."""
        wanted = bool(self._listening) or any(uris for _, uris in self._connections.values())
        if wanted and not self.followed:
            self._begun = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._follow(self._begun))
        elif not wanted and self._task is not None:
            self._task.cancel()
            self._task = None

    async def _follow(self, begun: asyncio.Event) -> None:
        at: str | None = None
        while True:
            try:
                store = self._stores.server_store()
                if at is None:
                    at = (await anyio.to_thread.run_sync(store.changes)).cursor
                    begun.set()
                async with store.watch(at) as watch:
                    async for change in watch:
                        at = change.cursor
                        self._bus.passed_over = await self._who_may_not_read(change)
                        for event in events(change):
                            await self._tell(event)
                return  # The store was closed.
            except CapsuleError as error:
                _log.warning("changes are not sent to subscribers for now: %s", error.message)
            except Exception:
                _log.exception("changes are no longer sent to subscribers")
                return
            finally:
                begun.set()  # Nobody waits for what may never begin.
            await anyio.sleep(_RETRY_S)

    async def _who_may_not_read(self, change: Change) -> frozenset[CoreStore]:
        """The stores of the clients that must not hear of a change."""
        listening = {*self._listening, *(store for store, _ in self._connections.values())}
        agents = [store for store in listening if store.agent is not None]

        def blind() -> frozenset[CoreStore]:
            return frozenset(store for store in agents if not can_read(store.engine, change.id))

        return await anyio.to_thread.run_sync(blind) if agents else frozenset()

    async def _tell(self, event: ServerEvent) -> None:
        await self._bus.publish(event)
        for connection, (store, uris) in list(self._connections.items()):
            wants = event.uri in uris if isinstance(event, ResourceUpdated) else bool(uris)
            if not wants or store in self._bus.passed_over:
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
    """The events of one change."""
    from capsule.mcp_server.resources import CONVERSATIONS, address, message_address

    yield ResourceUpdated(uri=address(change.id))
    for message in (*change.messages, *change.removed):
        yield ResourceUpdated(uri=message_address(change.id, message))
    yield ResourceUpdated(uri=CONVERSATIONS)
    if change.kind in _LISTED or (
        change.kind == "head" and {"title", "archived"} & set(change.fields)
    ):
        yield ResourcesListChanged()
