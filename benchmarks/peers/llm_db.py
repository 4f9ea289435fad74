"""The log database of `llm`, through its Python API: a turn of a conversation, logged after it was
answered.

The model is one of this module that answers nothing, so that only the logging costs. A message here
is a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llm  # type: ignore[import-not-found, unused-ignore]
import sqlite_utils  # type: ignore[import-not-found, unused-ignore]

from benchmarks.fixtures import history

__all__ = ["LogDatabase", "open_llm"]


class _Silent(llm.Model):  # type: ignore[misc, unused-ignore]
    model_id = "silent"
    can_stream = False

    def execute(self, prompt: Any, stream: bool, response: Any, conversation: Any) -> Iterator[str]:
        yield "."


def open_llm(directory: Path) -> LogDatabase:
    """Open the log database in a directory."""
    return LogDatabase(directory / "logs.db")


class LogDatabase:
    """A log database; every process goes on with a conversation as it knows it."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite_utils.Database(path)
        self._conversations: dict[str, Any] = {}

    def _conversation(self, id: str) -> Any:
        if id not in self._conversations:
            self._conversations[id] = llm.Conversation(model=_Silent(), id=id)
        return self._conversations[id]

    def fill(self, conversation: str, count: int) -> None:
        with self._db.conn:
            for message in history(count):
                self.append(conversation, message["content"])

    def append(self, conversation: str, text: str) -> None:
        response = self._conversation(conversation).prompt(text, stream=False)
        response.text()
        response.log_to_db(self._db)

    def texts(self, conversation: str) -> list[str]:
        return [
            str(row[0])
            for row in self._db.conn.execute("SELECT text FROM parts WHERE text IS NOT NULL")
        ]

    def close(self) -> None:
        self._db.conn.close()
