"""With --as AGENT every command reads and changes what that agent may, and nothing else."""

from __future__ import annotations

import pytest

from capsule import Store
from tests.cli.conftest import Program
from tests.messaging.making import branched, make

#: Commands about one conversation: what a program is told by them that acts for somebody who does not take part.
REFUSED = [
    ["show", "team"],
    ["show", "team", "--all"],
    ["show", "team", "--tree"],
    ["show", "team", "--raw"],
    ["show", "team", "--json"],
    ["show", "team", "--last", "1"],
    ["tail", "team"],
    ["transcript", "team"],
    ["history", "team"],
    ["append", "team", "x"],
    ["send", "x", "--conversation", "team"],
    ["rename", "team", "x"],
    ["tag", "team", "x"],
    ["pin", "team"],
    ["archive", "team"],
    ["set", "team", "--pin"],
    ["edit", "team", "x", "--which", "@0"],
    ["switch", "team", "@1"],
    ["regenerate", "team", "x"],
    ["fork", "team"],
    ["trim", "team", "--yes"],
    ["summarize", "team", "x"],
    ["context", "show", "team"],
    ["servers", "list", "team"],
    ["lock", "team", "--instance", "night"],
    ["unlock", "team", "--force"],
    ["delete", "team", "--yes"],
    ["migrate", "team"],
    ["group", "leave", "team"],
    ["group", "rename", "team", "x"],
    ["group", "add", "team", "eve"],
]
#: What only a person does.
OF_A_PERSON = [
    ["git", "log", "team"],
    ["git", "commit"],
    ["git", "status"],
    ["show", "team", "--at", "HEAD"],
    ["doctor"],
    ["purge", "--yes"],
    ["validate"],
    ["tokens", "list"],
    ["tokens", "add", "anna"],
    ["agents", "forget", "anna", "--yes"],
]


@pytest.fixture
def team(capsule: Program) -> None:
    with Store.open(capsule.root) as store:
        for agent in ("anna", "eve"):
            store.agents.register(agent)
        branched(store, "team", "anna")


@pytest.mark.usefixtures("team")
def test_a_conversation_that_the_agent_is_not_in_is_refused(capsule: Program) -> None:
    before = capsule.file("team").read_bytes()
    for words in REFUSED:
        answer = capsule(*words, "--as", "eve", expect=6)
        assert "first" not in answer.stdout + answer.stderr, words
        assert capsule.file("team").read_bytes() == before, words


@pytest.mark.usefixtures("team")
def test_history_in_git_and_the_care_of_the_store_are_a_persons(capsule: Program) -> None:
    for words in OF_A_PERSON:
        assert "anna" in capsule(*words, "--as", "anna", expect=6).stderr, words


def test_the_places_that_a_late_one_is_shown_are_those_of_the_file(capsule: Program) -> None:
    with Store.open(capsule.root) as store:
        make(store, "team", "anna", {"id": "carl", "joinedAt": "2024-01-01T00:00:00.000Z"})
    capsule("append", "team", "hello", "--as", "anna")
    shown = capsule("show", "team", "--as", "carl").stdout
    assert "hello" in shown and "@1" in shown and "first" not in shown
    assert "hello" in capsule("show", "team", "--around", "@1", "--as", "carl").stdout
    capsule("show", "team", "--around", "@0", "--as", "carl", expect=3)
