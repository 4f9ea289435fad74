"""What is measured upon: texts, and capsules of a given size as the store itself lays them out.

What must stay true: a text of n bytes is the same in every run, made of words as a full-text index
likes them, and every contestant gets the same texts.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.ids import new_message_id

__all__ = [
    "CONTEXT_BYTES",
    "MESSAGE_BYTES",
    "STAMP",
    "copy_durably",
    "history",
    "texts",
    "write_capsule",
]

MESSAGE_BYTES = 400
CONTEXT_BYTES = 1_200_000
STAMP = "2025-01-12T10:00:00.000Z"
_VOCABULARY = 5000
_POOL = 64


@lru_cache
def _words() -> list[str]:
    draw = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgk"
    return ["".join(draw.choices(letters, k=draw.randint(2, 10))) for _ in range(_VOCABULARY)]


@lru_cache
def texts(size: int = MESSAGE_BYTES) -> list[str]:
    """A pool of texts of exactly `size` bytes."""
    draw = random.Random(size)
    pool = []
    for _ in range(_POOL):
        text = " ".join(draw.choices(_words(), k=size // 4 + 4))
        pool.append(text[: size - 1] + ".")
    return pool


def history(count: int, size: int = MESSAGE_BYTES) -> Iterator[dict[str, str]]:
    """`count` messages with texts of `size` bytes, as they stand in a capsule."""
    pool = texts(size)
    for number in range(count):
        yield {
            "role": "assistant" if number % 2 else "user",
            "content": pool[number % len(pool)],
            "timestamp": STAMP,
            "id": new_message_id(),
        }


def write_capsule(
    root: Path,
    id: str,
    *,
    messages: int,
    type: str = "group",
    context_bytes: int = 0,
    size: int = MESSAGE_BYTES,
) -> Path:
    """Write a canonical capsule into a store, as if it had been checked out there;
    the file's path.
    """
    context = None
    if context_bytes:
        text = (texts(1000)[0] + "\n") * (context_bytes // 1001 + 1)
        about = {
            "projectPath": "/project",
            "filesIncluded": 37,
            "estimatedTokens": 312_585,
            "contextHash": None,
        }
        context = {"fullContext": text[:context_bytes], "metadata": about}
    document = new_capsule(
        id,
        f"Conversation {id}",
        STAMP,
        type=type,
        title_set_by="user",
        tags=["work"],
        messages=history(messages, size),
        context=context,
    )
    path = root / "conversations" / f"{id}.json"
    path.write_bytes(codec.encode(document))
    return path


def copy_durably(source: Path, target: Path) -> None:
    """cp and fsync: what a person would do at the least, in the kernel."""
    read = os.open(source, os.O_RDONLY)
    written = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    left = os.fstat(read).st_size
    while left:
        left -= os.copy_file_range(read, written, left)
    os.fsync(written)
    os.close(written)
    os.close(read)
