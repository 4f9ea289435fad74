"""Trace a message through the files of the sessions, as a time line: why it was answered, or not.

The module reads the events as they are in the files, and not the state that they add up to, because
a state forgets how it came about. `_STEPS` has a function for each kind of event. It returns the
kind and the details of the step that the event is for the traced message, or None if the event is
about another message.

What must stay true: a step shows only what an event says. A session that ignored a message is in
the time line with the reason.

Pure: no files, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Event = dict[str, Any]

#: The largest number of characters of a text in the details.
_MAX_TEXT = 60
#: The kind of step for each state of an acknowledgement.
_ACK_STEPS = {
    "processing": "claimed",
    "completed": "completed",
    "failed": "failed",
    "returned": "returned",
    "dropped": "dropped",
}
#: The order of steps of the same millisecond. Kinds that are not listed come last.
_STEP_ORDER = (
    "routed",
    "ignored",
    "received",
    "claimed",
    "said",
    "completed",
    "failed",
    "returned",
    "dropped",
    "attempt",
    "undeliverable",
    "retry",
)


@dataclass(frozen=True, slots=True)
class SessionEvents:
    """The events of the files of one session, in their order.

    Attributes:
        session: The session's id.
        agent: The agent's id. Empty: the session records messages that came to no session.
        inbound: The events of the inbound file.
        outbound: The events of the outbound file.
    """

    session: str
    agent: str
    inbound: Sequence[Event]
    outbound: Sequence[Event]


@dataclass(frozen=True, slots=True)
class MessageStep:
    """One step on the way of a message.

    Attributes:
        at: The time.
        session: The session's id.
        agent: The agent of the session.
        kind: routed, ignored, received, claimed, returned, dropped, retry, completed, failed,
            cancelled, said, attempt, delivered or undeliverable.
        text: The details, for people.
    """

    at: str
    session: str
    agent: str
    kind: str
    text: str


class _TracedMessage(NamedTuple):
    """The ids that events of one session are compared with.

    Attributes:
        id: The inbound message.
        answer_ids: The outbound messages that answer its batch.
    """

    id: str
    answer_ids: frozenset[str]


#: The kind and the details of a step. Empty details are left out. None: another message's event.
_Step = tuple[str, tuple[str, ...]] | None


def trace_message(message: str, sessions: Iterable[SessionEvents]) -> list[MessageStep]:
    """Return the steps of a message in the order of time. Empty: no session has it.

    Args:
        message: Its id. The id of an answer traces the message that it answers.
        sessions: The events of all sessions that may have it.

    Cost: one pass over the events.
    """
    steps: list[MessageStep] = []
    for session_events in sessions:
        steps += _steps_in(session_events, _answered_message(message, session_events))
    rank = {kind: index for index, kind in enumerate(_STEP_ORDER)}
    return sorted(steps, key=lambda step: (step.at, rank.get(step.kind, len(rank))))


def _answered_message(message: str, session_events: SessionEvents) -> str:
    """Return the message that an answer with this id answers, or the id itself."""
    for event in session_events.outbound:
        if event.get("event") == "message" and event.get("id") == message:
            return str(event.get("inReplyTo") or message)
    return message


def _steps_in(session_events: SessionEvents, message: str) -> Iterator[MessageStep]:
    """Yield the steps of a message in one session, in the order of the files."""
    batch_ids = {message}  # An answer names one message of the batch that it answers.
    for event in session_events.outbound:
        if event.get("event") == "ack" and message in event.get("messages", {}):
            batch_ids.update(event["messages"])
    answer_ids = frozenset(
        str(event.get("id"))
        for event in session_events.outbound
        if event.get("event") == "message" and event.get("inReplyTo") in batch_ids
    )
    traced = _TracedMessage(message, answer_ids)
    for event in (*session_events.inbound, *session_events.outbound):
        name = event.get("event")
        make_step = _STEPS.get(name) if isinstance(name, str) else None
        step = make_step(event, traced) if make_step else None
        if step is None:
            continue
        kind, details = step
        yield MessageStep(
            at=str(event.get("timestamp") or ""),
            session=session_events.session,
            agent=session_events.agent or str(event.get("agent", "")),
            kind=kind,
            text=", ".join(filter(None, details)),
        )


def _message_step(event: Event, traced: _TracedMessage) -> _Step:
    """Return the step of the message itself, or of an answer."""
    number = f"seq {event.get('seq')}"
    content = _field_text(event, "content")
    if event.get("id") == traced.id:
        wakes = "waits for one that wakes"
        if event.get("trigger") == "wake":
            wakes = "wakes"
        sender = _field_text(event, "from", "from {}")
        not_before = _field_text(event, "processAfter", "not before {}")
        return "received", (sender, number, wakes, not_before, content)
    if event.get("id") in traced.answer_ids:
        destination = _field_text(event, "to", "to {}")
        return "said", (number, str(event.get("kind")), destination, content)
    return None


def _routed_step(event: Event, traced: _TracedMessage) -> _Step:
    if event.get("message") != traced.id:
        return None
    wiring = _field_text(event, "wiring", "wiring {}")
    reason = _field_text(event, "reason")
    if event.get("outcome") == "ignored":
        return "ignored", (wiring, reason)
    return "routed", (str(event.get("outcome")), wiring, reason)


def _ack_step(event: Event, traced: _TracedMessage) -> _Step:
    messages = event.get("messages", {})
    kind = _ACK_STEPS.get(str(event.get("state")))
    if traced.id not in messages or kind is None:
        return None
    worker = _field_text(event, "instance", "by {}")
    return kind, (f"try {messages[traced.id] + 1}", worker, _field_text(event, "error"))


def _retry_step(event: Event, traced: _TracedMessage) -> _Step:
    messages = event.get("messages", {})
    if traced.id not in messages:
        return _answers_step(event, traced)
    retry = messages[traced.id]
    number = retry.get("tries", 0) + 1
    text = f"try {number} not before {retry.get('processAfter')}"
    return "retry", (text, _field_text(event, "reason"))


def _end_step(event: Event, traced: _TracedMessage) -> _Step:
    """Return the step of a message or its answers that failed or were cancelled."""
    step = _answers_step(event, traced)
    if step is None and traced.id in event.get("messages", ()):
        return str(event["event"]), (_field_text(event, "reason"),)
    return step


def _answers_step(event: Event, traced: _TracedMessage) -> _Step:
    ids = traced.answer_ids & set(event.get("messages", ()))
    if not ids:
        return None
    return str(event["event"]), (f"answer {', '.join(ids)}", _field_text(event, "reason"))


def _delivery_step(event: Event, traced: _TracedMessage) -> _Step:
    answer = event.get("message")
    if answer not in traced.answer_ids:
        return None
    return str(event["event"]), (
        f"answer {answer}",
        _field_text(event, "attempts", "attempt {}"),
        _field_text(event, "platformId", "as {}"),
        _field_text(event, "reason"),
        _field_text(event, "nextAt", "next at {}"),
    )


def _compacted_step(event: Event, traced: _TracedMessage) -> _Step:
    if traced.id not in event.get("left", {}):
        return None
    return str(event["ended"].get(traced.id, "completed")), ("its steps were compacted",)


_STEPS: Mapping[str, Callable[[Event, _TracedMessage], _Step]] = {
    "message": _message_step,
    "routed": _routed_step,
    "ack": _ack_step,
    "retry": _retry_step,
    "failed": _end_step,
    "cancelled": _end_step,
    "attempt": _delivery_step,
    "delivered": _delivery_step,
    "undeliverable": _delivery_step,
    "compacted": _compacted_step,
}


def _field_text(event: Event, field: str, template: str = "{}") -> str:
    """Return a field on one short line, in a template. Empty: the event does not have it."""
    text = " ".join(str(event.get(field) or "").split())
    if not text:
        return ""
    if len(text) > _MAX_TEXT:
        text = text[: _MAX_TEXT - 3] + "..."
    return template.format(text)
