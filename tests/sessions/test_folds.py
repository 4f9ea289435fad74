"""What the events of a session's files add up to, and which of them a compacted file keeps."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from capsule.sessions.events import (
    cancelled,
    changed,
    cleared,
    outgoing,
    paused,
    reply_id,
    resumed,
    routed,
    state,
    tool,
)
from capsule.sessions.folds import KEPT, WINDOW, Folds
from capsule.sessions.inbound import Inbound
from capsule.sessions.outbound import Outbound
from capsule.sessions.rules import messages
from capsule.sessions.rules.deliveries import after_attempt, due_out, send
from capsule.sessions.rules.messages import later, next_due
from tests.sessions.files import START, Files, chat, fold
from tests.sessions.worlds import Steps, World, answers

DAILY = {"cron": "0 9 * * *", "timeZone": "Europe/Berlin", "catchUp": "latest"}
MANY = settings(max_examples=max(60, settings().max_examples))


@MANY
@given(Steps)
def test_a_compacted_file_answers_every_question_as_before(steps: list[tuple[str, int]]) -> None:
    world = World()
    for step in steps:
        world.do(*step)
        now = world.files.now
        assert answers(world.files.folds, world.ids, now) == answers(world.whole(), world.ids, now)


@given(Steps, st.integers(0, 1000))
def test_events_in_two_batches_or_twice_are_the_same(steps: list[tuple[str, int]], cut: int) -> None:
    world = World()
    for step in steps:
        world.do(*step)
    for empty, events in ((Inbound, world.all_in), (Outbound, world.all_out)):
        whole: Any = fold(empty("s1"), events)  # type: ignore[type-var]
        at = cut % (len(events) + 1)
        assert fold(empty("s1"), events[:at] + events[:at] + events[at:] + events) == whole  # type: ignore[type-var]


BEGUN = [("arrive", 0), ("start", 1), ("claim", 0)]
LATE = [("late", number) for number in range(18, 26)]


@pytest.mark.parametrize("retries", [1, 5])
@MANY
@given(steps=Steps)
@example(steps=[*BEGUN, ("cross", 0), ("deliver", 0), ("compact", 0)])
@example(steps=[*BEGUN, ("fail", 0), *LATE])
@example(steps=[*BEGUN, ("answer", 0), *LATE])
@example(steps=[*BEGUN, ("release", 0), ("cancel", 0), ("answer", 0), ("release", 0)])
@example(steps=[*BEGUN, ("die", 0), ("release", 0), ("pass", 5), ("start", 0), ("claim", 0), ("race", 0)])
def test_each_message_is_answered_once_or_has_failed_whoever_dies(
    retries: int, steps: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "RETRIES", retries)
    world = World()
    for step in steps:
        world.do(*step)
        world.check()
    world.settle()
    world.check()
    assert set(world.states.values()) <= {"completed", "failed", "cancelled"}
    assert {id for id in world.ids if world.states[id] == "completed"} == set(world.answered)


@pytest.mark.parametrize("often", [pytest.param(0.05, marks=pytest.mark.slow), 0])
def test_ten_thousand_messages_leave_little_behind(often: float) -> None:
    files, rng = Files(), random.Random(7)
    for turn in range(1000):
        files.arrive(*(chat(f"{turn}-{at}", "Hello " * 20) for at in range(10)))
        ids = files.claim()
        answer = outgoing(id=reply_id("s1", ids[0], 0), content="Yes " * 50, in_reply_to=ids[0])
        files.say(*send(files.folds, [answer]))
        files.finish(ids)
        for message in due_out(files.folds, files.now):
            files.tell(*after_attempt(files.folds, message, files.now, platform_id=f"p{turn}"))
        files.tell(routed(message=ids[0], agent="anna", outcome="wake", reason="it is a direct"))
        if rng.random() < often:
            files.compact()
    files.arrive(*(chat(f"context-{at}", trigger="accumulate") for at in range(2000)))
    files.arrive(*(chat(f"waits-{at}") for at in range(2 * KEPT)))
    files.compact()
    assert (len(files.in_events), len(files.out_events)) == (1 + KEPT + 2 * KEPT + KEPT, 1)
    assert len(orjson.dumps(files.in_events)) < 300_000
    assert len(orjson.dumps(files.out_events)) < 150_000
    assert len(files.inbound.left) == len(files.inbound.delivered) == len(files.outbound.said) == WINDOW
    assert files.status("context-1899") == "cancelled"


@pytest.mark.parametrize(("left", "remembered"), [(-1, WINDOW), (0, WINDOW + 9)])
def test_what_was_delivered_stays_so_while_the_other_file_still_has_it(left: int, remembered: int) -> None:
    files = Files()
    files.say(*send(files.folds, [outgoing(id=f"o{at}") for at in range(WINDOW + 10)]))
    messages = due_out(files.folds, files.now)
    waiting = messages.pop(left)
    for message in messages:
        files.tell(*after_attempt(files.folds, message, files.now, platform_id="p"))
    files.in_events = files.stamped(files.folds.compacted_inbound(files.now))
    assert len(files.in_events[0]["delivered"]) == remembered
    again = fold(Inbound("s1"), files.in_events)
    assert due_out(Folds(again, fold(Outbound("s1"), files.out_events)), files.now) == [waiting]


def test_a_file_that_an_older_version_compacted_says_the_same() -> None:
    older = {"event": "compacted", "seq": 3, "said": {"o1": "m1"}, "acks": {}, "tool": None, "state": {}}
    assert fold(Outbound("s1"), [older]).said == {"o1": ["m1", "", ""]}


def test_an_event_that_is_unknown_or_makes_no_sense_is_kept_and_passed_over() -> None:
    files = Files()
    odd: list[dict[str, Any]] = [
        {"event": "glow", "colour": "red"},
        {"event": ["message"]},
        {"event": "retry", "messages": 3},
        {"content": "by hand"},
        {"event": "changed", "series": "none", "prompt": "x"},
        {"event": "message", "content": "x", "series": "s", "recurrence": 5},
        {"event": "message", "content": "x", "hops": "x"},
    ]
    files.tell(*odd)
    files.say(*odd[:4], {"event": "message", "id": "o1", "recurrence": {"cron": "by hand"}})
    files.arrive(chat("m1"))
    files.compact()
    assert files.claim() == ["m1"]
    assert [event.get("event") for event in files.in_events[2:]] == [event.get("event") for event in odd]
    assert len(files.out_events) == 1 + 5 + 1


# The live row of a series: RULES of schedules stand on it.


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_a_finished_occurrence_stays_until_the_next_one_is_there(end: Any) -> None:
    files = Files()
    files.arrive(chat("d1", series="daily", recurrence=DAILY, route=None))
    files.finish(files.claim(), end)
    files.compact()
    assert files.inbound.messages[files.inbound.series["daily"]].event["recurrence"] == DAILY
    files.arrive(chat("d2", series="daily", recurrence=DAILY, process_after=later(START, 60)))
    files.inbound.ended.setdefault("d1", end)
    files.compact()
    assert list(files.inbound.messages) == ["d2"]
    files.tell(cancelled(messages=["d2"]))
    files.compact()
    assert (files.inbound.messages, files.inbound.series) == ({}, {})


def test_a_change_of_a_series_is_merged_into_its_live_row() -> None:
    files = Files()
    files.arrive(chat("d1", "Report", series="daily", recurrence=DAILY, process_after=later(START, 60)))
    files.tell(changed(series="daily", prompt="Full report", cron="0 8 * * *"), paused(series="daily"))
    files.compact()
    live = files.inbound.messages["d1"].event
    assert (live["content"], live["recurrence"]) == ("Full report", DAILY | {"cron": "0 8 * * *"})
    assert next_due(files.folds, START) is None
    files.tell(resumed(series="daily"))
    assert next_due(files.folds, START) == later(START, 60)


# state


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_worker_keeps_values_by_provider_until_they_are_removed_or_cleared(is_compacted: bool) -> None:
    files = Files()
    files.say(
        state(key="continuation", value="c1", provider="claude"),
        state(key="continuation", value="c2", provider="codex"),
        state(key="continuation", value="c3", provider="claude"),
        state(key="mood", value={"is": "good"}, provider="claude"),
        state(key="gone", value=1, provider="claude"),
        state(key="gone", provider="claude"),
        tool(name="build", limit_s=60),
    )
    if is_compacted:
        files.compact()
    assert files.outbound.state["claude"] == {"continuation": "c3", "mood": {"is": "good"}}
    assert files.outbound.tool and files.outbound.tool.limit_s == 60
    files.say(cleared(provider="claude"))
    assert files.outbound.state == {"codex": {"continuation": "c2"}}
