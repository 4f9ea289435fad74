"""What the events of a session's files add up to, and which of them a compacted file keeps."""

from __future__ import annotations

import random
from copy import deepcopy
from dataclasses import fields as dataclass_fields
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from capsule.sessions.events import (
    ack_event,
    attempt_event,
    cancelled_event,
    changed_event,
    cleared_event,
    delivered_event,
    destinations_event,
    failed_event,
    inbound_message,
    outbound_message,
    paused_event,
    reply_id,
    resumed_event,
    retry_event,
    routed_event,
    routing_event,
    state_event,
    tool_event,
    undeliverable_event,
)
from capsule.sessions.rules import messages
from capsule.sessions.rules.messages import (
    add_seconds,
    after_attempt,
    due_deliveries,
    next_due,
    number_replies,
)
from capsule.sessions.session_state import (
    MAX_KEPT,
    WINDOW,
    InboundState,
    OutboundState,
    SessionState,
)
from tests.sessions.files import ROUTE, START, Files, chat, fold
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
        assert answers(world.files.session_state, world.ids, now) == answers(
            world.whole(), world.ids, now
        )


@given(Steps, st.integers(0, 1000))
def test_events_in_two_batches_or_twice_are_the_same(
    steps: list[tuple[str, int]], cut: int
) -> None:
    world = World()
    for step in steps:
        world.do(*step)
    for empty, events in ((InboundState, world.all_in), (OutboundState, world.all_out)):
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
@example(
    steps=[*BEGUN, ("die", 0), ("release", 0), ("pass", 5), ("start", 0), ("claim", 0), ("race", 0)]
)
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
        answer = outbound_message(
            id=reply_id("s1", ids[0], 0), content="Yes " * 50, in_reply_to=ids[0]
        )
        files.write_outbound(*number_replies(files.session_state, [answer]))
        files.finish(ids)
        for message in due_deliveries(files.session_state, files.now):
            files.write_inbound(
                *after_attempt(files.session_state, message, files.now, platform_id=f"p{turn}")
            )
        files.write_inbound(
            routed_event(message=ids[0], agent="anna", outcome="wake", reason="it is a direct")
        )
        if rng.random() < often:
            files.compact()
    files.arrive(*(chat(f"context-{at}", trigger="accumulate") for at in range(2000)))
    files.arrive(*(chat(f"waits-{at}") for at in range(2 * MAX_KEPT)))
    files.compact()
    assert (len(files.in_events), len(files.out_events)) == (
        1 + MAX_KEPT + 2 * MAX_KEPT + MAX_KEPT,
        1,
    )
    assert len(orjson.dumps(files.in_events)) < 300_000
    assert len(orjson.dumps(files.out_events)) < 150_000
    assert (
        len(files.inbound.compacted_digests)
        == len(files.inbound.delivered)
        == len(files.outbound.compacted_routes)
        == WINDOW
    )
    assert files.status("context-1899") == "cancelled"


@pytest.mark.parametrize(("left", "remembered"), [(-1, WINDOW), (0, WINDOW + 9)])
def test_what_was_delivered_stays_so_while_the_other_file_still_has_it(
    left: int, remembered: int
) -> None:
    files = Files()
    files.write_outbound(
        *number_replies(
            files.session_state, [outbound_message(id=f"o{at}") for at in range(WINDOW + 10)]
        )
    )
    messages = due_deliveries(files.session_state, files.now)
    waiting = messages.pop(left)
    for message in messages:
        files.write_inbound(
            *after_attempt(files.session_state, message, files.now, platform_id="p")
        )
    files.in_events = files.stamped(files.session_state.compacted_inbound(files.now))
    assert len(files.in_events[0]["delivered"]) == remembered
    again = fold(InboundState("s1"), files.in_events)
    assert due_deliveries(
        SessionState(again, fold(OutboundState("s1"), files.out_events)), files.now
    ) == [waiting]


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
    files.write_inbound(*odd)
    files.write_outbound(
        *odd[:4], {"event": "message", "id": "o1", "recurrence": {"cron": "by hand"}}
    )
    files.arrive(chat("m1"))
    files.compact()
    assert files.claim() == ["m1"]
    assert [event.get("event") for event in files.in_events[2:]] == [
        event.get("event") for event in odd
    ]
    assert len(files.out_events) == 1 + 5 + 1


