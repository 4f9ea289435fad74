"""Write the records of a document's log, and compare a version that another program saved with them.

A program that saves a file had read it earlier. The saved version lacks what the store wrote in
between, and what the person removed on purpose. The log has a record of every write, the oldest
first, and so the two can be told apart. These are the steps of `reconcile`:

1. Find the latest write that the person can have read (`_ReadState`): the write that the version's
   `updatedAt` names, or a later append that introduced one of its messages, and all writes before.
2. Collect what the log knows of each message (`_logged_messages`).
3. Restore at the end each message that the version lacks, if it came by an unread write. If it came
   by a write that was read, the person removed it: it stays out, and is reported.
4. Repeat the removals, edits and moves of unread writes, if the version has what they changed in a
   form that the log knows. Otherwise the person's change stays, and the store's is reported.
5. Merge the head three ways (`_HeadReconciler`).

If the `updatedAt` is later than that of every record, the log is incomplete or a program made the
time up. Then only messages are restored, and all other changes are reported. Messages are compared
by id and content. A message that was put back introduces nothing, as the person may have it from
before. Limits: an `updatedAt` typed by hand proves nothing, and the context is always the saved one.

A record is a JSON object with short keys: `k` kind, `u` the `updatedAt` of the write, `n` the number
of messages after it, `e` messages, `at` the byte of the splice, `h` the head, `l` the lock, `was`
digests of earlier contents, `above` an earlier parent. `hand` marks a record of a saved version.

| kind | the write |
| --- | --- |
| `append` | added messages at the end |
| `put` | put messages anywhere, perhaps old ones, as a restore does |
| `edit` | changed a message: `was` is its earlier digest, `above` its earlier parent if that changed |
| `gone` | removed messages: `was` has their digests by id |
| `head`, `lock` | wrote the head, or only the lock in it |
| `void` | proves nothing: the saved version lacks the messages of these interrupted writes |

What must stay true: the order of the records decides, and never a clock. Every message, edit and head
change that a version takes away is restored or reported. Each record can be read without the older
ones, so the oldest can be dropped. Only an `append` introduces messages. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from capsule import timestamps
from capsule.format.documents.message import content_fields
from capsule.format.fields import field_names
from capsule.format.json import codec
from capsule.format.json.canonical import order_message
from capsule.format.merge.three_way import ABSENT, flat_head, sorted_bytes

#: The size in bytes at which a long append begins another record.
_RECORD_BYTES = 64 << 10
#: The fields of a capsule that are merged as its head.
HEAD = frozenset(field_names("")) - {"updatedAt", "history", "context"}
#: The phrase for a lock in `Reconciliation.reapplied`.
LOCK_PHRASE = "the lock"
_LOCK, _TAGS = "metadata.lock", "metadata.tags"
#: A head as one mapping: `title`, `metadata.tags`.
_FlatHead = Mapping[str, Any]
_Entry = dict[str, Any]


# --- Writing records ---


def append_records(
    updated_at: str, entries: Iterable[Mapping[str, Any]], count: int, offset: int = -1
) -> list[bytes]:
    """Return the records of an append.

    A long append has several, of about 64 KiB each, so that the log can drop its oldest messages.

    Args:
        updated_at: The `updatedAt` that the append writes.
        entries: The messages.
        count: The number of messages in the document after the append.
        offset: The byte where they are spliced into the file. -1: they are not spliced in. Only
            the first record has it.
    """
    encoded = list(map(orjson.dumps, entries))
    records: list[bytes] = []
    count_before = count - len(encoded)
    start = 0
    size = 0
    for end, entry in enumerate(encoded, start=1):
        size += len(entry)
        if size >= _RECORD_BYTES or end == len(encoded):
            record = {
                "k": "append",
                "u": updated_at,
                "n": count_before + end,
                "at": -1 if records else offset,
                "e": [],
            }
            # The messages are encoded already: they replace the end `]}` of the empty list.
            records.append(orjson.dumps(record)[:-2] + b",".join(encoded[start:end]) + b"]}")
            start = end
            size = 0
    return records


def put_record(record: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the record of messages that a rewrite put in. `record` has the other fields."""
    return orjson.dumps({"k": "put", **record, "e": list(entries)})


def edit_record(
    record: Mapping[str, Any], old_entry: Mapping[str, Any], new_entry: Mapping[str, Any]
) -> bytes:
    """Return the record of a message that a rewrite changed. `record` has the other fields."""
    edit = {"k": "edit", **record, "was": content_digest(old_entry)}
    if named_parent(old_entry) != named_parent(new_entry):
        edit["above"] = named_parent(old_entry)
    return orjson.dumps({**edit, "e": new_entry})


