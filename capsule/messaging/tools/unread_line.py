"""How an MCP client learns of unread messages without calling `listen`: by a line below another
answer, by its doorbell, which rings its program (`messaging.doorbells`), and by a notice in its
project when it leaves.

A notification of the protocol would start no turn of a model, so it is not used.

What must stay true: the line reports a new message once, and never contains its text. The task that
rings doorbells costs next to nothing while nothing changes.
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
#: The seconds after which the doorbells are checked again while messages are unread. A doorbell
#: rings again after a minute at the earliest.
_RECHECK_S = 30.0
#: The seconds between two checks at least. The sender of a message rings at once anyway.
_PAUSE_S = 2.0


class ClientInbox:
    """What one client was shown of its messages, and the state of its calls of `listen`.

    Args:
        store: The client's store.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        #: The newest message of each conversation that the client got or that a line counted.
        self._last_shown: dict[str, str] = {}
        self._listen_messages: Messages | None = None

    def unread_line(self) -> str:
        """Return the line below another answer. Empty: an earlier line reported everything that is
        unread.

        Cost: as `Messages.inbox`.
        """
        inbox = shared_messages(self._store).inbox()
        newest = {item.id: item.last.id for item in inbox.conversations}
        is_reported = newest.items() <= self._last_shown.items()
        self._last_shown |= newest
        if is_reported:
            return ""
        return f"{inbox.unread} unread from {', '.join(map(word, inbox.senders))}: listen"

    @property
    def listen_messages(self) -> Messages:
        """The messages for the client's calls of `listen` alone.

        The next call acknowledges what the last one returned. So this object is not the one of
        `shared_messages`, which other calls use.
        """
        if self._listen_messages is None:
            from capsule.messaging.messages import Messages

            self._listen_messages = Messages(self._store)
        return self._listen_messages

    def discard_unacknowledged(self) -> None:
        """Forget what was returned and not acknowledged. The next call returns it again.

        It is called when an answer did not reach the client.
        """
        self._listen_messages = None

    def record_shown(self, mail: Iterable[Mail]) -> None:
        """Record that the client got messages. Those of a conversation are in its order."""
        for message in mail:
            self._last_shown[message.conversation] = message.id


def shared_messages(store: CoreStore) -> Messages:
    """Return the messages of a store, the one object that all calls but `listen` use."""
    from capsule.messaging.messages import Messages

    return store.inner.object_of(Messages)


def inbox_of_client(stores: ClientStores, ctx: ServerRequestContext[Any, Any]) -> ClientInbox:
    """Return the inbox of the client of a request.

    A room is a package beside the core of the program, such as messaging. `room_state` is where
    each room keeps its state of a client.
    """
    client = stores.client(ctx)
    if "messaging" not in client.room_state:
        # Two requests may come here at once: both get the inbox that was stored first.
        client.room_state.setdefault("messaging", ClientInbox(client.store))
    inbox: ClientInbox = client.room_state["messaging"]
    return inbox


class UnreadLineMiddleware:
    """A middleware of the SDK that adds the line about unread messages to the answers of all tools
    but `listen`, also to errors. In structured answers it is the field `newMessages`.

    It also opens the store of a client early, so that its agent is online from then on: at its
    handshake, or when it first lists the tools, as a client of the protocol of 2026 has no
    handshake.
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
        is_tool = ctx.method == "tools/call" and (ctx.params or {}).get("name") != "listen"
        if not is_tool or not isinstance(result, dict) or not result.get("content"):
            return result
        try:
            inbox = inbox_of_client(self._stores, ctx)
            line = await anyio.to_thread.run_sync(inbox.unread_line)
        except CapsuleError as error:
            _log.warning("could not tell a client of unread messages: %s", error.message)
            return result
        if line:
            result["content"][-1]["text"] += f"\n{line}"
            if "structuredContent" in result:  # Some clients show nothing else to their model.
                result["structuredContent"]["newMessages"] = line
        return result


def register_agent(store: CoreStore, name: str | None, folder: str | None, is_project: bool) -> str:
    """Register the agent of a client, and return its id. Args as for `Agents.ensure`."""
    return store.inner.object_of(Agents).ensure(name, folder, is_project=is_project)


def set_online(store: CoreStore) -> None:
    """Announce that the agent of a client is online, until `set_offline`."""
    store.inner.object_of(Agents).serve()


def set_offline(store: CoreStore) -> None:
    """End what announces that the agent of a client is online, and write the notices about its
    unread messages.
    """
    from capsule.messaging import notices

    store.release()  # The locks of conversations.
    store.engine.leases.release(store.instance_id)  # What proves that the agent is online.
    notices.update(store, str(store.agent))


async def ring_doorbells(stores: ClientStores) -> None:
    """Ring the doorbells of the agents of clients while they have unread messages and do not
    listen.

    It runs until it is cancelled.
    """
    cursor: str | None = None
    while True:
        try:
            store = stores.server_store()
            if cursor is None:  # Before the first check, so that nothing is missed in between.
                cursor = (await anyio.to_thread.run_sync(store.changes)).cursor
            has_unread = await anyio.to_thread.run_sync(_ring_due_doorbells, stores)
            timeout_s = _RECHECK_S if has_unread else None
            changes = await store.await_changes(cursor, timeout_s=timeout_s)
            cursor = changes.cursor
        except CapsuleError as error:
            _log.warning("doorbells are not rung for now: %s", error.message)
            cursor = None  # The store may no longer accept the cursor.
        except Exception:
            _log.exception("doorbells are no longer rung")
            return
        await anyio.sleep(_PAUSE_S)


def _ring_due_doorbells(stores: ClientStores) -> bool:
    """Ring each doorbell that is due. Return whether any agent with a doorbell has unread messages.

    Only those count that may wake the agent: `Messages.pointer` names them in words.
    """
    from capsule.messaging import doorbells

    has_unread = False
    for store in stores.agent_stores():
        agent = str(store.agent)
        if doorbells.load_targets(store, agent).targets and shared_messages(store).pointer():
            has_unread = True
            # A client that waits in `listen` gets its messages without a doorbell.
            if not store.inner.object_of(Agents).get(agent).listening:
                # It calls `pointer` again if a ring is due: the agent may have read meanwhile.
                doorbells.ring(store, agent, pointer=shared_messages(store).pointer)
    return has_unread
