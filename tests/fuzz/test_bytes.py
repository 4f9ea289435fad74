"""Arbitrary and mutated bytes as a capsule: only errors of the package come out, and every other
conversation works.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from capsule.format.documents import creation
from capsule.format.json import codec
from capsule.ids import new_message_id
from tests.fuzz.bytes import StoreOfBytes

STAMP = "2025-01-12T10:30:00.000Z"
BASE = codec.encode(
    creation.new_capsule(
        "odd", "Plan", STAMP, tags=["a"],
        messages=[{"role": "user", "content": f"m{n}", "timestamp": STAMP, "id": new_message_id()} for n in range(4)],
    )
)  # fmt: skip
DOCUMENT: dict[str, Any] = json.loads(BASE)
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from([STAMP, "2.1", "user"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
WRONG = (
    *(None, True, 0, -1, 1.5, 10**30, "", "x", "\u0000", STAMP),
    *([], [None], ["x"], {}, {"x": 1}, {"active": True}),
)


def places(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield where
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, item in inside:
        yield from places(item, (*where, key))


PLACES = list(places(DOCUMENT))[1:]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A good file with some bytes changed, moved, doubled or removed."""
    data = bytearray(BASE)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.sampled_from([0, 1, 1, 2, 7, 60, 512, 4000])))
        how = draw(st.sampled_from(["cut", "end", "set", "double", "nul", "piece"]))
        if how == "cut":
            del data[at:to]
        elif how == "end":
            del data[at:]
        elif how == "set":
            data[at:to] = draw(
                st.binary(max_size=4)
                | st.sampled_from([b'"', b"{", b"}", b",", b"\\", b"\n", b"1e999"])
            )
        elif how == "double":
            data[at:at] = data[at:to]
        elif how == "nul":
            data[at:to] = bytes(to - at)
        else:
            data[at:at] = draw(
                st.sampled_from(
                    [
                        b"\n    {\n",
                        b",\n    {\n",
                        b"\n  ]\n}\n",
                        b'\n  "history": [',
                        b"\xef\xbb\xbf",
                    ]
                )
            )
    return bytes(data)


@st.composite
def misfilled(draw: st.DrawFn) -> bytes:
    """A good file with wrong values in some fields."""
    document = json.loads(BASE)
    for where in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        inside = document
        try:
            for step in where[:-1]:
                inside = inside[step]
            if draw(st.booleans()):
                inside[where[-1]] = draw(JUNK)
            else:
                del inside[where[-1]]
        except (KeyError, IndexError, TypeError):
            continue
    indent = draw(st.sampled_from([None, 2, 2, 2]))
    return (
        json.dumps(document, indent=indent, ensure_ascii=draw(st.booleans())).encode(
            errors="surrogatepass"
        )
        + b"\n"
    )


def filled(where: tuple[Any, ...], value: Any) -> bytes:
    """The good file with this value in one field."""
    document = json.loads(BASE)
    inside = document
    for step in where[:-1]:
        inside = inside[step]
    inside[where[-1]] = value
    return json.dumps(document, indent=2).encode() + b"\n"


@pytest.fixture(scope="module")
def bytes_in_a_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreOfBytes]:
    target = StoreOfBytes(Path(tmp_path_factory.mktemp("fuzz")) / "store")
    yield target
    target.close()


@given(
    st.binary(max_size=400)
    | JUNK.map(lambda value: json.dumps(value).encode(errors="surrogatepass"))
)
@example(b"")
@example(b"\xef\xbb\xbf{}")
@example(b"[" * 100_000)
@example(b'{"a":' * 50_000)
@example(b'{"id": "odd", "history": []}')
def test_arbitrary_bytes_harm_no_other_conversation(
    bytes_in_a_store: StoreOfBytes, data: bytes
) -> None:
    bytes_in_a_store.try_bytes(data)


@given(mutated())
@example(BASE[:-7])
@example(BASE + b"\0" * 600)
@example(BASE.replace(b"\n", b"\r\n"))
@example(BASE.replace(b'"Plan"', b'"Pl\\ud800an"'))
@example(BASE.replace(b'"tags": [', b'"n": 1e999, "m": -0, "o": 2.50, "tags": ['))
@example(BASE.replace(b'"tags"', b'"mode": "api", "tags"'))
def test_mutated_bytes_harm_no_other_conversation(
    bytes_in_a_store: StoreOfBytes, data: bytes
) -> None:
    bytes_in_a_store.try_bytes(data)


@given(misfilled())
def test_wrong_values_in_several_fields_harm_no_other_conversation(
    bytes_in_a_store: StoreOfBytes, data: bytes
) -> None:
    bytes_in_a_store.try_bytes(data)


@pytest.mark.slow
def test_every_wrong_value_in_any_field_is_refused_or_read(bytes_in_a_store: StoreOfBytes) -> None:
    for where in PLACES:
        for value in WRONG:
            bytes_in_a_store.try_bytes(filled(where, value))
