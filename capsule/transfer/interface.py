"""Define what a format is: `Format` reads drafts from a file, and writes a draft.

A `Draft` is a conversation of another program in our fields, under the ids of its source. The
import makes ids of this store from them, puts the messages in order, and writes the conversation.
The functions here are for readers of formats. They report damage, and continue after it.

Invariant: a format is pure. It opens no file, uses no clock and no environment, and knows no store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput
from capsule.transfer.reading.files import SourceFile
from capsule.transfer.reading.json_stream import (
    MAX_VALUE_BYTES,
    Record,
    Shape,
    first_values,
    json_records,
    shape_of,
)
from capsule.transfer.records.mapping import CAPSULE_KEY, object_of
from capsule.transfer.records.mapping import Fields as Fields
from capsule.transfer.records.mapping import Pair as Pair

if TYPE_CHECKING:
    import sqlite3

#: A file of an import: on disk, in a zip or in memory.
Source = SourceFile


def json_shape(source: Source) -> Shape:
    """Return the form of a file: a JSON `array`, `lines` of JSON, or one `object`.

    Empty: it has none of these.
    """
    return shape_of(source.head)


def first_records(source: Source) -> tuple[dict[str, Any], ...]:
    """Return the first JSON objects of a file, 50 at most. The last one may be cut.

    All formats get the same objects, so they may not be changed.
    """
    return first_values(source.head)


def read_records(source: Source) -> Iterator[Record]:
    """Return the JSON objects of a file, each with its line. Damage is reported."""
    return json_records(source.chunks(), source.head, source.tell)


#: The errors that reading a damaged record raises.
FORMAT_ERRORS = (
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
    OverflowError,
)


class reporting_damage:  # A context manager from a generator would cost three times as much.
    """Report an error of the block as damage in the file, and continue after the block.

    `subject` names what the block reads, and `line` is its line. Only `FORMAT_ERRORS` are reported.
    """

    def __init__(
        self, report_problem: Callable[..., None], subject: str, line: int | None = None
    ) -> None:
        self._damage = report_problem, subject, line

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, FORMAT_ERRORS):
            return False
        report_problem, subject, line = self._damage
        reason = f"{subject} is not understood: {type(error).__name__}: {error}"
        report_problem(reason[:300], line)
        return True


#: Returns the draft for an item of a file and its line. None: it is no conversation.
MakeDraft = Callable[[Any, Any, Source], "Draft | None"]


def read_items(
    source: Source, make: MakeDraft, items: Iterable[tuple[int | None, Any]] | None = None
) -> Iterator[Draft]:
    """Return the drafts of a file with one item for each. A damaged item is reported and skipped.

    Args:
        source: The file.
        make: Returns the draft for an item.
        items: The items, each with its line. None: they are the JSON objects of the file.
    """
    for line, item in read_records(source) if items is None else items:
        draft = None
        with reporting_damage(source.tell, "a conversation", line):
            draft = make(item, line, source)
        if draft is not None:
            yield draft


def reader_of_items(
    make: MakeDraft, items: Callable[[Source], Any] = lambda source: None
) -> Callable[[Source], Iterator[Draft]]:
    """Return the reader of a format that calls `read_items`. `items` returns the items of a file."""
    return lambda source: read_items(source, make, items(source))


def read_rows(database: sqlite3.Connection, sql: str, *values: object) -> Iterator[Fields]:
    """Return the rows of a query, without their NULLs. Raises sqlite3.Error."""
    cursor = database.execute(sql, values)
    names = [column[0] for column in cursor.description]
    for row in cursor:
        yield {name: value for name, value in zip(names, row, strict=True) if value is not None}


def recognizes_record(is_of_format: Callable[[Fields], bool]) -> Callable[[Source], bool]:
    """Return the recognizer of a format that checks the first JSON objects of a file."""
    return lambda source: any(map(is_of_format, first_records(source)))


def read_bytes(source: Source, max_bytes: int = MAX_VALUE_BYTES) -> bytes:
    """Return the whole content. Raises InvalidInput if it is larger than `max_bytes`."""
    data = bytearray()
    for chunk in source.chunks():
        data += chunk
        if len(data) > max_bytes:
            raise InvalidInput(f"{source.name} has more than {max_bytes >> 20} MB")
    return bytes(data)


def read_text(source: Source) -> str:
    """Return the whole content as text. Bytes that are not valid UTF-8 are replaced and reported.

    Raises InvalidInput if it is too large.
    """
    data = read_bytes(source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        source.tell("not UTF-8", data.count(b"\n", 0, error.start) + 1)
        return data.decode("utf-8", "replace")


@dataclass(slots=True)
class Draft:
    """A conversation in our fields, under the ids of its source.

    Attributes:
        head: As in a capsule: `id` (of the source), `title`, `createdAt`, `updatedAt`, `metadata` and
            `context`. All may be missing. `currentNode` is an id of the source.
            `sourceConversationId` and `forkedFrom` are ids of conversations of the same source.
        history: The messages, as in a capsule. `id` and `parent` are ids of the source, any texts.
            Without `id`, the position is the id. Without `parent`, a message answers the one before
            it. A `parent` of None is a root. An entry without `role` is no message: messages that
            answer it answer its parent. An attachment may have `data`, its bytes or a `Source`.
        line: The line of the file where it begins.
        lines: The lines of messages by their ids, in a file in which they have lines of their own.
        is_own: Whether its ids are those of a capsule: it was exported from one.
        source_digests: For a writer: the digests of the messages of the source, as the last import
            stored them, by their positions in `history`.
        source_head_digests: For a writer: the digests of the head, as the last import stored them.
        local_ids: The ids of the messages that are ids of this store, not of the source.
        export_note: The content of the key `capsule` of the file. For a writer: the content to
            write there. See `capsule.transfer.drafts.reimport`.
        exported_messages: The digests of the messages in the note, by their ids.
        exported_head: The digests of the fields of the head in the note. None: it has none.
        edited: For a writer: the ids of messages that were changed here since they were imported.
        is_edited: For a writer: whether the head was changed here since it was imported.
        folder: For a writer: the folder that the conversation is about. Empty: it is not known.
    """

    head: Fields
    history: list[Fields]
    line: int | None = None
    is_own: bool = False
    edited: frozenset[str] = field(default_factory=frozenset)
    is_edited: bool = False
    lines: dict[str, int] = field(default_factory=dict)
    folder: str = ""
    source_digests: dict[int, str] = field(default_factory=dict)
    source_head_digests: Fields = field(default_factory=dict)
    local_ids: frozenset[str] = field(default_factory=frozenset)
    export_note: Fields = field(default_factory=dict)
    exported_messages: Fields = field(default_factory=dict)
    exported_head: Fields | None = None

    @classmethod
    def of_head(cls, head: Pair, record: Fields, line: int | None = None) -> Draft:
        """Return the draft for a record that is the head of a conversation, without messages."""
        note = object_of(record.get(CAPSULE_KEY))
        is_own = isinstance(note.get("id"), str)
        return cls(head.to_capsule(record), [], line, is_own, export_note=note)

    def head_record(self, head: Pair) -> Fields:
        """Return the record of the head: the one that `of_head` reads."""
        record = head.to_record(self.head, is_edited=self.is_edited)
        return self.with_note(record)

    def with_note(self, record: Fields) -> Fields:
        """Return a record with the note of the export, if there is one."""
        if not self.export_note:
            return record
        return record | {CAPSULE_KEY: self.export_note}

    @property
    def id(self) -> str:
        """The id in the source. Empty: it has none."""
        return str(self.head.get("id") or "")

    @property
    def metadata(self) -> Fields:
        """The metadata of the head."""
        metadata: Fields = self.head.get("metadata", {})
        return metadata


@dataclass(frozen=True, slots=True)
class Format:
    """One format.

    Attributes:
        name: Its name in options: small letters, digits and `-`.
        title: Its name for people.
        recognizes: Whether a file is in this format, by the beginning of its content alone.
        read: Returns the conversations of a file, in its order. None: the format is only written.
        write: Returns one conversation in this format. None: the format is only read.
        extension: The extension of a written file, with the dot.
        joined: How several conversations go into one file: `array` (a JSON array), `lines` (one
            after the other), or empty: not at all.
        is_part: Whether a file belongs to another one of this format, which reads it.
        file_name: Returns the path of a written file, POSIX. None: the id with the extension.
        embeds_files: Whether `write` needs the bytes of attachments, as `data`.
        has_files_beside: Whether an archive has the attachments beside the conversations, under
            `attachments/`.
        is_portable: Whether a written conversation is read back whole. The writer of a format
            without this writes `Draft.export_note`, and the reader reads it.
        places: The files of its program, as patterns that begin with `~/`.
        plain: Writes only the visible content of a conversation. None: it has no such form.
        is_for_people: Whether it is for people, who want it plain.
    """

    name: str
    title: str
    recognizes: Callable[[Source], bool]
    read: Callable[[Source], Iterator[Draft]] | None
    write: Callable[[Draft], bytes] | None = None
    extension: str = ".json"
    joined: str = ""
    is_part: Callable[[Source], bool] = lambda source: False
    file_name: Callable[[Draft], str] | None = None
    embeds_files: bool = False
    has_files_beside: bool = False
    is_portable: bool = True
    places: tuple[str, ...] = ()
    plain: Callable[[Draft], bytes] | None = None
    is_for_people: bool = False
