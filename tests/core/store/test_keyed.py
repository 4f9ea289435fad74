"""Appending once under a key: a retry after a lost response finds the message."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from capsule import InvalidInput, Locked, Store
from capsule.ids import keyed_message_id
from tests.core.store.files import contents
from tests.processes import Child, together


def test_another_key_or_another_conversation_gets_a_message_of_its_own(store: Store) -> None:
    one, other = store.create(title="a").id, store.create(title="b").id
    for id, key in ((one, "k"), (one, "l"), (other, "k")):
        assert not store.append_once(id, key, content="same words")[1]
    assert contents(store, one) == ["same words", "same words"]
    assert contents(store, other) == ["same words"]


def test_a_key_used_for_another_message_is_an_error_and_writes_nothing(store: Store) -> None:
    id = store.create(title="t").id
    store.append_once(id, "k", content="one")
    before = store.read(id)
    for other in (
        {"content": "two"},
        {"content": "one", "role": "assistant"},
        {"content": "one", "from": "bob"},
    ):
        with pytest.raises(InvalidInput, match="used before"):
            store.append_once(id, "k", **other)
    assert store.read(id) == before


def test_a_key_finds_a_message_that_was_edited_since(store: Store) -> None:
    id = store.create(title="t").id
    message, _ = store.append_once(id, "k", content="one")
    store.edits.message(id, str(message.id), "one, corrected")
    assert store.append_once(id, "k", content="one")[1]
    assert contents(store, id) == ["one, corrected"]


def came(store: Store, id: str, seen: object, **fields: object) -> int:
    """How many messages are said to stand behind one."""
    before = store.read(id)
    with pytest.raises(InvalidInput, match="nothing was written") as raised:
        store.append_once(id, "new", content="x", seen=str(seen), **fields)
    assert store.read(id) == before
    count: int = raised.value.fields["came"]
    return count


def test_nothing_is_written_behind_what_the_writer_has_not_seen(store: Store) -> None:
    id = store.create(title="t").id
    first = store.append(id, content="first").id
    mine, _ = store.append_once(id, "k", content="mine", seen=first)
    store.append(id, content="meanwhile")
    assert came(store, id, first) == 2
    assert came(store, id, mine.id) == 1
    assert store.append_once(id, "k", content="mine", seen=first) == (mine, True)
    assert contents(store, id) == ["first", "mine", "meanwhile"]


def test_what_was_seen_is_compared_with_the_branch_that_is_written_to(store: Store) -> None:
    id = store.create(title="t").id
    store.append(id, content="first")
    second = store.append(id, content="second").id
    other = store.branches.revise(id, str(second), "other").id
    assert came(store, id, second) == 0  # It is in the active branch no more.
    below, _ = store.append_once(id, "a", content="below", seen=second, parent=second)
    assert came(store, id, second, parent=second) == 1
    store.branches.switch(id, other)
    on, _ = store.append_once(id, "b", content="on", seen=other)
    assert came(store, id, other) == 1
    store.branches.switch(id, below.id)
    assert came(store, id, on.id) == 0
    store.append_once(id, "c", content="at the end", seen=below.id)
    store.branches.remove(id, str(other))
    assert (came(store, id, other), came(store, id, "none-of-these")) == (0, 0)


def test_of_all_that_saw_the_same_one_writes(store: Store) -> None:
    id = store.create(title="t").id
    seen = store.append(id, content="first").id

    def write(number: int) -> bool:
        try:
            return not store.append_once(id, str(number), content=str(number), seen=seen)[1]
        except InvalidInput:
            return False

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(write, range(8))) == 1
    assert len(contents(store, id)) == 2


def test_an_invalid_key_is_refused(store: Store) -> None:
    for key in ["", "  ", "x" * 257]:
        id = store.create(title="t").id
        with pytest.raises(InvalidInput, match="1 to 256 characters"):
            store.append_once(id, key, content="x")
        assert contents(store, id) == []


def test_a_text_that_looks_like_the_line_of_an_id_is_no_id(store: Store) -> None:
    id = store.create(title="t").id
    line = f'\n      "id": "{keyed_message_id(id, "k")}"'
    store.append(id, content=line, toolCalls=[{"id": keyed_message_id(id, "k"), "name": "x"}])
    assert not store.append_once(id, "k", content="new")[1]
    assert contents(store, id) == [line, "new"]


def test_a_retry_finds_the_message_after_every_kind_of_write_in_between(
    store: Store, root: Path
) -> None:
    id = store.create(title="t").id
    first, _ = store.append_once(id, "k", content="once")
    assert first.id == keyed_message_id(id, "k") and first.at == 0
    store.rename(id, "longer than before")
    assert store.append_once(id, "k", content="once")[0] == first
    store.append_many(id, [{"role": "user", "content": str(n)} for n in range(50)])
    assert store.append_once(id, "k", content="once")[0] == first
    path = root / "conversations" / f"{id}.json"
    path.write_text(path.read_text().replace('"longer than before"', '"by hand"'))
    assert store.append_once(id, "k", content="once")[0] == first
    path.write_text(path.read_text().replace("  ", "\t"))  # Another layout: it is read whole.
    assert store.append_once(id, "k", content="once")[0] == first
    assert len(contents(store, id)) == 51


def test_another_process_finds_the_message_of_a_key_without_derived_files(
    store: Store, root: Path
) -> None:
    id = store.create(title="t").id
    first, _ = store.append_once(id, "k", content="once")
    store.close()
    shutil.rmtree(root / ".capsule")
    with Store.open(root) as other:
        assert other.append_once(id, "k", content="once") == (first, True)
        assert contents(other, id) == ["once"]


def test_two_processes_that_retry_at_once_append_one_message(
    root: Path, store: Store, child: Callable[..., Child]
) -> None:
    id = store.create(title="t", type="group").id
    body = """
        with Store.open(sys.argv[1]) as store:
            say()
            hear()
            say([store.append_once(sys.argv[2], str(key), content=str(key))[1] for key in range(40)])
    """
    children = [child(body, root, id) for _ in range(3)]
    together(*children)
    found = [retrying.hear() for retrying in children]
    assert [sum(not was_there[key] for was_there in found) for key in range(40)] == [1] * 40
    assert sorted(contents(store, id), key=int) == [str(key) for key in range(40)]


def test_a_retry_in_a_locked_conversation_finds_the_message(store: Store) -> None:
    id = store.create(title="t").id
    store.append_once(id, "k", content="once")
    with store.beside() as other:
        assert other.append_once(id, "k", content="once")[1]
        with pytest.raises(Locked):
            other.append_once(id, "l", content="more")


def test_several_fields_of_a_head_change_in_one_write(store: Store) -> None:
    id = store.create(title="t", tags=["old"]).id
    head = store.update(
        id, title="new", tags=["a", "b"], pinned=True, archived=False, mcp_servers={"git": True}
    )
    assert (head.title, head.tags, head.pinned, head.archived) == ("new", ("a", "b"), True, False)
    assert store.document(id)["metadata"]["mcpServers"] == {"git": {"enabled": True}}
    assert "archived" not in store.document(id)["metadata"]
    assert store.update(id, pinned=False).pinned is False
    assert store.head(id).title == "new"
