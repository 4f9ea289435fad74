"""What the events of a session's files must hold, so that they can be applied.

A person or another program may edit the files. An event is checked as a whole before any of it is
applied. The document that has it was checked when it was read: `id`, `content` and `timestamp`
are of their kinds. No file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.sessions.cron import next_at
from capsule.sessions.events import OF_TIME, AckState

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


_RECURRENCE = Fields({}, _texts(*OF_TIME, "at"))
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
CHANGED = Fields(_texts("series"), _texts("prompt", *OF_TIME))
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
    | _texts("expiresAt", "action", "series", "prompt", "processAfter", *OF_TIME)
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
