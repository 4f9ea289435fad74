"""Schedules: series of tasks, and when the next one of a series comes.

What must stay true: a series has one live row, its last occurrence, and one write makes the next
when that is over, however it ended; so none is lost or comes twice, and the times of a series never
go back, though a clock may. A pause holds, and what it held is not caught up. What can't be read is
refused when it is written. No file, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Refused
from capsule.sessions.cron import last_at, next_at
from capsule.sessions.events import (
    RECURRENCE_FIELDS,
    CatchUp,
    Event,
    Route,
    cancelled_event,
    changed_event,
    delivered_event,
    inbound_message,
    paused_event,
    reply_id,
    resumed_event,
    utc,
)
from capsule.sessions.rules.deliveries import after_attempt, route_of
from capsule.sessions.rules.messages import numbered
from capsule.sessions.session_state import FINAL, InboundMessage, SessionState

#: After how many seconds an occurrence of a series that catches nothing up is passed over.
GRACE_S = 300


# -- What comes next -------------------------------------------------------------------------------


def occurrences(session_state: SessionState, now: str) -> list[Event]:
    """Make the next occurrence of each series whose last one is over, or was missed; it is the only
    live one then.

    An occurrence of a series that catches up `latest` makes room for a later one while nobody has
    tried it; one of a series that is to `skip` what was missed is passed over after `GRACE_S`. A
    series that can't be read any more ends.
    """
    heads = session_state.inbound.series
    old = [
        row.id
        for row in session_state.unfinished_messages()
        if row.series and heads[row.series] != row.id
    ]
    events = [cancelled_event(messages=old)] if old else []
    for id in heads.values():
        head = session_state.inbound.messages.get(id)
        if head is not None and (at := _next_time(session_state, head, now)):
            events += _replace_occurrence(session_state, head, at)
    return numbered(session_state, events)


def _next_time(session_state: SessionState, head: InboundMessage, now: str) -> str:
    """The time of the occurrence that takes the place of the last one; empty:
    it keeps its place.
    """
    recurrence, state = _recurrence(head), session_state.status(head.id)
    if not recurrence.get("cron") or _is_cancelled(session_state, head):
        return ""
    at, catch_up = _time_of(head), recurrence.get("catchUp") or "latest"
    try:
        if state in FINAL:
            if catch_up == "all":
                return next_at(recurrence, at)
            last = last_at(recurrence, now) if catch_up == "latest" else ""
            return last if last > at else next_at(recurrence, max(at, now))
        if (
            state == "pending"
            and not head.tries
            and not session_state.inbound.paused & {"", head.series}
            and catch_up != "all"
        ):
            if catch_up == "latest":
                last = last_at(recurrence, now)
                return last if last > at else ""
            is_missed = timestamps.ms_of(now) > timestamps.ms_of(at) + GRACE_S * 1000
            return next_at(recurrence, now) if is_missed else ""
    except (InvalidInput, ValueError):
        return ""
    return ""


def _is_cancelled(session_state: SessionState, head: InboundMessage) -> bool:
    """Whether a series was cancelled, at the last while its last occurrence was being answered."""
    return session_state.inbound.final_states.get(head.id) == "cancelled"


def _recurrence(head: InboundMessage) -> dict[str, Any]:
    return head.event.get("recurrence") or {}


def _time_of(head: InboundMessage) -> str:
    """The time that an occurrence is for; `due` may be that of another try."""
    return str(_recurrence(head).get("at") or head.due)


def _replace_occurrence(
    session_state: SessionState, head: InboundMessage, at: str, **fields: Any
) -> list[Event]:
    """The events that put another occurrence, for a time, in the place of the last one."""
    following = _occurrence(
        session_state, head.id, at, {**head.event, "processAfter": at, **fields}
    )
    is_over = session_state.status(head.id) in FINAL
    return [following] if is_over else [cancelled_event(messages=[head.id]), following]


def _occurrence(session_state: SessionState, before: str, at: str, event: Event) -> Event:
    """An occurrence for a time, in the place of the message `before`, which says what
    `event` says.
    """
    recurrence = event.get("recurrence")
    return inbound_message(
        id=reply_id(session_state.session, before, "next"),
        content=event["content"],
        kind="task",
        route=Route.of(event.get("route")),
        process_after=event["processAfter"],
        hops=event.get("hops", 0),
        series=event["series"],
        recurrence=recurrence and {**recurrence, "at": at},
    )


# -- What people and agents do with series ---------------------------------------------------------


def live_occurrences(session_state: SessionState) -> dict[str, InboundMessage]:
    """The live rows of the series that are not over, by the ids of the series, oldest first."""
    rows = {}
    for series, id in session_state.inbound.series.items():
        if head := session_state.inbound.messages.get(id):
            recurs = bool(_recurrence(head).get("cron")) and not _is_cancelled(session_state, head)
            if recurs or session_state.status(id) not in FINAL:
                rows[series] = head
    return rows


def run_next_task(session_state: SessionState, now: str, time_zone: str = "") -> list[Event]:
    """Do what the worker's oldest message of kind `task` asks for, and note that it is done, or why
    not.

    Nothing is left to do when it gives nothing. Where a task does not say, cron is read in
    `time_zone`.
    """
    message = next(
        (each for each in session_state.undelivered_messages() if each.kind == "task"), None
    )
    if message is None:
        return []
    try:
        route = route_of(session_state, message) if message.event.get("action") == "make" else None
        done = apply_task(
            session_state, message.event, message.id, now, route=route, time_zone=time_zone
        )
    except (InvalidInput, NotFound, Refused) as error:
        return numbered(
            session_state,
            after_attempt(session_state, message, now, error=str(error), is_final=True),
        )
    return [
        *done,
        delivered_event(message=message.id, platform_id=message.event.get("series") or message.id),
    ]


def apply_task(
    session_state: SessionState,
    task: Mapping[str, Any],
    id: str,
    now: str,
    *,
    route: Route | None = None,
    time_zone: str = "",
) -> list[Event]:
    """Do something with a series.

    Args:
        task: As in `events.outgoing`. An `update` merges what it names; with `processAfter` now,
            the task runs now.
        id: A new id, for a new series that has none.
        route: Where the answers of a new series go; None: where the session's go.
        time_zone: Where cron is read if the task does not say.

    Raises:
        InvalidInput: Cron, a time zone or a time can't be read, or a new series has no time, or an
            id that is taken.
        NotFound: There is no such series, or it is over.
    """
    series, action, there = (
        str(task.get("series") or id),
        task.get("action"),
        live_occurrences(session_state),
    )
    head = there.get(series)
    if action == "make":
        if head is not None and head.id != reply_id(session_state.session, id, "next"):
            raise InvalidInput(f"there is a series {series[:80]!r}")
        to = route or session_state.inbound.route
        events = [
            _first_occurrence(
                session_state,
                task,
                id,
                now,
                {"series": series, "route": to and to.as_json()},
                time_zone,
            )
        ]
    elif head is None:
        raise NotFound(
            f"there is no series {series[:80]!r}; there are: {', '.join(there) or 'none'}",
            id=series,
        )
    elif action == "cancel":
        events = [cancelled_event(messages=[head.id])]
    elif action == "pause":
        events = [paused_event(series=series)]
    elif action == "resume":
        events = [resumed_event(series=series)]
        if (
            _recurrence(head)
            and _time_of(head) <= now
            and session_state.status(head.id) == "pending"
        ):
            events += _replace_occurrence(session_state, head, next_at(_recurrence(head), now))
    elif action == "update":
        events = _update_series(session_state, head, task, now)
    else:
        raise InvalidInput(f"{action!r} is not an action for a series")
    return numbered(session_state, events)


def _first_occurrence(
    session_state: SessionState,
    task: Mapping[str, Any],
    id: str,
    now: str,
    event: Event,
    time_zone: str,
) -> Event:
    recurrence = _merge_recurrence({"timeZone": time_zone} if time_zone else {}, task)
    at = task.get("processAfter") or (recurrence and next_at(recurrence, now))
    if not at:
        raise InvalidInput("a task needs a time: cron, or processAfter")
    said = {"content": task.get("prompt") or task.get("content") or "", "hops": task.get("hops", 0)}
    return _occurrence(
        session_state,
        id,
        utc("processAfter", at),
        {**event, **said, "processAfter": at, "recurrence": recurrence},
    )


def _update_series(
    session_state: SessionState, head: InboundMessage, task: Mapping[str, Any], now: str
) -> list[Event]:
    """A task's fields merged into a series: into its live row, or, if that runs or is over, for the
    next one.
    """
    recurrence, prompt = _merge_recurrence(_recurrence(head), task), task.get("prompt")
    if session_state.status(head.id) != "pending":
        return [
            changed_event(
                series=head.series,
                prompt=prompt,
                **{name: (recurrence or {}).get(name) for name in RECURRENCE_FIELDS},
            )
        ]
    at, due = _time_of(head), head.due
    if recurrence and (task.get("cron") or task.get("timeZone")):
        at = due = next_at(recurrence, now)
    if task.get("processAfter"):
        due = utc("processAfter", task["processAfter"])
        if (
            max(due, now) < at
        ):  # It runs before its turn: so it is for the moment before, and its turn comes after it.
            at = timestamps.from_ms(timestamps.ms_of(at) - 1)
        elif due > now:
            at = max(at, due)
    content = prompt or head.event["content"]
    return _replace_occurrence(
        session_state, head, at, processAfter=due, content=content, recurrence=recurrence
    )


def _merge_recurrence(
    recurrence: Mapping[str, Any], task: Mapping[str, Any]
) -> dict[str, Any] | None:
    """When a series recurs after a change; None: it does not. Raises InvalidInput."""
    merged = {**recurrence, **{name: task[name] for name in RECURRENCE_FIELDS if task.get(name)}}
    if not merged.get("cron"):
        return None
    if merged.get("catchUp", "latest") not in get_args(CatchUp):
        raise InvalidInput(
            f"catchUp must be one of {', '.join(get_args(CatchUp))}, is {merged['catchUp']!r}"
        )
    next_at(merged, timestamps.from_ms(0))
    return merged
