"""What becomes of a message for the worker: a table for each row of rules."""

from __future__ import annotations

from typing import Any

import pytest

from capsule.errors import InvalidInput, NotFound
from capsule.sessions.events import (
    Route,
    cancelled_event,
    failed_event,
    inbound_message,
    outbound_message,
    paused_event,
    resumed_event,
    tool_event,
)
from capsule.sessions.rules.messages import (
    MAX_EVENTS,
    add_seconds,
    is_bulky,
    next_due,
    next_seq,
    pick,
    reason_worker_is_dead,
    receive,
    retry_by_hand,
    retry_or_fail,
    withdraw_old_claims,
    worker_fault,
)
from capsule.sessions.session_state import MAX_KEPT
from tests.sessions.files import START, Files, chat


def dead(_: str) -> bool:
    return False


def alive(_: str) -> bool:
    return True


@pytest.mark.parametrize(
    ("highest", "host", "worker"),
    [(0, 2, 1), (1, 2, 3), (2, 4, 3), (3, 4, 5), (10_000, 10_002, 10_001)],
)
def test_the_host_counts_evenly_the_worker_oddly_and_each_above_what_it_sees(
    highest: int, host: int, worker: int
) -> None:
    assert (next_seq(highest, "host"), next_seq(highest, "worker")) == (host, worker)


# in


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_message_is_taken_once_and_another_content_under_its_id_is_refused(
    is_compacted: bool,
) -> None:
    files = Files()
    files.arrive(chat("m1"), chat("m1"), chat("m2", "Bye"))
    assert [message.seq for message in files.inbound.messages.values()] == [2, 4]
    files.finish(files.claim())
    if is_compacted:
        files.compact()
        assert not files.inbound.messages
    assert receive(files.session_state, [chat("m1"), chat("m2", "Bye", wiring="other")]) == []
    with pytest.raises(InvalidInput) as raised:
        receive(files.session_state, [chat("m3"), chat("m2", "Hi")])
    assert raised.value.fields["id"] == "m2"
    files.arrive(chat("m3"))
    assert files.inbound.messages["m3"].seq == 6


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("2026-11-22T13:30:00.000Z", START),
        ("2026-11-22T14:30:00+01:00", START),
        ("2026-11-22 13:30", START),
        (None, None),
    ],
)
def test_a_time_is_kept_in_utc(written: str | None, kept: str | None) -> None:
    assert chat("m1", process_after=written).get("processAfter") == kept


@pytest.mark.parametrize(
    "wrong",
    [
        {"process_after": "tomorrow"},
        {"process_after": ""},
        {"kind": "mail"},
        {"trigger": "maybe"},
        {"id": ""},
        *(
            {"recurrence": rule}
            for rule in ({}, {"cron": "no"}, {"timeZone": "X"}, {"cron": "@daily", "timeZone": "X"})
        ),
    ],
    ids=lambda value: next(iter(value)),
)
def test_what_cannot_be_read_is_refused_when_it_is_written(wrong: dict[str, Any]) -> None:
    for make in (
        (inbound_message, outbound_message) if "recurrence" in wrong else (inbound_message,)
    ):
        with pytest.raises(InvalidInput):
            make(**({"id": "m1", "content": "Hello"} | wrong))


# pick

OTHER = Route("conversations", "others")
PICKS: dict[str, tuple[list[dict[str, Any]], list[int]]] = {
    "nothing": ([], []),
    "oldest first": ([{}, {}, {}], [0, 1, 2]),
    "ten": ([{}] * 12, list(range(10))),
    "what is due": (
        [{"process_after": add_seconds(START, 60)}, {"process_after": START}, {}],
        [1, 2],
    ),
    "of kind system is nobody's": ([{"kind": "system"}, {}], [1]),
    "what is system does not fill the ten": ([{"kind": "system"}] * 30 + [{}], [30]),
    "accumulated ones alone wait": ([{"trigger": "accumulate"}] * 2, []),
    "accumulated ones come along": (
        [{"trigger": "accumulate"}, {}, {"trigger": "accumulate"}],
        [0, 1, 2],
    ),
    "the last accumulated ones come along": (
        [{"trigger": "accumulate"}] * 30 + [{}],
        list(range(21, 31)),
    ),
    "one route": ([{"route": OTHER, "trigger": "accumulate"}, {}, {"route": OTHER}, {}], [1, 3]),
    "the route of the oldest that wakes": ([{"trigger": "accumulate"}, {"route": OTHER}, {}], [1]),
    "for a start": ([{"on_wake": True}, {}], [1]),
}


