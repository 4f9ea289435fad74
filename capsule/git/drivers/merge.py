"""The merge driver: git gives it three versions of a document, and it leaves the merged one in the
file of ours.

What must stay true: it leaves a valid document in its clean form, or, where a side can't be read,
what git itself would have left; what a person has to settle makes git stop; and messages name the
document as the repository does. How documents merge is the matter of
`capsule/format/merge/merge.py`.
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
_CUT = 60


class MergeFiles(NamedTuple):
    """The files that git hands over: the common ancestor (an empty file without one),
    ours, theirs.
    """

    base: str
    ours: str
    theirs: str


def merged_version(
    base: Document | None, ours: Document, theirs: Document, path: str, kind: str
) -> tuple[bytes, MergeResult]:
    """Two versions merged, in the clean form. Raises InvalidDocument."""
    has_entries = KINDS[kind].has_entries
    merged = (
        merge(base, ours, theirs, path)
        if has_entries
        else merge_fields(KINDS[kind], base, ours, theirs)
    )
    return clean(codec.encode(merged.document), path, kind), merged


def merge_files(
    sides: MergeFiles, path: str, marker_size: int, directory: str
) -> tuple[bool, list[str]]:
    """Merge into the file of ours.

    Args:
        path: The document's path in the repository.
        marker_size: How long git's conflict markers are.
        directory: Where git runs the driver.

    Returns:
        Whether git may go on, and the lines of the message.

    Raises:
        Refused: A file can't be read or written.
        GitFailed: Git could not do its own merge, where a side can't be read.
    """
    kind, contents = kind_of(path), [_read(file) for file in sides]
    try:
        names = ("the common ancestor", "ours", "theirs")
        base, ours, theirs = (
            _document(content, path, name, kind)
            for content, name in zip(contents, names, strict=True)
        )
        if ours is None or theirs is None:
            raise InvalidDocument.of([Problem(path, 0, 0, "", "one side is an empty file")])
        _ensure_one_document([side for side in (base, ours, theirs) if side is not None], path)
        data, merged = merged_version(base, ours, theirs, path, kind)
    except CapsuleError as error:
        _merge_as_text(sides, marker_size, directory)
        words = error.message.split("\n")
        return False, [
            *words,
            f"{path}: not merged by Capsule; resolve git's own merge, line by line, in the file",
        ]
    try:
        with open(sides.ours, "wb") as file:
            file.write(data)
    except OSError as error:
        raise Refused(
            f"{sides.ours}: can't be written: {error.strerror}", path=sides.ours
        ) from error
    return not merged.conflicts, _words(merged, path, kind, directory)


def _document(content: bytes, path: str, side: str, kind: str) -> Document | None:
    """A side's document; None when git has none, and gives an empty file. Raises InvalidDocument,
    naming the side.
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
    """Raise unless these are versions of one document: git takes a fork, its source deleted, for
    that one renamed.

    (The strategy `ort` of git 2.39 does so with `no-renames`, too.)
    """
    ids = dict.fromkeys(str(side.get("id")) for side in sides)
    if len(ids) > 1:
        reason = (
            f"these are different documents ({', '.join(map(one_line, ids))}); git took one for "
            "the other, renamed; undo it with: git merge --abort, and merge again with: git merge "
            "-X find-renames=100%"
        )
        raise InvalidDocument.of([Problem(path, 0, 0, "", reason)])


def _words(merged: MergeResult, path: str, kind: str, directory: str) -> list[str]:
    id, title = (
        one_line(str(merged.document.get("id"))),
        one_line(str(merged.document.get("title") or "")),
    )
    name = (
        f'{KINDS[kind].noun} {id} "{title}"'
        if KINDS[kind].has_entries
        else f"{KINDS[kind].noun} {id}"
    )
    words = [f"{name}: {note}" for note in merged.notes]
    for conflict in merged.conflicts:
        field, values = (
            one_line(conflict.field),
            " and ".join(_short(value) for value, _ in conflict.values),
        )
        words.append(
            f"{name}: both sides changed {field}, to {values}; {_short(conflict.kept)} is used "
            "for now"
        )
    if merged.conflicts:
        command = store_command(f"capsule git resolve {id}", directory, path)
        how = f"resolve it with: {command}" if KINDS[kind].has_entries else "resolve it by hand"
        words.append(f"{path}: {how}, then: {file_command('git add', path)}")
    return words


def _short(value: Any) -> str:
    """A value in a line; a text in quotes."""
    if value is None:
        return "nothing"
    text = one_line(value if isinstance(value, str) else orjson.dumps(value).decode())
    text = text if len(text) <= _CUT else f"{text[: _CUT - 3]}..."
    return f'"{text}"' if isinstance(value, str) else text


def _merge_as_text(sides: MergeFiles, marker_size: int, directory: str) -> None:
    """Merge as git does without a driver."""
    from capsule.git_program import Git  # Needed seldom, and slow to load.

    labels = [part for label in ("ours", "base", "theirs") for part in ("-L", label)]
    files = (sides.ours, sides.base, sides.theirs)
    # The exit code is the number of conflicts; 255, and ours as it was, for what git takes for no
    # text.
    Git(directory).run(
        "merge-file", f"--marker-size={marker_size}", *labels, "--", *files, ok_codes=range(256)
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Refused(f"{path}: can't be read: {error.strerror}", path=path) from error
