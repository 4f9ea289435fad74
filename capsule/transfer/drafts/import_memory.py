"""Remember what was imported into a store, so that importing the same again costs little.

The memory holds digests of files and conversations, and no text of a conversation.

Invariants: the memory is derived and can be deleted at any time. Without it, a source that
contradicts another one counts as its later version. A memory that another version of Capsule wrote
is ignored, since that version may read files differently.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import orjson

import capsule
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, InvalidDocument, NotFound
from capsule.transfer.drafts.digests import provenance_of
from capsule.transfer.drafts.report import ImportResult
from capsule.transfer.records.round_trip import CAPSULE_KEY

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.transfer.reading.files import SourceFile


_KIND, _ID = "imports", "digests"
#: What it says has this form; with the version of Capsule.
_FORMAT_VERSION = f"{capsule.__version__}/2"
#: So many files and conversations are remembered, the last ones.
_MAX_REMEMBERED = 100_000


@dataclass(slots=True)
class ImportedFile:
    """A file that was read.

    Attributes:
        name: Its path.
        digest: The digest of its content.
        is_whole: Whether all of it was taken, so that the next import need not read it.
        taken: The conversations in it.
        awaited: How many conversations in it are not written yet, or could not be.
        near: The patterns and the digest of the files that it was read with; None: there are none.
    """

    name: str
    digest: str
    is_whole: bool = True
    taken: list[ImportResult] = field(default_factory=list)
    awaited: int = 0
    near: dict[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """What is remembered of it: no text."""
        return {
            "rows": [(taken.id, taken.format, taken.messages) for taken in self.taken],
            "near": self.near,
        }


class ImportMemory:
    """What was imported into a store.

    Attributes:
        files: What was made of a file, as JSON, by the digest of its content.
        conversations: By the ids of conversations, the digests of what was imported last, and of
            the source from which it came.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        known: dict[str, Any] = {}
        with suppress(CapsuleError):
            known = engine.local.read(_KIND, _ID) or {}
        self._before = orjson.dumps(known)
        if known.get("version") != _FORMAT_VERSION:
            known = {}
        self.files: dict[str, dict[str, Any]] = known.get("files", {})
        self.conversations: dict[str, tuple[str, str]] = known.get("conversations", {})

    def known(self, file: SourceFile, digest: str) -> list[ImportResult] | None:
        """What was made of a file, if it, the files it was read with, and the conversations are
        there as they were.
        """
        before = self.files.get(digest)
        near = before and before["near"]
        if before is None or (near and near["digest"] != file.digest_of_near(near["patterns"])):
            return None
        known = []
        for id, format, count in before["rows"]:
            title = source = ""
            if id:
                try:
                    head, _ = self._engine.head(id)
                except (NotFound, InvalidDocument):
                    return None
                about, title = provenance_of(head), head["title"]
                source = (
                    str(about.get("id")) if about.get("format") in (format, CAPSULE_KEY) else id
                )
            known.append(
                ImportResult(
                    id, title, count, format, source, file.name, "unchanged" if id else "skipped"
                )
            )
        return known

    def forget(self) -> None:
        """Forget the files, and the conversations that are gone. Raises the errors of
        `Engine.edit`.
        """
        self.files = {}
        self.conversations = {
            id: last
            for id, last in self.conversations.items()
            if self._engine.exists(CONVERSATIONS, id)
        }
        if self._engine.local.read(_KIND, _ID) is not None:
            self._write()

    def save(self) -> None:
        """Write it, if it changed. Raises nothing for what the system refuses: it is only
        a help.
        """
        with suppress(CapsuleError):
            self._write()

    def _write(self) -> None:
        document = {
            "id": _ID,
            "version": _FORMAT_VERSION,
            "files": _newest(self.files),
            "conversations": _newest(self.conversations),
        }
        if orjson.dumps(document) != self._before:
            self._engine.local.edit(_KIND, _ID, lambda before: document)


def _newest(entries: dict[str, Any]) -> dict[str, Any]:
    return dict(islice(entries.items(), max(len(entries) - _MAX_REMEMBERED, 0), None))
