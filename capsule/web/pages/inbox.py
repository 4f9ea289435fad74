"""The inbox of the agent that the visitor writes as: questions, requests, mentions and unread messages.

The owner without a chosen agent sees how many messages each agent has not read.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.responses import Response

from capsule.web.view import View, forms, get

#: The greatest numbers of open mentions, of mentions that are done, and of agents with their counts.
_MENTIONS: Final = 50
_DONE_MENTIONS: Final = 10
_AGENTS: Final = 100


def _inbox(view: View) -> Response:
    if view.parameter("part") == "count":
        return view.page("base.html")
    values: dict[str, Any] = {"questions": ()}
    if view.visitor.agent is None:
        values["questions"] = view.store.sessions.questions()
    if view.acting_agent is None:
        agents = view.store.agents.list()[:_AGENTS]
        values["waiting"] = [
            (agent, view.store.messages.inbox(agent=agent.id).unread) for agent in agents
        ]
    else:
        messages = view.acting_store.messages
        values["inbox"] = view.inbox
        values["requests"] = view.acting_store.agents.requests()
        values["mentions"] = messages.mentions(limit=_MENTIONS)
        values["done"] = messages.mentions(state="done", limit=_DONE_MENTIONS)
    return view.page("inbox.html", **values)


ROUTES = [
    get("/inbox", _inbox),
    forms(
        "/inbox",
        {
            "read": lambda view: view.acting_store.messages.ack(
                conversation=view.field("id"), message=view.field("message") or None
            ),
            "done": lambda view: view.acting_store.messages.done(view.field("id")),
            "reopen": lambda view: view.acting_store.messages.reopen(view.field("id")),
            "allow": lambda view: view.acting_store.agents.allow(other=view.field("id")),
            "block": lambda view: view.acting_store.agents.block(other=view.field("id")),
            "answer": lambda view: view.acting_store.messages.send(
                view.field("value"),
                conversation=view.field("conversation"),
                reply_to=view.field("message"),
                idempotency_key=f"answer-{view.field('id')}",
            ),
            "withdraw": lambda view: view.store.sessions.cancel(view.field("id")),
        },
    ),
]
