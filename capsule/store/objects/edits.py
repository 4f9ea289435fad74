"""Changes of existing content: one message, a whole conversation that a person saved in an editor,
its project context, or its layout.

What must stay true: an edited message keeps its position. A file that a person edited is validated
like any file, and keeps the messages that were appended while the editor was open. `editedAt` is
the time when a message changed. It is later than all earlier times, whatever the clock says, so
that a summary knows which messages changed since. A context is written piece by piece, because it
may be larger than all messages. The messages are neither parsed nor rewritten for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import orjson

from capsule import timestamps
from capsule.engines.interface import CONVERSATIONS
from capsule.format import migrations, validation
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.message import check_message
from capsule.format.json import canonical, codec, layout
from capsule.format.references import find_message
from capsule.format.tree.branches import mark_edited, retitle
from capsule.format.validation import decode_checked
from capsule.store.change.appends import encoded_within, message_model

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.format.models import Message
    from capsule.store.base import BaseStore
    from capsule.store.change.conversation import Conversation

AuthorRelation = Literal["own", "agent", "person"]
#: The beginning of a context in the canonical layout, up to its text.
_TEXT_PREFIX = b'{\n    "fullContext": "'


def message_label(store: BaseStore, id: str, message_id: str) -> str:
    """Return how to name a message inside a write.

    A write sees all messages. An agent's prefix or `@N` is therefore resolved to an id first, among
    the messages that the agent may read.
    """
    if store.agent is None:
        return message_id
    return store.find_message(id, message_id).id or message_id


class Edits:
    """Changes of existing messages and files."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def message(
        self, id: str, message_id: str, content: str, *, is_agreed: bool = False
    ) -> Message:
        """Change the text of one message in place. The former text goes to the trash.

        `editedAt` is the time, and `editedBy` the agent that did it. An agent changes only messages
        that are from it.

        Args:
            id: The conversation.
            message_id: The message's id, a unique prefix of it of 4 characters or more, `@N` or
                `@last`.
            content: The new text.
            is_agreed: Whether a person agreed to this change. An agent may then change any
                message of a chat.

        Raises the errors of `append`. Cost: reading and writing the whole file.
        """
        check_message({"role": "user", "content": content})
        message_id = message_label(self._store, id, message_id)

        def edit(conversation: Conversation) -> tuple[dict[str, Any], int]:
            position = find_message(conversation.document()["history"], message_id, id)

            def change(document: dict[str, Any]) -> None:
                history = document["history"]
                if history[position]["content"] != content:
                    changed = history[position] | {"content": content}
                    history[position] = mark_edited(
                        changed, document["updatedAt"], self._store.agent
                    )
                encoded_within(history[position], self._store.settings.message_bytes)
                retitle(document, conversation.document()["history"], history)

            written = conversation.rewrite(change, reason="edited", is_agreed=is_agreed)
            return written["history"][position], position

        entry, position = self._store.inner.change(id, edit)
        return message_model(entry, position)

    def rewrite(self, id: str, data: bytes, read: bytes) -> Head:
        """Save a conversation that a person edited as a whole. Removed and changed messages go to
        the trash.

        Args:
            id: The conversation.
            data: The file as the person left it.
            read: The file as the person got it. Messages appended since are merged into `data`.

        Raises the errors of `append`, and InvalidDocument if `data` is not a capsule, or of another
        conversation. Nothing was written then.

        Cost: reading and writing the whole file.
        """
        merge = _merged_edit(data, read, id, self._store.agent)

        def change(document: dict[str, Any]) -> dict[str, Any]:
            merged = merge(document)
            merged["metadata"]["lock"] = document["metadata"]["lock"]
            return merged

        written = self._store.inner.change(
            id, lambda conversation: conversation.rewrite(change, reason="edited")
        )
        return self._store.inner.parsed_head(id, written)

    def migrate(self, id: str, *, check: bool = False) -> list[str]:
        """Bring a file to the current version and to the canonical layout.

        Args:
            id: The conversation.
            check: Change nothing, and only return the changes.

        Returns:
            The changes, in words. Empty if the file is current and canonical.

        Raises the errors of `append`. Cost: reading the whole file, and writing it if it changes.
        """
        path = self._store.engine.name(CONVERSATIONS, id)
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
        by: The agent that edited it. None: a person.

    Raises:
        InvalidDocument: `data` is not a capsule, or of another conversation. Its path is given as
            `{id}.json`.
    """
    path = f"{id}.json"
    saved, _ = migrations.upgrade(decode_checked(data, path, id), path)
    original, _ = migrations.upgrade(decode_checked(read, path, id), path)
    original_by_id = {message.get("id"): message for message in original["history"]}
    saved_ids = {message.get("id") for message in saved["history"]}

    def merge(present: dict[str, Any]) -> dict[str, Any]:
        history = []
        for message in saved["history"]:
            original_message = original_by_id.get(message.get("id"))
            history.append(_with_edit_mark(message, original_message, present["updatedAt"], by))
        for message in present["history"]:
            was_appended_since = message.get("id") not in original_by_id
            if was_appended_since and message["id"] not in saved_ids:
                history.append(message)
        metadata = saved["metadata"]
        if saved["title"] != original["title"]:
            metadata = metadata | {"titleSetBy": "user"}
        return saved | {"metadata": dict(metadata), "history": history}

    return merge


def _with_edit_mark(
    message: dict[str, Any], original: dict[str, Any] | None, updated_at: str, by: str | None
) -> dict[str, Any]:
    """Return a message as it was saved. If its text changed, `editedBy` is its editor, and
    `editedAt` the time of the write, unless the person typed another time.
    """
    if original is None or message["content"] == original["content"]:
        return message
    typed_time = message.get("editedAt")
    if typed_time is None or typed_time == original.get("editedAt"):
        return mark_edited(message, updated_at, by)
    return mark_edited(message, typed_time, by)


def author_relation(message: Mapping[str, Any], me: str | None) -> AuthorRelation:
    """Return how the author of a message is related to an agent that wants to change or remove it.
    Every door that acts for an agent asks.

    A person's message may be changed only if that person agrees, and an agent's only by that agent.

    Args:
        message: The message as in the file.
        me: The agent. None: an agent without a name, which may be the author of any agent's
            message.

    Returns:
        `own`: The agent itself. `agent`: another agent. `person`: a person, or an unknown author.
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
        """Yield the context as a JSON object in the canonical layout, piece by piece, as
        `layout.context_lines` does.
        """


