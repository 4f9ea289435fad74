"""Capturing a project: reading its files, selecting them, and making a context from them.

What must stay true: the same project and the same selection give the same bytes. Each file is read
once; its digest, size, tokens and secrets are those of the bytes in the context. A detected secret
goes into a context only on request.
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
    too_large,
    within,
)
from capsule.errors import InvalidInput, Refused
from capsule.format.json import codec
from capsule.format.text.tokens import estimate

Progress = Callable[[int, int], None]

#: The most tokens that the heading of the document takes, with a project name of usual length.
_HEADING_TOKENS = 40
_TELL_EVERY = 50
#: The number of files that are searched together for signs of secrets: a call costs more than a
#: small file.
_AT_ONCE = 20
#: The size of the pieces in which the document is encoded and written, in bytes: large enough to
#: make calls cheap, small enough for the processor's cache.
_PIECE = 128 << 10


class CapturedFile(NamedTuple):
    """One file as it was read.

    Attributes:
        data: Its text, as UTF-8.
        tokens: The estimated number of tokens in the text.
        before, behind: The text before and after it in the document.
    """

    path: str
    data: bytes
    sha256: str
    tokens: int
    before: bytes
    behind: bytes

    @property
    def overhead(self) -> int:
        """The tokens of `before` and `behind`: mostly a path, at most one token for 3 bytes."""
        return (len(self.before) + len(self.behind)) // 3


@dataclass(slots=True)
class Capture:
    """A captured project, for `Store.context.set`.

    Attributes:
        root: The project's directory, absolute.
        selection: The selection.
        files: The files in the context, sorted by path.
        left_out: The files that were left out, sorted by path, with the reasons.
        beyond: The paths left out because of a limit on the whole context.
        findings: The secrets in `files`.
        secrets_allowed: Whether the context may contain secrets.
        captured_at: The time when reading began; encoding again gives the same bytes.
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
        """The context as a JSON object, in pieces. Raises Refused: it contains secrets, and they
        are not allowed.
        """
        self.ensure_no_secrets()
        digest = hashlib.sha256()
        yield b'{\n  "fullContext": "'
        for piece in self._pieces():
            digest.update(piece)
            yield orjson.dumps(piece.decode())[1:-1]
        about = codec.encode(self._metadata(digest.hexdigest()))[:-1]
        yield b'",\n  "metadata": ' + about.replace(b"\n", b"\n  ") + b"\n}"

    def document(self) -> bytes:
        """The document, as UTF-8. Raises Refused."""
        self.ensure_no_secrets()
        return b"".join(self._pieces())

    def ensure_no_secrets(self) -> None:
        """Raise `Refused` if it contains secrets, and they are not allowed."""
        if self.findings and not self.secrets_allowed:
            shown = [f"  {finding}" for finding in self.findings[:10]]
            more = [f"  ... and {len(self.findings) - 10} more"] if len(self.findings) > 10 else []
            many = (
                "a possible secret"
                if len(self.findings) == 1
                else f"{len(self.findings)} possible secrets"
            )
            lines = [f"{self.root} contains {many}; nothing was written:", *shown, *more]
            way_out = "leave out these files with --exclude, or accept them with --allow-secrets"
            raise Refused("\n".join([*lines, way_out]), path=self.root)

    def _pieces(self) -> Iterator[bytes]:
        """The document in pieces of whole texts."""
        pending = [markdown.heading(self.name, len(self.files), self.tokens)]
        size = len(pending[0])
        for file in self.files:
            pending += (file.before, file.data, file.behind)
            size += len(file.data)
            if size >= _PIECE:
                yield b"".join(pending)
                pending, size = [], 0
        yield b"".join(pending)

    def _metadata(self, digest: str) -> dict[str, Any]:
        selection = self.selection.as_json()
        return {
            "projectPath": self.root,
            "filesIncluded": len(self.files),
            "estimatedTokens": self.tokens,
            "contextHash": f"sha256:{digest}",
            "files": [
                {
                    "path": file.path,
                    "sha256": file.sha256,
                    "bytes": len(file.data),
                    "tokens": file.tokens,
                }
                for file in self.files
            ],
            "selection": selection | {"leftOut": self.beyond} if self.beyond else selection,
            "capturedAt": self.captured_at,
        }


