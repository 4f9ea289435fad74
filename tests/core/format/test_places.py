"""Places in the text of a file."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from capsule.format.json.locations import JsonPath, format_path, locate, locate_all

DATA = '\ufeff{"a": {"b": [1, {"é": "x,]}"},\r\n  {"d": [[], 2]}]},\n "\\u007a": -1.5, "": null}'.encode()


def test_a_value_is_found_at_its_path() -> None:
    for where, place in [
        ((), (1, 1)),
        (("a", "b", 1, "é"), (1, 23)),
        (("a", "b", 2, "d", 1), (2, 14)),
        (("z",), (3, 12)),
        (("a", "b", 9, "x"), (1, 13)),
        (("a", "b", 2, "missing"), (2, 3)),
        (("missing", "too"), (1, 1)),
        (("z", "inside", 0), (3, 12)),
    ]:
        assert locate(DATA, where) == place


def _paths(value: Any, where: JsonPath = ()) -> list[tuple[JsonPath, Any]]:
    found = [(where, value)]
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for step, inner in items:
        found.extend(_paths(inner, (*where, step)))
    return found


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
trees = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
)


@given(trees, st.sampled_from([None, 1, 3]))
def test_all_values_are_found_in_one_walk(tree: Any, indent: int | None) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=False)
    lines = text.split("\n")
    wanted = _paths(tree)
    places = locate_all(text.encode(), [where for where, _ in wanted])
    for where, value in wanted:
        line, column = places[where]
        rest = "\n".join([lines[line - 1][column - 1 :], *lines[line:]])
        assert json.JSONDecoder().raw_decode(rest)[0] == value


@given(
    st.binary(max_size=60), st.lists(st.text(max_size=2) | st.integers(0, 3), max_size=4).map(tuple)
)
def test_no_bytes_upset_the_search(data: bytes, where: JsonPath) -> None:
    line, column = locate(data, where)
    assert line >= 1
    assert column >= 1


def test_the_search_survives_any_depth() -> None:
    assert locate(b"[" * 200_000, (0, 0)) == (1, 3)


def test_a_path_is_shown_as_people_write_it() -> None:
    assert format_path(("history", 3, "role")) == "history[3].role"
    assert format_path(("a", "b c", "d")) == 'a["b c"].d'
    assert format_path(()) == ""
    assert len(format_path(("x",) * 500)) < 160
