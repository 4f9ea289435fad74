"""Taking conversations out of a store, in the format of another program.

What must stay true: one conversation is in memory at a time, and the store is only read. What another program knows of
a conversation that came from it is put back.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any

from capsule.errors import InvalidInput, NotFound
from capsule.transfer.conversion import draft_of
from capsule.transfer.interface import Format
from capsule.transfer.registry import format_named

if TYPE_CHECKING:
    from capsule.store.store import Store

Document = dict[str, Any]
#: The time of the files in an archive, so that the same conversations give the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)


class Export:
    """Taking conversations out of a store: `store.export([id], file, format="markdown")`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(
        self,
        ids: Iterable[str],
        file: IO[bytes],
        *,
        format: str,
        is_archive: bool = False,
        is_redacted: bool = False,
    ) -> int:
        """Write conversations to a file.

        Args:
            ids: The conversations.
            file: Where they are written; it need not be seekable. Several conversations in a format that has a file for
                each make a zip.
            format: The name of the format, as `transfer.formats()` has it.
            is_archive: Whether it is a zip in any case.
            is_redacted: Whether secrets are replaced, by the rules of a context capture.

        Returns:
            The number of conversations.

        Raises:
            InvalidInput: There is no such format, or it is only read.
            NotFound: There is no such conversation.
            InvalidDocument: A file does not parse.

        Cost: reading each conversation.
        """
        made = format_named(format)
        if made.write is None:
            raise InvalidInput(f"{format} is only read; conversations can be written as {', '.join(_written())}")
        count, attached = 0, dict[str, None]()

        def read() -> Iterator[Document]:
            nonlocal count
            for id in ids:
                count += 1
                document = self._document(id, is_redacted=is_redacted)
                if made.has_files_beside:
                    attached.update(dict.fromkeys(_digests(document)))
                yield document

        every = read()
        some = list(islice(every, 2))
        every = chain(some, every)
        if not is_archive and (made.joined or len(some) < 2):
            for piece in self._joined(every, made, is_redacted=is_redacted):
                file.write(piece)
            return count
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            if made.joined:
                with archive.open(_entry(f"conversations{made.extension}"), "w", force_zip64=True) as member:
                    for piece in self._joined(every, made, is_redacted=is_redacted):
                        member.write(piece)
            else:
                for document in every:
                    name, data = self._written(document, made, is_redacted=is_redacted)
                    archive.writestr(_entry(name), data)
            for digest in attached:
                if (content := self._file(digest, is_redacted=is_redacted)) is not None:
                    archive.writestr(_entry(f"attachments/{digest}"), content)
        return count

    def _document(self, id: str, *, is_redacted: bool) -> Document:
        document = self._store.document(id)
        if not is_redacted:
            return document
        from capsule.context.secrets import redacted

        return {**_mapped(document, redacted), "id": document["id"]}

    def _written(self, document: Document, format: Format, *, is_redacted: bool) -> tuple[str, bytes]:
        """The path and the bytes of a conversation in a format."""

        def load(digest: str) -> bytes | None:
            return self._file(digest, is_redacted=is_redacted)

        draft = draft_of(document, format.name, load if format.embeds_files else None)
        assert format.write is not None
        name = format.file_name(draft) if format.file_name else f"{document['id']}{format.extension}"
        return name, format.write(draft)

    def _joined(self, documents: Iterable[Document], format: Format, *, is_redacted: bool) -> Iterator[bytes]:
        """Conversations in one file."""
        is_array = format.joined == "array"
        for place, document in enumerate(documents):
            _, data = self._written(document, format, is_redacted=is_redacted)
            yield (b"[\n" if place == 0 else b",\n") + data if is_array else data
        if is_array:
            yield b"\n]\n"

    def _file(self, digest: str, *, is_redacted: bool) -> bytes | None:
        """An attachment; None: it is not there, or it holds secrets."""
        try:
            data = self._store._whole.file("attachments", digest, digest)
        except (NotFound, InvalidInput):
            return None
        if is_redacted:
            from capsule.context.secrets import may_hold_tokens

            if may_hold_tokens(data.decode("utf-8", "replace")):
                return None
        return data


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _digests(document: Document) -> Iterator[str]:
    for entry in document["history"]:
        for attached in entry.get("attachments", ()):
            if isinstance(attached.get("sha256"), str):
                yield attached["sha256"]


def _mapped(value: Any, change: Any) -> Any:
    """A value with each text changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name): _mapped(item, change) for name, item in value.items()}
    return value


def _written() -> list[str]:
    from capsule.transfer.registry import formats

    return [name for name, format in formats().items() if format.write is not None]
