"""The events of a session's two files: constructors, and checks of events that were read; and the cron
expressions in them.

An event is a JSON object. `event` names its kind, and `role`, `content`, `id` and `timestamp` are
the fields of any entry of a document. A constructor checks its arguments and writes times in the
form of the format, so its event can always be applied. An event gets its `timestamp` when it is
written, and also its `id`. Only messages have ids of their own, made from what they answer
(`reply_id`).

A person or another program may edit the files, so an event that was read is checked as a whole
before any of it is applied. The `ObjectCheck` constants at the end of the module are these checks,
one for each kind of event. `id`, `content` and `timestamp` were checked when the document was read.

What must stay true: where clocks change, a cron expression is read as Debian's cron reads it. A time
in the hour that is left out comes once, right after it, and a time in the hour that comes twice comes
once.

Pure: no file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal, Required, TypedDict, Unpack, get_args

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format.validation import canonical_time
from capsule.ids import uuid5

# -- Cron expressions ------------------------------------------------------------------------------

#: The short words of cron, and their expressions.
_CRON_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
#: Minute, hour, day of the month, month, and day of the week.
_CRON_FIELDS = 5


def zone(name: str) -> tzinfo:
    """Return the time zone of a name such as `Europe/Berlin`. An empty name is UTC.

    Raises InvalidInput if this machine has no such time zone.
    """
    if name in ("", "UTC"):
        return UTC
    # Imported here, because a worker that starts needs no time zones.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f"{name[:80]!r} is not a time zone; it has a name like Europe/Berlin"
        ) from None


def next_at(recurrence: Mapping[str, Any], after: str) -> str:
    """Return the first time of a recurrence after a time.

    Args:
        recurrence: `cron`, with five fields or a word such as `@daily`, and `timeZone`.
        after: The time.

    Raises InvalidInput if the cron expression cannot be read, or fits no time.
    """
    start = timestamps.parse(after)
    return _canonical(next(time for time in _times_of_cron(recurrence, start) if time > start))


def last_at(recurrence: Mapping[str, Any], end_time: str) -> str:
    """Return the last time of a recurrence that is not after a time. Arguments as for `next_at`."""
    end = timestamps.parse(end_time)
    times = _times_of_cron(recurrence, end + timedelta(seconds=1), reverse=True)
    return _canonical(next(time for time in times if time <= end))


def _times_of_cron(
    recurrence: Mapping[str, Any], start: datetime, *, reverse: bool = False
) -> Iterator[datetime]:
    """Yield the times of a recurrence from `start` on, in UTC. With `reverse`, backwards.

    Raises InvalidInput where no time follows.
    """
    from cronsim import CronSim, CronSimError

    text = str(recurrence["cron"])
    cron = _CRON_WORDS.get(text.strip().lower(), text)
    try:
        if len(cron.split()) != _CRON_FIELDS:
            raise CronSimError("it has five fields, or is one of " + ", ".join(_CRON_WORDS))
        local_start = start.astimezone(zone(str(recurrence.get("timeZone") or "")))
        for time in CronSim(cron, local_start, reverse):
            yield time.astimezone(UTC)
    except (CronSimError, OverflowError) as error:
        raise InvalidInput(f"the cron expression {cron[:80]!r} can't be read: {error}") from None
    raise InvalidInput(f"the cron expression {cron[:80]!r} matches no time within 50 years")


def _canonical(time: datetime) -> str:
    return timestamps.canonical(time.isoformat())


# -- Events ----------------------------------------------------------------------------------------

Event = dict[str, Any]
InboundKind = Literal["chat", "task", "webhook", "system"]
#: Whether a message wakes the worker, or accumulates until another message does.
Trigger = Literal["wake", "accumulate"]
OutboundKind = Literal["chat", "edit", "reaction", "file", "question", "task", "system"]
#: `returned`: the worker gave the message back. `dropped`: its successor withdrew the claim.
AckState = Literal["processing", "completed", "failed", "returned", "dropped"]
TaskAction = Literal["make", "update", "cancel", "pause", "resume"]
#: Which of the times that a series missed are caught up.
CatchUp = Literal["all", "latest", "skip"]
Outcome = Literal["wake", "accumulate", "ignored"]

#: The fields that describe when a series recurs.
RECURRENCE_FIELDS = ("cron", "timeZone", "catchUp")
#: The namespace of the ids of replies. It is part of the format: changing it changes ids.
_REPLY_NAMESPACE = bytes.fromhex("3d0b8b0e7c555f4d9a1b64f2c8e7a911")


@dataclass(frozen=True, slots=True)
class Route:
    """The origin or the target of a message.

    Attributes:
        channel: The name of the adapter.
        place: The adapter's id of the place, for example of a conversation.
        thread: The thread in that place. Empty: none.
    """

    channel: str
    place: str
    thread: str = ""

    @classmethod
    def from_json(cls, value: Any) -> Route | None:
        """Return the route that a JSON value describes, or None if it describes none."""
        if not isinstance(value, Mapping):
            return None
        channel = value.get("channel")
        place = value.get("place")
        thread = value.get("thread")
        if not isinstance(channel, str) or not isinstance(place, str):
            return None
        return cls(channel, place, thread=thread if isinstance(thread, str) else "")

    def as_json(self) -> dict[str, str]:
        """Return the route as in a file."""
        return _present_fields(channel=self.channel, place=self.place, thread=self.thread or None)


def reply_id(session: str, message: str, number: int | str) -> str:
    """Return the id of a message that is sent in reply to another. It is the same at every try.

    Args:
        session: The session's id, because a message can be in several sessions.
        message: The id of the message. For a batch, the id that its claim names as `batch`.
        number: 0 for the answer itself, 1 and up for the messages that the agent sends before it,
            in their order. A word for a message of the host.
    """
    return uuid5(_REPLY_NAMESPACE, session, message, str(number))


class InboundFields(TypedDict, total=False):
    """The fields of a message for the worker. None is the same as a missing field.

    Attributes:
        id: The id. A message with the same id is the same message.
        content: The text.
        kind: The kind. A `system` message is for the worker's tools, and never part of a prompt.
        trigger: Whether it wakes the worker.
        sender: The sender's name. None: the host.
        route: The place that it came from.
        timestamp: The time when it was sent. None: the time when the event is written.
        on_wake: Whether only a worker that has just started gets it.
        process_after: The time when it becomes due. None: at once.
        hops: The number of agents that it came through, each of which answered the one before.
        attachments: The attachments, as the format has them.
        series: The series that it belongs to.
        recurrence: When that series recurs: `cron`, `timeZone`, `catchUp`.
        wiring: The wiring that brought it here.
        question: The question that it answers.
        value: The value of the answer.
    """

    id: Required[str]
    content: Required[str]
    kind: InboundKind
    trigger: Trigger
    sender: str | None
    route: Route | None
    timestamp: str | None
    on_wake: bool
    process_after: str | None
    hops: int
    attachments: Sequence[Mapping[str, Any]]
    series: str | None
    recurrence: Mapping[str, Any] | None
    wiring: str | None
    question: str | None
    value: str | None


def inbound_message(**fields: Unpack[InboundFields]) -> Event:
    """Return the event of a message for the worker. `rules.messages.receive` numbers it.

    Raises InvalidInput if a time cannot be read, or a word is unknown.
    """
    values: dict[str, Any] = {"kind": "chat", "trigger": "wake", **fields}
    sender = values.pop("sender", None)
    route = values.pop("route", None)
    _check_word("kind", values["kind"], InboundKind)
    _check_word("trigger", values["trigger"], Trigger)
    origin = {"from": sender or None, "route": route and route.as_json()}
    return _event("message", "user", **_json_fields(values), **origin)


class OutboundFields(TypedDict, total=False):
    """The fields of a message of the worker. None is the same as a missing field.

    Attributes:
        id: The id, from `reply_id`.
        content: The text.
        kind: The kind.
        number: The number of the message among the replies to the same message.
        in_reply_to: The message that it answers.
        to: The name of a destination. None: the place that the answered message came from, or else
            the default route.
        thread: The thread. None: the thread of the route.
        deliver_after: The time when it becomes due. None: at once.
        recurrence: When it recurs: `cron`, `timeZone`.
        hops: The number of agents that it came through.
        target: The message that an `edit` changes, or that a `reaction` is for.
        emoji: The reaction.
        attachments: The attachments, each with a `name` and a `path`.
        question: The id of the question that it asks. None: its own id.
        options: The possible answers, each with a `label` and a `value`.
        expires_at: The time until which an answer counts.
        task: A request to the host: the `action`, the id of the `series`, and the new values of
            `prompt`, `cron`, `timeZone`, `catchUp` and `processAfter`.
    """

    id: Required[str]
    content: str
    kind: OutboundKind
    number: int | None
    in_reply_to: str | None
    to: str | None
    thread: str | None
    deliver_after: str | None
    recurrence: Mapping[str, Any] | None
    hops: int
    target: str | None
    emoji: str | None
    attachments: Sequence[Mapping[str, Any]]
    question: str | None
    options: Sequence[Mapping[str, str]]
    expires_at: str | None
    task: Mapping[str, Any] | None


def outbound_message(**fields: Unpack[OutboundFields]) -> Event:
    """Return the event of a message of the worker. `rules.messages.number_replies` numbers it.

    Raises InvalidInput if a time cannot be read, or a word is unknown.
    """
    values: dict[str, Any] = {"kind": "chat", **fields}
    task = dict(values.pop("task", None) or {})
    _check_word("kind", values["kind"], OutboundKind)
    if task:
        _check_word("action", task.get("action", ""), TaskAction)
    return _event("message", "assistant", **_json_fields(values), **task)


def retry_event(
    *, messages: Mapping[str, tuple[int, str]], reason: str, by_hand: bool = False
) -> Event:
    """Withdraw the claims of messages, so that they are tried again.

    Args:
        messages: By id, the number of failed tries, and the time of the next one.
        reason: Why, in words.
        by_hand: Whether a person asked for it. Then messages that failed are tried again too.
    """
    retries = {
        id: {"tries": tries, "processAfter": utc("processAfter", due)}
        for id, (tries, due) in messages.items()
    }
    return _event("retry", messages=retries, reason=reason, again=by_hand or None)


def failed_event(*, messages: Iterable[str], reason: str) -> Event:
    """End messages that were tried in vain. Their senders get a notice with the reason."""
    return _event("failed", messages=list(messages), reason=reason)


def cancelled_event(*, messages: Iterable[str]) -> Event:
    """Cancel messages, inbound or outbound."""
    return _event("cancelled", messages=list(messages))


def paused_event(*, series: str | None = None) -> Event:
    """Pause a series. None: the whole session."""
    return _event("paused", series=series)


def resumed_event(*, series: str | None = None) -> Event:
    """Resume a series. None: the whole session, except for series that are paused themselves."""
    return _event("resumed", series=series)


def changed_event(*, series: str, prompt: str | None = None, **recurrence: Any) -> Event:
    """Change a series and its last occurrence.

    Args:
        series: The series.
        prompt: The new text. None: unchanged.
        recurrence: New values for `RECURRENCE_FIELDS`. None: unchanged.
    """
    return _event("changed", series=series, prompt=prompt, **recurrence)


def attempt_event(*, message: str, attempts: int, reason: str, next_at: str) -> Event:
    """Record a failed delivery that is tried again.

    Args:
        message: The outbound message.
        attempts: The number of failed attempts, with this one.
        reason: The error.
        next_at: The time of the next attempt.
    """
    return _event("attempt", message=message, attempts=attempts, reason=reason, nextAt=next_at)


def delivered_event(*, message: str, platform_id: str, next_at: str | None = None) -> Event:
    """Record a delivery.

    Args:
        message: The outbound message.
        platform_id: The id that it got at its destination.
        next_at: The time of its next occurrence. None: it does not recur.
    """
    return _event("delivered", message=message, platformId=platform_id, nextAt=next_at)


def undeliverable_event(*, message: str, reason: str, next_at: str | None = None) -> Event:
    """Give a delivery up.

    Args:
        message: The outbound message.
        reason: The error.
        next_at: The time of its next occurrence. None: it does not recur.
    """
    return _event("undeliverable", message=message, reason=reason, nextAt=next_at)


def destinations_event(*, destinations: Mapping[str, Mapping[str, Any]]) -> Event:
    """Replace all destinations of the worker by these, by name."""
    return _event(
        "destinations",
        destinations={name: dict(entry) for name, entry in destinations.items()},
    )


def routing_event(*, route: Route) -> Event:
    """Set the default route, for a message of the worker that names no destination."""
    return _event("routing", route=route.as_json())


def routed_event(
    *, message: str, agent: str, outcome: Outcome, reason: str, wiring: str | None = None
) -> Event:
    """Record why an agent's session got a message or did not. Only people read it."""
    id = reply_id(agent, message, "routed")
    return _event(
        "routed", id=id, message=message, agent=agent, outcome=outcome, reason=reason, wiring=wiring
    )


