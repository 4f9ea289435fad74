"""What an agent has not read, in all conversations that it takes part in.

The parts of the answer, in the order of this module:
- *Read cursors*: how far an agent has read a conversation, or one topic or thread of it. A cursor
  is a position with a trail of *marks*. A mark is a position with a digest of all message ids up to
  it.
- *Mentions* in the text of a message (`@name`, `@name@project`, `@all`), and the notifications that
  an agent wants.
- `UnreadTracker`: the conversations of an agent, with the number of unread messages in each.
- `MessageListener`: one call of `listen`. It returns what is unread at once, and what arrives while
  it waits.

What must stay true:
- A cursor never counts a message as read that the agent did not get. So an agent that reads one
  topic has a cursor for it, besides the cursor of the conversation.
- A merge in git may put messages before the last one that was read. They are read again rather than
  lost: the digest at the cursor no longer matches, and an earlier mark of its trail counts. All
  marks of one decision come from one state of the conversation.
- `@name` in code, in an address or in a URL is no mention. A message records the ids of the agents
  that it mentions, whoever has the name later.
- A message is unread if it comes after the cursor, is from another agent that is not blocked, and
  is one that the agent wants to be notified of. The only time that counts is when the agent joined.
  A conversation that the agent may not read now has nothing unread.
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

from capsule.engines.changes import Interest
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.read_marks import UnreadFilter, first_unread
from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.format.json import codec
from capsule.format.validation import AGENT
from capsule.messaging.directory import StoreAgents
from capsule.messaging.mail import Inbox, InboxItem, Mail, Mention
from capsule.rules import policy
from capsule.rules.consent import PolicyInputs
from capsule.timestamps import ms_of

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.engines.read_marks import MessagePosition, Participation, ReadMark
    from capsule.rules.consent import AgentProfile
    from capsule.store.store import CoreStore


#: A read cursor, as it is in the agent's document: `{"message": id, "at": position, "trail":
#: {position: digest}}`.
Cursor = dict[str, Any]
#: A part of a conversation: `("topic", its name)`, or `("thread", the id of its root)`.
Part = tuple[str, str]
#: Returns for each of these positions the id of the message there, and the digest of the ids up to
#: it.
MarksAt = Callable[[Iterable[int]], Mapping[int, tuple[str, str]]]


def make_cursor(position: int, mark: str, marks_at: MarksAt) -> Cursor | None:
    """Return the cursor of an agent that has read everything up to a message.

    Its trail has the digests up to the message, and up to the messages 1, 2, 4, 8 and so on
    positions before it.

    Args:
        position: The position of the last message that was read.
        mark: The digest of the ids up to it, or its id alone, whatever comes before it now.
        marks_at: Reads the ids and the digests of the conversation. It is called once, so all of
            them are of one state.

    Returns: The cursor. None: the conversation has another message or digest at this position.
    """
    trail = [position]
    for exponent in range(position.bit_length()):
        trail.append(position - (1 << exponent))
    marks = marks_at(trail)
    if mark not in marks.get(position, ()):
        return None
    return {
        "message": marks[position][0],
        "at": position,
        "trail": {str(earlier): marks[earlier][1] for earlier in trail if earlier in marks},
    }


def first_unread_position(marks: Collection[ReadMark], marks_at: MarksAt) -> int:
    """Return the position after the furthest mark that is valid. 0: none is.

    `marks_at` is as for `make_cursor`.
    """
    if not marks:
        return 0
    return first_unread(marks, marks_at([position for position, _ in marks]))


def thin_marks(marks: Iterable[ReadMark], last: int) -> tuple[ReadMark, ...]:
    """Return the furthest of the marks up to a position, and those about 1, 2, 4, 8 and so on
    positions before it.
    """
    by_distance = {}
    for position, digest in sorted(marks):
        if position <= last:
            by_distance[(last - position).bit_length()] = (position, digest)
    return tuple(by_distance.values())


def marks_in_cursor(cursor: Any) -> tuple[ReadMark, ...]:
    """Return the marks of a cursor. Everything up to any of them that is still valid was read.

    Args:
        cursor: The cursor in the agent's document, which a person may have edited. What cannot be
            understood is left out. None: nothing was read.
    """
    if not isinstance(cursor, dict):
        return ()
    trail = cursor.get("trail")
    if not isinstance(trail, dict):
        return ()
    marks: list[ReadMark] = []
    for position, digest in trail.items():
        if position.isdecimal() and isinstance(digest, str):
            marks.append((int(position), digest))
    return tuple(marks)


def choose_part(topic: str | None, thread: str | None) -> Part | None:
    """Return the part that a caller names. None: everything. Raises InvalidInput if it names both."""
    if topic is not None and thread is not None:
        raise InvalidInput("give a topic or a thread, not both: a thread has one topic")
    if topic is not None:
        return ("topic", topic)
    if thread is not None:
        return ("thread", thread)
    return None


def parts_of_message(entry: Mapping[str, Any]) -> set[Part]:
    """Return the parts that a message is in. A message is also the root of its own thread."""
    candidates = (
        ("topic", entry.get("topic")),
        ("thread", entry.get("thread")),
        ("thread", entry.get("id")),
    )
    return {(path, value) for path, value in candidates if isinstance(value, str)}


def cursor_key(conversation: str, part: Part | None) -> str:
    """Return the key of `cursors` in an agent's document for a conversation, or for a part of it."""
    if part is None:
        return conversation
    return "/".join((conversation, *part))


