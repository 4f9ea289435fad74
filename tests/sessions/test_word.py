"""A person's word on sessions: look, retry, cancel, purge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import InvalidInput, NotFound, Refused
from capsule.sessions.adapters.interface import Adapter, OutgoingMessage, ReceivedMessage, Receiver
from capsule.sessions.registry import Wiring
from capsule.sessions.worker.toolkit import Toolkit
from capsule.sessions.worker.worker import CommandResult, Prompt
from tests.processes import until
from tests.sessions.hosting import group, hosting, said


class Radio(Adapter):
    """A channel that can be out of order."""

    name = "radio"

    def __init__(self) -> None:
        self.works = False
        self.heard: list[str] = []
        self.receiver: Receiver | None = None

    def start(self, receiver: Receiver) -> None:
        self.receiver = receiver

    def stop(self) -> None: ...

    def deliver(self, out: OutgoingMessage) -> str:
        if not self.works:
            raise InvalidInput("out of order")
        self.heard.append(out.text)
        return out.id


def test_why_knows_a_message_that_woke_nobody_and_never_had_a_session(store: Store) -> None:
    made = store.groups.create("talk", with_=["bot"], agent="anna")
    with hosting(store) as (_, lines):
        sent = store.messages.send("hello", agent="anna", conversation=made.id)
        until(lambda: any(line["step"] == "routed" for line in lines))
    (step,) = store.sessions.why(sent.message)
    assert (step.kind, step.agent) == ("ignored", "bot")
    assert "does not mention" in step.text
    assert store.sessions.list() == []
    with pytest.raises(NotFound):
        store.sessions.why("nothing")


@pytest.mark.files
def test_an_event_that_a_person_wrote_wrongly_does_not_keep_the_others_from_being_told(
    tmp_path: Path,
) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        store.agents.register("anna")
        group(store, "bot")
        with hosting(store):
            sent = store.messages.send("hello", agent="anna", to="bot")
            until(lambda: said(store, sent.conversation, "bot"))
        (row,) = store.sessions.list()
        path = tmp_path / "sessions" / row.id / "inbound.json"
        document = json.loads(path.read_text())
        for number, name in enumerate(("retry", "failed", "compacted")):
            wrong = {
                "role": "system",
                "content": "",
                "event": name,
                "id": f"e{number}",
                "messages": 3,
                "left": 3,
            }
            document["history"].append(wrong)
        path.write_text(json.dumps(document))
        kinds = [step.kind for step in store.sessions.why(sent.message)]
        assert {"received", "routed", "claimed", "said", "completed"} <= set(kinds)
        assert store.sessions.get(row.id)["messages"] == {"completed": 1}


def test_an_answer_that_could_not_be_delivered_is_delivered_at_a_persons_word(store: Store) -> None:
    radio = Radio()
    registry = store.sessions.registry
    registry.edit(lambda state: state.put(Wiring("radio", "r", "bot", "pattern", ".")))
    with hosting(store, adapters=[radio]) as (_, lines):
        until(lambda: radio.receiver).receive([ReceivedMessage("m1", "radio", "r", "eve", "hi")])
        lost = until(
            lambda: next((line for line in lines if line["step"] == "undeliverable"), None)
        )
        radio.works = True
        assert store.sessions.retry(lost["message"]) == [lost["session"]]
        until(lambda: radio.heard)
        until(lambda: any(step.kind == "delivered" for step in store.sessions.why("m1")))
    assert radio.heard == ["you said: hi"]
    kinds = [step.kind for step in store.sessions.why(lost["message"])]
    assert kinds == [
        "routed",
        "received",
        "claimed",
        "said",
        "completed",
        "undeliverable",
        "retry",
        "delivered",
    ]
    for refused in (lost["message"], "m1"):
        with pytest.raises(InvalidInput):
            store.sessions.cancel(refused)


def test_a_person_withdraws_a_question(store: Store) -> None:
    asked = dict[str, str]()

    def ask(prompt: Prompt) -> CommandResult:
        kit = Toolkit(store, prompt.session, prompt.batch)
        asked[prompt.session] = kit.ask_question(
            "Sure?", [{"label": "Yes", "value": "y"}], limit_s=3600
        ).id
        return CommandResult(0)

    with hosting(store, ask):
        store.messages.send("hello", agent="anna", to="bot")
        until(lambda: store.sessions.registry.read().questions)
        ((session, question),) = asked.items()
        until(lambda: store.sessions.questions()[0].message)
        (there,) = store.sessions.questions()
        assert (there.id, there.agent, there.text, there.session) == (
            question,
            "bot",
            "Sure?",
            session,
        )
        assert there.options[0]["value"] == "y" and store.find_message(
            there.conversation, there.message
        ).content.startswith("Sure?")
        assert store.sessions.cancel(question) == [session]
        with pytest.raises(Refused):
            Toolkit(store, session).answer(question)
    assert (
        store.sessions.registry.read().questions[question].state == "cancelled"
        and not store.sessions.questions()
    )


def test_a_purge_leaves_no_text_of_what_is_done_in_the_files_of_a_session(tmp_path: Path) -> None:
    Store.init(tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        store.agents.register("anna")
        group(store, "bot")
        with hosting(store) as (_, lines):
            sent = store.messages.send("a secret word", agent="anna", to="bot")
            until(lambda: said(store, sent.conversation, "bot"))
            until(lambda: any(line["step"] == "delivered" for line in lines))
        store.delete(sent.conversation)
        store.trash.purge()
        files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
        assert [path for path in files if b"a secret word" in path.read_bytes()] == []


def test_the_history_of_a_session_has_both_sides_in_order_and_what_became_of_each_message(
    store: Store,
) -> None:
    def answer(prompt: Prompt) -> CommandResult:
        return (
            CommandResult(65, "", "no such file")
            if "fail" in prompt.messages[-1]["content"]
            else CommandResult(0, "done")
        )

    with hosting(store, answer):
        first = store.messages.send("work", agent="anna", to="bot")
        until(lambda: said(store, first.conversation, "bot"))
        second = store.messages.send("fail", agent="anna", to="bot")
        until(lambda: len(said(store, first.conversation, "bot")) > 1)
    (row,) = store.sessions.list()
    history = store.sessions.history(row.id[:8])
    assert {e["id"]: e["status"] for e in history if "status" in e} == {
        first.message: "completed",
        second.message: "failed",
    }
    times = [event["timestamp"] for event in history]
    assert times == sorted(times)
    assert [event["content"] for event in history if event.get("inReplyTo") == first.message] == [
        "done"
    ]
    assert store.sessions.history(row.id, limit=3) == history[-3:]
    with pytest.raises(NotFound):
        store.sessions.history("nothing")
