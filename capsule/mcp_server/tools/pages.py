"""The messages of one branch of a conversation in pages, each within a budget of tokens.

What must stay true: where nobody branched off, a page near the end costs reading that end, not the conversation; a
page is never empty while there are messages in its direction, so that following the cursors comes to an end; and what
doesn't fit is said.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput, NotFound
from capsule.format.references import find_message
from capsule.mcp_server.tools.budget import tokens, within
from capsule.mcp_server.tools.fence import visible, word
from capsule.mcp_server.tools.results import Message, Page, servers_of

if TYPE_CHECKING:
    from capsule.format.head import Head
    from capsule.store.store import Store

Entry = dict[str, Any]

_OVERHEAD = 400  # The lines around the messages, the fence's note, the cursors.
_MARKS = 10
_TAKES = 64
_UTC = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9.]{2,}Z")
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
        forms: In which forms it is sent; see `forms`.
    """

    last: int
    message: str
    cursor: str
    offset: int
    max_tokens: int
    forms: frozenset[str]


class End:
    """The end of a file's messages, as much of it as was asked for; places count from the beginning."""

    def __init__(self, store: Store, id: str, n: int) -> None:
        self._store = store
        self._id = id
        self.first, self.entries = store.tail_entries(id, n)

    @property
    def total(self) -> int:
        return self.first + len(self.entries)

    def reach(self, at: int) -> None:
        """Have the messages from place `at` on."""
        while self.first > max(at, 0):
            self.first, self.entries = self._store.tail_entries(self._id, self.total - max(at, 0) + _TAKES)

    def find(self, wanted: str, near: int | None = None) -> int:
        """The place of a message: by its full id from the end on, or however a person names it."""
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


class Branch:
    """One branch, or the end of it; positions count along it, from its first message on.

    Attributes:
        total: How many messages it has.
        begin: The position from which on they were read.
        start: That of the message at the place it was made for; `total` when there was none.
        of: How many the conversation has.
        is_active: Whether it is the active branch.
    """

    def __init__(self, store: Store, id: str, tail: End, at: int | None, last: int) -> None:
        """The branch through the message at place `at`, with `last` messages before it; None: before the end.

        A message on the active branch stands for that; another one for the branch that a switch to it leads to.
        """
        tail.reach((tail.total if at is None else at) - last)
        self._first, self._entries, self._forks = tail.first, tail.entries, dict[int, tuple[int, int]]()
        self._path: list[int] | None = None
        self.is_active, self.of = True, tail.total
        if not store.is_line(id, tail.entries):
            from capsule.format.tree.tree import Tree

            document = store.document(id)
            wanted = None if at is None else str(tail.entries[at - tail.first]["id"])
            self._first, self._entries = 0, document["history"]
            tree = Tree(self._entries)
            self._path = tree.path(document["metadata"].get("currentNode"))
            if wanted is not None:
                at = tree.place(wanted)
                if at not in self._path:
                    self._path, self.is_active = tree.path_to(tree.leaf_at(at)), False
            self._forks, self.of = tree.forks, len(tree)
        self.total = self.of if self._path is None else len(self._path)
        self.begin = self._first if self._path is None else 0
        self.start = self.total if at is None else at if self._path is None else self._path.index(at)

    def place(self, position: int) -> int:
        """Where a message stands in the file."""
        return position if self._path is None else self._path[position]

    def entry(self, position: int) -> Entry:
        return self._entries[self.place(position) - self._first]

    def sibling(self, position: int) -> str | None:
        """Which it is of those that answer the same message, as `2/3`."""
        number = self._forks.get(self.place(position))
        return f"{number[0]}/{number[1]}" if number else None


def page(store: Store, head: Head, asked: Asked) -> Page:
    """A page of a conversation, and where it begins what is to be known of it as a whole.

    Raises NotFound, InvalidInput. Costs reading a summary and its source, when it is one.
    """
    about: dict[str, Any] = {}
    if not asked.cursor and not asked.offset:
        about = {"mcp_servers": servers_of(head), "source": _source(store, head)}
    if any(about.values()):
        asked = replace(asked, max_tokens=asked.max_tokens - _sent(about, "", asked.forms))
    return _asked(store, head.id, visible(head.title[:200]), asked).model_copy(update=about)


def _source(store: Store, head: Head) -> str | None:
    """What became of the source of a summary; None when it is none."""
    standing = store.standing(head.id) if head.is_summary else None
    of = f" of {word(head.source_conversation_id)}" if head.source_conversation_id else ""
    return f"a summary{of}; {standing}" if standing else None


def _asked(store: Store, id: str, title: str, asked: Asked) -> Page:
    tail = End(store, id, asked.last + 1)
    if asked.offset:
        if not asked.message:
            raise InvalidInput("offset needs message: the id of the message to go on in")
        return _page(Branch(store, id, tail, tail.find(asked.message), 0), id, title, asked, only=True)
    if asked.cursor:
        way, at = _followed(tail, asked.cursor)
        return _page(Branch(store, id, tail, at, asked.last), id, title, asked, way=way)
    if asked.message:
        return _page(Branch(store, id, tail, tail.find(asked.message), asked.last), id, title, asked, only=False)
    return _page(Branch(store, id, tail, None, asked.last), id, title, asked, way="older")


