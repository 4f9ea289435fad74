"""Who may write to whom, at the command line: policies, permissions, requests, names in projects,
and links.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.core.cli.conftest import completed


@pytest.fixture
def team(capsule: Any, tmp_path: Path) -> Any:
    """`capsule`, where anna works in `api`, bob and carl in `web`, and another anna in `docs`."""
    for folder, names in (("api", ["anna"]), ("web", ["bob", "carl"]), ("docs", ["anna"])):
        (tmp_path / folder).mkdir()
        for name in names:
            capsule(
                "agent",
                "register",
                "--as",
                name,
                "--project",
                str(tmp_path / folder),
                "--description",
                folder,
            )
    return capsule


def test_a_restricted_agent_says_who_may_write_to_it(team: Any) -> None:
    policy = team.json(
        "agent", "set", "--as", "bob", "--dm", "restricted", "--discoverable", "project"
    )
    assert (policy["dmPolicy"], policy["discoverable"]) == ("restricted", "project")
    assert (
        team("agent", "set", "--as", "bob").stdout == "bob: dm restricted, discoverable project\n"
    )
    team("send", "--as", "carl", "--to", "bob", "hello", expect=6)
    (request,) = team.json("agent", "requests", "--as", "bob")
    assert (request["id"], request["availability"]) == ("carl", "requires permission") and request[
        "askedAt"
    ]
    assert team("agent", "requests", "--as", "bob").stdout.startswith("carl\t")
    assert team.json("agent", "allow", "carl", "--as", "bob")["dm"]["carl"]["permission"] == "allow"
    assert (
        team("agent", "block", "carl", "--as", "bob", "--reason", "noise").stdout
        == "bob: blocked carl\n"
    )
    about = team.json("agent", "show", "bob")["dm"]["carl"]
    assert (about["permission"], about["reason"]) == ("block", "noise")
    assert team.json("agent", "unblock", "carl", "--as", "bob")["dm"] == {}
    team("agent", "allow", "nobody", "--as", "bob", expect=3)
    team("agent", "set", "--as", "bob", "--dm", "none", expect=2)


def test_an_agent_is_told_of_those_that_it_finds(team: Any) -> None:
    team("agent", "set", "--as", "bob", "--discoverable", "project")
    team("agent", "set", "--as", "carl", "--dm", "closed")
    rows = [
        line.split("\t")[:2]
        for line in team("agent", "discover", "--as", "anna").stdout.splitlines()
    ]
    assert ["carl", "unavailable"] in rows and len(rows) == 2
    assert "bob" not in team("agent", "list", "--as", "anna").stdout
    team("agent", "show", "bob", "--as", "anna", expect=3)


def test_a_name_means_the_agent_of_the_project(
    team: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (other,) = (
        one["id"]
        for one in team.json("agent", "list")
        if one["name"] == "anna" and one["id"] != "anna"
    )
    for folder, id in (("api", "anna"), ("docs", other), (".", "anna")):
        monkeypatch.chdir(tmp_path / folder)
        assert team.json("agent", "status", "here", "--as", "anna")["id"] == id
    monkeypatch.chdir(tmp_path / "web")
    said = team("agent", "status", "here", "--as", "anna")
    assert "is a new agent, anna in the project" in said.stderr and said.stdout.startswith("anna-")
    moved = team.json("agent", "set", "carl", "--project", str(tmp_path / "docs"))
    assert moved["projectPath"] == str(tmp_path / "docs")
    team("agent", "set", "carl", "--project", str(tmp_path), "--as", "carl", expect=6)
    monkeypatch.chdir(tmp_path)
    assert team.json("send", "--as", "bob", "--to", "anna@docs", "hello")["recipients"].keys() == {
        other
    }
    monkeypatch.chdir(tmp_path / "docs")
    monkeypatch.setenv("CAPSULE_AGENT", "anna")
    assert team.json("inbox")["unread"] == 1
    assert team.json("agent", "register", "--as", "anna", "--project", os.getcwd())["id"] == other
    monkeypatch.chdir(tmp_path)
    assert team.json("inbox")["unread"] == 0


def test_projects_are_linked_by_the_owner(team: Any) -> None:
    api, docs, web = team.json("project", "list")
    assert [one["name"] for one in (api, docs, web)] == ["api", "docs", "web"]
    linked = team.json("project", "link", "api", "web", "--direction", "out")
    assert linked["links"][web["id"]]["direction"] == "out"
    assert team.json("project", "show", "web")["links"][api["id"]]["direction"] == "in"
    assert f"-> {web['id']}" in team("project", "show", api["id"]).stdout
    rows = [
        line.split("\t")[1] for line in team("project", "list", "--as", "anna").stdout.splitlines()
    ]
    assert rows == ["api", "web"]
    for words in (("link", "web", "docs"), ("unlink", "api", "web")):
        team("project", *words, "--as", "bob", expect=6)
    assert team("project", "unlink", "api", "web").stdout == f"{api['id']}: no link\n"
    team("project", "link", "api", "nowhere", expect=3)
    team("project", "link", "api", "api", expect=2)


def test_agents_are_completed(capsule: Any) -> None:
    for name in ("anna", "annika", "bob"):
        capsule("agent", "register", "--as", name)
    assert completed("capsule send --to an", 3) == ["anna", "annika"]
    assert completed("capsule inbox --as b", 3) == ["bob"]