# What a person or another program wrote into the files.


def state_of(fold: InboundState | OutboundState) -> dict[str, Any]:
    """All that a fold holds, but for the events that it passed over."""
    values = {field.name: deepcopy(getattr(fold, field.name)) for field in dataclass_fields(fold)}
    return {
        name: value for name, value in values.items() if name not in ("unknown_events", "event_ids")
    }


def written(files: Files) -> list[tuple[InboundState | OutboundState, dict[str, Any]]]:
    """An event of each kind that changes something, before it is applied, with the fold that it is
    for.
    """
    made = inbound_message(
        id="m9", content="Hello", route=ROUTE, recurrence=DAILY, process_after=START
    )
    said = outbound_message(
        id="o9", content="Yes", in_reply_to="m1", to="ops", recurrence={"cron": "@daily"}
    )
    host = [
        made | {"seq": 90},
        retry_event(messages={"m1": (1, START)}, reason="busy", by_hand=True),
        failed_event(messages=["m1", "m2"], reason="broken"),
        cancelled_event(messages=["m1"]),
        paused_event(series="daily"),
        resumed_event(series="daily"),
        changed_event(series="daily", prompt="Look again", cron="@hourly"),
        attempt_event(message="o1", attempts=1, reason="busy", next_at=START),
        delivered_event(message="o1", platform_id="p1"),
        undeliverable_event(message="o1", reason="gone"),
        destinations_event(destinations={"ops": ROUTE.as_json()}),
        routing_event(route=ROUTE),
        files.session_state.compacted_inbound(START)[0],
    ]
    worker = [
        said | {"seq": 91},
        ack_event(state="completed", messages={"m2": 0}, instance="w2"),
        tool_event(name="build", limit_s=60),
        state_event(key="mood", value="good", provider="claude"),
        cleared_event(provider="claude"),
        files.session_state.compacted_outbound(START)[0],
    ]
    return [(files.inbound, event) for event in host] + [
        (files.outbound, event) for event in worker
    ]


def used() -> Files:
    """Two files with messages, claims, a series, an answer, an attempt, a failure, and something
    kept.
    """
    files = Files()
    files.arrive(
        chat("m0", sender="anna"),
        chat("m1"),
        chat("m2"),
        chat("d1", series="daily", recurrence=DAILY),
    )
    files.write_inbound(
        failed_event(messages=["m0"], reason="broken"),
        paused_event(series="daily"),
        routing_event(route=ROUTE),
    )
    files.claim()
    files.write_outbound(
        *number_replies(
            files.session_state, [outbound_message(id="o1", content="On it", in_reply_to="m1")]
        )
    )
    files.write_outbound(
        outbound_message(id="gone", content="x") | {"seq": 99},
        tool_event(name="look"),
        state_event(key="mood", value="bad"),
    )
    files.write_inbound(attempt_event(message="gone", attempts=1, reason="busy", next_at=START))
    return files


KINDS = [str(event["event"]) for _, event in written(used())]


@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_an_event_with_one_wrong_field_changes_nothing_and_is_kept(number: int) -> None:
    fold, event = written(used())[number]
    event = {"timestamp": START, "id": "e0"} | event
    is_valid, _ = fold.handlers[event["event"]]
    for name in event.keys() - {"role", "content", "event", "id", "timestamp", "value"}:
        wrong_events = [
            event | {name: wrong} for wrong in ("wrong", 5.5, True, {"wrong": object()}, [object()])
        ]
        wrong_events = [wrong for wrong in wrong_events if not is_valid(wrong)]
        assert wrong_events, name
        for wrong in wrong_events:
            fold, _ = written(used())[number]
            before = state_of(fold)
            fold.apply(wrong)
            assert state_of(fold) == before, wrong
            assert fold.unknown_events == [wrong]
    fold, _ = written(used())[number]
    fold.apply(event)
    assert fold.unknown_events == [], "the event as it was written is applied"


