"""Which store stands behind a call.

What must stay true: tools, resources and prompts reach a store through `Stores` only, so that the
same tools serve one client over stdio and many over HTTP, each of whom is an instance of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio

from capsule.errors import InvalidInput
from capsule.mcp_server.access import Access

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.mcpserver import Context

    from capsule.store.store import CoreStore


@dataclass(slots=True)
class Client:
    """A client of a server.

    Attributes:
        store: The store that stands for it: its agent is that client, and its locks are its.
        kept: What rooms keep for it, by name.
        used: When it was asked for last, by the monotonic clock.
    """

    store: CoreStore
    kept: dict[str, Any] = field(default_factory=dict)
    used: float = 0.0


class Stores:
    """The stores of a server: one for all, as over stdio, where the process is the instance and has
    one client.

    The store stays the caller's to close. `kept` is what rooms keep for the client, by name.
    """

    def __init__(
        self, store: CoreStore, access: Access | None = None, kept: dict[str, Any] | None = None
    ) -> None:
        #: Set when the only client has closed its input: no call waits any more.
        self.ended = anyio.Event()
        store.remember_own()
        self._main = Client(store, {} if kept is None else kept)
        self._access = access or Access()

    def acting(self) -> list[CoreStore]:
        """The stores that act for an agent now."""
        return [self._main.store]

    def client(self, ctx: ServerRequestContext[Any, Any]) -> Client:
        """The client that made this request."""
        return self._main

    def of(self, ctx: ServerRequestContext[Any, Any]) -> CoreStore:
        """The store that stands for the client of this request."""
        return self.client(ctx).store

    def main(self) -> CoreStore:
        """The store of the server itself: what is watched."""
        return self._main.store

    def access(self, ctx: ServerRequestContext[Any, Any]) -> Access:
        """What the client of this request may do, and as whom."""
        return self._access


def stores_of(ctx: Context) -> Stores:
    """The stores of the server that a call is made to."""
    server: Any = ctx.mcp_server
    stores: Stores = server.stores
    return stores


def store_of(ctx: Context) -> CoreStore:
    """The store that stands for the client of a call."""
    return stores_of(ctx).of(ctx.request_context)


def conversation(ctx: Context, id: str) -> tuple[CoreStore, str]:
    """The store of a call, and the id of the conversation that is named by `id`."""
    store = store_of(ctx)
    return store, store.resolve(id)


def access_of(ctx: Context) -> Access:
    """What the client of a call may do, and as whom."""
    return stores_of(ctx).access(ctx.request_context)


def author(ctx: Context, sender: str = "") -> str | None:
    """The agent that a message of this call is from. Raises InvalidInput: the call names another
    sender.
    """
    name = access_of(ctx).name
    if name is None:
        return sender or None
    if sender and sender != name:
        raise InvalidInput(f"sender: you write as {name}, and as nobody else; leave sender out")
    return name


def written_by(ctx: Context, sender: str = "") -> dict[str, Any]:
    """The field that says whom a message of this call is from, when that is known; it raises what
    `author` raises.
    """
    name = author(ctx, sender)
    return {} if name is None else {"from": name}
