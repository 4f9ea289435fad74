"""Schedules: when a task comes, what is caught up, and that none is lost or comes twice, whatever
clocks do.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound
from capsule.sessions.events import (
    Route,
    ack_event,
    failed_event,
    next_at,
    outbound_message,
    paused_event,
    resumed_event,
    retry_event,
)
from capsule.sessions.rules.messages import claim, number_replies, pick
from capsule.sessions.rules.schedules import (
    apply_task,
    live_occurrences,
    occurrences,
    run_next_task,
)
from capsule.sessions.session_state import FINAL, InboundMessage, InboundState
from tests.sessions.files import Files, fold, later

DAY = 86400
NINE = {"action": "make", "series": "s", "prompt": "report", "cron": "0 9 * * *"}


def at(text: str) -> str:
    return timestamps.canonical(text)


class World(Files):
    """A session with a schedule, whose worker claims and ends what is due."""

    def do(self, action: str, **task: Any) -> None:
        self.write_inbound(
            *apply_task(
                self.session_state, {"action": action, "series": "s", **task}, "x", self.now
            )
        )

    def tend(self) -> None:
        while events := occurrences(self.session_state, self.now):
            self.write_inbound(*events)

    def head(self) -> InboundMessage:
        return live_occurrences(self.session_state)["s"]

    def start(self) -> list[str]:
        """The worker claims what is due; the times that it is for."""
        picked = pick(self.session_state, self.now, just_started=False)
        self.write_outbound(*claim(self.session_state, picked, "w"))
        return [time_of(message) for message in picked]

    def end(self, state: Any = "completed") -> None:
        held = {
            id: claim.tries
            for id, claim in self.outbound.claims.items()
            if claim.state == "processing"
        }
        self.write_outbound(ack_event(state=state, messages=held, instance="w"))
        self.tend()

    def run(self, state: Any = "completed") -> list[str]:
        done = self.start()
        if done:
            self.end(state)
        return done


def time_of(message: InboundMessage) -> str:
    return str((message.event.get("recurrence") or {}).get("at") or message.due)


def world(now: str, **task: Any) -> World:
    made = World(at(now))
    made.write_inbound(
        *apply_task(made.session_state, NINE | task, "x", made.now, route=Route("chat", "room"))
    )
    return made


@pytest.mark.parametrize(
    ("cron", "zone", "after", "times"),
    [
        ("0 9 * * *", "", "2026-01-01T09:00", ["2026-01-02T09:00"]),
        ("@daily", "Asia/Kolkata", "2026-01-01T00:00", ["2026-01-01T18:30"]),
        ("@weekly", "", "2026-01-01T00:00", ["2026-01-04T00:00"]),
        ("@yearly", "", "2026-01-01T00:00", ["2027-01-01T00:00"]),
        ("0 9 * * *", "Asia/Kolkata", "2026-01-01T00:00", ["2026-01-01T03:30"]),
        ("0 9 * * MON-FRI", "Europe/Berlin", "2026-01-02T09:00", ["2026-01-05T08:00"]),
        # Clocks go forward, 2:00 to 3:00: once, right after the gap.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-03-28T12:00",
            ["2026-03-29T01:00", "2026-03-30T00:30"],
        ),
        (
            "0 * * * *",
            "Europe/Berlin",
            "2026-03-29T00:00",
            ["2026-03-29T01:00", "2026-03-29T02:00"],
        ),
        ("0 0 * * *", "Africa/Cairo", "2026-04-23T12:00", ["2026-04-23T22:00", "2026-04-24T21:00"]),
        # Clocks go back, 3:00 to 2:00: once; but what comes every hour or half an hour comes in
        # both.
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-24T12:00",
            ["2026-10-25T00:30", "2026-10-26T01:30"],
        ),
        ("45 2 * * *", "Europe/Berlin", "2026-10-25T01:30", ["2026-10-26T01:45"]),
        (
            "0 * * * *",
            "Europe/Berlin",
            "2026-10-24T23:30",
            ["2026-10-25T00:00", "2026-10-25T01:00"],
        ),
        (
            "*/30 * * * *",
            "America/New_York",
            "2026-11-01T05:00",
            ["2026-11-01T05:30", "2026-11-01T06:00"],
        ),
        # The ends of months.
        ("0 0 31 * *", "", "2026-01-31T00:00", ["2026-03-31T00:00", "2026-05-31T00:00"]),
        ("0 0 L * *", "", "2028-01-31T00:00", ["2028-02-29T00:00", "2028-03-31T00:00"]),
        ("0 0 29 2 *", "", "2026-01-01T00:00", ["2028-02-29T00:00", "2032-02-29T00:00"]),
    ],
)
def test_cron_is_read_in_the_time_zone_of_the_user(
    cron: str, zone: str, after: str, times: list[str]
) -> None:
    found, now = [], at(after)
    for _ in times:
        now = next_at({"cron": cron, "timeZone": zone}, now)
        found.append(now)
    assert found == [at(time) for time in times]


@pytest.mark.parametrize(
    "task",
    [
        {"cron": "whenever"},
        {"cron": "@fortnightly"},
        {"cron": "* * * * * *"},
        {"cron": "0 9 31 2 *"},
        {"cron": "61 * * * *"},
        {"timeZone": "Mars/Base"},
        {"catchUp": "some"},
        {"processAfter": "soon"},
        {"cron": ""},
    ],
)
def test_what_can_not_be_read_is_refused_when_it_is_written(task: dict[str, str]) -> None:
    files = Files()
    with pytest.raises(InvalidInput):
        apply_task(files.session_state, NINE | task, "x", files.now)
    if any(task.values()):
        made = world("2026-01-01")
        with pytest.raises(InvalidInput):
            made.do("update", **task)


@pytest.mark.parametrize(
    ("catch_up", "days_away", "times"),
    [
        ("latest", 0, ["02T09:00"]),
        ("latest", 3.5, ["05T09:00"]),
        ("all", 3.5, ["02T09:00", "03T09:00", "04T09:00", "05T09:00"]),
        ("skip", 3.5, []),
        ("skip", 0, ["02T09:00"]),
        ("skip", 299 / DAY, ["02T09:00"]),  # Five minutes late is not missed yet.
        ("skip", 301 / DAY, []),
    ],
)
@pytest.mark.parametrize("has_run", [False, True])
def test_what_is_caught_up_after_the_clock_jumped(
    catch_up: str, days_away: float, times: list[str], has_run: bool
) -> None:
    files = world("2026-01-01T00:00" if has_run else "2026-01-01T12:00", catchUp=catch_up)
    if has_run:
        files.now = at("2026-01-01T09:00")
        assert files.run() == [files.now]
    files.now = at("2026-01-02T09:00")
    files.pass_time(days_away * DAY)
    done = []
    for _ in range(9):
        files.tend()
        done += files.run()
    assert done == [at(f"2026-01-{time}") for time in times]
    assert files.head().due > files.now


def test_of_a_write_that_a_power_cut_has_cut_off_one_live_row_is_left() -> None:
    files = world("2026-01-01T00:00")
    task = {"action": "update", "series": "s", "prompt": "other"}
    first, *others = apply_task(files.session_state, task, "x", files.now)
    files.write_inbound(first)
    files.tend()
    (row,) = files.session_state.unfinished_messages()
    assert others and row.event["content"] == "other"


def test_a_pause_holds_even_while_an_occurrence_runs_and_what_it_held_is_not_caught_up() -> None:
    files = world("2026-01-01T00:00", catchUp="all")
    files.now = at("2026-01-01T09:00")
    files.start()
    files.do("pause")
    files.end()
    files.now = at("2026-01-04T12:00")
    files.tend()
    assert files.run() == [] and live_occurrences(files.session_state).keys() == {"s"}
    files.do("resume")
    assert files.run() == [] and files.head().due == at("2026-01-05T09:00")


def test_a_paused_session_runs_no_series_and_catches_up_as_its_series_say() -> None:
    files = world("2026-01-01T00:00")
    files.write_inbound(paused_event())
    files.now = at("2026-01-04T12:00")
    assert occurrences(files.session_state, files.now) == files.run() == []
    files.write_inbound(resumed_event())
    files.tend()
    assert files.run() == [at("2026-01-04T09:00")]


@pytest.mark.parametrize("state", ["waits", "runs", "answers"])
def test_a_cancelled_series_is_over(state: str) -> None:
    files = world("2026-01-01T00:00")
    files.now = at("2026-01-01T09:00")
    if state != "waits":
        files.start()
    files.do("cancel")
    if state == "answers":  # It had not read yet that the series was cancelled.
        files.write_outbound(
            ack_event(
                state="completed", messages=dict.fromkeys(files.outbound.claims, 0), instance="w"
            )
        )
        files.compact()
    files.now = at("2026-02-01T09:00")
    files.tend()
    assert files.run() == [] and live_occurrences(files.session_state) == {}
    with pytest.raises(NotFound):
        files.do("resume")


@pytest.mark.parametrize(
    ("change", "due", "prompt", "cron"),
    [
        ({"prompt": "other"}, "01T09:00", "other", "0 9 * * *"),
        ({"cron": "0 7 * * *"}, "01T07:00", "report", "0 7 * * *"),
        ({"timeZone": "Europe/Berlin"}, "01T08:00", "report", "0 9 * * *"),
        ({"processAfter": "2026-01-01T05:00Z"}, "01T05:00", "report", "0 9 * * *"),
    ],
)
def test_a_change_is_merged_into_the_live_row(
    change: dict[str, str], due: str, prompt: str, cron: str
) -> None:
    files = world("2026-01-01T00:00")
    files.do("update", **change)
    head = files.head()
    assert (head.due, head.event["content"], head.event["recurrence"]["cron"]) == (
        at(f"2026-01-{due}"),
        prompt,
        cron,
    )
    assert len(list(files.session_state.unfinished_messages())) == 1


def test_a_change_while_an_occurrence_runs_counts_for_the_next_one() -> None:
    files = world("2026-01-01T00:00")
    files.now = at("2026-01-01T09:00")
    files.start()
    files.do("update", prompt="other", cron="0 12 * * *")
    files.end()
    assert (files.head().due, files.head().event["content"]) == (at("2026-01-01T12:00"), "other")


def test_what_is_run_now_runs_once_more_and_the_schedule_stays() -> None:
    files = world("2026-01-01T00:00")
    files.do("update", processAfter=files.now)
    assert files.head().due == files.now
    assert files.run() == ["2026-01-01T08:59:59.999Z"] and files.head().due == at(
        "2026-01-01T09:00"
    )
    files.now = at("2026-01-01T09:05")
    files.do("update", processAfter=files.now)
    assert files.run() == [at("2026-01-01T09:00")] and files.head().due == at("2026-01-02T09:00")


def test_a_task_that_comes_once_is_over_when_it_ran() -> None:
    files = world("2026-01-01T00:00", cron=None, processAfter="2026-01-01T10:00+01:00")
    assert files.run() == []
    files.now = at("2026-01-01T09:00")
    assert files.run() == [files.now] and live_occurrences(files.session_state) == {}


def test_what_a_worker_asks_for_is_done_in_its_order_and_once_and_what_is_wrong_is_told_to_it() -> (
    None
):
    files = World(at("2026-01-01T00:00"))
    said = [
        NINE | {"timeZone": ""},
        {"action": "pause", "series": "s"},
        {"action": "cancel", "series": "none"},
    ]
    asked = [outbound_message(id=f"o{n}", kind="task", task=task) for n, task in enumerate(said)]
    asked.append(asked[0] | {"id": "o3", "series": "t", "processAfter": "at five"})  # By hand.
    files.write_inbound({"event": "routing", "route": Route("chat", "room").as_json()})
    files.write_outbound(*number_replies(files.session_state, asked))
    rounds = 0
    while events := run_next_task(files.session_state, files.now, "Europe/Berlin"):
        files.write_inbound(*events)
        rounds += 1
    assert (
        rounds == 4
        and files.inbound.delivered.keys() == {"o0", "o1"}
        and "s" in files.inbound.paused
    )
    assert files.head().due == at("2026-01-01T08:00")
    assert "none" in files.inbound.undeliverable["o2"] and "o3" in files.inbound.undeliverable
    assert [message.wakes for message in files.inbound.messages.values()] == [True, False, False]


ACTS = [
    "start",
    "end",
    "start",
    "end",
    "tend",
    "tend",
    "fail",
    "give up",
    "return",
    "die",
    "compact",
    "now",
]
CLOCK = [0, 0, 0, 60, 3600, 5 * 3600, 5 * 3600, DAY, -3600, -DAY]


@given(
    st.randoms(use_true_random=True),
    st.sampled_from(["all", "latest", "skip"]),
    st.sampled_from(["0 9 * * *", "30 2,14 * * *", "0 */5 * * *"]),
    st.sampled_from(["", "Europe/Berlin"]),
)
@settings(max_examples=60)
def test_no_occurrence_is_lost_or_comes_twice_whatever_clocks_and_crashes_do(
    chance: Random, catch_up: str, cron: str, zone: str
) -> None:
    files = world("2026-03-28T00:00", cron=cron, catchUp=catch_up, timeZone=zone)
    done: list[str] = []
    claimed: list[str] = []
    tried = ""  # It is tried again, and makes no room for a later one.
    for step in chance.choices(ACTS, k=150):
        files.pass_time(chance.choice(CLOCK))
        if step == "start" and not claimed:
            claimed, tried = files.start(), ""
        elif step == "give up" and claimed:
            files.write_inbound(failed_event(messages=[files.head().id], reason="x"))
            done, claimed = done + claimed, []
        elif step in ("end", "fail") and claimed:
            held = {
                id: claim.tries
                for id, claim in files.outbound.claims.items()
                if claim.state == "processing"
            }
            files.write_outbound(
                ack_event(
                    state="completed" if step == "end" else "failed", messages=held, instance="w"
                )
            )
            done, claimed = done + claimed, []
        elif step == "return" and claimed:  # It is tried again, later.
            head = files.head()
            files.write_outbound(
                ack_event(state="returned", messages={head.id: head.tries}, instance="w")
            )
            files.write_inbound(
                retry_event(messages={head.id: (head.tries + 1, later(60, files.now))}, reason="x")
            )
            claimed, tried = [], head.id
        elif step == "die":  # The host computed a write that never came, and reads its file again.
            occurrences(files.session_state, files.now)
            files.inbound = fold(InboundState("s1"), files.in_events)
        elif step == "tend":
            events = occurrences(files.session_state, files.now)
            files.write_inbound(*events, *events)  # Twice is once.
            files.tend()
        elif step == "compact":
            files.compact()
        elif step == "now" and not claimed and not tried:
            files.do("update", processAfter=files.now)
        rows = [message for message in files.inbound.messages.values() if message.series == "s"]
        states = [files.status(message.id) for message in rows]
        assert sum(state not in FINAL for state in states) <= 1
        assert live_occurrences(files.session_state).keys() == {"s"} and files.head().id == (
            tried or files.head().id
        )
        assert (files.head().route, files.head().event["content"]) == (
            Route("chat", "room"),
            "report",
        )
    turns = [
        time for time in done if time.endswith(":00.000Z")
    ]  # The others ran before their turn.
    assert sorted(set(turns)) == turns
    if catch_up == "all" and turns:
        expected = [next_at({"cron": cron, "timeZone": zone}, at("2026-03-28"))]
        while expected[-1] < turns[-1]:
            expected.append(next_at({"cron": cron, "timeZone": zone}, expected[-1]))
        assert turns == expected
