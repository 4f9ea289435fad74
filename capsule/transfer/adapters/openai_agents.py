"""Store a session of the OpenAI Agents SDK as a conversation.

Usage: `Runner.run(agent, text, session=CapsuleSession(...))`. The class satisfies the protocol
`agents.memory.Session` of the SDK, and imports no SDK.

The items of the session are the messages of the conversation's active branch (`items`). A person or
another program may read and write the same conversation. So a message may have a text and several
calls. It becomes an item for the text and one for each call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio import to_thread

from capsule.errors import InvalidInput, NotFound
from capsule.transfer.adapters.items import Items
from capsule.transfer.interface import Fields, Pair
from capsule.transfer.records.mapping import json_of, text_of, text_of_part, without

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: Our role for each role of an item. A developer gives instructions, as a system message does.
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def _texts(parts: Any) -> str:
    """Return the texts of the parts of a content, or of a content that is a text itself."""
    if isinstance(parts, list):
        texts = [text_of_part(part) for part in parts]
    else:
        texts = [text_of(parts)]
    return "\n\n".join(filter(None, texts))


def _read(item: Fields) -> Fields:
    """Return the message of an item. An item of an unknown kind becomes a hidden message."""
    kind = item.get("type", "message")
    if kind == "function_call":
        call = {"id": text_of(item.get("call_id")), "name": text_of(item.get("name"))}
        arguments = json_of(item.get("arguments"))
        return {"role": "assistant", "content": "", "toolCalls": [call | {"arguments": arguments}]}
    if kind == "function_call_output":
        return {
            "role": "tool",
            "content": _texts(item.get("output")),
            "toolCallId": text_of(item.get("call_id")),
        }
    if kind == "reasoning":
        return {"role": "assistant", "content": "", "reasoning": _texts(item.get("summary"))}
    if kind != "message" or item.get("role") not in _ROLES:
        return {"role": "system", "content": "", "metadata": {"hidden": True}}
    return {"role": _ROLES[item["role"]], "content": _texts(item.get("content"))}


def _write(fields: Fields) -> Fields:
    """Return the item of a message, which has at most one call."""
    if "toolCalls" in fields:
        call = fields["toolCalls"][0]
        item = {
            "type": "function_call",
            "call_id": text_of(call.get("id")),
            "name": text_of(call.get("name")),
        }
        return item | {"arguments": text_of(call.get("arguments", {}))}
    if fields["role"] == "tool":
        return {
            "type": "function_call_output",
            "call_id": fields.get("toolCallId", ""),
            "output": fields["content"],
        }
    if "reasoning" in fields and not fields["content"]:
        summary = []
        if fields["reasoning"]:
            summary.append({"type": "summary_text", "text": fields["reasoning"]})
        return {"type": "reasoning", "summary": summary}
    if fields["role"] == "assistant":
        return {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": fields["content"]}],
        }
    return {"role": fields["role"], "content": fields["content"]}


class CapsuleSession:
    """A session whose items are the messages of a conversation.

    Attributes:
        session_id: The id of the session in the SDK.
        session_settings: The settings of the SDK. Only `limit` is used.
        conversation_id: The id of the conversation.
    """

    def __init__(self, session_id: str, store: CoreStore, *, session_settings: Any = None) -> None:
        """Use the conversation of a session. The first item creates it.

        Args:
            session_id: Any text.
            store: An open store. It must stay open as long as this object is used.
            session_settings: The settings of the SDK.

        Raises nothing. Cost: none worth mentioning.
        """
        self.session_id = session_id
        self.session_settings = session_settings
        self._store = store.beside(keep_locks=False)
        self._items = Items(
            store=self._store,
            name="openai-agents",
            session=session_id,
            item=Pair(_read, _write),
        )
        self.conversation_id = self._items.id

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items, oldest first.

        Args:
            limit: How many of the newest items are returned. None: as many as the settings of the
                session allow.

        Raises InvalidDocument. Cost: reading the file.
        """
        if limit is None:
            limit = getattr(self.session_settings, "limit", None)
        items = await to_thread.run_sync(self._all_items)
        if limit is None:
            return items
        return items[max(len(items) - limit, 0) :]

    def _all_items(self) -> list[Fields]:
        entries = self._items.entries() or ()
        return [item for entry in entries for item in self._items_of(entry)]

    def _items_of(self, entry: Fields) -> list[Fields]:
        """Return the items of a message: one for its text, and one for each call."""
        calls = entry.get("toolCalls") or []
        parts = [{**entry, "toolCalls": [call]} for call in calls]
        if entry["content"] or not calls:
            parts.insert(0, without(entry, "toolCalls"))
        return [self._items.item(part) for part in parts]

    async def add_items(self, items: list[Any]) -> None:
        """Append items, all or none. Raises the errors of `Store.append`. Cost: one fdatasync."""
        await to_thread.run_sync(self._items.add, items)

    async def pop_item(self) -> Any | None:
        """Move the newest message to the trash, and return its last item, or None.

        Raises the errors of `Store.append`. Cost: reading and writing the file.
        """
        return await to_thread.run_sync(self._pop)

    def _pop(self) -> Fields | None:
        while entries := self._items.entries():
            newest = entries[-1]
            try:
                self._store.branches.remove(
                    self.conversation_id, newest["id"], expected=[newest["id"]]
                )
            except (InvalidInput, NotFound):
                continue  # Another process removed it or answered it meanwhile.
            return self._items_of(newest)[-1]
        return None

    async def clear_session(self) -> None:
        """Move the conversation to the trash, if it exists.

        Raises Locked, LockLost. Cost: as `Store.delete`.
        """
        try:
            await to_thread.run_sync(self._store.delete, self.conversation_id)
        except NotFound:
            return
