"""What a store remembers of its imports: the digests of files and conversations, so that the same again costs little.

What must stay true: it is derived. It can be deleted at any moment, and says nothing that decides what becomes of a
conversation. What another version of Capsule remembered does not count, as it may read files differently.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

import capsule
from capsule.errors import CapsuleError

if TYPE_CHECKING:
    from capsule.engines.interface import Engine

_KIND, _ID = "imports", "digests"
#: So many files and conversations are remembered, the last ones.
_MOST = 100_000


class Memory:
    """What was imported into a store.

    Attributes:
        files: What was made of a file, as JSON, by the digest of its content.
        conversations: The digests of what was imported last, by the ids of the conversations.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before = b""
        found: dict[str, Any] = {}
        with suppress(CapsuleError, ValueError):
            if engine.exists(_KIND, _ID):
                self._before = engine.read(_KIND, _ID)
                found = orjson.loads(self._before)
        if found.get("version") != capsule.__version__:
            found = {}
        self.files: dict[str, dict[str, Any]] = found.get("files", {})
        self.conversations: dict[str, str] = found.get("conversations", {})

    def save(self) -> None:
        """Write it, if it changed. Raises nothing for what the system refuses: it is only a help."""
        document = {
            "id": _ID,
            "version": capsule.__version__,
            "files": _last(self.files),
            "conversations": _last(self.conversations),
        }
        data = orjson.dumps(document)
        if data != self._before:
            with suppress(CapsuleError):
                self._engine.edit(_KIND, _ID, lambda before: data)


def _last(found: dict[str, Any]) -> dict[str, Any]:
    return dict(islice(found.items(), max(len(found) - _MOST, 0), None))
