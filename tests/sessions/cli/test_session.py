"""`session`: who answers where, and what became of a message."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from capsule import Refused, Store, timestamps
from capsule.sessions import events
from capsule.sessions.registry import Registry
from capsule.sessions.rules.messages import claim, finish, pick, receive
from capsule.sessions.session import Session


def test_an_agent_gets_a_command_and_keeps_what_is_not_given(capsule: Any) -> None:
    assert capsule.json("session", "agent") == []
    capsule("session", "agent", "helper", expect=3)
    capsule("session", "agent", "helper", "--folder", "/nowhere", "--", "cat", expect=2)
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
    path.write_text(path.read_text().replace('"/"', '"/tmp"'))
    capsule("session", "agent", "helper", "--", "cat")  # It names no folder, and nobody saw that one.
    (one,) = capsule.json("session", "agent", "helper")
    assert (one["approved"], one["folder"]) == (True, "")


def test_an_agent_is_wired_to_places_and_no_longer(capsule: Any) -> None:
    capsule("agents", "register", "--as", "anna")
    id = capsule("group", "new", "Plan", "--as", "anna").line
    capsule("session", "wire", id, "helper", expect=3)
    capsule("session", "agent", "helper", "--", "cat")
    capsule("session", "wire", "webhook:", "helper", expect=2)
    capsule("session", "wire", id, "helper", "--pattern", "(", expect=2)
    capsule("session", "wire", id, expect=2)
    assert "participant can add" in capsule("session", "wire", id, "helper", expect=2).stderr
    capsule("group", "add", id, "helper", "--as", "anna")
    (one,) = capsule.json("session", "wire", id[:-2], "helper", "--pattern", "^!", "--ignored", "accumulate")
    assert (one["place"], one["engage"], one["pattern"], one["ignored"]) == (id, "pattern", "^!", "accumulate")
    capsule("session", "wire", "webhook:ci", "helper", "--senders", "known")
    assert len(capsule.json("session", "wire")) == 2
    capsule("session", "unwire", "webhook:ci", "helper")
    capsule("session", "unwire", "webhook:ci", "helper", expect=3)
    assert capsule.json("session", "wire") == [one]


def test_places_are_channels_and_agents_by_their_names_too(capsule: Any) -> None:
    capsule("session", "agent", "helper", "--", "cat")
    with Store.open(capsule.root) as store:
        store.agents.register("anna", name="Anna")
        store.channels.create("ops", agent="anna", scope="global", access="members")
    assert "invite it" in capsule("session", "wire", "ops", "helper", expect=2).stderr
    capsule("invite", "helper", "--to", "ops", "--as", "anna")
    assert capsule.json("session", "wire", "ops", "helper")[0]["place"].startswith("channel_")
    assert [capsule("session", "allow", "helper", place).line for place in ("ops", "Anna")] == ["ops", "anna"]
    (one,) = capsule.json("session", "agent", "helper")
    assert one["destinations"]["anna"]["place"] == "direct_anna_helper"
    capsule("session", "forbid", "helper", "direct_anna_helper", expect=3)  # There is none yet.
    for name in ("Anna", "ops"):
        capsule("session", "forbid", "helper", name)
    capsule("session", "allow", "helper", "helper", expect=2)
    capsule("session", "allow", "helper", "nobody", expect=3)


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
        store.beside(agent="helper").sessions.list()


@pytest.fixture
def session(capsule: Any) -> Any:
    """A session in which two messages wait, of which a worker gave one back for good."""
    capsule("session", "agent", "helper", "--", "cat")
    with Store.open(capsule.root) as store:
        row = Registry(store.engine).ensure_session(("helper", "webhook", "ci", ""), timestamps.now())
        session = Session.create(store.engine, row.id, "ci")
        route = events.Route("webhook", "ci")
        for id in ("m-failed", "m-waits"):
            said = [events.incoming(id=id, content="Build!", sender="bot", route=route)]
            said.append(events.routed(message=id, agent="helper", outcome="wake", reason="a pattern"))
            session.tell(lambda folds, said=said: [said[1], *receive(folds, said[:1])])
            if id == "m-failed":
                now = timestamps.now()
                session.say(lambda folds, now=now: claim(folds, pick(folds, now, first=True), "w"))
                session.say(
                    lambda folds, id=id: finish(folds, [id], instance="w", state="failed", error="exit code 65")
                )
        yield session


def test_a_session_is_listed_and_shown_and_its_messages_tell_their_way(capsule: Any, session: Any) -> None:
    (row,) = capsule.json("session", "list", "--agent", "helper")
    assert (row["id"], row["agent"], row["channel"], row["place"]) == (session.id, "helper", "webhook", "ci")
    assert capsule.json("session", "list", "--agent", "other") == []
    shown = capsule.json("session", "show", session.id[:8])
    assert shown["messages"] == {"failed": 1, "pending": 1} and shown["nextAt"] and shown["paused"] == []
    steps = capsule.json("session", "why", "m-failed")
    assert [step["kind"] for step in steps] == ["routed", "received", "claimed", "failed"]
    assert "exit code 65" in capsule("session", "why", "m-failed").line
    assert re.search(
        r"\d\d:\d\d:\d\d\S*  helper  failed +try 1, .*exit code 65$", capsule.terminal("session", "why", "m-failed")
    )
    capsule("session", "show", "s_nobody", expect=3)
    capsule("session", "why", "m-nobody", expect=3)


def test_a_person_pauses_retries_and_cancels(capsule: Any, session: Any) -> None:
    capsule("session", "pause", session.id)
    assert capsule.json("session", "show", session.id) | {
        "status": "paused",
        "paused": [""],
        "nextAt": "",
    } == capsule.json("session", "show", session.id)
    capsule("session", "resume", session.id)
    assert capsule.json("session", "list")[0]["status"] == "active"
    capsule("session", "pause", session.id, "--series", "nightly", expect=3)
    assert capsule.json("session", "retry", "m-failed")["sessions"] == [session.id]
    capsule("session", "cancel", "m-waits")
    capsule("session", "cancel", "m-waits", expect=2)
    capsule("session", "retry", "m-waits", expect=2)
    capsule("session", "retry", "m-nobody", expect=3)
    assert capsule.json("session", "show", session.id)["messages"] == {"pending": 1, "cancelled": 1}
    capsule("session", "cancel", session.id)
    shown = capsule.json("session", "show", session.id)
    assert (shown["status"], shown["messages"]) == ("closed", {"cancelled": 2})


def test_a_series_is_shown_paused_and_ended(capsule: Any, session: Any) -> None:
    nightly = events.incoming(
        id="n1", content="Report.", kind="task", series="nightly", recurrence={"cron": "0 3 * * *"}
    )
    session.tell(lambda folds: receive(folds, [nightly]))
    series = capsule.json("session", "show", session.id)["series"]
    assert (series["nightly"]["id"], series["nightly"]["content"]) == ("n1", "Report.")
    capsule("session", "pause", session.id, "--series", "nightly")
    assert capsule.json("session", "show", session.id)["paused"] == ["nightly"]
    shown = capsule("session", "show", session.id).stdout
    assert 'paused: ["nightly"]' in shown and "{'" not in shown
    capsule("session", "cancel", "nightly")
    capsule("session", "cancel", "nightly", expect=2)
    assert capsule.json("session", "show", session.id)["series"] == {}


def test_an_agent_may_send_where_it_is_allowed(capsule: Any) -> None:
    capsule("session", "agent", "helper", "--", "cat")
    id = capsule.new("Release plan", "--type", "group")
    assert capsule("session", "allow", "helper", id).line == "release-plan"
    assert capsule("session", "allow", "helper", "webhook:x", "--name", "Release plan").line == "release-plan-2"
    assert capsule("session", "allow", "helper", id[:8]).line == "release-plan"
    capsule("session", "forbid", "helper", "release-plan")
    capsule("session", "forbid", "helper", "release-plan", expect=3)
    assert list(capsule.json("session", "agent", "helper")[0]["destinations"]) == ["release-plan-2"]
