"""The files of conversations, as people and editors change them, and what a store reads
from them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from capsule import Store
from capsule.format.json import codec


def file_of(root: Path, id: str) -> Path:
    return root / "conversations" / f"{id}.json"


def opened(root: Path, id: str) -> dict[str, Any]:
    """What an editor has read."""
    found: dict[str, Any] = orjson.loads(file_of(root, id).read_bytes())
    return found


def text_of(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def put_over(path: Path, data: bytes) -> None:
    """Save as vim does: a new file, renamed over."""
    copy = path.with_suffix(".new")
    copy.write_bytes(data)
    copy.rename(path)


def save(root: Path, id: str, document: dict[str, Any]) -> None:
    put_over(file_of(root, id), text_of(document))


def by_hand(
    root: Path,
    id: str,
    change: Callable[[dict[str, Any]], object],
    layout: int = orjson.OPT_INDENT_2,
) -> None:
    """Change a file in place. With the usual layout it stays canonical, if the change does."""
    document = opened(root, id)
    change(document)
    file_of(root, id).write_bytes(orjson.dumps(document, option=layout | orjson.OPT_APPEND_NEWLINE))


def contents(store: Store, id: str = "plan") -> list[str]:
    return [message.content for message in store.load(id).history]


def is_canonical(store: Store, id: str) -> bool:
    return codec.encode(store.document(id)) == store.read(id)


def quarantined(root: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((root / ".capsule" / "quarantine").glob("*"))]
