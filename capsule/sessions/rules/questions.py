"""The rules of questions of agents to people: how they are added, answered, cancelled, and expire.

A question is asked by an outbound message, and the registry has it until a day after it is closed.
Each function takes the state of the registry and returns the new one, together with the events for
the sessions of the changed questions. If the program dies before a session has its events, the same
answer comes again and gives the same events.

What must stay true:
- The first answer in time counts. It wakes the session like any message, unless a tool takes it
  first.
- Every other answer is recorded and wakes nobody. Its sender gets a notice with the reason.
- A session has an answer under the id of the answer's message, so a repeated answer counts once.

No file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound
from capsule.sessions.adapters.interface import ReceivedMessage
from capsule.sessions.events import Event, Route, failed_event, inbound_message, reply_id
from capsule.sessions.registry import Question, RegistryState, SessionRecord
from capsule.sessions.rules.messages import inbound_event, receive
from capsule.sessions.session_state import OutboundMessage, SessionState

#: The new state of the registry, and by session the events that `events_for_session` completes.
QuestionOutcome = tuple[RegistryState, list[tuple[str, list[Event]]]]
#: Seconds for which a closed question is kept, so that a late answer is recognized.
KEEP_CLOSED_S = 24 * 3600
#: Why an answer does not count, by the state of its question.
_REASONS = {
    "answered": "the question was answered before",
    "cancelled": "the question was withdrawn",
}


def add_question(
    registry_state: RegistryState, record: SessionRecord, message: OutboundMessage, route: Route
) -> RegistryState:
    """Return the registry with the question that a message asks. A question that it has stays.

    Args:
        registry_state: The registry.
        record: The session that asks.
        message: The outbound message of kind `question`.
        route: The place where it is asked.
    """
    event = message.event
    id = str(event.get("question") or message.id)
    if id in registry_state.questions:
        return registry_state
    question = Question(
        id=id,
        session=record.id,
        message=message.id,
        route=route.as_json(),
        options=tuple(event.get("options") or ()),
        expires_at=str(event.get("expiresAt", "")),
    )
    return registry_state.put(question)


def match_answer(
    registry_state: RegistryState,
    received: ReceivedMessage,
    find_platform_id: Callable[[str, str], str | None],
    now: str,
) -> QuestionOutcome:
    """Record a message as the answer to a question, if it is one.

    An answer is a reply to the message of a question, in the same place, and names one of the
    options. For any other message, nothing changes and there are no events.

    Args:
        registry_state: The registry.
        received: The message.
        find_platform_id: Returns the id that an outbound message got at its destination, by its
            session and its id. None: it is not delivered.
        now: The time.
    """
    for question in registry_state.questions.values():
        if not received.reply_to or question.route.get("channel") != received.channel:
            continue
        if question.route.get("place") != received.place:
            continue
        if received.reply_to != find_platform_id(question.session, question.message):
            continue
        value = _option_value(question, received.text)
        if value is None:
            return registry_state, []
        return record_answer(registry_state, question.id, value, received, now)
    return registry_state, []


def record_answer(
    registry_state: RegistryState, id: str, value: str, received: ReceivedMessage, now: str
) -> QuestionOutcome:
    """Record an answer. If it came too late, its message gets the events of a failure.

    The message that answered the question gives the same result again.

    Args:
        registry_state: The registry.
        id: The question.
        value: The value of an option, or any text if the question has no options.
        received: The message with the answer.
        now: The time.

    Raises NotFound if the question is not there any more.
    """
    question = _find(registry_state, id)
    answer = {"value": value, "from": received.sender, "at": now, "message": received.id}
    answer_ids = [recorded.get("message") for recorded in question.answers]
    reason = ""
    if is_open(question, now):
        question = replace(
            question, answers=(answer, *question.answers), state="answered", closed_at=now
        )
    elif question.state != "answered" or answer_ids[0] != received.id:
        reason = _REASONS.get(question.state, "it came too late")
        if received.id not in answer_ids:
            question = replace(question, answers=(*question.answers, answer))
    fields: dict[str, Any] = {"attachments": (), "question": question.id, "value": value}
    if reason:
        event = inbound_event(
            received, content=value, kind="system", trigger="accumulate", **fields
        )
        events = [event, failed_event(messages=[received.id], reason=reason)]
    else:
        events = [inbound_event(received, content=value, kind="chat", trigger="wake", **fields)]
    return registry_state.put(question), [(question.session, events)]


def events_for_session(session_state: SessionState, events: Sequence[Event]) -> list[Event]:
    """Return the events of an outcome, numbered. Nothing if the session has them.

    Args:
        session_state: The session.
        events: A message, and the events about it.
    """
    new_messages = receive(session_state, events[:1])
    return [*new_messages, *events[1:]] if new_messages else []


def cancel_question(registry_state: RegistryState, id: str, now: str) -> QuestionOutcome:
    """Withdraw a question. A tool that waits for its answer learns that there is none.

    Raises:
        NotFound: The question is not there any more.
        InvalidInput: It was answered, or its time is over.
    """
    question = _find(registry_state, id)
    if question.state == "open":
        question = replace(question, state="cancelled", closed_at=now)
    elif question.state != "cancelled":
        raise InvalidInput(f"question {id} is {question.state}", id=id)
    return registry_state.put(question), [_closing_event(question)]


def expire_questions(registry_state: RegistryState, now: str) -> QuestionOutcome:
    """Close the questions whose time is over, and remove those that were closed a day ago."""
    expired = []
    obsolete = []
    oldest_kept = timestamps.from_ms(timestamps.ms_of(now) - KEEP_CLOSED_S * 1000)
    for question in registry_state.questions.values():
        if question.state != "open":
            if question.closed_at < oldest_kept:
                obsolete.append(question)
        elif _has_expired(question, now):
            expired.append(replace(question, state="expired", closed_at=now))
    if not expired and not obsolete:
        return registry_state, []
    events = [_closing_event(question) for question in expired]
    return registry_state.put(*expired).without(*obsolete), events


def is_open(question: Question, now: str) -> bool:
    """Return whether an answer would count now."""
    return question.state == "open" and not _has_expired(question, now)


def without_texts(registry_state: RegistryState) -> RegistryState:
    """Return the registry without the options and answers of closed questions.

    A late reply that names an option is a message like any other then.
    """
    emptied = []
    for question in registry_state.questions.values():
        if question.state != "open":
            options = tuple(dict.fromkeys(option, "") for option in question.options)
            answers = tuple({**answer, "value": ""} for answer in question.answers)
            emptied.append(replace(question, options=options, answers=answers))
    return registry_state.put(*emptied)


def _find(registry_state: RegistryState, id: str) -> Question:
    if id not in registry_state.questions:
        raise NotFound(f"there is no longer a question {id[:80]!r}", id=id)
    return registry_state.questions[id]


def _has_expired(question: Question, now: str) -> bool:
    return bool(question.expires_at) and timestamps.sortable(question.expires_at) <= now


def _option_value(question: Question, text: str) -> str | None:
    """Return the value of the option that a text names, by its value or its label in any case.

    Without options, every text is a value. None: the text names no option.
    """
    answer_text = text.strip()
    if not question.options:
        return answer_text
    values = {}
    for option in question.options:
        label = option.get("label") or option["value"]
        values[label.casefold()] = option["value"]
    for option in question.options:  # A value comes before an equal label.
        values[option["value"].casefold()] = option["value"]
    return values.get(answer_text.casefold())


def _closing_event(question: Question) -> tuple[str, list[Event]]:
    """Return the session of a question, and the event that no answer will come."""
    message = inbound_message(
        id=reply_id(question.session, question.id, "closed"),
        content="",
        kind="system",
        trigger="accumulate",
        question=question.id,
    )
    return question.session, [message]
