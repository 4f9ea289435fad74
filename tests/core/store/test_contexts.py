"""The store writes contexts under the rules of every write, whatever the layout of the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from capsule.errors import InvalidInput, NotFound
from capsule.format.documents import creation
from capsule.format.json import codec, layout
from capsule.maintenance.doctor import examine

pytestmark = pytest.mark.usefixtures("plan")
KEEPS_LOCKS = False
STAMP = "2025-01-12T10:30:00.000Z"
CONTEXT: dict[str, Any] = {
    "fullContext": "# Project\n\n  },\n",
    "metadata": {
        "projectPath": "/p",
        "filesIncluded": 1,
        "estimatedTokens": 2,
        "contextHash": None,
    },
}


def is_canonical(store: Store, id: str) -> bool:
    data = store.read(id)
    known = store.engine.storage.current_header("conversations", id)
    assert known is not None and known.file_layout == layout.survey(data)
    return codec.encode(store.document(id)) == data


@pytest.fixture
def plan(root: Path, store: Store) -> str:
    """A conversation in a file, as these tests compare the bytes around a context."""
    return store.create(
        id="plan", title="Plan", type="group", messages=[{"role": "user", "content": "one"}]
    ).id


@pytest.mark.files
def test_a_cleared_context_equals_that_of_a_new_conversation(store: Store) -> None:
    fresh = store.context.get("plan")
    store.context.set("plan", CONTEXT)
    store.context.clear("plan")
    assert store.context.get("plan") == fresh
    assert is_canonical(store, "plan")


def test_unknown_fields_inside_and_around_a_context_survive(root: Path, store: Store) -> None:
    path = root / "conversations" / "plan.json"
    document = orjson.loads(path.read_bytes()) | {"zebra": {"a": {}, "b": [{}]}, "x": None}
    path.write_bytes(orjson.dumps(document))
    store.context.set("plan", CONTEXT | {"mine": [1, {"deep": {}}]})
    for context in (CONTEXT, {}, CONTEXT):
        store.context.set("plan", context)
        assert is_canonical(store, "plan")
        store.append("plan", content="on")
        found = store.document("plan")
        assert found["zebra"] == {"a": {}, "b": [{}]} and found["x"] is None
    assert [message.content for message in store.load("plan").history] == ["one", *["on"] * 3]
    assert [str(finding) for finding in examine(store)] == []


@given(
    st.lists(
        st.recursive(
            st.none() | st.integers(-5, 5) | st.text(max_size=8),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(st.text(max_size=5), inner, max_size=3)
            ),
            max_leaves=8,
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 3),
)
def test_a_context_put_in_by_offsets_has_the_canonical_layout(
    values: list[Any], messages: int
) -> None:
    history = [
        {"role": "user", "content": "  },\n", "timestamp": STAMP, "id": f"m{n}"}
        for n in range(messages)
    ]
    for value in values:
        document = creation.new_capsule("plan", "Plan", STAMP, messages=history) | {
            "context": {"fullContext": "", "own": value}
        }
        data = codec.encode(document)
        found = layout.context_in(data)
        assert found is not None and codec.decode(data[slice(*found)], "x") == document["context"]
        encoded = codec.encode(document["context"])[:-1]
        lines = b"".join(layout.context_lines([encoded[:5], encoded[5:]]))
        assert lines == data[data.index(b'  "context"') :][: len(lines)]
        assert layout.context_end(lines + b"rest", first=True) == len(lines)


def test_a_context_is_read_as_it_was_written_with_the_digits_of_its_numbers(
    root: Path, store: Store
) -> None:
    for context in [
        {},
        {"fullContext": 'a\n"\\b'},
        {"metadata": {}},
        {"fullContext": "x", "own": 1},
        {"own": {}},
        CONTEXT,
    ]:
        store.context.set("plan", context)
        assert store.context.get("plan") == context
        path = root / "conversations" / "plan.json"
        path.write_bytes(path.read_bytes().replace(b'"own": 1', b'"own": 2.50'))
        before = store.read("plan")
        store.context.set("plan", store.context.get("plan"))
        assert (b"2.50" in store.read("plan")) is (b"2.50" in before)


@pytest.mark.files
def test_a_large_context_whose_end_lies_between_two_reads_is_replaced(store: Store) -> None:
    for size in range(4_194_304 - 420, 4_194_304 - 380, 3):
        store.context.set("plan", CONTEXT | {"fullContext": "y" * size})
        store.context.set("plan", CONTEXT)
        assert is_canonical(store, "plan")
    assert store.context.get("plan") == CONTEXT


def test_an_invalid_context_is_refused_and_changes_nothing(store: Store) -> None:
    for context, expected in [
        ({"fullContext": 1}, "context.fullContext"),
        ({"metadata": {"files": [{"path": 1}]}}, "path"),
        ({"metadata": {"selection": []}}, "selection"),
        ({"fullContext": "\ud800"}, "surrogate"),
    ]:
        before = store.read("plan")
        with pytest.raises(InvalidInput, match=expected):
            store.context.set("plan", context)
        assert store.read("plan") == before


def test_setting_a_context_locks_a_chat(store: Store) -> None:
    store.create(id="chat", title="Chat")
    with store.beside() as other:
        other.context.set("chat", CONTEXT)
        assert other.head("chat").lock is not None
    assert store.head("chat").lock is None
    with pytest.raises(NotFound):
        store.context.set("nowhere", CONTEXT)
