"""A session whose host, worker, platform and clock do what they may, in any order; each of them may
die at any step.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from capsule.errors import InvalidInput
from capsule.sessions.events import (
    Event,
    ack_event,
    cancelled_event,
    failed_event,
    outbound_message,
    paused_event,
    reply_id,
    resumed_event,
    retry_event,
    state_event,
)
from capsule.sessions.rules import messages
from capsule.sessions.rules.messages import (
    add_seconds,
    after_attempt,
    delivery_id,
    due_deliveries,
    end_claims,
    next_delivery,
    next_due,
    number_replies,
    numbered,
    pick,
    receive,
    retry_by_hand,
    retry_or_fail,
    withdraw_old_claims,
)
from capsule.sessions.session_state import FINAL, InboundState, OutboundState, SessionState
from tests.sessions.files import Files, chat, fold

WORDS = [
    "arrive",
    "again",
    "start",
    "die",
    "claim",
    "send",
    "answer",
    "return",
    "fail",
    "release",
    "race",
    "cross",
]
WORDS += [
    "deliver",
    "lose",
    "pass",
    "back",
    "pause",
    "resume",
    "cancel",
    "compact",
    "keep",
    "word",
    "late",
]
_STEP = st.tuples(st.sampled_from(WORDS), st.integers(0, 30))
#: What fails is found by the long ones, and told by the short ones.
Steps = st.lists(_STEP, max_size=60) | st.lists(_STEP, min_size=40, max_size=60)


def answers(session_state: SessionState, ids: list[str], now: str) -> dict[str, Any]:
    """What the rules ask two files."""
    state_of = {id: session_state.status(id) for id in ids}
    return {
        "status": state_of,
        "picked": [
            [message.event for message in pick(session_state, at, just_started=True)]
            for at in (now, add_seconds(now, 3600))
        ],
        "due": next_due(session_state, now),
        "out": [
            (message.event, delivery_id(session_state, message))
            for message in due_deliveries(session_state, now)
        ],
        "delivery": next_delivery(session_state, now),
        "highest": session_state.highest_seq,
        "released": retry_or_fail(session_state, now, is_alive=lambda _: False),
        "held": {
            id: claim
            for id, claim in session_state.outbound.claims.items()
            if state_of.get(id) == "processing"
        },
        "state": session_state.outbound.state,
        "paused": session_state.inbound.paused,
        "failures": session_state.inbound.failures,
    }


class World:
    """The files of a session, what happens to them, and what must have become of each message for
    the worker.

    Attributes:
        states: The state of each message, as its status says it.
        tries: How often it was tried in vain.
        holders: The worker that claimed it last.
    """

    def __init__(self) -> None:
        self.states: dict[str, str] = {}
        self.tries: Counter[str] = Counter()
        self.holders: dict[str, str] = {}
        self.files = Files()
        self.all_in: list[Event] = []
        self.all_out: list[Event] = []
        self.ids: list[str] = []
        self.instance, self.starts, self.first = "", 0, True
        self.held: list[str] = []
        self.batch = ""
        self.answered: list[str] = []
        self.platform: Counter[str] = Counter()

    def write_inbound(self, *events: Event) -> None:
        events = tuple(self.files.stamped(events))
        self.all_in += events
        self.files.write_inbound(*events)

    def write_outbound(self, *events: Event) -> None:
        events = tuple(self.files.stamped(events))
        self.all_out += events
        self.files.write_outbound(*events)

    def whole(self) -> SessionState:
        """The files as if they were never compacted."""
        return SessionState(
            fold(InboundState("s1"), self.all_in), fold(OutboundState("s1"), self.all_out)
        )

    def do(self, word: str, number: int) -> None:
        getattr(self, f"_{word}")(number)

    def _arrive(self, number: int) -> None:
        id = f"m{len(self.ids)}"
        self.ids.append(id)
        self.states[id] = "pending"
        trigger, after = "accumulate" if number % 5 == 4 else "wake", None
        if number % 7 == 6:
            after = add_seconds(self.files.now, number)
        sender = ("anna", "bob", None)[number % 3]
        new = chat(id, trigger=trigger, sender=sender, process_after=after, on_wake=number == 13)
        self.write_inbound(*receive(self.files.session_state, [new]))

    def _again(self, number: int) -> None:
        if self.ids:
            new = chat(self.ids[number % len(self.ids)])
            assert receive(self.files.session_state, [new]) == []

    def _start(self, number: int) -> None:
        self._die(0)
        self.starts += 1
        self.instance, self.first = f"w{self.starts}", True
        if number % 2:  # Else it dies before that.
            self.write_outbound(*withdraw_old_claims(self.files.session_state, self.instance))
            self.states |= {
                id: "released"
                for id, state_event in self.states.items()
                if state_event == "processing"
            }

    def _die(self, number: int) -> None:
        self.instance, self.held = "", []

    def _claim(self, number: int) -> None:
        if self.instance and not self.held:
            before = len(self.files.out_events)
            self.held = self.files.claim(self.instance, first=self.first)
            self.all_out += self.files.out_events[before:]
            self.batch = self.files.out_events[-1]["batch"] if self.held else ""
            self.first = False
            assert {self.states[id] for id in self.held} <= {"pending"}
            self.states |= dict.fromkeys(self.held, "processing")
            self.holders |= dict.fromkeys(self.held, self.instance)

    def _send(self, number: int) -> None:
        if self.held:
            said = outbound_message(
                id=reply_id("s1", self.batch, 1 + number % 3),
                in_reply_to=self.held[0],
                content="On it",
            )
            self.write_outbound(*number_replies(self.files.session_state, [said]))

    def _end(self, state: Any) -> list[Event]:
        if not self.held:
            return []
        ids, self.held = self.held, []
        assert end_claims(self.files.session_state, ids, instance="another", state=state) == []
        done = end_claims(self.files.session_state, ids, instance=self.instance, state=state)
        ended = [id for id in ids if self.states[id] == "processing"]
        assert [id for event in done for id in event["messages"]] == ended
        self.states |= dict.fromkeys(ended, "released" if state == "returned" else state)
        if done and state == "completed":
            said = outbound_message(
                id=reply_id("s1", self.batch, 0), in_reply_to=ids[0], content="Yes"
            )
            self.answered += done[0]["messages"]
            return [*number_replies(self.files.session_state, [said]), *done]
        return done

    def _answer(self, number: int) -> None:
        self.write_outbound(*self._end("completed"))

    def _return(self, number: int) -> None:
        self.write_outbound(*self._end("returned"))

    def _fail(self, number: int) -> None:
        self.write_outbound(*self._end("failed"))

    def _release(self, number: int) -> None:
        alive = self.instance
        self.write_inbound(
            *retry_or_fail(
                self.files.session_state, self.files.now, is_alive=lambda id: id == alive
            )
        )
        self._released(alive)

    def _released(self, alive: str) -> None:
        for id, was in self.states.items():
            if was == "released" or (was == "processing" and self.holders[id] != alive):
                is_last = self.tries[id] >= messages.RETRIES
                self.states[id], self.tries[id] = (
                    "failed" if is_last else "pending",
                    self.tries[id] + (not is_last),
                )

    def _race(self, number: int) -> None:
        """The host reads before the worker answers and dies, and writes after it."""
        events = retry_or_fail(self.files.session_state, self.files.now, is_alive=lambda _: False)
        self.write_outbound(*self._end("completed"))
        self._die(0)
        self.write_inbound(*events)
        self._released("")

    def _cross(self, number: int) -> None:
        """Somebody cancels what the worker is answering; both have read before the other
        one wrote.
        """
        ids = self.held[:1]
        events = self._end("completed")
        if ids:
            self.write_inbound(cancelled_event(messages=ids))
        self.write_outbound(*events)

    def _late(self, number: int) -> None:
        """What a worker or the host says of a message that is at its end does not count
        any more.
        """
        over = [
            id for id in self.files.inbound.messages if self.states[id] in ("completed", "failed")
        ]
        if over and number < 20:
            about = {over[0]: (1, self.files.now)}
            self.write_inbound(
                retry_event(messages=about, reason="late"),
                failed_event(messages=over[:1], reason="late"),
            )
        elif over:
            word: Any = ("processing", "completed", "failed", "returned", "dropped")[number % 5]
            self.write_outbound(ack_event(state=word, messages={over[-1]: 0}, instance="late"))

    def _deliver(self, number: int) -> None:
        self._try(platform_id=f"p{number}")

    def _lose(self, number: int) -> None:
        self._try(error="no network")

    def _try(self, **result: str) -> None:
        for message in due_deliveries(self.files.session_state, self.files.now)[:1]:
            if "error" not in result:
                self.platform[delivery_id(self.files.session_state, message)] += 1
            noted = after_attempt(self.files.session_state, message, self.files.now, **result)  # type: ignore[arg-type]
            self.write_inbound(*numbered(self.files.session_state, noted))

    def _pass(self, number: int) -> None:
        self.files.pass_time(number * 3)

    def _back(self, number: int) -> None:
        self.files.pass_time(-number * 20)

    def _pause(self, number: int) -> None:
        self.write_inbound(paused_event())

    def _resume(self, number: int) -> None:
        self.write_inbound(resumed_event())

    def _cancel(self, number: int) -> None:
        """Somebody cancels a message that is not at its end."""
        if self.ids and self.states[id := self.ids[number % len(self.ids)]] not in FINAL:
            self.write_inbound(cancelled_event(messages=[id]))
            self.states[id] = "cancelled"

    def _word(self, number: int) -> None:
        """Somebody wants a message tried again."""
        with suppress(InvalidInput, ZeroDivisionError):
            id = self.ids[number % len(self.ids)]
            self.write_inbound(*retry_by_hand(self.files.session_state, [id], self.files.now))
            assert self.states[id] in ("pending", "released", "failed")
            self.tries[id] += self.states[id] != "pending"
            self.states[id] = "pending"

    def _keep(self, number: int) -> None:
        self.write_outbound(
            state_event(key=f"k{number % 3}", value=number % 4 or None, provider=f"p{number % 2}")
        )

    def _compact(self, number: int) -> None:
        self.files.compact()

    def check(self) -> None:
        """Each message is in its state; nothing is answered, delivered or numbered twice; only
        failures are noticed.
        """
        assert len(self.answered) == len(set(self.answered))
        assert max(self.platform.values(), default=0) <= 1
        session_state = self.files.session_state
        for events in (self.all_in, self.all_out):
            numbers = [event["seq"] for event in events if event["event"] == "message"]
            assert numbers == sorted(set(numbers))
        assert {id: session_state.status(id) for id in self.ids} == self.states
        assert all(self.states[id] == "completed" for id in self.answered)
        told = Counter(id for notice in session_state.notices().values() for id in notice.messages)
        assert all(self.states[id] == "failed" and times == 1 for id, times in told.items())

    def settle(self) -> None:
        """From now on nobody dies, and whoever waits is woken."""
        self._resume(0)
        self._arrive(0)  # For what accumulated.
        for _ in range(2000):
            self._start(1)
            self._claim(0)
            if not self.held:
                self._release(0)
                due = next_due(self.files.session_state, self.files.now)
                if due is None and not self._accumulated():
                    return
                if due is None:
                    self._arrive(0)
                self.files.pass_time(1)
                self.files.now = max(due or "", self.files.now)
            self._answer(0)
        raise AssertionError("it never comes to an end")

    def _accumulated(self) -> bool:
        return any(True for _ in self.files.session_state.unfinished_messages())
