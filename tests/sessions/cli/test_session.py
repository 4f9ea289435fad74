"""`session`: who answers where, and what became of a message."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from capsule import Refused, Store, timestamps
from capsule.sessions import events
from capsule.sessions.registry import Registry
from capsule.sessions.rules.messages import claim, end_claims, pick, receive
from capsule.sessions.session import Session


def test_an_agent_gets_a_command_and_keeps_what_is_not_given(capsule: Any) -> None:
    assert capsule.json("worker", "set") == []
    capsule("worker", "set", "helper", expect=3)
    capsule("worker", "set", "helper", "--folder", "/nowhere", "--", "cat", expect=2)
    (made,) = json.loads(
        capsule("worker", "set", "helper", "--folder", "/", "--json", "--", "cat", "--json").stdout
    )
    assert (made["command"], made["folder"], made["approved"]) == (["cat", "--json"], "/", True)
    (after,) = capsule.json(
        "worker", "set", "helper", "--time-zone", "Europe/Berlin", "--idle", "30"
    )
    assert after == made | {"settings": {"timeZone": "Europe/Berlin", "idleS": 30}}
    assert capsule.json("worker", "set") == [after]
    assert [one["id"] for one in capsule.json("agent", "list")] == ["helper"]
    capsule("worker", "set", "helper", "--time-zone", "Mars/Olympus", expect=2)
    capsule("worker", "set", "--approve", expect=2)


def test_a_command_that_another_machine_noted_is_approved_by_a_person(capsule: Any) -> None:
    capsule("worker", "set", "helper", "--", "cat")
    path = capsule.root / "sessions" / "registry.json"
    path.write_text(path.read_text().replace('"cat"', '"rm"'))
    assert (
        capsule("worker", "set", "helper", "--idle", "30").stdout == "helper\trm\tnot approved\t\n"
    )
    assert capsule.json("worker", "set", "helper", "--approve")[0]["approved"] is True


def test_an_agent_is_wired_to_places_and_no_longer(capsule: Any) -> None:
    with Store.open(capsule.root) as store:
        store.sessions.set_agent("helper", ["cat"])
        id = store.groups.create("Plan", agent="helper").id
    capsule("worker", "wire", "webhook:", "helper", expect=2)
    capsule("worker", "wire", id, "helper", "--pattern", "(", expect=2)
    capsule("worker", "wire", id, expect=2)
    (one,) = capsule.json(
        "worker", "wire", id[:-2], "helper", "--pattern", "^!", "--ignored", "accumulate"
    )
    assert (one["place"], one["engage"], one["pattern"], one["ignored"]) == (
        id,
        "pattern",
        "^!",
        "accumulate",
    )
    refused = capsule("worker", "wire", "webhook:ci", "helper", expect=3).stderr
    assert "no webhook ci" in refused and "capsule worker webhook ci" in refused
    capsule("worker", "webhook", "ci")
    capsule("worker", "wire", "webhook:ci", "helper", "--senders", "known")
    capsule("worker", "webhook", "ci", "--remove")
    assert (
        capsule("worker", "wire")
        .stdout.splitlines()[1]
        .startswith("webhook:ci\thelper\tmention\t\tknown\t")
    )
    assert (
        capsule("worker", "unwire", "webhook:ci", "helper").stdout
        == "webhook:ci: helper is not wired\n"
    )
    capsule("worker", "unwire", "webhook:ci", "helper", expect=3)
    assert capsule.json("worker", "wire") == [one]


def test_places_are_channels_and_agents_by_their_names_too(capsule: Any) -> None:
    capsule("worker", "set", "helper", "--", "cat")
    with Store.open(capsule.root) as store:
        store.agents.register("anna", name="Anna")
        store.channels.create("ops", agent="anna", scope="global", members=["helper"])
    assert capsule.json("worker", "wire", "ops", "helper")[0]["place"].startswith("channel_")
    assert [capsule("worker", "allow", "helper", place).line for place in ("ops", "Anna")] == [
        "ops",
        "anna",
    ]
    told = capsule.json("worker", "forbid", "helper", "Anna")
    assert told == {"agent": "helper", "name": "Anna", "allowed": False}
    assert list(capsule.json("worker", "set", "helper")[0]["destinations"]) == ["ops"]
    capsule("worker", "forbid", "helper", "Anna", expect=3)
    capsule("worker", "allow", "helper", "nobody", expect=3)


def test_a_webhook_keeps_its_secret_until_it_is_removed(capsule: Any) -> None:
    secret = capsule("worker", "webhook", "ci").line
    assert secret.startswith("whsec_")
    assert capsule("worker", "webhook", "ci", "--url", "https://example.org/in").line == secret
    capsule("worker", "webhook", "ci", "--url", "ftp://example.org", expect=2)
    capsule("worker", "webhook", "ci", "--remove")
    assert capsule("worker", "webhook", "ci").line != secret


def test_an_agent_sees_nothing_of_the_sessions(capsule: Any) -> None:
    capsule("worker", "set", "helper", "--", "cat")
    capsule("worker", "list", "--as", "helper", expect=6)
    with Store.in_memory() as store, pytest.raises(Refused):
        store.beside(agent="helper").sessions.list()


@pytest.fixture
def session(capsule: Any) -> Any:
    """A session in which two messages wait, of which a worker gave one back for good."""
    capsule("worker", "set", "helper", "--", "cat")
    with Store.open(capsule.root) as store:
        row = Registry(store.engine).ensure_session(
            ("helper", "webhook", "ci", ""), timestamps.now()
        )
        session = Session.create(store.engine, row.id, "ci")
        route = events.Route("webhook", "ci")
        for id in ("m-failed", "m-waits"):
            said = [events.inbound_message(id=id, content="Build!", sender="bot", route=route)]
            said.append(
                events.routed_event(message=id, agent="helper", outcome="wake", reason="a pattern")
            )
            session.write_inbound(
                lambda session_state, said=said: [said[1], *receive(session_state, said[:1])]
            )
            if id == "m-failed":
                now = timestamps.now()
                session.write_outbound(
                    lambda session_state, now=now: claim(
                        session_state, pick(session_state, now, just_started=True), "w"
                    )
                )
                session.write_outbound(
                    lambda session_state, id=id: end_claims(
                        session_state, [id], instance="w", state="failed", error="exit code 65"
                    )
                )
        yield session


def test_a_session_is_listed_and_shown_and_its_messages_tell_their_way(
    capsule: Any, session: Any
) -> None:
    (row,) = capsule.json("worker", "list", "--agent", "helper")
    assert (row["id"], row["agent"], row["channel"], row["place"]) == (
        session.id,
        "helper",
        "webhook",
        "ci",
    )
    assert capsule.json("worker", "list", "--agent", "other") == []
    shown = capsule.json("worker", "show", session.id[:8])
    assert (
        shown["messages"] == {"failed": 1, "pending": 1}
        and shown["nextAt"]
        and shown["paused"] == []
    )
    steps = capsule.json("worker", "why", "m-failed")
    assert [step["kind"] for step in steps] == ["routed", "received", "claimed", "failed"]
    assert "exit code 65" in capsule("worker", "why", "m-failed").line
    assert re.search(
        r"\d\d:\d\d:\d\d\S*  helper  failed +try 1, .*exit code 65$",
        capsule.terminal("worker", "why", "m-failed"),
    )
    capsule("worker", "show", "s_nobody", expect=3)
    capsule("worker", "why", "m-nobody", expect=3)


def test_a_person_pauses_retries_and_cancels(capsule: Any, session: Any) -> None:
    assert capsule("worker", "pause", session.id).stdout == f"{session.id}: paused\n"
    assert capsule.json("worker", "show", session.id)["status"] == "paused"
    assert capsule("worker", "resume", session.id[:8]).stdout == f"{session.id}: goes on\n"
    assert capsule.json("worker", "list")[0]["status"] == "active"
    capsule("worker", "pause", session.id, "--series", "nightly", expect=3)
    assert capsule.json("worker", "retry", "m-failed") == {
        "message": "m-failed",
        "sessions": [session.id],
    }
    assert capsule("worker", "cancel", "m-waits").stdout == "m-waits: cancelled\n"
    capsule("worker", "cancel", "m-waits", expect=2)
    for id, code in (("m-waits", 2), ("m-nobody", 3)):
        capsule("worker", "retry", id, expect=code)
    capsule("worker", "cancel", session.id)
    assert capsule.json("worker", "show", session.id)["status"] == "closed"


def test_a_series_is_shown_and_paused(capsule: Any, session: Any) -> None:
    nightly = events.inbound_message(
        id="n1", content="Report.", kind="task", series="nightly", recurrence={"cron": "0 3 * * *"}
    )
    session.write_inbound(lambda session_state: receive(session_state, [nightly]))
    told = capsule.json("worker", "pause", session.id, "--series", "nightly")
    assert told == {"id": session.id, "series": "nightly", "paused": True}
    shown = capsule("worker", "show", session.id).stdout
    assert 'paused: ["nightly"]' in shown and '"Report."' in shown and "{'" not in shown
    assert (
        capsule("worker", "resume", session.id, "--series", "nightly").stdout
        == "nightly: goes on\n"
    )