def parse_cursor_key(key: str) -> tuple[str, Part | None]:
    """Return the conversation and the part that a key of `cursors` names."""
    conversation, *part = key.split("/", 2)
    if len(part) != 2:
        return conversation, None
    return conversation, (part[0], part[1])


def part_cursors_by_conversation(cursors: Mapping[str, Any]) -> dict[str, dict[Part, Any]]:
    """Return the cursors of parts, by conversation and part."""
    parts: dict[str, dict[Part, Any]] = {}
    for key in [key for key in cursors if "/" in key]:  # Few of thousands have one.
        conversation, part = parse_cursor_key(key)
        if part is not None:
            parts.setdefault(conversation, {})[part] = cursors[key]
    return parts


#: The name that mentions all members of the conversation.
EVERYBODY = "@all"
#: The kinds of mentions. The first needs no word. The others follow the name: `@anna --review`.
KINDS = ("mention", "review", "action", "fyi")
#: Names are looked for in so many characters of a text, and so many of them count.
_MAX_CHARACTERS = 20_000
_MAX_NAMES = 50
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+://\S*|www\.\S*")
_NAME = r"\w++(?:[.-]\w++)*+"
_MENTION = re.compile(
    rf"(?<![\w@/.+-])@({_NAME}(?:@{_NAME})?+)(?![@/])(?:\s+--(review|action|fyi)\b)?"
)


def find_mentions(text: str) -> dict[str, str]:
    """Return the names that a text mentions, each with its kind, in the order of the text.

    Args:
        text: The text, as Markdown.

    Cost: none without an `@`. With one some tens of microseconds, and once 60 milliseconds to load
    a parser.
    """
    kinds: dict[str, str] = {}
    if "@" not in text:
        return kinds
    from markdown_it import MarkdownIt

    for block in MarkdownIt("commonmark").parse(text[:_MAX_CHARACTERS]):
        for span in block.children or ():
            if span.type != "text":  # Code, for example.
                continue
            for name, kind in _MENTION.findall(_URL.sub(" ", span.content)):
                kinds[name] = kind or kinds.get(name, KINDS[0])
    return dict(islice(kinds.items(), _MAX_NAMES))


class NotificationPreference(NamedTuple):
    """What an agent wants to be notified of in a conversation.

    Attributes:
        only_mentions: Whether only mentions count as unread, and wake the agent.
        wakes: Whether any message wakes the agent.
        blocked: The agents that it has blocked. Their messages count and wake nowhere.
    """

    only_mentions: bool = False
    wakes: bool = True
    blocked: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, preferences: Mapping[str, Any] | None, profile: AgentProfile
    ) -> NotificationPreference:
        """Return the preference that an agent has set.

        Args:
            preferences: The item of `reading` in its document for the conversation. None: it has
                none.
            profile: The agent.
        """
        preferences = preferences or {}
        notify = preferences.get("notify")
        is_muted = preferences.get("muted") is True
        blocked = (id for id, entry in profile.dm_entries.items() if entry == "block")
        return cls(is_muted or notify == "mentions", notify != "none", tuple(blocked))

    def kind(self, entry: Mapping[str, Any], agent: str) -> str:
        """Return how a message mentions an agent: one of `KINDS`. Empty: it does not."""
        mentions = entry.get("mentions")
        if not isinstance(mentions, dict) or entry.get("from") in self.blocked:
            return ""
        mentioned = mentions.get("valid")
        if not isinstance(mentioned, list):
            return ""
        name = agent if agent in mentioned else EVERYBODY
        if name not in mentioned:
            return ""
        kinds = mentions.get("kinds")
        kind = kinds.get(name) if isinstance(kinds, dict) else None
        return kind if kind in KINDS else KINDS[0]

    def counts_as_unread(self, entry: Mapping[str, Any], agent: str) -> bool:
        """Return whether a message of another agent counts as unread."""
        if entry.get("from") in self.blocked:
            return False
        return not self.only_mentions or bool(self.kind(entry, agent))