def capture(
    root: str,
    selection: FileSelection = FileSelection(),  # noqa: B008
    progress: Progress | None = None,
) -> Capture:
    """Capture the project in the directory `root`.

    Args:
        progress: Called with the number of files read so far, and of all files.

    Raises:
        NotFound: There is no such directory.
        InvalidInput: A pattern is invalid, or the selection is empty.

    Cost: reading every file once. The selected files are in memory.
    """
    root = os.path.abspath(root)
    try:
        root.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"the name of the directory {root!a} is not valid UTF-8, as a capsule must be; rename "
            "it"
        ) from None
    made, inside = Capture(root, selection), ProjectFiles(root)
    listed = candidates(inside, selection)
    made.left_out, files = listed.left_out, []
    for path, size in listed.files:
        if not_secret(selection, path):
            files.append((path, size))
        else:
            made.left_out.append(
                ExcludedFile(path, f"may contain secrets; to include it: --include {path}")
            )
    files, too_much = within(files, selection.total_bytes)
    made.left_out += too_much
    made.beyond = [file.path for file in too_much]
    for done, (path, _) in enumerate(files, 1):
        judged = judge(inside, path, selection)
        if isinstance(judged, CapturedFile):
            made.files.append(judged)
        elif judged is not None:
            made.left_out.append(judged)
        if progress is not None and done % _TELL_EVERY == 0:
            progress(done, len(files))
    if selection.budget is not None:
        _fit(made, selection.budget)
    if not made.files:
        why = (
            f"; {len(made.left_out)} were left out: {_reasons(made.left_out)}"
            if made.left_out
            else ""
        )
        raise InvalidInput(f"{root} has no text file that git would track{why}")
    for at in range(0, len(made.files), _AT_ONCE):
        some = made.files[at : at + _AT_ONCE]
        if secrets.may_hold_tokens(b"\n".join([file.data for file in some]).decode()):
            for file in some:
                made.findings += secrets.tokens_in(file.path, file.data.decode())
    if progress is not None:
        progress(len(files), len(files))
    made.left_out.sort(key=lambda file: file.path)
    made.beyond.sort()
    return made


def judge(
    inside: ProjectFiles, path: str, selection: FileSelection
) -> CapturedFile | ExcludedFile | None:
    """Read a file, and take it or leave it out; None: there is no file, or a symlink leads
    to it.
    """
    data = inside.read(path, selection.file_bytes)
    if data is None:
        size = inside.size(path)
        if size is None:
            return None
        return (
            too_large(path, size, selection)
            if size > selection.file_bytes
            else ExcludedFile(path, "can't be read")
        )
    if why := _no_text(data):
        return ExcludedFile(path, why)
    before, behind = markdown.block_around(path, data)
    return CapturedFile(
        path, data, hashlib.sha256(data).hexdigest(), estimate(data), before, behind
    )


def _no_text(data: bytes) -> str:
    """The reason why a file is no text; empty: it is text."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "UTF-16; save it as UTF-8"
    try:
        data.decode()
    except UnicodeDecodeError:
        return "binary, or a text that is not valid UTF-8"
    return "binary" if b"\0" in data else ""


def not_secret(selection: FileSelection, path: str) -> bool:
    """Whether a file may be taken: its name is not a name of a file of secrets, or the selection names
    it.
    """
    return path in selection.named or not secrets.holds_secrets(path)


def _fit(made: Capture, budget: int) -> None:
    """Leave out files until the document fits into a budget of tokens.

    The most informative files stay: README files first, then by directory depth, then by size, the
    smallest first.
    """
    left = budget - _HEADING_TOKENS
    kept = set()

    def importance(file: CapturedFile) -> tuple[bool, int, int, str]:
        name = file.path.rpartition("/")[2].lower()
        return not name.startswith("readme"), file.path.count("/"), file.tokens, file.path

    for file in sorted(made.files, key=importance):
        if file.tokens + file.overhead <= left:
            left -= file.tokens + file.overhead
            kept.add(file.path)
        else:
            why = f"about {file.tokens:,} tokens, which do not fit into the budget of {budget:,}"
            made.left_out.append(ExcludedFile(file.path, why))
            made.beyond.append(file.path)
    made.files = [file for file in made.files if file.path in kept]


def _reasons(left_out: list[ExcludedFile]) -> str:
    reasons = sorted({file.why for file in left_out})
    return "; ".join(reasons[:3]) + ("; ..." if len(reasons) > 3 else "")