def ack_event(
    *,
    state: AckState,
    messages: Mapping[str, int],
    instance: str,
    batch: str | None = None,
    error: str | None = None,
) -> Event:
    """Record the state of messages, as their worker.

    Args:
        state: The state.
        messages: By id, the number of failed tries of each message at this time.
        instance: The instance of the worker.
        batch: The message that names the batch. None: unchanged.
        error: The error of the worker. None: none.
    """
    return _event(
        "ack",
        state=state,
        messages=dict(messages),
        instance=instance,
        batch=batch,
        error=error,
    )


def tool_event(*, name: str | None = None, limit_s: float | None = None) -> Event:
    """Record the tool that the agent uses now (None: none), and its limit in seconds."""
    return _event("tool", tool=name, limitS=limit_s)


def state_event(*, key: str, value: Any = None, provider: str = "") -> Event:
    """Keep a value of a provider's worker under a key. None: remove it."""
    return _event("state", key=_check_not_empty("key", key), value=value, provider=provider)


def cleared_event(*, provider: str = "") -> Event:
    """Remove all values of a provider's worker."""
    return _event("cleared", provider=provider)


def _event(event: str, role: str = "system", content: str = "", **fields: Any) -> Event:
    return {"role": role, "content": content, "event": event, **_present_fields(**fields)}


