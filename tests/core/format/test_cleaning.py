"""The clean form: one for whatever differs in layout and lock alone, and nothing else lost."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.errors import CapsuleError, InvalidDocument
from capsule.format import validation
from capsule.format.documents.creation import (
    empty_context,
    inactive_lock,
    new_capsule,
    new_metadata,
)
from capsule.format.json import codec
from capsule.format.json.canonical import in_order
from capsule.format.merge.clean_form import clean, clean_document

STAMP = "2025-01-12T10:00:00.000Z"
LOCK = {
    "active": True,
    "instanceId": "i",
    "timestamp": STAMP,
    "user": "anna",
    "host": "lab",
    "pid": 4,
    "name": "n",
}

#: Values that are right, nearly right, and wrong, for any field.
ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        "",
        "x",
        STAMP,
        "2025-01-12T10:00:00Z",
        "2025-02-30T10:00:00.000Z",
        None,
        True,
        0,
        2.5,
        [],
        ["x"],
        [{}],
        {},
    ]
)
SAID = {"role": st.sampled_from(["user", "assistant", "tool"]), "content": st.text(max_size=8)}
MESSAGE = st.fixed_dictionaries(
    {**SAID, "timestamp": st.just(STAMP), "id": st.sampled_from("abcd")}
)
MESSAGE |= st.fixed_dictionaries(
    SAID,
    optional={
        "timestamp": st.sampled_from([STAMP, "2025-01-12 11:00+01:00", None]),
        "id": st.sampled_from(["a", "b", "c", "d", None]),
        "parent": st.sampled_from([None, "a", "b"]),
        "editedAt": ODD,
        "from": ODD,
        "toolCalls": st.just([{"id": "1", "name": "run"}]),
        "extra": ODD,
    },
)
METADATA = st.fixed_dictionaries(
    {
        "lock": st.sampled_from(
            [LOCK, inactive_lock(), {"active": False}, {"host": "x", "active": 0}]
        )
    },
    optional={
        "tags": st.just(["a"]),
        "type": st.just("group"),
        "mode": ODD,
        "participants": st.lists(
            ODD
            | st.just("anna")
            | st.fixed_dictionaries({"id": st.just("ben")}, optional={"joinedAt": ODD}),
            max_size=2,
        ),
        "summaryOf": st.fixed_dictionaries({}, optional={"updatedAt": ODD, "messages": ODD}),
        "mcpServers": st.sampled_from([{"a": {"enabled": True}}, ["a"], {"a": {}}, None]),
        "unknown": ODD,
    },
)
CONTEXT = st.just(empty_context()) | st.fixed_dictionaries({"metadata": st.builds(dict, files=ODD)})
HEAD = {
    "id": st.just("c"),
    "title": st.text(max_size=8),
    "version": st.sampled_from(["2.1", "2.1", "2.1", "2.0", "2.7", "1.4"]),
    "createdAt": st.just(STAMP),
    "updatedAt": st.sampled_from([STAMP, STAMP, "2025-01-12T10:00:00+00:00"]),
    "history": st.lists(MESSAGE, max_size=4),
}
WITHIN = {"metadata": METADATA, "context": CONTEXT}
DOCUMENT = st.fixed_dictionaries({**HEAD, **WITHIN}, optional={"unknown": ODD})
DOCUMENT |= st.fixed_dictionaries(HEAD, optional={**WITHIN, "unknown": ODD})
LAYOUT = st.sampled_from(["canonical", "canonical", "unordered", "sorted", "crlf", "bom"])


def laid_out(document: dict[str, Any], layout: str) -> bytes:
    if layout in ("canonical", "unordered"):
        return codec.encode(document if layout == "unordered" else in_order(document))
    text = json.dumps(
        document, indent=3 if layout == "crlf" else None, sort_keys=layout == "sorted"
    )
    text = text.replace("\n", "\r\n") if layout == "crlf" else text
    return ("\ufeff" if layout == "bom" else "").encode() + text.encode()


def refusal(data: bytes, path: str, kind: str = "conversations") -> CapsuleError | None:
    """Why it is refused; None: it is not."""
    try:
        clean(data, path, kind)
    except CapsuleError as error:
        return error
    return None


def locked(document: dict[str, Any], lock: dict[str, Any]) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "lock": lock}}


@given(DOCUMENT, LAYOUT)
def test_the_quick_way_and_the_strict_one_give_the_same(
    document: dict[str, Any], layout: str
) -> None:
    data = laid_out(document, layout)
    read = codec.decode(data, "p")
    refused = refusal(data, "p")
    if refused is None:
        validation.check(read, data, "p")
        assert clean(data, "p", "conversations") == codec.encode(clean_document(read))
    else:
        with pytest.raises(InvalidDocument) as raised:
            validation.check(read, data, "p")
        assert raised.value.message == refused.message


@given(DOCUMENT, LAYOUT)
def test_cleaning_keeps_all_but_the_lock_and_changes_nothing_the_second_time(
    document: dict[str, Any], layout: str
) -> None:
    try:
        once = clean(laid_out(document, layout), "p", "conversations")
    except InvalidDocument:
        return
    assert clean(once, "p", "conversations") == once
    found = codec.decode(once, "p")
    assert found.get("unknown") == document.get("unknown")
    assert found["metadata"].get("unknown") == document.get("metadata", {}).get("unknown")
    for name in ("content", "extra"):
        assert [entry.get(name) for entry in found["history"]] == [
            entry.get(name) for entry in document["history"]
        ]


@given(DOCUMENT, st.sampled_from([LOCK, inactive_lock(), {}, {"active": True}, {"later": [1]}]))
def test_the_lock_never_shows(document: dict[str, Any], lock: dict[str, Any]) -> None:
    document = {"metadata": new_metadata(), **document}
    try:
        one = clean(codec.encode(locked(document, inactive_lock())), "p", "conversations")
    except InvalidDocument:
        return
    assert clean(codec.encode(locked(document, lock)), "p", "conversations") == one
    bare = {name: value for name, value in document["metadata"].items() if name != "lock"}
    assert clean(codec.encode({**document, "metadata": bare}), "p", "conversations") == one


@given(
    st.binary(max_size=60)
    | st.tuples(
        DOCUMENT.map(codec.encode), st.integers(0, 2000), st.integers(0, 3), st.binary(max_size=3)
    ).map(lambda drawn: drawn[0][: drawn[1]] + drawn[3] + drawn[0][drawn[1] + drawn[2] :]),
    st.sampled_from(["conversations", "agents"]),
)
def test_any_bytes_are_cleaned_or_refused_by_their_place(data: bytes, kind: str) -> None:
    refused = refusal(data, "x.json", kind)
    if refused is None:
        once = clean(data, "x.json", kind)
        assert clean(once, "x.json", kind) == once
    else:
        assert isinstance(refused, InvalidDocument)
        assert all(problem.path == "x.json" for problem in refused.problems)


def test_a_number_keeps_its_digits_in_the_layout_of_the_store_too() -> None:
    document = new_capsule("c", "t", STAMP, metadata={"unknown": 0})
    data = codec.encode(document).replace(b'"unknown": 0', b'"unknown": 2.50')
    assert clean(data, "p", "conversations") == data


def test_a_newer_major_version_is_left_alone() -> None:
    data = b'{"version": "3.0",   "history": {"lock": {"active": true}}}'
    assert clean(data, "p", "conversations") == clean(data, "p", "agents") == data


def test_an_agents_document_gets_the_layout_and_the_order_of_the_format() -> None:
    data = b'\xef\xbb\xbf{"z": 1,\r\n"a": {"b": 2.50},"cursors":{}, "id":"anna"}'
    laid = {"id": "anna", "cursors": {}, "z": 1, "a": {"b": 2.5}}
    once = clean(data, "p", "agents")
    assert once == codec.encode(laid).replace(b"2.5", b"2.50")
    assert clean(once, "p", "agents") == once
