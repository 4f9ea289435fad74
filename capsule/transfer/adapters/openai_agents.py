"""A session of the OpenAI Agents SDK that is a conversation: `Runner.run(agent, text,
session=CapsuleSession(...))`.

It satisfies `agents.memory.Session`, and does not import it. A person or another program may read
and write the same conversation; the items of the session are the messages of its active branch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anyio import to_thread

from capsule.errors import InvalidInput, NotFound
from capsule.transfer.adapters.items import Items
from capsule.transfer.interface import Fields, Pair
from capsule.transfer.records.coercion import json_of, text_of, text_of_part

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}


def _texts(parts: Any) -> str:
    texts = [text_of_part(part) for part in parts] if isinstance(parts, list) else [text_of(parts)]
    return "\n\n".join(filter(None, texts))


def _read(item: Fields) -> Fields:
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
        text = fields["reasoning"]
        return {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": text}] if text else [],
        }
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
        session_id: Its id in the SDK.
        session_settings: As the SDK has it; of it `limit`.
        conversation_id: The id of the conversation.
    """

    def __init__(self, session_id: str, store: CoreStore, *, session_settings: Any = None) -> None:
        """Args: the id, any text; an open store, which must outlive it; and the settings of the
        SDK.

        Raises nothing. Cost: none worth mentioning. The conversation is made by the first item.
        """
        self.session_id, self.session_settings = session_id, session_settings
        self._store = store.beside(keep_locks=False)
        self._items = Items(self._store, "openai-agents", session_id, Pair(_read, _write))
        self.conversation_id = self._items.id

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """The items, oldest first, or the `limit` newest. Raises InvalidDocument. Cost: reading the
        file.
        """
        limit = getattr(self.session_settings, "limit", None) if limit is None else limit
        items = await to_thread.run_sync(self._all)
        return items if limit is None else items[max(len(items) - limit, 0) :]

    def _all(self) -> list[Fields]:
        return [item for entry in self._items.entries() or () for item in self._of(entry)]

    def _of(self, entry: Fields) -> list[Fields]:
        """The items of a message: one, but of one that another program wrote, which may call
        several tools.
        """
        calls = entry.get("toolCalls") or []
        plain_entry = {name: value for name, value in entry.items() if name != "toolCalls"}
        text_entries = [] if calls and not entry["content"] else [plain_entry]
        return [
            self._items.item(part)
            for part in [*text_entries, *({**entry, "toolCalls": [call]} for call in calls)]
        ]

    async def add_items(self, items: list[Any]) -> None:
        """Append items, all or none. Raises the errors of `Store.append`. Cost: one fdatasync."""
        await to_thread.run_sync(self._items.add, items)

    async def pop_item(self) -> Any | None:
        """Move the newest message to the trash, and return its item. None: there is none.

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
                continue  # Another process popped it, or answered it.
            return self._of(newest)[-1]
        return None

    async def clear_session(self) -> None:
        """Move the conversation to the trash. Raises Locked, LockLost. Cost: as `Store.delete`."""
        try:
            await to_thread.run_sync(self._store.delete, self.conversation_id)
        except NotFound:
            return
