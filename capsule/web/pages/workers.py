"""The pages of the workers' sessions, for the owner: their queues, their messages, and the buttons
that pause, resume, retry and cancel.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from capsule.errors import CapsuleError
from capsule.web.view import View, forms, get

#: The number of sessions in a page, and of events of one.
_PAGE: Final = 100
_EVENTS: Final = 200
#: The fields of an event that the page shows in columns of their own.
_COLUMN_FIELDS: Final = frozenset({"id", "timestamp", "event", "role", "content", "seq"})


def _workers(view: View) -> Response:
    sessions = view.store.sessions
    rows = sessions.list(view.parameter("agent") or None)
    rows_with_details = [(row, _details(view, row.id)) for row in rows[:_PAGE]]
    return view.page(
        "workers.html",
        rows=rows_with_details,
        more=len(rows) - len(rows_with_details),
        agents=sessions.registry.read().agents,
    )


def _details(view: View, session: str) -> dict[str, Any]:
    """Return the state of a session, or its damage, so that a damaged one does not hide the others."""
    try:
        return view.store.sessions.get(session)
    except CapsuleError as error:
        return {"damaged": error.message}


def _session(view: View) -> Response:
    sessions = view.store.sessions
    session = sessions.get(view.path_part())
    history = sessions.history(session["id"], _EVENTS)
    messages = [
        event for event in reversed(history) if "status" in event and event.get("kind") != "system"
    ]
    chosen = view.parameter("message")
    if not chosen and messages:
        chosen = messages[0]["id"]
    events = []
    for event in history:
        other_fields = {key: event[key] for key in event.keys() - _COLUMN_FIELDS}
        events.append((event, other_fields))
    return view.page(
        "session.html",
        about=session,
        messages=messages,
        answers={event["inReplyTo"]: event for event in history if event.get("inReplyTo")},
        chosen=chosen,
        steps=sessions.why(chosen) if chosen else (),
        events=events,
        questions=[
            question for question in sessions.questions() if question.session == session["id"]
        ],
    )


ROUTES = [
    get("/workers", _workers),
    get("/workers/{session}", _session),
    forms(
        "/workers/{session}",
        {
            "pause": lambda view: view.store.sessions.pause(
                view.path_part(), series=view.field("what") or None
            ),
            "resume": lambda view: view.store.sessions.resume(
                view.path_part(), series=view.field("what") or None
            ),
            "retry": lambda view: view.store.sessions.retry(view.field("what")),
            "cancel": lambda view: view.store.sessions.cancel(view.field("what")),
        },
    ),
]
