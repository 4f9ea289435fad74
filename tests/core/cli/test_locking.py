"""`lock`: a lock of a named holder."""

from __future__ import annotations

import json
from typing import Any

import pytest


def test_a_lock_needs_a_holder_that_outlives_the_command(capsule: Any) -> None:
    said = capsule("lock", "take", capsule.new("A"), expect=2).stderr
    assert "--instance NAME" in said and "CAPSULE_INSTANCE" in said
    assert capsule.json("lock", "list") == []


def test_a_named_holder_holds_across_commands_and_others_are_refused(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = capsule.new("A")
    assert capsule.json("lock", "take", id, "--instance", "me")["lock"]["name"] == "me"
    answer = capsule("append", id, "x", expect=4)
    assert "locked by" in answer.stderr
    assert f"capsule lock release {id} --force" in answer.stderr
    said = json.loads(capsule("append", id, "x", "--json", expect=4).stderr)["error"]
    assert said["remedy"] == {"action": "unlock", "command": f"capsule lock release {id} --force"}
    capsule("set", id, "--title", "x", expect=4)
    capsule("delete", id, expect=4)
    capsule("lock", "release", id, expect=4)
    capsule("append", id, "mine", "--instance", "me")
    monkeypatch.setenv("CAPSULE_INSTANCE", "me")
    capsule("append", id, "mine too")
    assert capsule.json("lock", "release", id) == {"id": id, "released": True}
    assert capsule("lock", "release", id).stdout == f"{id}: was not locked\n"


def test_the_option_names_the_holder_before_the_environment(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = capsule.new("A")
    monkeypatch.setenv("CAPSULE_INSTANCE", "one")
    for words in (
        ("--instance", "two", "lock", "take", id),
        ("lock", "take", id, "--instance", "two"),
    ):
        capsule(*words)
        assert [lock["name"] for lock in capsule.json("lock", "list")] == ["two"]
        capsule("lock", "release", id, "--instance", "two")


def test_force_takes_a_lock_away(capsule: Any) -> None:
    id = capsule.new("A")
    capsule("lock", "take", id, "--instance", "me")
    assert capsule("lock", "release", id, "--force").stdout == f"{id}: unlocked\n"
    capsule("append", id, "x")


@pytest.mark.files
def test_locks_tells_held_from_orphaned(capsule: Any) -> None:
    held, orphan = capsule.new("Held"), capsule.new("Orphan")
    capsule("lock", "take", held, "--instance", "me")
    process = capsule.stream(orphan)
    assert {lock["id"]: lock["state"] for lock in capsule.json("lock", "list")} == {
        held: "held",
        orphan: "held",
    }
    process.kill()
    process.wait(60)
    assert {lock["id"]: lock["state"] for lock in capsule.json("lock", "list")} == {
        held: "held",
        orphan: "orphaned",
    }
    assert [lock["id"] for lock in capsule.json("lock", "list", "--orphaned")] == [orphan]
    answer = capsule("lock", "list", "--orphaned")
    assert (
        answer.stdout.split("\t")[:2] == [orphan, "orphaned"] and "takes it over" in answer.stderr
    )
    assert "ORPHANED" in capsule.terminal("lock", "list").upper()
