"""The engine of files: a JSON file for each document, and an index that is derived from them.

Reading takes no mutex unless another program changed the file. Such a version is reconciled first,
so a hand edit is seen at once, and a torn end of a file is never shown. A store that can't be
written is still read.

`FileTransaction` decides which primitive a change takes: a splice for entries alone, a head rewrite
for the head and the context, and a whole new file for the rest. What must stay true: every write
has its record in the log first, and nothing that is no valid capsule is written.
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
from typing import TYPE_CHECKING, Self, TypeVar

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
from capsule.format.documents.head import Head, HeadCache
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
    from capsule.engines.files.document import HeldDocument
    from capsule.engines.index.index import Index
    from capsule.engines.index.queries import IndexQueries
    from capsule.engines.interface import Document
    from capsule.engines.local_documents import LocalDocuments
    from capsule.rules.consent import PolicyInputs
    from capsule.rules.policy import PolicyTarget, Viewer


#: An entry is looked for so far back first, in bytes.
_NEAR = 64 << 10
#: How many ids are remembered, of all conversations together.
_MOST_IDS = 1_000_000


def entries_in(block: bytes, name: str) -> list[Document]:
    """The entries in a piece of a canonical history, between the ends of two of them."""
    return codec.decode_entries(b"[" + block.removeprefix(b",") + b"]", name) if block else []


class Caches:
    """What an engine remembers of the conversations it saw: parsed heads, and ids that were made of
    something.

    Several threads may use it: what is remembered of a conversation is asked for and changed under
    its mutex.
    """

    def __init__(self) -> None:
        self.heads = HeadCache()
        self._made: OrderedDict[str, tuple[str, int, set[bytes]]] = OrderedDict()
        self._count = 0

    def made_ids(self, id: str, header: StateHeader, history: Callable[[int], bytes]) -> set[bytes]:
        """The UUIDv5s among the ids of a canonical history.

        Args:
            id: The conversation.
            known: As it is.
            history: Gives the bytes of the history from an offset on.
        """
        assert header.anatomy is not None
        tag, start, ids = self._made.pop(id, ("", 0, set[bytes]()))
        self._count -= len(ids)
        if tag != header.tag or start > header.anatomy.tail:
            start, ids = header.anatomy.history, set()
        if start < header.anatomy.tail:
            ids |= layout.derived_ids(history(start))
        self._made[id] = (header.tag, header.anatomy.tail, ids)
        self._count += len(ids)
        while self._count > _MOST_IDS and len(self._made) > 1:
            self._count -= len(self._made.popitem(last=False)[1][2])
        return ids


class FileTransaction:
    """A conversation, settled under its mutex in a `with` block. See `Transaction`, which describes
    the methods.

    Args:
        held: The document, whose mutex is taken with the block.
        caches: What the engine remembers.
        ensure_unchanged: Raises Interfered if what a decision read has another version.
    """

    def __init__(
        self, held: HeldDocument, caches: Caches, ensure_unchanged: Callable[[ReadSet], None]
    ) -> None:
        self.id = held.id
        self.name = held.path
        self.read_set: ReadSet = {}
        self.waits_for_flush = True
        self.decision_inputs: tuple[PolicyTarget, PolicyInputs] | None = None
        self._held_document, self._tag = held, ""
        self._caches = caches
        self._ensure_unchanged = ensure_unchanged

    def __enter__(self) -> Self:
        held = self._held_document.__enter__()
        try:
            self._continue_from(held.unchanged_header() or reconcile_external_edit(held))
        except BaseException:
            held.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._held_document.waits_for_flush = self.waits_for_flush
        self._held_document.__exit__(kind, error, at)

    def _continue_from(
        self, header: StateHeader, head: Document | None = None, document: Document | None = None
    ) -> None:
        """Go on from the document as it is now.

        Args:
            known: As the store knows it.
            head: Its head, if that is new.
            document: The whole document, if that is at hand.
        """
        heads, anatomy = self._caches.heads, header.anatomy
        self._header, self._whole = header, document
        if head is not None:
            self.head = heads.put(self.name, header.tag, head)
        elif header.tag != self._tag:
            self.head = heads.get(self.name, header.tag) or heads.put(
                self.name, header.tag, self._read_head()
            )
        self._tag = header.tag
        if anatomy is not None:
            stamp, count, ends_active = header.updated_at, anatomy.entries, anatomy.ends_active
        else:
            whole = self.document()
            stamp, count, ends_active = str(whole["updatedAt"]), len(whole["history"]), False
        newest = max(header.newest_updated_at, stamp)
        self._held_document.make_base_record = partial(
            head_record, stamp, self.head.document, count
        )  # No method, which would be a cycle.
        self.state = DocumentState(
            stamp,
            header.tag,
            count,
            header.signature.size,
            ends_active,
            newest,
            header.newest_message_time,
        )

    def _read_head(self) -> Document:
        if self._header.anatomy is None:
            return head_fields(self.document())
        return codec.decode(self._held_document.head(self._header), self.name)

    def document(self) -> Document:
        if self._whole is None:
            got = self._held_document.read()
            if got is None or got[1] != self._header.signature:
                raise ConcurrentWrite
            if (
                self._header.anatomy is not None
            ):  # The note says so only of a document that is valid and current.
                self._whole = codec.decode(got[0], self.name)
            else:
                document, _ = migrations.upgrade(
                    decode_checked(got[0], self.name, self.id), self.name
                )
                self._whole = canonical.in_order(document)
        return self._whole

    def follow(
        self, since: ReadPosition | None = None, own_entries: list[Document] | None = None
    ) -> EntriesSince:
        place = ReadPosition.of(self._header)
        if since == place or own_entries is not None:
            return EntriesSince(place, own_entries or [], False)
        if since is None or not since.goes_on_in(self._header):
            return EntriesSince(place, self.document()["history"], True)
        return EntriesSince(
            place,
            entries_in(self._held_document.history(self._header, since.tail), self.name),
            False,
        )

    def find(self, id: str) -> tuple[int, Document] | None:
        """Costs reading back to it; and for an id that was made of something and is not there, only
        what is new.
        """
        header, at = self._header, self._header.anatomy
        if at is None:
            return entry_with_id(self.document()["history"], id)
        if layout.derived_ids(layout.id_line(id)) and id.encode() not in self._caches.made_ids(
            self.name, header, lambda start: self._held_document.history(header, start)
        ):
            return None
        for start in sorted({at.history, max(at.history, at.tail - _NEAR)}, reverse=True):
            block = self._held_document.history(header, start)
            if (match := layout.find_entry(block, id)) is not None:
                entry = codec.decode(b'{"history":[' + match[1] + b"]}", self.name)["history"][0]
                return at.entries - layout.count_entries(block) + match[0], entry
        return None

    def appended(self) -> list[Document]:
        """Costs reading the log."""
        return appended_entries(self._held_document.records())

    def ensure_durable(self) -> None:
        """After a flush that failed, every byte is written anew."""
        is_in_log = self._held_document.require_log_flush()
        if self._header.durability is Durability.UNFLUSHED:
            document = self.document()
            data = codec.encode(document)
            self._continue_from(
                self._held_document.replace(self._header.signature, data, layout.survey(data), [])
            )
        elif self._header.durability is not Durability.DURABLE or not is_in_log:
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
        at = self._header.anatomy
        if at is None:
            changed = self._with_head(
                head or head_fields(self.document()) | {"updatedAt": updated_at}
            )
            changed |= {"history": [*changed["history"], *entries]}
            count = len(changed["history"])
            self._replace(
                changed,
                [
                    *append_records(updated_at, entries, count),
                    head_record(updated_at, changed, count),
                ],
            )
            return
        if at.ends_active != ends_active:
            self._header = self._header._replace(anatomy=at._replace(ends_active=ends_active))
        count = at.entries + len(entries)
        if head is None:
            records = append_records(updated_at, entries, count, at.tail)
            self._continue_from(
                self._held_document.splice(self._header, encoded, updated_at, records, time)
            )
        else:
            self._header = self._header._replace(newest_message_time=time)
            records = [
                *append_records(updated_at, entries, count),
                head_record(updated_at, head, count),
            ]
            self._rehead(head, encoded, records, None)

    def set_head(
        self,
        head: Document,
        *,
        context: Callable[[], Iterable[bytes]] | None = None,
        ends_active: bool | None = None,
    ) -> None:
        self._ensure_unchanged(self.read_set)
        at = self._header.anatomy
        if at is None:
            changed = self._with_head(head)
            if context is not None:
                changed["context"] = codec.decode(b"".join(context()), "context")
            self.replace(changed)
            return
        if ends_active is not None:
            self._header = self._header._replace(anatomy=at._replace(ends_active=ends_active))
        stamp = head["updatedAt"]
        # A write that leaves `updatedAt` as it is changes the lock and nothing else; of these there
        # may be many.
        is_lock = stamp == self.state.updated_at
        record = lock_record(stamp, head) if is_lock else head_record(stamp, head, at.entries)
        self._rehead(head, [], [record], context)

    def _with_head(self, head: Document) -> Document:
        """The document with another head."""
        rest = {key: value for key, value in self.document().items() if key not in _HEAD}
        return canonical.in_order(head | rest)

    def _rehead(
        self,
        head: Document,
        encoded: list[bytes],
        records: list[bytes],
        context: Callable[[], Iterable[bytes]] | None,
    ) -> None:
        lines = None if context is None else layout.context_lines(context())
        written = layout.head_prefix(codec.encode(head))
        self._continue_from(
            self._held_document.rewrite_head(self._header, written, encoded, records, lines), head
        )

    def replace(self, document: Document, removed: tuple[str, Document] | None = None) -> None:
        self._replace(document, None, removed)

    def _replace(
        self,
        document: Document,
        records: list[bytes] | None,
        removed: tuple[str, Document] | None = None,
    ) -> None:
        """Write the whole document. `records` says what the write does; None: what differs from the
        present one.
        """
        self._ensure_unchanged(self.read_set)
        before = self.document()
        data = codec.encode(document)
        decode_checked(data, self.name, self.id)
        if records is None:
            records = records_between(before, document)
        kept = removed and self._held_document.add_to_trash(removed[0], codec.encode(removed[1]))
        try:
            header = self._held_document.replace(
                self._header.signature, data, layout.survey(data), records
            )
        except ConcurrentWrite:
            if kept:
                self._held_document.storage.trash_directories.erase(kept.token)
            raise
        self._continue_from(header, head_fields(document), document)

    def quarantine_copy(self, reason: str) -> str:
        got = self._held_document.read()
        if got is None:
            raise ConcurrentWrite
        return self._held_document.quarantine(got[0], reason)

    def delete(self) -> Trashed:
        self._ensure_unchanged(self.read_set)
        return self._held_document.delete()


T = TypeVar("T")

#: The mark of a time before which no document was written that is not flushed; and how much earlier
#: a file's time may be than the clock says.
_FLUSHED, _MARGIN_NS = "flushed", 2_000_000_000
_TRIES = 5
_SOON_S = 0.5
#: What a damaged file, or one that somebody writes through a mapping, may raise where it was taken
#: for sound.
_UNSOUND = (InvalidDocument, ValueError, TypeError, LookupError, AttributeError)


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
        self.exists, self.ids, self.name = storage.exists, storage.ids, storage.path
        self._caches = Caches()
        self._guard = threading.Lock()
        self._index: Index | None = None
        self._owners: IndexQueries | None = None

    # -- One document ------------------------------------------------------------------------------

    def transaction(self, kind: str, id: str) -> FileTransaction:
        """Costs nothing where the file is as the store left it; else a read of the whole."""
        return FileTransaction(self.storage.hold(kind, id), self._caches, self._ensure_unchanged)

    def create(
        self,
        kind: str,
        document: Document,
        on_written: Callable[[str], None] | None = None,
        read_set: ReadSet | None = None,
    ) -> int:
        data = codec.encode(document)
        with self._hold_with_read_set(kind, document["id"], read_set) as held:
            if self.storage.exists(kind, document["id"]):
                raise AlreadyExists
            header = held.replace(None, data, layout.survey(data), [])
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
        """Costs reading and writing a small file, and as `version` for each that was read."""
        with self._hold_with_read_set(kind, id, read_set) as held:
            got = held.read()
            if (got and got[0]) != (expected and expected.data):
                raise ConcurrentWrite
            header = held.replace(got[1] if got else None, data, None, [])
            return FileVersion(data, header.signature, False)

    @contextmanager
    def _hold_with_read_set(
        self, kind: str, id: str, read_set: ReadSet | None
    ) -> Iterator[HeldDocument]:
        """The mutex of a document, and, in the order of names, of those that its decision read and
        nobody changed.
        """
        with ExitStack() as stack:
            held = {}
            for place in sorted({(kind, id), *(read_set or ())}):
                if place[0] != LEASES:
                    held[place] = stack.enter_context(self.storage.hold(*place))
            self._ensure_unchanged(read_set or {})
            yield held[kind, id]

    def _ensure_unchanged(self, read_set: ReadSet) -> None:
        """Raise Interfered if a document has another version. Costs an lstat for each, and reading
        what changed.
        """
        for (kind, id), version in read_set.items():
            if isinstance(version, Lease):
                self.leases.ensure_held(version)
                continue
            now = self.version(kind, id, version)
            if now is not version and (now and now.data) != (version and version.data):
                raise ConcurrentWrite

    def delete(self, kind: str, id: str) -> Trashed:
        with self.storage.hold(kind, id) as held:
            if not self.storage.exists(kind, id):
                raise not_found(kind, id)
            return held.delete()

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> FileVersion | None:
        """Costs an lstat, and reading the file unless it is as it was."""
        scanned, now_ns = self.storage.find(kind, id), time.time_ns()
        if (
            scanned
            and isinstance(cached, FileVersion)
            and cached.is_settled
            and cached.signature == scanned.signature
        ):
            return cached
        got = self.storage.read(kind, id) if scanned else None
        return None if got is None else FileVersion(*got, now_ns - got[1].ctime_ns > STEP_NS)

    def read(self, kind: str, id: str) -> bytes:
        """Costs reading and checking the file."""
        if kind not in WITH_ENTRIES:
            got = self.storage.read(kind, id)
            if got is None:
                raise not_found(kind, id)
            return got[0]

        def parse(data: bytes, is_canonical: bool) -> bytes:
            decode_checked(data, self.name(kind, id), id)
            return data

        return self._parsed(kind, id, parse)

    def document(self, kind: str, id: str) -> Document:
        """Costs reading and parsing the file."""
        name = self.name(kind, id)
        if kind not in WITH_ENTRIES:
            return codec.decode(self.read(kind, id), name)
        return self._parsed(
            kind, id, lambda data, is_canonical: _document(data, is_canonical, name)
        )

    def follow(self, kind: str, id: str, since: ReadPosition | None = None) -> EntriesSince:
        """Costs an lstat if nothing changed."""
        name = self.name(kind, id)
        if since is not None:
            try:
                if whole_files.stat_key(self.storage.sys.lstat(name)) == since.signature:
                    return EntriesSince(since, [], False)
            except OSError:
                pass  # The next look says why.
        data, header, start = self._read_consistently(kind, id, since)
        if start and header is not None and header.anatomy is not None:
            return EntriesSince(
                ReadPosition.of(header),
                entries_in(data[: header.anatomy.tail - start], name),
                False,
            )
        return EntriesSince(
            header and ReadPosition.of(header),
            _document(data, _is_canonical(header), name)["history"],
            True,
        )

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        return self._parsed(CONVERSATIONS, id, parse)

    def _parsed(self, kind: str, id: str, parse: Callable[[bytes, bool], T]) -> T:
        data, header, _ = self._read_consistently(kind, id)
        try:
            return parse(data, _is_canonical(header))
        except (
            _UNSOUND
        ):  # The signature has vouched for a file that somebody wrote through a mapping.
            try:
                retry(lambda: self._reconcile(kind, id, trust=False))
            except (Refused, StorageFailed):
                decode_checked(data, self.name(kind, id), id)
        data, header, _ = self._read_consistently(kind, id)
        return parse(data, _is_canonical(header))

    def tail(self, id: str, n: int) -> tuple[bytes, int, str]:
        """Costs reading these entries."""
        for _ in range(_TRIES):
            header = self._reconciled_header(CONVERSATIONS, id)
            if header is None or header.anatomy is None:
                break
            entries = self.storage.tail(CONVERSATIONS, id, header, n) if n > 0 else b"[]"
            if entries is not None and _is_json(entries):
                return entries, header.anatomy.entries, header.tag
        history = self.document(CONVERSATIONS, id)["history"]
        return codec.encode_entries(history[-n:] if n > 0 else []), len(history), ""

    def head(self, id: str) -> tuple[Document, int]:
        """Costs reading the beginning of the file."""
        header = self._reconciled_header(CONVERSATIONS, id)
        path = self.name(CONVERSATIONS, id)
        size = header.signature.size if header else len(self.read(CONVERSATIONS, id))
        head = _head_from_ends(*self.storage.read_head_and_end(path))
        if head is None or head.get("id") != id or Head.of(head, path, size) is None:
            head, _ = migrations.upgrade(codec.decode(self.read(CONVERSATIONS, id), path), path)
        return head, size

    def _reconciled_header(self, kind: str, id: str) -> StateHeader | None:
        """A document with entries as the store knows it; None in a store that can't be written."""
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
        with self.storage.hold(kind, id, timeout_s) as held:
            return reconcile_external_edit(held, trust=trust)

    def _reconcile_briefly(self, id: str) -> StateHeader | None:
        """As `_reconciled_header`, for the index: a writer that holds the mutex for long is not
        waited for.
        """
        try:
            return retry(partial(self._reconcile, CONVERSATIONS, id, _SOON_S))
        except (Refused, StorageFailed, StoreBusy):
            return None

    def _read_consistently(
        self, kind: str, id: str, since: ReadPosition | None = None
    ) -> tuple[bytes, StateHeader | None, int]:
        """The file's bytes, validated; what the store knows of it, which is None in a store that
        can't be written; and the offset of the bytes: where `since` ended, if the file goes on from
        there, else 0."""
        start = 0
        for _ in range(_TRIES):
            header = self._reconciled_header(kind, id)
            start = (
                since.tail
                if since is not None and header is not None and since.goes_on_in(header)
                else 0
            )
            got = self.storage.read(kind, id, start)
            if got is None:
                continue  # An editor is just replacing it, or it is gone: the next try tells which.
            if header is None:
                decode_checked(got[0], self.name(kind, id), id)
                return got[0], None, 0
            if got[1] == header.signature and header.ends(got[0]):
                return got[0], header, start

        def look() -> tuple[bytes, StateHeader, int]:
            with self.storage.hold(kind, id) as held:
                header = reconcile_external_edit(held)
                got = held.read()
                if got is None or got[1] != header.signature:
                    raise ConcurrentWrite
                return got[0], header, 0

        return retry(look)  # Writers leave no gap: read what they have, under the mutex.

    def external_edits(self, purpose: str = "this") -> FileStorage:
        return self.storage

    # -- All conversations -------------------------------------------------------------------------

    @property
    def index(self) -> Index:
        """The index of the conversations, made when it is first asked for."""
        if self._index is None:
            from capsule.engines.files.index import FilesIndex

            with self._guard:
                if self._index is None:
                    self._index = FilesIndex(self.storage, CONVERSATIONS, self._reconcile_briefly)
        return self._index

    def queries(self, asker: Viewer | None = None) -> IndexQueries:
        if asker is None and self._owners is not None:
            return self._owners
        from capsule.engines.index.queries import IndexQueries

        asking = IndexQueries(self.index, asker, self)
        if asker is None:
            self._owners = asking
        return asking

    def tracker(self, kind: str | None = None) -> Tracker:
        """Costs one watch: every write ends with the header of its note in a mutex file."""
        return self.storage.wakeup_tracker(kind)

    def flush(self, kind: str = "", id: str = "") -> int:
        if kind:
            self._flush_log(kind, id)
            return 0
        storage, began_ns, completed = self.storage, time.time_ns(), 0
        failed: CapsuleError | None = None
        storage.flusher.flush()
        since_ns = until_ns = storage.derived.marked(_FLUSHED, storage.boot_id)
        for name, status in storage.mutex_files.statuses():
            kind, _, id = name.partition("-")
            if status.st_mtime_ns >= since_ns and kind in WITH_ENTRIES:
                try:
                    completed += retry(partial(self._make_durable, kind, id))
                except CapsuleError as error:  # The others are flushed all the same.
                    failed = failed or error
                if status.st_mtime_ns < began_ns - _MARGIN_NS:
                    until_ns = max(until_ns, status.st_mtime_ns)
        if failed is not None:
            raise failed
        if until_ns > since_ns:
            storage.derived.mark(_FLUSHED, storage.boot_id, until_ns)
        return completed

    def _flush_log(self, kind: str, id: str) -> None:
        """Make what the store appended to a document durable, without its mutex, unless a flush
        failed before.
        """
        storage = self.storage
        raw = storage.raw_header(kind, id)
        header, log = decode_header(raw) or (None, None)
        if not raw or (header is not None and header.boot_id != storage.boot_id):
            return
        if log is None or not log.is_durable:
            path = storage.logs.file(f"{kind}-{id}")
            try:
                with whole_files.open_file(
                    storage.sys, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
                ) as fd:
                    storage.sys.fdatasync(fd)
            except FileNotFoundError:
                pass  # It has none, or it was dropped with its document, this moment.
            except OSError as error:
                storage.mark_unflushed(kind, id)
                raise whole_files.as_capsule_error(error, path, "flush") from error
        # Looked at retry behind the flush: another one may have failed before it.
        if header is None or len(storage.raw_header(kind, id)) > HEADER_BYTES:
            retry(partial(self._ensure_durable, kind, id))

    def _ensure_durable(self, kind: str, id: str) -> None:
        with self.transaction(kind, id) as transaction:
            transaction.ensure_durable()

    def _make_durable(self, kind: str, id: str) -> bool:
        """Make a document durable; whether a power cut had left it incomplete."""
        with suppress(NotFound, InvalidDocument), self.storage.hold(kind, id) as held:
            if held.has_unflushed_writes:
                reconcile_external_edit(held)
                held.make_durable()
                return held.is_completed
        return False

    def toml(self) -> bytes:
        path = os.path.join(self.storage.layout.root, FILE_NAME)
        with whole_files.translate_errors(path, "read"), open(path, "rb") as file:
            return file.read()

    def set_toml(self, data: bytes, expected: bytes) -> None:
        whole_files.replace_file(os.path.join(self.storage.layout.root, FILE_NAME), expected, data)

    def close(self) -> None:
        if self._index is not None:
            self._index.close()
        self.storage.close()


def _is_canonical(header: StateHeader | None) -> bool:
    return header is not None and header.anatomy is not None


def _document(data: bytes, is_canonical: bool, name: str) -> Document:
    """A document with entries, from bytes that are valid."""
    document = codec.decode(data, name)
    return document if is_canonical else canonical.in_order(migrations.upgrade(document, name)[0])


def _is_json(entries: bytes) -> bool:
    """Whether this parses: what an editor writes in place this very moment is no message yet."""
    try:
        orjson.loads(entries)
    except orjson.JSONDecodeError:
        return False
    return True


def _head_from_ends(beginning: bytes, end: bytes) -> Document | None:
    """The head from the first and last bytes of a canonical file; None when it isn't one."""
    head = layout.head_of(beginning)
    if head is None or not end.endswith(b"]\n}\n"):
        return None
    try:
        parsed = orjson.loads(head)
    except orjson.JSONDecodeError:
        return None
    return parsed if isinstance(parsed, dict) else None