def test_a_summary_with_a_wrong_part_is_passed_over_whole() -> None:
    files = Files()
    files.arrive(chat("m1"))
    other = Files()
    other.arrive(chat("m0"))
    (summary, *_) = other.session_state.compacted_inbound(START)
    wrong = summary | {"left": {"m1": "0"}, "ended": {"m1": "failed"}, "delivered": 5}
    files.write_inbound(wrong)
    assert files.status("m1") == "pending" and files.inbound.compacted_digests == {}
    assert [event["event"] for event in files.inbound.unknown_events] == ["compacted"]


def test_a_notice_about_a_message_that_is_not_in_the_file_is_not_delivered() -> None:
    files = Files()
    (summary, *_) = files.session_state.compacted_inbound(START)
    files.write_inbound(
        summary | {"notices": {"n1": ["anna", ["unknown"], "broken"], "n2": ["bob", [], "broken"]}}
    )
    assert due_deliveries(files.session_state, START) == []
    files.write_inbound(
        retry_event(messages={"unknown": (1, START)}, reason="by hand", by_hand=True)
    )
    files.write_inbound(delivered_event(message="n2", platform_id="p1"))
    assert files.inbound.failures == {"bob": (0, 0)}


def test_a_bug_in_a_handler_is_an_error_and_no_event_that_makes_no_sense(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    files = Files()
    monkeypatch.setattr(files.inbound, "unfinished_ids", None)
    with pytest.raises(TypeError):
        files.arrive(chat("m1"))


# The live row of a series: RULES of schedules stand on it.


@pytest.mark.parametrize("end", ["completed", "failed"])
def test_a_finished_occurrence_stays_until_the_next_one_is_there(end: Any) -> None:
    files = Files()
    files.arrive(chat("d1", series="daily", recurrence=DAILY, route=None))
    files.finish(files.claim(), end)
    files.compact()
    assert files.inbound.messages[files.inbound.series["daily"]].event["recurrence"] == DAILY
    files.arrive(chat("d2", series="daily", recurrence=DAILY, process_after=add_seconds(START, 60)))
    files.inbound.final_states.setdefault("d1", end)
    files.compact()
    assert list(files.inbound.messages) == ["d2"]
    files.write_inbound(cancelled_event(messages=["d2"]))
    files.compact()
    assert (files.inbound.messages, files.inbound.series) == ({}, {})


def test_a_change_of_a_series_is_merged_into_its_live_row() -> None:
    files = Files()
    files.arrive(
        chat("d1", "Report", series="daily", recurrence=DAILY, process_after=add_seconds(START, 60))
    )
    files.write_inbound(
        changed_event(series="daily", prompt="Full report", cron="0 8 * * *"),
        paused_event(series="daily"),
    )
    files.compact()
    live = files.inbound.messages["d1"].event
    assert (live["content"], live["recurrence"]) == ("Full report", DAILY | {"cron": "0 8 * * *"})
    assert next_due(files.session_state, START) is None
    files.write_inbound(resumed_event(series="daily"))
    assert next_due(files.session_state, START) == add_seconds(START, 60)


# state


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_worker_keeps_values_by_provider_until_they_are_removed_or_cleared(
    is_compacted: bool,
) -> None:
    files = Files()
    files.write_outbound(
        state_event(key="continuation", value="c1", provider="claude"),
        state_event(key="continuation", value="c2", provider="codex"),
        state_event(key="continuation", value="c3", provider="claude"),
        state_event(key="mood", value={"is": "good"}, provider="claude"),
        state_event(key="gone", value=1, provider="claude"),
        state_event(key="gone", provider="claude"),
        tool_event(name="build", limit_s=60),
    )
    if is_compacted:
        files.compact()
    assert files.outbound.state["claude"] == {"continuation": "c3", "mood": {"is": "good"}}
    assert files.outbound.tool and files.outbound.tool.limit_s == 60
    files.write_outbound(cleared_event(provider="claude"))
    assert files.outbound.state == {"codex": {"continuation": "c2"}}
