"""The messages of one conversation in pages, each within a budget of tokens.

What must stay true: a page near the end costs reading that end, not the conversation; a page is never empty while
there are messages in its direction, so that following the cursors comes to an end; and what doesn't fit is said.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule.choosing import find_message
from capsule.errors import InvalidInput, NotFound
from capsule.mcp_server.budget import tokens, within
from capsule.mcp_server.fence import visible, word
from capsule.mcp_server.results import Message, Page

if TYPE_CHECKING:
    from capsule.store import Store

__all__ = ["Asked", "about_message", "page"]

_OVERHEAD = 400  # The lines around the messages, the fence's note, the cursors.
_MARKS = 40
_TAKES = 64
_SHOWN = {"role", "content", "timestamp", "id", "parent", "from", "editedAt"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What to read.

    Attributes:
        last: How many messages at most.
        message: One to read around, as a person names it; empty: the newest.
        cursor: Where to go on, from an earlier page; empty: nowhere.
        offset: Where to begin in `message`, in characters; 0: at its beginning, with those around it.
        max_tokens: The most the answer may cost.
    """

    last: int
    message: str
    cursor: str
    offset: int
    max_tokens: int


class _Tail:
    """The end of a conversation, as much of it as was asked for; positions count from the beginning."""

    def __init__(self, store: Store, id: str, n: int) -> None:
        self._store = store
        self._id = id
        self.first, self.entries = store.tail_entries(id, n)

    @property
    def total(self) -> int:
        return self.first + len(self.entries)

    def reach(self, at: int) -> None:
        """Have the messages from position `at` on."""
        while self.first > max(at, 0):
            self.first, self.entries = self._store.tail_entries(self._id, self.total - max(at, 0) + _TAKES)

    def find(self, wanted: str, near: int | None = None) -> int:
        """The position of a message: by its full id from the end on, or however a person names it."""
        if near is not None:
            self.reach(near)
        n = _TAKES
        while not wanted.startswith("@"):
            place = next((i for i, entry in enumerate(self.entries) if entry.get("id") == wanted), None)
            if place is not None:
                return self.first + place
            if self.first == 0:
                break
            n *= 16
            self.reach(self.total - n)
        self.reach(0)
        return find_message(self.entries, wanted, self._id)

    def entry(self, at: int) -> dict[str, Any]:
        return self.entries[at - self.first]


def page(store: Store, id: str, title: str, asked: Asked) -> Page:
    """A page of the conversation `id`. Raises NotFound, InvalidInput."""
    tail = _Tail(store, id, asked.last + 1)
    if asked.offset:
        if not asked.message:
            raise InvalidInput("offset needs message: the id of the message to go on in")
        at = tail.find(asked.message)
        return _page(tail, id, title, at, at, asked, only=True)
    if asked.cursor:
        way, at = _followed(tail, asked.cursor)
        return _page(tail, id, title, at, at + 1, asked, way=way)
    if asked.message:
        at = tail.find(asked.message)
        tail.reach(at - asked.last)
        return _page(tail, id, title, at, at, asked, only=False)
    return _page(tail, id, title, tail.total, tail.total, asked, way="older")


def _followed(tail: _Tail, cursor: str) -> tuple[str, int]:
    """The direction and the position that a cursor stands for; the message it names may have moved since."""
    way, _, rest = cursor.partition(":")
    near, _, wanted = rest.partition(":")
    if way not in ("older", "newer") or not near.isdecimal() or not wanted:
        raise InvalidInput("cursor: is none; give `older` or `newer` of an earlier answer, of the same conversation")
    try:
        return way, tail.find(wanted, int(near[:12]))
    except (NotFound, InvalidInput):
        raise InvalidInput("cursor: its message is gone; read the newest again, without a cursor") from None


def _page(
    tail: _Tail, id: str, title: str, before: int, after: int, asked: Asked, *, way: str = "", only: bool | None = None
) -> Page:
    """Fill a page, from a position on.

    Args:
        before: Older messages are those before this position.
        after: Newer ones are from this position on.
        way: "older" or "newer"; empty: both, beginning with the message at `after`.
        only: Whether no other message than that one is wanted.
    """
    left = asked.max_tokens - _OVERHEAD - tokens(title) * 2
    found: dict[int, Message] = {}
    low, high = before, after
    tail.reach(before - asked.last)
    order = [way] if way else ["newer"] if only else ["newer", "older"]
    turn = 0
    while order and len(found) < (1 if only else asked.last):
        direction = order[turn % len(order)]
        at = high if direction == "newer" else low - 1
        if not 0 <= at < tail.total:
            order.remove(direction)
            continue
        offset = asked.offset if only else 0
        message, text = _shown(tail.entry(at), at, offset)
        if not _fits(message, text, left):
            if found:
                order.remove(direction)
                continue
            _cut(message, text, left, offset)
        found[at] = message
        left -= _cost(message)
        low, high = (low, at + 1) if direction == "newer" else (at, high)
        turn += 1
    places = sorted(found)
    older = newer = None
    if places:
        if places[0] > 0:
            older = f"older:{places[0]}:{found[places[0]].id}"
        if places[-1] + 1 < tail.total:
            newer = f"newer:{places[-1]}:{found[places[-1]].id}"
    messages = [found[at] for at in places]
    return Page(id=id, title=title, total=tail.total, messages=messages, older=older, newer=newer)


def _shown(entry: dict[str, Any], at: int, offset: int) -> tuple[Message, str]:
    """A message yet without its text, and the text as it is stored, from `offset` on."""
    content = str(entry["content"])
    if offset >= max(len(content), 1):
        raise InvalidInput(f"offset: the message has {len(content)} characters")
    message = Message(
        id=visible(str(entry.get("id"))),
        at=at,
        role=visible(str(entry["role"])),
        text="",
        time=entry.get("timestamp"),
        sender=visible(entry["from"]) if entry.get("from") else None,
        edited="editedAt" in entry,
        also=[visible(name) for name in entry if name not in _SHOWN and entry[name]][:10],
    )
    return message, content[offset:]


def _cost(message: Message) -> int:
    """What a message costs in the answer, which has it as text and as data."""
    data = json.dumps(message.model_dump(by_alias=True, exclude_defaults=True), ensure_ascii=False)
    return tokens(data) + tokens(json.dumps(message.text + about_message(message), ensure_ascii=False)) + _MARKS


def _fits(message: Message, text: str, budget: int) -> bool:
    """Give a message its text; whether it then costs at most `budget`."""
    if len(text) > budget * 4:
        return False
    message.text = visible(text)
    return _cost(message) <= budget


def _cut(message: Message, text: str, budget: int, offset: int) -> None:
    """Give a message that is too large for a page as much of its text as goes there."""
    end = _whole(text, within(text, budget // 2))
    message.rest_from = offset + end
    while not _fits(message, text[:end], budget) and end > 2:
        end = _whole(text, end * 7 // 8)
        message.rest_from = offset + end


def _whole(text: str, end: int) -> int:
    """Where to cut, near `end` and not inside a line break; 1 at least."""
    return max(end + (text[end - 1 : end + 1] == "\r\n"), 1)


def about_message(message: Message) -> str:
    """The line before a message."""
    said = ["message", f"@{message.at}", word(message.id), word(message.role)]
    if message.sender:
        said.append(f"from {word(message.sender)}")
    if message.time:
        said.append(word(message.time))
    if message.edited:
        said.append("edited")
    if message.also:
        said.append("has " + ", ".join(map(word, message.also)))
    return " ".join(said)