#: The types of conversations that are messages between agents.
TYPES = ("direct", "group", "channel")


@dataclass(slots=True, eq=False)
class ReadingState:
    """How far an agent has read a conversation that it takes part in, or a part of it.

    Attributes:
        agent: The agent.
        participation: The conversation, as the index has it.
        unread_filter: Which messages are unread: those since the agent joined, and after its
            cursors.
        preference: What the agent wants to be notified of.
        is_read: Whether it is certain that nothing is unread.
        item: The unread messages. None: there are none, or nobody has asked yet.
    """

    agent: str
    participation: Participation
    unread_filter: UnreadFilter
    preference: NotificationPreference
    is_read: bool
    item: InboxItem | None = None


#: What the reading state of a conversation depends on: the conversation, the agent's cursor, its
#: cursors of parts, and its notification preference.
_CacheKey = tuple["Participation", Any, Any, Any]
#: What the reading states of all conversations depend on: what decides what the agent may read, its
#: document with its cursors and preferences, and the version of that. None: no version can be read.
ReadContext = tuple[PolicyInputs, Mapping[str, Any], Any]


class _AgentCache(NamedTuple):
    """The last reading states of an agent, and what they were computed from."""

    inputs: PolicyInputs
    version: Any
    participations: dict[str, Participation]
    states_with_keys: dict[str, tuple[_CacheKey, ReadingState | None]]
    states: dict[str, ReadingState]


