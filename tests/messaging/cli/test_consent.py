"""Who puts whom into a conversation at the command line: every combination of what two agents say
of each other.
"""

from __future__ import annotations

from typing import Any

import pytest

from capsule import Store
from tests.messaging.test_consent import PAIRS, expected, say

#: Commands of anna that bring bob in, given the number of a try. Each number has a group and a
#: channel of anna's own.
COMMANDS = {
    "group new": "group new g{} --with bob",
    "group add": "group add team-{} bob",
    "channel new, private": "channel new c{} --with bob --access private --scope global",
    "channel new, members": "channel new c{} --with bob --access members",
    "channel invite": "channel invite bob --channel news-{}",
    "note share": "note share bob",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_brings_an_agent_in_with_the_consent_of_both(capsule: Any, command: str) -> None:
    with Store.open(capsule.root, keep_locks=False) as store:
        for id in ("anna", "bob"):
            store.agents.register(id)
        for number, pair in enumerate(PAIRS):
            store.groups.create(f"team-{number}", agent="anna")
            store.channels.create(f"news-{number}", agent="anna", access="members")
            say(store, "anna", "bob", pair)
            before = len(store.queries.participations("bob"))
            is_available = expected(*pair) == "available"
            words = COMMANDS[command].format(number).split()
            refused = capsule(*words, "--as", "anna", expect=0 if is_available else 6).stderr
            assert is_available or expected(*pair) in refused, pair
            assert len(store.queries.participations("bob")) == before + is_available, pair
            if is_available and command == "note share":
                capsule("note", "unshare", "bob", "--as", "anna")


def test_an_agent_that_is_asked_finds_the_request_and_one_that_is_closed_is_left_alone(
    capsule: Any,
) -> None:
    for id in ("anna", "bob"):
        capsule("agent", "register", "--as", id)
    new = [
        "channel",
        "new",
        "pc",
        "--scope",
        "global",
        "--access",
        "private",
        "--with",
        "bob",
        "--as",
        "anna",
    ]
    capsule("agent", "set", "--as", "bob", "--dm", "closed", "--discoverable", "private")
    told = [
        capsule(*new, expect=6).stderr,
        capsule(*new[:-3], "eve", "--as", "anna", expect=6).stderr,
    ]
    assert [text.replace("bob", "WHO").replace("eve", "WHO") for text in told] == [
        told[0].replace("bob", "WHO")
    ] * 2
    capsule("agent", "set", "--as", "bob", "--dm", "restricted")
    capsule(*new, expect=6)
    assert capsule("agent", "requests", "--as", "bob").line.split("\t")[0] == "anna"
    capsule("agent", "allow", "anna", "--as", "bob")
    id = capsule(*new).line
    capsule("send", "@bob --action please", "--channel", id, "--as", "anna")
    assert len(capsule.json("mention", "list", "--as", "bob")) == 1
    capsule("agent", "block", "anna", "--as", "bob")
    assert capsule.json("mention", "list", "--as", "bob") == []
    assert capsule.json("inbox", "--as", "bob")["unread"] == 0
    capsule("channel", "leave", id, "--as", "bob")
    assert capsule.json("channel", "list", "--as", "bob") == []
    capsule("channel", "invite", "bob", "--channel", id, "--as", "anna", expect=6)
    capsule("channel", "invite", "bob", "--channel", id)
    assert [each["id"] for each in capsule.json("channel", "list", "--as", "bob")] == [id]


def test_the_configuration_brings_in_whom_no_agent_could(capsule: Any) -> None:
    for id in ("anna", "bob"):
        capsule("agent", "register", "--as", id)
    capsule("agent", "set", "--as", "bob", "--dm", "closed")
    settings = "[channels.news]\naccess = 'open'\ndefault = true\nmembers = ['bob']\n"
    (capsule.root / "capsule.toml").write_text(settings)
    capsule("config", "apply")
    assert [each["id"] for each in capsule.json("channel", "list", "--as", "bob")] == [
        "channel_global_news"
    ]
    assert capsule.json("channel", "show", "news")["isDefault"] is True
