"""Compare a project with its captured context.

What must stay true: files are compared by the digest of their content. A file counts as new only if
the same selection would include it now. A context that another program or a person wrote gives a
result, and no crash.
"""

from __future__ import annotations

import difflib
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from capsule.context.capture import (
    CapturedFile,
    Progress,
    is_allowed_name,
    parse_sections,
    read_candidate,
)
from capsule.context.files import FileSelection, ProjectFiles, candidates
from capsule.errors import CapsuleError

_PROGRESS_INTERVAL = 50
#: The number of characters that are encoded at once.
_PIECE = 1 << 20
#: The largest number of lines that are compared: the time can grow with its square.
_MAX_LINES = 20_000
_DEV_NULL = "/dev/null"


@dataclass(frozen=True, slots=True)
class Drift:
    """The differences between a project and its captured context.

    Attributes:
        project: The project's directory. Empty: unknown.
        changed, gone, new: The paths of files, sorted.
        edited: Whether the context's text was edited after it was captured.
        problem: The reason why they can't be compared, in words. Empty: they were compared.
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
        """Return the drift as `--json` prints it."""
        fields: dict[str, Any] = {
            "projectPath": self.project,
            "drifted": self.has_drifted,
            "edited": self.edited,
        }
        fields |= {"changed": list(self.changed), "gone": list(self.gone), "new": list(self.new)}
        if self.problem:
            fields["problem"] = self.problem
        return fields


def is_empty(context: Mapping[str, Any]) -> bool:
    """Return whether a context is empty."""
    return not context.get("fullContext") and not _metadata(context).get("files")


def check(
    context: Mapping[str, Any], project: str | None = None, progress: Progress | None = None
) -> Drift:
    """Compare a context with its project.

    Args:
        context: The context in a capsule.
        project: The project's directory. None: the one that was captured.
        progress: Called with the number of files read so far, and of all files.

    Cost: reading every file of the context, and the new files.
    """
    metadata = _metadata(context)
    root = os.path.abspath(project) if project else str(metadata.get("projectPath") or "")
    edited = _is_edited(context)
    files, invalid_count = _manifest(metadata)
    if not files:
        problem = (
            "the context has no list of files (another program may have made it); capture it again"
        )
        return Drift(root, edited=edited, problem=problem)
    if not os.path.isdir(root):
        problem = f"{root} does not exist here" if root else "the context does not name its project"
        problem += "; give the project's directory with --project DIR"
        return Drift(root, edited=edited, problem=problem)
    selection = FileSelection.of(metadata.get("selection"))
    project_files = ProjectFiles(root)
    try:
        listed = candidates(project_files, selection)
    except CapsuleError as error:
        return Drift(root, edited=edited, problem=error.message)
    new_paths = _new_paths(listed.files, files, selection, metadata)
    total = len(files) + len(new_paths)
    changed = []
    removed = []
    for count, (path, digest) in enumerate(files.items()):
        if progress is not None and count % _PROGRESS_INTERVAL == 0:
            progress(count, total)
        data = _read_present(project_files, path)
        if data is None:
            removed.append(path)
        elif hashlib.sha256(data).hexdigest() != digest:
            changed.append(path)
    new = []
    for path in new_paths:
        if isinstance(read_candidate(project_files, path, selection), CapturedFile):
            new.append(path)
    problem = ""
    if invalid_count:
        problem = f"{invalid_count} entries of its list of files can't be read; capture it again"
    return Drift(
        project=root,
        changed=tuple(sorted(changed)),
        gone=tuple(sorted(removed)),
        new=tuple(sorted(new)),
        edited=edited,
        problem=problem,
    )


def diff(context: Mapping[str, Any], drift: Drift) -> Iterator[str]:
    """Yield the lines of a unified diff from the context to the project, without newlines."""
    sections = parse_sections(str(context.get("fullContext") or ""))
    captured = {section.path: section.data for section in sections or ()}
    project_files = ProjectFiles(drift.project)
    for path in sorted({*drift.changed, *drift.gone, *drift.new}):
        old = None if path in drift.new else captured.get(path)
        new = None if path in drift.gone else _read_present(project_files, path)
        if old is None and path not in drift.new:
            state = "is gone" if path in drift.gone else "differs"
            yield f"{path}: {state}; the context's text has no separate part for it"
            continue
        yield from _diff_of(path, old, new)


def _diff_of(path: str, old: bytes | None, new: bytes | None) -> Iterator[str]:
    """Yield the lines of the diff of one file. None: it does not exist on this side."""
    old_name = _DEV_NULL if old is None else f"a/{path}"
    new_name = _DEV_NULL if new is None else f"b/{path}"
    old_lines = _lines(old)
    new_lines = _lines(new)
    if len(old_lines) + len(new_lines) > _MAX_LINES:
        yield f"--- {old_name}"
        yield f"+++ {new_name}"
        yield f"@@ {len(old_lines):,} lines and {len(new_lines):,}: too many to compare @@"
        return
    diff_lines = difflib.unified_diff(old_lines, new_lines, old_name, new_name, lineterm="")
    # The two names come first. A line of the files may begin like them.
    yield from islice(diff_lines, 2)
    for line in diff_lines:
        yield line.removesuffix("\n")
        if not line.endswith("\n") and not line.startswith("@@"):
            yield "\\ No newline at end of file"


def _lines(data: bytes | None) -> list[str]:
    """Return the lines of a text with their newlines, as a diff counts them."""
    *complete, last = (data or b"").decode("utf-8", "replace").split("\n")
    lines = [f"{line}\n" for line in complete]
    if last:
        lines.append(last)
    return lines


def _metadata(context: Mapping[str, Any]) -> Mapping[str, Any]:
    metadata = context.get("metadata")
    return metadata if isinstance(metadata, dict) else {}


def _manifest(metadata: Mapping[str, Any]) -> tuple[dict[str, str], int]:
    """Return the digests of the files by path, and the number of invalid entries.

    An entry is invalid without a digest, or with a path outside the project.
    """
    files = {}
    invalid_count = 0
    # The check of the format has made sure of the types.
    for entry in metadata.get("files") or ():
        path = entry.get("path")
        digest = entry.get("sha256")
        if not path or not digest or _is_outside(path):
            invalid_count += 1
        else:
            files[path] = digest.removeprefix("sha256:").lower()
    return files, invalid_count


def _is_outside(path: str) -> bool:
    return "\0" in path or path.startswith("/") or ".." in path.split("/")


def _is_edited(context: Mapping[str, Any]) -> bool:
    """Return whether the text differs from its digest.

    Of a truncated digest, as in examples, only the beginning is compared.
    """
    algorithm, _, digest = str(_metadata(context).get("contextHash") or "").partition(":")
    digest = digest.rstrip(".").lower()
    if algorithm != "sha256" or not digest:
        return False
    text = str(context.get("fullContext") or "")
    actual = hashlib.sha256()
    for start in range(0, len(text), _PIECE):
        actual.update(text[start : start + _PIECE].encode())
    return not actual.hexdigest().startswith(digest)


def _new_paths(
    listed: list[tuple[str, int]],
    files: Mapping[str, str],
    selection: FileSelection,
    metadata: Mapping[str, Any],
) -> list[str]:
    """Return the listed paths that are not in the context and that the selection includes."""
    recorded = metadata.get("selection")
    left_out = recorded.get("leftOut") if isinstance(recorded, dict) else None
    # `leftOut` are the files that the limit of size or the budget left out.
    considered = set(files)
    if isinstance(left_out, list):
        considered.update(path for path in left_out if isinstance(path, str))
    new_paths = []
    for path, _ in listed:
        if path not in considered and is_allowed_name(selection, path):
            new_paths.append(path)
    return new_paths


def _read_present(project_files: ProjectFiles, path: str) -> bytes | None:
    """Return the present content of a file. None: there is no file, or a symlink leads to it."""
    size = project_files.size(path)
    # A file that grows past this meanwhile counts as gone.
    return None if size is None else project_files.read(path, 2 * size + 1)