class UnreadTracker:
    """What the agents of a store have not read.

    The reading state of a conversation is kept until something changes that it depends on.

    Attributes:
        store: The store, as its owner sees it.
        queries: The queries of its owner.
    """

    def __init__(self, store: CoreStore) -> None:
        self.store = store
        self._people = store.inner.object_of(StoreAgents)
        self.queries = store.queries
        self._caches: dict[str, _AgentCache] = {}

    def read_context(self, agent: str) -> ReadContext:
        """Read what the reading states of an agent depend on now."""
        inputs = self._people.directory.state(agent)
        version: Any = inputs.read_versions.get((AGENT.name, agent))
        return inputs, self._people.documents.parse_version(agent, version), version

    def reading_states(
        self, agent: str, part: Part | None = None, context: ReadContext | None = None
    ) -> dict[str, ReadingState]:
        """Return the conversations that an agent takes part in, the latest first, as the index has
        them.

        Args:
            agent: The agent.
            part: The part of them that it reads. None: everything.
            context: What `read_context` returned just now. None: it is read.

        Cost: some microseconds for each conversation.
        """
        inputs, document, version = context or self.read_context(agent)
        cache = self._caches.get(agent) or _AgentCache(inputs, None, {}, {}, {})
        participations = self.queries.participations(agent, cache.participations, refresh=False)
        is_same_agent = version is not None and (inputs, version) == (cache.inputs, cache.version)
        if not is_same_agent or participations != [*cache.participations.values()]:
            cache = self._updated_cache(agent, cache, inputs, document, version, participations)
            self._caches[agent] = cache
        if part is None:
            return cache.states
        return {id: _narrow_to_part(state, part) for id, state in cache.states.items()}

    def _updated_cache(
        self,
        agent: str,
        cache: _AgentCache,
        inputs: PolicyInputs,
        document: Mapping[str, Any],
        version: Any,
        participations: list[Participation],
    ) -> _AgentCache:
        """Return a cache in which only the states are new whose key changed."""
        preferences = document.get("reading") or {}
        cursors = document.get("cursors") or {}
        part_cursors = part_cursors_by_conversation(cursors)
        old_states = cache.states_with_keys if cache.inputs == inputs else {}
        new_states: dict[str, tuple[_CacheKey, ReadingState | None]] = {}
        for participation in participations:
            id = participation.id
            key = participation, cursors.get(id), part_cursors.get(id), preferences.get(id)
            old = old_states.get(id)
            if old is not None and old[0] == key:
                new_states[id] = old
            else:
                new_states[id] = key, self._reading_state(agent, inputs, *key)
        return _AgentCache(
            inputs=inputs,
            version=version,
            participations={participation.id: participation for participation in participations},
            states_with_keys=new_states,
            states={id: state for id, (_, state) in new_states.items() if state is not None},
        )

    def _reading_state(
        self,
        agent: str,
        inputs: PolicyInputs,
        participation: Participation,
        cursor: Any,
        part_cursors: Mapping[Part, Any] | None,
        preferences: Any,
    ) -> ReadingState | None:
        """Return how far an agent has read. None: it may not read the conversation, or that has no
        messages between agents.
        """
        channel = participation.channel
        is_of_notes = channel is not None and bool(channel.owner)
        if participation.type not in TYPES or is_of_notes:
            return None
        target = policy.PolicyTarget(
            id=participation.id,
            type=participation.type,
            members=participation.participants,
            archived=participation.archived,
            history=participation.history or "joined",
            channel=channel,
            created_by=participation.created_by or "",
        )
        if not policy.decide(agent, "read", target, inputs).allowed:
            return None
        preference = NotificationPreference.of(preferences, inputs.profiles[agent])
        member = target.members_by_id.get(agent)
        covered = [
            (part, marks_in_cursor(part_cursor))
            for part, part_cursor in (part_cursors or {}).items()
        ]
        unread_filter = UnreadFilter(
            read_marks=marks_in_cursor(cursor),
            excluded_senders=(agent, *preference.blocked),
            since_ms=ms_of(member.joined_at if member is not None else ""),
            mentioning=agent if preference.only_mentions else "",
            read_parts=tuple(covered),
        )
        is_read = _is_read(participation, unread_filter)
        return ReadingState(agent, participation, unread_filter, preference, is_read)

    def unread(
        self, state: ReadingState, read_marks: tuple[ReadMark, ...] | None = None
    ) -> list[MessagePosition]:
        """Return the unread messages of a conversation.

        Args:
            state: How far the agent has read it.
            read_marks: How far one listener of the agent has read it. None: as far as the agent.
        """
        unread_filter = state.unread_filter
        if read_marks is not None:
            unread_filter = unread_filter._replace(read_marks=read_marks)
        id = state.participation.id
        unread = self.queries.unread_positions(unread_filter, id, refresh=False)
        if not unread and unread_filter.read_marks == state.unread_filter.read_marks:
            state.is_read = True
        return unread

    def _item(self, state: ReadingState) -> InboxItem | None:
        """Return the item of the inbox for a conversation. None: nothing is unread."""
        if state.is_read or state.item is not None:
            return state.item
        participation = state.participation
        summary = self.queries.summarize_unread(
            participation.id, state.unread_filter, refresh=False
        )
        if summary.last is None:
            state.is_read = True
            return None
        name = participation.title
        if participation.type == "direct":
            others = (
                member.id for member in participation.participants if member.id != state.agent
            )
            name = next(others, name)
        position, id, sender, content, time = summary.last
        last = Mail(participation.id, participation.type, id, position, sender, content, time)
        state.item = InboxItem(
            id=participation.id,
            type=participation.type,
            name=name,
            unread=summary.total,
            senders=summary.senders,
            last=last,
            wakes=state.preference.wakes,
        )
        return state.item

    def inbox(self, agent: str, part: Part | None = None) -> Inbox:
        """Return the inbox of an agent, or the part of it that the agent reads.

        Cost: bringing the index up to date, `reading_states`, and a query for each conversation
        that changed and is not read.
        """
        self.queries.refresh()
        items = (self._item(state) for state in self.reading_states(agent, part).values())
        return Inbox.of(item for item in items if item is not None)

    def pointer(self, agent: str) -> str:
        """Return in words how much is unread that may wake an agent, and from whom. See
        `Messages.pointer`.
        """
        return Inbox.of(item for item in self.inbox(agent).conversations if item.wakes).pointer

    def mention_positions(self, agent: str) -> list[MessagePosition]:
        """Return the messages that mention an agent where it takes part, the latest first."""
        profile = self.read_context(agent)[0].profiles[agent]
        blocked = NotificationPreference.of(None, profile).blocked
        positions = self.queries.unread_positions(
            UnreadFilter(excluded_senders=(agent, *blocked), mentioning=agent)
        )
        states = self.reading_states(agent)
        return [position for position in positions if position.conversation in states]

    def mentions(
        self, agent: str, in_states: Collection[str], kind: str | None, limit: int
    ) -> list[Mention]:
        """Return mentions of an agent, the latest first. See `Messages.mentions`."""
        positions = self.mention_positions(agent)
        reading_states = self.reading_states(agent)
        chosen = self._mentions_in_states(agent, positions, reading_states, in_states)
        if kind is None:  # The kind is in the message alone, so all have to be read for it.
            chosen = islice(chosen, limit)
        by_conversation: dict[str, dict[int, tuple[MessagePosition, str, str, str]]] = {}
        for position, state, read_at, done_at in chosen:
            of_conversation = by_conversation.setdefault(position.conversation, {})
            of_conversation[position.position] = position, state, read_at, done_at
        mentions = []
        for conversation, states in by_conversation.items():
            reading_state = reading_states[conversation]
            positions_by_place = {place: position for place, (position, *_) in states.items()}
            with suppress(NotFound, InvalidDocument, Refused):  # As for a listener.
                for mail in reversed(read_mail(self.store, reading_state, positions_by_place)):
                    has_joined = ms_of(mail.timestamp) >= reading_state.unread_filter.since_ms
                    if has_joined and kind in (None, mail.mention):
                        mentions.append(Mention(mail, *states[mail.at][1:]))
        mentions.sort(key=lambda mention: mention.mail.timestamp, reverse=True)
        return mentions[:limit]

    def _mentions_in_states(
        self,
        agent: str,
        positions: Iterable[MessagePosition],
        reading_states: Mapping[str, ReadingState],
        in_states: Collection[str],
    ) -> Iterable[tuple[MessagePosition, str, str, str]]:
        """Yield the mentions in some states, with the state, when it was read, and when it was
        done.
        """
        concerns = self._people.documents.object_in(agent, "concerns")

        @cache
        def first_unread_in(conversation: str) -> int:
            read_marks = reading_states[conversation].unread_filter.read_marks
            marks_at = partial(self.queries.ids_at, conversation, refresh=False)
            return first_unread_position(read_marks, marks_at)

        for position in positions:
            concern = concerns.get(position.message) or {}
            read_at = concern.get("readAt") or ""
            done_at = concern.get("doneAt") or ""
            if done_at:
                state = "done"
            elif read_at or position.position < first_unread_in(position.conversation):
                state = "read"
            else:
                state = "unread"
            if state in in_states:
                yield position, state, read_at, done_at


