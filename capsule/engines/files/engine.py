"""The engine of files: a JSON file for each document, and an index that is derived from them.

The *state header* of a document is a record in its mutex file about the last version that the store
wrote or accepted. It has the *signature* of that file (inode, size, times), a *tag* that every
write but a splice changes, and the *file layout*: the offsets of the parts of the file. The layout
is None if the file can only be replaced: it is not in the canonical layout or not of the current
format, or a flush failed, so that every byte must be written again.

`FilesEngine` reads a document with entries (a conversation, or the messages of a session) so:

1. Compare the signature of the file with the state header. If they differ, another program wrote
   the file: reconcile its version under the mutex. So a hand edit is seen at once, and a torn end
   of a file is never shown. A store that can't be written is read without this, and validated.
2. Read the file without the mutex, and compare the signature again.
3. If the file changed meanwhile, begin again. After `_TRIES` tries, read it under the mutex.

`FileTransaction` changes such a document under its mutex. It begins with step 1, and writes with a
primitive of `HeldDocument`:

| the change | with a layout | without a layout |
| --- | --- | --- |
| entries alone | `splice`: in place | `replace` |
| head or context, perhaps also entries | `rewrite_head`: a new file, the rest copied | `replace` |
| anything else | `replace`: the whole document anew | `replace` |

A splice also writes a new file if the store is set so, or if the file has several names. If another
program writes the file during a write, the write raises `ConcurrentWrite`. The caller then begins a
new transaction, which reconciles that version. No caller uses a transaction after a write of it
failed.

What must stay true: a change of a document with entries has its records in the log before the
document changes. A new document, a document without entries, and the same bytes written again have
no records. `FileTransaction.replace` writes only valid capsules. For the other writes the callers
pass checked documents.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

import orjson

from capsule.disk import whole_files
from capsule.engines.entries import _HEAD, entry_with_id, head_fields
from capsule.engines.files.document import HeldDocument
from capsule.engines.files.external_edits import reconcile_external_edit
from capsule.engines.files.state import (
    HEADER_BYTES,
    STEP_NS,
    Durability,
    FileVersion,
    ReadPosition,
    StateHeader,
    decode_header,
)
from capsule.engines.files.storage import AttachedFiles, FileStorage, FileTrash, LocalFiles
from capsule.engines.interface import (
    CONVERSATIONS,
    LEASES,
    WITH_ENTRIES,
    Document,
    DocumentState,
    DocumentVersion,
    EntriesSince,
    Lease,
    ReadSet,
    Tracker,
    Trashed,
    not_found,
    retry,
)
from capsule.errors import (
    AlreadyExists,
    CapsuleError,
    ConcurrentWrite,
    InvalidDocument,
    NotFound,
    Refused,
    StorageFailed,
    StoreBusy,
)
from capsule.format import migrations
from capsule.format.documents.head import Head, HeadCache, ParsedHead
from capsule.format.json import canonical, codec, layout
from capsule.format.recovery.reconcile import (
    append_records,
    appended_entries,
    head_record,
    lock_record,
    records_between,
)
from capsule.format.validation import decode_checked
from capsule.settings import FILE_NAME

if TYPE_CHECKING:
    from capsule.engines.index.index import Index
    from capsule.engines.index.queries import IndexQueries
    from capsule.engines.local_documents import LocalDocuments
    from capsule.engines.queries import HeadField
    from capsule.rules.consent import PolicyInputs
    from capsule.rules.policy import PolicyTarget, Viewer


T = TypeVar("T")

#: The bytes before the end of the history in which an entry is searched for first.
_NEAR_BYTES = 64 << 10
#: The number of ids that are remembered, of all conversations together.
_MAX_IDS = 1_000_000
#: The derived file with a time. Every document that was written before it is flushed.
_FLUSHED_MARK = "flushed"
#: How much earlier the time of a file may be than the clock says.
_MARGIN_NS = 2_000_000_000
#: How often a document is read without its mutex while others write it.
_TRIES = 5
#: How long a query waits for the mutex of a document that another program changed, in seconds.
_BRIEF_WAIT_S = 0.5
#: What parsing may raise if the file is damaged although its signature is the expected one: somebody
#: wrote it through a memory mapping.
_ERRORS_OF_DAMAGE = (InvalidDocument, ValueError, TypeError, LookupError, AttributeError)


def entries_in(block: bytes, name: str) -> list[Document]:
    """Parse the entries in a piece of a canonical history, from the end of one entry to the end of
    another.
    """
    if not block:
        return []
    return codec.decode_entries(b"[" + block.removeprefix(b",") + b"]", name)


class _KnownIds(NamedTuple):
    """The UUIDv5s among the ids of the entries of one conversation, up to a byte of its file.

    Attributes:
        tag: The tag of the version. It also holds for later versions with this tag, since these
            only have more entries.
        end: The byte after the last entry that was searched.
        ids: The UUIDv5s.
    """

    tag: str
    end: int
    ids: set[bytes]


class Caches:
    """What an engine remembers of conversations: parsed heads, and UUIDv5s among the ids.

    An append that may be a retry derives the id of its message as a UUIDv5, and searches for it
    first. It is rarely in the file, so that without the cache each search would read the whole.

    Several threads may use it. What belongs to a conversation is read and changed under its mutex.
    """

    def __init__(self) -> None:
        self.heads = HeadCache()
        self._known_ids: OrderedDict[str, _KnownIds] = OrderedDict()
        self._id_count = 0

    def uuid5_ids(self, name: str, header: StateHeader, read: Callable[[int], bytes]) -> set[bytes]:
        """Return the UUIDv5s among the ids of a canonical history.

        Args:
            name: The conversation.
            header: Its state header.
            read: Returns the bytes of the history from an offset on.

        Cost: reading what was appended since the last call, or the whole history at first.
        """
        file_layout = header.file_layout
        assert file_layout is not None
        known = self._known_ids.pop(name, _KnownIds("", 0, set()))
        self._id_count -= len(known.ids)
        if known.tag != header.tag or known.end > file_layout.tail:
            known = _KnownIds(header.tag, file_layout.history, set())
        ids = known.ids
        if known.end < file_layout.tail:
            ids |= layout.derived_ids(read(known.end))
        self._known_ids[name] = _KnownIds(header.tag, file_layout.tail, ids)
        self._id_count += len(ids)
        while self._id_count > _MAX_IDS and len(self._known_ids) > 1:
            _, oldest = self._known_ids.popitem(last=False)
            self._id_count -= len(oldest.ids)
        return ids


class FileTransaction:
    """A conversation, reconciled and under its mutex in a `with` block. See `Transaction`, which
    describes the methods and attributes.

    The end of the block releases the mutex, and then waits until the log is flushed, if something
    was written.

    Args:
        held_document: The document. The block takes its mutex.
        caches: The caches of the engine.
        ensure_unchanged: Raises `ConcurrentWrite` if a document of a read set has another version.
    """

    #: The head and the state of the present version. The block and each write set them.
    head: ParsedHead
    state: DocumentState

    def __init__(
        self,
        held_document: HeldDocument,
        caches: Caches,
        ensure_unchanged: Callable[[ReadSet], None],
    ) -> None:
        self.id = held_document.id
        self.name = held_document.path
        #: Set by `AgentView`, `Conversation` and sessions. Each write checks these versions first.
        self.read_set: ReadSet = {}
        #: Set by `Conversation.append` and sessions. False: the end of the block does not wait.
        self.waits_for_flush = True
        #: Set by `AgentView` and read by `Conversation`. It has no effect here.
        self.decision_inputs: tuple[PolicyTarget, PolicyInputs] | None = None
        self._held_document = held_document
        #: The tag of the version that `head` is of. Empty: no head was read yet.
        self._tag = ""
        self._caches = caches
        self._ensure_unchanged = ensure_unchanged

    def __enter__(self) -> Self:
        held_document = self._held_document.__enter__()
        try:
            header = held_document.unchanged_header()
            self._continue_from(header or reconcile_external_edit(held_document))
        except BaseException:
            held_document.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._held_document.waits_for_flush = self.waits_for_flush
        self._held_document.__exit__(exc_type, error, traceback)

    def _continue_from(
        self, header: StateHeader, head: Document | None = None, document: Document | None = None
    ) -> None:
        """Take a version of the document as the present one. Sets `head` and `state`.

        Args:
            header: The state header of the version.
            head: Its head, if that changed.
            document: The whole document, if it was parsed already. None: `document` parses it.
        """
        self._header = header
        self._document = document
        heads = self._caches.heads
        if head is not None:
            self.head = heads.put(self.name, header.tag, head)
        elif header.tag != self._tag:
            cached = heads.get(self.name, header.tag)
            self.head = cached or heads.put(self.name, header.tag, self._read_head())
        self._tag = header.tag
        file_layout = header.file_layout
        if file_layout is not None:
            updated_at = header.updated_at
            entry_count = file_layout.entries
            ends_active = file_layout.ends_active
        else:
            whole = self.document()
            updated_at = str(whole["updatedAt"])
            entry_count = len(whole["history"])
            ends_active = False  # Not known.
        # A new log begins with a record of the head before the write that follows. A partial,
        # because a method would be a reference cycle.
        self._held_document.make_base_record = partial(
            head_record, updated_at, self.head.document, entry_count
        )
        self.state = DocumentState(
            updated_at=updated_at,
            tag=header.tag,
            entries=entry_count,
            size=header.signature.size,
            ends_active=ends_active,
            newest_updated_at=max(header.newest_updated_at, updated_at),
            newest_message_time=header.newest_message_time,
        )

    def _read_head(self) -> Document:
        if self._header.file_layout is None:
            return head_fields(self.document())
        return codec.decode(self._held_document.head(self._header), self.name)

    def document(self) -> Document:
        if self._document is None:
            content = self._held_document.read()
            if content is None or content.signature != self._header.signature:
                raise ConcurrentWrite
            # Only a valid file of the current format has a layout.
            if self._header.file_layout is not None:
                self._document = codec.decode(content.data, self.name)
            else:
                document = decode_checked(content.data, self.name, self.id)
                document, _ = migrations.upgrade(document, self.name)
                self._document = canonical.in_order(document)
        return self._document

    def follow(
        self, since: ReadPosition | None = None, own_entries: list[Document] | None = None
    ) -> EntriesSince:
        position = ReadPosition.of(self._header)
        if own_entries is not None:
            # Nobody else can append under this mutex, so the caller's own entries are all.
            return EntriesSince(position, own_entries, False)
        if since == position:
            return EntriesSince(position, [], False)
        if since is None or not since.continues_in(self._header):
            return EntriesSince(position, self.document()["history"], True)
        block = self._held_document.history(self._header, since.tail)
        return EntriesSince(position, entries_in(block, self.name), False)

    def find(self, id: str) -> tuple[int, Document] | None:
        """Cost: reading from the entry to the end. For a UUIDv5 that no entry has: reading what was
        appended since the last such call.
        """
        header = self._header
        file_layout = header.file_layout
        if file_layout is None:
            return entry_with_id(self.document()["history"], id)
        is_uuid5 = bool(layout.derived_ids(layout.id_line(id)))
        if is_uuid5:
            known_ids = self._caches.uuid5_ids(
                self.name, header, lambda start: self._held_document.history(header, start)
            )
            if id.encode() not in known_ids:
                return None
        near_end = max(file_layout.history, file_layout.tail - _NEAR_BYTES)
        for start in sorted({file_layout.history, near_end}, reverse=True):
            block = self._held_document.history(header, start)
            match = layout.find_entry(block, id)
            if match is not None:
                number_in_block, encoded = match
                document = codec.decode(b'{"history":[' + encoded + b"]}", self.name)
                first_position = file_layout.entries - layout.count_entries(block)
                return first_position + number_in_block, document["history"][0]
        return None

    def appended(self) -> list[Document]:
        """Cost: reading the log."""
        return appended_entries(self._held_document.records())

    def ensure_durable(self) -> None:
        """After a flush that failed, every byte is written anew. Otherwise the log is flushed at
        the end. The document is flushed now if there is no log, or if the log lacks its version.
        """
        has_log_or_is_durable = self._held_document.require_log_flush()
        if self._header.durability is Durability.UNFLUSHED:
            # The same bytes, so that there is nothing to record.
            data = codec.encode(self.document())
            header = self._held_document.replace(
                self._header.signature, data, layout.survey(data), []
            )
            self._continue_from(header)
        elif self._header.durability is not Durability.DURABLE or not has_log_or_is_durable:
            self._continue_from(self._held_document.flush(self._header))

    def append(
        self,
        entries: list[Document],
        encoded: list[bytes],
        updated_at: str,
        *,
        time: str,
        head: Document | None,
        ends_active: bool,
    ) -> None:
        if self.read_set:
            self._ensure_unchanged(self.read_set)
        file_layout = self._header.file_layout
        if file_layout is None:
            new_head = head or head_fields(self.document()) | {"updatedAt": updated_at}
            document = self._with_head(new_head)
            document |= {"history": [*document["history"], *entries]}
            count = len(document["history"])
            records = [
                *append_records(updated_at, entries, count),
                head_record(updated_at, document, count),
            ]
            self._replace(document, records)
            return
        # What changes in `_header` here gets into the new header by the write that follows.
        if file_layout.ends_active != ends_active:
            file_layout = file_layout._replace(ends_active=ends_active)
            self._header = self._header._replace(file_layout=file_layout)
        count = file_layout.entries + len(entries)
        if head is None:
            records = append_records(updated_at, entries, count, file_layout.tail)
            header = self._held_document.splice(self._header, encoded, updated_at, records, time)
            self._continue_from(header)
        else:
            self._header = self._header._replace(newest_message_time=time)
            records = [
                *append_records(updated_at, entries, count),
                head_record(updated_at, head, count),
            ]
            self._rewrite_head(head, encoded, records, None)

    def set_head(
        self,
        head: Document,
        *,
        context: Callable[[], Iterable[bytes]] | None = None,
        ends_active: bool | None = None,
    ) -> None:
        self._ensure_unchanged(self.read_set)
        file_layout = self._header.file_layout
        if file_layout is None:
            document = self._with_head(head)
            if context is not None:
                document["context"] = codec.decode(b"".join(context()), "context")
            self.replace(document)
            return
        if ends_active is not None:  # As in `append`: the write below records it.
            file_layout = file_layout._replace(ends_active=ends_active)
            self._header = self._header._replace(file_layout=file_layout)
        updated_at = head["updatedAt"]
        # Only a change of the lock leaves `updatedAt` as it is. It has a record of its own, since
        # there may be many.
        if updated_at == self.state.updated_at:
            record = lock_record(updated_at, head)
        else:
            record = head_record(updated_at, head, file_layout.entries)
        self._rewrite_head(head, [], [record], context)

    def _with_head(self, head: Document) -> Document:
        """Return the document with another head."""
        rest = {key: value for key, value in self.document().items() if key not in _HEAD}
        return canonical.in_order(head | rest)

    def _rewrite_head(
        self,
        head: Document,
        entries: list[bytes],
        records: list[bytes],
        context: Callable[[], Iterable[bytes]] | None,
    ) -> None:
        context_lines = None if context is None else layout.context_lines(context())
        encoded_head = layout.head_prefix(codec.encode(head))
        header = self._held_document.rewrite_head(
            self._header, encoded_head, entries, records, context_lines
        )
        self._continue_from(header, head)

    def replace(self, document: Document, removed: tuple[str, Document] | None = None) -> None:
        self._replace(document, None, removed)

    def _replace(
        self,
        document: Document,
        records: list[bytes] | None,
        removed: tuple[str, Document] | None = None,
    ) -> None:
        """Write the whole document.

        Args:
            document: The new document.
            records: The records of the write. None: the differences from the present document.
            removed: A kind and a document, to be added to the trash first. If the write ends with
                `ConcurrentWrite`, the entry is erased again. After any other error it stays, since
                the write may have happened.
        """
        self._ensure_unchanged(self.read_set)
        old_document = self.document()
        data = codec.encode(document)
        decode_checked(data, self.name, self.id)  # Raises if it is not valid.
        if records is None:
            records = records_between(old_document, document)
        trash_entry = None
        if removed:
            kind, removed_document = removed
            trash_entry = self._held_document.add_to_trash(kind, codec.encode(removed_document))
        try:
            header = self._held_document.replace(
                self._header.signature, data, layout.survey(data), records
            )
        except ConcurrentWrite:  # Nothing was written.
            if trash_entry:
                self._held_document.storage.trash_directories.erase(trash_entry.token)
            raise
        self._continue_from(header, head_fields(document), document)

    def quarantine_copy(self, reason: str) -> str:
        content = self._held_document.read()
        if content is None:
            raise ConcurrentWrite
        return self._held_document.quarantine(content.data, reason)

    def delete(self) -> Trashed:
        self._ensure_unchanged(self.read_set)
        return self._held_document.delete()


class _ConsistentRead(NamedTuple):
    """A consistent read of a document with entries: all bytes are of one version.

    Attributes:
        data: The bytes from `start` on.
        header: The state header of this version. None: the store can't be written, so the file was
            only validated. It may be of any format version, and in any layout.
        start: The offset of the bytes.
    """

    data: bytes
    header: StateHeader | None
    start: int

    @property
    def is_canonical(self) -> bool:
        """Whether the file is known to have the canonical layout and the current format version.
        False also if it is not known.
        """
        return self.header is not None and self.header.file_layout is not None


class FilesEngine:
    """The documents of one store as files. See `Engine`, which describes the methods. Several
    threads may use it.

    Args:
        storage: The files.
    """

    def __init__(self, storage: FileStorage) -> None:
        self.storage = storage
        self.files = AttachedFiles(storage)
        self.local: LocalDocuments = LocalFiles(storage)
        self.leases = storage.leases
        self.trash = FileTrash(storage, lambda: self.index.drop())
        self.exists = storage.exists
        self.ids = storage.ids
        self.name = storage.path
        self._caches = Caches()
        #: Guards the making of the index.
        self._thread_lock = threading.Lock()
        self._index: Index | None = None
        #: The queries without an asker, as the store's owner makes them.
        self._owner_queries: IndexQueries | None = None

    # -- One document ------------------------------------------------------------------------------

    def transaction(self, kind: str, id: str, *, exclusive: bool = False) -> FileTransaction:
        """Cost: nothing if the file is unchanged. Otherwise the whole file is read."""
        return FileTransaction(self.storage.hold(kind, id), self._caches, self._ensure_unchanged)

    def create(
        self,
        kind: str,
        document: Document,
        on_written: Callable[[str], None] | None = None,
        read_set: ReadSet | None = None,
    ) -> int:
        id = document["id"]
        data = codec.encode(document)
        with self._hold_with_read_set(kind, id, read_set) as held_document:
            if self.storage.exists(kind, id):
                raise AlreadyExists
            header = held_document.replace(None, data, layout.survey(data), [])
            if on_written is not None:
                on_written(header.tag)
        return header.signature.size

    def put(
        self,
        kind: str,
        id: str,
        data: bytes,
        expected: DocumentVersion | None,
        read_set: ReadSet | None = None,
    ) -> DocumentVersion:
        """`data` may be anything: this document has no layout and no log.

        Cost: reading and writing a small file, and `version` for each document of the read set.
        """
        with self._hold_with_read_set(kind, id, read_set) as held_document:
            content = held_document.read()
            if (content and content.data) != (expected and expected.data):
                raise ConcurrentWrite
            signature = content.signature if content else None
            header = held_document.replace(signature, data, None, [])
            return FileVersion(data, header.signature, is_settled=False)

    @contextmanager
    def _hold_with_read_set(
        self, kind: str, id: str, read_set: ReadSet | None
    ) -> Iterator[HeldDocument]:
        """Hold the mutexes of a document and of the documents in its read set, which are unchanged.

        The mutexes are taken in the order of kinds and ids, so that two writers can't block each
        other.
        """
        with ExitStack() as stack:
            held_documents = {}
            for key in sorted({(kind, id), *(read_set or ())}):
                if key[0] != LEASES:  # A lease is no document, and has no mutex.
                    held_documents[key] = stack.enter_context(self.storage.hold(*key))
            self._ensure_unchanged(read_set or {})
            yield held_documents[kind, id]

    def _ensure_unchanged(self, read_set: ReadSet) -> None:
        """Raise `ConcurrentWrite` if a document of a read set has another version, and `StoreBusy`
        if a lease was lost.

        Cost: an lstat for each, and reading those that were written.
        """
        for (kind, id), version in read_set.items():
            if isinstance(version, Lease):
                self.leases.ensure_held(version)
                continue
            current = self.version(kind, id, version)
            if current is version:
                continue
            if (current and current.data) != (version and version.data):
                raise ConcurrentWrite

    def delete(self, kind: str, id: str) -> Trashed:
        with self.storage.hold(kind, id) as held_document:
            if not self.storage.exists(kind, id):
                raise not_found(kind, id)
            return held_document.delete()

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> FileVersion | None:
        """Cost: an lstat, and reading the file if it was written since `cached`."""
        scanned = self.storage.find(kind, id)
        now_ns = time.time_ns()
        if scanned is None:
            return None
        if (
            isinstance(cached, FileVersion)
            and cached.is_settled
            and cached.signature == scanned.signature
        ):
            return cached
        content = self.storage.read(kind, id)
        if content is None:
            return None
        is_settled = now_ns - content.signature.ctime_ns > STEP_NS
        return FileVersion(content.data, content.signature, is_settled)

    def read(self, kind: str, id: str) -> bytes:
        """Cost: reading and validating the file."""
        if kind not in WITH_ENTRIES:
            content = self.storage.read(kind, id)
            if content is None:
                raise not_found(kind, id)
            return content.data

        def parse(data: bytes, is_canonical: bool) -> bytes:
            decode_checked(data, self.name(kind, id), id)
            return data

        return self._parse_consistently(kind, id, parse)

    def document(self, kind: str, id: str) -> Document:
        """Cost: reading and parsing the file."""
        name = self.name(kind, id)
        if kind not in WITH_ENTRIES:
            return codec.decode(self.read(kind, id), name)
        return self._parse_consistently(
            kind, id, lambda data, is_canonical: _parse_valid(data, is_canonical, name)
        )

    def follow(self, kind: str, id: str, since: ReadPosition | None = None) -> EntriesSince:
        """Cost: an lstat if nothing changed."""
        name = self.name(kind, id)
        if since is not None:
            try:
                if whole_files.stat_key(self.storage.sys.lstat(name)) == since.signature:
                    return EntriesSince(since, [], False)
            except OSError:
                pass  # The read that follows raises the error.
        read = self._read_consistently(kind, id, since)
        # Without a header no position is known, so the next call returns all entries again.
        position = read.header and ReadPosition.of(read.header)
        if read.start and read.header is not None and read.header.file_layout is not None:
            block = read.data[: read.header.file_layout.tail - read.start]
            return EntriesSince(position, entries_in(block, name), False)
        history = _parse_valid(read.data, read.is_canonical, name)["history"]
        return EntriesSince(position, history, True)

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        return self._parse_consistently(CONVERSATIONS, id, parse)

    def _parse_consistently(self, kind: str, id: str, parse: Callable[[bytes, bool], T]) -> T:
        """Read a document and parse it with `parse`, which takes the bytes, and whether they are
        known to be canonical. If parsing fails, reconcile the document, and read it once more.
        """
        read = self._read_consistently(kind, id)
        try:
            return parse(read.data, read.is_canonical)
        except _ERRORS_OF_DAMAGE:
            # The signature is the expected one, and the file is damaged all the same.
            try:
                retry(lambda: self._reconcile(kind, id, trust=False))
            except (Refused, StorageFailed):  # The store can't be written: name the damage.
                decode_checked(read.data, self.name(kind, id), id)
        read = self._read_consistently(kind, id)
        return parse(read.data, read.is_canonical)

    def tail(self, id: str, n: int) -> tuple[bytes, int, str]:
        """Cost: reading these entries."""
        for _ in range(_TRIES):
            header = self._reconciled_header(CONVERSATIONS, id)
            if header is None or header.file_layout is None:
                break  # Where the last entries begin is not known.
            entries = self.storage.tail(CONVERSATIONS, id, header, n) if n > 0 else b"[]"
            if entries is not None and _is_json(entries):
                return entries, header.file_layout.entries, header.tag
        history = self.document(CONVERSATIONS, id)["history"]
        return codec.encode_entries(history[-n:] if n > 0 else []), len(history), ""

    def head(self, id: str) -> tuple[Document, int]:
        """Cost: reading the beginning of the file."""
        header = self._reconciled_header(CONVERSATIONS, id)
        path = self.name(CONVERSATIONS, id)
        size = header.signature.size if header else len(self.read(CONVERSATIONS, id))
        head = _head_from_ends(*self.storage.read_head_and_end(path))
        if head is None or head.get("id") != id or Head.of(head, path, size) is None:
            document = codec.decode(self.read(CONVERSATIONS, id), path)
            head, _ = migrations.upgrade(document, path)
        return head, size

    def _reconciled_header(self, kind: str, id: str) -> StateHeader | None:
        """Return the state header of a document, after reconciling another program's version.

        Returns None if the store can't be written. Raises `NotFound`.
        """
        header = self.storage.current_header(kind, id)
        if header is not None:
            return header
        if not self.storage.exists(kind, id) and self.storage.recorded_header(kind, id) is None:
            raise not_found(kind, id)
        try:
            return retry(lambda: self._reconcile(kind, id))
        except (Refused, StorageFailed):
            return None

    def _reconcile(
        self, kind: str, id: str, timeout_s: float | None = None, *, trust: bool = True
    ) -> StateHeader:
        """Reconcile a document under its mutex, as `reconcile_external_edit`.

        `trust`: whether a file with the expected signature counts as unchanged.
        """
        with self.storage.hold(kind, id, timeout_s) as held_document:
            return reconcile_external_edit(held_document, trust=trust)

    def _reconcile_briefly(self, id: str) -> StateHeader | None:
        """Reconcile a conversation for the index. Returns None if the store can't be written, or if
        a writer holds the mutex for long.
        """
        try:
            return retry(partial(self._reconcile, CONVERSATIONS, id, _BRIEF_WAIT_S))
        except (Refused, StorageFailed, StoreBusy):
            return None

    def _read_consistently(
        self, kind: str, id: str, since: ReadPosition | None = None
    ) -> _ConsistentRead:
        """Read a document with entries, so that the bytes are those of its state header. The steps
        are at the top of the module.

        Args:
            kind, id: The document.
            since: Read only from the end of this position on, if the file continues it.
        """
        for _ in range(_TRIES):
            header = self._reconciled_header(kind, id)
            start = 0
            if since is not None and header is not None and since.continues_in(header):
                start = since.tail
            content = self.storage.read(kind, id, start)
            if content is None:
                continue  # An editor is replacing it, or it is gone. The next try finds out.
            if header is None:  # The store can't be written. `start` is 0, so these are all bytes.
                decode_checked(content.data, self.name(kind, id), id)
                return _ConsistentRead(content.data, None, 0)
            if content.signature == header.signature and header.ends(content.data):
                return _ConsistentRead(content.data, header, start)

        def read_under_mutex() -> _ConsistentRead:
            with self.storage.hold(kind, id) as held_document:
                header = reconcile_external_edit(held_document)
                content = held_document.read()
                if content is None or content.signature != header.signature:
                    raise ConcurrentWrite
                return _ConsistentRead(content.data, header, 0)

        return retry(read_under_mutex)  # It is written all the time.

    def external_edits(self, purpose: str = "this") -> FileStorage:
        # Engines without files name `purpose` when they refuse.
        return self.storage

    # -- All conversations -------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The index of the conversations. The first use makes it."""
        if self._index is None:
            from capsule.engines.files.index import FilesIndex

            with self._thread_lock:
                if self._index is None:
                    self._index = FilesIndex(self.storage, CONVERSATIONS, self._reconcile_briefly)
        return self._index

    def heads_with(self, field: HeadField, value: str) -> list[Head]:
        from capsule.engines.queries import heads_with

        return heads_with(self.queries(), field, value)

    def queries(self, asker: Viewer | None = None) -> IndexQueries:
        if asker is None and self._owner_queries is not None:
            return self._owner_queries
        from capsule.engines.index.queries import IndexQueries

        queries = IndexQueries(self.index, asker, self)
        if asker is None:
            self._owner_queries = queries
        return queries

    def tracker(self, kind: str | None = None) -> Tracker:
        """Cost: one watch, since every write ends with a state header in the directory of mutexes."""
        return self.storage.wakeup_tracker(kind)

    # -- Flushing ----------------------------------------------------------------------------------

    def flush(self, kind: str = "", id: str = "") -> int:
        if kind:
            self._flush_log(kind, id)
            return 0
        return self._flush_all()

    def _flush_all(self) -> int:
        """Flush every document that was written since the mark, and set the mark to now.

        Returns the number of documents that got back from their logs what a power cut had taken.
        """
        storage = self.storage
        began_ns = time.time_ns()
        completed_count = 0
        first_error: CapsuleError | None = None
        storage.flusher.flush()
        old_mark_ns = storage.derived.read_time(_FLUSHED_MARK, storage.boot_id)
        new_mark_ns = old_mark_ns
        for name, status in storage.mutex_files.statuses():
            kind, _, id = name.partition("-")
            if status.st_mtime_ns >= old_mark_ns and kind in WITH_ENTRIES:
                try:
                    completed_count += retry(partial(self._make_durable, kind, id))
                except CapsuleError as error:  # The others are flushed all the same.
                    first_error = first_error or error
                # A later write may get a time up to `_MARGIN_NS` before the clock.
                if status.st_mtime_ns < began_ns - _MARGIN_NS:
                    new_mark_ns = max(new_mark_ns, status.st_mtime_ns)
        if first_error is not None:
            raise first_error
        if new_mark_ns > old_mark_ns:
            storage.derived.write_time(_FLUSHED_MARK, storage.boot_id, new_mark_ns)
        return completed_count

    def _flush_log(self, kind: str, id: str) -> None:
        """Flush the log of a document without its mutex. If a flush failed before, make the
        document durable under its mutex.
        """
        storage = self.storage
        raw = storage.raw_header(kind, id)
        if not raw:
            return  # There is no header: nothing was written.
        # `header` is None if it is torn. `log_end` is None if the end of the log is not known.
        header, log_end = decode_header(raw) or (None, None)
        if header is not None and header.boot_id != storage.boot_id:
            return  # Written before the machine restarted. The next holder of the mutex reads all.
        if log_end is None or not log_end.is_durable:
            path = storage.logs.file(f"{kind}-{id}")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                with whole_files.open_file(storage.sys, path, flags) as fd:
                    storage.sys.fdatasync(fd)
            except FileNotFoundError:
                pass  # There is no log, or it was deleted with its document this moment.
            except OSError as error:
                storage.mark_unflushed(kind, id)
                raise whole_files.as_capsule_error(error, path, "flush") from error
        # Looked at after the flush, since another flush may have failed before it.
        has_failure_mark = len(storage.raw_header(kind, id)) > HEADER_BYTES
        if header is None or has_failure_mark:
            retry(partial(self._ensure_durable, kind, id))

    def _ensure_durable(self, kind: str, id: str) -> None:
        with self.transaction(kind, id) as transaction:
            transaction.ensure_durable()

    def _make_durable(self, kind: str, id: str) -> bool:
        """Make a document durable. Returns whether a power cut had left it incomplete."""
        with suppress(NotFound, InvalidDocument), self.storage.hold(kind, id) as held_document:
            if held_document.has_unflushed_writes:
                reconcile_external_edit(held_document)
                held_document.make_durable()
                return held_document.is_completed
        return False

    # -- The store ---------------------------------------------------------------------------------

    def toml(self) -> bytes:
        path = os.path.join(self.storage.paths.root, FILE_NAME)
        with whole_files.translate_errors(path, "read"), open(path, "rb") as file:
            return file.read()

    def set_toml(self, data: bytes, expected: bytes) -> None:
        whole_files.replace_file(os.path.join(self.storage.paths.root, FILE_NAME), expected, data)

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self.storage.close()


def _parse_valid(data: bytes, is_canonical: bool, name: str) -> Document:
    """Parse a valid document with entries, and migrate it to the current version."""
    document = codec.decode(data, name)
    if is_canonical:
        return document
    return canonical.in_order(migrations.upgrade(document, name)[0])


def _is_json(entries: bytes) -> bool:
    """Check that this parses. An editor may be writing the file in place this very moment."""
    try:
        orjson.loads(entries)
    except orjson.JSONDecodeError:
        return False
    return True


def _head_from_ends(beginning: bytes, end: bytes) -> Document | None:
    """Parse the head from the first and last bytes of a canonical file. None: it isn't one."""
    head = layout.head_of(beginning)
    if head is None or not end.endswith(b"]\n}\n"):
        return None
    try:
        parsed = orjson.loads(head)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None