@pytest.mark.parametrize("name", PICKS)
def test_a_worker_gets(name: str) -> None:
    messages, picked = PICKS[name]
    files = Files()
    files.arrive(*(chat(str(at), **fields) for at, fields in enumerate(messages)))
    assert files.claim() == [str(at) for at in picked]


def test_a_worker_that_starts_gets_what_is_for_the_start() -> None:
    files = Files()
    files.arrive(chat("m1", on_wake=True))
    assert next_due(files.session_state, START, just_started=False) is None
    assert (files.claim(), files.claim(first=True)) == ([], ["m1"])


def test_what_is_acknowledged_does_not_fill_the_ten() -> None:
    files = Files()
    files.arrive(*(chat(f"m{at}") for at in range(25)))
    assert [len(files.claim()) for _ in range(4)] == [10, 10, 5, 0]


@pytest.mark.parametrize("series", [None, "daily"])
def test_nothing_is_picked_while_it_pauses(series: str | None) -> None:
    files = Files()
    files.arrive(chat("m1", series="daily"))
    files.write_inbound(paused_event(series=series))
    assert next_due(files.session_state, START) is None
    assert files.claim() == []
    files.write_inbound(resumed_event(series=series))
    assert files.claim() == ["m1"]


def test_the_next_time_is_that_of_the_soonest_that_wakes() -> None:
    files = Files()
    files.arrive(
        chat("m1", process_after=add_seconds(START, 9)),
        chat("m2", process_after=add_seconds(START, 5)),
        chat("m3", process_after=add_seconds(START, 1), trigger="accumulate"),
        chat("m4", kind="system"),
    )
    assert next_due(files.session_state, START) == add_seconds(START, 5)
    assert next_due(files.session_state, add_seconds(START, 7)) == add_seconds(START, 7)


# ack


def test_who_asks_for_a_message_that_never_was_is_told() -> None:
    with pytest.raises(NotFound):
        Files().status("m1")


# stale: what decides is the heartbeat, the claims, and the limit of the tool, in seconds before
# now, or as written.

Time = float | str | None
STALE: dict[str, tuple[Time, list[Time], float, bool]] = {
    "a fresh heartbeat and no claim": (5, [], 0, False),
    "no heartbeat for more than half an hour": (1801, [], 0, True),
    "no heartbeat yet, and no claim": (None, [], 0, False),
    "no heartbeat yet, and a claim that is too old": (None, [65], 0, True),
    "a silence that the tool's limit covers": (45 * 60, [], 7200, False),
    "an old claim, and the last heartbeat before it": (75, [70], 0, True),
    "an old claim, and a heartbeat since": (2, [70], 0, False),
    "an old claim, and a heartbeat right after it, by a file system that keeps time by ticks": (
        70.004,
        [70],
        0,
        False,
    ),
    "a young claim, and an old heartbeat": (70, [5], 0, False),
    "an old claim that the tool's limit covers": (305, [300], 600, False),
    "a silence longer than the tool's limit": (7300, [], 7200, True),
    "one old claim among young ones": (75, [5, 70], 0, True),
    "exactly half an hour": (1800, [], 0, False),
    "exactly a minute": (61, [60], 0, False),
    "a clock that went back": (-3600, [-3600], 0, False),
    "a claim that can't be read": (5, ["not a time"], 0, False),
    "a heartbeat that can't be read": ("not a time", [70], 0, True),
    "no time of a claim": (None, [""], 0, False),
    "a time without a zone, which is of UTC": (None, ["2026-11-22 13:28:00"], 0, True),
    "a time with a zone": (None, ["2026-11-22T14:28:00+01:00"], 0, True),
    "a day": (None, ["2026-11-22"], 0, True),
}


@pytest.mark.parametrize("name", STALE)
def test_a_worker_counts_as_dead_after(name: str) -> None:
    heartbeat, claims, limit_s, is_dead = STALE[name]
    beat, *claimed = (
        add_seconds(START, -each) if isinstance(each, float | int) else each
        for each in (heartbeat, *claims)
    )
    assert bool(reason_worker_is_dead(START, beat, map(str, claimed), limit_s)) is is_dead


def test_the_claims_of_one_worker_and_its_tool_decide() -> None:
    files = Files()
    files.arrive(chat("m1"))
    files.claim("w1")
    files.pass_time(70)
    asked = {"now": files.now, "heartbeat": None}
    assert worker_fault(files.session_state, instance="w1", **asked)  # type: ignore[arg-type]
    assert not worker_fault(files.session_state, instance="w2", **asked)  # type: ignore[arg-type]
    files.write_outbound(tool_event(name="build", limit_s=600))
    assert not worker_fault(files.session_state, instance="w1", **asked)  # type: ignore[arg-type]
    files.write_outbound(tool_event())
    files.write_inbound(*retry_or_fail(files.session_state, files.now, is_alive=dead))
    assert not worker_fault(files.session_state, instance="w1", **asked)  # type: ignore[arg-type]