def _present_fields(**fields: Any) -> dict[str, Any]:
    """Return the fields that are not None, with their times in the form of the format."""
    present = {name: value for name, value in fields.items() if value is not None}
    for name in present.keys() & _TIMES:
        present[name] = utc(name, present[name])
    return present


def _json_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a message by their names in the file, without empty ones.

    Raises InvalidInput if the id is empty or the recurrence cannot be read.
    """
    _check_not_empty("id", fields["id"])
    recurrence = fields.get("recurrence")
    if recurrence is not None:
        next_at({"cron": "", **recurrence}, timestamps.from_ms(0))
    json_fields: dict[str, Any] = {}
    for name, value in fields.items():
        first_word, *words = name.split("_")
        key = first_word + "".join(map(str.capitalize, words))
        if key in ("attachments", "options") and value:
            json_fields[key] = [dict(item) for item in value]
        elif value or key in _TIMES or key in ("number", "content"):
            json_fields[key] = value
    return json_fields


_TIMES = frozenset({"timestamp", "processAfter", "deliverAfter", "expiresAt", "nextAt"})


def _check_word(name: str, word: str, words: Any) -> None:
    if word not in get_args(words):
        raise InvalidInput(f"{name}: must be one of {', '.join(get_args(words))}, is {word!r}")


def _check_not_empty(name: str, text: str) -> str:
    if not text:
        raise InvalidInput(f"{name}: is empty")
    return text


def may_be_lost(event: Event) -> bool:
    """Return whether a power cut may undo an event, because its action can be repeated.

    A message is claimed anew, or delivered again under the same id. Such an event is flushed with
    the next event of its file that may not be lost, or within a short time.
    """
    return event["event"] in ("delivered", "tool") or event.get("state") == "processing"


def utc(name: str, text: str) -> str:
    """Return a time in the form of the format.

    Args:
        name: The name of its field, for the error.
        text: The time, in ISO 8601.

    Raises InvalidInput if it cannot be read.
    """
    time = canonical_time(text)
    if time is None:
        raise InvalidInput(
            f"{name}: must be a time like 2026-11-22T13:30:00.000Z (ISO 8601), is {text!r}"
        )
    return time


Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class ObjectCheck:
    """A check of an object: its required fields are there, and each field passes its own check.

    Fields that are not named may hold anything.
    """

    required: Mapping[str, Check] = field(default_factory=dict)
    optional: Mapping[str, Check] = field(default_factory=dict)

    def __call__(self, value: Any) -> bool:
        """Return whether `value` is such an object. Cost: some microseconds."""
        if not isinstance(value, Mapping):
            return False
        if not all(name in value and check(value[name]) for name, check in self.required.items()):
            return False
        return all(check(value[name]) for name, check in self.optional.items() if name in value)


def _is_anything(value: Any) -> bool:
    return True


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_time(value: Any) -> bool:
    return isinstance(value, str) and timestamps.sortable(value) != ""


def _is_whole(value: Any) -> bool:
    return type(value) is int  # Not a bool, which is an int too.


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_ack_state(value: Any) -> bool:
    return value in get_args(AckState)


def _is_recurrence(value: Any) -> bool:
    """Return whether `value` says when something recurs, with an expression that can be read."""
    if not _RECURRENCE(value):
        return False
    try:
        next_at({"cron": "", **value}, timestamps.from_ms(0))
    except InvalidInput:
        return False
    return True


def _list_of(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _row_of(*checks: Check) -> Check:
    """Return a check of a list that has one value for each of `checks`."""

    def is_row(value: Any) -> bool:
        if not isinstance(value, list) or len(value) != len(checks):
            return False
        return all(check(item) for check, item in zip(checks, value, strict=True))

    return is_row


def _map_of(check: Check) -> Check:
    return lambda value: isinstance(value, Mapping) and all(map(check, value.values()))


def _null_or(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _texts(*names: str) -> dict[str, Check]:
    return dict.fromkeys(names, _is_text)


_RECURRENCE = ObjectCheck({}, _texts(*RECURRENCE_FIELDS, "at"))
_ROUTE = ObjectCheck(_texts("channel", "place"), _texts("thread"))

# -- Events of the inbound file ------------------------------------------------------------------

IN_MESSAGE = ObjectCheck(
    _texts("id", "content"),
    _texts("kind", "trigger", "from", "processAfter", "series", "wiring", "question", "value")
    | {
        "seq": _is_whole,
        "hops": _is_whole,
        "tries": _is_whole,
        "again": _is_whole,
        "waits": _is_flag,
        "onWake": _is_flag,
        "route": _ROUTE,
        "recurrence": _RECURRENCE,
        "attachments": _list_of(_is_object),
    },
)
RETRY = ObjectCheck(
    {"messages": _map_of(ObjectCheck({"tries": _is_whole, "processAfter": _is_text}))},
    {"reason": _is_text, "again": _is_flag},
)
FAILED = ObjectCheck({"messages": _list_of(_is_text)}, _texts("reason"))
CANCELLED = ObjectCheck({"messages": _list_of(_is_text)})
PAUSED = RESUMED = ObjectCheck({}, _texts("series"))
CHANGED = ObjectCheck(_texts("series"), _texts("prompt", *RECURRENCE_FIELDS))
ATTEMPT = ObjectCheck(_texts("message", "nextAt") | {"attempts": _is_whole}, _texts("reason"))
DELIVERED = ObjectCheck(_texts("message"), _texts("platformId", "nextAt"))
UNDELIVERABLE = ObjectCheck(_texts("message"), _texts("reason", "nextAt"))
DESTINATIONS = ObjectCheck({"destinations": _map_of(_ROUTE)})
ROUTING = ObjectCheck({"route": _ROUTE})
IN_COMPACTED = ObjectCheck(
    {
        "seq": _is_whole,
        "settled": _is_whole,
        "left": _map_of(_is_text),
        "ended": _map_of(_is_text),
        "delivered": _map_of(_is_text),
        "undeliverable": _map_of(_is_text),
        "again": _list_of(_is_text),
        "attempts": _map_of(_row_of(_is_whole, _is_text, _is_whole)),
        "notices": _map_of(_row_of(_is_text, _list_of(_is_text), _is_text)),
        "failures": _map_of(_row_of(_is_whole, _is_whole)),
        "destinations": _map_of(_ROUTE),
        "route": _null_or(_ROUTE),
        "paused": _list_of(_is_text),
    }
)

# -- Events of the outbound file -----------------------------------------------------------------

OUT_MESSAGE = ObjectCheck(
    {"id": _is_text, "content": _is_text, "timestamp": _is_time},
    _texts("kind", "inReplyTo", "to", "thread", "deliverAfter", "target", "emoji", "question")
    | _texts("expiresAt", "action", "series", "prompt", "processAfter", *RECURRENCE_FIELDS)
    | {
        "seq": _is_whole,
        "number": _is_whole,
        "hops": _is_whole,
        "recurrence": _is_recurrence,
        "attachments": _list_of(ObjectCheck(_texts("name", "path"))),
        "options": _list_of(ObjectCheck(_texts("value"), _texts("label"))),
    },
)
ACK = ObjectCheck(
    {"state": _is_ack_state, "messages": _map_of(_is_whole)},
    _texts("instance", "batch", "error"),
)
TOOL = ObjectCheck({}, {"tool": _is_text, "limitS": _is_number})
STATE = ObjectCheck(_texts("key"), {"provider": _is_text, "value": _is_anything})
CLEARED = ObjectCheck({}, _texts("provider"))
OUT_COMPACTED = ObjectCheck(
    {
        "seq": _is_whole,
        "said": _map_of(_row_of(_is_text, _is_text, _is_text)),
        "acks": _map_of(_row_of(_is_ack_state, _is_whole, *[_is_text] * 4)),
        "tool": _null_or(_row_of(_is_text, _is_number)),
        "state": _map_of(_is_object),
    }
)
