"""The host: messages come to workers, and their answers back, whatever else happens."""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from threading import Event

import pytest

from capsule import Store, timestamps
from capsule.errors import InvalidInput
from capsule.sessions.adapters.interface import ReceivedMessage
from capsule.sessions.events import outbound_message, reply_id
from capsule.sessions.host.host import prestarted_workers
from capsule.sessions.host.routing import OpenSessions, Router
from capsule.sessions.registry import Registry, Wiring
from capsule.sessions.rules import questions
from capsule.sessions.rules.messages import claim, number_replies, pick
from capsule.sessions.session import Session
from capsule.sessions.session_state import SessionState
from capsule.sessions.worker.worker import CommandResult, Prompt
from tests.processes import until
from tests.sessions.hosting import Thread, echo, group, hosting, said


def test_a_message_wakes_a_worker_and_its_answer_comes_back(store: Store) -> None:
    with hosting(store) as (_, lines):
        sent = store.messages.send("hello", agent="anna", to="bot")
        until(lambda: said(store, sent.conversation, "bot"))
        answer = store.engine.document("conversations", sent.conversation)["history"][1]
    assert (answer["content"], answer["replyTo"]) == ("you said: hello", sent.message)
    assert answer["metadata"]["session"]["hops"] == 1
    steps = [line["step"] for line in lines]
    assert [step for step in steps if step in ("running", "message", "started")] == [
        "running",
        "message",
        "started",
    ]


def test_a_host_makes_no_registry_in_a_store_without_sessions() -> None:
    with Store.in_memory() as store:
        opened = OpenSessions(store.engine, Registry(store.engine), lambda step, **about: None)
        opened.apply_question_outcome(
            lambda state: questions.expire_questions(state.put(), timestamps.now())
        )
        assert store.engine.ids("sessions") == []


@pytest.mark.parametrize("editable", [False, True])
def test_other_content_under_the_id_of_a_message_is_an_error_unless_its_channel_edits(
    store: Store, editable: bool
) -> None:
    registry, lines = Registry(store.engine), list[str]()
    registry.edit(lambda state: state.put(Wiring("radio", "r", "bot", "pattern", ".")))

    def log(step: str, **about: object) -> None:
        lines.append(step)

    router = Router(OpenSessions(store.engine, registry, log), lambda session: None)
    first, other, next_one = (
        ReceivedMessage(id, "radio", "r", "eve", text, editable=editable)
        for id, text in (("1", "a"), ("1", "b"), ("2", "c"))
    )
    router.receive([first])
    router.receive([first])
    with nullcontext() if editable else pytest.raises(InvalidInput) as raised:
        router.receive([other, next_one])
    assert editable or (raised and raised.value.fields["id"] == "1")
    inbound = Session(store.engine, next(iter(registry.read().sessions))).read().inbound
    assert [message.event["content"] for message in inbound.messages.values()] == ["a", "c"]
    assert lines.count("refused") == 1


def test_two_agents_that_answer_each_other_stop_after_the_limit_of_hops(store: Store) -> None:
    group(store, "bot", maxHops=3)
    group(store, "robot", maxHops=3)
    with hosting(store) as (_, lines):
        sent = store.messages.send("hello", agent="bot", to="robot")
        until(
            lambda: any(
                "agents that answered each other" in line.get("reason", "") for line in lines
            )
        )
    history = store.engine.document("conversations", sent.conversation)["history"]
    hops = [entry.get("metadata", {}).get("session", {}).get("hops", 0) for entry in history]
    assert hops == [0, 1, 2, 3, 4]


