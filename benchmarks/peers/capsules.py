"""Capsule itself, behind the same few calls as its peers: conversations of many writers."""

from __future__ import annotations

from pathlib import Path

from benchmarks.fixtures import texts, write_capsule
from capsule import Message, Store

__all__ = ["Capsules", "open_store"]


def open_store(directory: Path) -> Capsules:
    """Open the store in a directory."""
    Store.init(directory)
    return Capsules(Store.open(directory))


class Capsules:
    """An open store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def fill(self, conversation: str, count: int) -> None:
        write_capsule(Path(self._store.root), conversation, messages=count)
        self._store.append(
            conversation, role="user", content=texts()[0]
        )  # Settled: it is the store's from here on.

    def append(self, conversation: str, text: str) -> Message:
        return self._store.append(conversation, role="user", content=text)

    def texts(self, conversation: str) -> list[str]:
        return [message.content for message in self._store.load(conversation).history]

    def close(self) -> None:
        self._store.close()
