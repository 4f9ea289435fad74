"""Comparing a project with its captured context.

What must stay true: files are compared by the digest of their content. A file counts as new only if
the same selection would take it now. A context written by another program or by hand gets an
answer, not a crash.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from capsule.context.capture import CapturedFile, Progress, judge, not_secret
from capsule.context.files import FileSelection, ProjectFiles, candidates
from capsule.context.markdown import take_apart
from capsule.errors import CapsuleError

_TELL_EVERY = 50
#: The number of characters that are encoded at once.
_PIECE = 1 << 20
#: The most lines that are compared: the time may grow with the square of their number.
_MOST_LINES = 20_000
_DEV_NULL = "/dev/null"


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences between a project and its captured context.

    Attributes:
        project: The project's directory; empty: it isn't known.
        changed, gone, new: The paths of files, sorted.
        edited: Whether the context's text was edited after it was captured.
        problem: The reason why they can't be compared, in words; empty: there is none.
    """

    project: str
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    edited: bool = False
    problem: str = ""

    @property
    def has_drifted(self) -> bool:
        """Whether a file is changed, gone or new."""
        return bool(self.changed or self.gone or self.new)

    @property
    def is_current(self) -> bool:
        """Whether they could be compared, and nothing differs."""
        return not (self.has_drifted or self.edited or self.problem)

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        fields: dict[str, Any] = {
            "projectPath": self.project,
            "drifted": self.has_drifted,
            "edited": self.edited,
        }
        fields |= {"changed": list(self.changed), "gone": list(self.gone), "new": list(self.new)}
        return fields | {"problem": self.problem} if self.problem else fields


def is_empty(context: Mapping[str, Any]) -> bool:
    """Whether nothing was captured."""
    return not context.get("fullContext") and not _metadata(context).get("files")


def check(
    context: Mapping[str, Any], project: str | None = None, progress: Progress | None = None
) -> Drift:
    """Compare a context with its project.

    Args:
        context: The context in a capsule.
        project: The project's directory; None: the one that was captured.
        progress: Called with the number of files read so far, and of all files.

    Cost: reading every file of the context, and the new files.
    """
    metadata = _metadata(context)
    root = os.path.abspath(project) if project else str(metadata.get("projectPath") or "")
    edited = _is_edited(context)
    files, odd = _manifest(metadata)
    if not files:
        problem = (
            "the context has no list of files (another program may have made it); capture it again"
        )
        return Drift(root, edited=edited, problem=problem)
    if not os.path.isdir(root):
        problem = (
            "the context does not name its project" if not root else f"{root} does not exist here"
        )
        return Drift(
            root,
            edited=edited,
            problem=f"{problem}; give the project's directory with --project DIR",
        )
    selection, inside = FileSelection.of(metadata.get("selection")), ProjectFiles(root)
    try:
        listed = candidates(inside, selection)
    except CapsuleError as error:
        return Drift(root, edited=edited, problem=error.message)
    fresh = _fresh(listed.files, files, selection, metadata)
    changed, gone = [], []
    total = len(files) + len(fresh)
    for number, (path, digest) in enumerate(files.items()):
        if progress is not None and number % _TELL_EVERY == 0:
            progress(number, total)
        data = _current(inside, path)
        if data is None:
            gone.append(path)
        elif hashlib.sha256(data).hexdigest() != digest:
            changed.append(path)
    new = [path for path in fresh if isinstance(judge(inside, path, selection), CapturedFile)]
    problem = f"{odd} entries of its list of files can't be read; capture it again" if odd else ""
    return Drift(
        root, tuple(sorted(changed)), tuple(sorted(gone)), tuple(sorted(new)), edited, problem
    )


def diff(context: Mapping[str, Any], drift: Drift) -> Iterator[str]:
    """The differences as lines of a unified diff, without newlines, from the context to the
    project.
    """
    parts = take_apart(str(context.get("fullContext") or ""))
    before = {part.path: part.data for part in parts or ()}
    inside = ProjectFiles(drift.project)
    for path in sorted({*drift.changed, *drift.gone, *drift.new}):
        old = None if path in drift.new else before.get(path)
        new = None if path in drift.gone else _current(inside, path)
        if old is None and path not in drift.new:
            state = "is gone" if path in drift.gone else "differs"
            yield f"{path}: {state}; the context's text has no separate part for it"
            continue
        yield from _diff_of(path, old, new)


def _diff_of(path: str, old: bytes | None, new: bytes | None) -> Iterator[str]:
    sides = (_DEV_NULL if old is None else f"a/{path}"), (_DEV_NULL if new is None else f"b/{path}")
    before, after = _lines(old), _lines(new)
    if len(before) + len(after) > _MOST_LINES:
        counts = f"@@ {len(before):,} lines and {len(after):,}: too many to compare @@"
        yield from (f"--- {sides[0]}", f"+++ {sides[1]}", counts)
        return
    for line in difflib.unified_diff(before, after, *sides, lineterm=""):
        text, newline = (line[:-1], True) if line.endswith("\n") else (line, False)
        yield text
        if not newline and not line.startswith(("---", "+++", "@@")):
            yield "\\ No newline at end of file"


def _lines(data: bytes | None) -> list[str]:
    """The lines of a text with their newlines, as a diff counts them."""
    lines = (data or b"").decode("utf-8", "replace").split("\n")
    return [*(f"{line}\n" for line in lines[:-1]), *filter(None, lines[-1:])]


def _metadata(context: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = context.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _manifest(metadata: Mapping[str, Any]) -> tuple[dict[str, str], int]:
    """The files with their digests, and the number of unusable entries: without a digest, or
    outside the project.
    """
    files, odd = {}, 0
    for entry in metadata.get("files") or ():
        path, digest = entry.get("path"), entry.get("sha256")
        if (
            not path
            or not digest
            or "\0" in path
            or path.startswith("/")
            or ".." in path.split("/")
        ):
            odd += 1
        else:
            files[path] = digest.removeprefix("sha256:").lower()
    return files, odd


def _is_edited(context: Mapping[str, Any]) -> bool:
    """Whether the text differs from its digest. A truncated digest, as in examples, is compared as
    far as it goes.
    """
    algorithm, _, digest = str(_metadata(context).get("contextHash") or "").partition(":")
    digest = digest.rstrip(".").lower()
    if algorithm != "sha256" or not digest:
        return False
    text, actual = str(context.get("fullContext") or ""), hashlib.sha256()
    for at in range(0, len(text), _PIECE):
        actual.update(text[at : at + _PIECE].encode())
    return not actual.hexdigest().startswith(digest)


def _fresh(
    listed: list[tuple[str, int]],
    files: Mapping[str, str],
    selection: FileSelection,
    metadata: Mapping[str, Any],
) -> list[str]:
    """The new files that the selection takes."""
    kept = metadata.get("selection")
    left_out = kept.get("leftOut") if isinstance(kept, dict) else None
    known = (
        {*files, *(path for path in left_out if isinstance(path, str))}
        if isinstance(left_out, list)
        else files
    )
    return [path for path, _ in listed if path not in known and not_secret(selection, path)]


def _current(inside: ProjectFiles, path: str) -> bytes | None:
    """The present content of a file; None: there is no file, or a symlink leads to it."""
    size = inside.size(path)
    return None if size is None else inside.read(path, 2 * size + 1)
