"""Questions of agents to people: asked, answered, cancelled, expired.

What must stay true: the first answer in time counts. Every other answer is recorded, and wakes nobody. The session's
file gets an answer under an id made of the question and the answer, so that one that comes twice counts once. No file,
no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from capsule import timestamps
from capsule.errors import NotFound
from capsule.sessions.adapters.interface import Arrived
from capsule.sessions.events import Event, Route, incoming, reply_id
from capsule.sessions.outbound import OutMessage
from capsule.sessions.registry import Question, SessionRow, State

#: The new registry, and what the sessions are told. That comes first: the registry's word alone would be lost with the
#: process that writes both.
Result = tuple[State, list[tuple[str, Event]]]
#: For how many seconds a question that is over is kept, so that a late answer is known as one.
KEPT_S = 24 * 3600


def asked(state: State, row: SessionRow, message: OutMessage, route: Route) -> State:
    """The registry with the question that a message of kind `question` asks; as it is, if it was asked before."""
    get = message.event.get
    id = str(get("question") or message.id)
    if id in state.questions:
        return state
    options, expires_at = tuple(get("options") or ()), str(get("expiresAt", ""))
    return state.put(Question(id, row.id, message.id, route.written(), options, expires_at))


def answered(state: State, arrived: Arrived, delivered: Callable[[str, str], str | None], now: str) -> Result:
    """Take a message as the answer to a question. Nobody is told if it is none: it replies to no question, or with
    something that is none of the options.

    Only a reply to a question, in its place, is an answer. `delivered` gives the id on its platform of a message out,
    by session and message; None: it is not delivered.
    """
    for question in state.questions.values():
        is_there = (arrived.channel, arrived.place) == (question.route.get("channel"), question.route.get("place"))
        if is_there and arrived.reply_to and arrived.reply_to == delivered(question.session, question.message):
            value = _value(question, arrived.text)
            return (state, []) if value is None else answer(state, question.id, value, arrived.sender, now)
    return state, []


def answer(state: State, id: str, value: str, sender: str, now: str) -> Result:
    """Answer a question by the value of one of its options, or any text if it has none.

    Raises NotFound: there is no such question any more.
    """
    question = _question(state, id)
    is_again = any((said["value"], said["from"]) == (value, sender) for said in question.answers)
    counts = question.state == "open" and not _is_over(question, now)
    if not is_again:
        question = replace(question, answers=(*question.answers, {"value": value, "from": sender, "at": now}))
    if counts:
        question = replace(question, state="answered", closed_at=now)
    is_first = question.state == "answered" and question.answers[0]["value"] == value
    return state.put(question), [_told(question, value, sender, wakes=is_first)]


def cancelled(state: State, id: str, now: str) -> Result:
    """Withdraw a question: who waits learns that there is no answer. Raises as `answer`."""
    question = _question(state, id)
    if question.state == "open":
        question = replace(question, state="cancelled", closed_at=now)
    return state.put(question), [_told(question, None, "", wakes=False)]


def expired(state: State, now: str) -> Result:
    """Close the questions whose time is over, and forget those that have long been closed."""
    over = [question for question in state.questions.values() if question.state == "open" and _is_over(question, now)]
    closed = [replace(question, state="expired", closed_at=now) for question in over]
    long_ago = timestamps.from_ms(timestamps.ms_of(now) - KEPT_S * 1000)
    gone = [each for each in state.questions.values() if each.state != "open" and each.closed_at < long_ago]
    told = [_told(question, None, "", wakes=False) for question in closed]
    return state.put(*closed).without(*gone) if closed or gone else state, told


def _question(state: State, id: str) -> Question:
    if id not in state.questions:
        raise NotFound(f"there is no question {id[:80]!r} any more", id=id)
    return state.questions[id]


def _is_over(question: Question, now: str) -> bool:
    return bool(question.expires_at) and timestamps.sortable(question.expires_at) <= now


def _value(question: Question, text: str) -> str | None:
    """The value that a text means: of an option by its value or its label, any case; any text if there are none."""
    said = text.strip()
    values = {each["value"].casefold(): each["value"] for each in question.options}
    words = {(each.get("label") or each["value"]).casefold(): each["value"] for each in question.options} | values
    return words.get(said.casefold()) if question.options else said


def _told(question: Question, value: str | None, sender: str, *, wakes: bool) -> tuple[str, Event]:
    """The session, and what it is told: an answer, or (None) that there will be none."""
    said = "closed" if value is None else f"answer {value}"
    return question.session, incoming(
        id=reply_id(question.session, question.id, said),
        content=value or "",
        kind="system",
        trigger="wake" if wakes else "accumulate",
        sender=sender or None,
        question=question.id,
        value=value,
    )
