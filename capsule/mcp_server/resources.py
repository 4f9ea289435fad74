"""The resources: conversations and messages by address, and the JSON Schemas of the format.

What must stay true: a resource is JSON without hidden characters: those that `fence` marks in the
output of a tool are escaped here. A conversation is its active branch, as for every reader. It has
at most a megabyte, with the newest messages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson
from mcp.server.mcpserver import Context, MCPServer
from mcp_types import Resource

from capsule.engines.queries import Filter
from capsule.format import schema as schemas
from capsule.mcp_server.stores import store_of
from capsule.untrusted_text import escaped, visible

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.pages import Page
    from capsule.store.store import CoreStore

CONVERSATIONS = "capsule://conversations"
#: The addresses of all resources.
RESOURCE_ADDRESS = re.compile(
    rf"{CONVERSATIONS}(\?.*|/[^/?#]+(/markdown|/messages/[^/?#]+)?)?|capsule://(directory|schema)/[a-z]+",
    re.DOTALL,
)
JSON = "application/json"
_PAGE_SIZE = 100
MAX_BYTES = 1_000_000
_ALL_CONVERSATIONS = Resource(
    uri=CONVERSATIONS,
    name="conversations",
    description="The conversations: how many there are, and the first 100, as list_conversations "
    "lists them.",
    mime_type=JSON,
)


def address(id: str) -> str:
    """Return the address of a conversation."""
    return f"{CONVERSATIONS}/{quote(id, safe='@')}"


def message_address(id: str, message: str) -> str:
    """Return the address of a message."""
    return f"{address(id)}/messages/{quote(message, safe='@')}"


def as_json(value: Any) -> str:
    """Return a value as the JSON of a resource, with hidden characters escaped."""
    return escaped(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _facts(head: Head) -> dict[str, Any]:
    return {name: value for name, value in head.as_json().items() if name != "path"}


def conversations_with(ctx: Context, tag: str = "", title: str = "") -> str:
    """All conversations, or those that have a tag or whose title has a text: the first 100."""
    page = store_of(ctx).list(Filter(tags=(tag,) if tag else (), title=title), limit=_PAGE_SIZE)
    return as_json({"total": page.total, "conversations": list(map(_facts, page.heads))})


def conversation(ctx: Context, id: str) -> str:
    """A conversation: its head and the newest messages of its active branch, a megabyte at most."""
    store = store_of(ctx)
    head = store.head(store.resolve(id))
    facts = _facts(head)
    standing = store.summaries.standing(head.id) if head.is_summary else None
    if standing is not None:
        facts["source"] = standing.as_json()
    page = store.page(head.id, _PAGE_SIZE)
    while page.older() and len(orjson.dumps(page.entries)) < MAX_BYTES // 4:
        page = store.page(head.id, 4 * len(page.entries))
    history: list[dict[str, Any]] = []
    remaining_bytes = MAX_BYTES
    for _, entry in reversed(page.entries):
        remaining_bytes -= len(orjson.dumps(entry))
        if remaining_bytes <= 0 and history:
            break
        history.append(_message_json(page, -1 - len(history)))
    omitted = page.on_branch - len(history)
    return as_json({**facts, "messages": page.total, "omitted": omitted, "history": history[::-1]})


def _message_json(page: Page, index: int) -> dict[str, Any]:
    """Return a message with its position in the file (`at`), and its number among its alternatives
    (`sibling`, such as 2/3).
    """
    at, entry = page.entries[index]
    position_fields: dict[str, Any] = {"at": at}
    if sibling := page.sibling(at):
        position_fields["sibling"] = sibling
    return position_fields | entry | position_fields


def message(ctx: Context, id: str, message: str) -> str:
    """One message, all of it; by its id, a prefix of it, @N or @last."""
    store = store_of(ctx)
    conversation_id = store.resolve(id)
    return as_json(_message_json(store.page(conversation_id, 1, around=message), 0))


def schema(ctx: Context, kind: str) -> str:
    """The JSON Schema of a kind of document, in its newest version."""
    return schemas.text(kind, schemas.versions(kind)[-1])


def resource_page(store: CoreStore, cursor: str | None) -> tuple[list[Resource], str | None]:
    """Return the resources of a page of conversations, and the cursor of the next page."""
    page = store.list(limit=_PAGE_SIZE, cursor=cursor or "")
    listed = [
        Resource(
            uri=address(head.id),
            name=head.id,
            title=visible(head.title[:200]) or None,
            mime_type=JSON,
        )
        for head in page.heads
        if not head.damaged
    ]
    return [*([] if cursor else [_ALL_CONVERSATIONS]), *listed], page.cursor()


def register(server: MCPServer[Any]) -> None:
    """Register the resources on a server."""
    server.resource(CONVERSATIONS + "{?tag,title}", mime_type=JSON)(conversations_with)
    server.resource(CONVERSATIONS + "/{id}", mime_type=JSON)(conversation)
    server.resource(CONVERSATIONS + "/{id}/messages/{message}", mime_type=JSON)(message)
    server.resource("capsule://schema/{kind}", mime_type="application/schema+json")(schema)
