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
    """What was imported into a store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        found: dict[str, Any] = {}
        with suppress(CapsuleError, ValueError):
            if engine.exists(_KIND, _ID):
                found = orjson.loads(engine.read(_KIND, _ID))
        if found.get("version") != capsule.__version__:
            found = {}
        self._files: dict[str, dict[str, Any]] = found.get("files", {})
        self._conversations: dict[str, str] = found.get("conversations", {})
        self._is_changed = False

    def file(self, digest: str) -> dict[str, Any] | None:
        """What was made of a file with this digest; None: it is new."""
        return self._files.get(digest)

    def keep_file(self, digest: str, made: dict[str, Any]) -> None:
        """Remember what was made of a file, as JSON."""
        self._files.pop(digest, None)
        self._files[digest] = made
        self._is_changed = True

    def conversation(self, id: str) -> str | None:
        """The digest of what was imported last as this conversation."""
        return self._conversations.get(id)

    def keep_conversation(self, id: str, digest: str) -> None:
        """Remember what was imported as a conversation."""
        self._conversations[id] = digest
        self._is_changed = True

    def save(self) -> None:
        """Write it, if it changed. Raises nothing for what the system refuses: it is only a help."""
        if not self._is_changed:
            return
        document = {
            "id": _ID,
            "version": capsule.__version__,
            "files": _last(self._files),
            "conversations": _last(self._conversations),
        }
        data = orjson.dumps(document)
        with suppress(CapsuleError):
            self._engine.edit(_KIND, _ID, lambda before: data)
        self._is_changed = False


def _last(found: dict[str, Any]) -> dict[str, Any]:
    return dict(islice(found.items(), max(len(found) - _MOST, 0), None))
