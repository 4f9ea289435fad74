"""Filters over the fields of messages: what each operator finds, what is refused, and what stays
hidden.
"""

from __future__ import annotations

import re
import sqlite3
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import InvalidInput, Store
from capsule.engines.index.tables import filters
from capsule.engines.index.visibility import SEES_ALL
from capsule.engines.questions import filter_sets
from capsule.format.facts import LONGEST_TEXT, facts_of
from capsule.format.filters import MAX_CONDITIONS, MAX_DEPTH, parse
from capsule.format.json import codec
from tests.core.index.filtering import fits
from tests.core.index.state import asked

#: The messages of the tables, by their places.
FIELDS: list[dict[str, Any]] = [
    {"id": "root"},
    {
        "topic": "api",
        "confidence": 0.5,
        "intent": "ask",
        "metadata": {"tags": ["x", "y"], "release": {"name": "v1"}},
    },
    {
        "topic": "web",
        "confidence": 0.9,
        "metadata": {"tags": ["y"], "release": {"name": "V2 final"}, "note": None},
    },
    {
        "topic": "apiary",
        "confidence": 1,
        "metadata": {"tags": [], "note": "", "done": True, "confidence": 7},
    },
    {
        "metadata": {
            "tags": "x-ray",
            "n": "1",
            "release": {},
            "steps": [{"name": "build"}, {"name": "ship"}],
            "done": 1,
        }
    },
    {
        "thread": "root",
        "mentions": {"valid": ["anna", "@all"], "invalid": ["carl"]},
        "model": "opus",
        "metadata": {"note": [None, 3, 3]},
    },
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
    ({"metadata.steps.name": "ship"}, [4]),
    ({"thread": "root"}, [0, 5]),
    ({"thread": {"$nin": ["root", "other"]}}, [1, 2, 3, 4]),
    ({"thread": {"$exists": True}}, [5]),
    ({"mentions": "anna"}, [5]),
    ({"mentions": "carl"}, []),
    ({"model": {"$exists": True}, "mentions": "@all"}, [5]),
    ({"$or": [{"topic": "web"}, {"intent": "ask"}]}, [1, 2]),
    ({"$and": [{"topic": {"$exists": True}}, {"$not": {"topic": "web"}}]}, [1, 3]),
    ({"confidence": {"$not": {"$gte": 0.9}}}, [0, 1, 4, 5]),
]


def entries(fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": f"text {place}", **each} for place, each in enumerate(fields)
    ]


def places(store: Store, where: dict[str, Any], **asked: Any) -> list[int | None]:
    return sorted(hit.at or 0 for hit in store.search("", where=where, limit=100, **asked).hits)


@pytest.fixture(scope="module")
def store() -> Store:
    store = Store.in_memory()
    store.append_entries(store.create(title="api").id, entries(FIELDS))
    return store


@pytest.mark.parametrize(("where", "expected"), TABLE, ids=lambda given: str(given)[:60])
def test_each_operator_finds_the_messages_that_fit(
    store: Store, where: dict[str, Any], expected: list[int]
) -> None:
    assert places(store, where) == expected
    for conversation in (None, *store.ids()):
        assert [place.position for place in store.queries.messages(where, conversation)] == expected
    assert [place for place, entry in enumerate(FIELDS) if fits(entry, where)] == expected


#: All words of the statements.
SQL = {
    "AND",
    "BETWEEN",
    "FROM",
    "IN",
    "INDEXED",
    "BY",
    "NOT",
    "OR",
    "SELECT",
    "TRUE",
    "WHERE",
    "facts_by_value",
}
SQL |= {"CASE", "WHEN", "THEN", "END", "matches"}
SQL |= {
    "facts",
    "instr",
    "json_each",
    "json_group_array",
    "m.num",
    "message",
    "path",
    "type",
    "value",
}
SQL |= {"id", "messages", "num", "CAST", "AS", "BIGINT"}


@pytest.mark.parametrize("where", [where for where, _ in TABLE], ids=lambda given: str(given)[:60])
def test_nothing_that_a_caller_gives_becomes_sql(store: Store, where: dict[str, Any]) -> None:
    statements: list[str] = []

    class Recording:
        def __init__(self, db: sqlite3.Connection) -> None:
            self._db = db

        def execute(self, statement: str, values: Any) -> sqlite3.Cursor:
            statements.append(statement)
            return self._db.execute(statement, values)

        def create_function(self, *arguments: Any) -> None:
            self._db.create_function(*arguments)

    def ask(db: Any) -> None:
        statements.append(
            filters.FilterMatcher(cast(Any, Recording(db)), SEES_ALL).condition(parse(where))[0]
        )

    asked(store, ask)
    words = set(re.findall(r"[^\s()?,<>=]+", " ".join(statements)))
    assert {word for word in words if word != "''" and not word.isdecimal()} <= SQL