def _followed(tail: End, cursor: str) -> tuple[str, int]:
    """The direction and the place that a cursor stands for; the message it names may have moved since."""
    way, _, rest = cursor.partition(":")
    near, _, wanted = rest.partition(":")
    if way not in ("older", "newer") or not near.isdecimal() or not wanted:
        raise InvalidInput("cursor: is none; give `older` or `newer` of an earlier answer, of the same conversation")
    try:
        return way, tail.find(wanted, int(near[:12]))
    except (NotFound, InvalidInput):
        raise InvalidInput("cursor: its message is gone; read the newest again, without a cursor") from None


def _page(branch: Branch, id: str, title: str, asked: Asked, *, way: str = "", only: bool | None = None) -> Page:
    """Fill a page, from where the branch starts to be read.

    Args:
        way: "older" or "newer" than the message there; empty: both, beginning with it.
        only: Whether no other message than that one is wanted.
    """
    left = asked.max_tokens - _OVERHEAD - len(asked.forms) * tokens(title)
    found: dict[int, Message] = {}
    low, high = branch.start, branch.start + bool(way)
    order = [way] if way else ["newer"] if only else ["newer", "older"]
    turn = 0
    while order and len(found) < (1 if only else asked.last):
        direction = order[turn % len(order)]
        at = high if direction == "newer" else low - 1
        if not 0 <= at < branch.total:
            order.remove(direction)
            continue
        offset = asked.offset if only else 0
        message, text = _shown(branch.entry(at), branch.place(at), offset)
        message.sibling = branch.sibling(at)
        if not _fits(message, text, left, asked.forms):
            if found:
                order.remove(direction)
                continue
            _cut(message, text, left, offset, asked.forms)
        found[at] = message
        left -= _cost(message, asked.forms)
        low, high = (low, at + 1) if direction == "newer" else (at, high)
        turn += 1
    places = sorted(found)
    older = newer = None
    if places:
        if places[0] > 0:
            older = _cursor("older", found[places[0]])
        if places[-1] + 1 < branch.total:
            newer = _cursor("newer", found[places[-1]])
    return Page(
        id=id,
        title=title,
        total=branch.of,
        on_branch=branch.total if branch.total < branch.of else None,
        inactive=not branch.is_active,
        messages=[found[at] for at in places],
        older=older,
        newer=newer,
    )


def _cursor(way: str, message: Message) -> str:
    return f"{way}:{message.at}:{message.id}"


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


def _cost(message: Message, forms: frozenset[str]) -> int:
    """What a message costs in an answer."""
    data = message.model_dump(by_alias=True, exclude_defaults=True)
    return _MARKS + _sent(data, message.text + about_message(message), forms)


def _sent(data: Any, text: str, forms: frozenset[str]) -> int:
    """What an answer of this costs in these forms; without a text, the data is said in words, at about its length."""
    costs = {"data": data, "text": text or data}
    return sum(tokens(json.dumps(costs[form], ensure_ascii=False)) for form in forms)


def _fits(message: Message, text: str, budget: int, forms: frozenset[str]) -> bool:
    """Give a message its text; whether it then costs at most `budget`."""
    if len(text) > budget * 4:
        return False
    message.text = visible(text)
    return _cost(message, forms) <= budget


def _cut(message: Message, text: str, budget: int, offset: int, forms: frozenset[str]) -> None:
    """Give a message that is too large for a page as much of its text as goes there."""
    end = _whole(text, within(text, budget // len(forms)))
    message.rest_from = offset + end
    while not _fits(message, text[:end], budget, forms) and end > 2:
        end = _whole(text, end * 7 // 8)
        message.rest_from = offset + end


def _whole(text: str, end: int) -> int:
    """Where to cut, near `end` and not inside a line break; 1 at least."""
    return max(end + (text[end - 1 : end + 1] == "\r\n"), 1)


def about_message(message: Message, before: str = "") -> str:
    """What stands in the mark before a message.

    Args:
        message: The message.
        before: The time of the one before it: the day is only said where it is another one.
    """
    said = [f"@{message.at}", word(message.role)]
    if message.sibling:
        said.append(message.sibling)
    if message.sender:
        said.append(f"from {word(message.sender)}")
    if message.time:
        said.append(_minute(message.time, before))
    if message.edited:
        said.append("edited")
    if message.also:
        said.append("has " + ", ".join(map(word, message.also)))
    if message.rest_from is not None:
        said.append(f"cut; for the rest: message: @{message.at}, offset: {message.rest_from}")
    return " ".join(said)


def _minute(time: str, before: str) -> str:
    """A time to the minute, in UTC."""
    if _UTC.fullmatch(time) is None:
        return word(time)
    day, minute = time[:10], time[11:16]
    return minute if before[:10] == day else f"{day} {minute}"
