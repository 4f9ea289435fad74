"""What a person reads at a terminal: ids that can be copied and used, and details in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capsule import Store


@pytest.fixture
def team(capsule: Any, tmp_path: Path) -> Any:
    """`capsule`, with agents whose ids begin alike, a channel and a group of theirs, and mail."""
    (tmp_path / "api").mkdir()
    for name in ("build-bot-nightly", "build-bot-weekly"):
        capsule("agent", "register", "--as", name, "--project", str(tmp_path / "api"))
    capsule("channel", "new", "releases", "--as", "build-bot-nightly", "--with", "build-bot-weekly")
    capsule(
        "group", "new", "Release day", "--as", "build-bot-nightly", "--with", "build-bot-weekly"
    )
    for target in ("releases", "Release day"):
        capsule(
            "send", "@build-bot-weekly look", "--conversation", target, "--as", "build-bot-nightly"
        )
    return capsule


def column(screen: str, name: str) -> list[str]:
    """The cells of a column of a table, without those that are empty."""
    head, *lines = screen.splitlines()
    at = head.index(name)
    return [line[at:].split(" ")[0] for line in lines if line[at:].strip()]


@pytest.mark.parametrize(
    ("listed", "used"),
    [
        ("list", "show {}"),
        ("agent list", "agent show {}"),
        ("group list --as build-bot-weekly", "history {} --as build-bot-weekly"),
        ("inbox --as build-bot-weekly", "show {}"),
        ("mention list --as build-bot-weekly", "mention done {} --as build-bot-weekly"),
        ("project list", "project show {}"),
    ],
)
def test_each_id_of_a_list_at_a_terminal_is_taken_by_other_commands(
    team: Any, listed: str, used: str
) -> None:
    ids = column(team.plain(*listed.split(), COLUMNS="60"), "ID")
    assert ids and len({*ids}) == len(ids)
    for id in ids:
        team(*used.format(id).split())


def test_short_ids_are_unique_in_the_whole_store_and_ids_that_are_names_stay_whole(
    team: Any,
) -> None:
    begin = "1b9d6bcd-bbfd-4b2d-9b5d-ab8dfbbd"
    for end in ("4bed", "5bed"):
        team("new", "--id", begin + end)
    team("lock", "take", f"{begin}4bed", "--instance", "night")
    assert column(team.plain("lock", "list"), "ID") == [f"{begin}4"]
    team("lock", "release", f"{begin}4", "--instance", "night")
    named = {head["id"] for head in team.json("list") if not head["id"].startswith(begin)}
    assert (
        len(named) == 2
        and {*column(team.plain("list"), "ID")} == {f"{begin}4", f"{begin}5"} | named
    )
    team("delete", f"{begin}5", "--yes")
    assert column(team.plain("trash", "list"), "ID") == [begin[:8]]
    team("restore", begin[:8])


def test_the_holders_of_locks_are_told_apart(team: Any) -> None:
    ids = [team.new("One"), team.new("Two")]
    with Store.open(team.root) as one, Store.open(team.root) as two:
        for store, id in zip((one, two), ids, strict=True):
            store.locks.take(id)
        holders = column(team.plain("lock", "list"), "HOLDER")
        assert len({*holders}) == 2
        assert all(
            any(it.instance_id.startswith(holder) for it in (one, two)) for holder in holders
        )


def test_an_agent_a_channel_and_a_project_are_shown_in_words(team: Any, tmp_path: Path) -> None:
    team("agent", "block", "build-bot-weekly", "--as", "build-bot-nightly", "--reason", "too loud")
    agent = team.plain("agent", "show", "build-bot-nightly").splitlines()
    assert {"policy: open", "notifications: yes", f"project path: {tmp_path / 'api'}"} <= {*agent}
    assert any(
        line.startswith("decided: build-bot-weekly (permission block, reason too loud, at ")
        for line in agent
    )
    channel = team.plain("channel", "show", "releases").splitlines()
    assert {"name: releases", "default: no", "members: 2"} <= {*channel}
    shown = [*agent, *channel, *team.plain("project", "show", "api").splitlines()]
    assert not [
        line
        for line in shown
        if line.endswith(":") or "{" in line or "True" in line or "T0" in line
    ]
    assert (
        "dmPolicy: open" in team("agent", "show", "build-bot-nightly").stdout
    )  # A program reads what it always read.


def test_a_channel_and_a_group_are_meant_by_their_names(team: Any) -> None:
    id = team.json("show", "releases")["id"]
    assert team.json("show", f"releases@{id.split('_')[1]}")["id"] == id
    team("append", "releases", "hello", "--as", "build-bot-weekly")
    assert "hello" in team("history", "releases", "--as", "build-bot-nightly").stdout
    assert team("set", "releases", "--add-tag", "now").code == 0
    group = team(
        "group", "set", "Release day", "--name", "Release week", "--as", "build-bot-weekly"
    ).stdout
    assert "Release week" in group and team("show", "Release week").code == 0
    assert "Release day" in team("show", "Release day", expect=2).stderr
    team("channel", "mute", "Release week", "--as", "build-bot-weekly")
    team("worker", "set", "build-bot-weekly", "--", "cat")
    assert team.json("worker", "wire", "releases", "build-bot-weekly")[0]["place"] == id
    assert team("export", "releases", "--format", "markdown").code == 0
