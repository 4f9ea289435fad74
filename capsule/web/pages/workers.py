"""The sessions of workers: what waits, the way of each message, and a person's word about them. For
the owner.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from capsule.errors import CapsuleError
from capsule.web.view import View, forms, get

#: The number of sessions in a page, and of events of one.
_PAGE: Final = 100
_EVENTS: Final = 200
#: What is shown elsewhere of an event.
_SHOWN: Final = frozenset({"id", "timestamp", "event", "role", "content", "seq"})


def _workers(view: View) -> Response:
    sessions = view.store.sessions
    rows = sessions.list(view.asked("agent") or None)
    shown = [(row, _looked(view, row.id)) for row in rows[:_PAGE]]
    return view.page(
        "workers.html",
        rows=shown,
        more=len(rows) - len(shown),
        agents=sessions.registry.read().agents,
    )


def _looked(view: View, session: str) -> dict[str, Any]:
    """What the files of a session say; a damaged one must not hide the others."""
    try:
        return view.store.sessions.get(session)
    except CapsuleError as error:
        return {"damaged": error.message}


def _session(view: View) -> Response:
    sessions = view.store.sessions
    about = sessions.get(view.at())
    history = sessions.history(about["id"], _EVENTS)
    messages = [
        event for event in reversed(history) if "status" in event and event.get("kind") != "system"
    ]
    chosen = view.asked("message") or (messages[0]["id"] if messages else "")
    return view.page(
        "session.html",
        about=about,
        messages=messages,
        answers={event["inReplyTo"]: event for event in history if event.get("inReplyTo")},
        chosen=chosen,
        steps=sessions.why(chosen) if chosen else (),
        events=[(event, {key: event[key] for key in event.keys() - _SHOWN}) for event in history],
        questions=[each for each in sessions.questions() if each.session == about["id"]],
    )


ROUTES = [
    get("/workers", _workers),
    get("/workers/{session}", _session),
    forms(
        "/workers/{session}",
        {
            "pause": lambda view: view.store.sessions.pause(
                view.at(), series=view.sent("what") or None
            ),
            "resume": lambda view: view.store.sessions.resume(
                view.at(), series=view.sent("what") or None
            ),
            "retry": lambda view: view.store.sessions.retry(view.sent("what")),
            "cancel": lambda view: view.store.sessions.cancel(view.sent("what")),
        },
    ),
]
