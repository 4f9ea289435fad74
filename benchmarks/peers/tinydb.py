"""TinyDB: a document database in one JSON file, which it reads and writes whole."""

from __future__ import annotations

from pathlib import Path

from tinydb import TinyDB  # type: ignore[import-not-found, unused-ignore]

from benchmarks.fixtures import STAMP, history

__all__ = ["TinyDocuments", "open_tinydb"]


def open_tinydb(directory: Path) -> TinyDocuments:
    """Open the database in a directory."""
    return TinyDocuments(directory / "tinydb.json")


class TinyDocuments:
    """A database with a table for each conversation."""

    def __init__(self, path: Path) -> None:
        self._db = TinyDB(path, encoding="utf-8")

    def fill(self, conversation: str, count: int) -> None:
        self._db.table(conversation).insert_multiple(history(count))

    def append(self, conversation: str, text: str) -> int:
        return int(
            self._db.table(conversation).insert(
                {"role": "user", "content": text, "timestamp": STAMP}
            )
        )

    def texts(self, conversation: str) -> list[str]:
        return [str(document["content"]) for document in self._db.table(conversation).all()]

    def close(self) -> None:
        self._db.close()
