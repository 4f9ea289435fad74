"""Questions of agents to people: asked, answered, cancelled, expired.

What must stay true: the first answer in time counts, and wakes its session like any message, unless
a tool takes it first. Every other answer is recorded, wakes nobody, and whoever gave it is told
why. The session's file has an answer under the id of its message, so that one that comes twice
counts once. No file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound
from capsule.sessions.adapters.interface import Arrived
from capsule.sessions.events import Event, Route, failed_event, inbound_message, reply_id
from capsule.sessions.registry import Question, RegistryState, SessionRecord
from capsule.sessions.rules.messages import inbound_event, receive
from capsule.sessions.session_state import OutboundMessage, SessionState

#: The new registry, and what its sessions are told then, for `events_for_session`. If a session
#: could not be told, the answer or the withdrawal comes again, and its result tells the same.
QuestionOutcome = tuple[RegistryState, list[tuple[str, list[Event]]]]
#: For how many seconds a question that is over is kept, so that a late answer is known as one.
KEEP_CLOSED_S = 24 * 3600
#: Why an answer does not count, by the state of its question.
_LATE = {"answered": "the question was answered before", "cancelled": "the question was withdrawn"}


def add_question(
    state: RegistryState, row: SessionRecord, message: OutboundMessage, route: Route
) -> RegistryState:
    """The registry with the question that a message of kind `question` asks; as it is, if it was
    asked before.
    """
    get = message.event.get
    id = str(get("question") or message.id)
    if id in state.questions:
        return state
    options, expires_at = tuple(get("options") or ()), str(get("expiresAt", ""))
    return state.put(Question(id, row.id, message.id, route.as_json(), options, expires_at))


def match_answer(
    state: RegistryState, arrived: Arrived, delivered: Callable[[str, str], str | None], now: str
) -> QuestionOutcome:
    """Take a message as the answer to a question. Nobody is told if it is none: it replies to no
    question, or with something that is none of the options.

    Only a reply to a question, in its place, is an answer. `delivered` gives the id on its platform
    of a message out, by session and message; None: it is not delivered.
    """
    for question in state.questions.values():
        is_there = (arrived.channel, arrived.place) == (
            question.route.get("channel"),
            question.route.get("place"),
        )
        if (
            is_there
            and arrived.reply_to
            and arrived.reply_to == delivered(question.session, question.message)
        ):
            value = _value(question, arrived.text)
            return (
                (state, [])
                if value is None
                else record_answer(state, question.id, value, arrived, now)
            )
    return state, []


def record_answer(
    state: RegistryState, id: str, value: str, arrived: Arrived, now: str
) -> QuestionOutcome:
    """Answer a question by the value of one of its options, or any text if it has none, as a
    message says it.

    The message that answered it before gives the same result again.

    Raises NotFound: there is no such question any more.
    """
    question = _question(state, id)
    said = {"value": value, "from": arrived.sender, "at": now, "message": arrived.id}
    known = [each.get("message") for each in question.answers]
    reason = ""
    if is_open(question, now):
        question = replace(
            question, answers=(said, *question.answers), state="answered", closed_at=now
        )
    elif question.state != "answered" or known[0] != arrived.id:
        reason = _LATE.get(question.state, "it came too late")
        if arrived.id not in known:
            question = replace(question, answers=(*question.answers, said))
    kind, trigger = ("system", "accumulate") if reason else ("chat", "wake")
    about = {
        "kind": kind,
        "trigger": trigger,
        "attachments": (),
        "question": question.id,
        "value": value,
    }
    event = inbound_event(arrived, content=value, **about)
    events = [event, failed_event(messages=[arrived.id], reason=reason)] if reason else [event]
    return state.put(question), [(question.session, events)]


def events_for_session(session_state: SessionState, events: Sequence[Event]) -> list[Event]:
    """What a session is told: a message, and what became of it; nothing if the session has the
    message.
    """
    new = receive(session_state, events[:1])
    return [*new, *events[1:]] if new else []


def cancel_question(state: RegistryState, id: str, now: str) -> QuestionOutcome:
    """Withdraw a question: who waits learns that there is no answer.

    Raises NotFound: there is no such question any more. InvalidInput: it was answered, or its time
    was over.
    """
    question = _question(state, id)
    if question.state == "open":
        question = replace(question, state="cancelled", closed_at=now)
    elif question.state != "cancelled":
        raise InvalidInput(f"question {id} is {question.state}", id=id)
    return state.put(question), [_closed(question)]


def expire_questions(state: RegistryState, now: str) -> QuestionOutcome:
    """Close the questions whose time is over, and forget those that have long been closed."""
    over = [
        question
        for question in state.questions.values()
        if question.state == "open" and _has_expired(question, now)
    ]
    closed = [replace(question, state="expired", closed_at=now) for question in over]
    long_ago = timestamps.from_ms(timestamps.ms_of(now) - KEEP_CLOSED_S * 1000)
    gone = [
        each
        for each in state.questions.values()
        if each.state != "open" and each.closed_at < long_ago
    ]
    events = [_closed(question) for question in closed]
    return state.put(*closed).without(*gone) if closed or gone else state, events


def is_open(question: Question, now: str) -> bool:
    """Whether an answer would count now."""
    return question.state == "open" and not _has_expired(question, now)


def without_texts(state: RegistryState) -> RegistryState:
    """The registry without the options and answers of the questions that are over.

    A reply that would be one of the options, too late, is a message like any other then.
    """

    def blank(question: Question) -> Question:
        options = tuple(dict.fromkeys(option, "") for option in question.options)
        return replace(
            question,
            options=options,
            answers=tuple({**said, "value": ""} for said in question.answers),
        )

    return state.put(
        *(blank(question) for question in state.questions.values() if question.state != "open")
    )


def _question(state: RegistryState, id: str) -> Question:
    if id not in state.questions:
        raise NotFound(f"there is no question {id[:80]!r} any more", id=id)
    return state.questions[id]


def _has_expired(question: Question, now: str) -> bool:
    return bool(question.expires_at) and timestamps.sortable(question.expires_at) <= now


def _value(question: Question, text: str) -> str | None:
    """The value that a text means: of an option by its value or its label, any case; any text if
    there are none.
    """
    said = text.strip()
    values = {each["value"].casefold(): each["value"] for each in question.options}
    words = {
        (each.get("label") or each["value"]).casefold(): each["value"] for each in question.options
    } | values
    return words.get(said.casefold()) if question.options else said


def _closed(question: Question) -> tuple[str, list[Event]]:
    """The session, and that there will be no answer."""
    id = reply_id(question.session, question.id, "closed")
    return question.session, [
        inbound_message(
            id=id, content="", kind="system", trigger="accumulate", question=question.id
        )
    ]