def _narrow_to_part(state: ReadingState, part: Part) -> ReadingState:
    """Return the reading state of one part of a conversation."""
    read_of_part = dict(state.unread_filter.read_parts).get(part, ())
    read_marks = (*state.unread_filter.read_marks, *read_of_part)
    unread_filter = state.unread_filter._replace(read_marks=read_marks, part=part)
    is_read = state.is_read or _is_read(state.participation, unread_filter)
    return ReadingState(state.agent, state.participation, unread_filter, state.preference, is_read)


def _is_read(participation: Participation, unread_filter: UnreadFilter) -> bool:
    """Return whether the last message was read, as in most conversations."""
    return (participation.entries - 1, participation.ids_digest) in unread_filter.read_marks


def read_mail(
    store: CoreStore, state: ReadingState, positions: Mapping[int, MessagePosition]
) -> list[Mail]:
    """Read the messages at positions, if they are still there and the agent may still read them.

    The messages are on the disk when this returns, as the reader will act on them.

    Args:
        store: The store.
        state: The agent's reading state of the conversation.
        positions: What the index says of the messages, by their positions.

    Raises NotFound, InvalidDocument, and Refused if the agent may not read there any more.
    Cost: reading the messages from the first position on.
    """
    if not positions:
        return []
    id = state.participation.id
    first_position = min(positions)
    acting = store.inner.store_for(state.agent)
    engine = store.engine
    size = max(state.participation.entries, max(positions) + 1) - first_position
    data, count, tag = engine.tail(id, size)
    # The reading state decided on one version. If the file has another version, or the version is
    # not known, the permission to read is checked again, by the engine of the agent. If others
    # appended meanwhile, more has to be read.
    is_same_version = bool(tag) and tag == state.participation.tag
    is_checked = is_same_version
    while count - first_position > size or not is_checked:
        is_checked = True
        engine = acting.engine
        size = max(size, count - first_position)
        data, count, tag = engine.tail(id, size)
    store.inner.whole_engine.flush(CONVERSATIONS, id)
    entries = codec.decode_entries(data, id)
    first = count - len(entries)
    if not all(entry.get("id") and entry.get("timestamp") for entry in entries):
        # Somebody typed messages into the file. The store adds what they lack.
        entries = acting.engine.document(CONVERSATIONS, id)["history"][first:]
    found = []
    for position, entry in enumerate(entries, first):
        if entry and position in positions and positions[position].message == entry["id"]:
            mention = state.preference.kind(entry, state.agent)
            front = positions[position].ids_digest
            found.append(Mail.of(id, state.participation.type, position, entry, mention, front))
    return found


