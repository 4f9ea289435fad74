"""The page of one conversation: its head, and a window of its messages.

The address names a message, or a cursor of a window, or neither for the newest messages. Scripts
load other windows and single parts of the page by the parameter `part`.

What must stay true: a window costs reading its messages and those after them, but not the whole
conversation. Pages that read all of it have addresses of their own (`history.py`). A search within
the conversation reads it on request.
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

#: The number of messages in a window, and in one that shows only prompts and answers.
_WINDOW: Final = 100
_TALK_WINDOW: Final = 200
#: The number of matches that a search within the conversation lists.
_HITS: Final = 100
_OPERATORS: Final = ("AND", "OR", "NOT")


def titled(view: View, id: str) -> str:
    """Return the title of another conversation, or its id if the visitor can't read it."""
    with suppress(CapsuleError):
        return view.store.head(id).title or "Untitled"
    return id


def anchor(id: str | None) -> str:
    """Return the anchor of the message with an id."""
    return anchor_of({"id": id})


def _conversation(view: View) -> Response:
    """Show the head of a conversation and a window of its messages, with the matches of a search."""
    id = view.path_part()
    requested_message = view.request.path_params.get("message")
    find = view.parameter("find")
    part = view.parameter("part")
    head = view.store.head(id)
    talk = view.parameter("only") == "talk"
    window = _window(view, id, requested_message, _TALK_WINDOW if talk else _WINDOW)
    hits = []
    if find and not part:
        hits = view.store.search(find, ids=[id], in_tools=True, profile="exact", limit=_HITS).hits
    words = _words_of(find)
    chosen = None
    if requested_message:
        _, chosen_entry = window.entries[window.at]
        chosen = chosen_entry.get("id")
    rendered: list[RenderedMessage] = []
    if part != "head":
        rendered = _render(view, id, window, chosen, words, talk=talk)
    unread = _first_unread(view, id)
    standing = None
    summed_up: dict[str, Any] = {}
    if head.is_summary:
        if not part:
            standing = view.store.summaries.standing(id)
        summed_up = view.store.document(id)["metadata"].get("summaryOf") or {}
    return view.page(
        "conversation.html",
        head=head,
        lock=view.store.locks.state(head),
        may_lock=decide(view.acting_agent, "lock", PolicyTarget.from_head(head)).allowed,
        looks={
            member.id: dict(zip(("hue", "shape"), name_style(member.id), strict=True))
            for member in head.participants
        },
        standing=standing,
        summed_up=summed_up,
        titled=partial(titled, view),
        window=window,
        shown=rendered,
        at=partial(_window_address, view, id),
        tail=_tail(window),
        chosen=chosen,
        unread=unread,
        left_off=_unread_anchor(window, rendered, unread),
        anchor=anchor,
        hits=sorted((hit for hit in hits if hit.message), key=lambda hit: hit.at or 0),
        words=words,
        talk=talk,
        find=find,
    )


def _words_of(find: str) -> list[str]:
    """Return the words of a query that the page marks, without operators and signs."""
    words = []
    for term in find.split():
        word = term.strip('"*()')
        if term not in _OPERATORS and word:
            words.append(word)
    return words


def _unread_anchor(window: Page, rendered: list[RenderedMessage], unread: str | None) -> str | None:
    """Return the anchor of the first message that is drawn from the first unread one on."""
    positions = [position for position, entry in window.entries if entry.get("id") == unread]
    if not positions:
        return None
    for message in rendered:
        if int(message.attributes["data-at"]) >= positions[0]:
            return message.anchor
    return None


def _window(view: View, id: str, message: str | None, limit: int) -> Page:
    """Return the messages that the address names.

    Args:
        view: The request.
        id: The conversation.
        message: The id of a message in the window, or the idempotency key that it was sent with.
        limit: The number of messages.

    Raises NotFound.
    """
    cursor = view.parameter("cursor") or None
    try:
        return view.store.page(id, limit, around=message, cursor=cursor)
    except NotFound:
        if message is not None:
            with suppress(NotFound):
                return view.store.page(id, limit, around=keyed_message_id(id, message))
        raise


def _window_address(view: View, id: str, cursor: str | None) -> str:
    """Return the address of the window at a cursor. Empty without a cursor."""
    if not cursor:
        return ""
    return f"{address('c', id)}?{view.next_page_query(cursor)}"


def _tail(window: Page) -> str | None:
    """Return the cursor at which newer messages are looked for.

    It is at the last message that is no result of a tool, as results are drawn below their calls.
    """
    roles = [entry.get("role") for _, entry in window.entries]
    if not roles:
        return None
    last = len(roles) - 1
    while last > 0 and roles[last] == "tool":
        last -= 1
    return window.newer(last)


def _first_unread(view: View, id: str) -> str | None:
    """Return the first message that the agent of the visitor has not read."""
    with suppress(CapsuleError):
        return view.acting_store.messages.first_unread(id) if view.acting_agent else None
    return None


def _render(
    view: View, id: str, window: Page, chosen: str | None, words: list[str], *, talk: bool
) -> list[RenderedMessage]:
    """Render the messages of a window, each with links to the prompts before and after it.

    Args:
        view: The request.
        id: The conversation.
        window: Its messages.
        chosen: The id of the message in the address.
        words: The words that are marked.
        talk: Whether only prompts and answers are rendered.
    """
    entries = [entry for _, entry in window.entries]
    positions = {entry.get("id"): position for position, entry in window.entries}
    prompts = [
        entry.get("id") for entry in entries if entry.get("role") == "user" and is_talk(entry)
    ]
    prompt_indexes = {prompt: index for index, prompt in enumerate(prompts)}
    other_windows = {
        "previous": _window_address(view, id, window.older()),
        "next": _window_address(view, id, window.newer()),
    }
    # One macro is called for each message. To render a template for each took a quarter of the time
    # of the page.
    values = {"view": view, "id": id, "window": window}
    template: Any = view.site.templates.get_template("conversation_nav.html").make_module(values)

    def attributes(entry: Any) -> dict[str, str]:
        message = entry.get("id")
        result = {"data-at": str(positions[message])}
        if message in prompt_indexes:
            result["data-prompt"] = ""
        if not anchor(message).startswith("m-"):
            result["data-id"] = str(message)
        if chosen and message == chosen:
            result |= {"data-chosen": "", "tabindex": "-1", "autofocus": ""}
        return result

    def nav(entry: Any) -> Markup:
        message = entry.get("id")
        steps = {}
        if message in prompt_indexes:
            index = prompt_indexes[message]
            neighbours = {
                "previous": prompts[index - 1 : index],
                "next": prompts[index + 1 : index + 2],
            }
            for direction, ids in neighbours.items():
                steps[direction] = f"#{anchor(ids[0])}" if ids else other_windows[direction]
        return Markup(template.nav(entry, positions[message], steps))

    def message_url(other: str) -> str:
        if other in positions:
            return f"#{anchor(other)}"
        return address("c", id, "m", other)

    options = RenderOptions(
        file_url=lambda digest: address("c", id, "files", digest),
        message_url=message_url,
        nav=nav,
        attributes=attributes,
        find=words,
        talk=talk,
    )
    return messages(entries, options)


ROUTES = [
    get("/c/{id}", _conversation),
    get("/c/{id}/m/{message:path}", _conversation),
]
