"""What an agent does in its session, in memory; the files it sends are real."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule import Store, timestamps
from capsule.errors import InvalidInput, NotFound, Refused
from capsule.sessions.events import (
    Route,
    ack_event,
    delivered_event,
    destinations_event,
    inbound_message,
    reply_id,
    routing_event,
)
from capsule.sessions.registry import AgentSetup, Registry, SessionRecord
from capsule.sessions.rules import schedules
from capsule.sessions.rules.messages import receive, route_of
from capsule.sessions.session import Session
from capsule.sessions.worker.toolkit import MAX_STATE_BYTES, SendResult, Toolkit

HOME, TEAM = (
    Route("conversations", "direct_anna_bot"),
    {"channel": "conversations", "place": "team"},
)


@pytest.fixture
def session(session: Session) -> Session:
    """A session with a message from anna, and a destination."""
    asked = inbound_message(id="m1", content="Hello", sender="anna", route=HOME, hops=1)
    session.write_inbound(lambda session_state: receive(session_state, [asked]))
    session.write_inbound(lambda session_state: [destinations_event(destinations={"team": TEAM})])
    return session


def tools(store: Store, folder: Path | None = None) -> Toolkit:
    """The tools of one try."""
    return Toolkit(store, "s1", "m1", str(folder) if folder else None)


def test_a_try_that_is_repeated_says_nothing_twice_and_learns_what_was_said(
    store: Store, session: Session
) -> None:
    first = tools(store)
    assert [first.send_message("one"), first.send_message("two", to="team")] == [
        SendResult(reply_id("s1", "m1", 1)),
        SendResult(reply_id("s1", "m1", 2)),
    ]
    again = tools(store)
    assert again.send_message("One.") == SendResult(reply_id("s1", "m1", 1), earlier="one")
    assert again.send_message("Two.") == SendResult(reply_id("s1", "m1", 2), earlier="two")
    assert again.send_message("three") == SendResult(reply_id("s1", "m1", 3))
    messages = session.read().outbound.messages.values()
    assert [message.event["content"] for message in messages] == ["one", "two", "three"]
    assert [route_of(session.read(), message).place for message in messages] == [
        HOME.place,
        "team",
        HOME.place,
    ]
    assert {message.event["hops"] for message in messages} == {2}


def test_nothing_goes_to_whom_the_map_does_not_name(store: Store, session: Session) -> None:
    with pytest.raises(Refused):
        tools(store).send_message("x", to="eve")
    with pytest.raises(InvalidInput):
        tools(store).send_message("x" * (store.settings.message_bytes + 1))
    assert not session.read().outbound.messages


@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_message_is_edited_where_it_went_and_a_reaction_goes_where_its_message_is(
    store: Store, session: Session, is_compacted: bool
) -> None:
    sent = tools(store).send_message("one", to="team")
    kit = tools(store)
    kit.send_message("skipped")
    if is_compacted:
        session.write_inbound(
            lambda session_state: [
                routing_event(route=HOME),
                delivered_event(message=sent.id, platform_id="p1"),
            ]
        )
        session.write_outbound(
            lambda session_state: [ack_event(state="completed", messages={"m1": 0}, instance="w")]
        )
        session.compact(timestamps.now())
        assert not any(
            id in fold.messages for id, fold in zip(("m1", sent.id), session.read(), strict=True)
        )
    edit, mine, theirs = (
        session.read().outbound.messages[said.id]
        for said in (
            kit.edit_message(sent.id, "uno"),
            kit.add_reaction(sent.id, "👍"),
            kit.add_reaction("m1", "👀"),
        )
    )
    assert [(out.kind, out.target) for out in (edit, mine, theirs)] == [
        ("edit", sent.id),
        ("reaction", sent.id),
        ("reaction", "m1"),
    ]
    assert [route_of(session.read(), out).place for out in (edit, mine, theirs)] == [
        "team",
        "team",
        HOME.place,
    ]
    with pytest.raises(NotFound):
        kit.edit_message("m1", "not mine")


def test_a_file_of_the_folder_is_sent_and_none_beyond_it(
    store: Store, session: Session, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    (folder / "out").mkdir(parents=True)
    (folder / "out" / "plan.txt").write_text("plan")
    (tmp_path / "secret").write_text("secret")
    (folder / "link").symlink_to(tmp_path / "secret")
    kit = tools(store, folder)
    sent = kit.send_file("out/plan.txt", text="the plan")
    (file,) = session.read().outbound.messages[sent.id].event["attachments"]
    assert file["name"] == "plan.txt"
    assert store.engine.files.read("outbox", "s1", file["path"]) == b"plan"
    for path, error in (
        ("link", Refused),
        ("../secret", Refused),
        ("missing", NotFound),
        ("out", NotFound),
    ):
        with pytest.raises(error):
            kit.send_file(path)


def test_a_question_is_answered_by_a_message_for_the_tools(store: Store, session: Session) -> None:
    kit = tools(store)
    with pytest.raises(InvalidInput):
        kit.ask_question("Which?", [{"label": "A", "value": ""}], limit_s=60)
    asked = kit.ask_question("Which?", [{"label": "A", "value": "a"}], limit_s=60).id
    assert kit.answer(asked) is None
    with pytest.raises(NotFound):
        kit.answer(kit.send_message("no question").id)
    said = inbound_message(
        id="x", content="A", kind="system", sender="anna", question=asked, value="a"
    )
    session.write_inbound(lambda session_state: receive(session_state, [said]))
    answer = kit.answer(asked)
    assert answer is not None
    assert (answer["value"], answer["from"]) == ("a", "anna")
    assert session.read().status("x") == "completed", "no prompt has it besides"
    for late in ("b", None):
        more = inbound_message(
            id=f"y{late}",
            content="",
            kind="system",
            trigger="accumulate",
            question=asked,
            value=late,
        )
        session.write_inbound(lambda session_state, more=more: receive(session_state, [more]))  # type: ignore[misc]
    assert kit.answer(asked) == answer, "later answers do not count"
    withdrawn = kit.ask_question("Which?", [{"label": "A", "value": "a"}], limit_s=60).id
    closed = inbound_message(
        id="z", content="", kind="system", trigger="accumulate", question=withdrawn
    )
    session.write_inbound(lambda session_state: receive(session_state, [closed]))
    with pytest.raises(Refused):
        kit.answer(withdrawn)
    over = kit.ask_question("Which?", [{"label": "A", "value": "a"}], limit_s=-1).id
    with pytest.raises(Refused):
        kit.answer(over)


def test_a_session_keeps_texts_for_its_later_runs(store: Store, session: Session) -> None:
    tools(store).set_value("page", "7")
    tools(store).set_value("list", "a b")
    tools(store).set_value("page", "8")
    session.compact(timestamps.now())
    assert tools(store).values() == {"page": "8", "list": "a b"}
    with pytest.raises(InvalidInput):
        tools(store).set_value("book", "x" * MAX_STATE_BYTES)
    with pytest.raises(InvalidInput):
        tools(store).set_value("", "x")
    tools(store).set_value("list")
    assert tools(store).values() == {"page": "8"}
    tools(store).clear()
    assert tools(store).values() == {}


def test_a_task_is_asked_for_and_listed_once_it_is_there(store: Store, session: Session) -> None:
    kit, now = tools(store), timestamps.now()
    for wrong in ({"prompt": "x"}, {"cron": "* * * * *"}, {"prompt": "x", "cron": "no"}):
        with pytest.raises(InvalidInput):
            tools(store).schedule("make", **wrong)
    with pytest.raises(NotFound):
        tools(store).schedule("cancel", "nothing")
    assert not session.read().outbound.messages
    made = kit.schedule("make", prompt="Report", cron="0 9 * * *", timeZone="Europe/Berlin").id
    assert kit.tasks() == []
    session.write_inbound(lambda session_state: schedules.run_next_task(session_state, now))
    (task,) = kit.tasks()
    known = {
        "series": made,
        "prompt": "Report",
        "cron": "0 9 * * *",
        "timeZone": "Europe/Berlin",
        "paused": False,
    }
    assert known.items() <= task.items()
    cancelled = kit.schedule("cancel", made)
    session.write_inbound(lambda session_state: schedules.run_next_task(session_state, now))
    assert kit.tasks() == []
    again = tools(store)
    assert again.schedule("make", prompt="Report", cron="0 9 * * *").earlier == "Report"
    assert again.schedule("cancel", made) == SendResult(cancelled.id, earlier="cancel")


def test_an_agent_has_tools_in_its_own_sessions_only(store: Store, session: Session) -> None:
    rows = (SessionRecord(id, agent) for id, agent in (("s1", "bot"), ("s2", "eve")))
    Registry(store.engine).edit(
        lambda state: state.put(AgentSetup("bot"), AgentSetup("eve"), *rows)
    )
    assert tools(store.inner.store_for("bot")).send_message("mine").earlier is None
    for own in ("s1", "s3"):
        with pytest.raises(Refused):
            Toolkit(store.inner.store_for("eve"), own, "m1")
