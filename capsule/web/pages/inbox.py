"""The inbox of the agent that the visitor writes as: what waits for its word, and the buttons that
give it.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from capsule.web.view import View, forms, get

#: How many mentions are shown, and how many of those that are done; and for how many agents the
#: owner sees counts.
_MENTIONS: Final = 50
_DONE: Final = 10
_AGENTS: Final = 100


def _inbox(view: View) -> Response:
    if view.asked("part") == "count":
        return view.page("base.html")
    shown: dict[str, Any] = {
        "questions": () if view.visitor.agent is not None else view.store.sessions.questions()
    }
    if view.me is None:
        agents = view.store.agents.list()[:_AGENTS]
        shown["waiting"] = [
            (each, view.store.messages.inbox(agent=each.id).unread) for each in agents
        ]
    else:
        messages = view.acting.messages
        shown |= {"inbox": view.inbox, "requests": view.acting.agents.requests()}
        shown["mentions"] = messages.mentions(limit=_MENTIONS)
        shown["done"] = messages.mentions(state="done", limit=_DONE)
    return view.page("inbox.html", **shown)


ROUTES = [
    get("/inbox", _inbox),
    forms(
        "/inbox",
        {
            "read": lambda view: view.acting.messages.ack(
                conversation=view.sent("id"), message=view.sent("message") or None
            ),
            "done": lambda view: view.acting.messages.done(view.sent("id")),
            "reopen": lambda view: view.acting.messages.reopen(view.sent("id")),
            "allow": lambda view: view.acting.agents.allow(other=view.sent("id")),
            "block": lambda view: view.acting.agents.block(other=view.sent("id")),
            "answer": lambda view: view.acting.messages.send(
                view.sent("value"),
                conversation=view.sent("conversation"),
                reply_to=view.sent("message"),
                idempotency_key=f"answer-{view.sent('id')}",
            ),
            "withdraw": lambda view: view.store.sessions.cancel(view.sent("id")),
        },
    ),
]
