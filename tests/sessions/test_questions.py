"""Questions to people, and the destinations that an agent may send to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

import pytest

from capsule import Store
from capsule.errors import InvalidInput, NotFound, Refused, StorageFailed
from capsule.sessions import trace
from capsule.sessions.adapters.interface import ReceivedMessage
from capsule.sessions.events import Route, delivered_event, outbound_message
from capsule.sessions.host.routing import OpenSessions, Router
from capsule.sessions.registry import AgentSetup, Registry, RegistryState, SessionRecord
from capsule.sessions.rules import messages, questions
from capsule.sessions.rules.messages import due_deliveries, next_due, number_replies, route_of
from capsule.sessions.session import Session
from capsule.sessions.session_state import OutboundMessage
from capsule.sessions.worker.toolkit import Toolkit
from tests.sessions.files import START, Files, later

ROW = SessionRecord("s1", "anna", "chat", "room")
ROOM = Route("chat", "room")
YES_NO = ({"label": "Yes", "value": "y"}, {"label": "No", "value": "n"})
LIMIT = later(60)
REPLY = ReceivedMessage("m", "chat", "room", "tom", "yes", reply_to="P1")


def asked(limit: str | None = LIMIT) -> RegistryState:
    event = outbound_message(
        id="o", content="?", kind="question", question="q", options=YES_NO, expires_at=limit
    )
    message = OutboundMessage.from_event(event | {"seq": 1})
    state = questions.add_question(RegistryState(), ROW, message, ROOM)
    assert questions.add_question(state, ROW, message, ROOM) is state
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
def test_only_a_reply_with_an_option_is_an_answer(
    text: str, place: str, reply_to: str, value: str | None
) -> None:
    arrived = replace(REPLY, text=text, place=place, reply_to=reply_to)
    before = asked()
    state, told = questions.match_answer(before, arrived, lambda session, message: "P1", START)
    assert [(session, event["value"]) for session, (event,) in told] == (
        [("s1", value)] if value else []
    )
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
    one, ((session, first),) = questions.record_answer(asked(), "q", "y", REPLY, START)
    files.write_inbound(*questions.events_for_session(files.session_state, first))
    wanted = {
        "id": "m",
        "trigger": "wake",
        "kind": "chat",
        "question": "q",
        "route": ROOM.as_json(),
    }
    assert session == "s1" and wanted.items() <= first[0].items()
    two, ((_, again),) = questions.record_answer(
        one, "q", second[1], replace(REPLY, id=second[0], sender="bob"), later(at)
    )
    assert [said["value"] for said in two.questions["q"].answers] == (
        ["y", second[1]] if reason else ["y"]
    )
    files.write_inbound(*questions.events_for_session(files.session_state, again))
    assert (
        next_due(files.session_state, files.now) == files.now
        and files.session_state.status("m") == "pending"
    )
    assert [notice.in_reply_to for notice in due_deliveries(files.session_state, files.now)] == (
        ["m2"] if reason else []
    )
    assert all(
        reason in notice.event["content"]
        for notice in due_deliveries(files.session_state, files.now)
    )
    if reason:
        steps = trace.trace_message(
            "m2", [trace.SessionEvents("s1", "anna", files.in_events, files.out_events)]
        )
        assert [step.kind for step in steps] == ["received", "failed"] and reason in steps[1].text


def test_an_answer_after_the_limit_is_late_whether_or_not_the_question_was_closed_already() -> None:
    state, ((_, (event, end)),) = questions.record_answer(asked(), "q", "y", REPLY, LIMIT)
    assert (
        event["trigger"] == "accumulate"
        and state.questions["q"].state == "open"
        and "late" in end["reason"]
    )
    state, told = questions.expire_questions(state, LIMIT)
    assert [(session, said.get("value")) for session, (said,) in told] == [("s1", None)]
    state, ((_, (event, _)),) = questions.record_answer(
        state, "q", "n", replace(REPLY, id="m2"), later(90)
    )
    assert event["trigger"] == "accumulate" and state.questions["q"].state == "expired"
    assert [said["value"] for said in state.questions["q"].answers] == ["y", "n"]
    purged = questions.without_texts(state)
    assert {text for said in purged.questions["q"].options for text in said.values()} == {""}
    assert [said["value"] for said in purged.questions["q"].answers] == ["", ""]
    assert questions.match_answer(
        purged, REPLY, lambda session, message: REPLY.reply_to, later(90)
    ) == (purged, [])


def test_expired_questions_go_after_a_day_and_those_without_a_limit_stay_open() -> None:
    assert questions.expire_questions(asked(), later(59)) == (asked(), [])
    state, _ = questions.expire_questions(asked(), LIMIT)
    assert questions.expire_questions(state, later(3600))[0].questions
    gone, _ = questions.expire_questions(state, later(2 * 86400))
    assert gone == RegistryState()
    with pytest.raises(NotFound):
        questions.record_answer(gone, "q", "y", REPLY, START)
    assert questions.expire_questions(asked(None), later(10**6))[1] == []


def test_a_cancelled_question_takes_no_answer_that_wakes() -> None:
    state, ((_, (event,)),) = questions.cancel_question(asked(), "q", START)
    assert event["question"] == "q" and "value" not in event
    ((_, (event, end)),) = questions.record_answer(state, "q", "y", REPLY, START)[1]
    assert event["trigger"] == "accumulate" and "withdrawn" in end["reason"]


# An answer and a withdrawal at once. The registry decides, and the session is told what it decided.


@dataclass
class Asking:
    """A question that is delivered, and open.

    Attributes:
        store: The store.
        question: The id of the question.
        session: The id of the session that asks.
    """

    store: Store
    question: str
    session: str

    def receive_reply(self) -> None:
        """Take REPLY in as a host does."""
        opened = OpenSessions(
            self.store.engine, self.store.sessions.registry, lambda step, **about: None
        )
        Router(opened, lambda session: None).receive([REPLY])

    def cancel(self) -> None:
        """Withdraw the question as another process does."""
        with self.store.beside() as beside:
            beside.sessions.cancel(self.question)

    def answer(self) -> object:
        """What the tool of the agent says."""
        answer = Toolkit(self.store, self.session).answer(self.question)
        return answer and answer["value"]

    @property
    def state(self) -> str:
        return Registry(self.store.engine).read().questions[self.question].state


@pytest.fixture
def asking(store: Store) -> Asking:
    row = store.sessions.registry.ensure_session(("bot", "chat", "room", ""), START)
    session = Session.create(store.engine, row.id, row.id)
    question = Toolkit(store, row.id).ask_question("Sure?", YES_NO, limit_s=3600).id
    message = session.read().outbound.messages[question]
    store.sessions.registry.edit(
        partial(questions.add_question, record=row, message=message, route=ROOM)
    )
    session.write_inbound(
        lambda session_state: [delivered_event(message=question, platform_id="P1")]
    )
    return Asking(store, question, row.id)


def after_look(
    number: int, asking: Asking, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Do something when the registry was read for the `number`-th time, before that is used."""
    registry = asking.store.sessions.registry
    read, looks = registry.read, count(1)

    def read_and_act() -> RegistryState:
        state = read()
        if next(looks) == number:
            monkeypatch.undo()
            act()
        return state

    monkeypatch.setattr(registry, "read", read_and_act)


