"""JSON of any size is read a value at a time, and around what is damaged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.transfer.reading import json_stream
from capsule.transfer.reading.json_stream import (
    complete_prefix,
    first_values,
    json_records,
    shape_of,
)
from capsule.transfer.records.mapping import Pair, apply_difference, difference, moment


def read(data: bytes, chunk: int = 7) -> tuple[list[tuple[int, Any]], list[tuple[str, int | None]]]:
    """The records in a file, and what was told."""
    told: list[tuple[str, int | None]] = []

    def chunks() -> Iterator[bytes]:
        for at in range(0, len(data), chunk):
            yield data[at : at + chunk]

    found = list(
        json_records(chunks(), data[:100_000], lambda what, line: told.append((what, line)))
    )
    return found, told


TWO = [{"title": "a", "list": [{"title": "x"}, {"b": "},{"}]}, {"title": "é\n", "list": []}]


@pytest.mark.parametrize("chunk", [1, 2, 3, 64, 10_000])
@pytest.mark.parametrize(
    "data",
    [
        json.dumps(TWO).encode(),
        json.dumps(TWO, indent=2).encode(),
        b"\xef\xbb\xbf" + json.dumps(TWO, ensure_ascii=False).encode(),
        b"".join(json.dumps(one).encode() + b"\r\n" for one in TWO),
        b"\xef\xbb\xbf" + b"".join(json.dumps(one).encode() + b"\n" for one in TWO),
        json.dumps(TWO, ensure_ascii=False).encode("utf-16"),
        "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in TWO).encode("utf-16"),
    ],
)
def test_an_array_and_lines_are_the_same_records(data: bytes, chunk: int) -> None:
    found, told = read(data, chunk)

    assert [value for _, value in found] == TWO
    assert told == []
    assert list(first_values(data)) == TWO


def test_one_object_is_one_record() -> None:
    assert read(json.dumps(TWO[0], indent=1).encode())[0] == [(1, TWO[0])]
    assert shape_of(b'{\n "a": 1') == "object"


@pytest.mark.parametrize("escape", ["ud83d", "uD83D"])
@pytest.mark.parametrize("form", ["[%s]", "%s\n", '{"a": 1}\n%s'])
def test_half_of_a_surrogate_pair_is_replaced_in_small_and_in_capital_letters(
    form: str, escape: str
) -> None:
    found, _ = read((form % f'{{"text": "half \\{escape} of it"}}').encode())

    assert found[-1][1] == {"text": "half \ufffd of it"}


ARRAY = (
    b'[\n{"id": 1, "name": "a", "of": [{"id": 7, "x": 0}]},\n%s,\n{"id": 3, "name": "c", '
    b'"of": []}\n]'
)


@pytest.mark.parametrize(
    "damage",
    [
        b'{"id": 2, "name": "b", "of": [{"id": 8, "x": 0}, {"id": 9, "x"]}',
        b'{"id": 2, "name": "b" "of": [{"id": 8, "x": 0}]}',
        b'{"id": 2, "name": b\0\0, "of": []}',
        b'{"id": 2, "name": "b", "of": [{"id": 8,',
        b"7",
    ],
)
@pytest.mark.parametrize("chunk", [1, 50, 10_000])
def test_a_damaged_element_is_told_by_its_line_and_the_others_are_read(
    damage: bytes, chunk: int
) -> None:
    found, told = read(ARRAY % damage, chunk)

    ids = [value.get("id") for _, value in found]
    assert [id for id in ids if id != 2] == [1, 3]
    assert [line for _, line in told] == [3]


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (
            b'[{"id": 1}, {"id": 2, "x": 0 "y": 0}, {"id": 3}, {"id',
            [{"id": 1}, {"id": 2}, {"id": 3}],
        ),
        (b'{\n"id": 1, "x": [] "y": 0}', [{"id": 1, "x": []}]),
        (b'{"id": 1, "x": [] "y": 0}', [{"id": 1, "x": []}]),
        (
            b'{"id": 1, "x" []}\n{"id": 2}\n{"id": 3, "x": [4,',
            [{"id": 1}, {"id": 2}, {"id": 3, "x": [4]}],
        ),
    ],
)
def test_the_first_values_are_what_is_sound_around_the_damage(
    data: bytes, values: list[Any]
) -> None:
    assert [value for value in first_values(data) if value] == values


@pytest.mark.parametrize("data", [b'{"id": 1}\n%s', b"%s", b"[%s", b'[{"a": 1},[%s'])
@pytest.mark.parametrize("piece", [b'{"a":', b'[{"a":'])
def test_what_is_nested_without_an_end_is_tried_at_few_places(
    data: bytes, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, tries = json_stream._decoder.raw_decode, list[str]()

    def counted(text: str, idx: int = 0) -> tuple[Any, int]:
        tries.append(text[idx : idx + 9])
        return decode(text, idx)

    monkeypatch.setattr(json_stream._decoder, "raw_decode", counted)
    read(data % (piece * 10_000), 1 << 20)

    assert len(tries) < 1_000


@pytest.mark.parametrize(
    ("line", "ids", "what"),
    [
        (b'{"id": 2, "at": 1', [1, 3], "JSON"),
        (b'{"id": 2, "at": 1}{"id": 4, "at": 1}', [1, 2, 4, 3], "several"),
        (b'{"id": 2, "te{"id": 4, "at": 1}', [1, 4, 3], "JSON"),
        (b'{"id": 2, "in": {"id": 9, "of": 1}', [1, 3], "JSON"),
        (b'\0\0{"id": 2, "at": 1}', [1, 2, 3], "characters"),
        (b"\0\0\0", [1, 3], "NUL"),
        (b"[1]", [1, 3], "object"),
    ],
)
def test_a_damaged_line_is_told_and_the_others_are_read(
    line: bytes, ids: list[int], what: str
) -> None:
    found, told = read(b'{"id": 1, "at": 0}\n' + line + b'\n{"id": 3, "at": 2}\n')

    assert [value["id"] for _, value in found] == ids
    assert [number for _, number in told] == [2]
    assert what in told[0][0]


def test_a_value_that_is_too_large_is_refused_and_the_next_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(json_stream, "MAX_VALUE_BYTES", 5_000)
    data = json.dumps(
        [{"id": 1, "t": ""}, {"id": 2, "t": "x" * 50_000}, {"id": 3, "t": ""}]
    ).encode()
    found, told = read(data, 1_000)
    assert ([value["id"] for _, value in found], len(told)) == ([1, 3], 1)
    found, told = read(b'{"id": 1}\n{"id": "' + b"x" * 50_000 + b'"}\n{"id": 3}\n', 1_000)
    assert [value["id"] for _, value in found] == [1, 3]
    assert [line for _, line in told] == [2]


@pytest.mark.parametrize(
    ("value", "time"),
    [
        (1767348000.125, "2026-01-02T10:00:00.125Z"),
        ("1767348000125", "2026-01-02T10:00:00.125Z"),
        (1767348000125000000, "2026-01-02T10:00:00.125Z"),
        ("2026-01-02 11:00+01:00", "2026-01-02T10:00:00.000Z"),
        (float("inf"), None),  # As a database may have it.
        (float("nan"), None),
        (True, None),
        ("soon", None),
    ],
)
def test_a_time_of_a_source_is_read_in_any_unit(value: Any, time: str | None) -> None:
    assert moment(value) == time


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)
OBJECT = st.dictionaries(st.sampled_from(["a", "b", "role", "content", "x"]), JSON, max_size=5)


@given(OBJECT, st.integers(0, 200))
def test_the_beginning_of_a_value_is_completed(value: dict[str, Any], cut: int) -> None:
    text = json.dumps(value)
    assert complete_prefix(text) == value
    found = complete_prefix(text[:cut])
    assert found is None or found.items() <= value.items() or len(found) <= len(value)


@given(OBJECT, OBJECT)
def test_a_difference_makes_one_object_of_the_other(
    wanted: dict[str, Any], built: dict[str, Any]
) -> None:
    made = apply_difference(built, difference(wanted, built))
    assert json.dumps(made, sort_keys=True) == json.dumps(wanted, sort_keys=True)


@given(OBJECT)
def test_a_pair_that_reads_nearly_nothing_writes_the_record_as_it_was(
    record: dict[str, Any],
) -> None:
    pair = Pair(
        lambda given: {"role": "user", "content": str(given.get("content"))},
        lambda fields: {"content": fields["content"], "x": 1},
    )
    fields = pair.to_capsule(record)
    assert json.dumps(pair.to_record(fields), sort_keys=True) == json.dumps(record, sort_keys=True)
