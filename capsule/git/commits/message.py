"""What a commit says of the conversations it changes.

What must stay true: the message of a commit of thousands has no more lines than a person reads; and a text of a
conversation makes no line of its own, so that it can forge no trailer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from capsule.errors import CapsuleError, InvalidDocument
from capsule.format.json import codec
from capsule.format.kinds import KINDS
from capsule.format.merge.comparison import compare
from capsule.format.text.shown import clipped
from capsule.format.validation import decoded
from capsule.git.objects import Blobs, Raw
from capsule.git.repository import Repository

#: As many documents are described one by one; the others are counted.
_MOST = 100
_SUBJECT = 72
_LINE = 200
_TITLE = 40


@dataclass(frozen=True, slots=True)
class DocumentChange:
    """What became of one document.

    Attributes:
        kind: Its kind, by the name in `KINDS`.
        id: Its id.
        title: A conversation's title; another's name.
        words: What changed, in a few words each.
    """

    kind: str
    id: str
    title: str
    words: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return asdict(self)

    @property
    def line(self) -> str:
        """A line for the body of a commit's message."""
        return f"{KINDS[self.kind].noun} {self.id} {_quoted(self.title)}: {clipped(', '.join(self.words), _LINE)}"

    @property
    def phrase(self) -> str:
        """A phrase for its subject: `3 messages in 'Plan'`, `'Ideas' created`."""
        name, first = _quoted(self.title or self.id), self.words[0]
        if len(self.words) == 1 and first.endswith(" added"):
            return f"{first.removesuffix(' added')} in {name}"
        if first.startswith(("created", "deleted", "changed")):
            return f"{name} {first}"
        return f"{name}: {', '.join(self.words)}"


def document_changes(
    repository: Repository, differences: Sequence[Raw], progress: Callable[[int, int], None]
) -> list[DocumentChange]:
    """What became of documents of the store, of the first hundred of them.

    Cost: reading and comparing both versions of each.
    """
    changes = []
    with Blobs(repository.git) as blobs:
        for number, raw in enumerate(differences[:_MOST]):
            progress(number, min(len(differences), _MOST))
            changes.append(_change(repository, blobs, raw))
    return changes


def _change(repository: Repository, blobs: Blobs, raw: Raw) -> DocumentChange:
    place = repository.document_at(raw.path)
    assert place is not None
    kind, id = place
    sides = ((raw.old_mode, raw.old), (raw.new_mode, raw.new))
    before, after = (_document(kind, id, blobs.read(name) or b"", raw.path) if mode else None for mode, name in sides)
    named = before or after or {}
    words: list[str] = []
    if KINDS[kind].has_entries and {} not in (before, after):
        with suppress(InvalidDocument):  # One may be of a newer major version.
            words = compare(before, after).words()
    elif before is None or after is None:
        words = ["created" if before is None else "deleted"]
    title = str(named.get("title") or named.get("name") or "")
    return DocumentChange(kind, id, title, tuple(words or ["changed"]))


def _document(kind: str, id: str, data: bytes, path: str) -> dict[str, Any]:
    """The document in `data`; empty when it does not parse, as it may have got into git without a check."""
    try:
        return decoded(data, path, id) if KINDS[kind].has_entries else codec.decode(data, path)
    except CapsuleError:
        return {}


def commit_message(
    documents: Sequence[DocumentChange], more: int, files: Sequence[str], subject: str | None = None
) -> str:
    """The message of a commit.

    Args:
        documents: What is described one by one.
        more: How many documents there are besides.
        files: The store's other files.
        subject: What the person says it is; None: made of what changed.
    """
    changed = [f"{file} changed" for file in files]
    body = [*(document.line for document in documents), *([f"and {more} more"] if more else []), *changed]
    subject = subject or _subject([*(document.phrase for document in documents), *changed], more)
    return "\n".join([subject, "", *body]) + "\n"


def _subject(phrases: Sequence[str], more: int) -> str:
    """As many phrases as a line takes, and how many there are besides; the first one always."""
    subject, left = clipped(phrases[0], _SUBJECT), list(phrases[1:])
    while left and len(f"{subject}, {left[0]}") <= _SUBJECT:
        subject = f"{subject}, {left.pop(0)}"
    return subject + (f" and {len(left) + more} more" if left or more else "")


def _quoted(text: str) -> str:
    """A text in quotes and in one line, as Python writes it."""
    return repr(clipped(text, _TITLE))
