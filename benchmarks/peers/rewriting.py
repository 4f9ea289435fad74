"""What most projects write by hand: read the JSON file, append, write it beside its place, fsync,
rename.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.fixtures import STAMP, history

__all__ = ["RewrittenFiles", "open_rewriting"]


def open_rewriting(directory: Path) -> RewrittenFiles:
    """Open a directory of such files."""
    return RewrittenFiles(directory)


class RewrittenFiles:
    """A directory of JSON files, one a conversation. Nothing excludes another writer, as nothing
    mostly does.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _path(self, conversation: str) -> Path:
        return self._directory / f"{conversation}.json"

    def _read(self, conversation: str) -> dict[str, Any]:
        found = json.loads(self._path(conversation).read_text("utf-8"))
        assert isinstance(found, dict)
        return found

    def _write(self, conversation: str, document: dict[str, Any]) -> None:
        path = self._path(conversation)
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=2, ensure_ascii=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(self._directory, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def fill(self, conversation: str, count: int) -> None:
        self._write(
            conversation, {"id": conversation, "updatedAt": STAMP, "messages": list(history(count))}
        )

    def append(self, conversation: str, text: str) -> None:
        document = self._read(conversation)
        document["messages"].append({"role": "user", "content": text, "timestamp": STAMP})
        self._write(conversation, document)

    def texts(self, conversation: str) -> list[str]:
        return [message["content"] for message in self._read(conversation)["messages"]]

    def close(self) -> None:
        pass