def test_an_answer_that_may_not_be_given_any_more_is_undeliverable_and_the_worker_is_told(
    store: Store,
) -> None:
    made = store.groups.create("talk", with_=["bot"], agent="anna")

    def leave(prompt: Prompt) -> CommandResult:
        store.groups.leave(made.id, agent="bot")
        return CommandResult(0, "too late")

    with hosting(store, leave) as (_, lines):
        store.messages.send("@bot hello", agent="anna", conversation=made.id)
        line = until(
            lambda: next((line for line in lines if line["step"] == "undeliverable"), None)
        )
        inbound = Session(store.engine, line["session"]).read().inbound
    assert list(inbound.undeliverable) == [line["message"]]
    told = [message for message in inbound.messages.values() if not message.wakes]
    assert len(told) == 1 and "was not delivered" in told[0].event["content"]
    assert said(store, made.id, "bot") == []


def test_each_sender_of_a_batch_that_failed_gets_a_reply_and_the_session_counts_them(
    store: Store,
) -> None:
    store.agents.register("carol")
    made = store.groups.create("talk", with_=["bot", "carol"], agent="anna")
    sent = {
        store.messages.send(f"@bot {number}", agent=sender, conversation=made.id).message: sender
        for number, sender in enumerate(("anna", "carol", "anna"))
    }
    with hosting(store, lambda prompt: CommandResult(65, "", "no such file")):
        until(lambda: len(said(store, made.id, "bot")) == 2)
        (row,) = store.sessions.list()
        until(lambda: all(each["told"] for each in store.sessions.get(row.id)["failures"]))
    history = store.engine.document("conversations", made.id)["history"]
    notices = [entry for entry in history if entry["from"] == "bot"]
    for notice in notices:
        assert {id for id in sent if id in notice["content"]} == {
            id for id, sender in sent.items() if sender == sent[notice["replyTo"]]
        }
    assert store.sessions.get(row.id)["failures"] == [
        {"from": "anna", "failed": 2, "told": 2},
        {"from": "carol", "failed": 1, "told": 1},
    ]


def test_a_thread_that_mentioned_an_agent_goes_on_with_it_and_others_are_ignored(
    store: Store,
) -> None:
    made = store.groups.create("talk", with_=["bot"], agent="anna")
    sticky = Wiring("conversations", made.id, "bot", "mention-sticky")
    Registry(store.engine).edit(lambda state: state.put(sticky))
    first = store.messages.send("@bot one", agent="anna", conversation=made.id)
    store.messages.send("two", agent="anna", conversation=made.id, thread=first.message)
    other = store.messages.send("elsewhere", agent="anna", conversation=made.id)
    with hosting(store) as (_, lines):
        until(lambda: "you said: @bot one, two" in said(store, made.id, "bot"))
        store.messages.send("three", agent="anna", conversation=made.id, thread=first.message)
        until(lambda: len(said(store, made.id, "bot")) == 2)
    history = store.engine.document("conversations", made.id)["history"]
    answers = [(entry["content"], entry["thread"]) for entry in history if entry["from"] == "bot"]
    assert answers == [
        ("you said: @bot one, two", first.message),
        ("you said: three", first.message),
    ]
    ignored = [
        (line["message"], line["reason"]) for line in lines if line.get("outcome") == "ignored"
    ]
    assert ignored == [(other.message, "it does not mention the agent")]


