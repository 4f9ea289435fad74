"""Keep the small documents that belong to this machine and are never committed or shared.

Examples: how to wake an agent here, which commands may run, keys and secrets.

What must stay true: the documents are beside the engine and never in it, so that a shared engine
has none of them. A document that this user did not write here counts as missing, as it can name a
command to run. A key that all machines need is the store's: the engine has it, and it is not
stored here.
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
#: The kinds that an agent may read and write: where agents work, and how they are woken.
_KINDS_OF_AGENTS = frozenset({"doorbells", "homes"})


class LocalDocuments(ABC):
    """The small JSON documents of this machine, by kind and id. Several threads may use it."""

    _agent: str | None = None
    #: By the id of each key that is the store's: a function that returns it.
    of_store: Mapping[str, Callable[[], bytes]] = {}

    def for_agent(self, agent: str) -> Self:
        """Return the same documents for an agent. For most kinds, the methods raise Refused."""
        restricted = copy(self)
        restricted._agent = agent
        return restricted

    def _check_kind(self, kind: str) -> None:
        """Raise Refused if an agent may not use this kind."""
        if self._agent is not None and kind not in _KINDS_OF_AGENTS:
            raise Refused(f"agent {self._agent} may not use {kind}, only a person may", path="")

    def ids(self, kind: str) -> list[str]:
        """Return the ids of all documents of a kind, sorted."""
        self._check_kind(kind)
        return self._ids(kind)

    def read(self, kind: str, id: str) -> Document | None:
        """Return a document. None: there is none, or it is not a JSON object.

        Raises Refused, InvalidInput. Cost: reading it.
        """
        self._check_kind(kind)
        data = self._read(kind, check_id(id))
        return None if data is None else _decoded(data)

    def edit(
        self, kind: str, id: str, change: Callable[[Document | None], Document | None]
    ) -> None:
        """Read, change and write a document, exclusively and durably.

        Args:
            kind: Its kind.
            id: Its id.
            change: Takes the document, or None. Returns the new one, or None to write nothing. If
                it raises, nothing is written. It runs again if another program wrote the document
                in between.

        Raises StoreBusy, Refused, StorageFailed.
        """
        self._check_kind(kind)

        def edit(data: bytes | None) -> bytes | None:
            document = change(_decoded(data))
            if document is None:
                return None
            return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

        self._edit(kind, check_id(id), edit)

    def delete(self, kind: str, id: str) -> None:
        """Move a document to the trash, if it exists."""
        self._check_kind(kind)
        self._delete(kind, check_id(id))

    def key(self, id: str) -> bytes:
        """Return a secret key of 32 bytes: the store's, or one of this machine.

        A missing key of this machine is made. If it can't be written, it is valid for this call
        only.
        """
        if id in self.of_store:
            return self.of_store[id]()
        # Imported here: it loads OpenSSL, which a command that only reads does not need.
        from secrets import token_hex

        key = token_hex(32)

        def make_key(document: Document | None) -> Document | None:
            nonlocal key
            if document:
                key = str(document["key"])
                return None
            return {"id": id, "key": key}

        with suppress(Refused, StorageFailed):
            self.edit("keys", id, make_key)
        return bytes.fromhex(key)

    def existing_key(self, id: str) -> bytes | None:
        """Return a key of this machine. None: none was made.

        Raises as `read`. Cost: reading a small file.
        """
        document = self.read("keys", id)
        return bytes.fromhex(str(document["key"])) if document else None

    def renew_key(self, id: str) -> None:
        """Replace a key. Signatures with the old one become invalid. Raises as `edit`."""
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
        self._thread_lock = threading.RLock()
        self._documents: dict[tuple[str, str], bytes] = {}

    def _ids(self, kind: str) -> list[str]:
        return sorted(id for other_kind, id in [*self._documents] if other_kind == kind)

    def _read(self, kind: str, id: str) -> bytes | None:
        return self._documents.get((kind, id))

    def _edit(self, kind: str, id: str, change: Callable[[bytes | None], bytes | None]) -> None:
        with self._thread_lock:
            data = change(self._read(kind, id))
            if data is not None:
                self._documents[kind, id] = data

    def _delete(self, kind: str, id: str) -> None:
        self._documents.pop((kind, id), None)


def _decoded(data: bytes | None) -> Document | None:
    """Return a JSON object. None: it is none."""
    with suppress(orjson.JSONDecodeError):
        value = orjson.loads(data or b"")
        return value if isinstance(value, dict) else None
    return None
