"""The documents in the trash of an engine."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.engines.interface import CONVERSATIONS, Document
from capsule.errors import CapsuleError
from capsule.format import migrations
from capsule.format.json import codec

if TYPE_CHECKING:
    from capsule.engines.interface import Trash


def document_in(trash: Trash, token: str) -> Document:
    """A document in the trash, current. Raises NotFound, InvalidDocument."""
    return migrations.current(codec.decode(trash.read(token), token), token)[0]


def deleted_last(trash: Trash, ids: Collection[str]) -> dict[str, Document]:
    """Those of these conversations that are in the trash, each as it was deleted last. Cost:
    reading them.
    """
    documents: dict[str, Document] = {}
    for trashed in reversed(trash.entries(CONVERSATIONS)):
        if trashed.id in ids:
            with suppress(CapsuleError):
                documents[trashed.id] = document_in(trash, trashed.token)
    return documents
