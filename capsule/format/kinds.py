"""The kinds of documents that a store shares with other clones.

What must stay true: what differs between kinds stands in this table, and nowhere is a kind asked
for by its name. Pure; no pydantic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from capsule.errors import InvalidDocument, Problem
from capsule.format import validation
from capsule.format.documents.agents import (
    check_agent_id,
    check_project_id,
    is_agent_id,
    is_project_id,
)
from capsule.format.json import codec
from capsule.format.json.canonical import in_order, order_record
from capsule.ids import check_id, is_id

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class DocumentKind:
    """A kind of documents.

    Attributes:
        name: The name of the folder in which they are.
        noun: What one of them is called.
        part: Its fields, by their name in `fields.PARTS`.
        is_id: Whether a text may be the id of one.
        check_id: Raises InvalidInput unless its argument may be the id of one.
        has_entries: Whether they have a history. Those without one are merged field by field, and
            replaced whole.
    """

    name: str
    noun: str
    part: str
    is_id: Callable[[str], bool]
    check_id: Callable[[str], str]
    has_entries: bool = False

    def ordered(self, document: Document) -> Document:
        """The same document in canonical order."""
        return in_order(document) if self.has_entries else order_record(document, self.part)

    def check(self, document: Document, path: str, data: bytes | None = None) -> None:
        """Raise InvalidDocument unless `document` is of this kind: a problem for each wrong field,
        as in the file.

        The problems name the file `path` and lines of `data`; None: of the document as the store
        would write it.
        """
        validation.check(
            document,
            codec.encode(document) if data is None else data,
            path,
            self.part,
            self.check_id,
        )

    def read(self, data: bytes, path: str) -> Document:
        """The document in a file, in canonical order. Raises InvalidDocument."""
        document = codec.decode(data, path)
        self.check(document, path, data)
        return self.ordered(document)

    def problems_of(self, data: bytes, path: str) -> list[Problem]:
        """Everything wrong or odd about a file, in the order of the file; none when all is well."""
        try:
            document = codec.decode(data, path)
            self.check(document, path, data)
        except InvalidDocument as error:
            return list(error.problems)
        return validation.notes(document, path, data) if self.has_entries else []


CONVERSATION = DocumentKind("conversations", "conversation", "", is_id, check_id, has_entries=True)
AGENT = DocumentKind("agents", "agent", "agent", is_agent_id, check_agent_id)
PROJECT = DocumentKind("projects", "project", "project", is_project_id, check_project_id)
#: The kinds by their names.
KINDS = {kind.name: kind for kind in (CONVERSATION, AGENT, PROJECT)}
