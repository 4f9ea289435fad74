"""Capture a project: read its files, select them, and make a context from them.

`capture` lists the files (`files.candidates`), reads each one once, leaves out files until limits
are met, and searches the rest for secrets. The result encodes itself as a context: a Markdown
document (`markdown`) and its metadata.

What must stay true: the same project and the same selection give the same bytes, apart from the
time `capturedAt`. Digest, size, tokens and secrets of a file are those of the bytes in the context.
A detected secret goes into a context only on request.

Tokens are those of language models, here estimated.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from capsule import timestamps
from capsule.context import markdown, secrets
from capsule.context.files import (
    ExcludedFile,
    FileSelection,
    ProjectFiles,
    candidates,
    drop_largest,
    too_large,
)
from capsule.errors import InvalidInput, Refused
from capsule.format.json import codec
from capsule.format.text.tokens import estimate

Progress = Callable[[int, int], None]

#: The largest number of tokens of the document's heading, with a project name of usual length.
_HEADING_TOKENS = 40
_PROGRESS_INTERVAL = 50
#: The number of files that are searched together for signs of secrets, as a call costs more than
#: searching a small file.
_SECRETS_BATCH = 20
#: The size of the pieces in which the document is encoded and written, in bytes: large enough to
#: make calls cheap, small enough for the processor's cache.
_PIECE_BYTES = 128 << 10
#: The number of secrets that an error lists.
_MAX_LISTED = 10
#: The number of reasons for leaving out files that an error lists.
_MAX_REASONS = 3


class CapturedFile(NamedTuple):
    """One file of the context.

    Attributes:
        path: Its path below the project.
        data: Its text, as UTF-8.
        sha256: The digest of the text.
        tokens: The estimated number of tokens in the text.
        heading, closing: The text before and after it in the document.
    """

    path: str
    data: bytes
    sha256: str
    tokens: int
    heading: bytes
    closing: bytes

    @property
    def overhead(self) -> int:
        """The tokens of `heading` and `closing`: mostly a path, at most one token for 3 bytes."""
        return (len(self.heading) + len(self.closing)) // 3


@dataclass(slots=True)
class Capture:
    """A captured project, for `Store.context.set`.

    Attributes:
        root: The project's directory, absolute.
        selection: The selection.
        files: The files in the context, sorted by path.
        left_out: The files that were left out, sorted by path, with the reasons.
        beyond: The paths of those files in `left_out` that exceed a limit on the whole context, on
            its bytes or tokens. They are recorded in the context.
        findings: The secrets in `files`.
        secrets_allowed: Whether the context may contain secrets. The caller sets it.
        captured_at: The time when reading began. It is in the context, so that encoding again gives
            the same bytes.
    """

    root: str
    selection: FileSelection
    files: list[CapturedFile] = field(default_factory=list)
    left_out: list[ExcludedFile] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)
    findings: list[secrets.SecretFinding] = field(default_factory=list)
    secrets_allowed: bool = False
    captured_at: str = field(default_factory=timestamps.now)

    @property
    def name(self) -> str:
        """The project's name."""
        return os.path.basename(self.root) or self.root

    @property
    def tokens(self) -> int:
        """The estimated number of tokens in the document."""
        return _HEADING_TOKENS + sum(file.tokens + file.overhead for file in self.files)

    def encoded(self) -> Iterator[bytes]:
        """Yield the context as a JSON object, in pieces.

        Raises Refused at the first piece: it contains secrets, and they are not allowed.
        """
        self.ensure_no_secrets()
        digest = hashlib.sha256()
        yield b'{\n  "fullContext": "'
        for piece in self._pieces():
            digest.update(piece)
            yield orjson.dumps(piece.decode())[1:-1]
        metadata = codec.encode(self._metadata(digest.hexdigest()))[:-1]
        yield b'",\n  "metadata": ' + metadata.replace(b"\n", b"\n  ") + b"\n}"

    def document(self) -> bytes:
        """Return the document, as UTF-8. Raises Refused, as `encoded`."""
        self.ensure_no_secrets()
        return b"".join(self._pieces())

    def ensure_no_secrets(self) -> None:
        """Raise `Refused` if it contains secrets, and they are not allowed."""
        if not self.findings or self.secrets_allowed:
            return
        count = len(self.findings)
        summary = "a possible secret" if count == 1 else f"{count} possible secrets"
        lines = [f"{self.root} contains {summary}; nothing was written:"]
        lines += [f"  {finding}" for finding in self.findings[:_MAX_LISTED]]
        if count > _MAX_LISTED:
            lines.append(f"  ... and {count - _MAX_LISTED} more")
        lines.append("leave out these files with --exclude, or accept them with --allow-secrets")
        raise Refused("\n".join(lines), path=self.root)

    def _pieces(self) -> Iterator[bytes]:
        """Yield the document in pieces of whole texts."""
        pending = [markdown.heading(self.name, len(self.files), self.tokens)]
        size = len(pending[0])
        for file in self.files:
            pending += (file.heading, file.data, file.closing)
            size += len(file.data)
            if size >= _PIECE_BYTES:
                yield b"".join(pending)
                pending = []
                size = 0
        yield b"".join(pending)

    def _metadata(self, digest: str) -> dict[str, Any]:
        """Return the metadata. `digest` is the digest of the document."""
        selection = self.selection.as_json()
        if self.beyond:
            selection["leftOut"] = self.beyond
        files = []
        for file in self.files:
            files.append(
                {
                    "path": file.path,
                    "sha256": file.sha256,
                    "bytes": len(file.data),
                    "tokens": file.tokens,
                }
            )
        return {
            "projectPath": self.root,
            "filesIncluded": len(self.files),
            "estimatedTokens": self.tokens,
            "contextHash": f"sha256:{digest}",
            "files": files,
            "selection": selection,
            "capturedAt": self.captured_at,
        }


