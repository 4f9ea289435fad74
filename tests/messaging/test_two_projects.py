"""Two projects with agents of the same names make the same calls at the same moment: what they say
is never mixed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from capsule import Store
from tests.processes import Child

WORKS = """
root, folder, canary, rounds = *sys.argv[1:4], int(sys.argv[4])
say(); hear()
with Store.open(root) as owner:
    for name in ("reviewer", "tester"):
        owner.agents.register(name, folder)
reviewer, tester = (Store.open(root, agent=name, folder=folder) for name in ("reviewer", "tester"))
tester.channels.create("releases", members=["reviewer"])
heard = []
for number in range(rounds):
    say(); hear()
    tester.messages.send(f"direct {canary} {number}", to="reviewer")
    tester.messages.send(f"channel {canary} {number}, @reviewer --review", channel="releases", topic=canary)
    tester.notes.write(f"note {canary} {number}", tags=["all"])
    heard += [mail.content for mail in reviewer.messages.listen().messages]
    reviewer.messages.send(f"answer {canary} {number}", to="tester")
    told = [reviewer.messages.history(tester.messages.send("ping", to="reviewer").conversation).as_json()]
    told += [mail.as_json() for mail in tester.messages.listen().messages]
    told += [each.as_json() for store in (reviewer, tester) for each in store.channels.list()]
    told += [each.as_json() for each in tester.notes.search(tags=["all"])]
    told += [hit.as_json() for hit in reviewer.search("direct OR channel OR note OR answer").hits]
    say([store.agent for store in (reviewer, tester)]); say(told)
reviewer.messages.listen()
say(heard)
"""


@pytest.mark.parametrize("rounds", [3, pytest.param(15, marks=pytest.mark.slow)])
def test_agents_of_one_name_in_two_projects_are_never_mixed(
    store: Store, child: Callable[..., Child], tmp_path: Path, rounds: int
) -> None:
    canaries = ("kestrel", "walrus")
    working = [child(WORKS, store.root, tmp_path / canary, canary, rounds) for canary in canaries]

    def step() -> None:
        for one in working:
            one.hear()
        for one in working:
            one.say()

    step()
    ids = set()
    for number in range(rounds):
        step()
        for one, canary, other in zip(working, canaries, reversed(canaries), strict=True):
            ids |= {tuple(one.hear())}
            told = str(one.hear())
            assert f"{canary} {number}" in told and other not in told
    for one, canary in zip(working, canaries, strict=True):
        heard = [text for text in one.hear() if text != "ping"]
        assert sum(text.startswith("direct") for text in heard) == rounds
        assert sum(text.startswith("channel") for text in heard) == rounds
        assert all(canary in text for text in heard)
    assert len(ids) == 2 and len({id for pair in ids for id in pair}) == 4
    agents = store.agents.list()
    assert sorted(agent.name for agent in agents) == ["reviewer", "reviewer", "tester", "tester"]
    for agent in agents:
        assert {other.project for other in agents if other.project_path == agent.project_path} == {
            agent.project
        }
