"""Wirings: which agents a message wakes, where it goes, and the fields of other programs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from capsule.engines.interface import edit_document
from capsule.engines.memory.engine import MemoryEngine
from capsule.format.json import codec
from capsule.sessions.adapters.interface import ReceivedMessage
from capsule.sessions.registry import AgentSetup, Registry, RegistryState, Wiring
from capsule.sessions.rules.messages import RoutingDecision, route

HELLO = ReceivedMessage(
    "m", "conversations", "c", "tom", "hello", is_group=True, to=frozenset({"anna"})
)
WIRED = Wiring("conversations", "c", "anna")
NAMED = frozenset({"anna"})
MAIN = ("anna", "conversations", "c", "")


def decided(
    arrived: ReceivedMessage, *wirings: Wiring, engaged: bool = False, settings: Any = None
) -> list[RoutingDecision]:
    state = RegistryState().put(
        AgentSetup("anna", settings=settings or {}), AgentSetup("bob"), *wirings
    )
    return route(arrived, state, lambda serves: engaged)


@pytest.mark.parametrize(
    ("arrived", "wiring", "outcome"),
    [
        # A place without a wiring: all in a direct, mentions elsewhere.
        ({"is_group": False}, None, "wake"),
        ({}, None, "ignored"),
        ({"mentions": NAMED}, None, "wake"),
        # What engages.
        ({}, {"engage": "pattern", "pattern": "."}, "wake"),
        ({"text": ""}, {"engage": "pattern", "pattern": "."}, "wake"),
        ({}, {"engage": "pattern", "pattern": "^hel+o"}, "wake"),
        ({}, {"engage": "pattern", "pattern": "bye"}, "ignored"),
        ({}, {"engage": "pattern", "pattern": "("}, "ignored"),
        ({"mentions": NAMED}, {"engage": "mention"}, "wake"),
        ({"is_group": False}, {"engage": "mention"}, "ignored"),
        ({"mentions": NAMED}, {"engage": "mention-sticky"}, "wake"),
        ({"thread": "t"}, {"engage": "mention-sticky"}, "ignored"),
        # What is ignored.
        ({}, {"ignored": "accumulate"}, "accumulate"),
        ({}, {"engage": "mention-sticky", "ignored": "accumulate"}, "ignored"),
        ({"thread": "t"}, {"engage": "mention-sticky", "ignored": "accumulate"}, "accumulate"),
        # Who may wake; what they may not do is not kept either.
        ({"mentions": NAMED}, {"senders": "known"}, "wake"),
        ({"mentions": NAMED, "known": False}, {"senders": "all"}, "wake"),
        (
            {"mentions": NAMED, "known": False},
            {"senders": "known", "ignored": "accumulate"},
            "ignored",
        ),
        ({"mentions": NAMED, "sender": "anna"}, {"ignored": "accumulate"}, "ignored"),
        ({"mentions": NAMED, "hops": 8}, {}, "wake"),
        ({"mentions": NAMED, "hops": 9}, {"ignored": "accumulate"}, "ignored"),
    ],
)
def test_what_wakes_an_agent(
    arrived: dict[str, Any], wiring: dict[str, Any] | None, outcome: str
) -> None:
    (found,) = decided(
        replace(HELLO, **arrived), *([] if wiring is None else [replace(WIRED, **wiring)])
    )
    assert (found.agent, found.outcome, found.wiring) == (
        "anna",
        outcome,
        "" if wiring is None else WIRED.id,
    )
    assert found.reason


def test_a_thread_that_mentioned_an_agent_once_engages_it_from_then_on() -> None:
    sticky = replace(WIRED, engage="mention-sticky")
    (first,) = decided(replace(HELLO, mentions=NAMED), sticky)
    (later,) = decided(replace(HELLO, id="n", thread="m"), sticky, engaged=True)
    assert (
        first.session_key == later.session_key == ("anna", "conversations", "c", "m")
        and later.outcome == "wake"
    )
    (outside,) = decided(replace(HELLO, id="o"), sticky, engaged=True)
    assert outside.outcome == "ignored"


@pytest.mark.parametrize(
    ("session", "thread", "serves"),
    [
        ("shared", "t", MAIN),
        ("per-thread", "t", ("anna", "conversations", "c", "t")),
        ("per-thread", "", MAIN),
        ("agent-shared", "t", ("anna", "", "", "")),
    ],
)
def test_what_a_session_serves(session: Any, thread: str, serves: tuple[str, ...]) -> None:
    assert (
        decided(replace(HELLO, thread=thread), replace(WIRED, session=session))[0].session_key
        == serves
    )


def test_each_agent_is_decided_for_by_itself_in_the_order_of_their_names() -> None:
    everything = {"engage": "pattern", "pattern": "."}
    wirings = [replace(WIRED, agent=name, **everything) for name in ("carl", "anna", "bob")]
    found = decided(replace(HELLO, to=frozenset()), *wirings)
    assert [(one.agent, one.outcome) for one in found] == [
        ("anna", "wake"),
        ("bob", "wake"),
        ("carl", "ignored"),
    ]
    only = decided(replace(HELLO, to=frozenset({"anna", "bob"})), wirings[1])
    assert [(one.agent, one.outcome) for one in only] == [("anna", "wake"), ("bob", "ignored")]
    assert decided(replace(HELLO, to=frozenset())) == []


def test_a_setting_of_the_agent_limits_the_hops() -> None:
    assert (
        decided(replace(HELLO, mentions=NAMED, hops=2), settings={"maxHops": 1})[0].outcome
        == "ignored"
    )


@pytest.mark.parametrize(
    ("foreign_fields", "engage", "pattern", "senders"),
    [
        ({"trigger_rules": {"pattern": "^!"}}, "pattern", "^!", "all"),
        ({"trigger_rules": '{"pattern": "^!"}', "response_scope": "all"}, "pattern", "^!", "all"),
        ({"trigger_rules": {"requiresTrigger": False}}, "pattern", ".", "all"),
        ({"response_scope": "all"}, "pattern", ".", "all"),
        ({"response_scope": "triggered"}, "mention", "", "all"),
        ({"response_scope": "allowlisted"}, "mention", "", "known"),
        ({"trigger_rules": "no JSON"}, "mention", "", "all"),
    ],
)
def test_fields_of_other_programs_are_read_and_replaced_at_the_next_change(
    foreign_fields: dict[str, Any], engage: str, pattern: str, senders: str
) -> None:
    engine = MemoryEngine()
    entry = {"channel": "c", "place": "p", "agent": "anna", **foreign_fields}
    edit_document(
        engine,
        "sessions",
        "registry",
        lambda _: codec.encode({"id": "registry", "wirings": {"x": entry}}),
    )
    registry = Registry(engine)
    found = registry.read().wirings["c/p/anna"]
    assert (found.engage, found.pattern, found.senders, found.ignored) == (
        engage,
        pattern,
        senders,
        "drop",
    )
    registry.edit(lambda state: state.put(replace(found, engage="mention-sticky")))
    written = engine.document("sessions", "registry")["wirings"]
    assert written.keys() == {"c/p/anna"} and not written["c/p/anna"].keys() & {
        "trigger_rules",
        "response_scope",
    }
    assert registry.read().wirings["c/p/anna"].engage == "mention-sticky"
