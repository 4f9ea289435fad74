"""The merge driver: git gives it three versions of a document as files, and it writes the merged
document into the file of ours. `capsule/format/merge/merge.py` merges the documents.

What must stay true: the result is a valid document in its clean form. If a side can't be read, the
result is what git itself would have written, with conflict markers. A conflict that a person has to
resolve makes git stop. Messages name the document by its path in the repository.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import orjson

from capsule.errors import CapsuleError, InvalidDocument, Problem, Refused
from capsule.format.json import codec
from capsule.format.merge.annotations import MergeResult
from capsule.format.merge.clean_form import clean
from capsule.format.merge.fields import merge_fields
from capsule.format.merge.merge import merge
from capsule.format.text.escaping import one_line
from capsule.format.validation import KINDS
from capsule.git.drivers.filter import kind_of
from capsule.git.setup.attributes import file_command, store_command

Document = dict[str, Any]
#: The longest value in a message, in characters.
_MAX_VALUE = 60


class MergeFiles(NamedTuple):
    """The files that git gives the driver: the common ancestor (an empty file if there is none),
    ours and theirs.
    """

    base: str
    ours: str
    theirs: str


def merged_version(
    base: Document | None, ours: Document, theirs: Document, path: str, kind: str
) -> tuple[bytes, MergeResult]:
    """Return the merge of two versions, in the clean form, and its conflicts and notes. Raises
    InvalidDocument.
    """
    if KINDS[kind].has_entries:
        result = merge(base, ours, theirs, path)
    else:
        result = merge_fields(KINDS[kind], base, ours, theirs)
    return clean(codec.encode(result.document), path, kind), result


def merge_files(
    files: MergeFiles, path: str, marker_size: int, directory: str
) -> tuple[bool, list[str]]:
    """Merge into the file of ours.

    Args:
        files: The three files.
        path: The document's path in the repository.
        marker_size: The length of git's conflict markers.
        directory: The directory where git runs the driver.

    Returns:
        Whether git may continue, and the lines of the message.

    Raises:
        Refused: A file can't be read or written.
        GitFailed: A side can't be read, and git could not do its own merge either.
    """
    kind = kind_of(path)
    base_data = _read(files.base)
    our_data = _read(files.ours)
    their_data = _read(files.theirs)
    try:
        base = _document(base_data, path, "the common ancestor", kind)
        ours = _document(our_data, path, "ours", kind)
        theirs = _document(their_data, path, "theirs", kind)
        if ours is None or theirs is None:
            raise InvalidDocument.of([Problem(path, 0, 0, "", "one side is an empty file")])
        _ensure_one_document([side for side in (base, ours, theirs) if side is not None], path)
        data, result = merged_version(base, ours, theirs, path, kind)
    except CapsuleError as error:
        _merge_as_text(files, marker_size, directory)
        lines = error.message.split("\n")
        lines.append(
            f"{path}: not merged by Capsule; resolve git's own merge, line by line, in the file"
        )
        return False, lines
    try:
        with open(files.ours, "wb") as file:
            file.write(data)
    except OSError as error:
        raise Refused(
            f"{files.ours}: can't be written: {error.strerror}", path=files.ours
        ) from error
    return not result.conflicts, _message(result, path, kind, directory)


def _document(content: bytes, path: str, side: str, kind: str) -> Document | None:
    """Return the document of a side. None: the file is empty, as git gives it if a side has none.
    Raises InvalidDocument, with the name of the side.
    """
    if not content:
        return None
    try:
        document = codec.decode(content, path)
        KINDS[kind].check(document, path, content)
        return document
    except InvalidDocument as error:
        problems = [
            replace(problem, what=f"{problem.what} (in {side})") for problem in error.problems
        ]
        raise InvalidDocument.of(problems) from None


def _ensure_one_document(sides: list[Document], path: str) -> None:
    """Check that these are versions of one document. Git takes a new fork with a deleted source for
    a renamed file (also with `no-renames` in the strategy `ort` of git 2.39). Raises
    InvalidDocument.
    """
    ids = dict.fromkeys(str(side.get("id")) for side in sides)
    if len(ids) > 1:
        reason = (
            f"these are different documents ({', '.join(map(one_line, ids))}); git took one for "
            "the other, renamed; undo it with: git merge --abort, and merge again with: git merge "
            "-X find-renames=100%"
        )
        raise InvalidDocument.of([Problem(path, 0, 0, "", reason)])


def _message(result: MergeResult, path: str, kind: str, directory: str) -> list[str]:
    """Return the lines of the message about a merge: its notes and conflicts, and what to do."""
    id = one_line(str(result.document.get("id")))
    name = f"{KINDS[kind].noun} {id}"
    if KINDS[kind].has_entries:
        title = one_line(str(result.document.get("title") or ""))
        name = f'{name} "{title}"'
    lines = [f"{name}: {note}" for note in result.notes]
    for conflict in result.conflicts:
        field = one_line(conflict.field)
        values = " and ".join(_shortened(value) for value, _ in conflict.values)
        lines.append(
            f"{name}: both sides changed {field}, to {values}; {_shortened(conflict.kept)} is "
            "used for now"
        )
    if result.conflicts:
        advice = "resolve it by hand"
        if KINDS[kind].has_entries:
            command = store_command(f"capsule git resolve {id}", directory, path)
            advice = f"resolve it with: {command}"
        lines.append(f"{path}: {advice}, then: {file_command('git add', path)}")
    return lines


def _shortened(value: Any) -> str:
    """Return a value in one line, truncated. A text is in quotes."""
    if value is None:
        return "nothing"
    text = one_line(value if isinstance(value, str) else orjson.dumps(value).decode())
    if len(text) > _MAX_VALUE:
        text = f"{text[: _MAX_VALUE - 3]}..."
    return f'"{text}"' if isinstance(value, str) else text


def _merge_as_text(files: MergeFiles, marker_size: int, directory: str) -> None:
    """Merge the files line by line, as git does without a driver."""
    from capsule.git_program import Git  # Needed seldom, and slow to load.

    labels = ("-L", "ours", "-L", "base", "-L", "theirs")
    paths = (files.ours, files.base, files.theirs)
    # The exit code is the number of conflicts. It is 255 for a binary file, which stays unchanged.
    Git(directory).run(
        "merge-file", f"--marker-size={marker_size}", *labels, "--", *paths, ok_codes=range(256)
    )


def _read(path: str) -> bytes:
    """Return the content of a file. Raises Refused."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Refused(f"{path}: can't be read: {error.strerror}", path=path) from error
