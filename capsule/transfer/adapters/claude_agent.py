"""Store the transcripts of the Claude Agent SDK as conversations.

Usage: `ClaudeAgentOptions(session_store=CapsuleSessionStore(store))`. The class satisfies the
protocol `SessionStore` of the SDK, and imports no SDK.

A transcript is a list of entries. Each becomes a message of the conversation, with the fields that
a message lacks in `metadata.source` (`items`). The key of a transcript is kept in the head.

Invariants: an entry is loaded as it was appended. An entry with a `uuid` is stored once, also if
its batch is appended again.
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
from capsule.transfer.records.mapping import moment, object_of, objects_of, text_of, with_nonempty

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: The name of the SDK. It is a tag of the conversations.
_NAME = "claude-agent-sdk"
#: Between the texts of two blocks in one field of a message.
_SEPARATOR = "\n\n"


def _read(entry: Fields) -> Fields:
    """Return the message of an entry. An entry that is no message becomes a hidden one."""
    body = object_of(entry.get("message"))
    role = body.get("role")
    content = body.get("content")
    if role not in ("user", "assistant"):
        fields: Fields = {"role": "system", "content": "", "metadata": {"hidden": True}}
        return with_nonempty(fields, timestamp=moment(entry.get("timestamp")))
    blocks: dict[str, list[Fields]] = {}
    for block in objects_of(content):
        blocks.setdefault(text_of(block.get("type")), []).append(block)
    results = blocks.get("tool_result", [])
    if results and role == "user":
        fields = _result_fields(results[0])
        return with_nonempty(fields, timestamp=moment(entry.get("timestamp")))
    if isinstance(content, str):
        text = content
    else:
        texts = [text_of(block.get("text")) for block in blocks.get("text", ())]
        text = _SEPARATOR.join(filter(None, texts))
    thoughts = [text_of(block.get("thinking")) for block in blocks.get("thinking", ())]
    model = body.get("model")
    return with_nonempty(
        {"role": role, "content": text},
        timestamp=moment(entry.get("timestamp")),
        model=model if isinstance(model, str) else None,
        reasoning=_SEPARATOR.join(thoughts),
        toolCalls=[_call_of_block(block) for block in blocks.get("tool_use", ())],
    )


def _result_fields(block: Fields) -> Fields:
    """Return the message of the result of a call, without its time."""
    content = block.get("content")
    if isinstance(content, str):
        text = content
    else:
        text = _SEPARATOR.join(text_of(part.get("text")) for part in objects_of(content))
    call_id = text_of(block.get("tool_use_id"))
    fields: Fields = {"role": "tool", "content": text, "toolCallId": call_id}
    if block.get("is_error") is True:
        fields["metadata"] = {"isError": True}
    return fields


def _call_of_block(block: Fields) -> Fields:
    return {
        "id": text_of(block.get("id")),
        "name": text_of(block.get("name")),
        "arguments": block.get("input", {}),
    }


def _write(fields: Fields) -> Fields:
    """Return the entry of a message, without its type.

    The type is kept in `metadata.source`. So only a message that was made of an entry of the SDK
    has one.
    """
    if fields["role"] == "system":
        return {}
    if fields["role"] == "tool":
        result = {
            "type": "tool_result",
            "tool_use_id": fields.get("toolCallId", ""),
            "content": fields["content"],
        }
        if fields.get("metadata", {}).get("isError"):
            result["is_error"] = True
        return {"message": {"role": "user", "content": [result]}}
    if fields["role"] == "user":
        return {"message": {"role": "user", "content": fields["content"]}}
    body = {"role": "assistant", "content": _blocks_of(fields)}
    return {"message": with_nonempty(body, model=fields.get("model"))}


def _blocks_of(fields: Fields) -> list[Fields]:
    """Return the content blocks of a message of the model."""
    blocks: list[Fields] = []
    if "reasoning" in fields:
        blocks.append({"type": "thinking", "thinking": fields["reasoning"]})
    if fields["content"]:
        blocks.append({"type": "text", "text": fields["content"]})
    for call in fields.get("toolCalls", ()):
        block = {"id": call.get("id"), "name": call.get("name"), "input": call.get("arguments")}
        blocks.append({"type": "tool_use", **block})
    return blocks


class CapsuleSessionStore:
    """Stores transcripts as conversations: one for each project, session and subagent."""

    def __init__(self, store: CoreStore) -> None:
        """Use an open store.

        Args:
            store: The store. It must stay open as long as this object is used.
        """
        self._store = store.beside(keep_locks=False)

    # The protocol of the SDK names this method. At run time it must be missing: then the SDK loads
    # each session instead.
    if TYPE_CHECKING:

        async def list_session_summaries(self, project_key: str) -> list[Any]:
            """Is not offered: the SDK loads each session instead. Raises nothing. Cost: none."""

    def _items(self, key: Mapping[str, str]) -> Items:
        session = "\0".join((key["project_key"], key["session_id"], key.get("subpath", "")))
        return Items(
            store=self._store, name=_NAME, session=session, item=Pair(_read, _write), key=key
        )

    def conversation_id(self, key: Mapping[str, str]) -> str:
        """Return the id of the conversation of a transcript.

        Args:
            key: The key from the SDK: `project_key`, `session_id`, and for a subagent `subpath`.

        Raises KeyError if the key lacks one of them. Cost: none.
        """
        return self._items(key).id

    async def append(self, key: Any, entries: list[Any]) -> None:
        """Append entries to a transcript, all or none.

        Raises the errors of `Store.append`. Cost: one fdatasync.
        """
        await to_thread.run_sync(
            lambda: self._items(key).add(entries, lambda entry: entry.get("uuid"))
        )

    async def load(self, key: Any) -> list[Any] | None:
        """Return the entries of a transcript in their order. None: it has none.

        Messages that another program added to the conversation are left out.

        Raises InvalidDocument. Cost: reading the conversation.
        """
        items = self._items(key)
        messages = await to_thread.run_sync(lambda: items.entries(is_all=True))
        entries = [items.item(message) for message in messages or ()]
        return [entry for entry in entries if "type" in entry] or None

    async def list_sessions(self, project_key: str) -> list[Any]:
        """Return the sessions of a project, with the times of their last change in milliseconds.

        Cost: as `sessions`.
        """

        def rows() -> list[dict[str, Any]]:
            return [
                {"session_id": key["session_id"], "mtime": timestamps.ms_of(head.updated_at)}
                for head, key in sessions(self._store, _NAME)
                if key.get("project_key") == project_key and not key.get("subpath")
            ]

        return await to_thread.run_sync(rows)

    async def list_subkeys(self, key: Any) -> list[str]:
        """Return the subpaths of the subagents of a session. Cost: as `sessions`."""
        subagent_keys = await to_thread.run_sync(self._subagent_keys, key)
        return [subagent_key["subpath"] for subagent_key in subagent_keys]

    def _subagent_keys(self, key: Any) -> list[Fields]:
        """Return the keys of the transcripts of a session's subagents."""
        subagent_keys = []
        for _, transcript_key in sessions(self._store, _NAME):
            if not transcript_key.get("subpath"):
                continue
            if all(transcript_key.get(name) == key[name] for name in ("project_key", "session_id")):
                subagent_keys.append(transcript_key)
        return subagent_keys

    async def delete(self, key: Any) -> None:
        """Move a transcript to the trash. With a session, its subagents are moved too.

        Raises Locked, LockLost. Cost: as `sessions`.
        """

        def delete_transcripts() -> None:
            keys = [key]
            if not key.get("subpath"):
                keys = [*self._subagent_keys(key), key]
            for transcript_key in keys:
                with suppress(NotFound):
                    self._store.delete(self.conversation_id(transcript_key))

        await to_thread.run_sync(delete_transcripts)
