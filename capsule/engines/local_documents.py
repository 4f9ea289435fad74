"""What belongs to this machine alone: how to wake an agent here, which commands may run, keys and
secrets.

What must stay true: it is beside the engine and never in it, so that a shared engine carries none
of it; and a document that this user did not write here counts as missing, as what it says may be
run. Only a key that every machine has to know is the store's: the engine gives it, and it is kept
nowhere here.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from typing import Any, Self

import orjson

from capsule.errors import Refused, StorageFailed
from capsule.ids import check_id

Document = dict[str, Any]
#: What agents have to do with: where they work and how they are woken.
_OF_AGENTS = frozenset({"doorbells", "homes"})


class LocalDocuments(ABC):
    """The small JSON documents of this machine, by kind and id. Several threads may use it."""

    _agent: str | None = None
    #: What gives the keys that are the store's, by their ids.
    of_store: Mapping[str, Callable[[], bytes]] = {}

    def for_agent(self, agent: str) -> Self:
        """The same for an agent, which does not reach every kind: the methods raise Refused."""
        other = copy(self)
        other._agent = agent
        return other

    def _ensure_may(self, kind: str) -> None:
        if self._agent is not None and kind not in _OF_AGENTS:
            raise Refused(f"agent {self._agent} may not use {kind}, only a person may", path="")

    def ids(self, kind: str) -> list[str]:
        """The ids of all documents of a kind, sorted."""
        self._ensure_may(kind)
        return self._ids(kind)

    def read(self, kind: str, id: str) -> Document | None:
        """A document; None: there is none, or it is not a JSON object. Raises Refused, InvalidInput.
        Cost: reading it.
        """
        self._ensure_may(kind)
        data = self._read(kind, check_id(id))
        return None if data is None else _decoded(data)

    def edit(
        self, kind: str, id: str, change: Callable[[Document | None], Document | None]
    ) -> None:
        """Read, change and write a document, exclusively and durably.

        Args:
            kind: Its kind.
            id: Its id.
            change: Takes the document, or None; gives the new one, or None to write nothing. If it
                raises, nothing is written; it runs again if another program wrote the document
                meanwhile.

        Raises StoreBusy, Refused, StorageFailed.
        """
        self._ensure_may(kind)

        def edit(data: bytes | None) -> bytes | None:
            after = change(_decoded(data))
            return (
                None
                if after is None
                else orjson.dumps(after, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
            )

        self._edit(kind, check_id(id), edit)

    def delete(self, kind: str, id: str) -> None:
        """Move a document to the trash, if it is there."""
        self._ensure_may(kind)
        self._delete(kind, check_id(id))

    def key(self, id: str) -> bytes:
        """A secret key of 32 bytes: the store's, or made at first use; where nothing can be
        written, for this call.
        """
        if id in self.of_store:
            return self.of_store[id]()
        from secrets import (
            token_hex,
        )  # It loads OpenSSL, which a command that reads has no use for.

        key = token_hex(32)

        def made(there: Document | None) -> Document | None:
            nonlocal key
            key = str(there["key"]) if there else key
            return None if there else {"id": id, "key": key}

        with suppress(Refused, StorageFailed):
            self.edit("keys", id, made)
        return bytes.fromhex(key)

    def kept_key(self, id: str) -> bytes | None:
        """Return a key that was made before. None: there is none. Raises as `read`. Cost: reading a
        small file.
        """
        document = self.read("keys", id)
        return bytes.fromhex(str(document["key"])) if document else None

    def renew_key(self, id: str) -> None:
        """Replace a key, so that nothing that was signed with the old one is valid any more. Raises
        as `edit`.
        """
        from secrets import token_hex

        document = {"id": id, "key": token_hex(32)}
        self.edit("keys", id, lambda _: document)

    @abstractmethod
    def _ids(self, kind: str) -> list[str]: ...

    @abstractmethod
    def _read(self, kind: str, id: str) -> bytes | None: ...

    @abstractmethod
    def _edit(self, kind: str, id: str, change: Callable[[bytes | None], bytes | None]) -> None: ...

    @abstractmethod
    def _delete(self, kind: str, id: str) -> None: ...


class MemoryLocalDocuments(LocalDocuments):
    """The documents of this machine in memory, for as long as the process lives."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._documents: dict[tuple[str, str], bytes] = {}

    def _ids(self, kind: str) -> list[str]:
        return sorted(id for each, id in [*self._documents] if each == kind)

    def _read(self, kind: str, id: str) -> bytes | None:
        return self._documents.get((kind, id))

    def _edit(self, kind: str, id: str, change: Callable[[bytes | None], bytes | None]) -> None:
        with self._guard:
            if (after := change(self._read(kind, id))) is not None:
                self._documents[kind, id] = after

    def _delete(self, kind: str, id: str) -> None:
        self._documents.pop((kind, id), None)


def _decoded(data: bytes | None) -> Document | None:
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(data or b"")
        return value if isinstance(value, dict) else None
    return None