def gone_record(record: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the record of messages that a rewrite removed. `record` has the other fields."""
    digests = {entry["id"]: content_digest(entry) for entry in entries}
    return orjson.dumps({"k": "gone", **record, "was": digests})


def head_record(updated_at: str, document: Mapping[str, Any], count: int) -> bytes:
    """Return the record of the head of a document that has `count` messages."""
    return with_head_fields({"k": "head", "u": updated_at, "n": count}, document)


def lock_record(updated_at: str, document: Mapping[str, Any]) -> bytes:
    """Return the record of a head in which only the lock was changed."""
    return orjson.dumps({"k": "lock", "u": updated_at, "l": document["metadata"].get("lock")})


def with_head_fields(record: dict[str, Any], document: Mapping[str, Any]) -> bytes:
    """Return a record that also has the head of a document."""
    # Joined as bytes: a head may be as deep as orjson writes, and inside a record it is deeper.
    return orjson.dumps(record)[:-1] + b',"h":' + orjson.dumps(head_fields(document)) + b"}"


def head_fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a document that are merged as its head."""
    return {key: value for key, value in document.items() if key in HEAD}


def records_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[bytes]:
    """Return the records of a rewrite: of each message that it changed, put in or removed, and of
    the head.
    """
    updated_at = after["updatedAt"]
    old_entries = {entry.get("id"): entry for entry in before["history"]}
    new_entries = {entry.get("id"): entry for entry in after["history"]}
    count = len(after["history"])
    records = []
    for id, old_entry in old_entries.items():
        if id not in new_entries:
            continue
        new_entry = new_entries[id]
        if codec.encode_entry(old_entry) != codec.encode_entry(new_entry):
            records.append(edit_record({"u": updated_at}, old_entry, new_entry))
    added = [entry for id, entry in new_entries.items() if id not in old_entries]
    if added:
        records.append(put_record({"u": updated_at, "n": count}, added))
    removed = [entry for id, entry in old_entries.items() if id not in new_entries]
    if removed:
        records.append(gone_record({"u": updated_at}, removed))
    return [*records, head_record(updated_at, after, count)]


def value_digest(value: Any) -> str:
    """Return `sha256:` and 32 hexadecimal digits, the same for equal JSON values."""
    from hashlib import sha256  # It loads OpenSSL, which a command that only reads does not need.

    encoded = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    return "sha256:" + sha256(encoded).hexdigest()[:32]


def content_digest(entry: Mapping[str, Any]) -> str:
    """Return a digest of a message's content. It stays the same when Capsule names the parent."""
    return value_digest(content_fields(entry))


def named_parent(entry: Mapping[str, Any]) -> str | bool | None:
    """Return the parent that a message names.

    None: it names null, and is a root. False: it has no `parent`, and answers the entry before it.
    """
    parent: str | bool | None = entry.get("parent", False)
    return parent


# --- Reading records ---


class WriteRecord(NamedTuple):
    """One record of the log.

    Attributes:
        write_number: The write that the record belongs to. 0 is the oldest in the log.
        record: The record, with the keys that the module lists.
        count_change: How many messages more the document has after it.
    """

    write_number: int
    record: dict[str, Any]
    count_change: int = 0

    @property
    def kind(self) -> str:
        """The kind of the record, from the table of the module."""
        return str(self.record["k"])

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The messages that the write appended or put in. Empty for every other kind."""
        if self.kind in ("append", "put"):
            entries: list[dict[str, Any]] = self.record["e"]
            return entries
        return []

    @property
    def is_external(self) -> bool:
        """Whether another program saved the version that the record describes."""
        return "hand" in self.record


def decode_records(records: list[list[bytes]]) -> list[WriteRecord]:
    """Return the records of all writes, the oldest first. A lock record becomes a head record."""
    writes: list[WriteRecord] = []
    head: dict[str, Any] = {}
    for write_number, record in _read_records(records):
        if record["k"] == "lock":
            if not head:
                continue  # The head that it belongs to was dropped from the log.
            metadata = {**head.get("metadata", {}), "lock": record["l"]}
            record |= {"k": "head", "h": {**head, "metadata": metadata}}
        head = record.get("h", head)
        count_change = 0
        if record["k"] in ("append", "put"):
            count_change = len(record["e"])
        elif record["k"] == "gone":
            count_change = -len(record["was"])
        writes.append(WriteRecord(write_number, record, count_change))
    return writes


def _read_records(records: list[list[bytes]]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each record as it was written, after the number of its write. Skip damaged ones."""
    for write_number, lines in enumerate(records):
        for line in lines:
            with suppress(ValueError, RecursionError):
                record = codec.decode_record(line)
                if isinstance(record.get("u"), str):
                    yield write_number, record


def appended_entries(records: list[list[bytes]]) -> list[dict[str, Any]]:
    """Return the messages of all appends, also those that were removed later."""
    entries = []
    for _, record in _read_records(records):
        if record["k"] == "append":
            entries += record["e"]
    return entries


def logged_splices(records: list[list[bytes]]) -> list[tuple[int, list[dict[str, Any]], str]]:
    """Return the splices in the log, the latest first: offset, messages and `updatedAt` of each."""
    splices: list[tuple[int, list[dict[str, Any]], str]] = []
    splice_number = -1
    for write in decode_records(records):
        if write.kind != "append":
            continue
        if write.record.get("at", -1) >= 0:
            splices.append((write.record["at"], list(write.entries), write.record["u"]))
            splice_number = write.write_number
        elif write.write_number == splice_number:  # Another record of the same long append.
            splices[-1][1].extend(write.entries)
    return [splice for splice in reversed(splices) if splice[1]]


def with_recovered_ids(
    history: list[dict[str, Any]], records: list[list[bytes]]
) -> list[dict[str, Any]]:
    """Return the messages of a saved version, with ids for those that lost theirs.

    A message without an id gets the id of a logged message with the same role, text and time, if
    the version has no message with that id. Each id is given once.
    """
    if not records or all(entry.get("id") for entry in history):
        return history
    present_ids = {entry.get("id") for entry in history}
    #: By role, text and time: the ids that are free, in the order of the log.
    free_ids: dict[tuple[Any, ...], dict[str, None]] = {}
    for write in decode_records(records):
        entries = [write.record["e"]] if write.kind == "edit" else write.entries
        for entry in entries:
            if entry.get("id") not in present_ids:
                free_ids.setdefault(_visible_fields(entry), {})[entry["id"]] = None
    result = []
    for entry in history:
        if entry.get("id"):
            result.append(entry)
            continue
        candidates = free_ids.get(_visible_fields(entry))
        if not candidates:
            result.append(entry)
            continue
        id = next(iter(candidates))
        del candidates[id]
        result.append({**entry, "id": id})
    return result


def _visible_fields(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    time = timestamps.sortable(str(entry.get("timestamp") or ""))
    return entry.get("role"), entry.get("content"), time


def erase_removed_texts(
    records: list[list[bytes]], document: Mapping[str, Any]
) -> list[list[bytes]]:
    """Return the records without the texts that the document no longer has: of messages and titles.

    Of the heads only the latest is left, as the document has it now.
    """
    entries_by_id = {entry.get("id"): entry for entry in document["history"]}
    writes = decode_records(records)
    head_writes = [write.write_number for write in writes if "h" in write.record]
    latest_head = max(head_writes, default=-1)
    kept_records: dict[int, list[bytes]] = {}
    for write in writes:
        if write.kind == "head" and write.write_number == latest_head:
            line = head_record(write.record["u"], document, len(entries_by_id))
            kept_records.setdefault(write.write_number, []).append(line)
            continue
        record = _erased_record(write, entries_by_id)
        if record is not None:
            kept_records.setdefault(write.write_number, []).append(orjson.dumps(record))
    return list(kept_records.values())


def _erased_record(
    write: WriteRecord, entries_by_id: Mapping[Any, _Entry]
) -> dict[str, Any] | None:
    """Return a record with the present versions of its messages. None if nothing of it is left."""
    record = write.record
    if write.kind in ("append", "put"):
        ids = [entry["id"] for entry in record["e"] if entry.get("id") in entries_by_id]
        # Without an offset: the record no longer has the bytes that were spliced in.
        return record | {"at": -1, "e": [entries_by_id[id] for id in ids]}
    if write.kind == "edit" and record["e"].get("id") in entries_by_id:
        return record | {"e": entries_by_id[record["e"]["id"]]}
    return record if write.kind in ("gone", "void") else None


# --- Reconciling ---


class Reconciliation:
    """The result of comparing a saved version with the log.

    Attributes:
        document: The saved version, with the messages and changes that it lacked.
        edit_records: The log records of the version: the head that was saved, and, if there are
            any, the messages that stay removed, those that stay put back, the edits that stay, and
            the interrupted writes that prove nothing.
        latest_update: The latest `updatedAt` of the version and of all records.
        restored: The messages that were put back into it.
        reapplied: The changes of the store that were repeated in it, in words.
        removed: The messages that the person removed, as the store had them last.
        overridden: The changes of the store that lost to a change of the person: the value that was
            lost, and a description.
        shortfall: How many messages fewer `document` has than the store's last version.
        unlogged_count: How many of those are not in the log. They cannot be restored, and whether
            the person had read them is unknown.
    """

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = document
        self.edit_records: list[bytes] = []
        self.latest_update = ""
        self.restored: list[_Entry] = []
        self.reapplied: list[str] = []
        self.removed: list[_Entry] = []
        self.overridden: list[tuple[Any, str]] = []
        self.shortfall = 0
        self.unlogged_count = 0

    @property
    def is_changed(self) -> bool:
        """Whether `document` differs from the saved version."""
        return bool(self.restored or self.reapplied)

    @property
    def missing_in_words(self) -> str:
        """What the saved version lacked and `document` has again, in words."""
        return ", ".join([*_count_phrase(self.restored), *self.reapplied])

    @property
    def lost_in_words(self) -> str:
        """What the saved version takes away, in words. Empty: nothing."""
        descriptions = [description for _, description in self.overridden]
        return ", ".join([*_count_phrase(self.removed), *descriptions])

    @property
    def lost_values(self) -> bytes:
        """What the saved version takes away, as JSON for the quarantine."""
        values = [value for value, _ in self.overridden]
        return orjson.dumps(
            {"removed": self.removed, "overruled": values}, option=orjson.OPT_INDENT_2
        )


def _count_phrase(entries: list[_Entry]) -> list[str]:
    if not entries:
        return []
    return ["1 message" if len(entries) == 1 else f"{len(entries)} messages"]


def reconcile(
    saved: dict[str, Any],
    records: list[list[bytes]],
    *,
    deliberate: bool | None = None,
    certain_writes: int | None = None,
) -> Reconciliation:
    """Compare a saved version with what the store wrote lately.

    Args:
        saved: The saved version, as `migrations.upgrade` returns it.
        records: The records of each write, the oldest first. Damaged ones are skipped.
        deliberate: True: everything that is missing was removed on purpose. False: nothing was.
            None: the steps at the top of the module decide.
        certain_writes: The number of writes that were in the file for certain. A later one may
            have reached it in part. None: all were.
    """
    writes = decode_records(records)
    if certain_writes is None:
        certain_writes = len(records)
    outcome = Reconciliation(dict(saved))
    read = _ReadState(saved, writes, certain_writes)
    if deliberate is not None:
        read.last_read = len(records) if deliberate else -1
    _HistoryReconciler(outcome, read).reconcile(_logged_messages(writes))
    heads = [write for write in writes if write.kind == "head"]
    if heads:
        _HeadReconciler(outcome, heads, read).reconcile()
    count = len(outcome.document["history"])
    logged_counts = [write.record["n"] for write in writes if "n" in write.record]
    if logged_counts:
        outcome.shortfall = max(logged_counts[-1] - count, 0)
    outcome.unlogged_count = max(outcome.shortfall - len(outcome.removed), 0)
    outcome.latest_update = max(read.updated_at, read.latest_update)
    external = _external_fields(saved)
    if read.unproven_times:
        void = {"k": "void", **external, "void": read.unproven_times}
        outcome.edit_records.insert(0, orjson.dumps(void))
    outcome.edit_records.append(with_head_fields({"k": "head", **external, "n": count}, saved))
    return outcome


def _external_fields(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of every record of a saved version."""
    return {"u": saved["updatedAt"], "hand": 1}


class _ReadState:
    """What the person can have read when the edit began.

    Attributes:
        updated_at: The `updatedAt` of the saved version.
        latest_update: The latest `updatedAt` of a record.
        is_log_complete: Whether the log reaches to the saved version. If not, only messages are
            restored.
        unproven_times: The `updatedAt` of each interrupted append of which the version lacks
            messages. Such a time proves nothing: it was written before the messages were.
        last_read: The latest write that the version proves to have been read. -1: none.
    """

    def __init__(
        self, saved: dict[str, Any], writes: list[WriteRecord], certain_writes: int
    ) -> None:
        self.updated_at = timestamps.sortable(str(saved.get("updatedAt")))
        self.latest_update = max((write.record["u"] for write in writes), default="")
        self.is_log_complete = self.updated_at <= self.latest_update
        saved_counts = Counter(entry.get("id") for entry in saved["history"])
        self.unproven_times = []
        for write in writes:
            if write.write_number < certain_writes:
                continue
            if any(entry["id"] not in saved_counts for entry in write.entries):
                self.unproven_times.append(write.record["u"])
        self.last_read = max(self._write_of_time(writes), _last_introduction(writes, saved_counts))

    def _write_of_time(self, writes: list[WriteRecord]) -> int:
        """Return the write that the version's `updatedAt` names. -1: none, or it proves nothing."""
        void_times = set(self.unproven_times)
        for write in writes:
            void_times.update(write.record.get("void", ()))
        if self.updated_at in void_times:
            return -1
        return _write_numbers(writes).get(self.updated_at, -1)

    def was_read(self, write_number: int) -> bool:
        """Return whether the person can have read this write."""
        return write_number <= self.last_read


def _last_introduction(writes: list[WriteRecord], saved_counts: Counter[Any]) -> int:
    """Return the latest append that introduced a message of the saved version. -1: none."""
    introductions: dict[Any, list[int]] = {}
    for write in writes:
        if write.kind == "append":
            for entry in write.entries:
                introductions.setdefault(entry.get("id"), []).append(write.write_number)
    last = -1
    for id, write_numbers in introductions.items():
        # Of several messages with one id, as many were read as the version has.
        count = min(saved_counts[id], len(write_numbers))
        if count:
            last = max(last, write_numbers[count - 1])
    return last


def _write_numbers(writes: list[WriteRecord]) -> dict[str, int]:
    """Return the first write of the store with each `updatedAt`."""
    numbers: dict[str, int] = {}
    for write in writes:
        if not write.is_external:
            numbers.setdefault(write.record["u"], write.write_number)
    return numbers


# --- The messages ---


class _LoggedCopy:
    """A message that the document has, as far as the log knows.

    Attributes:
        write_number: The write that put it there; or the first that mentions it, if the log no
            longer has that one.
        entry: The message as it was written last.
        edited_by: The store's last write that changed its content. None: no write did, or a
            person's version stays.
        moves: The store's writes that gave it another parent, each with the parent before.
    """

    def __init__(self, write_number: int, entry: _Entry) -> None:
        self.write_number = write_number
        self.entry = entry
        self.edited_by: int | None = None
        self.moves: list[tuple[int, Any]] = []


class _LoggedMessage:
    """The history in the log of the messages with one id. Nearly always it is one message.

    Attributes:
        copies: The messages that the document has.
        digests: The digests of all contents that they had.
        removed_by: The store's write that removed them. None: they are present, or a person removed
            them.
    """

    def __init__(self) -> None:
        self.copies: list[_LoggedCopy] = []
        self.digests: set[str] = set()
        self.removed_by: int | None = None


def _logged_messages(writes: list[WriteRecord]) -> dict[Any, _LoggedMessage]:
    """Return what the log knows of each message, by id."""
    messages: dict[Any, _LoggedMessage] = {}
    numbers = _write_numbers(writes)
    for write in writes:
        number = write.write_number
        if write.is_external:
            # An external edit counts as read by everybody that has the version it began from.
            number = numbers.get(write.record["u"], number)
        if write.kind == "edit":
            message = messages.setdefault(write.record["e"].get("id"), _LoggedMessage())
            _add_edit(message, write)
        elif write.kind == "gone":
            for id, digest in write.record["was"].items():
                message = messages.setdefault(id, _LoggedMessage())
                message.copies = []
                message.digests.add(digest)
                message.removed_by = None if write.is_external else number
        for entry in write.entries:
            _add_entry(messages.setdefault(entry.get("id"), _LoggedMessage()), entry, write, number)
    return messages


def _add_entry(message: _LoggedMessage, entry: _Entry, write: WriteRecord, number: int) -> None:
    """Add a message that was appended or put in."""
    copy = _LoggedCopy(number, entry)
    digest = content_digest(entry)
    is_other_content = bool(message.digests - {digest})
    if write.kind == "put" and not write.is_external and is_other_content:
        copy.edited_by = number  # It came back with another text than it was removed with.
    message.copies.append(copy)
    message.digests.add(digest)
    message.removed_by = None


def _add_edit(message: _LoggedMessage, write: WriteRecord) -> None:
    """Apply an edit record to the copy that it changed."""
    entry = write.record["e"]
    old_digest = write.record["was"]
    new_digest = content_digest(entry)
    if not message.copies:  # The log no longer has the write that put it there.
        message.copies.append(_LoggedCopy(write.write_number, entry))
    copy = message.copies[-1]
    for candidate in message.copies:
        if content_digest(candidate.entry) == old_digest:
            copy = candidate
            break
    copy.entry = entry
    message.digests |= {old_digest, new_digest}
    if write.is_external:
        copy.edited_by = None
        copy.moves = []
        return
    if new_digest != old_digest:
        copy.edited_by = write.write_number
    if "above" in write.record:
        copy.moves.append((write.write_number, write.record["above"]))


class _HistoryReconciler:
    """Brings the messages of a saved version up to date with the log.

    Attributes:
        history: The messages as they were saved.
        changed_entries: The messages that get another content or parent, by index.
        removed_indexes: The indexes of the messages that the store had removed.
        missing: The logged messages that the version lacks.
        put_entries: Messages that stay, though the log says that they were removed.
        edit_lines: The records of edits of the person that stay.
    """

    def __init__(self, outcome: Reconciliation, read: _ReadState) -> None:
        self.outcome = outcome
        self.read = read
        self.history: list[_Entry] = outcome.document["history"]
        self.external = _external_fields(outcome.document)
        self.changed_entries: dict[int, _Entry] = {}
        self.removed_indexes: set[int] = set()
        self.missing: list[_LoggedCopy] = []
        self.put_entries: list[_Entry] = []
        self.edit_lines: list[bytes] = []

    def reconcile(self, logged: dict[Any, _LoggedMessage]) -> None:
        """Restore missing messages and repeat unread changes. Write the result to the outcome."""
        indexes_by_id: dict[Any, list[int]] = {}
        for index, entry in enumerate(self.history):
            indexes_by_id.setdefault(entry.get("id"), []).append(index)
        for id, message in logged.items():
            indexes = indexes_by_id.get(id, [])
            if message.copies:
                self._reconcile_present(message, indexes)
            else:
                self._reconcile_removed(id, message, indexes)
        self._finish()

    def _reconcile_removed(self, id: Any, message: _LoggedMessage, indexes: list[int]) -> None:
        """Remove again what the store removed after the person had read it."""
        for index in indexes:
            if self._is_removed_again(id, message, self.history[index]):
                self.removed_indexes.add(index)
            else:
                self.put_entries.append(self.history[index])

    def _is_removed_again(self, id: Any, message: _LoggedMessage, entry: _Entry) -> bool:
        """Return whether an unread removal is repeated. If not, the message counts as put back."""
        if message.removed_by is None or self.read.was_read(message.removed_by):
            return False
        description = f"the removal of message {id}"
        if self.read.is_log_complete and content_digest(entry) in message.digests:
            self.outcome.reapplied.append(description)
            return True
        self.outcome.overridden.append(({"removed": id}, description))
        return False

    def _reconcile_present(self, message: _LoggedMessage, indexes: list[int]) -> None:
        """Find the logged copies in the saved version, and repeat their unread edits and moves."""
        pairs, missing = self._match_copies(message.copies, indexes)
        self.missing += missing
        for index, copy in pairs.items():
            entry = self._with_unread_changes(copy, self.history[index], message.digests)
            self.changed_entries[index] = entry
            if _differs_from_store(copy, entry):
                line = edit_record(self.external, copy.entry, self.history[index])
                self.edit_lines.append(line)
        if any(self.read.was_read(copy.write_number) for copy in missing):
            # A removal record names only ids. So the copies of the id that stay are put in again.
            self.put_entries += [self.history[index] for index in pairs]

    def _match_copies(
        self, copies: list[_LoggedCopy], indexes: list[int]
    ) -> tuple[dict[int, _LoggedCopy], list[_LoggedCopy]]:
        """Return the copy at each index, by content, else by order; and the copies that are missing."""
        pairs: dict[int, _LoggedCopy] = {}
        unmatched = []
        for copy in copies:
            digest = content_digest(copy.entry)
            for index in indexes:
                if index not in pairs and content_digest(self.history[index]) == digest:
                    pairs[index] = copy
                    break
            else:
                unmatched.append(copy)
        free_indexes = [index for index in indexes if index not in pairs]
        pairs.update(zip(free_indexes, unmatched, strict=False))
        return pairs, unmatched[len(free_indexes) :]

    def _with_unread_changes(
        self, copy: _LoggedCopy, saved_entry: _Entry, digests: set[str]
    ) -> _Entry:
        """Return a saved message with the store's unread edit and move of it.

        A change is repeated if the person left alone what it changed. Otherwise it is reported.
        """
        result = saved_entry
        digest = content_digest(saved_entry)
        if copy.edited_by is not None and digest != content_digest(copy.entry):
            description = f"the edit of message {saved_entry['id']}"
            is_unread = not self.read.was_read(copy.edited_by)
            if self.read.is_log_complete and is_unread and digest in digests:
                result = _with_parent(copy.entry, named_parent(saved_entry))
                self.outcome.reapplied.append(description)
            else:
                self.outcome.overridden.append((copy.entry, description))
        parent = named_parent(copy.entry)
        saved_parent = named_parent(saved_entry)
        unread_parents = [old for number, old in copy.moves if not self.read.was_read(number)]
        # The person left the parent alone if the version still has the one before the first move.
        is_left_alone = bool(unread_parents) and unread_parents[0] == saved_parent
        if is_left_alone and self.read.is_log_complete and saved_parent != parent:
            result = _with_parent(result, parent)
            self.outcome.reapplied.append(f"the parent of message {saved_entry['id']}")
        return result

    def _finish(self) -> None:
        """Write the new history and the records to the outcome."""
        outcome = self.outcome
        self.missing.sort(key=lambda copy: copy.write_number)
        for copy in self.missing:
            if self.read.was_read(copy.write_number):
                outcome.removed.append(copy.entry)
            else:
                outcome.restored.append(copy.entry)
        if outcome.is_changed:
            kept_entries = []
            for index, entry in enumerate(self.history):
                if index not in self.removed_indexes:
                    kept_entries.append(self.changed_entries.get(index, entry))
            outcome.document["history"] = kept_entries + outcome.restored
        if outcome.removed:
            outcome.edit_records.append(gone_record(self.external, outcome.removed))
        if self.put_entries:
            outcome.edit_records.append(put_record(self.external, self.put_entries))
        outcome.edit_records += self.edit_lines


def _differs_from_store(copy: _LoggedCopy, entry: _Entry) -> bool:
    """Return whether the person's version of a message stays where the store had changed it."""
    if copy.edited_by is not None and content_digest(entry) != content_digest(copy.entry):
        return True
    return bool(copy.moves) and named_parent(entry) != named_parent(copy.entry)


def _with_parent(entry: _Entry, parent: str | bool | None) -> _Entry:
    """Return a message with another parent, in the form of `named_parent`."""
    result = {name: value for name, value in entry.items() if name != "parent"}
    if parent is not False:
        result["parent"] = parent
    return order_message(result)


# --- The head ---


class _HeadReconciler:
    """Merges the head three ways: what the person read, what the store wrote, what was saved.

    A field in which the saved version differs from the store's last one gets the first row that
    applies:

    | field | condition | result |
    | --- | --- | --- |
    | lock | changed unread, and the version has an older lock of the log | reapplied |
    | lock | any other | the saved lock stays, nothing is reported |
    | any | not changed unread, and its value is older than the store's last change | reported |
    | any | not changed unread | the saved value stays |
    | any | changed unread, and not by the person | reapplied |
    | tags | changed unread, and by the person | both sides' additions and removals |
    | any | changed unread, and by the person | reported |

    "Changed unread": the store changed it after the base. "Reported": the saved value stays, and
    the store's goes to `overridden`. Nothing is reapplied if the log is incomplete.

    Attributes:
        heads: The head records, the oldest first.
        versions: The heads in them, flat.
        base_index: The one that the person probably began from.
        saved: The saved head, flat.
        unread_fields: The names of the fields that the store changed after the base.
    """

    def __init__(self, outcome: Reconciliation, heads: list[WriteRecord], read: _ReadState) -> None:
        self.outcome = outcome
        self.read = read
        self.heads = heads
        self.versions = [flat_head(head.record["h"]) for head in heads]
        self.saved = flat_head(head_fields(outcome.document))
        # Of two that are equally close, the earlier: a change that then seems unread is reapplied,
        # and not taken away.
        self.base_index = min(
            _possible_bases(heads, read),
            key=lambda index: _distance(self.versions[index], self.saved),
        )
        self.unread_fields: set[str] = set()
        for index in range(self.base_index + 1, len(heads)):
            if not heads[index].is_external:
                changed = _differing_fields(self.versions[index - 1], self.versions[index])
                self.unread_fields.update(changed)

    def reconcile(self) -> None:
        """Merge the head, and write the result to the outcome."""
        merged = dict(self.saved)
        reapplied = []
        for name in _differing_fields(self.versions[-1], self.saved):
            if name == _LOCK:
                if self._is_lock_reapplied():
                    merged[name] = self.versions[-1].get(name, ABSENT)
                    reapplied.append(LOCK_PHRASE)
                continue
            merged[name] = self._merge_field(name)
            if not _is_equal(merged[name], self.saved.get(name, ABSENT)):
                reapplied.append(_description(name))
        if reapplied:
            self._write_head(merged)
            self.outcome.reapplied += reapplied

    def _is_lock_reapplied(self) -> bool:
        """Return whether the store's lock replaces the saved one.

        A saved lock that no record has is that of a killed writer, or a person's. Either stays.
        """
        base_value = self.versions[self.base_index].get(_LOCK, ABSENT)
        store_value = self.versions[-1].get(_LOCK, ABSENT)
        if _LOCK not in self.unread_fields or _is_equal(base_value, store_value):
            return False
        locks = [_lock_digest(version) for version in self.versions]
        saved_lock = _lock_digest(self.saved)
        is_older = saved_lock != locks[-1] and saved_lock in locks
        return is_older and self.read.is_log_complete

    def _merge_field(self, name: str) -> Any:
        """Return the value of a field in the merged head. Report a value of the store that is lost."""
        base_value = self.versions[self.base_index].get(name, ABSENT)
        store_value = self.versions[-1].get(name, ABSENT)
        saved_value = self.saved.get(name, ABSENT)
        if _is_equal(base_value, store_value) or name not in self.unread_fields:
            if self._is_reverted(name, saved_value):
                self._report_lost(name, store_value)
            return saved_value
        if self.read.is_log_complete:
            if _is_equal(saved_value, base_value):
                return store_value
            if name == _TAGS and isinstance(base_value, list):
                return _merge_tags(base_value, store_value, saved_value)
        self._report_lost(name, store_value)
        return saved_value

    def _report_lost(self, name: str, store_value: Any) -> None:
        value = None if store_value is ABSENT else store_value
        self.outcome.overridden.append(({name: value}, _description(name)))

    def _is_reverted(self, name: str, saved_value: Any) -> bool:
        """Return whether a field has a value again from before the store's last change of it."""
        store_value = self.versions[-1].get(name, ABSENT)
        values = [version.get(name, ABSENT) for version in self.versions]
        earlier = [index for index, value in enumerate(values) if not _is_equal(value, store_value)]
        if not earlier or self.heads[earlier[-1] + 1].is_external:
            return False
        return any(_is_equal(values[index], saved_value) for index in earlier)

    def _write_head(self, merged: dict[str, Any]) -> None:
        """Put the merged head into the document of the outcome."""
        head: dict[str, Any] = {"metadata": {}}
        for name, value in merged.items():
            if value is not ABSENT:
                target = head["metadata"] if "." in name else head
                target[name.removeprefix("metadata.")] = value
        other_fields = {
            key: value for key, value in self.outcome.document.items() if key not in HEAD
        }
        self.outcome.document = head | other_fields


def _description(name: str) -> str:
    return f"the change of {name.removeprefix('metadata.')}"


def _lock_digest(head: _FlatHead) -> str:
    """Return what distinguishes one lock from another. Its time does not, as it is refreshed."""
    lock = head.get(_LOCK)
    if isinstance(lock, dict):
        return value_digest({**lock, "timestamp": None})
    return value_digest(lock)


def _possible_bases(heads: list[WriteRecord], read: _ReadState) -> list[int]:
    """Return the indexes of the heads that the person may have begun from.

    These are the last head that was read, and later ones with the version's `updatedAt`. If no
    write is known to have been read, all of them.
    """
    read_indexes = []
    same_time = []
    for index, head in enumerate(heads):
        if read.was_read(head.write_number):
            read_indexes.append(index)
        elif head.record["u"] == read.updated_at:
            same_time.append(index)
    if not read_indexes:
        return list(range(len(heads)))
    return read_indexes[-1:] + same_time


def _is_equal(a: Any, b: Any) -> bool:
    return a is b or sorted_bytes(a) == sorted_bytes(b)


def _differing_fields(a: _FlatHead, b: _FlatHead) -> list[str]:
    names = {**a, **b}
    return [name for name in names if not _is_equal(a.get(name, ABSENT), b.get(name, ABSENT))]


def _distance(a: _FlatHead, b: _FlatHead) -> int:
    """Return the number of fields that differ. Each differing tag counts, and a lock's time does not."""
    distance = 0
    for name in _differing_fields(a, b):
        value_of_a = a.get(name)
        value_of_b = b.get(name)
        if name == _TAGS and isinstance(value_of_a, list) and isinstance(value_of_b, list):
            tags_of_a = set(map(value_digest, value_of_a))
            tags_of_b = set(map(value_digest, value_of_b))
            distance += len(tags_of_a ^ tags_of_b)
        elif name != _LOCK or _lock_digest(a) != _lock_digest(b):
            distance += 1
    return distance


def _merge_tags(base_tags: list[Any], store_value: Any, saved_value: Any) -> list[Any]:
    """Return the tags with both sides' additions and removals, in the saved order first."""
    store_tags = store_value if isinstance(store_value, list) else []
    saved_tags = saved_value if isinstance(saved_value, list) else []
    dropped = [tag for tag in base_tags if tag not in store_tags]
    added = [tag for tag in store_tags if tag not in base_tags and tag not in saved_tags]
    return [tag for tag in saved_tags if tag not in dropped] + added