class ListenRequest(NamedTuple):
    """What a call of `listen` asks for.

    Attributes:
        agent: The reader.
        conversation: Only this conversation. None: all.
        part: Only this part of each conversation. None: everything.
    """

    agent: str
    conversation: str | None = None
    part: Part | None = None


class MessageListener:
    """One call of `listen`.

    First `prepare` finds what is unread, and `first_batch` returns it. Then each call of
    `process_changes` returns what is new. If there is more than the limit, the rest stays unread:
    the marks of a conversation move only past the messages that were returned.

    Args:
        unread: What its agents have not read.
        change_cursor: A position in the journal up to which the index has everything.
        request: What to listen to, for which agent.
        limit: The largest number of messages in a batch.
        previous: The last wait of the same thread, which this one continues. None: it is the first.
        context: What decides for the agent now which messages are unread.

    Attributes:
        change_cursor: The position in the journal from which to wait.
        read_marks: How far each conversation was returned to this listener.
        finished_conversations: The conversations of which it has returned everything.
    """

    def __init__(
        self,
        unread: UnreadTracker,
        change_cursor: str,
        request: ListenRequest,
        limit: int,
        previous: MessageListener | None,
        context: ReadContext,
    ) -> None:
        self._unread = unread
        self._limit = limit
        self._request = request
        self._context = context
        self._previous_marks: dict[str, tuple[ReadMark, ...]] | None = None
        self._previous_finished: dict[str, Participation] = {}
        if previous is not None:
            self._previous_marks = previous.read_marks
            self._previous_finished = previous.finished_conversations
        self._states: dict[str, ReadingState] = {}
        #: Changed conversations that the agent does not take part in.
        self._unrelated_ids: set[str] = set()
        self._unread_positions: dict[str, list[MessagePosition]] = {}
        #: The mark of the last message in each conversation of `_unread_positions`.
        self._end_marks: dict[str, ReadMark] = {}
        self.change_cursor = change_cursor
        self.read_marks: dict[str, tuple[ReadMark, ...]] = {}
        self.finished_conversations: dict[str, Participation] = {}

    def prepare(self, document: Mapping[str, Any]) -> None:
        """Find what is unread, in one transaction of the index.

        Args:
            document: The agent's document, as it will be after the acknowledgement that comes with
                this call.
        """
        self._context = self._context[0], document, None
        self._load_states()
        ids = {id for id, state in self._states.items() if not state.is_read}
        if self._previous_marks is None:
            self.read_marks = self._marks_of_agent()
        else:
            # Other listeners may have read meanwhile what this one did not get.
            previous_marks = self._previous_marks
            self.read_marks = {id: previous_marks.get(id, ()) for id in self._states}
            for id, state in self._states.items():
                if self._previous_finished.get(id) is not state.participation:
                    ids.add(id)
        self._find_unread(ids)

    def first_batch(self) -> list[Mail]:
        """Return the messages that were unread when the call began."""
        batch = self._next_batch()
        if len(batch) < self._limit:
            self.finished_conversations = {
                id: state.participation for id, state in self._states.items()
            }
        return batch

    @property
    def interest(self) -> Interest:
        """The changes that can bring a message: all but appends where the agent does not take part."""
        return Interest(appends_in=frozenset(self._states))

    def process_changes(self, changes: Changes) -> list[Mail]:
        """Return what is new in the conversations that changed."""
        self.change_cursor = changes.cursor
        old_inputs, old_document, _ = self._context
        self._context = self._unread.read_context(self._request.agent)
        inputs, document, _ = self._context
        old_basis = old_inputs, old_document.get("reading")
        has_other_rights = old_basis != (inputs, document.get("reading"))
        self._unread.queries.in_one_transaction(
            lambda: self._find_unread_after(changes, has_other_rights)
        )
        return self._next_batch()

    def _find_unread_after(self, changes: Changes, has_other_rights: bool) -> None:
        """Find what is unread after changes.

        Args:
            changes: The changes.
            has_other_rights: Whether the agent may read, or wants to be notified of, something
                else than before.
        """
        changed_ids = {change.id for change in changes.changes}
        if has_other_rights:
            self._load_states()
            self.read_marks = self._marks_of_agent() | self.read_marks
        has_more_than_appends = any(change.kind != "appended" for change in changes.changes)
        if has_more_than_appends or not changed_ids <= self._states.keys() | self._unrelated_ids:
            self._load_states()
            self._unrelated_ids |= changed_ids - self._states.keys()
        changed_ids &= self._states.keys()
        reappeared_ids = set()
        for change in changes.changes:
            if change.kind in ("restored", "repaired"):
                reappeared_ids.add(change.id)
        for id in changed_ids:
            # A conversation that is new to this listener has been read nowhere. One that came back
            # from the trash may have been read before.
            marks = self._states[id].unread_filter.read_marks if id in reappeared_ids else ()
            self.read_marks.setdefault(id, marks)
        self._find_unread(changed_ids)
        for change in changes.changes:
            if change.kind == "appended" and change.id in changed_ids and change.messages:
                last = change.count - 1
                ids_at_end = self._unread.queries.ids_at(change.id, [last], refresh=False)
                self._end_marks[change.id] = last, ids_at_end.get(last, ("", ""))[1]

    def _load_states(self) -> None:
        request = self._request
        states = self._unread.reading_states(request.agent, request.part, self._context)
        if request.conversation is not None:
            states = {id: state for id, state in states.items() if id == request.conversation}
        self._states = states
        self._unrelated_ids -= states.keys()

    def _marks_of_agent(self) -> dict[str, tuple[ReadMark, ...]]:
        return {id: state.unread_filter.read_marks for id, state in self._states.items()}

    def _find_unread(self, ids: Iterable[str]) -> None:
        """Find the unread messages of conversations. Others have none from now on."""
        self._unread_positions = {}
        self._end_marks = {}
        for id in ids:
            state = self._states[id]
            self._unread_positions[id] = self._unread.unread(state, self.read_marks[id])
            participation = state.participation
            self._end_marks[id] = participation.entries - 1, participation.ids_digest

    def _next_batch(self) -> list[Mail]:
        """Return unread messages by time, up to the limit, and move the marks of each conversation
        past them.
        """
        mail_by_conversation: dict[str, list[Mail]] = {}
        for id, positions in self._unread_positions.items():
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
                    (position.position, position.ids_digest)
                    for position in self._unread_positions[id]
                    if position.position <= last_returned.at
                ]
            last_unread = mail[-1] if mail else None
            end_mark = self._end_marks[id]
            # The batch reaches the last unread message, so everything up to the end of the
            # conversation counts as read, also what is not for this agent.
            if last_returned is last_unread and end_mark[1]:
                new_marks.append(end_mark)
            if new_marks:
                marks = [*self.read_marks[id], *new_marks]
                self.read_marks[id] = thin_marks(marks, max(new_marks)[0])
        return batch

    def _read(self, id: str, positions: Iterable[MessagePosition]) -> list[Mail] | None:
        """Read messages. None: the conversation is gone, damaged, or closed to the agent."""
        by_place = {position.position: position for position in positions}
        try:
            return read_mail(self._unread.store, self._states[id], by_place)
        except (NotFound, InvalidDocument, Refused):
            return None