def test_words_and_filters_narrow_together_and_titles_are_not_found_by_a_filter(
    store: Store,
) -> None:
    assert [hit.at for hit in store.search("text 1", where={"topic": "api"}).hits] == [1]
    assert store.search("text 2", where={"topic": "api"}).having == 1
    assert store.search("api", where={"topic": "web"}).hits == []


# -- As a naive evaluator says ---------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 0.5, 1.0, 2**53, -(2**63), "", "a", "A b", "b", "é'\"%", "\0"])
)
KEYS = st.sampled_from(["a", "b", "a.b", "", "$eq", "x' OR 1=1 --", "é"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
ENTRIES = st.lists(
    st.fixed_dictionaries({"metadata": st.dictionaries(KEYS, VALUES, max_size=4)}), max_size=6
)
PATHS = st.sampled_from(["a", "b", "a.b", "a.a", "b.a.b", "x' OR 1=1 --", "é", "a.", "c"])
COMPARABLE = st.sampled_from([-1, 0, 0.5, 1]) | st.sampled_from(["", "a", "b"])
PAIRS = st.tuples(st.sampled_from([-1, 0]), st.sampled_from([0, 1])) | st.just(("", "a"))
OPERATORS = st.one_of(
    *(st.tuples(st.just(name), SCALARS) for name in ("$eq", "$ne", "$contains", "$not_contains")),
    *(st.tuples(st.just(name), COMPARABLE) for name in ("$gt", "$gte", "$lt", "$lte")),
    *(
        st.tuples(st.just(name), st.lists(SCALARS, min_size=1, max_size=3))
        for name in ("$in", "$nin", "$all")
    ),
    *(st.tuples(st.just(name), st.booleans()) for name in ("$exists", "$null", "$empty")),
    st.tuples(st.just("$size"), st.integers(0, 3)),
    st.tuples(st.just("$between"), PAIRS.map(list)),
    st.tuples(st.sampled_from(["$regex", "$text"]), st.sampled_from(["a", "b", "A b"])),
)
TESTS = st.tuples(PATHS, st.lists(OPERATORS, min_size=1, max_size=2).map(dict)).map(
    lambda pair: {pair[0]: pair[1]}
)
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
def test_a_filter_finds_what_a_look_at_each_message_finds(
    fields: list[dict[str, Any]], where: dict[str, Any]
) -> None:
    with Store.in_memory() as store:
        id = store.create(title="x").id
        if fields:
            store.append_entries(id, entries(fields))
        expected = [place for place, entry in enumerate(fields) if fits(entry, where)]
        assert places(store, where) == expected
        assert [place.position for place in store.queries.messages(where, id)] == expected


# -- What is refused -------------------------------------------------------------------------------

LOOP: dict[str, Any] = {}
LOOP["$not"] = LOOP
REFUSED: list[Any] = [
    5,
    "topic",
    [{"topic": "api"}],
    {"topic": {}},
    {"topic": ["api"]},
    {"": 1},
    {5: 1},
    {"$where": "1"},
    {"topic": {"$like": "%"}},
    {"topic": {"eq": 1}},
    {"topic": {"$eq": {"a": 1}}},
    {"topic": {"$in": "api"}},
    {"topic": {"$in": []}},
    {"topic": {"$in": list(range(MAX_CONDITIONS + 1))}},
    {"topic": {"$gt": None}},
    {"topic": {"$lte": True}},
    {"topic": {"$between": [1]}},
    {"topic": {"$between": [1, "2"]}},
    {"topic": {"$size": -1}},
    {"topic": {"$size": True}},
    {"topic": {"$exists": 1}},
    {"topic": {"$not": "api"}},
    {"topic": {"$regex": "(?=look)ahead"}},
    {"topic": {"$regex": "("}},
    {"topic": {"$regex": "((a{1000}){1000}){1000}"}},
    {"topic": {"$regex": 5}},
    {"topic": {"$text": None}},
    {"topic": "x" * (LONGEST_TEXT + 1)},
    {"topic": "\ud800"},
    {"\ud800": 1},
    {"a" * 201: 1},
    {".".join("a" * 18): 1},
    {"role": "user"},
    {"toolCalls.name": {"$exists": True}},
    {"metadata": 1},
    {"metadata.": 1},
    {"n": float("nan")},
    {"n": float("inf")},
    {"n": 10**5000},
    {"$or": []},
    {"$and": {"topic": "api"}},
    {"$or": [{"topic": "api"}] * (MAX_CONDITIONS + 1)},
    {"$or": [{"$or": [{"topic": "api"}] * 20}] * 20},
    {"$or": [{"$and": [{}] * 20}] * 20},
    LOOP,
]


@pytest.mark.parametrize("where", REFUSED, ids=range(len(REFUSED)))
def test_what_can_not_be_answered_within_bounds_is_refused(store: Store, where: Any) -> None:
    with pytest.raises(InvalidInput, match="filter") as refused:
        store.search("", where=where)
    assert not any(word in str(refused.value) for word in ("SchemaError", "validator", "pydantic"))


def test_a_filter_as_deep_and_as_large_as_may_be_is_answered(store: Store) -> None:
    deep: dict[str, Any] = {"topic": "api"}
    for _ in range(MAX_DEPTH - 1):
        deep = {"$and": [deep]}
    assert places(store, deep) == [1]
    large = [{"topic": topic} for topic in [*map(str, range(MAX_CONDITIONS - 1)), "api"]]
    assert places(store, {"$or": large}) == [1]
    assert places(store, {"topic": {"$in": [*map(str, range(MAX_CONDITIONS - 1)), "api"]}}) == [1]


@pytest.mark.parametrize(
    "key", ["x' OR 1=1 --", 'a"b', "a; DROP TABLE facts", "\0", "%", "ключ", " ", "a..b"]
)
def test_hostile_keys_and_values_are_only_compared(key: str) -> None:
    with Store.in_memory() as store:
        store.append_entries(
            store.create(title="x").id,
            entries([{"metadata": {key: key}}, {"metadata": {"b": "1"}}]),
        )
        assert places(store, {key: key}) == places(store, {key: {"$contains": key}}) == [0]
        assert places(store, {"b": key}) == []
        assert places(store, {"b": {"$ne": key}}) == [0, 1]


@pytest.mark.parametrize("pattern", ["^(a+)+b$", "(a|a)*b", "(.*a.{90}){1,10}z"])
def test_a_pattern_that_would_run_away_in_python_is_answered(pattern: str) -> None:
    with Store.in_memory() as store:
        fields = [{"metadata": {"t": "a" * LONGEST_TEXT + str(number)}} for number in range(10)]
        store.append_entries(store.create(title="x").id, entries(fields))
        assert places(store, {"t": {"$regex": pattern}}) == []


def test_patterns_are_stopped_when_their_time_is_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filter_sets, "_MATCHED_S", 0.0)
    for operator in ("$regex", "$text"):
        with pytest.raises(InvalidInput, match="takes longer"):
            places(store, {"topic": {operator: "api"}})


def test_a_text_longer_than_a_filter_may_have_equals_no_text_of_a_filter() -> None:
    with Store.in_memory() as store:
        texts = ["a" * LONGEST_TEXT, "a" * (LONGEST_TEXT + 1), "a" * 100_000 + "b"]
        store.append_entries(
            store.create(title="x").id, entries([{"metadata": {"t": text}} for text in texts])
        )
        assert places(store, {"t": texts[0]}) == [0]
        assert places(store, {"t": {"$contains": texts[0]}}) == [0, 1, 2]


def test_metadata_of_any_depth_is_indexed_as_far_as_a_filter_can_ask() -> None:
    deep: Any = "end"
    for number in range(200):
        deep = [deep] if number % 2 else {"a": deep}
    with Store.in_memory() as store:
        id = store.create(title="x").id
        store.append_entries(
            id, entries([{"metadata": {"deep": [[[deep]]], "n": [1e30, 2**64 - 1]}}, {}])
        )
        assert places(store, {"deep.a": {"$exists": True}}) == places(store, {"n": 10**30}) == [0]
        assert places(store, {"n": {"$gt": 2**63}, "deep": {"$size": 1}}) == [0]
    assert facts_of({"metadata": {"n": orjson.Fragment("1e400")}})[0][2] == float("inf")


# -- As messages change, and for whom --------------------------------------------------------------


def test_filters_follow_edits_removals_and_deletions() -> None:
    with Store.in_memory() as store:
        id = store.create(title="x").id
        store.append_entries(id, entries([{"metadata": {"n": number}} for number in range(4)]))
        assert places(store, {"n": {"$gte": 2}}) == [2, 3]
        ids = [message.id for message in store.load(id).history]
        document = codec.decode(store.read(id), id)
        document["history"][3]["metadata"] = {"n": 0}
        store.edits.rewrite(id, codec.encode(document), store.read(id))
        assert places(store, {"n": {"$gte": 2}}) == [2]
        store.branches.remove(id, ids[2])
        assert places(store, {"n": {"$gte": 2}}) == []
        store.delete(id)
        assert places(store, {}) == []


# -- Pages of a conversation -----------------------------------------------------------------------
