"""What the tests of imports share: the examples, and files read and written without a store."""

from __future__ import annotations

import json
import sqlite3
import sys
import zipfile
from contextlib import closing, suppress
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from subprocess import Popen
from typing import Any

from capsule import Store
from capsule.errors import InvalidInput
from capsule.transfer.drafts.conversion import document_of, draft_of, source_id
from capsule.transfer.drafts.import_records import Report
from capsule.transfer.drafts.reimport import merge, unchanged_since_export, write_with_note
from capsule.transfer.interface import Format, Source, read_bytes
from capsule.transfer.reading.files import Problems, SourceFile
from capsule.transfer.reading.sources import files_at, unpacked
from capsule.transfer.registry import drafts_of, format_of, formats

DATA = Path(__file__).parent / "data"
STAMP = "2026-01-02T10:00:00.000Z"
#: The examples: of each format, what lies in its folder.
EXAMPLES = [
    (format, path)
    for format in formats()
    if (DATA / format).is_dir()
    for path in sorted((DATA / format).iterdir())
    if not path.name.startswith(("damaged", "."))
]


def said(*texts: str, id: str = "c1", **more: Any) -> bytes:
    """A conversation with an id, as ShareGPT has it: whose messages are told apart by
    their places.
    """
    people = ("human", "gpt")
    lines = [{"from": people[place % 2], "value": text} for place, text in enumerate(texts)]
    return json.dumps({"id": id, "conversations": lines, **more}).encode() + b"\n"


def take(store: Store, data: bytes, **options: Any) -> Report:
    """Import a file that is read once."""
    return store.import_(stream=BytesIO(data), **options)


class Shelf:
    """Attachments in memory."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def keep(self, data: bytes | Source) -> tuple[str, int]:
        content = data if isinstance(data, bytes) else read_bytes(data)
        digest = sha256(content).hexdigest()
        self.files[digest] = content
        return digest, len(content)


def documents(
    files: list[SourceFile], shelf: Shelf | None = None, only: Format | None = None
) -> list[dict[str, Any]]:
    """The capsules in files, in their order."""
    shelf = shelf or Shelf()
    made: list[dict[str, Any]] = []
    for file in (inner for outer in files for inner in unpacked(outer)):
        format = format_of(file, only)
        if format is None:
            continue
        seen: list[str] = []
        for draft in drafts_of(file, format):
            nth = seen.count(source_id(draft)) if not draft.id else 0
            suffix = f"#{nth}" if nth else ""
            seen.append(source_id(draft))
            tell = lambda what, id, draft=draft, file=file: file.tell(  # noqa: E731
                what, draft.lines.get(id, draft.line)
            )
            with suppress(InvalidInput):  # It says nothing.
                made.append(
                    document_of(
                        draft, format.name, STAMP, tell, shelf.keep, suffix, is_trusted=True
                    )
                )
    return made


def content(path: Path) -> bytes:
    """The content of an example; of one in SQL, the database that it makes."""
    if path.suffix != ".sql":
        return path.read_bytes()
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(path.read_text("utf-8"))
        return database.serialize()


def read(path: Path, shelf: Shelf | None = None) -> tuple[list[dict[str, Any]], Problems]:
    """The capsules at a path, and what was wrong there."""
    if path.suffix == ".sql":
        return read_data(content(path), shelf)
    problems = Problems()
    return documents(list(files_at(path, problems)), shelf), problems


def read_data(
    data: bytes, shelf: Shelf | None = None, only: Format | None = None
) -> tuple[list[dict[str, Any]], Problems]:
    """The capsules in a file under a name that says nothing, and what was wrong there."""
    problems = Problems()
    return documents(
        [SourceFile("x", len(data), lambda: BytesIO(data), problems)], shelf, only
    ), problems


def zipped(files: dict[str, bytes]) -> bytes:
    data = BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def written(
    documents: list[dict[str, Any]], format: Format, shelf: Shelf | None = None
) -> list[bytes]:
    """Each capsule as a file of a format."""
    assert format.write is not None
    load = (shelf or Shelf()).files.get if format.embeds_files else None
    return [
        write_with_note(draft_of(document, format.name, load), format) for document in documents
    ]


def run_twice(script: str, root: Path) -> None:
    """Run a script twice at once, each time with the store and with a name, `a` or `b`, as its
    arguments.
    """
    running = [Popen([sys.executable, "-c", f"if True:\n{script}", str(root), who]) for who in "ab"]
    assert [process.wait() for process in running] == [0, 0]


def changed_by_import(
    document: dict[str, Any], data: bytes, format: Format, shelf: Shelf | None = None
) -> list[dict[str, Any]]:
    """Return the messages that an import of an export of a document would add or change."""
    shelf = shelf or Shelf()
    problems = Problems()
    source = SourceFile("x", len(data), lambda: BytesIO(data), problems)
    (draft,) = drafts_of(source, format)
    ignore = lambda reason, id: None  # noqa: E731
    again = document_of(draft, format.name, STAMP, ignore, shelf.keep, is_trusted=True)
    assert again["id"] == document["id"]
    unchanged = unchanged_since_export(draft, again)
    merged = merge(
        document,
        again,
        (),
        prefer_source=True,
        is_own=draft.is_own,
        is_trusted=True,
        unchanged=unchanged,
        exported_head=draft.exported_head,
    )
    same = [entry for entry in document["history"] if entry in merged.document["history"]]
    assert merged.conflicts == 0
    assert same == document["history"] or len(merged.document["history"]) > len(same)
    return [entry for entry in merged.document["history"] if entry not in document["history"]]