def test_a_machine_that_slept_does_not_count_its_workers_as_dead(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, wakes = Event(), Event()

    def answer(prompt: Prompt) -> CommandResult:
        asked.set()
        wakes.wait()
        return echo(prompt)

    real, slept_ns = time.time_ns, [0]
    monkeypatch.setattr(time, "time_ns", lambda: real() + slept_ns[0])
    with hosting(store, answer) as (_, lines):
        sent = store.messages.send("one", agent="anna", to="bot")
        until(asked.is_set)
        slept_ns[0] = 8 * 3600 * 10**9
        store.messages.send("two", agent="anna", to="bot")
        until(lambda: sum(line["step"] == "message" for line in lines) == 2)
        wakes.set()
        until(lambda: "you said: two" in said(store, sent.conversation, "bot"))
    assert not [line for line in lines if line["step"] in ("stale", "retry")]


def test_a_damaged_session_is_shown_and_stops_no_other(store: Store) -> None:
    with hosting(store, lambda prompt: CommandResult(0, "yes")) as (host, _):
        first = store.messages.send("one", agent="anna", to="bot")
        until(lambda: said(store, first.conversation, "bot"))
        broken = next(iter(Registry(store.engine).read().sessions))
        with store.engine.transaction("outbound", broken) as transaction:
            transaction.delete()
        store.agents.register("ben")
        store.messages.send("two", agent="anna", to="bot")
        until(lambda: (broken, "serve") in host.broken)
        other = store.messages.send("three", agent="ben", to="bot")
        until(lambda: said(store, other.conversation, "bot"))
        assert said(store, first.conversation, "bot") == ["yes"]


def test_sessions_that_wait_for_a_place_get_those_of_idle_workers(store: Store) -> None:
    others = [f"person{number}" for number in range(4)]
    for other in others:
        store.agents.register(other)
    with hosting(store, idle_s=3600, max_workers=2) as (_, _):
        sent = [
            store.messages.send("hello", agent=other, to="bot").conversation for other in others
        ]
        until(lambda: all(said(store, conversation, "bot") for conversation in sent))


@pytest.mark.slow
def test_a_worker_that_ends_without_its_work_is_started_again_later_and_later(store: Store) -> None:
    starts: list[float] = []

    class Ends:
        pid = 0

        def wait(self) -> int:
            return 1

        def terminate(self) -> None: ...

        kill = terminate

    def spawn(session: str, agent: str) -> Ends:
        starts.append(time.monotonic())
        return Ends()

    with hosting(store, spawn=spawn):
        store.messages.send("hello", agent="anna", to="bot")
        until(lambda: len(starts) == 3)
    first, second = starts[1] - starts[0], starts[2] - starts[1]
    assert first >= 1 and second >= 2


def test_a_second_host_waits_and_goes_on_where_the_first_one_ended(store: Store) -> None:
    with ExitStack() as first_ends:
        _, first = first_ends.enter_context(hosting(store, max_workers=0))
        until(lambda: first)
        with store.beside() as other, hosting(other) as (_, second):
            sent = store.messages.send("hello", agent="anna", to="bot")
            until(lambda: any(line["step"] == "message" for line in first))
            until(lambda: second)
            assert [line["step"] for line in second] == ["standby"]
            first_ends.close()
            until(lambda: said(store, sent.conversation, "bot"))
    assert [line["step"] for line in first] == [
        "running",
        "message",
        "routed",
        "routing",
        "stopped",
    ]


def test_a_task_of_a_worker_runs_when_it_is_due_and_its_question_is_answered_by_a_reply(
    store: Store,
) -> None:

    def work(prompt: Prompt) -> CommandResult:
        if prompt.messages[0]["kind"] == "task":
            return CommandResult(0, "reminded")
        if "question" in prompt.messages[0]:
            assert 'answer to "Sure?"' in prompt.text()
            return CommandResult(0, f"chosen: {prompt.messages[0]['value']}")
        options = [{"label": "Yes", "value": "y"}, {"label": "No", "value": "n"}]
        question = {"kind": "question", "content": "Sure?", "options": options}
        at = timestamps.from_ms(timestamps.ms_of(timestamps.now()) + 300)
        task = {"action": "make", "series": "reminder", "prompt": "remind", "processAfter": at}
        words = [
            outbound_message(
                id=reply_id(prompt.session, prompt.batch, number), in_reply_to=prompt.batch, **each
            )
            for number, each in enumerate([question, {"kind": "task", "task": task}], 1)
        ]
        Session(store.engine, prompt.session).write_outbound(
            lambda session_state: number_replies(session_state, words)
        )
        return CommandResult(0)

    with hosting(store, work):
        sent = store.messages.send("remind me", agent="anna", to="bot")
        until(lambda: "reminded" in said(store, sent.conversation, "bot"))
        asked = store.engine.document("conversations", sent.conversation)["history"][1]
        for text, told in (
            ("yes", "chosen: y"),
            ("no", "This answer does not count: the question was answered before."),
        ):
            store.messages.send(text, agent="anna", to="bot", reply_to=asked["id"])
            until(lambda told=told: told in said(store, sent.conversation, "bot"))  # type: ignore[misc]
    assert asked["content"] == "Sure?\n- Yes\n- No"
    state = Registry(store.engine).read()
    assert [question.state for question in state.questions.values()] == ["answered"]
    assert [(place.place, place.is_group) for place in state.places.values()] == [
        (sent.conversation, False)
    ]


@pytest.mark.slow
def test_a_worker_that_shows_no_life_is_killed_and_its_message_goes_to_the_next_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Hanging | Thread] = []

    class Hanging:
        """Claims a message, and then does nothing."""

        pid = 0

        def __init__(self, session: str) -> None:
            self.store = store.beside()
            store.engine.leases.acquire(self.store.instance_id, {"session": session})
            self.killed = Event()
            self._session = Session(store.engine, session)
            self._session.write_outbound(self._claim)

        def _claim(self, session_state: SessionState) -> list[dict[str, object]]:
            return claim(
                session_state,
                pick(session_state, timestamps.now(), just_started=True),
                self.store.instance_id,
            )

        def wait(self) -> int:
            self.killed.wait()
            self.store.close()
            return -9

        def terminate(self) -> None: ...

        def kill(self) -> None:
            self.killed.set()

    def spawn(session: str, agent: str) -> Hanging | Thread:
        started.append(Thread(store, session, agent, echo, 0) if started else Hanging(session))
        return started[-1]

    def aged(session: Session) -> str:
        hangs = started and isinstance(started[0], Hanging) and not started[0].killed.is_set()
        return timestamps.from_ms(timestamps.ms_of(timestamps.now()) - (3_600_000 if hangs else 0))

    monkeypatch.setattr(Session, "heartbeat", aged)
    with hosting(store, spawn=spawn) as (_, lines):
        sent = store.messages.send("hello", agent="anna", to="bot")
        until(lambda: said(store, sent.conversation, "bot"))
    assert said(store, sent.conversation, "bot") == ["you said: hello"]
    assert "stale" in [line["step"] for line in lines]


