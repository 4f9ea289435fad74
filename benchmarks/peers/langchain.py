"""LangChain's FileChatMessageHistory: a JSON list in a file, read and written whole, without an
fsync.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path

from benchmarks.fixtures import history

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Deprecations of the library's own.
    from langchain_community.chat_message_histories import FileChatMessageHistory  # type: ignore[import-not-found, unused-ignore]

__all__ = ["ChatHistories", "open_langchain"]


def open_langchain(directory: Path) -> ChatHistories:
    """Open a directory of histories."""
    return ChatHistories(directory)


class ChatHistories:
    """A directory of files, one a conversation."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _history(self, conversation: str) -> FileChatMessageHistory:
        return FileChatMessageHistory(str(self._directory / f"langchain-{conversation}.json"))

    def fill(self, conversation: str, count: int) -> None:
        kinds = {"user": "human", "assistant": "ai"}
        entries = [
            {
                "type": kinds[message["role"]],
                "data": {"content": message["content"], "type": kinds[message["role"]]},
            }
            for message in history(count)
        ]
        (self._directory / f"langchain-{conversation}.json").write_text(json.dumps(entries))

    def append(self, conversation: str, text: str) -> None:
        self._history(conversation).add_user_message(text)

    def texts(self, conversation: str) -> list[str]:
        return [str(message.content) for message in self._history(conversation).messages]

    def close(self) -> None:
        pass
