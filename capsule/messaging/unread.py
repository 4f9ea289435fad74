"""What an agent has not read, in all conversations that it takes part in.

The parts of the answer, in the order of this module:
- *Read cursors*: how far an agent has read a conversation, or one topic or thread of it. A cursor
  is a position with a trail of *marks*, which are digests of all message ids up to a position.
- *Mentions* in the text of a message (`@name`, `@name@project`, `@all`), and what an agent wants to
  be notified of.
- `UnreadTracker`: the conversations of an agent, with the number of unread messages in each.
- `MessageListener`: one call of `listen`, with what is unread at once and what comes while it waits.

What must stay true:
- A cursor never counts a message as read that the agent did not get. So an agent that reads one
  topic has a cursor for it, besides the cursor of the conversation.
- A merge in git may put messages before the last one that was read. They are read again rather than
  lost: the digest at the cursor no longer matches, and an earlier mark of its trail counts. All
  marks of one decision come from one state of the conversation.
- `@name` in code, in an address or in a URL is no mention. A message records the ids of the agents
  that it mentions, whoever has the name later.
- Unread are the messages after the cursor that are from another agent, which is not blocked, and
  that the agent wants to be notified of. No time counts but that of joining. A conversation that
  the agent may not read now has nothing unread.
- The text of messages comes from the files of the conversations, never from the index.
- A listener notes its position in the journal before it looks for the first time, so no message is
  lost in between. It continues from its own marks, whatever other listeners of the same agent read
  meanwhile, so each of them gets every message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.engines.read_marks import UnreadFilter, first_unread
from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.format.json import codec
from capsule.format.validation import AGENT
from capsule.messaging.directory import StoreAgents
from capsule.messaging.mail import Inbox, InboxItem, Mail, Mention
from capsule.rules import policy
from capsule.rules.consent import PolicyInputs
from capsule.store.base import KIND
from capsule.timestamps import ms_of

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.engines.read_marks import MessagePosition, Participation, ReadMark
    from capsule.messaging.mail import Mail
    from capsule.rules.consent import AgentProfile
    from capsule.store.store import CoreStore


Cursor = dict[str, Any]
#: A part of a conversation: `("topic", its name)`, or `("thread", the id of its root)`.
Part = tuple[str, str]
#: Gives for each of these places where a message stands its id, and the digest of the ids up to it.
MarksAt = Callable[[Iterable[int]], Mapping[int, tuple[str, str]]]


def make_cursor(place: int, mark: str, marks_at: MarksAt) -> Cursor | None:
    """The cursor of an agent that has read everything up to a message; None: the mark does not hold
    at this place.

    Its trail has the digests up to the message, and to those that stand 1, 2, 4, 8 and so on places
    before.

    Args:
        place: The place of the last message that was read.
        mark: The digest of the ids up to it; or its id, whatever stands in front of it now.
        marks_at: The ids and the digests of the conversation, asked once: they are of one state of
            it.
    """
    trail = [place, *(place - (1 << exponent) for exponent in range(place.bit_length()))]
    there = marks_at(trail)
    if mark not in there.get(place, ()):
        return None
    return {
        "message": there[place][0],
        "at": place,
        "trail": {str(at): there[at][1] for at in trail if at in there},
    }


def first_unread_position(marks: Collection[ReadMark], marks_at: MarksAt) -> int:
    """The place behind the furthest of these marks that holds; 0: none does. `marks_at` is as for
    `make_cursor`.
    """
    return first_unread(marks, marks_at([at for at, _ in marks])) if marks else 0


def thin_marks(marks: Iterable[ReadMark], last: int) -> tuple[ReadMark, ...]:
    """Of the marks up to a place the furthest one, and those about 1, 2, 4, 8 and so on places
    before it.
    """
    return tuple(
        {(last - at).bit_length(): (at, mark) for at, mark in sorted(marks) if at <= last}.values()
    )


def marks_in_cursor(cursor: Any) -> tuple[ReadMark, ...]:
    """The marks of a cursor: everything up to any of them that still holds was read.

    What can't be understood is left out.

    Args:
        cursor: As it stands in the agent's document, which a person may have edited; None: nothing
            was read.
    """
    if not isinstance(cursor, dict):
        return ()
    trail = cursor.get("trail")
    trail = trail if isinstance(trail, dict) else {}
    marks: list[ReadMark] = []
    for position, digest in trail.items():
        if position.isdecimal() and isinstance(digest, str):
            marks.append((int(position), digest))
    return tuple(marks)


def choose_part(topic: str | None, thread: str | None) -> Part | None:
    """The part that a caller names; None: all. Raises InvalidInput if it names both."""
    if topic is not None and thread is not None:
        raise InvalidInput("give a topic or a thread, and not both: a thread is of one topic")
    return ("topic", topic) if topic is not None else None if thread is None else ("thread", thread)


def parts_of_message(entry: Mapping[str, Any]) -> set[Part]:
    """The parts that a message is in. The root of a thread is in it."""
    named = (
        ("topic", entry.get("topic")),
        ("thread", entry.get("thread")),
        ("thread", entry.get("id")),
    )
    return {(path, value) for path, value in named if isinstance(value, str)}


def cursor_key(conversation: str, part: Part | None) -> str:
    """Under which key of the `cursors` in an agent's document the cursor of a conversation stands,
    or of a part.
    """
    return conversation if part is None else "/".join((conversation, *part))


def parse_cursor_key(key: str) -> tuple[str, Part | None]:
    """The conversation and the part that a key of `cursors` names, as `cursor_key` makes it."""
    conversation, *part = key.split("/", 2)
    return conversation, (part[0], part[1]) if len(part) == 2 else None


def part_cursors_by_conversation(cursors: Mapping[str, Any]) -> dict[str, dict[Part, Any]]:
    """The cursors of parts, by conversation."""
    parts: dict[str, dict[Part, Any]] = {}
    for key in [key for key in cursors if "/" in key]:  # Few of thousands have one.
        conversation, part = parse_cursor_key(key)
        if part is not None:
            parts.setdefault(conversation, {})[part] = cursors[key]
    return parts


#: All members of the conversation.
EVERYBODY = "@all"
#: The kinds of mentions. The first needs no word; the others follow the name, as in `@anna
#: --review`.
KINDS = ("mention", "review", "action", "fyi")
#: Nobody is mentioned behind so many characters, and no more than so many names.
_MOST, _MOST_NAMES = 20_000, 50
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+://\S*|www\.\S*")
_NAME = r"\w++(?:[.-]\w++)*+"
_MENTION = re.compile(
    rf"(?<![\w@/.+-])@({_NAME}(?:@{_NAME})?+)(?![@/])(?:\s+--(review|action|fyi)\b)?"
)


def find_mentions(text: str) -> dict[str, str]:
    """The names that a text mentions, each with its kind, in their order.

    Args:
        text: The text, as Markdown.

    Cost: none without an `@`; else some tens of microseconds, and once 60 milliseconds to load a
    parser.
    """
    kinds: dict[str, str] = {}
    if "@" not in text:
        return kinds
    from markdown_it import MarkdownIt

    for block in MarkdownIt("commonmark").parse(text[:_MOST]):
        for piece in block.children or ():
            if piece.type == "text":
                for name, kind in _MENTION.findall(_URL.sub(" ", piece.content)):
                    kinds[name] = kind or kinds.get(name, KINDS[0])
    return dict(islice(kinds.items(), _MOST_NAMES))


class NotificationPreference(NamedTuple):
    """What an agent wants to hear of in a conversation.

    Attributes:
        only_mentions: Whether nothing but mentions counts as unread, and wakes the agent.
        wakes: Whether anything wakes the agent.
        blocked: The agents of which it hears nothing: their messages count and wake nowhere.
    """

    only_mentions: bool = False
    wakes: bool = True
    blocked: tuple[str, ...] = ()

    @classmethod
    def of(cls, reading: Mapping[str, Any] | None, profile: AgentProfile) -> NotificationPreference:
        """The interest of an agent, given the item of `reading` in its document; None: there is
        none.
        """
        muted, notify = (reading or {}).get("muted") is True, (reading or {}).get("notify")
        blocked = (id for id, entry in profile.dm_entries.items() if entry == "block")
        return cls(muted or notify == "mentions", notify != "none", tuple(blocked))

    def kind(self, entry: Mapping[str, Any], agent: str) -> str:
        """The kind of the mention of an agent in a message; empty: the message doesn't
        mention it.
        """
        about = entry.get("mentions")
        valid, kinds = (
            (about.get("valid"), about.get("kinds")) if isinstance(about, dict) else (None, None)
        )
        there = valid if isinstance(valid, list) else ()
        name = agent if agent in there else EVERYBODY
        if name not in there or entry.get("from") in self.blocked:
            return ""
        kind = kinds.get(name) if isinstance(kinds, dict) else None
        return kind if kind in KINDS else KINDS[0]

    def counts(self, entry: Mapping[str, Any], agent: str) -> bool:
        """Whether a message of another agent counts as unread."""
        if entry.get("from") in self.blocked:
            return False
        return not self.only_mentions or bool(self.kind(entry, agent))


#: The types of conversations that are messages between agents.
TYPES = ("direct", "group", "channel")


@dataclass(slots=True, eq=False)
class ReadingState:
    """A conversation that an agent takes part in, or a part of it, and how far the agent has read
    there.

    Attributes:
        agent: The agent.
        mine: The conversation, as the index has it.
        behind: What is unread: from the time on when the agent joined, and behind its cursors.
        interest: What the agent wants to hear of there.
        is_read: Whether nothing is unread, as far as that was asked.
        item: What is unread; None: nothing, or it was not asked.
    """

    agent: str
    mine: Participation
    behind: UnreadFilter
    interest: NotificationPreference
    is_read: bool
    item: InboxItem | None = None


#: On what a seat depends: the conversation, the agent's cursor, those of parts, and what it wants
#: to hear of.
_CacheKey = tuple["Participation", Any, Any, Any]
#: What of all conversations counts as unread depends on: what decides what an agent may read; its
#: document, which has what it wants to hear of and how far it has read; and the version of that,
#: None if there is none that can be read.
ReadContext = tuple[PolicyInputs, Mapping[str, Any], Any]


class _AgentCache(NamedTuple):
    """The last answer about an agent, and what it was made of."""

    state: PolicyInputs
    version: Any
    mines: dict[str, Participation]
    by_basis: dict[str, tuple[_CacheKey, ReadingState | None]]
    seats: dict[str, ReadingState]


class UnreadTracker:
    """What the agents of a store have not read. It keeps each answer until something changes that
    it depends on.

    Attributes:
        store: The store, as its owner sees it.
        questions: The questions of its owner.
    """

    def __init__(self, store: CoreStore) -> None:
        self.store = store
        self._people = store.inner.object_of(StoreAgents)
        self.queries = store.queries
        self._kept: dict[str, _AgentCache] = {}

    def wishes(self, agent: str) -> ReadContext:
        """The wishes of an agent, as they are now."""
        state = self._people.directory.state(agent)
        version: Any = state.read_versions.get((AGENT.name, agent))
        return state, self._people.documents.parse_version(agent, version), version

    def seats(
        self, agent: str, part: Part | None = None, wishes: ReadContext | None = None
    ) -> dict[str, ReadingState]:
        """The conversations that an agent takes part in, the latest first, as the index has them.

        Args:
            agent: The agent.
            part: The part of them that it reads; None: everything.
            wishes: What `wishes` gave just now; None: it is asked.

        Cost: some microseconds for each conversation.
        """
        state, document, version = wishes or self.wishes(agent)
        kept = self._kept.get(agent) or _AgentCache(state, None, {}, {}, {})
        mines = self.queries.participations(agent, kept.mines, refresh=False)
        if (
            version is None
            or (state, version) != (kept.state, kept.version)
            or mines != [*kept.mines.values()]
        ):
            reading, cursors = document.get("reading") or {}, document.get("cursors") or {}
            parts, before = (
                part_cursors_by_conversation(cursors),
                kept.by_basis if kept.state == state else {},
            )
            now: dict[str, tuple[_CacheKey, ReadingState | None]] = {}
            for mine in mines:
                id, was = mine.id, before.get(mine.id)
                basis = mine, cursors.get(id), parts.get(id), reading.get(id)
                now[id] = (
                    was
                    if was is not None and was[0] == basis
                    else (basis, self._seat(agent, state, *basis))
                )
            seats = {id: seat for id, (_, seat) in now.items() if seat is not None}
            kept = self._kept[agent] = _AgentCache(
                state, version, {mine.id: mine for mine in mines}, now, seats
            )
        return (
            kept.seats
            if part is None
            else {id: _narrow_to_part(seat, part) for id, seat in kept.seats.items()}
        )

    def _seat(
        self,
        agent: str,
        state: PolicyInputs,
        mine: Participation,
        cursor: Any,
        parts: Mapping[Part, Any] | None,
        reading: Any,
    ) -> ReadingState | None:
        """The seat of an agent; None: it may not read the conversation, or it is none
        of messages.
        """
        about = (
            mine.participants,
            mine.archived,
            mine.history or "joined",
            mine.channel,
            mine.created_by or "",
        )
        object = policy.PolicyTarget(mine.id, mine.type, *about)
        is_mail = mine.type in TYPES and not (
            mine.channel and mine.channel.owner
        )  # Notes are none.
        if not is_mail or not policy.decide(agent, "read", object, state).allowed:
            return None
        interest = NotificationPreference.of(reading, state.profiles[agent])
        since = object.members_by_id[agent].joined_at if agent in object.members_by_id else ""
        behind = UnreadFilter(
            marks_in_cursor(cursor),
            (agent, *interest.blocked),
            ms_of(since),
            agent if interest.only_mentions else "",
            covered=tuple((part, marks_in_cursor(its)) for part, its in (parts or {}).items()),
        )
        return ReadingState(agent, mine, behind, interest, _is_read(mine, behind))

    def unread(
        self, seat: ReadingState, read: tuple[ReadMark, ...] | None = None
    ) -> list[MessagePosition]:
        """The unread messages of a conversation; those behind `read`, if a listener stands
        elsewhere than the agent.
        """
        behind = seat.behind if read is None else seat.behind._replace(read=read)
        unread = self.queries.unread_positions(behind, seat.mine.id, refresh=False)
        seat.is_read = seat.is_read or (not unread and behind.read == seat.behind.read)
        return unread

    def _item(self, seat: ReadingState) -> InboxItem | None:
        """What is unread; None: nothing."""
        if seat.is_read or seat.item is not None:
            return seat.item
        mine = seat.mine
        said = self.queries.summarize_unread(mine.id, seat.behind, refresh=False)
        if said.last is None:
            seat.is_read = True
            return None
        name = mine.title
        if mine.type == "direct":
            name = next(
                (member.id for member in mine.participants if member.id != seat.agent), name
            )
        at, id, sender, content, time = said.last
        last = Mail(mine.id, mine.type, id, at, sender, content, time)
        seat.item = InboxItem(
            mine.id, mine.type, name, said.total, said.senders, last, seat.interest.wakes
        )
        return seat.item

    def inbox(self, agent: str, part: Part | None = None) -> Inbox:
        """The inbox of an agent, or of the part that it reads.

        Cost: bringing the index up to date, as `seats`, and a question for each conversation that
        changed and is not read.
        """
        self.queries.refresh()
        return Inbox.of(
            item
            for seat in self.seats(agent, part).values()
            if (item := self._item(seat)) is not None
        )

    def pointer(self, agent: str) -> str:
        """How much is unread that may wake an agent, and from whom. See `Messages.pointer`."""
        return Inbox.of(item for item in self.inbox(agent).conversations if item.wakes).pointer

    def mentioned(self, agent: str) -> list[MessagePosition]:
        """Where others mention an agent, in the conversations that it takes part in, the latest
        first.
        """
        blocked = NotificationPreference.of(None, self.wishes(agent)[0].profiles[agent]).blocked
        found = self.queries.unread_positions(
            UnreadFilter(not_by=(agent, *blocked), mentioning=agent)
        )
        seats = self.seats(agent)
        return [place for place in found if place.conversation in seats]

    def mentions(
        self, agent: str, in_states: Collection[str], kind: str | None, limit: int
    ) -> list[Mention]:
        """See `Messages.mentions`."""
        concerns, wanted = (
            self._people.documents.object_in(agent, "concerns"),
            dict[str, dict[int, Any]](),
        )
        places, seats = self.mentioned(agent), self.seats(agent)

        @cache
        def unread(id: str) -> int:
            return first_unread_position(
                seats[id].behind.read, partial(self.queries.ids_at, id, refresh=False)
            )

        for place in places:
            conversation, at, id, _ = place
            if kind is None and sum(map(len, wanted.values())) == limit:
                break
            about = concerns.get(id) or {}
            read_at, done_at = about.get("readAt") or "", about.get("doneAt") or ""
            now = (
                "done" if done_at else "read" if read_at or at < unread(conversation) else "unread"
            )
            if now in in_states:
                wanted.setdefault(conversation, {})[at] = place, now, read_at, done_at
        mentions = []
        for conversation, states in wanted.items():
            ids, seat = {at: place for at, (place, *_) in states.items()}, seats[conversation]
            with suppress(NotFound, InvalidDocument, Refused):  # As for a listener.
                mail = reversed(read_mail(self.store, seat, ids))
                since = (each for each in mail if ms_of(each.timestamp) >= seat.behind.since_ms)
                mentions += [Mention(each, *states[each.at][1:]) for each in since]
        mentions = [each for each in mentions if kind in (None, each.mail.mention)]
        return sorted(mentions, key=lambda each: each.mail.timestamp, reverse=True)[:limit]


def _narrow_to_part(seat: ReadingState, part: Part) -> ReadingState:
    """A seat, as far as a part is concerned."""
    read = (*seat.behind.read, *dict(seat.behind.covered).get(part, ()))
    behind = seat.behind._replace(read=read, part=part)
    return ReadingState(
        seat.agent, seat.mine, behind, seat.interest, seat.is_read or _is_read(seat.mine, behind)
    )


def _is_read(mine: Participation, behind: UnreadFilter) -> bool:
    """Whether the last message was read, as in most conversations."""
    return (mine.entries - 1, mine.last) in behind.read


def read_mail(
    store: CoreStore, seat: ReadingState, places: Mapping[int, MessagePosition]
) -> list[Mail]:
    """The messages at these places, if they are still there and the agent may still read them.

    Args:
        store: The store.
        seat: The agent's seat in the conversation.
        places: The places, and what the index says of the messages there.

    Raises NotFound, InvalidDocument, and Refused when the agent may not read there any more.
    Cost: reading the messages from the first place on.
    """
    if not places:
        return []
    id, place, acting, engine = (
        seat.mine.id,
        min(places),
        store.inner.store_for(seat.agent),
        store.engine,
    )
    wanted = max(seat.mine.entries, max(places) + 1) - place
    data, count, tag = engine.tail(id, wanted)
    while count - place > wanted or (engine is store.engine and (not tag or tag != seat.mine.tag)):
        # More were written meanwhile; or it is not the version by which the agent has its seat: it
        # is judged anew.
        engine, wanted = acting.engine, max(wanted, count - place)
        data, count, tag = engine.tail(id, wanted)
    store.inner.whole_engine.flush(
        KIND, id
    )  # Who reads a message acts on it: it must outlive a power cut.
    entries = codec.decode_entries(data, id)
    first = count - len(entries)
    if [
        entry for entry in entries if not (entry.get("id") and entry.get("timestamp"))
    ]:  # Somebody typed them.
        entries = acting.engine.document(KIND, id)["history"][first:]
    return [
        Mail.of(
            id, seat.mine.type, at, entry, seat.interest.kind(entry, seat.agent), places[at].front
        )
        for at, entry in enumerate(entries, first)
        if entry and at in places and places[at].message == entry["id"]
    ]


class ListenRequest(NamedTuple):
    """What a call of `listen` asks for.

    Attributes:
        conversation: Only this conversation; None: all.
        part: Only this part of each conversation; None: everything.
    """

    agent: str
    conversation: str | None = None
    part: Part | None = None


class MessageListener:
    """One call of `listen`.

    Args:
        unread: What its agents have not read.
        since: A place in the journal up to which the index has everything.
        asked: Who listens to what.
        limit: The largest number of messages that a look gives.
        before: The last wait of this listener, which this one continues; None: it begins.
        wishes: What counts as unread for the agent now.

    Attributes:
        since: The place in the journal from which to wait.
        stands: By conversation, messages up to which it was given everything, as a cursor names
            them.
        done: The conversations of which it has given all there was.
    """

    def __init__(
        self,
        unread: UnreadTracker,
        since: str,
        asked: ListenRequest,
        limit: int,
        before: MessageListener | None,
        wishes: ReadContext,
    ) -> None:
        self._unread = unread
        self._limit = limit
        self._before = None if before is None else (before.stands, before.done)
        self._seats: dict[str, ReadingState] = {}
        self._wishes = wishes
        #: Conversations that the agent does not take part in.
        self._others: set[str] = set()
        self._found: dict[str, list[MessagePosition]] = {}
        #: The last message of each of these conversations that is known.
        self._ends: dict[str, ReadMark] = {}
        self._asked = asked
        self.since = since
        self.stands: dict[str, tuple[ReadMark, ...]] = {}
        self.done: dict[str, Participation] = {}

    def look(self) -> list[Mail]:
        """Return the messages that were unread when the call began."""
        mail = self._next_batch()
        if len(mail) < self._limit:
            self.done = {id: seat.mine for id, seat in self._seats.items()}
        return mail

    def sit(self, document: Mapping[str, Any]) -> None:
        """Ask the index, within one question, what is unread, given the agent's document as it is
        to be.
        """
        self._wishes = self._wishes[0], document, None
        self._sit()
        wanted = {id for id, seat in self._seats.items() if not seat.is_read}
        if self._before is None:
            self.stands = {id: seat.behind.read for id, seat in self._seats.items()}
        else:  # Others may have read meanwhile what was not given to this one.
            stands, done = self._before
            self.stands = {id: stands.get(id, ()) for id in self._seats}
            wanted |= {id for id, seat in self._seats.items() if done.get(id) is not seat.mine}
        self._find(wanted)

    def look_at(self, changes: Changes) -> list[Mail]:
        """What is new in the conversations that changed."""
        self.since = changes.cursor
        (state, document, _), self._wishes = self._wishes, self._unread.wishes(self._asked.agent)
        is_new = (state, document.get("reading")) != (
            self._wishes[0],
            self._wishes[1].get("reading"),
        )
        self._unread.queries.in_one_transaction(lambda: self._look_at(changes, is_new))
        return self._next_batch()

    def _look_at(self, changes: Changes, is_new: bool) -> None:
        """Ask the index what is unread after changes, given whether what the agent may or wants to
        hear is new, too.
        """
        changed = {change.id for change in changes.changes}
        if is_new:
            self._sit()
            self.stands = {id: seat.behind.read for id, seat in self._seats.items()} | self.stands
        is_more = any(change.kind != "appended" for change in changes.changes)
        if is_more or not changed <= self._seats.keys() | self._others:
            self._sit()
            self._others |= changed - self._seats.keys()
        back = {change.id for change in changes.changes if change.kind in ("restored", "repaired")}
        changed &= self._seats.keys()
        for id in changed:
            self.stands.setdefault(id, self._seats[id].behind.read if id in back else ())
        self._find(changed)
        for change in changes.changes:
            if change.kind == "appended" and change.id in changed and change.messages:
                at = change.count - 1
                there = self._unread.queries.ids_at(change.id, [at], refresh=False)
                self._ends[change.id] = at, there.get(at, ("", ""))[1]

    def _sit(self) -> None:
        self._seats = self._unread.seats(self._asked.agent, self._asked.part, self._wishes)
        if self._asked.conversation is not None:
            self._seats = {
                id: seat for id, seat in self._seats.items() if id == self._asked.conversation
            }
        self._others -= self._seats.keys()

    def _find(self, ids: Iterable[str]) -> None:
        seats = {id: self._seats[id] for id in ids}
        self._found = {id: self._unread.unread(seat, self.stands[id]) for id, seat in seats.items()}
        self._ends = {id: (seat.mine.entries - 1, seat.mine.last) for id, seat in seats.items()}

    def _next_batch(self) -> list[Mail]:
        """Return unread messages by time, up to the limit, and move the marks of each conversation
        past them.
        """
        mail_by_conversation: dict[str, list[Mail]] = {}
        for id, positions in self._found.items():
            mail = self._read(id, positions)
            if mail is not None:
                mail_by_conversation[id] = mail
        # By time. The messages of one conversation stay in its order.
        by_time = merge(*mail_by_conversation.values(), key=attrgetter("timestamp"))
        batch = list(islice(by_time, self._limit))
        last_in_batch = {mail.conversation: mail for mail in batch}
        for id, mail in mail_by_conversation.items():
            last_returned = last_in_batch.get(id)
            new_marks: list[ReadMark] = []
            if last_returned is not None:
                new_marks = [
                    (position.place, position.front)
                    for position in self._found[id]
                    if position.place <= last_returned.at
                ]
            last_unread = mail[-1] if mail else None
            end = self._ends[id]
            # The batch reaches the last unread message, so everything up to the end of the
            # conversation counts as read, also what is not for this agent.
            if last_returned is last_unread and end[1]:
                new_marks.append(end)
            if new_marks:
                marks = [*self.stands[id], *new_marks]
                self.stands[id] = thin_marks(marks, max(new_marks)[0])
        return batch

    def _read(self, id: str, places: Iterable[MessagePosition]) -> list[Mail] | None:
        try:
            return read_mail(
                self._unread.store, self._seats[id], {each.place: each for each in places}
            )
        except (NotFound, InvalidDocument, Refused):
            return None  # It went, was damaged, or is not for the agent any more.