def test_a_question_that_is_answered_between_the_look_and_the_withdrawal_stays_answered(
    asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_look(1, asking, asking.receive_reply, monkeypatch)
    with pytest.raises(InvalidInput, match="answered"):
        asking.store.sessions.cancel(asking.question)
    inbound = Session(asking.store.engine, asking.session).read().inbound
    assert list(inbound.messages) == [REPLY.id], "the session does not hear of a withdrawal"
    assert (asking.state, asking.answer()) == ("answered", "y")


@pytest.mark.parametrize("look", [1, 2])
def test_a_question_that_is_withdrawn_between_a_look_and_the_answer_stays_withdrawn(
    look: int, asking: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_look(look, asking, asking.cancel, monkeypatch)
    asking.receive_reply()
    assert asking.state == "cancelled"
    with pytest.raises(Refused):
        asking.answer()
    (notice,) = due_deliveries(Session(asking.store.engine, asking.session).read(), later(3600))
    assert (notice.in_reply_to, "withdrawn" in notice.event["content"]) == (REPLY.id, True)


@pytest.mark.parametrize("settle", [Asking.receive_reply, Asking.cancel])
def test_a_session_that_did_not_hear_what_was_decided_hears_it_with_the_repetition(
    asking: Asking, settle: Callable[[Asking], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(session: Session, edit: object) -> None:
        raise StorageFailed("the disk is full", path="inbound.json")

    with monkeypatch.context() as patched:
        patched.setattr(Session, "write_inbound", fail)
        with pytest.raises(StorageFailed):
            settle(asking)
    decided = asking.state
    assert asking.answer() is None
    settle(asking)
    assert asking.state == decided
    if decided == "answered":
        assert asking.answer() == "y"
    else:
        with pytest.raises(Refused):
            asking.answer()


def test_a_name_is_made_of_the_title_and_a_second_one_gets_a_number() -> None:
    anna, names = AgentSetup("anna"), []
    for place, title in (
        ("a", "Ops Team"),
        ("b", "ops team!"),
        ("c", "Ops Team"),
        ("a", "again"),
        ("d", ""),
        ("e", "!"),
    ):
        anna, name = messages.allow_destination(anna, Route("chat", place), title)
        names.append(name)
    assert names == ["ops-team", "ops-team-2", "ops-team-3", "ops-team", "d", "unnamed"]
    with pytest.raises(NotFound):
        messages.forbid_destination(anna, "nobody")


def test_the_map_is_the_permission_changes_of_it_hold_at_once_and_a_reply_is_always_allowed() -> (
    None
):
    files = Files()
    anna, _ = messages.allow_destination(AgentSetup("anna"), Route("chat", "ops"), "Ops")
    files.write_inbound(
        *messages.update_destinations(files.session_state, RegistryState().put(anna), ROW)
    )
    assert messages.update_destinations(files.session_state, RegistryState().put(anna), ROW) == []
    files.write_outbound(
        *number_replies(files.session_state, [outbound_message(id="o", content="x", to="ops")])
    )
    assert route_of(files.session_state, files.outbound.messages["o"]) == Route("chat", "ops")
    files.write_inbound(
        *messages.update_destinations(
            files.session_state,
            RegistryState().put(messages.forbid_destination(anna, "ops")),
            ROW,
        )
    )
    with pytest.raises(Refused):
        route_of(files.session_state, files.outbound.messages["o"])
    with pytest.raises(Refused):
        number_replies(files.session_state, [outbound_message(id="p", content="x", to="ops")])
