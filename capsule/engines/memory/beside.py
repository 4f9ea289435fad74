"""What an engine in memory has beside its documents: a trash, and files."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from capsule import timestamps
from capsule.engines.entries import SIDE_FILE_FOLDERS
from capsule.engines.interface import Trashed
from capsule.errors import NotFound, Refused
from capsule.ids import check_file_name, check_id


class MemoryTrash:
    """A trash in memory. See `Trash`, which describes the methods.

    Args:
        put_back: Makes a document of a kind and an id from its bytes.
    """

    def __init__(self, put_back: Callable[[str, str, bytes], None]) -> None:
        self._put_back = put_back
        self._entries: dict[str, tuple[Trashed, str, bytes]] = {}
        self._number = itertools.count()

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> Trashed:
        trashed = Trashed(
            id, deleted_at or timestamps.now(), f"{kind}~{id}~{next(self._number)}", ""
        )
        self._entries[trashed.token] = trashed, kind, data
        return trashed

    def entries(self, kind: str) -> list[Trashed]:
        return [trashed for trashed, each, _ in reversed([*self._entries.values()]) if each == kind]

    def read(self, token: str) -> bytes:
        try:
            return self._entries[token][2]
        except KeyError:
            raise NotFound(f"{token} is not in the trash", id=token) from None

    def erase(self, token: str) -> None:
        self._entries.pop(token, None)

    def restore(self, kind: str, id: str, token: str) -> None:
        self._put_back(kind, id, self.read(token))
        self.erase(token)

    def purge(self, older_than_s: float) -> list[str]:
        now, entries = timestamps.now(), [*self._entries.items()]
        old = [
            token
            for token, (deleted_at, *_) in entries
            if timestamps.seconds_between(deleted_at.deleted_at, now) >= older_than_s
        ]
        for token in old:
            self.erase(token)
        return old


class MemoryFiles:
    """Files in memory. See `Files`, which describes the methods."""

    def __init__(self) -> None:
        self._files: dict[tuple[str, str], bytes] = {}

    def write(self, kind: str, id: str, name: str, data: bytes) -> str:
        if self._files.setdefault(self._place(kind, id, name), data) != data:
            raise Refused(
                f"{kind}/{id}/{name} is there already, with another content; choose another name",
                path="",
            )
        return f"{kind}/{id}/{name}"

    def read(self, kind: str, id: str, name: str) -> bytes:
        try:
            return self._files[self._place(kind, id, name)]
        except KeyError:
            raise NotFound(f"there is no {kind}/{id}/{name}", id=name) from None

    def names(self, kind: str, id: str) -> list[str]:
        return sorted(
            name
            for folder, name in [*self._files]
            if folder == SIDE_FILE_FOLDERS[kind].format(check_id(id))
        )

    def erase(self, kind: str, id: str, name: str) -> None:
        self._files.pop(self._place(kind, id, name), None)

    @staticmethod
    def _place(kind: str, id: str, name: str) -> tuple[str, str]:
        return SIDE_FILE_FOLDERS[kind].format(check_id(id)), check_file_name(name)
