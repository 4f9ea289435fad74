"""Conflicts that a merge left are listed and settled; clones of a real store are merged."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.errors import InvalidInput, Locked, NotFound
from capsule.format import codec
from capsule.format.merge.merge import merge


def cloned(root: Path, names: str) -> list[Path]:
    for name in names:
        shutil.copytree(root / "conversations", root.parent / name / "conversations")
        Store.init(root.parent / name)
    return [root.parent / name for name in names]


def content(root: Path, id: str) -> dict[str, Any]:
    return codec.decode((root / "conversations" / f"{id}.json").read_bytes(), "")


def merged_into(root: Path, base: dict[str, Any], ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Merge as git's merge driver does, and write the result to the working tree."""
    document = merge(base, ours, theirs).document
    path = root / "conversations" / f"{document['id']}.json"
    path.with_suffix(".tmp").write_bytes(codec.encode(document))
    os.replace(path.with_suffix(".tmp"), path)


@pytest.fixture
def disputed(tmp_path: Path) -> tuple[Path, str]:
    """A store, and a conversation in it whose title and description differ between two clones."""
    root = tmp_path / "o"
    Store.init(root)
    with Store.open(root) as store:
        id = store.create(title="Plan", type="group", messages=[{"role": "user", "content": "hello"}]).id
    base = content(root, id)
    sides = []
    for name, clone in zip(("Anna's", "Ben's"), cloned(root, "ab"), strict=True):
        with Store.open(clone) as store:
            store.rename(id, f"{name} plan")
            store.append(id, content=f"{name} message")
        document = content(clone, id)
        document["metadata"]["description"] = f"{name} words"
        sides.append(document)
    merged_into(root, base, *sides)
    return root, id


def test_conflicts_are_listed_with_their_values_and_heads_name_their_fields(disputed: tuple[Path, str]) -> None:
    root, id = disputed
    with Store.open(root) as store:
        store.create(title="Another")
        found = store.conflicts.list()
        assert found == store.conflicts.list(id)
        assert [(one.id, one.field, one.kept) for one in found] == [
            (id, "metadata.description", "Ben's words"),
            (id, "title", "Ben's plan"),
        ]
        assert [value for value, _ in found[1].values] == ["Anna's plan", "Ben's plan"]
        assert all(at for _, at in found[1].values)
        assert store.head(id).conflicts == ("metadata.description", "title")
        assert [head.conflicts for head in store.heads() if head.id == id] == [("metadata.description", "title")]


def test_settling_the_last_conflict_removes_the_conflicts_field(disputed: tuple[Path, str]) -> None:
    root, id = disputed
    with Store.open(root) as store:
        store.conflicts.settle(id, "metadata.description", "Anna's words")
        assert [one.field for one in store.conflicts.list()] == ["title"]
        before = store.head(id).updated_at
        head = store.conflicts.settle(id, "title", "Anna's plan")
        assert head.title == "Anna's plan" and head.updated_at >= before
        assert store.conflicts.list() == [] == store.conflicts.list(id)
        about = store.document(id)["metadata"]
        assert "conflicts" not in about and about["description"] == "Anna's words"
        assert (about["titleSetBy"], about["titleSetAt"]) == ("user", head.updated_at)


def test_an_impossible_settlement_changes_nothing(disputed: tuple[Path, str]) -> None:
    root, id = disputed
    with Store.open(root) as store:
        before = store.read(id)
        for field, value, error in (
            ("metadata.mode", "api", NotFound),
            ("metadata.description", 7, InvalidInput),
            ("title", None, InvalidInput),
        ):
            with pytest.raises(error):
                store.conflicts.settle(id, field, value)
        with pytest.raises(NotFound):
            store.conflicts.settle("nobody", "title", "x")
        assert store.read(id) == before


def test_settling_is_refused_while_another_instance_holds_the_lock(disputed: tuple[Path, str]) -> None:
    root, id = disputed
    with Store.open(root) as holder, Store.open(root) as other, holder.locks.take(id):
        with pytest.raises(Locked):
            other.conflicts.settle(id, "title", "x")
        holder.rename(id, "mine")
        assert [one.field for one in other.conflicts.list(id)] == ["metadata.description"]
        holder.conflicts.settle(id, "metadata.description", None)
        assert "description" not in holder.document(id)["metadata"]


def test_a_conflict_outside_the_metadata_is_settled(tmp_path: Path) -> None:
    root = tmp_path / "o"
    Store.init(root)
    with Store.open(root) as store:
        id = store.create(title="Plan").id
    base = content(root, id)
    merged_into(root, base, base | {"x": {"my.key": 1}}, base | {"x": {"my.key": 2}})
    with Store.open(root) as store:
        assert [one.field for one in store.conflicts.list(id)] == ["x.my\\.key"]
        store.conflicts.settle(id, "x.my\\.key", 1)
        assert store.document(id)["x"] == {"my.key": 1} and store.conflicts.list(id) == []


@pytest.mark.parametrize("type", ["chat", "group"])
def test_three_stores_merged_in_any_order_are_equal(tmp_path: Path, type: str) -> None:
    root = tmp_path / "o"
    Store.init(root)
    with Store.open(root, keep_locks=False) as store:
        id = store.create(type=type, messages=[{"role": "assistant", "content": f"{at}"} for at in range(5)]).id
        first = store.document(id)["history"][2]["id"]
    base = content(root, id)
    sides = []
    for name, clone in zip("abc", cloned(root, "abc"), strict=True):
        with Store.open(clone, keep_locks=False) as store:
            store.append(id, content=f"from {name}")
            store.edits.message(id, "@1", f"edited by {name}")
            store.rename(id, f"{name} title")
            store.tag(id, name)
            store.branches.regenerate(id, f"another by {name}")
            if name == "a":
                store.branches.switch(id, first)
            store.append(id, content=f"on by {name}")
        sides.append(content(clone, id))
    ends = {
        codec.encode(merge(base, merge(base, one, two).document, three).document)
        for one, two, three in itertools.permutations(sides)
    }
    assert len(ends) == 1
    (end,) = ends
    (root / "conversations" / f"{id}.json").write_bytes(end)
    with Store.open(root, keep_locks=False) as store:
        texts = {message["content"] for message in store.document(id)["history"]}
        assert {f"{words} {name}" for words in ("from", "edited by", "another by", "on by") for name in "abc"} <= texts
        assert [value for value, _ in store.conflicts.list(id)[0].values] == ["a title", "b title", "c title"]
        assert store.head(id).title == "c title"
        store.append(id, content="and on")