class ProjectContexts:
    """The project contexts of the conversations of a store."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def get(self, id: str) -> dict[str, Any]:
        """Read the project context of a conversation, as in the file.

        Args:
            id: The conversation.

        Raises NotFound, InvalidDocument. Cost: reading the file.
        """
        name = self._store.engine.name(CONVERSATIONS, id)

        def parse(data: bytes, is_canonical: bool) -> dict[str, Any]:
            span = layout.context_in(data) if is_canonical else None
            if span is not None:
                return _decode_context(data, span, name)
            document, _ = migrations.upgrade(codec.decode(data, name), name)
            context: dict[str, Any] = document["context"]
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
        inner = self._store.inner
        if isinstance(context, EncodableContext):
            encoded = context.encoded
        else:
            data = _encode_checked(id, context)
            if data == _encode_context({"context": self.get(id)}):
                return inner.change_head(id, _change_nothing)

            def encoded() -> Iterable[bytes]:
                return (data,)

        return inner.parsed_head(
            id, inner.change(id, lambda conversation: conversation.set_context(encoded))
        )

    def clear(self, id: str) -> Head:
        """Remove the project context of a conversation. Raises the errors of `append`. Cost:
        copying the file.

        Args:
            id: The conversation.
        """
        return self.set(id, new_capsule(id, "", timestamps.now())["context"])


def _decode_context(data: bytes, span: tuple[int, int], path: str) -> dict[str, Any]:
    """Return the context in a part of a canonical capsule.

    Its text may be large, and is read by the faster JSON reader. The rest is read by the reader
    that keeps every digit of numbers.

    Args:
        data: The capsule.
        span: The offsets of the context: its start, and its end.
        path: The file, for errors.
    """
    start, end = span
    if not data.startswith(_TEXT_PREFIX, start):
        return codec.decode(data[start:end], path)
    line_end = data.index(b"\n", start + len(_TEXT_PREFIX))
    text_end = line_end
    if data.startswith(b",", line_end - 1):
        text_end = line_end - 1
    text = orjson.loads(memoryview(data)[start + len(_TEXT_PREFIX) - 1 : text_end])
    return {"fullContext": text, **codec.decode(b"{" + data[line_end:end], path)}


def _encode_checked(id: str, context: Mapping[str, Any]) -> bytes:
    """Return the bytes of a context. Raises InvalidInput if it can't be accepted."""
    document = new_capsule(id, "", timestamps.now()) | {"context": dict(context)}
    validation.check_arguments(document)
    return _encode_context(document)


def _encode_context(document: dict[str, Any]) -> bytes:
    """Return the bytes of the context of a document, without the line end."""
    return codec.encode(canonical.in_order(document)["context"])[:-1]


def _change_nothing(head: dict[str, Any]) -> None:
    """Change nothing, so that the write only records the lock."""
