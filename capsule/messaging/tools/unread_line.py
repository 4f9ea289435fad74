"""How a client learns of messages without `listen`: a line below another answer, its doorbell, and a
notice in its project.

What must stay true: the line reports a new message once, and never contains its text. The task that
rings costs next to nothing while nothing changes. A notification of the protocol starts no turn of
a model, which is why there are doorbells.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from capsule.errors import CapsuleError
from capsule.messaging.agents import Agents
from capsule.untrusted_text import word

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext

    from capsule.mcp_server.stores import ClientStores
    from capsule.messaging.mail import Mail
    from capsule.messaging.messages import Messages
    from capsule.store.store import CoreStore


_log = logging.getLogger("capsule")
#: Seconds between two looks while messages wait: a doorbell rings again after a minute at the
#: earliest.
_AGAIN_S = 30.0
#: Seconds between two looks while others write much; whoever sends a message rings at once.
_PAUSE_S = 2.0


class ClientInbox:
    """How far one client was told of its messages.

    Args:
        store: The client's store.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        #: Of each conversation the newest message that the client was told of or given.
        self._told: dict[str, str] = {}
        self._messages: Messages | None = None

    def line(self) -> str:
        """The line below another answer; empty: the client was told of all that is unread. Costs an
        inbox.
        """
        inbox = mail_of(self._store).inbox()
        newest = {item.id: item.last.id for item in inbox.conversations}
        is_known = newest.items() <= self._told.items()
        self._told |= newest
        return (
            ""
            if is_known
            else f"{inbox.unread} unread from {', '.join(map(word, inbox.senders))}: listen"
        )

    @property
    def messages(self) -> Messages:
        """What the client listens with: its next call acknowledges what the last one gave."""
        if self._messages is None:
            from capsule.messaging.messages import Messages

            self._messages = Messages(self._store)
        return self._messages

    def lost(self) -> None:
        """Note that an answer did not reach the client: what was given and not acknowledged is
        given again.
        """
        self._messages = None

    def got(self, mail: Iterable[Mail]) -> None:
        """Note that the client was given messages, in the order of their conversations."""
        self._told |= {each.conversation: each.id for each in mail}


def mail_of(store: CoreStore) -> Messages:
    """The messages of a store."""
    from capsule.messaging.messages import Messages

    return store.inner.object_of(Messages)


def reader_of(stores: ClientStores, ctx: ServerRequestContext[Any, Any]) -> ClientInbox:
    """How far the client of a request was told of its messages."""
    client = stores.client(ctx)
    if "messaging" not in client.room_state:
        client.room_state.setdefault("messaging", ClientInbox(client.store))
    reader: ClientInbox = client.room_state["messaging"]
    return reader


class UnreadLineMiddleware:
    """A middleware of the SDK's: ends the answers of the other tools with the line, errors too; in
    data it is a field.

    It also opens the store of a client with its handshake: its agent is online from then on, and
    not from a first call.
    """

    def __init__(self, stores: ClientStores) -> None:
        self._stores = stores

    async def __call__(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Serve one request."""
        if ctx.method in ("initialize", "tools/list"):
            try:
                await anyio.to_thread.run_sync(self._stores.store_for, ctx)
            except CapsuleError as error:
                from capsule.mcp_server.errors import explained

                raise MCPError(INVALID_PARAMS, explained(error)) from error
        result = await call_next(ctx)
        is_other = ctx.method == "tools/call" and (ctx.params or {}).get("name") != "listen"
        if is_other and isinstance(result, dict) and result.get("content"):
            try:
                line = await anyio.to_thread.run_sync(reader_of(self._stores, ctx).line)
            except CapsuleError as error:
                _log.warning("could not tell a client of unread messages: %s", error.message)
                return result
            if line:
                result["content"][-1]["text"] += f"\n{line}"
                if (
                    "structuredContent" in result
                ):  # Which is all that some clients show their model.
                    result["structuredContent"]["newMessages"] = line
        return result


def enrol(store: CoreStore, name: str | None, folder: str | None, is_project: bool) -> str:
    """Register the agent that a client is, as `Agents.ensure` takes it; gives its id."""
    return store.inner.object_of(Agents).ensure(name, folder, is_project=is_project)


def arrive(store: CoreStore) -> None:
    """Let a client come: its agent is online from now on."""
    store.inner.object_of(Agents).serve()


def leave(store: CoreStore) -> None:
    """Let a client go: its agent is away from now on, and its project says what it has not read."""
    from capsule.messaging import notices

    store.release()
    store.engine.leases.release(store.instance_id)
    notices.update(store, str(store.agent))


async def ring(stores: ClientStores) -> None:
    """Ring for the agents of these stores while messages wait and they don't listen; runs until it
    is cancelled.
    """
    cursor: str | None = None
    while True:
        try:
            store = stores.server_store()
            if cursor is None:  # Before the first look, so that nothing is missed in between.
                cursor = (await anyio.to_thread.run_sync(store.changes)).cursor
            waits = await anyio.to_thread.run_sync(_ring, stores)
            cursor = (
                await store.await_changes(cursor, timeout_s=_AGAIN_S if waits else None)
            ).cursor
        except CapsuleError as error:
            _log.warning("doorbells are not rung for now: %s", error.message)
            cursor = None  # It may be one that the store knows no more.
        except Exception:
            _log.exception("doorbells are no longer rung")
            return
        await anyio.sleep(_PAUSE_S)


def _ring(stores: ClientStores) -> bool:
    """Ring each doorbell that is due; whether messages wait for anybody."""
    from capsule.messaging import doorbells

    waits = False
    for store in stores.agent_stores():
        agent = str(store.agent)
        if doorbells.load_targets(store, agent).targets and mail_of(store).pointer():
            waits = True
            if not store.inner.object_of(Agents).get(agent).listening:
                doorbells.ring(store, agent, mail_of(store).pointer)
    return waits
