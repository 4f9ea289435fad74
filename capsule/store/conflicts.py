"""Conflicts that a merge left for a person to decide: listing and settling them.

What must stay true: settling is one write, under the same rules as every other write. A value that was not chosen
stays only in the file's history in git. A list of conflicts costs as much as a list of conversations.
`capsule.format.merge.merge` finds the conflicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule.errors import NotFound, Remedy
from capsule.format import validation
from capsule.format.merge.conflicts import Recorded, field_path, settled
from capsule.format.text.titles import check_title
from capsule.store.attributes import entitle

if TYPE_CHECKING:
    from capsule.format.head import Head
    from capsule.store.store import Store


@dataclass(frozen=True, slots=True)
class Disputed:
    """A field of a conversation with a conflict.

    Attributes:
        id: The conversation.
        title: Its title.
        field: The field, such as `title` or `metadata.description`.
        values: The candidates, each with the time when it was set, if known; a value of None: the field is removed.
        kept: The present value.
    """

    id: str
    title: str
    field: str
    values: tuple[tuple[Any, str | None], ...]
    kept: Any

    def as_json(self) -> dict[str, Any]:
        """The fields for `--json`."""
        values = [{"value": value} | ({"at": at} if at else {}) for value, at in self.values]
        return {"id": self.id, "title": self.title, "field": self.field, "kept": self.kept, "values": values}


class Conflicts:
    """The conflicts in the conversations of a store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def _disputed(self, id: str) -> list[Disputed]:
        document = self._store.document(id)
        fields = Recorded.of(document["metadata"].get("conflicts")).fields
        return [
            Disputed(
                id,
                document["title"],
                field,
                tuple((values[key]["value"], values[key].get("at")) for key in sorted(values)),
                _value(document, field),
            )
            for field, values in sorted(fields.items())
        ]

    def settle(self, id: str, field: str, value: Any) -> Head:
        """Settle a conflict: give a field its value.

        Args:
            id: The conversation.
            field: The field, as `list` names it.
            value: The value, one of the candidates or another one; None: the field is removed.

        Returns:
            The head. Without further conflicts it has no `metadata.conflicts`.

        Raises the errors of `append`; NotFound if the field has no conflict; InvalidInput if the field can't have this
        value, and nothing was changed.

        Cost: copying the file. For a field that is neither the title nor in `metadata`: writing the whole file.
        """
        path = field_path(field)
        if path == ("title",):
            value = check_title(value if isinstance(value, str) else "")

        def change(document: dict[str, Any]) -> None:
            if not settled(document["metadata"], field):
                raise NotFound(
                    f"conversation {id} has nothing to settle about {field[:100]!r}",
                    remedy=Remedy("conflicts"),
                    id=id,
                )
            if path == ("title",):
                entitle(document, value, "user")
            else:
                _put(document, path, value)
            validation.check_made({**document, "history": []}, "; nothing was changed")

        if path[0] in ("title", "metadata"):
            return self._store._change_head(id, change)

        return self._store._head_of(id, self._store._change(id, lambda conversation: conversation.rewrite(change)))

    def list(self, id: str | None = None) -> list[Disputed]:
        """List conflicts, by conversation and field.

        Args:
            id: The conversation; None: all conversations.

        Raises NotFound, InvalidDocument. Cost: as `heads`, and reading the conversations with conflicts.
        """
        if id is not None:
            return self._disputed(id)
        ids = sorted(head.id for head in self._store.heads() if head.conflicts)
        return [disputed for id in ids for disputed in self._disputed(id)]


def _value(document: Mapping[str, Any], field: str) -> Any:
    value: Any = document
    for name in field_path(field):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a field, in copies of the objects that contain it; None removes it."""
    inside = document
    for name in path[:-1]:
        there = inside.get(name)
        inside[name] = dict(there) if isinstance(there, dict) else {}
        inside = inside[name]
    if value is None:
        inside.pop(path[-1], None)
    else:
        inside[path[-1]] = value
