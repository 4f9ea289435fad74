"""Changes of what is there: one message, a whole conversation saved by a person, its project
context, or its layout.

What must stay true: an edited message keeps its place. A file that a person edited is validated as
any file is, and keeps the messages that were appended while the editor was open. `editedAt` says
when a message changed; it is later than all earlier times, whatever the clock says, so that a
summary knows which messages changed since. A context is written piece by piece, as it may be larger
than all messages, which are neither parsed nor rewritten for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import orjson

from capsule import timestamps
from capsule.format import migrations, validation
from capsule.format.documents import creation
from capsule.format.documents.message import check_message
from capsule.format.json import canonical, codec, layout
from capsule.format.references import find_message
from capsule.format.tree.branches import mark_edited, retitle
from capsule.format.validation import decode_checked
from capsule.store.base import KIND
from capsule.store.change.appends import encoded_within, message_model

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.format.models import Message
    from capsule.store.base import BaseStore
    from capsule.store.change.conversation import Conversation

Whose = Literal["own", "agent", "person"]
_TEXT_FIRST = b'{\n    "fullContext": "'


def named(store: BaseStore, id: str, message_id: str) -> str:
    """How to name a message inside a write: an agent's words for it are taken from what it may
    read.
    """
    return (
        message_id if store.agent is None else store.find_message(id, message_id).id or message_id
    )


class Edits:
    """Changes of existing messages and files."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def message(
        self, id: str, message_id: str, content: str, *, is_agreed: bool = False
    ) -> Message:
        """Change the text of one message in place. The former text goes to the trash.

        `editedAt` says when, and `editedBy` which agent did it. An agent changes only messages that
        are from it.

        Args:
            id: The conversation.
            message_id: The message's id, a unique prefix of it of 4 characters or more, `@N` or
                `@last`.
            content: The new text.
            is_agreed: Whether a person said yes to this change. An agent may then change any
                message of a chat.

        Raises the errors of `append`. Cost: reading and writing the whole file.
        """
        check_message({"role": "user", "content": content})
        message_id = named(self._store, id, message_id)

        def act(conversation: Conversation) -> tuple[dict[str, Any], int]:
            place = find_message(conversation.document()["history"], message_id, id)

            def change(document: dict[str, Any]) -> None:
                history = document["history"]
                if history[place]["content"] != content:
                    changed = history[place] | {"content": content}
                    history[place] = mark_edited(changed, document["updatedAt"], self._store.agent)
                encoded_within(history[place], self._store.settings.message_bytes)
                retitle(document, conversation.document()["history"], history)

            after = conversation.rewrite(change, reason="edited", is_agreed=is_agreed)
            return after["history"][place], place

        return message_model(*self._store.inner.change(id, act))

    def rewrite(self, id: str, data: bytes, read: bytes) -> Head:
        """Save a conversation that a person edited as a whole. Removed and changed messages go to
        the trash.

        Args:
            id: The conversation.
            data: The file as the person left it.
            read: The file as the person got it. Messages appended since are merged into `data`.

        Raises the errors of `append`; InvalidDocument if `data` is not a capsule, or of another
        conversation, and nothing was written.

        Cost: reading and writing the whole file.
        """
        merge = _merged_edit(data, read, id, self._store.agent)

        def change(document: dict[str, Any]) -> dict[str, Any]:
            after = merge(document)
            after["metadata"]["lock"] = document["metadata"]["lock"]
            return after

        after = self._store.inner.change(
            id, lambda conversation: conversation.rewrite(change, reason="edited")
        )
        return self._store.inner.parsed_head(id, after)

    def migrate(self, id: str, *, check: bool = False) -> list[str]:
        """Bring a file to the current version and to the canonical layout.

        Args:
            id: The conversation.
            check: Change nothing; only return the changes.

        Returns:
            The changes, in words; empty if the file is current and canonical.

        Raises the errors of `append`. Cost: reading the whole file, and writing it if it changes.
        """
        path = self._store.engine.name(KIND, id)
        data = self._store.read(id)
        document, changes = migrations.upgrade(codec.decode(data, path), path)
        if not changes and codec.encode(canonical.in_order(document)) != data:
            changes = ["brought into the canonical layout"]
        if changes and not check:
            self._store.inner.change(
                id,
                lambda conversation: conversation.rewrite(lambda document: None, keeps_time=True),
            )
        return changes


