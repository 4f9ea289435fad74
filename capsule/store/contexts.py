"""The project context of a conversation, read and written as a whole.

What must stay true: a context is written under the rules of every other write, piece by piece, as it may be larger than
all messages. Messages are neither parsed nor rewritten for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import orjson

from capsule import timestamps
from capsule.format import anatomy, canonical, codec, migrations, new, validation
from capsule.store.reading import KIND

if TYPE_CHECKING:
    from capsule.format.head import Head
    from capsule.store.store import Store


@runtime_checkable
class Encoded(Protocol):
    """A context that encodes itself."""

    def encoded(self) -> Iterable[bytes]:
        """The context as a JSON object in the canonical layout, piece by piece; `anatomy.context_lines` says how."""


class Contexts:
    """The project contexts of the conversations of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, id: str) -> dict[str, Any]:
        """Read the project context of a conversation, as it stands in the file.

        Args:
            id: The conversation.

        Raises NotFound, InvalidDocument. Cost: reading the file.
        """
        name = self._store.engine.name(KIND, id)

        def parse(data: bytes, is_canonical: bool) -> dict[str, Any]:
            span = anatomy.context_in(data) if is_canonical else None
            if span is not None:
                return _decoded(data, span, name)
            context: dict[str, Any] = migrations.current(codec.decode(data, name), name)[0]["context"]
            return context

        return self._store.engine.parsed(id, parse)

    def set(self, id: str, context: Mapping[str, Any] | Encoded) -> Head:
        """Give a conversation a project context, in place of its present one.

        Args:
            id: The conversation.
            context: The context as in the file (`fullContext`, `metadata`), or the result of `capture`.

        Raises the errors of `append`. Cost: writing the context, and copying the rest of the file.
        """
        if isinstance(context, Encoded):
            encoded = context.encoded
        else:
            data = _encoded(id, context)
            if data == codec.encode(canonical.in_order({"context": self.get(id)})["context"])[:-1]:
                return self._store._head_of(
                    id, self._store._change(id, lambda conversation: conversation.change_head(_nothing))
                )

            def encoded() -> Iterable[bytes]:
                return (data,)

        return self._store._head_of(id, self._store._change(id, lambda conversation: conversation.set_context(encoded)))

    def clear(self, id: str) -> Head:
        """Remove the project context of a conversation. Raises the errors of `append`. Cost: copying the file.

        Args:
            id: The conversation.
        """
        return self.set(id, new.new_capsule(id, "", timestamps.now())["context"])


_TEXT_FIRST = b'{\n    "fullContext": "'


def _decoded(data: bytes, span: tuple[int, int], path: str) -> dict[str, Any]:
    """The context at a place in a canonical capsule.

    The faster reader reads its text, which may be large. The reader that keeps every digit of numbers reads the rest.
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
    document = new.new_capsule(id, "", timestamps.now()) | {"context": dict(context)}
    validation.check_made(document)
    return codec.encode(canonical.in_order(document)["context"])[:-1]


def _nothing(head: dict[str, Any]) -> None:
    """Changes nothing; the write then only records the lock."""
