"""Lists: their filters, their order whatever changes, and the counts for the menus beside them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from capsule import Filter, Store
from capsule.engines.queries import Facets, ListRequest, Order, key_of
from capsule.format.text.tokens import estimate

CLAUDE, CODEX = (
    {"cwd": "/work/app"},
    {"lines": [{"payload": {"cwd": "/work/api"}}, {"payload": {"cwd": "/tmp"}}]},
)


def put(store: Store, id: str, program: str = "", **metadata: Any) -> None:
    """A conversation as an import leaves it, if a program is given."""
    store.create(id=id, title=id, type="group" if "participants" in metadata else "chat")
    document = store.document(id)
    document["metadata"] |= metadata | (
        {"imported": {"format": program, "id": f"s-{id}"}} if program else {}
    )
    store.inner.change(id, lambda here: here.rewrite(lambda now: document, reason="edited"))


@pytest.fixture
def filled(store: Store) -> Store:
    put(store, "plain", tags=["red", "red", "blue"])
    put(store, "claude", "claude-code", source=CLAUDE, tags=["red"])
    put(store, "below", "claude-code", source={"cwd": "/work/app/web"})
    put(store, "beside", "opencode", source={"directory": "/work/app2"})
    put(store, "codex", "codex", source=CODEX)
    put(store, "team", participants=["anna", {"id": "bob", "leftAt": "2026-01-01T00:00:00.000Z"}])
    store.context.set("plain", {"fullContext": "x", "metadata": {"projectPath": "/work/api"}})
    return store


def ids(store: Store, **filter: Any) -> set[str]:
    page = store.list(Filter(**filter))
    assert page.total == len(page.heads)
    return {head.id for head in page.heads}


def test_a_list_finds_conversations_by_program_folder_and_agent(filled: Store) -> None:
    assert ids(filled, source="claude-code") == {"claude", "below"}
    assert ids(filled, source="here") == {"plain", "team"}
    assert (
        ids(filled, project="/work/app") == ids(filled, project="/work/app/") == {"claude", "below"}
    )
    assert ids(filled, project="/work/api") == {"codex", "plain"}
    assert ids(filled, project="/") == {"claude", "below", "beside", "codex", "plain"}
    assert ids(filled, agent="anna") == ids(filled, agent="bob") == {"team"}
    assert ids(filled, ids=frozenset({"plain", "team", "gone"}), tags=("blue",)) == {"plain"}
    assert (
        ids(filled, agent="nobody")
        == ids(filled, source="atif")
        == ids(filled, project="/work/a")
        == set()
    )
    assert ids(filled, project="/elsewhere", members=frozenset({"anna"})) == set(), (
        "only the store says who is there"
    )


def test_a_head_says_where_a_conversation_comes_from(filled: Store) -> None:
    heads = {head.id: head for head in filled.list().heads}
    assert heads["codex"].as_json()["imported"] == {"format": "codex", "folder": "/work/api"}
    assert heads["plain"].as_json()["imported"] == {"folder": "/work/api"}
    assert "imported" not in heads["team"].as_json()
    assert replace(filled.head("claude"), bytes=0) == replace(heads["claude"], bytes=0)


@pytest.mark.parametrize(
    "source", [None, 5, [], {"cwd": 5}, {"cwd": ""}, {"lines": 5}, {"lines": [5]}, {"lines": []}]
)
def test_a_source_of_any_form_is_no_damage(store: Store, source: Any) -> None:
    put(store, "odd", source=source, imported=source)
    (head,) = store.list().heads
    assert (head.damaged, head.source, head.folder) == ("", "", "")


@pytest.mark.files
def test_facets_count_what_a_list_can_be_filtered_by(filled: Store) -> None:
    Path(filled.root, "conversations", "broken.json").write_text("{")
    facets = filled.facets()
    assert facets == Facets(
        conversations=6,
        tags={"red": 2, "blue": 1},
        types={"chat": 5, "group": 1},
        modes={"api": 6},
        agents={"anna": 1, "bob": 1},
        projects={"/work/api": 2, "/work/app": 2, "/work/app/web": 1, "/work/app2": 1},
        sources={"claude-code": 2, "here": 2, "codex": 1, "opencode": 1},
    )
    assert {
        folder: len(ids(filled, project=folder)) for folder in facets.projects
    } == facets.projects
    assert {source: len(ids(filled, source=source)) for source in facets.sources} == facets.sources
    assert filled.facets(Filter(source="codex")).projects == {"/work/api": 1}
    assert filled.facets(Filter(tags=("none",))).conversations == 0


def test_a_page_names_the_model_that_wrote_last(filled: Store) -> None:
    filled.append("claude", role="assistant", content="a", model="m-1")
    filled.append("claude", role="assistant", content="b", model="m-2")
    filled.append("claude", content="c")
    filled.append("codex", role="assistant", content="a", model="m-1")
    filled.append_many("codex", [{"role": "user", "content": "x"}] * 60)
    assert filled.list().models == {"claude": "m-2"}
    assert filled.list(Filter(ids=frozenset({"codex"}))).models == {}


def test_tokens_are_those_of_the_text_the_reasoning_and_the_calls(store: Store) -> None:
    store.create(
        id="a",
        messages=[{"role": "assistant", "content": "Yes, so be it.", "reasoning": "Why? Because."}],
    )
    assert store.stats().tokens == estimate(b"Yes, so be it.") + estimate(b"Why? Because.")
    store.append("a", content="And another text")
    assert store.stats().by_source["here"].tokens == store.stats().tokens


@pytest.mark.files
def test_an_order_is_the_same_whether_it_was_repaired_or_made_anew(store: Store) -> None:
    draw = random.Random(11)

    def listed(questions: Any) -> dict[str, list[str]]:
        return {order: [head.id for head in questions(order)] for order in get_args(Order)}

    for step in range(60):
        id = f"c{draw.randrange(12)}"
        if not store.engine.exists("conversations", id):
            store.create(id=id, title=draw.choice(["B", "a", "Ü"]))
        elif (what := draw.randrange(5)) == 0:
            store.delete(id)
        elif what == 1:
            store.update(id, pinned=draw.random() < 0.5)
        elif what == 2:
            store.update(id, title=draw.choice(["Plan", "plan", "Ärger"]))
        elif what == 3:
            Path(store.root, "conversations", f"{id}.json").write_text("{")
            store.list()
            store.delete(id)
        else:
            store.append(id, content="on")
        kept = listed(lambda order: store.list(order=order).heads)
        heads = store.queries.conversations(ListRequest()).heads
        anew = {
            order: sorted(heads, key=key_of(order), reverse=order != "title")
            for order in get_args(Order)
        }
        assert kept == listed(lambda order, anew=anew: Filter().of(anew[order])), step
        with Store.open(store.root, keep_locks=False) as other:
            assert kept == listed(lambda order, other=other: other.list(order=order).heads), step