def test_a_worker_that_was_started_ahead_is_told_what_it_is_for_and_one_that_died_is_replaced(
    tmp_path: Path,
) -> None:
    pids = tmp_path / "pids"
    script = (
        f'echo $$ >> {pids}; read -r agent && read -r session || exit 0; echo "$agent '
        f'$session" > {tmp_path}/$$'
    )
    with prestarted_workers(["sh", "-c", script]) as spawn:
        for count, session in enumerate(("s1", "s2"), 1):
            until(lambda count=count: pids.exists() and len(pids.read_text().split()) == count)  # type: ignore[misc]
            if session == "s2":
                died = int(pids.read_text().split()[-1])
                os.kill(died, signal.SIGKILL)
                os.waitid(os.P_PID, died, os.WEXITED | os.WNOWAIT)
            worker = spawn(session, "bot")
            assert worker.wait() == 0
            assert (tmp_path / str(worker.pid)).read_text() == f"bot {session}\n"


def test_a_session_whose_files_somebody_removed_begins_anew(tmp_path: Path) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        store.agents.register("anna")
        group(store, "bot")
        with hosting(store) as (_, lines):
            for count, text in enumerate(("one", "two"), 1):
                sent = store.messages.send(text, agent="anna", to="bot")
                until(lambda: f"you said: {text}" in said(store, sent.conversation, "bot"))
                steps = [count] * 2  # The worker has gone, and the host has noted the delivery.
                until(
                    lambda: (
                        [
                            sum(line["step"] == step for line in lines)
                            for step in ("ended", "delivered")
                        ]
                        == steps
                    )
                )
                (row,) = store.sessions.list()
                shutil.rmtree(tmp_path / "sessions" / row.id)
