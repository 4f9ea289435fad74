"""Projects for tests, and their captured contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from capsule.context.capture import Capture, capture
from capsule.context.files import FileSelection
from capsule.format.json import codec


def lay_out(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


def captured(root: Path, **selection: Any) -> Capture:
    return capture(str(root), FileSelection(**selection))


def context_of(made: Capture) -> dict[str, Any]:
    return codec.decode(b"".join(made.encoded()), "context")
