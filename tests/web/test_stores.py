"""The stores of the other tests hold what these tests look for."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule import Store
from capsule.sessions.registry import Registry
from tests.web.stores import LARGE, Talk, large, many, versions


@pytest.mark.slow
def test_a_store_with_something_of_everything_is_as_it_says(root: Path, talk: Talk) -> None:
    versions(root, talk.plan)
    with Store.open(root) as store:
        assert store.branches.alternatives(talk.branched, talk.answers[0]).ids == tuple(
            talk.answers
        )
        assert {each.field for each in store.conflicts.list()} == {"title", "metadata.pinned"}
        assert [trashed.id for trashed in store.trash.list()] == [
            talk.trashed
        ] and store.trash.removed(talk.removed)
        assert [mention.mail.from_ for mention in store.messages.mentions(agent="anna")] == ["eve"]
        assert [request.agent.id for request in store.agents.requests("zoe")] == ["eve"]
        assert Registry(store.engine).read().questions[talk.question].state == "open"
        steps = [step.kind for step in store.sessions.why(talk.answered)]
        assert steps[-1] == "delivered" and "failed" in [
            step.kind for step in store.sessions.why(talk.failed)
        ]
        assert [project.id for project in store.projects.list()] == sorted(talk.projects)
        assert len(talk.imported) >= 3
        standing = store.summaries.standing(talk.summary)
        assert standing is not None and (standing.state, standing.added) == ("behind", 1)


def test_a_large_conversation_and_many_small_ones_are_valid(root: Path) -> None:
    large(root, 50)
    many(root, 20)
    with Store.open(root) as store:
        assert len(store.list(limit=100).heads) == 21
        for id in (LARGE, "00000000-0000-4000-8000-000000000000"):
            assert not store.edits.migrate(id, check=True)
        assert store.page(LARGE, 10).entries
