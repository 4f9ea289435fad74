"""The inbox of the agent that the visitor writes as: what waits for its word, and the buttons that give it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from starlette.responses import Response
from starlette.routing import Route

from capsule.errors import InvalidInput
from capsule.web.view import View, action, page

if TYPE_CHECKING:
    from starlette.datastructures import FormData

#: How many mentions are shown, and how many of those that are done; and for how many agents the owner sees counts.
_MENTIONS: Final = 50
_DONE: Final = 10
_AGENTS: Final = 100


def _inbox(view: View) -> Response:
    if view.asked("part") == "count":
        return view.page("base.html")
    shown: dict[str, Any] = {"questions": () if view.visitor.agent is not None else view.store.sessions.questions()}
    if view.me is None:
        agents = view.store.agents.list()[:_AGENTS]
        shown["waiting"] = [(each, view.store.messages.inbox(agent=each.id).unread) for each in agents]
    else:
        messages = view.acting.messages
        shown |= {"inbox": view.inbox, "requests": view.acting.agents.requests()}
        shown["mentions"] = messages.mentions(limit=_MENTIONS)
        shown["done"] = messages.mentions(state="done", limit=_DONE)
    return view.page("inbox.html", **shown)


def _settle(view: View, form: FormData) -> Response:
    do, id, message = (str(form.get(name) or "") for name in ("do", "id", "message"))
    messages, agents = view.acting.messages, view.acting.agents
    if do == "read":
        messages.ack(conversation=id, message=message or None)
    elif do == "done":
        messages.done(id)
    elif do == "reopen":
        messages.reopen(id)
    elif do == "allow":
        agents.allow(other=id)
    elif do == "block":
        agents.block(other=id)
    elif do == "answer":
        text, where = (str(form.get(name) or "") for name in ("value", "conversation"))
        messages.send(text, conversation=where, reply_to=message, idempotency_key=f"answer-{id}")
    elif do == "withdraw":
        view.store.sessions.cancel(id)
    else:
        raise InvalidInput(f"an inbox has nothing called {do[:40]!r}")
    return view.done("/inbox")


ROUTES = [Route("/inbox", page(_inbox)), Route("/inbox", action(_settle), methods=["POST"])]
