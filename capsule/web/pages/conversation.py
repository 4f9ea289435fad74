"""One conversation: its head, a window of its messages, and their files.

What must stay true: a window costs reading its messages and what stands behind them, not the whole
conversation; what reads all of it has an address of its own (`history.py`), or was asked for.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup
from starlette.responses import Response

from capsule.errors import CapsuleError, NotFound
from capsule.ids import keyed_message_id
from capsule.rules.policy import PolicyTarget, decide
from capsule.transfer.rendering.messages import (
    RenderedMessage,
    RenderOptions,
    anchor_of,
    is_talk,
    messages,
    name_style,
)
from capsule.web.view import View, get
from capsule.web.words import address

if TYPE_CHECKING:
    from capsule.store.pages import Page

#: The number of messages in a window; in one of which only prompts and answers are drawn.
_WINDOW, _TALK = 100, 200
#: The number of places that a search within the conversation lists.
_HITS: Final = 100
_OPERATORS: Final = ("AND", "OR", "NOT")


def titled(view: View, id: str) -> str:
    """The title of another conversation; its id, if the visitor can't read it."""
    with suppress(CapsuleError):
        return view.store.head(id).title or "Untitled"
    return id


def anchor(id: str | None) -> str:
    """The anchor of a message, by its id."""
    return anchor_of({"id": id})


def _conversation(view: View) -> Response:
    id, asked, find = view.at(), view.request.path_params.get("message"), view.asked("find")
    head, talk = view.store.head(id), view.asked("only") == "talk"
    window = _window(view, id, asked, _TALK if talk else _WINDOW)
    hits = []
    if find and not view.asked("part"):
        hits = view.store.search(find, ids=[id], in_tools=True, profile="exact", limit=_HITS).hits
    words = [
        word for part in find.split() if part not in _OPERATORS and (word := part.strip('"*()'))
    ]
    chosen = window.entries[window.at][1].get("id") if asked else None
    shown = (
        [] if view.asked("part") == "head" else _drawn(view, id, window, chosen, words, talk=talk)
    )
    unread = _unread(view, id)
    behind = [at for at, entry in window.entries if entry.get("id") == unread]
    return view.page(
        "conversation.html",
        head=head,
        lock=view.store.locks.state(head),
        may_lock=decide(view.me, "lock", PolicyTarget.from_head(head)).allowed,
        looks={
            member.id: dict(zip(("hue", "shape"), name_style(member.id), strict=True))
            for member in head.participants
        },
        standing=view.store.summaries.standing(id)
        if head.is_summary and not view.asked("part")
        else None,
        summed_up=view.store.document(id)["metadata"].get("summaryOf") or {}
        if head.is_summary
        else {},
        titled=partial(titled, view),
        window=window,
        shown=shown,
        at=partial(_at, view, id),
        tail=_tail(window),
        chosen=chosen,
        unread=unread,
        left_off=next(
            (
                each.anchor
                for each in shown
                if behind and int(each.attributes["data-at"]) >= behind[0]
            ),
            None,
        ),
        anchor=anchor,
        hits=sorted((hit for hit in hits if hit.message), key=lambda hit: hit.at or 0),
        words=words,
        talk=talk,
        find=find,
    )


def _window(view: View, id: str, message: str | None, limit: int) -> Page:
    """The messages that the address asks for. It may name one by the idempotency key that it was
    sent with.
    """
    cursor = view.asked("cursor") or None
    try:
        return view.store.page(id, limit, around=message, cursor=cursor)
    except NotFound:
        if message is not None:
            with suppress(NotFound):
                return view.store.page(id, limit, around=keyed_message_id(id, message))
        raise


def _at(view: View, id: str, cursor: str | None) -> str:
    """The address of the window at a cursor; empty: there is none."""
    return f"{address('c', id)}?{view.following(cursor)}" if cursor else ""


def _tail(window: Page) -> str | None:
    """Where to look for newer messages: at the last one that is no result, as results are drawn
    under their calls.
    """
    roles = [entry.get("role") for _, entry in window.entries]
    last = next((at for at in reversed(range(len(roles))) if roles[at] != "tool"), 0)
    return window.newer(last) if roles else None


def _unread(view: View, id: str) -> str | None:
    """The first message that the agent has not read for whom the visitor writes."""
    with suppress(CapsuleError):
        return view.acting.messages.first_unread(id) if view.me else None
    return None


def _drawn(
    view: View, id: str, window: Page, chosen: str | None, words: list[str], *, talk: bool
) -> list[RenderedMessage]:
    entries = [entry for _, entry in window.entries]
    places = {entry.get("id"): place for place, entry in window.entries}
    prompts = [
        entry.get("id") for entry in entries if entry.get("role") == "user" and is_talk(entry)
    ]
    beyond = {"previous": _at(view, id, window.older()), "next": _at(view, id, window.newer())}
    nth = {prompt: at for at, prompt in enumerate(prompts)}
    # One macro, called for each message: to render a template for each took a quarter of the page's
    # time.
    about = {"view": view, "id": id, "window": window}
    line: Any = view.site.templates.get_template("conversation_nav.html").make_module(about)

    def attributes(entry: Any) -> dict[str, str]:
        message = entry.get("id")
        said = {"data-at": str(places[message])} | ({"data-prompt": ""} if message in nth else {})
        said |= {} if anchor(message).startswith("m-") else {"data-id": str(message)}
        return said | (
            {"data-chosen": "", "tabindex": "-1", "autofocus": ""}
            if chosen and message == chosen
            else {}
        )

    def nav(entry: Any) -> Markup:
        message = entry.get("id")
        at = nth.get(message, -1)
        near = (
            {"previous": prompts[at - 1 : at], "next": prompts[at + 1 : at + 2]} if at >= 0 else {}
        )
        steps = {way: f"#{anchor(ids[0])}" if ids else beyond[way] for way, ids in near.items()}
        return Markup(line.nav(entry, places[message], steps))

    drawing = RenderOptions(
        file_url=lambda digest: address("c", id, "files", digest),
        message_url=lambda other: (
            f"#{anchor(other)}" if other in places else address("c", id, "m", other)
        ),
        nav=nav,
        attributes=attributes,
        find=words,
        talk=talk,
    )
    return messages(entries, drawing)


ROUTES = [
    get("/c/{id}", _conversation),
    get("/c/{id}/m/{message:path}", _conversation),
]