def _merged_edit(
    data: bytes, read: bytes, id: str, by: str | None
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Return the function that makes the edited document from the present one.

    Args:
        data, read, id: As `Edits.rewrite` takes them.
        by: The agent that edited it; None: a person.

    Raises:
        InvalidDocument: `data` is not a capsule, or of another conversation; its path is given as
            `{id}.json`.
    """
    path = f"{id}.json"
    saved, _ = migrations.upgrade(decode_checked(data, path, id), path)
    seen, _ = migrations.upgrade(decode_checked(read, path, id), path)
    seen_by_id = {message.get("id"): message for message in seen["history"]}

    def merge(now: dict[str, Any]) -> dict[str, Any]:
        there = {message.get("id") for message in saved["history"]}
        unseen = [
            message
            for message in now["history"]
            if message.get("id") not in seen_by_id and message["id"] not in there
        ]
        stamp = now["updatedAt"]
        history = [
            _dated(message, seen_by_id.get(message.get("id")), stamp, by)
            for message in saved["history"]
        ]
        title_set_by = (
            "user" if saved["title"] != seen["title"] else saved["metadata"].get("titleSetBy")
        )
        metadata = saved["metadata"] | ({"titleSetBy": title_set_by} if title_set_by else {})
        return saved | {"metadata": metadata, "history": [*history, *unseen]}

    return merge


def _dated(
    message: dict[str, Any], seen: dict[str, Any] | None, stamp: str, by: str | None
) -> dict[str, Any]:
    """Return a message as it was saved. If its text changed, it says by whom, and when unless that
    was typed.
    """
    if seen is None or message["content"] == seen["content"]:
        return message
    typed = message.get("editedAt")
    if typed is None or typed == seen.get("editedAt"):
        return mark_edited(message, stamp, by)
    return mark_edited(message, typed, by)


def whose(message: Mapping[str, Any], me: str | None) -> Whose:
    """The author of a message, for an agent that wants to change or remove it. Every door that acts
    for an agent asks.

    A person's message is changed only when that person says so, and an agent's only by that agent.

    Args:
        message: As it stands in the file.
        me: The agent that asks; None: an agent without a name, which may be the author of any
            agent's message.

    Returns:
        `own`; `agent`: another agent; `person`: a person, or an unknown author.
    """
    author = message.get("from")
    if me is not None and author == me:
        return "own"
    if message.get("role") == "user":
        return "person"
    if me is None:
        return "own"
    return "agent" if author else "person"


@runtime_checkable
class EncodableContext(Protocol):
    """A context that encodes itself."""

    def encoded(self) -> Iterable[bytes]:
        """The context as a JSON object in the canonical layout, piece by piece;
        `anatomy.context_lines` says how.
        """


class ProjectContexts:
    """The project contexts of the conversations of a store."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def get(self, id: str) -> dict[str, Any]:
        """Read the project context of a conversation, as it stands in the file.

        Args:
            id: The conversation.

        Raises NotFound, InvalidDocument. Cost: reading the file.
        """
        name = self._store.engine.name(KIND, id)

        def parse(data: bytes, is_canonical: bool) -> dict[str, Any]:
            span = layout.context_in(data) if is_canonical else None
            if span is not None:
                return _decoded(data, span, name)
            context: dict[str, Any] = migrations.upgrade(codec.decode(data, name), name)[0][
                "context"
            ]
            return context

        return self._store.engine.parsed(id, parse)

    def set(self, id: str, context: Mapping[str, Any] | EncodableContext) -> Head:
        """Give a conversation a project context, in place of its present one.

        Args:
            id: The conversation.
            context: The context as in the file (`fullContext`, `metadata`), or the result of
                `capture`.

        Raises the errors of `append`. Cost: writing the context, and copying the rest of the file.
        """
        if isinstance(context, EncodableContext):
            encoded = context.encoded
        else:
            data = _encoded(id, context)
            if data == codec.encode(canonical.in_order({"context": self.get(id)})["context"])[:-1]:
                return self._store.inner.parsed_head(
                    id,
                    self._store.inner.change(
                        id, lambda conversation: conversation.change_head(_nothing)
                    ),
                )

            def encoded() -> Iterable[bytes]:
                return (data,)

        return self._store.inner.parsed_head(
            id, self._store.inner.change(id, lambda conversation: conversation.set_context(encoded))
        )

    def clear(self, id: str) -> Head:
        """Remove the project context of a conversation. Raises the errors of `append`. Cost:
        copying the file.

        Args:
            id: The conversation.
        """
        return self.set(id, creation.new_capsule(id, "", timestamps.now())["context"])


def _decoded(data: bytes, span: tuple[int, int], path: str) -> dict[str, Any]:
    """The context at a place in a canonical capsule.

    The faster reader reads its text, which may be large. The reader that keeps every digit of
    numbers reads the rest.
    """
    start, end = span
    if not data.startswith(_TEXT_FIRST, start):
        return codec.decode(data[start:end], path)
    line = data.index(b"\n", start + len(_TEXT_FIRST))
    last = line - 1 if data.startswith(b",", line - 1) else line
    text = orjson.loads(memoryview(data)[start + len(_TEXT_FIRST) - 1 : last])
    return {"fullContext": text, **codec.decode(b"{" + data[line:end], path)}


def _encoded(id: str, context: Mapping[str, Any]) -> bytes:
    """The bytes of a checked context. Raises InvalidInput."""
    document = creation.new_capsule(id, "", timestamps.now()) | {"context": dict(context)}
    validation.check_arguments(document)
    return codec.encode(canonical.in_order(document)["context"])[:-1]


def _nothing(head: dict[str, Any]) -> None:
    """Changes nothing; the write then only records the lock."""
