"""Lists by agents and their projects."""

from __future__ import annotations

from typing import Any

import pytest

from capsule import Filter, InvalidInput, Store

AGENTS = {"anna": "/work/app", "bob": "/work/api", "carl": None}


@pytest.fixture
def teams(store: Store) -> dict[str, str]:
    """Groups, by their titles."""
    members = {"one": ["anna", "carl"], "two": ["bob", "carl"], "three": ["carl", "dora"]}
    store.agents.register("dora")
    return {
        title: store.groups.create(title, agent=agents[0], with_=agents[1:]).id
        for title, agents in members.items()
    }


def titles(store: Store, **filter: Any) -> set[str]:
    return {head.title for head in store.list(Filter(**filter)).heads}


@pytest.mark.usefixtures("teams")
def test_a_list_by_project_has_what_its_agents_take_part_in(store: Store) -> None:
    assert titles(store, project="/work/app") == {"one"}
    assert titles(store, project="/work") == {"one", "two"}
    assert titles(store, project="/work", agent="carl") == {"one", "two"}
    assert store.facets().projects == {"/work/api": 1, "/work/app": 1}
    assert store.facets().agents == {"carl": 3, "anna": 1, "bob": 1, "dora": 1}
    assert titles(store.beside(agent="bob"), project="/work") == {"two"}
    assert store.beside(agent="anna").facets().projects == {"/work/app": 1}
    assert store.beside(agent="anna").facets().agents == {"anna": 1, "carl": 1}


def test_an_agent_that_left_still_has_the_conversation_in_its_list(
    store: Store, teams: dict[str, str]
) -> None:
    store.beside(agent="anna").groups.leave(teams["one"])
    assert titles(store, agent="anna") == titles(store, project="/work/app") == {"one"}


@pytest.mark.usefixtures("teams")
def test_an_agent_is_meant_by_its_name_and_one_that_is_unknown_is_in_no_list(store: Store) -> None:
    store.agents.register("anna-two", "/work/two", name="lead")
    store.groups.create("four", agent="anna-two", with_=["bob"])
    assert (
        titles(store, agent="lead")
        == titles(store, agent="lead@" + store.agents.get("anna-two").project)
        == {"four"}
    )
    store.agents.register("anna-three", "/work/three", name="lead")
    with pytest.raises(InvalidInput):
        titles(store, agent="lead")
    assert titles(store, agent="nobody") == set()


def test_a_model_and_tallies_are_of_what_an_agent_reads(
    store: Store, teams: dict[str, str]
) -> None:
    said = {"role": "assistant", "content": "word " * 9, "from": "anna", "model": "secret"}
    store.append_entries(teams["one"], [said])
    store.groups.add(teams["one"], ["bob"])
    late, page = store.beside(agent="bob"), store.beside(agent="anna").list()
    assert page.models == {teams["one"]: "secret"}
    assert (late.list().models, late.stats().by_sender, late.stats().tokens) == ({}, {}, 0)
    assert store.stats().by_sender["anna"].words == 9
