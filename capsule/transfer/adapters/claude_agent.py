"""A session store of the Claude Agent SDK that keeps each transcript as a conversation.

`ClaudeAgentOptions(session_store=CapsuleSessionStore(store))`. It satisfies `SessionStore`, and
imports no SDK. An entry with a `uuid` is kept once, also when a batch comes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from anyio import to_thread

from capsule import timestamps
from capsule.errors import NotFound
from capsule.transfer.adapters.items import Items, sessions
from capsule.transfer.interface import Fields, Pair
from capsule.transfer.records.coercion import moment, object_of, objects_of, text_of, with_nonempty

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

_NAME = "claude-agent-sdk"


def _read(entry: Fields) -> Fields:
    message = object_of(entry.get("message"))
    role, content = message.get("role"), message.get("content")
    time = {"timestamp": moment(entry.get("timestamp"))} if moment(entry.get("timestamp")) else {}
    if role not in ("user", "assistant"):
        return {"role": "system", "content": "", "metadata": {"hidden": True}} | time
    blocks: dict[str, list[Fields]] = {}
    for block in objects_of(content):
        blocks.setdefault(text_of(block.get("type")), []).append(block)
    results = blocks.get("tool_result", [])
    texts = [text_of(block.get("text")) for block in blocks.get("text", ())]
    text = content if isinstance(content, str) else "\n\n".join(filter(None, texts))
    if results and role == "user":
        result_content = results[0].get("content")
        parts = (text_of(part.get("text")) for part in objects_of(result_content))
        result = result_content if isinstance(result_content, str) else "\n\n".join(parts)
        is_error = {"metadata": {"isError": True}} if results[0].get("is_error") is True else {}
        entry_fields = {
            "role": "tool",
            "content": result,
            "toolCallId": text_of(results[0].get("tool_use_id")),
        }
        return entry_fields | is_error | time
    calls = [
        {
            "id": text_of(block.get("id")),
            "name": text_of(block.get("name")),
            "arguments": block.get("input", {}),
        }
        for block in blocks.get("tool_use", ())
    ]
    return with_nonempty(
        {"role": role, "content": text} | time,
        model=message.get("model") if isinstance(message.get("model"), str) else None,
        reasoning="\n\n".join(
            text_of(block.get("thinking")) for block in blocks.get("thinking", ())
        ),
        toolCalls=calls,
    )


def _write(fields: Fields) -> Fields:
    """The entry without its type, which only entries of the SDK have: that tells them from other
    messages.
    """
    if fields["role"] == "system":
        return {}
    if fields["role"] == "tool":
        error = {"is_error": True} if fields.get("metadata", {}).get("isError") else {}
        result = {
            "type": "tool_result",
            "tool_use_id": fields.get("toolCallId", ""),
            "content": fields["content"],
        }
        return {"message": {"role": "user", "content": [result | error]}}
    if fields["role"] == "user":
        return {"message": {"role": "user", "content": fields["content"]}}
    blocks: list[Fields] = (
        [{"type": "thinking", "thinking": fields["reasoning"]}] if "reasoning" in fields else []
    )
    blocks += [{"type": "text", "text": fields["content"]}] if fields["content"] else []
    for call in fields.get("toolCalls", ()):
        block = {"id": call.get("id"), "name": call.get("name"), "input": call.get("arguments")}
        blocks.append({"type": "tool_use", **block})
    return {
        "message": with_nonempty(
            {"role": "assistant", "content": blocks}, model=fields.get("model")
        )
    }


class CapsuleSessionStore:
    """Transcripts as conversations: one for each project, session and subagent."""

    def __init__(self, store: CoreStore) -> None:
        """Use an open store, which must outlive this object."""
        self._store = store.beside(keep_locks=False)

    if (
        TYPE_CHECKING
    ):  # The SDK does without it, and asks whether it is there; but its protocol names it.

        async def list_session_summaries(self, project_key: str) -> list[Any]:
            """Not offered: the SDK loads each session instead. Raises nothing. Cost: none."""

    def _items(self, key: Mapping[str, str]) -> Items:
        names = "\0".join((key["project_key"], key["session_id"], key.get("subpath", "")))
        return Items(self._store, _NAME, names, Pair(_read, _write), key)

    def conversation_id(self, key: Mapping[str, str]) -> str:
        """The id of the conversation of a transcript. Raises KeyError for a key that the SDK
        doesn't give. Cost: none.

        Args:
            key: As the SDK gives it: `project_key`, `session_id`, and for a subagent `subpath`.
        """
        return self._items(key).id

    async def append(self, key: Any, entries: list[Any]) -> None:
        """Append entries of a transcript, all or none. Raises the errors of `Store.append`. Cost:
        one fdatasync.
        """
        await to_thread.run_sync(
            lambda: self._items(key).add(entries, lambda entry: entry.get("uuid"))
        )

    async def load(self, key: Any) -> list[Any] | None:
        """The entries of a transcript in their order. None: there is none. Raises InvalidDocument.
        Cost: reading it.
        """
        items = self._items(key)
        entries = await to_thread.run_sync(lambda: items.entries(is_all=True))
        items_of_entries = [items.item(entry) for entry in entries or ()]
        return [entry for entry in items_of_entries if "type" in entry] or None

    async def list_sessions(self, project_key: str) -> list[Any]:
        """The sessions of a project with the times of their last change, in milliseconds. Cost: as
        `sessions`.
        """

        def listed() -> list[dict[str, Any]]:
            return [
                {"session_id": key["session_id"], "mtime": timestamps.ms_of(head.updated_at)}
                for head, key in sessions(self._store, _NAME)
                if key.get("project_key") == project_key and not key.get("subpath")
            ]

        return await to_thread.run_sync(listed)

    async def list_subkeys(self, key: Any) -> list[str]:
        """The subpaths of the transcripts of a session's subagents. Cost: as `sessions`."""
        return [subkey["subpath"] for subkey in await to_thread.run_sync(self._below, key)]

    def _below(self, key: Any) -> list[Fields]:
        keys = [
            session_key
            for _, session_key in sessions(self._store, _NAME)
            if session_key.get("subpath")
        ]
        return [
            session_key
            for session_key in keys
            if all(session_key.get(name) == key[name] for name in ("project_key", "session_id"))
        ]

    async def delete(self, key: Any) -> None:
        """Move a transcript to the trash, and those of its subagents. Raises Locked, LockLost.
        Cost: as `sessions`.
        """

        def delete() -> None:
            for transcript_key in (*(() if key.get("subpath") else self._below(key)), key):
                with suppress(NotFound):
                    self._store.delete(self.conversation_id(transcript_key))

        await to_thread.run_sync(delete)
