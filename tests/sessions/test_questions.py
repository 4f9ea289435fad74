"""Questions to people, and the destinations that an agent may send to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from capsule.errors import NotFound, Refused
from capsule.sessions import why
from capsule.sessions.adapters.interface import Arrived
from capsule.sessions.events import Route, outgoing
from capsule.sessions.outbound import OutMessage
from capsule.sessions.registry import AgentGroup, SessionRow, State
from capsule.sessions.rules import destinations, questions
from capsule.sessions.rules.deliveries import due_out, route_of, send
from capsule.sessions.rules.messages import next_due
from tests.sessions.files import START, Files, later

ROW = SessionRow("s1", "anna", "chat", "room")
ROOM = Route("chat", "room")
YES_NO = ({"label": "Yes", "value": "y"}, {"label": "No", "value": "n"})
LIMIT = later(60)
REPLY = Arrived("m", "chat", "room", "tom", "yes", reply_to="P1")


def asked(limit: str | None = LIMIT) -> State:
    event = outgoing(id="o", content="?", kind="question", question="q", options=YES_NO, expires_at=limit)
    message = OutMessage.of(event | {"seq": 1})
    state = questions.asked(State(), ROW, message, ROOM)
    assert questions.asked(state, ROW, message, ROOM) is state
    return state


@pytest.mark.parametrize(
    ("text", "place", "reply_to", "value"),
    [
        ("Yes", "room", "P1", "y"),
        (" n ", "room", "P1", "n"),
        ("perhaps", "room", "P1", None),
        ("Yes", "room", "P2", None),
        ("Yes", "room", "", None),
        ("Yes", "other", "P1", None),
    ],
)
def test_only_a_reply_with_an_option_is_an_answer(text: str, place: str, reply_to: str, value: str | None) -> None:
    arrived = replace(REPLY, text=text, place=place, reply_to=reply_to)
    before = asked()
    state, told = questions.answered(before, arrived, lambda session, message: "P1", START)
    assert [(session, event["value"]) for session, (event,) in told] == ([("s1", value)] if value else [])
    assert (state is before) == (value is None)


@pytest.mark.parametrize(
    ("second", "at", "reason"),
    [
        (("m", "y"), 1, ""),  # The same message once more.
        (("m", "y"), 90, ""),
        (("m2", "n"), 1, "answered before"),
        (("m2", "y"), 90, "answered before"),
    ],
)
def test_the_first_answer_counts_and_others_are_recorded_and_whoever_gave_them_is_told(
    second: tuple[str, str], at: float, reason: str
) -> None:
    files = Files()
    one, ((session, first),) = questions.answer(asked(), "q", "y", REPLY, START)
    files.tell(*questions.tell(files.folds, first))
    wanted = {"id": "m", "trigger": "wake", "kind": "chat", "question": "q", "route": ROOM.written()}
    assert session == "s1" and wanted.items() <= first[0].items()
    two, ((_, again),) = questions.answer(one, "q", second[1], replace(REPLY, id=second[0], sender="bob"), later(at))
    assert [said["value"] for said in two.questions["q"].answers] == (["y", second[1]] if reason else ["y"])
    files.tell(*questions.tell(files.folds, again))
    assert next_due(files.folds, files.now) == files.now and files.folds.status("m") == "pending"
    assert [notice.in_reply_to for notice in due_out(files.folds, files.now)] == (["m2"] if reason else [])
    assert all(reason in notice.event["content"] for notice in due_out(files.folds, files.now))
    if reason:
        steps = why.way("m2", [why.Files("s1", "anna", files.in_events, files.out_events)])
        assert [step.kind for step in steps] == ["received", "failed"] and reason in steps[1].text


def test_an_answer_after_the_limit_is_late_whether_or_not_the_question_was_closed_already() -> None:
    state, ((_, (event, end)),) = questions.answer(asked(), "q", "y", REPLY, LIMIT)
    assert event["trigger"] == "accumulate" and state.questions["q"].state == "open" and "late" in end["reason"]
    state, told = questions.expired(state, LIMIT)
    assert [(session, said.get("value")) for session, (said,) in told] == [("s1", None)]
    state, ((_, (event, _)),) = questions.answer(state, "q", "n", replace(REPLY, id="m2"), later(90))
    assert event["trigger"] == "accumulate" and state.questions["q"].state == "expired"
    assert [said["value"] for said in state.questions["q"].answers] == ["y", "n"]
    purged = questions.without_texts(state)
    assert {text for said in purged.questions["q"].options for text in said.values()} == {""}
    assert [said["value"] for said in purged.questions["q"].answers] == ["", ""]
    assert questions.answered(purged, REPLY, lambda session, message: REPLY.reply_to, later(90)) == (purged, [])


def test_expired_questions_go_after_a_day_and_those_without_a_limit_stay_open() -> None:
    assert questions.expired(asked(), later(59)) == (asked(), [])
    state, _ = questions.expired(asked(), LIMIT)
    assert questions.expired(state, later(3600))[0].questions
    gone, _ = questions.expired(state, later(2 * 86400))
    assert gone == State()
    with pytest.raises(NotFound):
        questions.answer(gone, "q", "y", REPLY, START)
    assert questions.expired(asked(None), later(10**6))[1] == []


def test_a_cancelled_question_takes_no_answer_that_wakes() -> None:
    state, ((_, (event,)),) = questions.cancelled(asked(), "q", START)
    assert event["question"] == "q" and "value" not in event
    ((_, (event, end)),) = questions.answer(state, "q", "y", REPLY, START)[1]
    assert event["trigger"] == "accumulate" and "withdrawn" in end["reason"]


def test_a_name_is_made_of_the_title_and_a_second_one_gets_a_number() -> None:
    anna, names = AgentGroup("anna"), []
    for place, title in (
        ("a", "Ops Team"),
        ("b", "ops team!"),
        ("c", "Ops Team"),
        ("a", "again"),
        ("d", ""),
        ("e", "!"),
    ):
        anna, name = destinations.allow(anna, Route("chat", place), title)
        names.append(name)
    assert names == ["ops-team", "ops-team-2", "ops-team-3", "ops-team", "d", "unnamed"]
    with pytest.raises(NotFound):
        destinations.forbid(anna, "nobody")


def test_the_map_is_the_permission_changes_of_it_hold_at_once_and_a_reply_is_always_allowed() -> None:
    files = Files()
    anna, _ = destinations.allow(AgentGroup("anna"), Route("chat", "ops"), "Ops")
    files.tell(*destinations.of(files.folds, State().put(anna), ROW))
    assert destinations.of(files.folds, State().put(anna), ROW) == []
    files.say(*send(files.folds, [outgoing(id="o", content="x", to="ops")]))
    assert route_of(files.folds, files.outbound.messages["o"]) == Route("chat", "ops")
    files.tell(*destinations.of(files.folds, State().put(destinations.forbid(anna, "ops")), ROW))
    with pytest.raises(Refused):
        route_of(files.folds, files.outbound.messages["o"])
    with pytest.raises(Refused):
        send(files.folds, [outgoing(id="p", content="x", to="ops")])
