"""The events of a session's two files: constructors, and checks of events that were read.

A constructor checks its arguments and writes times in the form of the format, so its event can
always be applied. An event gets its `timestamp` when it is written, and also its `id`, except for
messages, whose ids are made from what they answer (`reply_id`).

A person or another program may edit the files, so an event that was read is checked as a whole
before any of it is applied. The `Fields` at the end of the module are these checks, one for each
kind of event. `id`, `content` and `timestamp` were checked when the document was read.

Pure: no file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Required, TypedDict, Unpack, get_args

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format.validation import canonical_time
from capsule.ids import uuid5
from capsule.sessions.cron import next_at

Event = dict[str, Any]
InboundKind = Literal["chat", "task", "webhook", "system"]
Trigger = Literal["wake", "accumulate"]
OutboundKind = Literal["chat", "edit", "reaction", "file", "question", "task", "system"]
AckState = Literal["processing", "completed", "failed", "returned", "dropped"]
TaskAction = Literal["make", "update", "cancel", "pause", "resume"]
CatchUp = Literal["all", "latest", "skip"]
Outcome = Literal["wake", "accumulate", "ignored"]

#: The fields that say when a series recurs.
RECURRENCE_FIELDS = ("cron", "timeZone", "catchUp")
#: The namespace of the ids of replies. It is part of the format: changing it changes ids.
_REPLIES = bytes.fromhex("3d0b8b0e7c555f4d9a1b64f2c8e7a911")


@dataclass(frozen=True, slots=True)
class Route:
    """Where a message came from, or goes to: an adapter's name, a place there, and a thread in it
    (empty: none).
    """

    channel: str
    place: str
    thread: str = ""

    @classmethod
    def of(cls, value: Any) -> Route | None:
        """The route in a value of a file; None: it has none."""
        if not isinstance(value, Mapping):
            return None
        channel, place, thread = value.get("channel"), value.get("place"), value.get("thread")
        if not (isinstance(channel, str) and isinstance(place, str)):
            return None
        return cls(channel, place, thread if isinstance(thread, str) else "")

    def as_json(self) -> dict[str, str]:
        """The route as it stands in a file."""
        return _present_fields(channel=self.channel, place=self.place, thread=self.thread or None)


def reply_id(session: str, message: str, number: int | str) -> str:
    """The id of what is said in answer to a message: the same at every try.

    Args:
        session: The session's id; a message may be in several.
        message: The message's id, of a batch the one that its claim names as `batch`.
        number: 0: the answer itself; 1 and up: what the agent sends meanwhile, in order. A word:
            what the host says.
    """
    return uuid5(_REPLIES, session, message, str(number))


class InboundFields(TypedDict, total=False):
    """A message for the worker; None is the same as nothing."""

    id: Required[str]  # A message with the same id is the same message.
    content: Required[str]
    kind: InboundKind  # `system` is for the worker's tools, and is never part of a prompt.
    trigger: Trigger  # Whether it wakes the worker, or waits until another message does.
    sender: str | None  # None: the host.
    route: Route | None  # Where it came from.
    timestamp: str | None  # When it was said; None: when it is written.
    on_wake: bool  # Whether only a worker that has just started gets it.
    process_after: str | None  # From when on it is due; None: at once.
    hops: int  # Through how many agents it came, one answering the other.
    attachments: Sequence[Mapping[str, Any]]
    series: str | None  # The series that it is an occurrence of.
    recurrence: Mapping[str, Any] | None  # When that recurs: `cron`, `timeZone`, `catchUp`.
    wiring: str | None  # The wiring that brought it here.
    question: str | None  # The question that it answers, with `value`.
    value: str | None


def inbound_message(**fields: Unpack[InboundFields]) -> Event:
    """A message for the worker; `receive` numbers it. Raises InvalidInput: a time can't be read, a
    word is unknown.
    """
    given: dict[str, Any] = {"kind": "chat", "trigger": "wake", **fields}
    sender, route = given.pop("sender", None), given.pop("route", None)
    _check_word("kind", given["kind"], InboundKind)
    _check_word("trigger", given["trigger"], Trigger)
    more = {"from": sender or None, "route": route and route.as_json()}
    return _event("message", "user", **_checked(given), **more)


class OutboundFields(TypedDict, total=False):
    """What the worker says; None is the same as nothing."""

    id: Required[str]  # Of `reply_id`.
    content: str
    kind: OutboundKind
    number: int | None  # Its number among the replies to a message.
    in_reply_to: str | None
    to: (
        str | None
    )  # The name of a destination; None: where the answered message came from, else the default route.
    thread: str | None  # None: that of its route.
    deliver_after: str | None  # From when on it is due; None: at once.
    recurrence: Mapping[str, Any] | None  # When it recurs: `cron`, `timeZone`.
    hops: int
    target: str | None  # The message that an `edit` or a `reaction` is about.
    emoji: str | None
    attachments: Sequence[Mapping[str, Any]]  # Each a `name` and a `path`.
    question: str | None
    options: Sequence[Mapping[str, str]]  # Each a `label` and a `value`.
    expires_at: str | None
    #: For the host: the `action` and the id of a `series`, and of its `prompt`, `cron`, `timeZone`,
    #: `catchUp` and `processAfter` what it is to be.
    task: Mapping[str, Any] | None


def outbound_message(**fields: Unpack[OutboundFields]) -> Event:
    """What the worker says; `send` numbers it. Raises InvalidInput: a time can't be read, a word is
    unknown.
    """
    given: dict[str, Any] = {"kind": "chat", **fields}
    task = dict(given.pop("task", None) or {})
    _check_word("kind", given["kind"], OutboundKind)
    if task:
        _check_word("action", task.get("action", ""), TaskAction)
    return _event("message", "assistant", **_checked(given), **task)


def retry_event(
    *, messages: Mapping[str, tuple[int, str]], reason: str, again: bool = False
) -> Event:
    """The host withdraws the claims of messages: of each its tries, and from when on it is due
    again.

    With `again` a person wants it, also for a message that failed.
    """
    due = {
        id: {"tries": tries, "processAfter": utc("processAfter", at)}
        for id, (tries, at) in messages.items()
    }
    return _event("retry", messages=due, reason=reason, again=again or None)


def failed_event(*, messages: Iterable[str], reason: str) -> Event:
    """The host gives messages up, and tells their senders why."""
    return _event("failed", messages=list(messages), reason=reason)


def cancelled_event(*, messages: Iterable[str]) -> Event:
    """Messages in or out that somebody cancelled."""
    return _event("cancelled", messages=list(messages))


def paused_event(*, series: str | None = None) -> Event:
    """A series pauses; None: the whole session."""
    return _event("paused", series=series)


def resumed_event(*, series: str | None = None) -> Event:
    """A series goes on; None: the whole session, but for the series that are paused themselves."""
    return _event("resumed", series=series)


def changed_event(*, series: str, prompt: str | None = None, **recurrence: Any) -> Event:
    """A series changes, with its live row. None, also for one of `RECURRENCE_FIELDS`:
    that stays.
    """
    return _event("changed", series=series, prompt=prompt, **recurrence)


def attempt_event(*, message: str, attempts: int, reason: str, next_at: str) -> Event:
    """A delivery failed, and is tried again. Args: the message out, the attempts until now, why,
    when it is due.
    """
    return _event("attempt", message=message, attempts=attempts, reason=reason, nextAt=next_at)


def delivered_event(*, message: str, platform_id: str, next_at: str | None = None) -> Event:
    """A message out arrived. Args: its id, its id there, when its next occurrence is due (None:
    there is none).
    """
    return _event("delivered", message=message, platformId=platform_id, nextAt=next_at)


def undeliverable_event(*, message: str, reason: str, next_at: str | None = None) -> Event:
    """The host gives a message out up. Args: its id, why, when its next occurrence is due (None:
    there is none).
    """
    return _event("undeliverable", message=message, reason=reason, nextAt=next_at)


def destinations_event(*, destinations: Mapping[str, Mapping[str, Any]]) -> Event:
    """All destinations of the worker, by names."""
    return _event(
        "destinations",
        destinations={name: dict(entry) for name, entry in destinations.items()},
    )


def routing_event(*, route: Route) -> Event:
    """The default route of what the worker says: it takes a message that names no destination."""
    return _event("routing", route=route.as_json())


def routed_event(
    *, message: str, agent: str, outcome: Outcome, reason: str, wiring: str | None = None
) -> Event:
    """Why a message came to an agent's session or not, for people who ask; it changes nothing."""
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
    """What became of messages. Args: the state, each one's tries, the worker, the batch's name,
    what failed.
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
    """The tool that the agent uses now, and after how many seconds it ends at the latest; no name:
    none.
    """
    return _event("tool", tool=name, limitS=limit_s)


def state_event(*, key: str, value: Any = None, provider: str = "") -> Event:
    """What a provider's worker keeps under a key; None: nothing any more."""
    return _event("state", key=_check_not_empty("key", key), value=value, provider=provider)


