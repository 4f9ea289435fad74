"""Capture a project as the context of a conversation.

`capture` lists the files (`files.candidates`), reads each one once, leaves out files until limits
are met, and searches the rest for secrets. The result encodes itself as a context: metadata, and a
Markdown document, which `parse_sections` splits into files again:

    # Context: name

    3 files, about 1200 tokens.

    ## src/app.py

    ```python
    print("hello")
    ```

What must stay true:
- The same project and the same selection give the same bytes, apart from the time `capturedAt`.
  Digest, size, tokens (an estimate of those of language models) and secrets of a file are those of
  the bytes in the context. A detected secret goes into a context only on request.
- No content can close its fence, so that the document can be split exactly.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from capsule import timestamps
from capsule.context import secrets
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

# -- The document ----------------------------------------------------------------------------------

_BACKTICKS = re.compile(rb"`{3,}")
_TITLE = re.compile(r"# Context: [^\n]*\n\n[0-9]+ files?, about [0-9]+ tokens\.\n")
_SECTION = re.compile(r"\n## ([^\n]+)\n\n(`{3,})([^`\n]*)\n")
_ESCAPE = re.compile(r"\\u\{([0-9a-f]{1,6})\}")
_NO_FINAL_NEWLINE = " no-newline-at-end"
_FENCE = b"```"

#: The languages with the name of their extension, and other extensions with their language.
_NAMED_LIKE_EXTENSION = "bash c cpp css go html java json jsx php scala sql swift toml tsx xml yaml"
_NAMED_OTHERWISE = (
    "cc=cpp cs=csharp h=c hpp=cpp js=javascript kt=kotlin md=markdown mjs=javascript "
    "py=python pyi=python rb=ruby"
)
_LANGUAGES = {name: name for name in _NAMED_LIKE_EXTENSION.split()} | dict(
    pair.split("=") for pair in _NAMED_OTHERWISE.split()
)
_LANGUAGES |= {"rs": "rust", "sh": "bash", "ts": "typescript", "yml": "yaml"}


class ContextSection(NamedTuple):
    """One file in the document: its path below the project, and its text as UTF-8."""

    path: str
    data: bytes


def heading(name: str, files: int, tokens: int) -> bytes:
    """Return the beginning of the document.

    Args:
        name: The project's name.
        files: The number of files.
        tokens: The estimated number of tokens.
    """
    count = "1 file" if files == 1 else f"{files} files"
    return f"# Context: {_one_line(name)}\n\n{count}, about {tokens} tokens.\n".encode()


def block_around(path: str, data: bytes) -> tuple[bytes, bytes]:
    """Return the text before a file in the document, and the text after it.

    Args:
        path: The path of the file.
        data: Its text, as UTF-8.
    """
    fence = _FENCE
    if b"`" in data and _FENCE in data:  # The first search is the faster one.
        # Longer than any run of backticks in the text, also within a line: viewers differ on where
        # a line begins.
        fence = b"`" * (max(map(len, _BACKTICKS.findall(data))) + 1)
    name = path.rpartition("/")[2]
    info = ""
    if "." in name:
        info = _LANGUAGES.get(name.rpartition(".")[2].lower(), "")
    closing = fence + b"\n"
    if data and not data.endswith(b"\n"):
        info += _NO_FINAL_NEWLINE
        closing = b"\n" + closing
    section_heading = b"\n## %s\n\n%s%s\n" % (_one_line(path).encode(), fence, info.encode())
    return section_heading, closing


def parse_sections(document: str) -> list[ContextSection] | None:
    """Split the document of a context into its files. None: the text is no such document."""
    title = _TITLE.match(document)
    if title is None:
        return None
    sections = []
    position = title.end()
    while position < len(document):
        begin = _SECTION.match(document, position)
        if begin is None:
            return None
        path, fence, info = begin.groups()
        start = begin.end()
        # One character earlier: an empty file's closing fence directly follows the opening one.
        end = document.find(f"\n{fence}\n", start - 1)
        if end < 0:
            return None
        text = document[start : end + 1]
        if info.endswith(_NO_FINAL_NEWLINE):
            text = text[:-1]
        sections.append(ContextSection(_unescape(path), text.encode()))
        position = end + len(fence) + 2
    return sections


def _one_line(text: str) -> str:
    r"""Return a name in one line. Control characters and backslashes are escaped as `\u{1b}`."""
    if text.isprintable() and "\\" not in text:
        return text
    escaped = []
    for character in text:
        if character.isprintable() and character != "\\":
            escaped.append(character)
        else:
            escaped.append(f"\\u{{{ord(character):x}}}")
    return "".join(escaped)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: chr(min(int(match[1], 16), 0x10FFFF)), text)


# -- Capturing -------------------------------------------------------------------------------------

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
        pending = [heading(self.name, len(self.files), self.tokens)]
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
    heading, closing = block_around(path, data)
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
