"""The resources: conversations and messages by address, and the schemas of the format.

What must stay true: a resource is JSON in which nothing is hidden (what `fence` spells out in a tool's answer is
escaped here, as JSON escapes it, so that nothing is lost); a conversation is its active branch, as everywhere that it
is read; and it is a megabyte at most, however long it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson
from mcp.server.mcpserver import Context
from mcp_types import Resource

from capsule.choosing import find_message
from capsule.format import schema as schemas
from capsule.mcp_server.fence import escaped, visible
from capsule.mcp_server.stores import Stores, server_store

if TYPE_CHECKING:
    from capsule.format.tree import Tree
    from capsule.head import Head
    from capsule.mcp_server.server import CapsuleServer
    from capsule.store import Store

__all__ = ["CONVERSATIONS", "address", "message_address", "register"]

CONVERSATIONS = "capsule://conversations"
_JSON = "application/json"
_PAGE = 100
_MOST_BYTES = 1_000_000


def address(id: str) -> str:
    """The address of a conversation."""
    return f"{CONVERSATIONS}/{quote(id, safe='@')}"


def message_address(id: str, message: str) -> str:
    """The address of a message."""
    return f"{address(id)}/messages/{quote(message, safe='@')}"


def _json(value: Any) -> str:
    return escaped(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())


def _listing(store: Store, tag: str = "", title: str = "") -> str:
    wanted = title.casefold()
    page = store.newest(
        limit=_PAGE, fits=lambda head: (not tag or tag in head.tags) and wanted in head.title.casefold()
    )
    shown = [{name: value for name, value in head.as_json().items() if name != "path"} for head in page.heads]
    return _json({"total": page.total, "conversations": shown})


def conversations_with(ctx: Context, tag: str = "", title: str = "") -> str:
    """Conversations that have a tag, or whose title has a text; the 100 changed last."""
    return _listing(server_store(ctx), tag, title)


def conversation(ctx: Context, id: str) -> str:
    """A conversation: its head and the newest messages of its active branch, a megabyte at most."""
    store = server_store(ctx)
    head = store.head(store.resolve(id))
    told = {name: value for name, value in head.as_json().items() if name != "path"}
    standing = store.standing(head.id) if head.is_summary else None
    if standing is not None:
        told["source"] = standing.as_json()
    count, older, entries = _branch(store, head.id)
    left, start = _MOST_BYTES, len(entries)
    while start and (left := left - len(orjson.dumps(entries[start - 1]))) > 0:
        start -= 1
    start = min(start, max(len(entries) - 1, 0))
    return _json({**told, "messages": count, "omitted": older + start, "history": entries[start:]})


def _branch(store: Store, id: str) -> tuple[int, int, list[dict[str, Any]]]:
    """How many messages a conversation has, and the end of its active branch, behind how many older messages.

    Costs reading that end of the file; where somebody branched off, the file.
    """
    n = 100
    first, entries = store.tail_entries(id, n)
    while first and len(orjson.dumps(entries)) < _MOST_BYTES // 4:
        n *= 4
        first, entries = store.tail_entries(id, n)
    if store.is_line(id, entries):
        return first + len(entries), first, [_placed(entry, at) for at, entry in enumerate(entries, first)]
    document = store.document(id)
    history, tree = _tree(document)
    path = tree.path(document["metadata"].get("currentNode"))
    return len(history), 0, [_placed(history[at], at, tree) for at in path]


def _tree(document: dict[str, Any]) -> tuple[list[dict[str, Any]], Tree]:
    """Messages and their tree, of a whole document: what `Store.branches` gives has numbers as JSON libraries do."""
    from capsule.format.tree import Tree

    return document["history"], Tree(document["history"])


def _placed(entry: dict[str, Any], at: int, tree: Tree | None = None) -> dict[str, Any]:
    """A message with its place in the file (`at`), and which it is of several in one place (`sibling`, as 2/3)."""
    number = tree.forks.get(at) if tree is not None else None
    place: dict[str, Any] = {"at": at}
    if number is not None:
        place["sibling"] = f"{number[0]}/{number[1]}"
    return place | entry | place


def message(ctx: Context, id: str, message: str) -> str:
    """One message, all of it; by its id, a prefix of it, @N or @last."""
    store = server_store(ctx)
    id = store.resolve(id)
    history, tree = _tree(store.document(id))
    at = find_message(history, message, id)
    return _json(_placed(history[at], at, tree))


def schema(ctx: Context, kind: str) -> str:
    """The JSON Schema of a kind of document, in its newest version."""
    return schemas.text(kind, schemas.versions(kind)[-1])


def _page(stores: Stores, cursor: str | None) -> tuple[list[Resource], str | None]:
    page = stores.main().newest(
        limit=_PAGE, fits=lambda head: not head.damaged and not head.archived, cursor=cursor or "", view="resources"
    )
    return list(map(_resource, page.heads)), page.cursor()


def _resource(head: Head) -> Resource:
    return Resource(uri=address(head.id), name=head.id, title=visible(head.title[:200]) or None, mime_type=_JSON)


def register(server: CapsuleServer) -> None:
    """Register the resources on a server."""
    stores = server.stores

    def conversations() -> str:
        """The conversations: how many there are, and the 100 changed last."""
        return _listing(stores.main())

    server.resource(CONVERSATIONS, mime_type=_JSON)(conversations)
    server.resource(CONVERSATIONS + "{?tag,title}", mime_type=_JSON)(conversations_with)
    server.resource(CONVERSATIONS + "/{id}", mime_type=_JSON)(conversation)
    server.resource(CONVERSATIONS + "/{id}/messages/{message}", mime_type=_JSON)(message)
    server.resource("capsule://schema/{kind}", mime_type="application/schema+json")(schema)
    server.list_also(lambda cursor: _page(stores, cursor))
