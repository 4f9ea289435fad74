"""The anatomy of a canonical capsule, compared with the result of a parser."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.format.documents import creation
from capsule.format.json import codec, layout

STAMP = "2025-01-12T10:30:00.000Z"
TEXTS = st.text(st.characters(codec="utf-8") | st.sampled_from('\n"\\{}[], '), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
MESSAGES = st.builds(
    lambda text, more: {
        "role": "user",
        "content": text,
        "timestamp": STAMP,
        "id": "m",
        "more": more,
    },
    TEXTS,
    VALUES,
)


def capsule(
    messages: list[dict[str, object]], title: str = "", locked: bool = False, extra: object = None
) -> bytes:
    lock = {"active": True, "instanceId": "i", "timestamp": STAMP} if locked else None
    document = creation.new_capsule(
        "plan", title, STAMP, lock=lock, messages=messages, metadata={"extra": extra}
    )
    return codec.encode(document)


@pytest.mark.slow
@given(st.lists(MESSAGES, max_size=4), TEXTS, st.booleans(), VALUES)
def test_every_offset_is_right(
    messages: list[dict[str, object]], title: str, locked: bool, extra: object
) -> None:
    data = capsule(messages, title, locked, extra)
    found = layout.survey(data)
    assert found is not None
    assert found.size == len(data) and found.entries == len(messages)
    assert data[found.updated_at :][:24].decode() == STAMP and data[
        found.updated_at - 14 :
    ].startswith(b'"updatedAt"')
    assert (
        data[found.context :].startswith(b'  "context": ')
        and data[found.history - 1 : found.history] == b"["
    )
    assert data[found.tail :] == layout.closing_of(found)
    head = layout.head_of(data)
    assert head is not None
    assert orjson.loads(head) == {
        k: v for k, v in orjson.loads(data).items() if k not in ("context", "history")
    }
    assert data.startswith(layout.head_prefix(head))


@given(st.lists(MESSAGES, max_size=3), st.lists(MESSAGES, max_size=3))
def test_a_splice_equals_the_encoding_of_the_whole(
    before: list[dict[str, object]], added: list[dict[str, object]]
) -> None:
    data = capsule(before)
    parts = layout.survey(data)
    assert parts is not None
    block, after = layout.append_bytes(parts, [codec.encode_entry(message) for message in added])
    written = data[: parts.tail] + block
    assert written == capsule(before + added) and after == layout.survey(written)


@given(st.lists(MESSAGES, max_size=3), TEXTS, TEXTS, st.booleans())
def test_a_new_head_moves_every_later_offset(
    messages: list[dict[str, object]], one: str, other: str, locked: bool
) -> None:
    data, wanted = capsule(messages, one), capsule(messages, other, locked)
    parts, head = layout.survey(data), layout.head_of(wanted)
    assert parts is not None and head is not None
    joined = layout.head_prefix(head)
    assert joined + data[parts.context :] == wanted
    assert layout.with_head(parts, joined) == layout.survey(wanted)


@given(st.lists(MESSAGES, max_size=5), st.integers(1, 6), st.integers(0, 400))
def test_the_last_entries_are_found_in_any_end_of_the_history(
    messages: list[dict[str, object]], wanted: int, missing: int
) -> None:
    data = capsule(messages)
    parts = layout.survey(data)
    assert parts is not None
    start = min(parts.history + missing, parts.tail)
    block, count = layout.last_entries(data[start : parts.tail], wanted)
    found = orjson.loads(block)
    assert len(found) == count <= wanted
    assert found == (orjson.loads(data)["history"][-count:] if count else [])
    if not missing:
        assert count == min(wanted, len(messages))


@given(st.binary(max_size=300))
def test_any_bytes_can_be_surveyed(data: bytes) -> None:
    layout.survey(data)
    layout.head_of(data)
    layout.last_entries(data, 3)
    layout.with_head(layout.FileLayout(9, 8, 7, 6, 5, 4, 3), data)


@given(st.lists(MESSAGES, max_size=4), st.integers(0, 5))
def test_an_entry_is_found_by_its_id_at_any_position(
    messages: list[dict[str, object]], at: int
) -> None:
    id = "0b9c3f54-2f5d-5f7e-8a53-3f1b6c7d8e92"
    line = f'\n      "id": "{id}"'
    messages = [{**message, "toolCalls": [{"id": id}], "reasoning": line} for message in messages]
    without = capsule(messages)
    found = layout.survey(without)
    assert found is not None
    assert layout.derived_ids(without[found.history : found.tail]) == frozenset()
    assert layout.find_entry(without[found.history : found.tail], id) is None
    messages.insert(
        min(at, len(messages)), {"role": "user", "content": line, "timestamp": STAMP, "id": id}
    )
    data = capsule(messages)
    found = layout.survey(data)
    assert found is not None
    history = data[found.history : found.tail]
    assert layout.derived_ids(history) == {id.encode()}
    place, entry = layout.find_entry(history, id) or (-1, b"")
    assert (place, orjson.loads(entry)) == (min(at, len(messages) - 1), messages[place])