def capture(
    root: str,
    selection: FileSelection = FileSelection(),  # noqa: B008
    progress: Progress | None = None,
) -> Capture:
    """Capture a project.

    Args:
        root: Its directory.
        selection: The choice of files.
        progress: Called with the number of files read so far, and of all files.

    Raises:
        NotFound: The directory does not exist.
        InvalidInput: A pattern is invalid, the selection is empty, or the name of the directory is
            not UTF-8.
        GitFailed, Refused: Git can't list the files, or is not installed.

    A secret is no error here: it is in `Capture.findings`, and `Capture.encoded` refuses it.

    Cost: reading every file once. The selected files are in memory.
    """
    directory = os.path.abspath(root)
    try:
        directory.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the name of the directory {directory!a} is not valid UTF-8, as a capsule must be; "
            "rename it"
        ) from None
    result = Capture(directory, selection)
    project_files = ProjectFiles(directory)
    paths = _listed_paths(result, project_files)
    for count, path in enumerate(paths, 1):
        file = read_candidate(project_files, path, selection)
        if isinstance(file, CapturedFile):
            result.files.append(file)
        elif file is not None:
            result.left_out.append(file)
        if progress is not None and count % _PROGRESS_INTERVAL == 0:
            progress(count, len(paths))
    if selection.budget is not None:
        _fit_budget(result, selection.budget)
    if not result.files:
        message = f"{directory} has no text file that git would track"
        if result.left_out:
            message += f"; {len(result.left_out)} were left out: {_reasons(result.left_out)}"
        raise InvalidInput(message)
    for start in range(0, len(result.files), _SECRETS_BATCH):
        batch = result.files[start : start + _SECRETS_BATCH]
        if secrets.may_hold_secrets(b"\n".join([file.data for file in batch]).decode()):
            for captured_file in batch:
                text = captured_file.data.decode()
                result.findings += secrets.secrets_in(captured_file.path, text)
    if progress is not None:
        progress(len(paths), len(paths))
    result.left_out.sort(key=lambda file: file.path)
    result.beyond.sort()
    return result


def _listed_paths(result: Capture, project_files: ProjectFiles) -> list[str]:
    """Return the paths of the files to read, and record in `result` those that are left out."""
    selection = result.selection
    listed = candidates(project_files, selection)
    result.left_out = listed.left_out
    files = []
    for path, size in listed.files:
        if is_allowed_name(selection, path):
            files.append((path, size))
        else:
            reason = f"may contain secrets; to include it: --include {path}"
            result.left_out.append(ExcludedFile(path, reason))
    files, dropped = drop_largest(files, selection.total_bytes)
    result.left_out += dropped
    result.beyond = [file.path for file in dropped]
    return [path for path, _ in files]


def read_candidate(
    project_files: ProjectFiles, path: str, selection: FileSelection
) -> CapturedFile | ExcludedFile | None:
    """Read a file, and decide whether it is left out.

    Returns: None if there is no file, or a symlink leads to it.
    """
    data = project_files.read(path, selection.file_bytes)
    if data is None:
        size = project_files.size(path)
        if size is None:
            return None
        if size > selection.file_bytes:
            return too_large(path, size, selection)
        return ExcludedFile(path, "can't be read")
    reason = _no_text(data)
    if reason:
        return ExcludedFile(path, reason)
    heading, closing = markdown.block_around(path, data)
    return CapturedFile(
        path=path,
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        tokens=estimate(data),
        heading=heading,
        closing=closing,
    )


def _no_text(data: bytes) -> str:
    """Return the reason why a file is no text. Empty: it is text."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16; save it as UTF-8"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "binary, or a text that is not valid UTF-8"
    return "binary" if b"\0" in data else ""


def is_allowed_name(selection: FileSelection, path: str) -> bool:
    """Return whether the name of a file allows to include it.

    Files with a name for secrets must be named in the selection.
    """
    return path in selection.named or not secrets.holds_secrets(path)


def _fit_budget(result: Capture, budget: int) -> None:
    """Leave out files until the document fits into a budget of tokens.

    The most informative files stay: README files first, then by directory depth, then by size, the
    smallest first.
    """
    remaining = budget - _HEADING_TOKENS
    included_paths = set()

    def rank(file: CapturedFile) -> tuple[bool, int, int, str]:
        name = file.path.rpartition("/")[2].lower()
        return not name.startswith("readme"), file.path.count("/"), file.tokens, file.path

    for file in sorted(result.files, key=rank):
        if file.tokens + file.overhead <= remaining:
            remaining -= file.tokens + file.overhead
            included_paths.add(file.path)
        else:
            reason = f"about {file.tokens:,} tokens, which do not fit into the budget of {budget:,}"
            result.left_out.append(ExcludedFile(file.path, reason))
            result.beyond.append(file.path)
    result.files = [file for file in result.files if file.path in included_paths]


def _reasons(excluded_files: list[ExcludedFile]) -> str:
    """Return the first reasons in words."""
    reasons = sorted({file.reason for file in excluded_files})
    listed = "; ".join(reasons[:_MAX_REASONS])
    return f"{listed}; ..." if len(reasons) > _MAX_REASONS else listed
