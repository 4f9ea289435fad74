"""Why a message was answered, or was not: its whole way through the files of the sessions, as a
time line.

What must stay true: a step is what an event says, and nothing is guessed. A session that only
considered a message tells its reason. The module reads events as they stand in the files, and not
what they fold to, as a fold forgets how it came to be. Pure: no files, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

Event = dict[str, Any]

#: How much of a text is shown.
_MAX_TEXT = 60
_ACKS = {"processing": "claimed"} | {
    word: word for word in ("completed", "failed", "returned", "dropped")
}
#: The order of steps of the same millisecond in two files.
_ORDER: tuple[str, ...]
_ORDER = (
    "routed",
    "ignored",
    "received",
    "claimed",
    "said",
    "completed",
    "failed",
    "returned",
    "dropped",
)
_ORDER += ("attempt", "undeliverable", "retry")


@dataclass(frozen=True, slots=True)
class SessionEvents:
    """What the files of one session say: their events, in their order."""

    session: str  # Its id.
    agent: str  # Whose session it is.
    inbound: Sequence[Event]
    outbound: Sequence[Event]


@dataclass(frozen=True, slots=True)
class MessageStep:
    """One step on the way of a message.

    Attributes:
        at: When it was made.
        session: In which session.
        agent: Whose session that is.
        kind: routed, ignored, received, claimed, returned, dropped, retry, completed, failed,
            cancelled, said, attempt, delivered or undeliverable.
        text: The details, for people.
    """

    at: str
    session: str
    agent: str
    kind: str
    text: str


def trace_message(message: str, files: Iterable[SessionEvents]) -> list[MessageStep]:
    """The way of a message, in the order of time; empty: no file knows it. Cost: one pass over the
    events.

    Args:
        message: Its id; that of an answer stands for the message that it answers.
        files: The files of all sessions that may know it.
    """
    steps = [step for each in files for step in _steps(_answered_message(message, each), each)]
    rank = {kind: place for place, kind in enumerate(_ORDER)}
    return sorted(steps, key=lambda step: (step.at, rank.get(step.kind, len(rank))))


def _answered_message(message: str, files: SessionEvents) -> str:
    """The message that an answer of this id answers; else the id itself."""
    said = (
        event
        for event in files.outbound
        if event.get("event") == "message" and event.get("id") == message
    )
    return str(next(said, {}).get("inReplyTo") or message)


def _steps(message: str, files: SessionEvents) -> Iterator[MessageStep]:
    batch = {message}  # An answer names the first message of the batch that it is for.
    for event in files.outbound:
        if event.get("event") == "ack" and message in event.get("messages", {}):
            batch.update(event["messages"])
    answers = {
        str(event.get("id"))
        for event in files.outbound
        if event.get("event") == "message" and event.get("inReplyTo") in batch
    }
    for event in (*files.inbound, *files.outbound):
        kind, text = _step(event, message, answers)
        if kind:
            at, details = str(event.get("timestamp") or ""), ", ".join(filter(None, text))
            yield MessageStep(
                at, files.session, files.agent or str(event.get("agent", "")), kind, details
            )


def _step(event: Event, message: str, answers: set[str]) -> tuple[str, tuple[str, ...]]:
    """The kind of step that an event is, and its details; no kind: it is none of this message's."""
    name, about = event.get("event"), event.get("message")
    said, reason = _field_text(event, "content", "{}"), _field_text(event, "reason", "{}")
    if name == "message" and event.get("id") == message:
        woke = "wakes" if event.get("trigger") == "wake" else "waits for one that wakes"
        after = _field_text(event, "processAfter", "not before {}")
        return "received", (
            _field_text(event, "from", "from {}"),
            f"seq {event.get('seq')}",
            woke,
            after,
            said,
        )
    if name == "message" and event.get("id") in answers:
        return "said", (
            f"seq {event.get('seq')}",
            str(event.get("kind")),
            _field_text(event, "to", "to {}"),
            said,
        )
    if name == "routed" and about == message:
        ignored = event.get("outcome") == "ignored"
        wiring = _field_text(event, "wiring", "wiring {}")
        return ("ignored" if ignored else "routed"), (
            "" if ignored else str(event.get("outcome")),
            wiring,
            reason,
        )
    if name == "ack" and message in event.get("messages", {}):
        tries, error = event["messages"][message], _field_text(event, "error", "{}")
        return _ACKS.get(str(event.get("state")), ""), (
            f"try {tries + 1}",
            _field_text(event, "instance", "by {}"),
            error,
        )
    if name == "retry" and message in event.get("messages", {}):
        of = event["messages"][message]
        return "retry", (
            f"try {of.get('tries', 0) + 1} not before {of.get('processAfter')}",
            reason,
        )
    if name in ("retry", "failed", "cancelled") and (
        of := answers & set(event.get("messages", ()))
    ):
        return str(name), (f"answer {', '.join(of)}", reason)
    if name in ("failed", "cancelled") and message in event.get("messages", ()):
        return str(name), (reason,)
    if name in ("attempt", "delivered", "undeliverable") and about in answers:
        number, then = (
            _field_text(event, "attempts", "attempt {}"),
            _field_text(event, "nextAt", "next at {}"),
        )
        return str(name), (
            f"answer {about}",
            number,
            _field_text(event, "platformId", "as {}"),
            reason,
            then,
        )
    if name == "compacted" and message in event.get("left", {}):
        return str(event["ended"].get(message, "completed")), ("its steps were compacted",)
    return "", ()


def _field_text(event: Event, field: str, form: str) -> str:
    """A field in words, on one short line; empty: it isn't there."""
    text = " ".join(str(event.get(field) or "").split())
    return (
        form.format(text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 3] + "...")
        if text
        else ""
    )
