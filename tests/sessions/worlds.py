"""A session whose host, worker, platform and clock do what they may, in any order; each of them may die at any step."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

from hypothesis import strategies as st

from capsule.errors import InvalidInput
from capsule.sessions.events import Event, cancelled, outgoing, paused, reply_id, resumed, state
from capsule.sessions.folds import Folds
from capsule.sessions.inbound import Inbound
from capsule.sessions.outbound import Outbound
from capsule.sessions.rules.deliveries import after_attempt, delivery_id, due_out, next_delivery, send
from capsule.sessions.rules.messages import drop, finish, later, next_due, numbered, pick, receive, release, retried
from tests.sessions.files import Files, chat, fold

WORDS = ["arrive", "again", "start", "die", "claim", "send", "answer", "return", "fail", "release", "race"]
WORDS += ["deliver", "lose", "pass", "back", "pause", "resume", "cancel", "compact", "keep", "word"]
Steps = st.lists(st.tuples(st.sampled_from(WORDS), st.integers(0, 30)), max_size=60)


def answers(folds: Folds, ids: list[str], now: str) -> dict[str, Any]:
    """What the rules ask two files."""
    state_of = {id: folds.status(id) for id in ids}
    return {
        "status": state_of,
        "picked": [[message.event for message in pick(folds, at, first=True)] for at in (now, later(now, 3600))],
        "due": next_due(folds, now),
        "out": [(message.event, delivery_id(folds, message)) for message in due_out(folds, now)],
        "delivery": next_delivery(folds, now),
        "highest": folds.highest,
        "released": release(folds, now, is_alive=lambda _: False),
        "held": {id: claim for id, claim in folds.outbound.claims.items() if state_of.get(id) == "processing"},
        "state": folds.outbound.state,
        "paused": folds.inbound.paused,
    }


class World:
    def __init__(self) -> None:
        self.files = Files()
        self.all_in: list[Event] = []
        self.all_out: list[Event] = []
        self.ids: list[str] = []
        self.instance, self.starts, self.first = "", 0, True
        self.held: list[str] = []
        self.batch = ""
        self.answered: list[str] = []
        self.platform: Counter[str] = Counter()

    def tell(self, *events: Event) -> None:
        events = tuple(self.files.stamped(events))
        self.all_in += events
        self.files.tell(*events)

    def say(self, *events: Event) -> None:
        events = tuple(self.files.stamped(events))
        self.all_out += events
        self.files.say(*events)

    def whole(self) -> Folds:
        """The files as if they were never compacted."""
        return Folds(fold(Inbound("s1"), self.all_in), fold(Outbound("s1"), self.all_out))

    def do(self, word: str, number: int) -> None:
        getattr(self, f"_{word}")(number)

    def _arrive(self, number: int) -> None:
        id = f"m{len(self.ids)}"
        self.ids.append(id)
        trigger, after = "accumulate" if number % 5 == 4 else "wake", None
        if number % 7 == 6:
            after = later(self.files.now, number)
        new = chat(id, trigger=trigger, process_after=after, on_wake=number == 13)
        self.tell(*receive(self.files.folds, [new]))

    def _again(self, number: int) -> None:
        if self.ids:
            new = chat(self.ids[number % len(self.ids)])
            assert receive(self.files.folds, [new]) == []

    def _start(self, number: int) -> None:
        self._die(0)
        self.starts += 1
        self.instance, self.first = f"w{self.starts}", True
        if number % 2:  # Else it dies before that.
            self.say(*drop(self.files.folds, self.instance))

    def _die(self, number: int) -> None:
        self.instance, self.held = "", []

    def _claim(self, number: int) -> None:
        if self.instance and not self.held:
            before = len(self.files.out_events)
            self.held = self.files.claim(self.instance, first=self.first)
            self.all_out += self.files.out_events[before:]
            self.batch = self.files.out_events[-1]["batch"] if self.held else ""
            self.first = False

    def _send(self, number: int) -> None:
        if self.held:
            said = outgoing(id=reply_id("s1", self.batch, 1 + number % 3), in_reply_to=self.held[0], content="On it")
            self.say(*send(self.files.folds, [said]))

    def _end(self, state: Any) -> list[Event]:
        if not self.held:
            return []
        ids, self.held = self.held, []
        done = finish(self.files.folds, ids, instance=self.instance, state=state)
        if done and state == "completed":
            said = outgoing(id=reply_id("s1", self.batch, 0), in_reply_to=ids[0], content="Yes")
            self.answered += done[0]["messages"]
            return [*send(self.files.folds, [said]), *done]
        return done

    def _answer(self, number: int) -> None:
        self.say(*self._end("completed"))

    def _return(self, number: int) -> None:
        self.say(*self._end("returned"))

    def _fail(self, number: int) -> None:
        self.say(*self._end("failed"))

    def _release(self, number: int) -> None:
        alive = self.instance
        self.tell(*release(self.files.folds, self.files.now, is_alive=lambda id: id == alive))

    def _race(self, number: int) -> None:
        """The host reads before the worker answers and dies, and writes after it."""
        events = release(self.files.folds, self.files.now, is_alive=lambda _: False)
        self.say(*self._end("completed"))
        self._die(0)
        self.tell(*events)

    def _deliver(self, number: int) -> None:
        self._try(platform_id=f"p{number}")

    def _lose(self, number: int) -> None:
        self._try(error="no network")

    def _try(self, **result: str) -> None:
        for message in due_out(self.files.folds, self.files.now)[:1]:
            if "error" not in result:
                self.platform[delivery_id(self.files.folds, message)] += 1
            self.tell(*numbered(self.files.folds, after_attempt(self.files.folds, message, self.files.now, **result)))  # type: ignore[arg-type]

    def _pass(self, number: int) -> None:
        self.files.pass_time(number * 3)

    def _back(self, number: int) -> None:
        self.files.pass_time(-number * 20)

    def _pause(self, number: int) -> None:
        self.tell(paused())

    def _resume(self, number: int) -> None:
        self.tell(resumed())

    def _cancel(self, number: int) -> None:
        """Somebody cancels a message, which the worker may answer at the same time."""
        if self.ids:
            self.tell(cancelled(messages=[self.ids[number % len(self.ids)]]))

    def _word(self, number: int) -> None:
        """Somebody wants a message tried again."""
        with suppress(InvalidInput, ZeroDivisionError):
            ids = [self.ids[number % len(self.ids)]]
            self.tell(*retried(self.files.folds, ids, self.files.now))

    def _keep(self, number: int) -> None:
        self.say(state(key=f"k{number % 3}", value=number % 4 or None, provider=f"p{number % 2}"))

    def _compact(self, number: int) -> None:
        self.files.compact()

    def check(self) -> None:
        """Nothing is answered, delivered or numbered twice; what is answered is completed."""
        assert len(self.answered) == len(set(self.answered))
        assert max(self.platform.values(), default=0) <= 1
        folds = self.files.folds
        for events in (self.all_in, self.all_out):
            numbers = [event["seq"] for event in events if event["event"] == "message"]
            assert numbers == sorted(set(numbers))
        assert {folds.status(id) for id in self.answered} <= {"completed"}

    def settle(self) -> None:
        """From now on nobody dies, and whoever waits is woken."""
        self._resume(0)
        self._arrive(0)  # For what accumulated.
        for _ in range(2000):
            self._start(1)
            self._claim(0)
            if not self.held:
                self._release(0)
                due = next_due(self.files.folds, self.files.now)
                if due is None and not self._accumulated():
                    return
                if due is None:
                    self._arrive(0)
                self.files.pass_time(1)
                self.files.now = max(due or "", self.files.now)
            self._answer(0)
        raise AssertionError("it never comes to an end")

    def _accumulated(self) -> bool:
        return any(True for _ in self.files.folds.unfinished())