def cleared_event(*, provider: str = "") -> Event:
    """A provider's worker keeps nothing any more."""
    return _event("cleared", provider=provider)


def _event(event: str, role: str = "system", content: str = "", **fields: Any) -> Event:
    return {"role": role, "content": content, "event": event, **_present_fields(**fields)}


def _present_fields(**fields: Any) -> dict[str, Any]:
    """The fields that say something, with their times as the format writes them."""
    given = {name: value for name, value in fields.items() if value is not None}
    for name in given.keys() & _TIMES:
        given[name] = utc(name, given[name])
    return given


def _checked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a message under their names in the file, without those that say nothing."""
    _check_not_empty("id", fields["id"])
    recurrence = fields.get("recurrence")
    if recurrence is not None:
        next_at({"cron": "", **recurrence}, timestamps.from_ms(0))
    checked: dict[str, Any] = {}
    for name, value in fields.items():
        first, *others = name.split("_")
        key = first + "".join(map(str.capitalize, others))
        if value or key in _TIMES or key in ("number", "content"):
            checked[key] = (
                [dict(item) for item in value] if key in ("attachments", "options") else value
            )
    return checked


_TIMES = frozenset({"timestamp", "processAfter", "deliverAfter", "expiresAt", "nextAt"})


def _check_word(name: str, word: str, words: Any) -> None:
    if word not in get_args(words):
        raise InvalidInput(f"{name}: must be one of {', '.join(get_args(words))}, is {word!r}")


def _check_not_empty(name: str, text: str) -> str:
    if not text:
        raise InvalidInput(f"{name}: is empty")
    return text


def may_be_lost(event: Event) -> bool:
    """Whether a power cut may undo an event, as what it notes is done again then: a message is
    claimed anew, or delivered under the same id. It is durable with the next event of its file that
    may not be lost, or soon."""
    return event["event"] in ("delivered", "tool") or event.get("state") == "processing"


def utc(name: str, text: str) -> str:
    """A time as the format writes it. Raises InvalidInput, with the name of its field: it can't be
    read.
    """
    time = canonical_time(text)
    if time is None:
        raise InvalidInput(
            f"{name}: must be a time like 2026-11-22T13:30:00.000Z (ISO 8601), is {text!r}"
        )
    return time


Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Fields:
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


_RECURRENCE = Fields({}, _texts(*RECURRENCE_FIELDS, "at"))
_ROUTE = Fields(_texts("channel", "place"), _texts("thread"))

# -- Events of the inbound file ------------------------------------------------------------------

IN_MESSAGE = Fields(
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
RETRY = Fields(
    {"messages": _map_of(Fields({"tries": _is_whole, "processAfter": _is_text}))},
    {"reason": _is_text, "again": _is_flag},
)
FAILED = Fields({"messages": _list_of(_is_text)}, _texts("reason"))
CANCELLED = Fields({"messages": _list_of(_is_text)})
PAUSED = RESUMED = Fields({}, _texts("series"))
CHANGED = Fields(_texts("series"), _texts("prompt", *RECURRENCE_FIELDS))
ATTEMPT = Fields(_texts("message", "nextAt") | {"attempts": _is_whole}, _texts("reason"))
DELIVERED = Fields(_texts("message"), _texts("platformId", "nextAt"))
UNDELIVERABLE = Fields(_texts("message"), _texts("reason", "nextAt"))
DESTINATIONS = Fields({"destinations": _map_of(_ROUTE)})
ROUTING = Fields({"route": _ROUTE})
IN_COMPACTED = Fields(
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

OUT_MESSAGE = Fields(
    {"id": _is_text, "content": _is_text, "timestamp": _is_time},
    _texts("kind", "inReplyTo", "to", "thread", "deliverAfter", "target", "emoji", "question")
    | _texts("expiresAt", "action", "series", "prompt", "processAfter", *RECURRENCE_FIELDS)
    | {
        "seq": _is_whole,
        "number": _is_whole,
        "hops": _is_whole,
        "recurrence": _is_recurrence,
        "attachments": _list_of(Fields(_texts("name", "path"))),
        "options": _list_of(Fields(_texts("value"), _texts("label"))),
    },
)
ACK = Fields(
    {"state": _is_ack_state, "messages": _map_of(_is_whole)},
    _texts("instance", "batch", "error"),
)
TOOL = Fields({}, {"tool": _is_text, "limitS": _is_number})
STATE = Fields(_texts("key"), {"provider": _is_text, "value": _is_anything})
CLEARED = Fields({}, _texts("provider"))
OUT_COMPACTED = Fields(
    {
        "seq": _is_whole,
        "said": _map_of(_row_of(_is_text, _is_text, _is_text)),
        "acks": _map_of(_row_of(_is_ack_state, _is_whole, *[_is_text] * 4)),
        "tool": _null_or(_row_of(_is_text, _is_number)),
        "state": _map_of(_is_object),
    }
)
