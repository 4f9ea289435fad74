"""`session`: who answers where, and what became of a message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capsule import Refused, Store


def test_an_agent_gets_a_command_and_keeps_what_is_not_given(capsule: Any) -> None:
    assert capsule.json("session", "agent") == []
    capsule("session", "agent", "helper", expect=3)
    (made,) = json.loads(capsule("session", "agent", "helper", "--folder", "/", "--json", "--", "cat", "--json").stdout)
    assert (made["command"], made["folder"], made["approved"]) == (["cat", "--json"], "/", True)
    (after,) = capsule.json("session", "agent", "helper", "--time-zone", "Europe/Berlin", "--idle", "30")
    assert after == made | {"settings": {"timeZone": "Europe/Berlin", "idleS": 30}}
    assert capsule.json("session", "agent") == [after]
    assert [one["id"] for one in capsule.json("agents", "list")] == ["helper"]
    capsule("session", "agent", "helper", "--time-zone", "Mars/Olympus", expect=2)
    capsule("session", "agent", "--approve", expect=2)


def test_a_command_that_another_machine_noted_is_approved_by_a_person(capsule: Any) -> None:
    capsule("session", "agent", "helper", "--", "cat")
    path = capsule.root / "sessions" / "registry.json"
    path.write_text(path.read_text().replace('"cat"', '"rm"'))
    assert capsule.json("session", "agent", "helper", "--idle", "30")[0]["approved"] is False
    assert capsule.json("session", "agent", "helper", "--approve")[0]["approved"] is True
    assert capsule.json("session", "agent", "helper", "--folder", "/")[0]["approved"] is True


def test_an_agent_is_wired_to_places_and_no_longer(capsule: Any) -> None:
    id = capsule.new("Plan", "--type", "group")
    capsule("session", "wire", id, "helper", expect=3)
    capsule("session", "agent", "helper", "--", "cat")
    capsule("session", "wire", "webhook:", "helper", expect=2)
    capsule("session", "wire", id, "helper", "--pattern", "(", expect=2)
    capsule("session", "wire", id, expect=2)
    (one,) = capsule.json("session", "wire", id[:8], "helper", "--pattern", "^!", "--ignored", "accumulate")
    assert (one["place"], one["engage"], one["pattern"], one["ignored"]) == (id, "pattern", "^!", "accumulate")
    capsule("session", "wire", "webhook:ci", "helper", "--senders", "known")
    assert len(capsule.json("session", "wire")) == 2
    capsule("session", "unwire", "webhook:ci", "helper")
    capsule("session", "unwire", "webhook:ci", "helper", expect=3)
    assert capsule.json("session", "wire") == [one]


def test_a_webhook_keeps_its_secret_until_it_is_removed(capsule: Any) -> None:
    secret = capsule("session", "webhook", "ci").line
    assert secret.startswith("whsec_")
    assert capsule("session", "webhook", "ci", "--url", "https://example.org/in").line == secret
    capsule("session", "webhook", "ci", "--url", "ftp://example.org", expect=2)
    capsule("session", "webhook", "ci", "--remove")
    assert capsule("session", "webhook", "ci").line != secret


def test_an_agent_sees_nothing_of_the_sessions(capsule: Any) -> None:
    capsule("session", "agent", "helper", "--", "cat")
    capsule("session", "list", "--as", "helper", expect=6)
    with Store.in_memory() as store, pytest.raises(Refused):
        store.beside(agent="helper").sessions.state()
