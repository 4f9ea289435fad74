"""The rules of schedules: series of tasks, and when the next task of a series comes.

A series has an id, and its last occurrence (its head) is an inbound message of kind `task` with a
`recurrence`. When the head is over or was missed, one write adds the next occurrence and cancels
the head if it is still pending. An agent makes and changes series by outbound messages of kind
`task`, which the host carries out.

What must stay true:
- A series has one live occurrence, so none is lost or comes twice, however the last one ended.
- The times of a series never go back, even if the system clock does.
- A pause holds the head. The times that a pause held are not caught up.
- A schedule that cannot be read is refused when it is written.

No file, no clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Refused
from capsule.sessions.events import (
    RECURRENCE_FIELDS,
    CatchUp,
    Event,
    Route,
    cancelled_event,
    changed_event,
    delivered_event,
    inbound_message,
    last_at,
    next_at,
    paused_event,
    reply_id,
    resumed_event,
    utc,
)
from capsule.sessions.rules.messages import after_attempt, numbered, route_of
from capsule.sessions.session_state import FINAL, InboundMessage, OutboundMessage, SessionState

#: Seconds after which a series with `skip` passes a missed occurrence over.
GRACE_S = 300


# -- The next occurrence ---------------------------------------------------------------------------


def occurrences(session_state: SessionState, now: str) -> list[Event]:
    """Return the events that add the next occurrence of each series whose head is over or was
    missed.

    A head of a series with `latest` is replaced by a later occurrence until its first try. A series
    with `skip` passes a missed head over after `GRACE_S`. A series with `all` replaces only heads
    that are over. A series whose recurrence cannot be read ends.
    """
    heads = session_state.inbound.series
    superseded_ids = [
        message.id
        for message in session_state.unfinished_messages()
        if message.series and heads[message.series] != message.id
    ]
    events = []
    if superseded_ids:
        events.append(cancelled_event(messages=superseded_ids))
    for id in heads.values():
        head = session_state.inbound.messages.get(id)
        if head is None:
            continue
        next_time = _next_time(session_state, head, now)
        if next_time:
            events += _replace_occurrence(session_state, head, next_time)
    return numbered(session_state, events)


def _next_time(session_state: SessionState, head: InboundMessage, now: str) -> str:
    """Return the time of the occurrence that replaces the head. Empty: the head stays."""
    recurrence = _recurrence(head)
    if not recurrence.get("cron") or _is_cancelled(session_state, head):
        return ""
    catch_up = recurrence.get("catchUp") or "latest"
    status = session_state.status(head.id)
    try:
        if status in FINAL:
            return _time_after_end(recurrence, catch_up, _time_of(head), now)
        is_paused = bool(session_state.inbound.paused & {"", head.series})
        if status == "pending" and not head.tries and not is_paused:
            return _time_after_miss(recurrence, catch_up, _time_of(head), now)
    except (InvalidInput, ValueError):  # Its time or its recurrence cannot be read.
        return ""
    return ""


def _time_after_end(recurrence: Mapping[str, Any], catch_up: str, head_time: str, now: str) -> str:
    """Return the time of the occurrence that follows a head that is over."""
    if catch_up == "all":
        return next_at(recurrence, head_time)
    if catch_up == "latest":
        last_time = last_at(recurrence, now)
        if last_time > head_time:
            return last_time
    return next_at(recurrence, max(head_time, now))


def _time_after_miss(recurrence: Mapping[str, Any], catch_up: str, head_time: str, now: str) -> str:
    """Return the time of the occurrence that replaces a head without a try. Empty: the head stays."""
    if catch_up == "all":
        return ""
    if catch_up == "latest":
        last_time = last_at(recurrence, now)
        return last_time if last_time > head_time else ""
    is_missed = timestamps.ms_of(now) > timestamps.ms_of(head_time) + GRACE_S * 1000
    return next_at(recurrence, now) if is_missed else ""


def _is_cancelled(session_state: SessionState, head: InboundMessage) -> bool:
    """Return whether a series was cancelled, perhaps while its head was being answered."""
    return session_state.inbound.final_states.get(head.id) == "cancelled"


def _recurrence(head: InboundMessage) -> dict[str, Any]:
    return head.event.get("recurrence") or {}


def _time_of(head: InboundMessage) -> str:
    """Return the scheduled time of an occurrence. `due` may be the time of a retry."""
    return str(_recurrence(head).get("at") or head.due)


def _replace_occurrence(
    session_state: SessionState, head: InboundMessage, time: str, **fields: Any
) -> list[Event]:
    """Return the events that add an occurrence after the head, and cancel a head that is not over.

    Args:
        session_state: The session.
        head: The head.
        time: The scheduled time of the new occurrence.
        fields: Fields of its event that differ from the head's.
    """
    event = {**head.event, "processAfter": time, **fields}
    occurrence = _occurrence(session_state, head.id, time, event)
    if session_state.status(head.id) in FINAL:
        return [occurrence]
    return [cancelled_event(messages=[head.id]), occurrence]


def _occurrence(session_state: SessionState, predecessor: str, time: str, event: Event) -> Event:
    """Return the event of an occurrence.

    Args:
        session_state: The session.
        predecessor: The id from which its own is made: of the head before it, or of a new series.
        time: The scheduled time.
        event: An event with the content and the other fields of the occurrence.
    """
    recurrence = event.get("recurrence")
    return inbound_message(
        id=reply_id(session_state.session, predecessor, "next"),
        content=event["content"],
        kind="task",
        route=Route.from_json(event.get("route")),
        process_after=event["processAfter"],
        hops=event.get("hops", 0),
        series=event["series"],
        recurrence=recurrence and {**recurrence, "at": time},
    )


# -- Tasks: what people and agents do with series --------------------------------------------------


def live_occurrences(session_state: SessionState) -> dict[str, InboundMessage]:
    """Return the heads of the series that are not over, by series, oldest first."""
    heads = {}
    for series, id in session_state.inbound.series.items():
        head = session_state.inbound.messages.get(id)
        if head is None:
            continue
        recurs = bool(_recurrence(head).get("cron")) and not _is_cancelled(session_state, head)
        if recurs or session_state.status(id) not in FINAL:
            heads[series] = head
    return heads


def run_next_task(session_state: SessionState, now: str, time_zone: str = "") -> list[Event]:
    """Carry out the worker's oldest undelivered message of kind `task`.

    Args:
        session_state: The session.
        now: The time.
        time_zone: The time zone of a cron expression without one.

    Returns:
        The events of the task, and that it is done or why it failed. Nothing: no task is left.
    """
    message = _next_task(session_state)
    if message is None:
        return []
    try:
        route = None
        if message.event.get("action") == "make":
            route = route_of(session_state, message)
        events = apply_task(
            session_state, message.event, message.id, now, route=route, time_zone=time_zone
        )
    except (InvalidInput, NotFound, Refused) as error:
        failure = after_attempt(session_state, message, now, error=str(error), is_final=True)
        return numbered(session_state, failure)
    series = message.event.get("series") or message.id
    return [*events, delivered_event(message=message.id, platform_id=series)]


def _next_task(session_state: SessionState) -> OutboundMessage | None:
    for message in session_state.undelivered_messages():
        if message.kind == "task":
            return message
    return None


def apply_task(
    session_state: SessionState,
    task: Mapping[str, Any],
    id: str,
    now: str,
    *,
    route: Route | None = None,
    time_zone: str = "",
) -> list[Event]:
    """Return the events that make or change a series.

    Args:
        session_state: The session.
        task: The fields `task` of `events.OutboundFields`. An `update` changes the fields that it
            has. With a `processAfter` that is not in the future, the task runs at once.
        id: A new id, for a new series without one.
        now: The time.
        route: Where the answers of a new series go. None: to the session's default route.
        time_zone: The time zone of a cron expression without one.

    Raises:
        InvalidInput: The cron expression, the time zone or a time cannot be read. Or a new series
            has no time, or the id of another one.
        NotFound: The series does not exist, or is over.
    """
    series = str(task.get("series") or id)
    action = task.get("action")
    live_heads = live_occurrences(session_state)
    head = live_heads.get(series)
    if action == "make":
        first_id = reply_id(session_state.session, id, "next")
        if head is not None and head.id != first_id:  # It is not this task, tried before.
            raise InvalidInput(f"there is already a series {series[:80]!r}")
        series_route = route or session_state.inbound.route
        fields = {"series": series, "route": series_route and series_route.as_json()}
        occurrence = _first_occurrence(session_state, task, id, now, fields, time_zone)
        return numbered(session_state, [occurrence])
    if head is None:
        names = ", ".join(live_heads) or "none"
        raise NotFound(f"there is no series {series[:80]!r}; there are: {names}", id=series)
    if action == "cancel":
        events = [cancelled_event(messages=[head.id])]
    elif action == "pause":
        events = [paused_event(series=series)]
    elif action == "resume":
        events = _resume_series(session_state, head, now)
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
    fields: Mapping[str, Any],
    time_zone: str,
) -> Event:
    """Return the event of the first occurrence of a series. `fields` has its series and route."""
    default_recurrence = {"timeZone": time_zone} if time_zone else {}
    recurrence = _merge_recurrence(default_recurrence, task)
    time = task.get("processAfter") or (recurrence and next_at(recurrence, now))
    if not time:
        raise InvalidInput("a task needs a time: cron, or processAfter")
    event = {
        **fields,
        "content": task.get("prompt") or task.get("content") or "",
        "hops": task.get("hops", 0),
        "processAfter": time,
        "recurrence": recurrence,
    }
    return _occurrence(session_state, id, utc("processAfter", time), event)


def _resume_series(session_state: SessionState, head: InboundMessage, now: str) -> list[Event]:
    """Return the events that resume a series. A pending head that the pause held is replaced by the
    next occurrence.
    """
    events = [resumed_event(series=head.series)]
    recurrence = _recurrence(head)
    was_held = _time_of(head) <= now and session_state.status(head.id) == "pending"
    if recurrence and was_held:
        events += _replace_occurrence(session_state, head, next_at(recurrence, now))
    return events


def _update_series(
    session_state: SessionState, head: InboundMessage, task: Mapping[str, Any], now: str
) -> list[Event]:
    """Return the events that merge the fields of a task into a series.

    A pending head is replaced. If the head runs or is over, only the next occurrence changes.
    """
    recurrence = _merge_recurrence(_recurrence(head), task)
    prompt = task.get("prompt")
    if session_state.status(head.id) != "pending":
        changes = {name: (recurrence or {}).get(name) for name in RECURRENCE_FIELDS}
        return [changed_event(series=head.series, prompt=prompt, **changes)]
    time = _time_of(head)
    due = head.due
    if recurrence and (task.get("cron") or task.get("timeZone")):
        time = next_at(recurrence, now)
        due = time
    if task.get("processAfter"):
        due = utc("processAfter", task["processAfter"])
        if max(due, now) < time:
            # It runs before its scheduled time. With a time just before that, the scheduled time is
            # still to come.
            time = timestamps.from_ms(timestamps.ms_of(time) - 1)
        elif due > now:
            time = max(time, due)
    return _replace_occurrence(
        session_state,
        head,
        time,
        processAfter=due,
        content=prompt or head.event["content"],
        recurrence=recurrence,
    )


def _merge_recurrence(
    recurrence: Mapping[str, Any], task: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return a recurrence with the fields of a task. None: the series does not recur.

    Raises InvalidInput if it cannot be read.
    """
    merged = {**recurrence, **{name: task[name] for name in RECURRENCE_FIELDS if task.get(name)}}
    if not merged.get("cron"):
        return None
    if merged.get("catchUp", "latest") not in get_args(CatchUp):
        words = ", ".join(get_args(CatchUp))
        raise InvalidInput(f"catchUp must be one of {words}, is {merged['catchUp']!r}")
    next_at(merged, timestamps.from_ms(0))
    return merged
