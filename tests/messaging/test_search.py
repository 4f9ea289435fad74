"""What an agent searches is ranked as the owner's."""

from __future__ import annotations

import pytest

from capsule import Store
from capsule.engines.questions import ranking
from tests.core.index.conftest import store as store
from tests.core.index.test_ranking import fill
from tests.core.index.test_search import pages


def test_an_agent_that_reads_everything_has_the_scores_of_the_owner(store: Store) -> None:
    fill(
        store,
        ("a plan among many other words", 5),
        ("Plan, plan", 5),
        ("the planet", 5),
        ("the budget plan", 5),
    )
    store.create(title="Übung", messages=[{"role": "user", "content": "Die ÜBUNG der übung plan"}])
    agent = store.beside(agent="anna")
    for query in ("plan", "plan OR budget", '"the budget"', "plan*", "übung", "plan NOT budget"):
        both = [each.search(query, profile="exact").hits for each in (store, agent)]
        assert [hit.message for hit in both[0]] == [hit.message for hit in both[1]]
        assert [hit.score for hit in both[0]] == pytest.approx(
            [hit.score for hit in both[1]], rel=1e-4
        ), query


def test_an_agents_newest_matches_alone_are_ranked_even_exactly(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "WINDOW", 8)
    store = store.beside(agent="anna")
    store.create(
        id="c", title="Plan", messages=[{"role": "user", "content": "word"} for _ in range(30)]
    )
    assert store.search("word", limit=3, profile="exact").total is None
    assert sorted(
        hit.at for page in pages(store, "word", 3, profile="exact") for hit in page.hits
    ) == list(range(30))
