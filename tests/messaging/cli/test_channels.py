"""Channels at the command line, as scripts rely on them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def team(capsule: Any, tmp_path: Path) -> Any:
    """`capsule`, where anna and bob work in one project, and carl in another."""
    for name, project in (("anna", "api"), ("bob", "api"), ("carl", "web")):
        (tmp_path / project).mkdir(exist_ok=True)
        capsule("agent", "register", "--as", name, "--project", str(tmp_path / project))
    return capsule


def test_the_scripts_of_a_channel(team: Any) -> None:
    words = (
        *["channel", "new", "releases", "--access", "members", "--description", "X"],
        "--as",
        "anna",
    )
    id = team(*words).line
    assert team(*words, expect=2).stdout == ""
    refused = json.loads(
        team("channel", "join", "releases", "--as", "bob", "--json", expect=6).stderr
    )["error"]
    assert (refused["kind"], refused["id"]) == ("Refused", id) and "anna" in refused["message"]
    team("channel", "join", "releases", "--as", "carl", expect=3)
    assert (
        team("channel", "invite", "bob", "--channel", "releases", "--as", "anna").stdout
        == f"{id}: invited bob\n"
    )
    assert [each["id"] for each in team.json("channel", "members", "releases", "--as", "bob")] == [
        "anna",
        "bob",
    ]
    assert team("channel", "leave", "releases", "--as", "bob").stdout == f"{id}: bob left\n"
    team("channel", "invite", "bob", "--channel", "releases", "--as", "anna", expect=6)
    assert team("channel", "join", "releases", "--as", "bob").stdout == f"{id}: bob joined\n"
    assert [
        line.split("\t")[0] for line in team("channel", "members", "releases").stdout.splitlines()
    ] == [
        "anna",
        "bob",
    ]
    for rights, code in (("--no-send", 6), ("--can-send", 0)):
        team("channel", "invite", "bob", "--channel", "releases", rights, "--as", "anna")
        team("append", id, "hello", "--as", "bob", expect=code)


def test_a_list_has_what_the_agent_finds_and_the_owner_sees_all(team: Any) -> None:
    team(
        "channel",
        "new",
        "releases",
        "--as",
        "anna",
        "--access",
        "members",
        "--description",
        "What goes out",
    )
    team(
        "channel",
        "new",
        "news",
        "--as",
        "carl",
        "--topic-required",
        "--default-topic",
        "misc",
        "--default",
    )
    (bobs,) = team.json("channel", "list", "--as", "bob")
    assert (bobs["name"], bobs["in"], bobs["archived"]) == ("releases", False, False)
    assert team("channel", "list", "--as", "anna").line.split("\t")[2:] == [
        "members",
        "1",
        "in",
        "What goes out",
    ]
    assert {each["name"] for each in team.json("channel", "list")} == {"news", "releases"}
    news = team.json("channel", "show", "news", "--as", "carl")
    assert (news["topicRequired"], news["defaultTopic"], news["isDefault"]) == (True, "misc", True)


def test_the_owner_makes_a_channel_and_is_not_in_it(team: Any) -> None:
    assert team("channel", "new", "lobby", "--with", "bob").line == "channel_global_lobby"
    assert [each["id"] for each in team.json("channel", "members", "lobby")] == ["bob"]


def test_a_channel_is_changed_archived_and_left_by_others_hands(team: Any) -> None:
    id = team("channel", "new", "news", "--as", "anna", "--with", "bob").line
    team(
        "channel",
        "set",
        "news",
        "--as",
        "anna",
        "--access",
        "members",
        "--default-topic",
        "misc",
        "--default",
    )
    shown = team.json("channel", "show", id)
    assert (shown["access"], shown["defaultTopic"], shown["isDefault"]) == ("members", "misc", True)
    team("channel", "remove", "news", "bob", "--as", "anna")
    assert [each["id"] for each in team.json("channel", "members", "news")] == ["anna"]
    team("channel", "set", "--archive", "news", "--as", "anna")
    assert team.json("channel", "list") == []
    assert [each["id"] for each in team.json("channel", "list", "--archived")] == [id]
    team("channel", "set", "news", "--no-archive")
    assert len(team.json("channel", "list")) == 1


def test_a_conversation_is_muted_and_topics_are_listed(team: Any) -> None:
    id = team("channel", "new", "news", "--as", "anna").line
    team("append", id, "hello", "--as", "anna")
    assert team.json("channel", "topics", "news", "--as", "bob") == []
    levels = {
        "mute --notify mentions": (False, "mentions"),
        "mute": (True, "all"),
        "mute --notify none": (False, "none"),
    }
    for words, (muted, notify) in {**levels, "unmute": (False, "all")}.items():
        verb, *options = words.split()
        told = team.json("channel", verb, "news", *options, "--as", "bob")
        agent = json.loads((team.root / "agents" / "bob.json").read_bytes())
        assert agent["reading"][id] == {name: told[name] for name in ("muted", "notify")}
        assert (told["muted"], told["notify"]) == (muted, notify)


def test_an_agent_stays_out_of_the_default_channels_that_it_excludes(team: Any) -> None:
    for name in ("all", "builds"):
        team("channel", "new", name, "--with", "anna", "--default")
    team("agent", "register", "--as", "fritz", "--stay-out", "builds,other")
    there = {
        name: [each["id"] for each in team.json("channel", "members", name)]
        for name in ("all", "builds")
    }
    assert there == {"all": ["anna", "fritz"], "builds": ["anna"]}
