"""What a commit is to say of the conversations it changes.

What must stay true: a commit of thousands says what one of two says, in as many lines as a person reads; and a text
that stands in a conversation makes no line of its own, so that it can forge no trailer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from capsule.errors import CapsuleError, InvalidDocument
from capsule.format import codec
from capsule.format.comparing import compare
from capsule.git.blobs import Blobs
from capsule.git.objects import Raw
from capsule.git.repository import Repository
from capsule.settling import decoded

__all__ = ["Described", "described", "message_of"]

#: As many documents are described one by one; the others are counted.
MOST = 100
_SUBJECT = 72
_LINE = 200
_TITLE = 40


@dataclass(frozen=True, slots=True)
class Described:
    """What became of one document.

    Attributes:
        kind: `conversations` or `agents`.
        id: Its id.
        title: A conversation's title; an agent's name.
        words: What changed, in a few words each.
    """

    kind: str
    id: str
    title: str
    words: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {"kind": self.kind, "id": self.id, "title": self.title, "words": list(self.words)}

    @property
    def line(self) -> str:
        """A line for the body of a commit's message."""
        what = "conversation" if self.kind == "conversations" else "agent"
        return f"{what} {self.id} {_quoted(self.title)}: {_clipped(', '.join(self.words), _LINE)}"

    @property
    def phrase(self) -> str:
        """A phrase for its subject: `3 messages in 'Plan'`, `'Ideas' created`."""
        name = _quoted(self.title or self.id)
        first = self.words[0] if self.words else "changed"
        if len(self.words) == 1 and first.endswith(" added"):
            return f"{first.removesuffix(' added')} in {name}"
        if first.startswith(("created", "deleted", "changed")):
            return f"{name} {first}"
        return f"{name}: {', '.join(self.words)}"


def described(repository: Repository, found: Sequence[Raw], told: Callable[[int, int], None]) -> list[Described]:
    """What became of documents, of the first hundred of them.

    Args:
        repository: The repository.
        found: The differences, of which each is a document of the store.
        told: Told how many are done, and of how many.

    Cost: reading and comparing both versions of each.
    """
    shown = found[:MOST]
    done = []
    with Blobs(repository.git) as blobs:
        for number, raw in enumerate(shown):
            told(number, len(shown))
            done.append(_described(repository, blobs, raw))
    return done


def _described(repository: Repository, blobs: Blobs, raw: Raw) -> Described:
    at = repository.document_at(raw.path)
    assert at is not None
    kind, id = at
    versions = [blobs.read(name) if mode else None for mode, name in ((raw.old_mode, raw.old), (raw.new_mode, raw.new))]
    documents = [None if data is None else _document(kind, id, data, raw.path) for data in versions]
    named = documents[0] if documents[0] is not None else documents[1]
    title = str((named or {}).get("title") or (named or {}).get("name") or "")
    readable = all((data is None) == (told is None) for data, told in zip(versions, documents, strict=True))
    if kind == "conversations" and readable:
        try:
            words = compare(*documents).words()
        except InvalidDocument:
            words = []  # Of a newer major version.
    else:
        words = ["created" if versions[0] is None else "deleted" if versions[1] is None else "changed"]
    return Described(kind, id, title, tuple(words or ["changed"]))


def _document(kind: str, id: str, data: bytes, path: str) -> dict[str, Any] | None:
    """The document in `data`; None when it is none, as what got into git past us may be."""
    try:
        return decoded(data, path, id) if kind == "conversations" else codec.decode(data, path)
    except CapsuleError:
        return None


def message_of(documents: Sequence[Described], more: int, files: Sequence[str], subject: str | None = None) -> str:
    """The message of a commit.

    Args:
        documents: What is described one by one.
        more: How many documents there are besides.
        files: The store's other files.
        subject: What the person says it is; None: made of what changed.
    """
    body = [document.line for document in documents]
    if more:
        body.append(f"and {more} more")
    body += [f"{file} changed" for file in files]
    subject = subject or _subject([*(document.phrase for document in documents), *_of_files(files)], more)
    return "\n".join([subject, "", *body]) + "\n"


def _of_files(files: Sequence[str]) -> Iterator[str]:
    for file in files:
        yield f"{file} changed"


def _subject(phrases: Sequence[str], more: int) -> str:
    """As many phrases as a line takes, and how many there are besides; the first one always."""
    taken = [_clipped(phrase, _SUBJECT) for phrase in phrases[:1]]
    for phrase in phrases[1:]:
        if len(", ".join([*taken, phrase])) > _SUBJECT:
            break
        taken.append(phrase)
    left = len(phrases) - len(taken) + more
    return ", ".join(taken) + (f" and {left} more" if left else "")


def _quoted(text: str) -> str:
    """A text in quotes and in one line, as Python writes it."""
    return repr(_clipped(text, _TITLE))


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1].rstrip() + "\u2026"
