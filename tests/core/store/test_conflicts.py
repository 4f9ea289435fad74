"""Conflicts that a merge left are listed and settled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capsule import Store, timestamps
from capsule.errors import InvalidInput, Locked, NotFound
from capsule.format.json import codec
from capsule.format.merge.merge import merge
from tests.core.store.files import file_of, put_over


def merge_into(
    root: Path, base: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    """Merge as git's merge driver does, and write the result to the working tree."""
    put_over(file_of(root, base["id"]), codec.encode(merge(base, ours, theirs).document))


@pytest.fixture
def disputed(root: Path, store: Store) -> str:
    """A conversation whose title and description differ between two clones."""
    id = store.create(
        title="Plan", type="group", messages=[{"role": "user", "content": "hello"}]
    ).id
    base, sides = store.document(id), []
    at = base["updatedAt"]
    for name in ("Anna's", "Ben's"):
        at = timestamps.later_than(at)
        about = base["metadata"] | {
            "titleSetBy": "user",
            "titleSetAt": at,
            "description": f"{name} words",
        }
        sides.append(base | {"title": f"{name} plan", "updatedAt": at, "metadata": about})
    merge_into(root, base, *sides)
    return id


def test_conflicts_are_listed_with_their_values_and_heads_name_their_fields(
    store: Store, disputed: str
) -> None:
    store.create(title="Another")
    found = store.conflicts.list()
    assert found == store.conflicts.list(disputed)
    assert [(one.id, one.field, one.kept) for one in found] == [
        (disputed, "metadata.description", "Ben's words"),
        (disputed, "title", "Ben's plan"),
    ]
    assert [value for value, _ in found[1].values] == ["Anna's plan", "Ben's plan"]
    assert all(at for _, at in found[1].values)
    assert store.head(disputed).conflicts == ("metadata.description", "title")
    assert [head.conflicts for head in store.heads() if head.id == disputed] == [
        ("metadata.description", "title")
    ]


def test_settling_the_last_conflict_removes_the_conflicts_field(
    store: Store, disputed: str
) -> None:
    store.conflicts.resolve(disputed, "metadata.description", "Anna's words")
    assert [one.field for one in store.conflicts.list()] == ["title"]
    before = store.head(disputed).updated_at
    head = store.conflicts.resolve(disputed, "title", "Anna's plan")
    assert head.title == "Anna's plan" and head.updated_at >= before
    assert store.conflicts.list() == [] == store.conflicts.list(disputed)
    about = store.document(disputed)["metadata"]
    assert "conflicts" not in about and about["description"] == "Anna's words"
    assert (about["titleSetBy"], about["titleSetAt"]) == ("user", head.updated_at)


def test_an_impossible_settlement_changes_nothing(store: Store, disputed: str) -> None:
    before = store.read(disputed)
    for id, field, value, error in (
        (disputed, "metadata.mode", "api", NotFound),
        (disputed, "metadata.description", 7, InvalidInput),
        (disputed, "title", None, InvalidInput),
        ("nobody", "title", "x", NotFound),
    ):
        with pytest.raises(error):
            store.conflicts.resolve(id, field, value)
    assert store.read(disputed) == before


def test_settling_is_refused_while_another_instance_holds_the_lock(
    store: Store, disputed: str
) -> None:
    with store.beside() as holder, holder.locks.take(disputed):
        with pytest.raises(Locked):
            store.conflicts.resolve(disputed, "title", "x")
        holder.rename(disputed, "mine")
        assert [one.field for one in store.conflicts.list(disputed)] == ["metadata.description"]
        holder.conflicts.resolve(disputed, "metadata.description", None)
        assert "description" not in holder.document(disputed)["metadata"]


def test_a_conflict_outside_the_metadata_is_settled(root: Path, store: Store) -> None:
    id = store.create(title="Plan", type="group").id
    base = store.document(id)
    merge_into(root, base, base | {"x": {"my.key": 1}}, base | {"x": {"my.key": 2}})
    assert [one.field for one in store.conflicts.list(id)] == ["x.my\\.key"]
    store.conflicts.resolve(id, "x.my\\.key", 1)
    assert store.document(id)["x"] == {"my.key": 1} and store.conflicts.list(id) == []
