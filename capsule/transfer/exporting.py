"""Export conversations of a store, in the format of another program or as static pages.

Each conversation becomes a draft for the writer of the format. Several conversations go into one
file, if the format joins them, or into a zip with a file for each. Fields of another program that
an import kept are written back in that program's format.

Invariants: one conversation is in memory at a time. The store is only read.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, islice
from typing import IO, TYPE_CHECKING, Any

from capsule.errors import InvalidInput, NotFound
from capsule.timestamps import sortable
from capsule.transfer.drafts.conversion import draft_of
from capsule.transfer.drafts.reimport import write_with_note
from capsule.transfer.interface import Format
from capsule.transfer.registry import format_named, formats

if TYPE_CHECKING:
    from capsule.store.store import CoreStore
    from capsule.transfer.site import HtmlSite

Document = dict[str, Any]
#: The time of the files in an archive, so that the same conversations give the same bytes.
_TIME = (1980, 1, 1, 0, 0, 0)
_NAME = r"[^/\\\s\"'`<>|:;,)]+(?<!\.)"
#: The home folder of a person on Linux, macOS and Windows (also as WSL sees it), and that of root.
#: A name on Windows may have spaces, if more of the path follows.
_HOME = re.compile(
    rf"(?<![\w.~-])(?:/mnt/[a-z])?/(?:home|Users)/{_NAME}|(?<![\w.~/-])/root\b"
    rf"|(?<!\w)[A-Za-z]:[\\/]+Users[\\/]+(?:{_NAME}(?: {_NAME}){{1,3}}(?=[\\/])|{_NAME})"
)


class Export:
    """Exports conversations of a store: `store.export([id], file, format="markdown")`."""

    def __init__(self, store: CoreStore) -> None:
        self._store = store

    def __call__(
        self,
        ids: Iterable[str],
        file: IO[bytes],
        *,
        format: str,
        is_archive: bool = False,
        is_redacted: bool = False,
        is_plain: bool = False,
    ) -> int:
        """Write conversations to a file.

        Args:
            ids: The conversations.
            file: The file, which need not be seekable. It becomes a zip for several conversations
                in a format that has a file for each.
            format: The name of the format, as `transfer.registry.formats()` has it.
            is_archive: Whether it is a zip in any case.
            is_redacted: Whether secrets are replaced, by the rules of a context capture, and home
                folders by `~`, everywhere in the conversations.
            is_plain: Whether only the visible content is written, so that no import can restore the
                conversations.

        Returns:
            The number of conversations.

        Raises:
            InvalidInput: The format does not exist, is only read, or has no plain form.
            NotFound: A conversation does not exist.
            InvalidDocument: A file does not parse.

        Cost: reading each conversation.
        """
        format_to_write = format_named(format)
        if format_to_write.write is None:
            names = ", ".join(
                name for name, candidate in formats().items() if candidate.write is not None
            )
            raise InvalidInput(
                f"{format} can only be imported; the formats of an export are {names}"
            )
        if is_plain and format_to_write.plain is None:
            plain_names = ", ".join(
                name for name, candidate in formats().items() if candidate.plain is not None
            )
            raise InvalidInput(
                f"{format} has no plain form; the formats with one are {plain_names}"
            )
        if is_plain:
            format_to_write = replace(
                format_to_write, write=format_to_write.plain, is_portable=True
            )
        return _ExportRun(self._store, format_to_write, is_redacted=is_redacted).write(
            ids, file, is_archive=is_archive
        )

    def site(
        self,
        ids: Iterable[str],
        directory: str,
        *,
        is_redacted: bool = False,
        progress: Callable[[int, int], None] | None = None,
    ) -> HtmlSite:
        """Write conversations as static pages, with an index and a search that need no server.

        Written again, it changes only the files that changed, and removes the pages of other
        conversations.

        Args:
            ids: The conversations. The index has the latest first.
            directory: A folder that is new, empty, or a site of an earlier call.
            is_redacted: As in an export to a file.
            progress: Called with the conversations written so far, and all.

        Raises:
            Refused: Something else is in the folder, or a package is missing.
            NotFound: The conversation does not exist.
            InvalidDocument: A file does not parse.
            StorageFailed: The system refused a read or a write.

        Cost: reading and drawing each conversation, and a flush for each file that changed.
        """
        from capsule.transfer.site import write

        heads = sorted(
            map(self._store.head, {*ids}), key=lambda head: (sortable(head.updated_at), head.id)
        )
        run = _ExportRun(self._store, format_named("html"), is_redacted=is_redacted)
        return write(
            directory,
            [head.id for head in reversed(heads)],
            run.document,
            run.file,
            progress,
        )


class _ExportRun:
    """One export.

    Args:
        store: The store.
        format: The format that is written.
        is_redacted: Whether secrets and home folders are replaced.
    """

    def __init__(self, store: CoreStore, format: Format, *, is_redacted: bool) -> None:
        self._store = store
        self._format = format
        self._is_redacted = is_redacted
        self._count = 0
        #: The paths of the files that were written.
        self._names: set[str] = set()
        #: The SHA-256 of the attachments that go into an archive beside the conversations.
        self._attachment_digests: dict[str, None] = {}

    def write(self, ids: Iterable[str], file: IO[bytes], *, is_archive: bool) -> int:
        """Write conversations to a file. Return their number."""
        documents: Iterator[Document] = (self.document(id) for id in ids)
        first_documents = list(islice(documents, 2))
        documents = chain(first_documents, documents)
        is_joined = bool(self._format.joined)
        if not is_archive and (is_joined or len(first_documents) < 2):
            for piece in self._concatenate(documents):
                file.write(piece)
            return self._count
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            if is_joined:
                entry = _entry(f"conversations{self._format.extension}")
                with archive.open(entry, "w", force_zip64=True) as member:
                    for piece in self._concatenate(documents):
                        member.write(piece)
            else:
                for document in documents:
                    name, data = self._encode(document)
                    archive.writestr(_entry(name), data)
            for digest in self._attachment_digests:
                content = self.file(digest)
                if content is not None:
                    archive.writestr(_entry(f"attachments/{digest}"), content)
        return self._count

    def document(self, id: str) -> Document:
        """Return a conversation, redacted if the export is."""
        document = self._store.document(id)
        self._count += 1
        if self._is_redacted:
            document = {**_mapped(document, _redacted), "id": document["id"]}
        if self._format.has_files_beside:
            for entry in document["history"]:
                for attachment in entry.get("attachments", ()):
                    if isinstance(attachment.get("sha256"), str):
                        self._attachment_digests[attachment["sha256"]] = None
        return document

    def _encode(self, document: Document) -> tuple[str, bytes]:
        """Return the path and the bytes of a conversation in the format."""
        format = self._format
        draft = draft_of(document, format.name, self.file if format.embeds_files else None)
        assert format.write is not None
        name = f"{document['id']}{format.extension}"
        if format.file_name is not None:
            name = format.file_name(draft)
            if name in self._names:  # Two conversations here have the same id in their source.
                renamed_draft = replace(draft, head=draft.head | {"id": document["id"]})
                name = format.file_name(renamed_draft)
        self._names.add(name)
        return name, write_with_note(draft, format)

    def _concatenate(self, documents: Iterable[Document]) -> Iterator[bytes]:
        """Return the parts of one file with all conversations."""
        is_array = self._format.joined == "array"
        for position, document in enumerate(documents):
            _, data = self._encode(document)
            if is_array:
                yield b"[\n" if position == 0 else b",\n"
            yield data
        if is_array:
            yield b"\n]\n"

    def file(self, digest: str) -> bytes | None:
        """Return an attachment. None: it is missing, or may have secrets in a redacted export."""
        try:
            data = self._store.inner.whole_engine.files.read("attachments", digest, digest)
        except (NotFound, InvalidInput):
            return None
        if self._is_redacted:
            from capsule.context.secrets import may_hold_secrets

            if may_hold_secrets(data.decode("utf-8", "replace")):
                return None
        return data


def _entry(name: str) -> zipfile.ZipInfo:
    """Return the entry of a file in an archive."""
    entry = zipfile.ZipInfo(name, _TIME)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def _redacted(text: str) -> str:
    from capsule.context.secrets import redacted

    return redacted(_HOME.sub("~", text))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a value with all texts and keys in it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {change(name): _mapped(item, change) for name, item in value.items()}
    return value