# retry and crash


@pytest.mark.parametrize("way", ["returned", "dropped", "dead"])
def test_a_message_is_tried_again_five_times_and_then_given_up(way: Any) -> None:
    files = Files()
    files.arrive(chat("m1"))
    waits = []
    while files.claim("w1"):
        if way == "returned":
            files.finish(["m1"], "returned", error="exit code 1")
        elif way == "dropped":
            files.write_outbound(*withdraw_old_claims(files.session_state, "w2"))
        files.write_inbound(
            *retry_or_fail(
                files.session_state, files.now, is_alive=dead if way == "dead" else alive
            )
        )
        assert files.claim() == []
        due = next_due(files.session_state, files.now)
        if due:
            waits.append(
                int(due[14:16]) * 60
                + int(due[17:19])
                - int(files.now[14:16]) * 60
                - int(files.now[17:19])
            )
            files.now = due
    assert waits == [5, 10, 20, 40, 80]
    assert files.status("m1") == "failed"
    reason = files.in_events[-1]["reason"]
    assert reason == ("exit code 1" if way == "returned" else "the worker ended without an answer")


def test_a_second_try_has_the_same_batch_alone_and_the_same_name_for_its_replies() -> None:
    files = Files()
    files.arrive(chat("m1", process_after=add_seconds(START, 3)), chat("m2"), chat("m3"))
    assert files.claim("w1") == ["m2", "m3"]
    files.write_inbound(*retry_or_fail(files.session_state, files.now, is_alive=dead))
    files.write_inbound(cancelled_event(messages=["m2"]))
    files.arrive(chat("m4"))
    files.compact()
    files.pass_time(6)
    assert files.claim("w2") == ["m1", "m4"]
    assert files.claim("w2") == ["m3"]
    assert files.out_events[-1]["batch"] == "m2"


def test_what_accumulated_comes_with_another_message_when_the_one_it_came_with_is_cancelled() -> (
    None
):
    files = Files()
    files.arrive(chat("a1", trigger="accumulate"), chat("m1"))
    assert files.claim("w1") == ["a1", "m1"]
    files.write_inbound(
        *retry_or_fail(files.session_state, files.now, is_alive=dead),
        cancelled_event(messages=["m1"]),
    )
    files.pass_time(5)
    assert files.claim("w2") == []
    files.arrive(chat("m2"))
    assert files.claim("w2") == ["a1", "m2"]
    assert files.out_events[-1]["batch"] == "m2"


@pytest.mark.parametrize("by", ["worker", "host"])
def test_a_person_may_have_a_failed_message_tried_again_and_its_sender_hears_only_of_the_last_failure(
    by: str,
) -> None:
    files = Files()
    files.arrive(chat("m1"), chat("m2"))
    with pytest.raises(InvalidInput):
        retry_by_hand(files.session_state, files.claim(), files.now)
    if by == "worker":
        files.finish(["m1", "m2"], "failed")
        files.write_inbound(*retry_or_fail(files.session_state, files.now, is_alive=alive))
    else:
        files.write_inbound(failed_event(messages=["m1", "m2"], reason="by hand"))
    files.write_inbound(*retry_by_hand(files.session_state, ["m1"], files.now))
    files.arrive(chat("m3"))
    files.compact()
    assert files.claim() == ["m1"]
    assert [notice.messages for notice in files.inbound.notices.values()] == [("m2",)]
    assert files.finish(["m1"])
    assert [files.status(id) for id in ("m1", "m2", "m3")] == [
        "completed",
        "failed",
        "pending",
    ]
    with pytest.raises(InvalidInput):
        retry_by_hand(files.session_state, ["m1"], files.now)


def test_a_clock_that_goes_back_does_not_hold_up_a_retry_but_does_a_plan() -> None:
    files = Files()
    files.arrive(chat("m1"), chat("m2", process_after=add_seconds(START, 3600)))
    files.claim("w1")
    files.write_inbound(*retry_or_fail(files.session_state, files.now, is_alive=dead))
    assert pick(files.session_state, START, just_started=True) == []
    assert [
        found.id
        for found in pick(files.session_state, add_seconds(START, -7200), just_started=True)
    ] == ["m1"]


def test_what_only_accumulates_makes_a_file_bulky_too() -> None:
    files = Files()
    files.arrive(*(chat(f"m{number}", trigger="accumulate") for number in range(MAX_EVENTS + 1)))
    assert is_bulky(files.session_state)
    files.compact()
    assert not is_bulky(files.session_state) and len(files.in_events) <= MAX_KEPT + 1
