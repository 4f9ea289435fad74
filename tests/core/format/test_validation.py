"""Telling a capsule from what is none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.errors import InvalidDocument
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.format.migrations import upgrade
from capsule.format.models import Capsule
from capsule.format.validation import MAX_PROBLEMS, check, oddities

SAMPLES = sorted((Path(__file__).parents[2] / "data" / "capsules").glob("*.json"))
STAMP = "2025-01-12T10:00:00.000Z"


def valid() -> dict[str, Any]:
    return new_capsule(
        "c1",
        "A title",
        STAMP,
        type="group",
        messages=[{"role": "user", "content": "x", "timestamp": STAMP, "id": "m"}],
    )


def changed(where: tuple[str | int, ...], value: Any) -> dict[str, Any]:
    document: Any = valid()
    spot = document
    for step in where[:-1]:
        spot = spot[step]
    spot[where[-1]] = value
    return dict(document)


def found(document: dict[str, Any]) -> list[str]:
    """The problems of a document without their places."""
    data = codec.encode(document)
    try:
        check(document, data, "c.json")
    except InvalidDocument as error:
        return [f"{problem.where}: {problem.what}" for problem in error.problems]
    return []


def test_a_wrong_field_is_named_with_what_it_must_be() -> None:
    for where, value, says in [
        (("id",), 5, "id: must be a text, is a number"),
        (("id",), "../x", "id: '../x' is not an id: an id starts"),
        (("title",), None, "title: must be a text, is null"),
        (("version",), 2.1, 'version: must be a text like "2.1", is a number'),
        (
            ("version",),
            "3.0",
            (
                "version: version 3.0 was written by a newer version of Capsule; the file stays "
                "unchanged"
            ),
        ),
        (
            ("createdAt",),
            "soon",
            "createdAt: must be a time like 2025-01-12T10:30:00.000Z (ISO 8601), is 'soon'",
        ),
        (
            ("createdAt",),
            1736676000,
            "createdAt: must be a time (a text like 2025-01-12T10:30:00.000Z), is a number",
        ),
        (("updatedAt",), "2025-02-30T00:00:00.000Z", "updatedAt: must be a time"),
        (("updatedAt",), "0001-01-01T00:00:00+23:00", "updatedAt: must be a time"),
        (("metadata", "mode"), "cli", "metadata.mode: must be one of api, toolbox, is 'cli'"),
        (
            ("metadata", "tags"),
            ["a", 1],
            "metadata.tags: must be a list of texts, is a list whose item 1 is a number",
        ),
        (("metadata", "pinned"), "yes", "metadata.pinned: must be true or false, is a text"),
        (
            ("context", "metadata", "filesIncluded"),
            1.5,
            "context.metadata.filesIncluded: must be a whole number",
        ),
        (
            ("context", "metadata", "files"),
            [1],
            "context.metadata.files[0]: must be an object, is a number",
        ),
        (("history",), {}, "history: must be a list of objects, is an object"),
        (("history", 0), "hello", "history[0]: must be an object, is a text"),
        (
            ("history", 0, "role"),
            "bard",
            "history[0].role: must be one of user, assistant, system, tool, is 'bard'",
        ),
    ]:
        problems = found(changed(where, value))
        assert len(problems) == 1
        assert says in problems[0]


def test_reading_is_lenient_where_the_format_allows_it() -> None:
    for where, value in [
        (("createdAt",), "2025-01-12T10:00:00+02:00"),
        (("createdAt",), "2025-01-12 10:00"),
        (("history", 0, "timestamp"), None),
        (("history", 0, "from"), "anyone at all"),
        (("history", 0, "unknown"), {"role": 1}),
        (("version",), "2.0"),
        (("version",), "2.9"),
    ]:
        assert found(changed(where, value)) == []


def test_a_newer_minor_may_have_values_that_are_not_known() -> None:
    document = changed(("history", 0, "role"), "narrator")
    document["metadata"]["mode"] = "voice"
    assert len(found(document)) == 2
    assert found({**document, "version": "2.7"}) == []
    assert found({**document, "version": "2.7", "title": 1}) == [
        "title: must be a text, is a number"
    ]


def test_an_old_document_needs_an_id_and_a_history_only() -> None:
    for version in ["1.0", "1.7.2", "0.9", None]:
        document: dict[str, Any] = {"id": "x", "history": [{"role": "user", "content": "y"}]}
        if version:
            document["version"] = version
        assert found(document) == []
        assert found({"version": version} if version else {}) == [
            "id: is missing",
            "history: is missing",
        ]


def test_every_problem_has_its_line_and_column_in_the_order_of_the_file() -> None:
    data = (
        b'{"version": "2.0", "id": "x", "title": 1, "createdAt": "2025-01-12T10:00:00Z",\n'
        b' "history": [\n  {"role": "user", "content": "\xc3\xa9"},\n  {"content": 2, "role": '
        b'"x"},\n'
        b'  {"role": "user"}\n ]}'
    )
    with pytest.raises(InvalidDocument) as caught:
        check(codec.decode(data, "c.json"), data, "c.json")
    assert [(p.line, p.column, p.where) for p in caught.value.problems] == [
        (1, 1, "updatedAt"),
        (1, 40, "title"),
        (4, 15, "history[1].content"),
        (4, 26, "history[1].role"),
        (5, 3, "history[2].content"),
    ]
    assert "c.json:4:15: history[1].content: must be a text, is a number" in str(caught.value)


def test_a_file_full_of_problems_gives_a_list_of_bearable_length() -> None:
    assert len(found({**valid(), "history": [1] * 10_000})) == MAX_PROBLEMS


def test_notes_tell_what_is_odd_and_can_be_read() -> None:
    document = valid()
    document["createdAt"] = "2025-01-12T10:00:00"
    document["history"] += [
        {"role": "user", "content": "", "id": "m", "timestamp": "2025-01-12T10:00:00.000Z"},
        {"role": "user", "content": "", "parent": "nobody", "timestamp": "2025-01-12T10:00"},
        {"role": "user", "content": "", "parent": "m", "editedAt": "2025-01-12T10:00:00+0100"},
        {"role": "user", "content": "", "parent": None},
    ]
    data = codec.encode(document)
    assert found(document) == []
    told = oddities(document, "c.json", data)
    assert [problem.where for problem in told] == [
        "createdAt",
        "history[1].id",
        "history[2].parent",
        "history[2].timestamp",
    ]
    assert all(problem.line > 1 and problem.column > 1 for problem in told)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.just(STAMP),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["role", "content", "id", "lock", "path", "x"]), inner, max_size=2
        )
    ),
    max_leaves=6,
)


@given(st.data())
def test_what_passes_the_check_loads_migrates_and_stays_valid(draw: st.DataObject) -> None:
    document: Any = valid() | {"version": draw.draw(st.sampled_from(["2.1", "2.0", "1.0", "2.8"]))}
    for _ in range(draw.draw(st.integers(1, 3))):
        spot = document
        while True:
            step = draw.draw(
                st.sampled_from(list(spot) if isinstance(spot, dict) else list(range(len(spot))))
            )
            if (
                not isinstance(spot[step], (dict, list))
                or not spot[step]
                or draw.draw(st.booleans())
            ):
                break
            spot = spot[step]
        if draw.draw(st.booleans()) and isinstance(spot, dict) and len(spot) > 1:
            del spot[step]
        else:
            spot[step] = draw.draw(json_values)
    data = json.dumps(document, indent=1).encode()
    try:
        decoded = codec.decode(data, "c.json")
        check(decoded, data, "c.json")
    except InvalidDocument as error:
        places = [(problem.line, problem.column) for problem in error.problems]
    else:
        places = []
        _loads_migrates_and_stays_valid(decoded, data)
    assert places == sorted(places)
    assert all(line and column for line, column in places)


def _loads_migrates_and_stays_valid(decoded: dict[str, Any], data: bytes) -> None:
    oddities(decoded, "c.json", data)
    made, _ = upgrade(decoded)
    written = codec.encode(made)
    check(made, written, "c.json")
    Capsule.model_validate_json(written)
    assert upgrade(made) == (made, [])


@given(st.sampled_from(SAMPLES), st.data())
def test_mutated_files_are_refused_or_stay_good(path: Path, draw: st.DataObject) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(draw.draw(st.integers(1, 3))):
        at = draw.draw(st.integers(0, len(data) - 1))
        data[at : at + draw.draw(st.integers(0, 3))] = draw.draw(
            st.sampled_from([b"", b"0", b"x", b",", b'"', b"null"])
        )
    try:
        decoded = codec.decode(bytes(data), "c.json")
        check(decoded, bytes(data), "c.json")
    except InvalidDocument:
        return
    _loads_migrates_and_stays_valid(decoded, bytes(data))
