"""What a project would use instead of the store, each behind the few calls that are measured.

What must stay true: `append` returns when the peer's own call returns, with nothing added to it or
left out; and a peer that can't be imported is skipped with a reason, never in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

__all__ = ["PEERS", "Messages", "Peer"]


class Messages(Protocol):
    """One opened store of conversations, of whatever make."""

    def fill(self, conversation: str, count: int) -> None:
        """Make a conversation of `count` messages."""

    def append(self, conversation: str, text: str) -> object:
        """Add a message; it counts as acknowledged when this returns."""

    def texts(self, conversation: str) -> list[str]:
        """The texts of a conversation, as another process finds them."""

    def close(self) -> None:
        """Give back what is open."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One kind of store.

    Attributes:
        name: What the tables call it.
        module: The module of this package that holds it.
        attribute: The function there that opens one in a directory.
        needs: The distribution that it needs; empty: none.
        durable: Whether what it acknowledges is on the disk.
        largest: The largest conversation that is worth the wait, in messages.
    """

    name: str
    module: str
    attribute: str
    needs: str = ""
    durable: bool = True
    largest: int = 100_000

    def open(self, directory: Path) -> Messages:
        """Open the store in a directory, making it if need be."""
        make: Callable[[Path], Messages] = getattr(
            import_module(f"benchmarks.peers.{self.module}"), self.attribute
        )
        return make(directory)

    def missing(self) -> str:
        """Why it can't take part; empty when it can."""
        try:
            import_module(f"benchmarks.peers.{self.module}")
        except ImportError as error:
            return f"not importable ({error}); pip install {self.needs}"
        return ""


PEERS = {
    peer.name: peer
    for peer in (
        Peer("capsule", "capsules", "open_store"),
        Peer("sqlite FULL", "sqlite", "open_full"),
        Peer("sqlite NORMAL", "sqlite", "open_normal", durable=False),
        Peer("JSONL, fdatasync", "jsonl", "open_flushed"),
        Peer("JSONL", "jsonl", "open_unflushed", durable=False),
        Peer("rewriting", "rewriting", "open_rewriting"),
        Peer("tinydb", "tinydb", "open_tinydb", needs="tinydb"),
        Peer(
            "langchain", "langchain", "open_langchain", needs="langchain-community", durable=False
        ),
        Peer("llm", "llm_db", "open_llm", needs="llm", largest=100),
    )
}
