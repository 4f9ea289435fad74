"""The documents without entries that messaging keeps: of agents, `agents/{id}.json`, and of
projects.

What must stay true: a change is put over the version that it was made of, and what it does not name
stays. That one was seen is no reason for a write more often than once a minute. What was read is
parsed again only if it changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from capsule import timestamps
from capsule.engines.retrying import edited
from capsule.errors import NotFound
from capsule.format.documents.agents import project_id
from capsule.format.documents.new import CURRENT
from capsule.format.json import codec
from capsule.format.kinds import AGENT, PROJECT, Kind

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.engines.values import Version

#: The local kind of document that holds the folder in which an agent works on this machine.
KIND_OF_HOMES = "homes"
#: The one that holds where an agent can be rung.
KIND_OF_BELLS = "doorbells"
_SEEN_S = 60.0

Document = dict[str, Any]
#: Changes a document in place.
Change = Callable[[Document], object]
#: Makes a document, at the time given.
Make = Callable[[str], Document]


def new_record(id: str, name: str, stamp: str) -> Document:
    """What every new document begins with; `stamp` is when it is made."""
    return {"id": id, "name": name, "version": CURRENT, "createdAt": stamp, "updatedAt": stamp}


def new_project(path: str, stamp: str) -> Document:
    """The document of the project in the folder `path`, which has the folder's name."""
    record = new_record(project_id(path), path.rpartition("/")[2] or path, stamp)
    return record | {"path": path, "lastActive": stamp, "metadata": {}, "links": {}}


class Documents:
    """The documents of one kind.

    Args:
        engine: The engine that keeps them.
    """

    kind: ClassVar[Kind]
    #: The field that says when the subject of the document last did something; empty: there is
    #: none.
    seen_field: ClassVar[str] = ""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listed: Callable[[], Iterable[str]] = self.ids
        #: The documents as they were last read: an agent may have thousands of cursors.
        self._last: dict[str, tuple[Version, Document]] = {}

    def known_as(self, ids: Callable[[], Iterable[str]]) -> Self:
        """The same documents, with errors that name only these."""
        other = copy(self)
        other._listed = ids
        return other

    def ids(self) -> list[str]:
        """The ids of all documents, sorted. Cost: one scan of a directory."""
        return self._engine.ids(self.kind.name)

    def exists(self, id: str) -> bool:
        """Whether there is such a document. Cost: an lstat."""
        return self.kind.is_id(id) and self._engine.exists(self.kind.name, id)

    def known(self, id: str) -> str:
        """`id`, if there is such a document. Raises NotFound, which lists those there are. Cost: an
        lstat.
        """
        if not self.exists(id):
            raise self.missing(id)
        return id

    def missing(self, id: str) -> NotFound:
        """The error that there is no such document, which lists those there are."""
        there = ", ".join(self._listed()) or "none yet"
        return NotFound(
            f"there is no {self.kind.noun} {id[:80]!r}; the {self.kind.noun}s are: {there}", id=id
        )

    def read(self, id: str) -> Document:
        """A document, not to be changed in place. Raises NotFound, InvalidDocument.

        Cost: an lstat, and reading a small file if it changed.
        """
        document = self.find(id)
        if document is None:
            raise self.missing(id)
        return document

    def find(self, id: str) -> Document | None:
        """As `read`; None: there is no such document."""
        now = self.look(id)
        return now and now[1]

    def look(self, id: str) -> tuple[Version, Document] | None:
        """As `find`, with the version of the document."""
        last = self._last.get(id)
        known = last and last[0]
        version = (
            self._engine.version(self.kind.name, id, known) if last or self.kind.is_id(id) else None
        )
        if version is None:
            return None
        if last is None or version is not known:
            last = self._last[id] = version, self._parsed(id, version.data)
        return last

    def _parsed(self, id: str, data: bytes) -> Document:
        last = self._last.get(id)
        if last is not None and last[0].data == data:
            return last[1]
        return self.kind.read(data, self._engine.name(self.kind.name, id))

    def part(self, id: str, field: str) -> Document:
        """The object in a field of a document; empty if there is none, or no such document.

        Cost: an lstat, and reading a small file if it changed.
        """
        return (self.find(id) or {}).get(field) or {}

    def as_read(self, id: str, version: Version | None) -> Document:
        """A version of a document, as a decision read it (`State.reads`); empty if there
        is none.
        """
        return {} if version is None else self._parsed(id, version.data)

    def edit(
        self, id: str, change: Change, make: Make | None = None, known: Version | None = None
    ) -> None:
        """Change a document in place, and note that its subject was seen.

        Args:
            id: The document.
            change: Changes the document; it runs again if another program wrote it meanwhile. Of
                what the fields hold it replaces what it changes.
            make: Makes the document if there is none, at the time given; None: that is an error.
            known: The version to begin with, if it was read just now; None: it is read.

        Raises NotFound, InvalidDocument. Cost: writing a small file, unless nothing changes.
        """

        def edit(data: bytes | None) -> bytes | None:
            now = timestamps.now()
            if data is None:
                if make is None:
                    raise self.missing(id)
                return codec.encode(self.kind.ordered(make(now)))
            before = self._parsed(id, data)
            after = {
                name: dict(value) if isinstance(value, dict) else value
                for name, value in before.items()
            }
            change(after)
            if after == before and not (
                self.seen_field and _is_stale(before.get(self.seen_field), now)
            ):
                return None
            stamps = {"updatedAt": now} | ({self.seen_field: now} if self.seen_field else {})
            return codec.encode(self.kind.ordered(after | stamps))

        version = edited(self._engine, self.kind.name, id, edit, known)
        assert version is not None  # What is not there is made.
        last = self._last.get(id)
        self._last[id] = (
            version,
            last[1] if last and last[0].data == version.data else codec.decode(version.data, id),
        )

    def delete(self, id: str) -> None:
        """Move a document to the trash. Raises NotFound. Cost: moving a small file."""
        self._engine.delete(self.kind.name, self.known(id))


class ProjectDocuments(Documents):
    """The documents of the projects of a store."""

    kind, seen_field = PROJECT, "lastActive"


class AgentDocuments(Documents):
    """The documents of the agents of a store."""

    kind, seen_field = AGENT, "lastSeen"

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        #: When this process last looked at `lastSeen`, by agent, in seconds.
        self._noted: dict[str, float] = {}

    def seen(self, id: str) -> None:
        """Note that an agent did something, unless that was noted within the last minute."""
        now = time.monotonic()
        if now - self._noted.get(id, -_SEEN_S) >= _SEEN_S:
            self.edit(id, lambda document: None)
            self._noted[id] = now

    def home(self, id: str) -> str | None:
        """The folder that an agent was registered with here; a document that came from elsewhere
        may name any.

        Cost: reading a small file.
        """
        home = self._engine.machine.read(KIND_OF_HOMES, id)
        return None if home is None else str(home.get("project"))

    def set_home(self, id: str, path: str) -> None:
        """Note the folder in which an agent works on this machine. Cost: as `home`, and a small
        file if it is new.
        """
        if self.home(id) != path:
            self._engine.machine.edit(KIND_OF_HOMES, id, lambda _: {"project": path})


def _is_stale(seen: Any, now: str) -> bool:
    """Whether this time is more than a minute ago, or no time."""
    try:
        return timestamps.seconds_between(str(seen), now) > _SEEN_S
    except ValueError:
        return True
