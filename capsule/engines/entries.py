"""Pure functions on documents that every kind of engine shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from capsule.format.fields import names

if TYPE_CHECKING:
    from capsule.engines.interface import Document


#: What stands before the context in a canonical file. Unknown fields stand behind it, and go with
#: the rest.
_HEAD = frozenset(names("")) - {"context", "history"}


def head_in(document: Document) -> Document:
    """The fields of a capsule that stand before its context."""
    return {key: value for key, value in document.items() if key in _HEAD}


def found_in(history: list[Document], id: str) -> tuple[int, Document] | None:
    """The place of the entry with an id, and the entry; None: there is none."""
    return next(((at, entry) for at, entry in enumerate(history) if entry.get("id") == id), None)
