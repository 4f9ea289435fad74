"""The sessions of workers on the page: what waits, the way of each message, and a person's word."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule import Store
from capsule.engines.interface import INBOUND
from capsule.mcp_server.access import Tokens
from capsule.sessions.worker.toolkit import Toolkit
from capsule.sessions.worker.worker import CommandResult, Prompt
from tests.processes import until
from tests.sessions.hosting import group, hosting, said
from tests.web.drawn import buttons, press, text
from tests.web.test_admission import Door


@pytest.fixture
def owner(store: Store, tmp_path: Path) -> Door:
    door = Door(store, Tokens(tmp_path / "config", store.root))
    door.enter(door.site.admission.token())
    return door


@pytest.fixture
def session(store: Store) -> str:
    """A session with a message that was answered, one that failed and one that asked a question,
    which is open.
    """
    store.agents.register("anna")
    group(store, "bot")

    def answer(prompt: Prompt) -> CommandResult:
        words = prompt.messages[-1]["content"]
        if "fail" in words:
            return CommandResult(65, "", "no such file")
        if "ask" in words:
            with store.beside() as beside:
                options = [{"label": "Yes", "value": "y"}]
                Toolkit(beside, prompt.session, prompt.batch).ask_question(
                    "Really?", options, limit_s=86_400
                )
            return CommandResult(0, "")
        return CommandResult(0, "It is <done>.")

    with hosting(store, answer):
        for number, words in enumerate(("work", "fail", "ask"), 1):
            sent = store.messages.send(words, agent="anna", to="bot")
            until(lambda: len(said(store, sent.conversation, "bot")) >= number)
    return store.sessions.list()[0].id


def test_a_session_shows_its_messages_and_the_way_of_one(
    store: Store, owner: Door, session: str
) -> None:
    assert "bot active, worker stopped" in text(owner.ask("/workers"))
    assert "1 failed" in text(owner.ask("/workers"))
    here = owner.ask(f"/workers/{session}")
    shown = text(here)
    assert "work completed" in shown and "It is <done>." in shown and "fail failed" in shown
    assert "Really? (Yes)" in shown and "Withdraw the question" in buttons(here)
    assert "claimed try 1" in shown, "the way of the last message stands there"
    first = next(
        event["id"] for event in store.sessions.history(session) if event["content"] == "work"
    )
    steps = [step.kind for step in store.sessions.why(first)]
    shown = text(owner.ask(f"/workers/{session}?message={first}"))
    assert all(kind in shown for kind in steps) and "delivered" in steps
    assert "routed" in shown.partition("events, in order")[2]


def test_a_person_pauses_resumes_retries_withdraws_and_closes(
    store: Store, owner: Door, session: str
) -> None:
    here = f"/workers/{session}"
    assert press(owner, here, "Pause the session").status == 303
    assert store.sessions.get(session)["status"] == "paused"
    press(owner, here, "Resume the session")
    assert store.sessions.get(session)["status"] == "active"
    press(owner, here, "Retry this message")
    assert store.sessions.get(session)["messages"].get("pending") == 1
    assert "1 pending" in text(owner.ask("/workers"))
    press(owner, here, "Cancel this message")
    press(owner, here, "Withdraw the question")
    assert [each.state for each in store.sessions.registry.read().questions.values()] == [
        "cancelled"
    ]
    press(owner, here, "Close the session, and cancel what waits in it")
    assert store.sessions.get(session)["status"] == "closed"
    assert buttons(owner.ask(here)) == []
    assert owner.ask(here, {"do": "fly"}).status == 400 and owner.ask("/workers/none").status == 404


@pytest.mark.files
def test_a_damaged_session_hides_no_other(store: Store, owner: Door, session: str) -> None:
    Path(store.engine.name(INBOUND, session)).write_text("[1, 2]")
    shown = text(owner.ask("/workers"))
    assert "bot" in shown and "must be an object" in shown


def test_workers_are_for_the_owner(store: Store, session: str, tmp_path: Path) -> None:
    with store.beside(agent="anna") as anna:
        door = Door(anna, Tokens(tmp_path / "config", store.root))
        door.enter(door.site.admission.token())
        assert (
            'href="/workers"' not in door.ask("/people").text
            and 'href="/repairs"' in door.ask("/people").text
        )
        for path in ("/workers", f"/workers/{session}"):
            answer = door.ask(path)
            assert answer.status == 403 and "owner" in text(answer) and session not in text(answer)
        assert door.ask(f"/workers/{session}", {"do": "pause"}).status == 403
    assert store.sessions.get(session)["status"] == "active"
