"""The sessions of workers: what waits, the way of each message, and a person's word about them. For the owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import Route

from capsule.errors import CapsuleError, InvalidInput
from capsule.web.view import View, action, page
from capsule.web.words import address

if TYPE_CHECKING:
    from starlette.datastructures import FormData

#: The number of sessions in a page, and of events of one.
_PAGE: Final = 100
_EVENTS: Final = 200
#: What is shown elsewhere of an event.
_SHOWN: Final = frozenset({"id", "timestamp", "event", "role", "content", "seq"})


def _workers(view: View) -> Response:
    sessions = view.store.sessions
    rows = sessions.list(view.asked("agent") or None)
    shown = [(row, _looked(view, row.id)) for row in rows[:_PAGE]]
    return view.page("workers.html", rows=shown, more=len(rows) - len(shown), agents=sessions.registry.read().agents)


def _looked(view: View, session: str) -> dict[str, Any]:
    """What the files of a session say; a damaged one must not hide the others."""
    try:
        return view.store.sessions.get(session)
    except CapsuleError as error:
        return {"damaged": error.message}


def _session(view: View) -> Response:
    sessions = view.store.sessions
    about = sessions.get(view.request.path_params["session"])
    history = sessions.history(about["id"], _EVENTS)
    messages = [event for event in reversed(history) if "status" in event and event.get("kind") != "system"]
    chosen = view.asked("message") or (messages[0]["id"] if messages else "")
    state = sessions.registry.read()
    return view.page(
        "session.html",
        about=about,
        messages=messages,
        answers={event["inReplyTo"]: event for event in history if event.get("inReplyTo")},
        chosen=chosen,
        steps=sessions.why(chosen) if chosen else (),
        events=[(event, {key: event[key] for key in event.keys() - _SHOWN}) for event in history],
        questions=[each for each in state.questions.values() if (each.session, each.state) == (about["id"], "open")],
    )


def _change(view: View, form: FormData) -> Response:
    """Pause or resume a session or a series of it; retry a message; cancel a message, a series, a question or all."""
    sessions, session = view.store.sessions, view.request.path_params["session"]
    do, what = str(form.get("do")), str(form.get("what") or "")
    if do in ("pause", "resume"):
        (sessions.pause if do == "pause" else sessions.resume)(session, series=what or None)
    elif do in ("retry", "cancel"):
        (sessions.retry if do == "retry" else sessions.cancel)(what)
    else:
        raise InvalidInput(f"{do[:40]!r} can't be done here; it is one of pause, resume, retry, cancel")
    return view.done(address("workers", session, message=what if do == "retry" else ""), id=session)


ROUTES = [
    Route("/workers", page(_workers)),
    Route("/workers/{session}", page(_session)),
    Route("/workers/{session}", action(_change), methods=["POST"]),
]
