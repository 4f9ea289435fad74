"""Filters over the fields of messages: what each operator finds, what is refused, and what stays hidden."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from tests.index.filtering import fits

#: The messages of the tables, by their places.
FIELDS: list[dict[str, Any]] = [
    {},
    {
        "topic": "api",
        "confidence": 0.5,
        "intent": "ask",
        "metadata": {"tags": ["x", "y"], "release": {"name": "v1"}},
    },
    {"topic": "web", "confidence": 0.9, "metadata": {"tags": ["y"], "release": {"name": "V2 final"}, "note": None}},
    {"topic": "apiary", "confidence": 1, "metadata": {"tags": [], "note": "", "done": True, "confidence": 7}},
    {"metadata": {"tags": "x-ray", "n": "1", "release": {}, "steps": [{"name": "build"}, {"name": "ship"}], "done": 1}},
    {"mentions": {"valid": ["anna", "@all"], "invalid": ["carl"]}, "model": "opus", "metadata": {"note": [None, 3, 3]}},
]
TABLE: list[tuple[dict[str, Any], list[int]]] = [
    ({}, [0, 1, 2, 3, 4, 5]),
    ({"topic": "api"}, [1]),
    ({"topic": {"$eq": "api"}}, [1]),
    ({"topic": {"$ne": "api"}}, [0, 2, 3, 4, 5]),
    ({"done": True}, [3]),
    ({"done": 1}, [4]),
    ({"n": 1}, []),
    ({"tags": "x"}, [1]),
    ({"confidence": {"$gt": 0.9}}, [3]),
    ({"confidence": {"$gte": 0.9}}, [2, 3]),
    ({"confidence": {"$lt": 0.9}}, [1]),
    ({"confidence": {"$lte": 0.9}}, [1, 2]),
    ({"confidence": {"$gt": 0.5, "$lt": 1}}, [2]),
    ({"confidence": {"$between": [0.5, 0.9]}}, [1, 2]),
    ({"confidence": 7}, [3]),
    ({"topic": {"$gte": "apiary"}}, [2, 3]),
    ({"topic": {"$between": ["api", "apiary"]}}, [1, 3]),
    ({"topic": {"$in": ["api", "web", None, 5]}}, [1, 2]),
    ({"topic": {"$nin": ["api", "web"]}}, [0, 3, 4, 5]),
    ({"tags": {"$contains": "x"}}, [1, 4]),
    ({"tags": {"$not_contains": "x"}}, [0, 2, 3, 5]),
    ({"note": {"$contains": 3}}, [5]),
    ({"tags": {"$all": ["x", "y"]}}, [1]),
    ({"tags": {"$size": 0}}, [3]),
    ({"note": {"$size": 3}}, [5]),
    ({"note": {"$exists": True}}, [2, 3, 5]),
    ({"note": {"$exists": False}}, [0, 1, 4]),
    ({"release": {"$exists": True}}, [1, 2, 4]),
    ({"note": {"$null": True}}, [2, 5]),
    ({"note": {"$null": False}}, [0, 1, 3, 4]),
    ({"note": {"$empty": True}}, [2, 3]),
    ({"release": {"$empty": True}}, [4]),
    ({"tags": {"$empty": False}}, [0, 1, 2, 4, 5]),
    ({"release.name": {"$regex": "^v"}}, [1]),
    ({"release.name": {"$regex": "(?i)^v[12]"}}, [1, 2]),
    ({"release.name": {"$text": "final v2"}}, [2]),
    ({"release.name": {"$text": "fin"}}, []),
    ({"steps.name": "ship"}, [4]),
    ({"mentions": "anna"}, [5]),
    ({"mentions": "carl"}, []),
    ({"model": {"$exists": True}, "mentions": "@all"}, [5]),
    ({"$or": [{"topic": "web"}, {"intent": "ask"}]}, [1, 2]),
    ({"$and": [{"topic": {"$exists": True}}, {"$not": {"topic": "web"}}]}, [1, 3]),
    ({"confidence": {"$not": {"$gte": 0.9}}}, [0, 1, 4, 5]),
]


def entries(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"text {place}", **each} for place, each in enumerate(fields)]


def places(store: Store, where: dict[str, Any], **asked: Any) -> list[int | None]:
    return sorted(hit.at or 0 for hit in store.search("", where=where, limit=100, **asked).hits)


@pytest.fixture(scope="module")
def store() -> Store:
    store = Store.in_memory()
    store.append_entries(store.create(title="api").id, entries(FIELDS))
    return store


@pytest.mark.parametrize(("where", "expected"), TABLE, ids=lambda given: str(given)[:60])
def test_each_operator_finds_the_messages_that_fit(store: Store, where: dict[str, Any], expected: list[int]) -> None:
    assert places(store, where) == expected
    assert [place.place for place in store.index.messages_with(where)] == expected
    assert [place for place, entry in enumerate(FIELDS) if fits(entry, where)] == expected


def test_words_and_filters_narrow_together_and_titles_are_not_found_by_a_filter(store: Store) -> None:
    assert [hit.at for hit in store.search("text 1", where={"topic": "api"}).hits] == [1]
    assert store.search("text 2", where={"topic": "api"}).having == 1
    assert store.search("api", where={"topic": "web"}).hits == []


# -- As a naive evaluator says ----------------------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 0.5, 1.0, 2**53, -(2**63), "", "a", "A b", "b", "é'\"%", "\0"])
)
KEYS = st.sampled_from(["a", "b", "a.b", "", "$eq", "x' OR 1=1 --", "é"])
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
ENTRIES = st.lists(st.fixed_dictionaries({"metadata": st.dictionaries(KEYS, VALUES, max_size=4)}), max_size=6)
PATHS = st.sampled_from(["a", "b", "a.b", "a.a", "b.a.b", "x' OR 1=1 --", "é", "a.", "c"])
COMPARABLE = st.sampled_from([-1, 0, 0.5, 1]) | st.sampled_from(["", "a", "b"])
PAIRS = st.tuples(st.sampled_from([-1, 0]), st.sampled_from([0, 1])) | st.just(("", "a"))
OPERATORS = st.one_of(
    *(st.tuples(st.just(name), SCALARS) for name in ("$eq", "$ne", "$contains", "$not_contains")),
    *(st.tuples(st.just(name), COMPARABLE) for name in ("$gt", "$gte", "$lt", "$lte")),
    *(st.tuples(st.just(name), st.lists(SCALARS, min_size=1, max_size=3)) for name in ("$in", "$nin", "$all")),
    *(st.tuples(st.just(name), st.booleans()) for name in ("$exists", "$null", "$empty")),
    st.tuples(st.just("$size"), st.integers(0, 3)),
    st.tuples(st.just("$between"), PAIRS.map(list)),
    st.tuples(st.sampled_from(["$regex", "$text"]), st.sampled_from(["a", "b", "A b"])),
)
TESTS = st.tuples(PATHS, st.lists(OPERATORS, min_size=1, max_size=2).map(dict)).map(lambda pair: {pair[0]: pair[1]})
FILTERS = st.recursive(
    TESTS,
    lambda inner: (
        st.tuples(st.sampled_from(["$and", "$or"]), st.lists(inner, min_size=1, max_size=3)).map(
            lambda one: dict([one])
        )
        | inner.map(lambda one: {"$not": one})
    ),
    max_leaves=5,
)


@given(fields=ENTRIES, where=FILTERS)
def test_a_filter_finds_what_a_look_at_each_message_finds(fields: list[dict[str, Any]], where: dict[str, Any]) -> None:
    with Store.in_memory() as store:
        if fields:
            store.append_entries(store.create(title="x").id, entries(fields))
        assert places(store, where) == [place for place, entry in enumerate(fields) if fits(entry, where)]
