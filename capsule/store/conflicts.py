"""What two merged versions had changed differently, and a person has yet to settle: listed, and settled.

What must stay true: settling is one write, admitted as every other is; what it writes is as valid as what is written
anywhere else; a value that was not chosen stays in the file's history in git and nowhere else; and a list of conflicts
costs what a list of conversations costs. How conflicts come about is `capsule.format.merge.merge`'s.
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
    """A field of a conversation that awaits a decision.

    Attributes:
        id: The conversation.
        title: Its title.
        field: The field: `title`, `metadata.description`.
        values: What it could be, each with when it was set, where that is known; None: not there.
        kept: What stands for now.
    """

    id: str
    title: str
    field: str
    values: tuple[tuple[Any, str | None], ...]
    kept: Any

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        values = [{"value": value} | ({"at": at} if at else {}) for value, at in self.values]
        return {"id": self.id, "title": self.title, "field": self.field, "kept": self.kept, "values": values}


class Conflicts:
    """What merges left to be decided in the conversations of a store."""

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
                _standing(document, field),
            )
            for field, values in sorted(fields.items())
        ]

    def settle(self, id: str, field: str, value: Any) -> Head:
        """Decide what a field is that two merged versions had changed differently.

        Args:
            id: The conversation.
            field: The field, as `list` names it.
            value: What it is to be, one of those it could be or another; None: it is taken out.

        Returns:
            The head; when nothing is left to be settled, without `metadata.conflicts`.

        Raises as `append`; also
            NotFound: Nothing is to be settled about this field.
            InvalidInput: The field can't have this value; nothing was changed.

        Cost: as `rename`; of a field that is neither the title nor in `metadata`, writing the whole file.
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
        """What awaits a decision, by conversation and field.

        Args:
            id: The conversation; None: all of them.

        Raises as `load`. Cost: as `heads`, and reading the conversations that have some.
        """
        if id is not None:
            return self._disputed(id)
        ids = sorted(head.id for head in self._store.heads() if head.conflicts)
        return [one for id in ids for one in self._disputed(id)]


def _standing(document: Mapping[str, Any], field: str) -> Any:
    value: Any = document
    for name in field_path(field):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _put(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set a field, in copies of the objects that lead there; None takes it out."""
    inside = document
    for name in path[:-1]:
        there = inside.get(name)
        inside[name] = dict(there) if isinstance(there, dict) else {}
        inside = inside[name]
    if value is None:
        inside.pop(path[-1], None)
    else:
        inside[path[-1]] = value
